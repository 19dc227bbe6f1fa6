"""A table as plain data, for pages (a macro of `parts.html.jinja`) and as LaTeX (booktabs)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SPECIAL = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "≥": r"$\geq$", "<": "$<$", ">": "$>$",
    "×": r"$\times$", "–": "--", "…": r"\dots{}", "∞": r"$\infty$",
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """main, with smaller lines below it; number: the series whose marker stands before it."""

    main: str
    below: tuple[str, ...] = ()
    number: int | None = None


@dataclass(frozen=True)
class Table:
    """key: its name as a file; marked: the rows to stress. The first column holds names, all others hold numbers."""

    key: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    marked: Sequence[int] = field(default_factory=tuple)


def line(*cells: str | Cell) -> list[Cell]:
    return [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]


def latex(table: Table) -> str:
    """The table in its environment; it needs \\usepackage{booktabs}."""
    caption = f"{table.caption}. {table.note}" if table.note else table.caption
    lines = [r"\begin{table}", r"  \centering", f"  \\caption{{{escaped(caption)}}}", f"  \\label{{tab:{table.key}}}"]
    lines += [f"  \\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}", r"    \toprule", f"    {joined(table.head)}"]
    lines += [r"    \midrule", *(f"    {joined([one_line(cell) for cell in row])}" for row in table.rows)]
    return "\n".join([*lines, r"    \bottomrule", r"  \end{tabular}", r"\end{table}", ""])


def joined(texts: Sequence[str]) -> str:
    return " & ".join(escaped(text) for text in texts) + r" \\"


def one_line(cell: Cell) -> str:
    return f"{cell.main} ({'; '.join(cell.below)})" if cell.below else cell.main


def escaped(text: str) -> str:
    """
    >>> escaped("a_b 5 % ± 1")
    'a\\\\_b 5 \\\\% $\\\\pm$ 1'
    """
    return "".join(SPECIAL.get(letter, letter) for letter in text.replace("\N{NO-BREAK SPACE}", " "))
