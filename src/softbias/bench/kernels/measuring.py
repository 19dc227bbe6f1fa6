"""How a case is measured: its forms as replays of CUDA graphs, their errors and their memory."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from softbias.bench.kernels.cases import DEVICE, DTYPE, Case
from softbias.bench.timing import interleaved, ratio

CHECKED = 4  # images compared with float64


def step(case: Case, form: str, backward: bool) -> Callable[[], tuple[Tensor, ...]]:
    def run() -> tuple[Tensor, ...]:
        if not backward:
            with torch.no_grad():
                return (case.forms[form](*case.inputs),)
        output = case.forms[form](*case.inputs)
        return output, *torch.autograd.grad(output, case.inputs, case.weights.to(output.dtype), allow_unused=True)

    return run


def captured(run: Callable[[], Any]) -> Callable[[], None]:
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


def errors(case: Case, form: str) -> str:
    found = [x.clone() for x in step(case, form, True)()]
    again = step(case, form, True)()
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    parts = []
    for a, b in zip(found, case.exact(CHECKED), strict=True):
        parts.append(f"{float((a[: len(b)].double() - b).norm() / b.norm()):.1e}")
    return " ".join(parts) + ("" if same else " NOT THE SAME TWICE")


def extra_megabytes(run: Callable[[], Any]) -> float:
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
    for form in case.forms:
        with reported(f"{case.name}, {form}"):
            wrong = "" if form.startswith("(") else errors(case, form)
            notes[form] = extra_megabytes(step(case, form, True)), wrong
            ready = {backward: captured(step(case, form, backward)) for backward in graphs}
            for backward, replay in ready.items():
                graphs[backward][form] = replay
    times = {backward: interleaved(replays, DEVICE, rounds=rounds) for backward, replays in graphs.items()}
    for form, (memory, wrong) in notes.items():
        if form not in times[True]:
            continue
        forward, both = (times[backward][form] for backward in (False, True))
        gains = [ratio(t[form], t["plain"])[0] if "plain" in t else float("nan") for t in (times[False], times[True])]
        print(
            f"  {form:22} {forward.median * 1e3:7.3f} {both.median * 1e3:7.3f}  {gains[0]:5.2f} {gains[1]:5.2f}  {memory:7.0f}"
            f"  {case.flops[1] / both.median / 1e12:5.0f} {case.megabytes[1] / both.median / 1e3:5.0f}  {wrong}"
        )


def ceilings() -> None:
    a = torch.randn(8192, 8192, device=DEVICE, dtype=DTYPE)
    big = torch.randn(2**28, device=DEVICE)
    other = torch.empty_like(big)
    times = interleaved({"product": lambda: a @ a, "copy": lambda: other.copy_(big)}, DEVICE, rounds=15)
    product, copy = times["product"].median, times["copy"].median
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}: product {2 * 8192**3 / product / 1e12:.0f} TFLOP/s, "
        f"copy {2 * 2**30 / copy / 1e9:.0f} GB/s"
    )
