"""Measurements that can be trusted on a noisy machine, and the rows of a table that show them.

Candidates warm up, run in interleaved rounds, and are compared by medians and by ratios within a round.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.table import Table

from softbias.errors import SoftbiasError
from softbias.terminal import make_console


@dataclass(frozen=True)
class Timing:
    """Seconds that one call of a candidate took, in every round."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """Interquartile range over median."""
        first, _, third = statistics.quantiles(self.seconds, n=4)
        return (third - first) / self.median


def time_turn(step: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Seconds of one call, when this number of calls is made in a row."""
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            step()
        return (time.perf_counter() - start) / calls
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(calls):
        step()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / calls


def interleaved(
    candidates: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 20,
    warmup: int = 3,
    least: float = 0.0,
) -> dict[str, Timing]:
    """Give every candidate a turn per round. Each round starts with another candidate, so that drift affects all alike.

    A turn lasts about `least` seconds or more: a candidate that takes less is called several times. A step of a few
    milliseconds needs that on a GPU. Without it, the GPU would wait for its host at the beginning of every turn, which does not
    happen in use.
    """
    if rounds < 2:
        raise SoftbiasError(f"rounds must be at least 2, for their spread, but rounds={rounds}")
    names = list(candidates)
    calls = {}
    for name in names:
        for _ in range(warmup - 1):
            candidates[name]()
        calls[name] = max(1, math.ceil(least / max(time_turn(candidates[name], device), 1e-6)))
    if device.type == "cuda":
        torch.cuda.synchronize()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            seconds[name].append(time_turn(candidates[name], device, calls[name]))
    return {name: Timing(tuple(values)) for name, values in seconds.items()}


def forget() -> None:
    """Free the memory and the compiled code of models that are gone."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def ratio(candidate: Timing, reference: Timing) -> tuple[float, float, float]:
    """How many times faster the candidate is: median over rounds, and the quartiles around it."""
    ratios = [slower / faster for faster, slower in zip(candidate.seconds, reference.seconds, strict=True)]
    first, median, third = statistics.quantiles(ratios, n=4)
    return median, first, third


@dataclass(frozen=True)
class Row:
    """One measurement; `against` names the peer. `target` is for the ratio, or for the value where there is no ratio.

    higher   whether the target is a minimum (True) or a maximum (False)
    """

    what: str
    how: str
    value: float
    unit: str
    spread: float | None = None  # interquartile range over median
    against: str | None = None
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    target: float | None = None
    higher: bool = True
    memory: int | None = None
    memory_ratio: float | None = None
    note: str | None = None

    @property
    def met(self) -> bool | None:
        if self.target is None:
            return None
        measured = self.value if self.ratio is None else self.ratio
        return measured >= self.target if self.higher else measured <= self.target

    def to_dict(self) -> dict[str, Any]:
        values = asdict(self) | {"met": self.met}
        return {name: value for name, value in values.items() if value is not None}


def compared(
    what: str,
    how: str,
    value: float,
    unit: str,
    timing: Timing,
    against: str,
    reference: Timing,
    *,
    slower: bool = False,
    **more: Any,
) -> Row:
    """A row with the ratio to a reference: how many times faster it is, or slower. The reference itself has no ratio."""
    if timing is not reference:
        middle, low, high = ratio(reference, timing) if slower else ratio(timing, reference)
        more = {"against": against, "ratio": middle, "quartiles": (low, high), **more}
    return Row(what, how, value, unit, timing.spread, **more)


COLUMNS = ("what", "how", "value", "memory", "against", "ratio", "quartiles", "target")


def cells(row: Row) -> tuple[str, ...]:
    memory = "" if row.memory is None else f"{row.memory / 2**30:.2f} GiB"
    if row.memory_ratio is not None:
        memory += f" ({row.memory_ratio:.2f})"
    sign = "≥" if row.higher else "≤"
    target = "" if row.target is None else f"{sign} {row.target:g} {'✓' if row.met else '✗'}"
    digits = 0 if abs(row.value) >= 1000 else 1 if abs(row.value) >= 10 else 3
    return (
        row.what,
        row.how,
        f"{row.value:,.{digits}f} {row.unit}",
        memory,
        row.against or "",
        "" if row.ratio is None else f"{row.ratio:.3f}",
        "" if row.quartiles is None else f"{row.quartiles[0]:.3f} – {row.quartiles[1]:.3f}",
        target,
    )


def print_rows(rows: Sequence[Row]) -> None:
    """A table; columns that are empty everywhere are left out."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    lines = [cells(row) for row in rows]
    used = [k for k in range(len(COLUMNS)) if any(line[k] for line in lines)]
    for k in used:
        table.add_column(COLUMNS[k], justify="left" if COLUMNS[k] in ("what", "how", "against") else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(line[k] for k in used))
    console = make_console()
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.what}: {row.note}", style="dim")
