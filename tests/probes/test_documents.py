"""The documents name the probes and the ways to explain as the registries do."""

from __future__ import annotations

from pathlib import Path

from softbias.cli import main
from softbias.probes import PROBES
from softbias.probes.attribution import METHODS, PASSES

DOCS = Path(__file__).parents[2] / "docs"


def probe_table() -> str:
    lines = []
    for name, probe in PROBES.items():
        number = "–" if not probe.n else f"{probe.n:,} scenes" if probe.scenes else f"{probe.n:,}"
        lines.append(f"| `{name}` | {probe.about} | {number} | {probe.pass_text()} |")
    return "\n".join(lines)


def test_the_table_of_probes_is_the_registry():
    assert probe_table() in (DOCS / "probes.md").read_text(encoding="utf-8"), f"put into docs/probes.md:\n{probe_table()}"


def test_the_table_of_ways_to_explain_names_them_all_with_their_passes():
    rows = [line for line in (DOCS / "explaining.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    passes = {name.strip(" `"): int(cells[-2]) for row in rows for cells in [row.split("|")] for name in cells[1].split(",")}
    assert passes == {name: PASSES.get(name, 1) for name in METHODS}


def test_the_command_lists_the_registry(capsys):
    assert main(["probe", "--list"]) == 0
    assert [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()] == list(PROBES)
