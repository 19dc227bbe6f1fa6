"""Our kernels beside plain PyTorch on one GPU: `python -m softbias.bench.kernels [--cases …] [--sweep …]`.

Every candidate is captured as a CUDA graph and its replays are timed, interleaved, with device events: so the time of a kernel
of 50 µs is measured, and not the Python around it. Errors are relative, ‖found − exact‖ / ‖exact‖, on fresh random inputs,
against float64. `extra MB` is the peak memory of one step above its inputs.
"""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from softbias.bench.kernel_cases import (
    CASES,
    DEVICE,
    DISTANCE,
    DTYPE,
    GATED,
    MASKED,
    SHORT_SEQ,
    Case,
    Form,
    Shape,
    distance_case,
    gated_case,
    masked_case,
    short_seq_case,
)
from softbias.bench.timing import interleaved, ratio
from softbias.kernels import distance
from softbias.kernels.gated import GatedMix
from softbias.kernels.launching import Tiles
from softbias.kernels.masked import MaskedAttention
from softbias.kernels.operation import Kernel, eager
from softbias.kernels.short_seq import ShortSeqAttention

CHECKED = 4  # images compared with float64


def step(case: Case, form: Form, *, backward: bool) -> Callable[[], tuple[Tensor, ...]]:
    def run() -> tuple[Tensor, ...]:
        if not backward:
            with torch.no_grad():
                return (form(*case.inputs),)
        output = form(*case.inputs)
        return output, *torch.autograd.grad(output, case.inputs, case.weights.to(output.dtype), allow_unused=True)

    return run


