"""The README says what works."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[1] / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_two_commands_stand_at_the_top_and_exist():
    first = blocks("sh")[0]
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", first, re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)
    assert README.read_text(encoding="utf-8").index("make demo") < 200


def test_the_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", README.read_text(encoding="utf-8")):
        assert (README.parent / target).exists(), target


def test_the_library_fits_into_twelve_lines():
    (code,) = blocks("python")
    assert len([line for line in code.splitlines() if line.strip()]) <= 12


@pytest.mark.slow
def test_the_twelve_lines_run(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(blocks("python")[0], names)
    assert names["seen"].maps[0].shape == (2, 4, 64, 64) and names["seen"].grid[11].prefix == 1
    assert names["larger"].spec.img_size == (64, 64) and (tmp_path / "my_model" / "model.onnx").is_file()
    assert names["run"].summary["test"]["accuracy"] > 0.6
