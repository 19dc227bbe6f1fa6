"""A measurement as a row, and rows as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """What was measured, how, and beside what; `target` is for the ratio, or for the value where there is no ratio.

    higher   whether the target is a least (True) or a most (False)
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
        return {name: value for name, value in asdict(self).items() if value is not None} | (
            {} if self.met is None else {"met": self.met}
        )


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


def markdown(rows: Sequence[Row]) -> str:
    """A table for `results/`; columns that are empty everywhere are left out."""
    table = [cells(row) for row in rows]
    used = [k for k in range(len(COLUMNS)) if any(line[k] for line in table)]
    lines = ["| " + " | ".join(COLUMNS[k] for k in used) + " |", "|" + "---|" * len(used)]
    lines += ["| " + " | ".join(line[k] for k in used) + " |" for line in table]
    notes = [f"- {row.what}: {row.note}" for row in rows if row.note]
    return "\n".join(lines + (["", *notes] if notes else []))


def print_rows(rows: Sequence[Row]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    content = [cells(row) for row in rows]
    used = [k for k in range(len(COLUMNS)) if any(line[k] for line in content)]
    for k in used:
        table.add_column(COLUMNS[k], justify="left" if COLUMNS[k] in ("what", "how", "against") else "right", no_wrap=True)
    for line in content:
        table.add_row(*(line[k] for k in used))
    console = Console(width=200, highlight=False)
    console.print(table)
    for row in rows:
        if row.note:
            console.print(f"{row.what}: {row.note}", style="dim")