def captured(run: Callable[[], object]) -> Callable[[], None]:
    """A CUDA graph of the call, to be replayed."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def errors(case: Case, form: Form) -> str:
    run = step(case, form, backward=True)
    found, again = [x.clone() for x in run()], run()
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    parts = []
    for a, b in zip(found, case.exact(CHECKED), strict=True):
        parts.append(f"{float((a[: len(b)].double() - b).norm() / b.norm()):.1e}")
    return " ".join(parts) + ("" if same else " NOT THE SAME TWICE")


def extra_megabytes(run: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


@contextmanager
def reported(what: str) -> Iterator[None]:
    """A candidate that fails is named, and the others go on."""
    try:
        yield
    except Exception as error:
        print(f"{what}: FAILED {type(error).__name__}: {str(error)[:400]}")
        print("".join(traceback.format_exc().splitlines(keepends=True)[-6:]))


def measure(case: Case, rounds: int) -> None:
    print(f"\n{case.name}: form, fwd ms, fwd+bwd ms, speed-up fwd and fwd+bwd over plain, extra MB, TFLOP/s, GB/s, errors")
    graphs: dict[bool, dict[str, Callable[[], None]]] = {False: {}, True: {}}
    notes = {}
    for name, form in case.forms.items():
        with reported(f"{case.name}, {name}"):
            wrong = "" if name.startswith("(") else errors(case, form)
            notes[name] = extra_megabytes(step(case, form, backward=True)), wrong
            ready = {backward: captured(step(case, form, backward=backward)) for backward in graphs}
            for backward, replay in ready.items():
                graphs[backward][name] = replay
    times = {backward: interleaved(replays, DEVICE, rounds=rounds) for backward, replays in graphs.items()}
    for name, (memory, wrong) in notes.items():
        if name not in times[True]:
            continue
        forward, both = (times[backward][name] for backward in (False, True))
        gains = [ratio(t[name], t["plain"])[0] if "plain" in t else float("nan") for t in (times[False], times[True])]
        print(
            f"  {name:22} {forward.median * 1e3:7.3f} {both.median * 1e3:7.3f}  {gains[0]:5.2f} {gains[1]:5.2f}  {memory:7.0f}"
            f"  {case.flops[1] / both.median / 1e12:5.0f} {case.megabytes[1] / both.median / 1e3:5.0f}  {wrong}"
        )


def ceilings() -> None:
    """What the GPU reaches at all: a large product, and a copy."""
    a = torch.randn(8192, 8192, device=DEVICE, dtype=DTYPE)
    big = torch.randn(2**28, device=DEVICE)
    other = torch.empty_like(big)
    times = interleaved({"product": lambda: a @ a, "copy": lambda: other.copy_(big)}, DEVICE, rounds=15)
    product, copy = times["product"].median, times["copy"].median
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: product {2 * 8192**3 / product / 1e12:.0f} TFLOP/s, "
        f"copy {2 * 2**30 / copy / 1e9:.0f} GB/s"
    )


@dataclass(frozen=True)
class Sweep:
    """Other values of one field of a kernel, timed beside each other."""

    build: Callable[[Shape], Case]
    shapes: Sequence[Shape]
    operation: Callable[..., Callable[..., Any]]  # given the field's value by name
    values: Sequence[Tiles | int]
    backward: bool = True  # whether the field matters there


def tiles(*given: tuple[int, ...]) -> list[Tiles]:
    """From (size, warps, stages), or these with a second size, and a third."""
    return [Tiles(*each) for each in given]


def with_tiles(kernel: type[Kernel]) -> Callable[..., Callable[..., Any]]:
    return lambda **fields: eager(kernel(**fields))


def penalty_with(*, gradient: bool) -> Callable[..., Callable[..., Tensor]]:
    def operation(**fields: Tiles) -> Callable[..., Tensor]:
        chosen = distance.PenaltyTiles(**fields)
        return lambda *given: distance.run(*given, gradient=gradient, tiles=chosen)[0]

    return operation


MIX = tiles(  # size, warps, stages, other, depth
    (128, 8, 3, 128, 32), (128, 8, 4, 128, 32), (128, 8, 3, 128, 64), (128, 4, 4, 64, 32), (64, 4, 4, 128, 32),
    (64, 8, 3, 256, 32), (256, 8, 3, 64, 32), (256, 8, 3, 128, 32), (128, 8, 3, 256, 32),
)  # fmt: skip
PAIRS = tiles(
    (128, 8, 3, 128, 64), (128, 8, 4, 128, 64), (128, 8, 4, 128, 32), (128, 4, 4, 64, 64), (64, 4, 4, 64, 64),
    (64, 4, 3, 128, 64), (128, 8, 3, 256, 64),
)  # fmt: skip
PENALTY = tiles((16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 8, 3), (64, 8, 2), (32, 16, 2))
ATTENTION = tiles((16, 8, 1), (16, 8, 2), (32, 4, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (64, 8, 2))
PROJECTION = tiles((16, 8, 1), (16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (16, 16, 2))
MASK = tiles((64, 4, 2, 64), (64, 8, 2, 64), (64, 8, 3, 64), (64, 8, 2, 128), (64, 8, 3, 128), (32, 4, 3, 128))
FACTORS = tiles((2048, 4, 1, 8), (4096, 4, 1, 8), (8192, 4, 1, 8), (8192, 8, 1, 8), (8192, 8, 1, 16))
UNROLL = tiles((16, 1, 1), (16, 4, 1), (32, 2, 1), (32, 4, 1), (32, 8, 1), (64, 8, 1))
PARTS = tiles((264, 4, 1), (264, 4, 2), (264, 4, 3), (132, 4, 2), (396, 4, 2))
SHORT = tiles((64, 2, 1), (64, 4, 1), (64, 8, 1))
masked, gated, short_seq = with_tiles(MaskedAttention), with_tiles(GatedMix), with_tiles(ShortSeqAttention)
SWEEPS = {  # "kernel.field"
    "distance.value": Sweep(distance_case, DISTANCE[1:], penalty_with(gradient=False), PENALTY, backward=False),
    "distance.gradient": Sweep(distance_case, DISTANCE[1:], penalty_with(gradient=True), PENALTY, backward=False),
    "masked.attention": Sweep(masked_case, MASKED, masked, ATTENTION, backward=False),
    "masked.projection": Sweep(masked_case, MASKED, masked, PROJECTION),
    "masked.short_seq": Sweep(masked_case, MASKED[1:], masked, PARTS),
    "masked.mask": Sweep(masked_case, MASKED, masked, MASK),
    "masked.unroll": Sweep(masked_case, MASKED, masked, UNROLL, backward=False),
    "masked.factors": Sweep(masked_case, MASKED, masked, FACTORS),
    "gated.mix": Sweep(gated_case, GATED, gated, MIX, backward=False),
    "gated.values": Sweep(gated_case, GATED, gated, MIX),
    "gated.pairs": Sweep(gated_case, GATED, gated, PAIRS),
    "gated.programs": Sweep(gated_case, GATED, gated, (132, 264, 396, 528)),
    "short_seq.forward_tiles": Sweep(short_seq_case, SHORT_SEQ, short_seq, SHORT, backward=False),
    "short_seq.backward_tiles": Sweep(short_seq_case, SHORT_SEQ, short_seq, SHORT),
}


def sweep(name: str, rounds: int) -> None:
    wanted, field = SWEEPS[name], name.partition(".")[2]
    for shape in wanted.shapes:
        case, replays = wanted.build(shape), {}
        for value in wanted.values:
            with reported(f"{name} {value}"):
                form = case.kernel(wanted.operation(**{field: value}))
                replays[str(value)] = captured(step(case, form, backward=wanted.backward))
        print(f"\nsweep of {name}, {case.name}, {'with' if wanted.backward else 'without'} backward")
        for value, timing in sorted(interleaved(replays, DEVICE, rounds=rounds).items(), key=lambda pair: pair[1].median):
            print(f"  {timing.median * 1e3:7.3f} ms  {value}")


def main() -> None:
    parser = argparse.ArgumentParser("python -m softbias.bench.kernels", description=__doc__)
    parser.add_argument(
        "--sweep", nargs="+", default=[], choices=list(SWEEPS), help="time other tiles of these kernels as well"
    )
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
                measure(build(shape), options.rounds)
            torch.cuda.empty_cache()
    for name in options.sweep:
        sweep(name, options.rounds)


if __name__ == "__main__":
    main()
