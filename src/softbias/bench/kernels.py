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
from typing import Any

import torch
from torch import Tensor

from softbias.bench.kernel_cases import CASES, DEVICE, DTYPE, Case, Form
from softbias.bench.measuring import interleaved, ratio
from softbias.kernels import distance
from softbias.kernels.depthwise import DepthwiseGelu
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
    found, again = [x.detach().clone() for x in run()], run()
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


def tiles(*given: tuple[int, ...]) -> list[Tiles]:
    """From (size, warps, stages), or these with a second size, and a third."""
    return [Tiles(*each) for each in given]


MIX = tiles(
    (128, 8, 3, 128, 32), (128, 8, 4, 128, 32), (128, 8, 3, 128, 64), (128, 4, 4, 64, 32), (64, 4, 4, 128, 32),
    (64, 8, 3, 256, 32), (256, 8, 3, 64, 32), (256, 8, 3, 128, 32), (128, 8, 3, 256, 32),
)  # fmt: skip
PAIRS = tiles(
    (128, 8, 3, 128, 64), (128, 8, 4, 128, 64), (128, 8, 4, 128, 32), (128, 4, 4, 64, 64), (64, 4, 4, 64, 64),
    (64, 4, 3, 128, 64), (128, 8, 3, 256, 64),
)  # fmt: skip
ROWS = tiles(
    (32, 1, 1, 1, 8), (64, 1, 1, 1, 8), (64, 2, 1, 1, 8), (64, 1, 1, 2, 8), (64, 1, 1, 4, 8), (128, 2, 1, 1, 8),
    (128, 4, 1, 1, 8), (256, 4, 1, 1, 8), (256, 8, 1, 1, 8), (64, 1, 1, 1, 4), (64, 2, 1, 1, 14),
)  # fmt: skip
ROWS_BACK = tiles(
    (32, 1, 1, 1, 8), (32, 1, 1, 2, 8), (32, 1, 1, 4, 8), (32, 1, 1, 8, 8), (64, 1, 1, 4, 8), (64, 2, 1, 2, 8),
    (64, 2, 1, 4, 8), (128, 4, 1, 1, 8), (128, 4, 1, 2, 8), (128, 4, 1, 4, 8), (128, 2, 1, 2, 8), (256, 8, 1, 2, 8),
    (64, 1, 1, 2, 4), (64, 1, 1, 4, 4), (64, 2, 1, 4, 14),
)  # fmt: skip
PENALTY = tiles((16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 8, 3), (64, 8, 2), (32, 16, 2))
SWEEPS: dict[str, Sequence[Tiles | int]] = {  # "case.field": values of this field of the kernel
    "distance.value": PENALTY,
    "distance.gradient": PENALTY,
    "masked.attention": tiles((16, 8, 1), (16, 8, 2), (32, 4, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (64, 8, 2)),
    "masked.projection": tiles((16, 8, 1), (16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (16, 16, 2)),
    "masked.short_seq": tiles((264, 4, 1), (264, 4, 2), (264, 4, 3), (132, 4, 2), (396, 4, 2)),
    "masked.mask": tiles((64, 4, 2, 64), (64, 8, 2, 64), (64, 8, 3, 64), (64, 8, 2, 128), (64, 8, 3, 128), (32, 4, 3, 128)),
    "masked.unroll": tiles((16, 1, 1), (16, 4, 1), (32, 2, 1), (32, 4, 1), (32, 8, 1), (64, 8, 1)),
    "masked.factors": tiles((2048, 4, 1, 8), (4096, 4, 1, 8), (8192, 4, 1, 8), (8192, 8, 1, 8), (8192, 8, 1, 16)),
    "gated.mix": MIX,
    "gated.values": MIX,
    "gated.pairs": PAIRS,
    "gated.programs": (132, 264, 396, 528),
    "short_seq.forward_tiles": tiles((64, 2, 1), (64, 4, 1), (64, 8, 1)),
    "short_seq.backward_tiles": tiles((64, 2, 1), (64, 4, 1), (64, 8, 1)),
    "depthwise.forward_tiles": ROWS,
    "depthwise.backward_tiles": ROWS_BACK,
    "depthwise.parameter_tiles": tiles((32, 4, 1, 32), (16, 4, 1, 64), (32, 4, 1, 64), (64, 4, 1, 32), (16, 1, 1, 32)),
}
FORWARD = (
    "distance.value", "distance.gradient", "masked.attention", "masked.unroll", "gated.mix", "short_seq.forward_tiles",
    "depthwise.forward_tiles",
)  # fmt: skip
KERNELS: dict[str, type[Kernel]] = {
    "masked": MaskedAttention, "gated": GatedMix, "short_seq": ShortSeqAttention, "depthwise": DepthwiseGelu
}  # fmt: skip


def with_field(case: str, field: str, value: Tiles | int) -> Callable[..., Any]:
    """The operation of a case with another value of one of its kernel's fields."""
    if case in KERNELS:
        return eager(KERNELS[case](**{field: value}))
    chosen = distance.PenaltyTiles(**{field: value})  # type: ignore[arg-type]
    return lambda *given: distance.run(*given, gradient=field == "gradient", tiles=chosen)[0]


def sweep(name: str, rounds: int) -> None:
    """Other values of one field, timed beside each other; without backward where the field does not matter there."""
    (kind, _, field), backward = name.partition("."), name not in FORWARD
    build, shapes = CASES[kind]
    for shape in shapes:
        case, replays = build(shape), {}
        for value in SWEEPS[name]:
            with reported(f"{name} {value}"):
                form = case.kernel(with_field(kind, field, value))
                replays[str(value)] = captured(step(case, form, backward=backward))
        print(f"\nsweep of {name}, {case.name}, {'with' if backward else 'without'} backward")
        for text, timing in sorted(interleaved(replays, DEVICE, rounds=rounds).items(), key=lambda pair: pair[1].median):
            print(f"  {timing.median * 1e3:7.3f} ms  {text}")


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
