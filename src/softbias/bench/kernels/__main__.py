"""The command: see `softbias.bench.kernels`."""

from __future__ import annotations

import argparse

import torch

import softbias.bench.kernels
from softbias.bench.kernels.cases import CASES
from softbias.bench.kernels.measuring import ceilings, measure, reported
from softbias.bench.kernels.sweeping import SWEEP, sweep


def main() -> None:
    parser = argparse.ArgumentParser("python -m softbias.bench.kernels", description=softbias.bench.kernels.__doc__)
    parser.add_argument("--sweep", nargs="+", default=[], choices=list(SWEEP), help="time other tiles of these kernels as well")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("there is no GPU here")
    torch.manual_seed(0)
    ceilings()
    for name in options.cases:
        build, shapes = CASES[name]
        for shape in shapes:
            with reported(str(shape)):
                measure(build(*shape), options.rounds)
            torch.cuda.empty_cache()
    sweep(options.sweep, options.rounds)


if __name__ == "__main__":
    main()
