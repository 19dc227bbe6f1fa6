"""Nothing that a stranger can name commands a terminal or a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
from pathlib import Path

import pytest
from PIL import Image

import softbias
from softbias.cli import main
from softbias.files import csv_cell
from softbias.terminal import cells, echo, make_console, printable

PACKAGE = Path(softbias.__file__).parent
OWN_OUTPUT = ("terminal.py", "bench/kernels.py", "bench/load.py", "bench/regularization.py")  # numbers for ourselves
HOSTILE = ["\x1b[2J", "\x1b]0;title\x07", "\r", "\x9b31m", "\u202e", "\u2066", "\x08", "\u2028", "\udcff", "\ufeff"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_characters_that_a_terminal_obeys_are_escaped(text, capsys):
    assert printable(f"a{text}b").isprintable() and printable(f"a{text}b") != f"a{text}b"
    echo(f"a{text}b")
    console = make_console()
    console.print(f"c{text}d")
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n")) and out.count("\n") == 2


def test_ordinary_names_in_any_script_stay_as_they_are():
    for name in ("Žluťoučký", "猫", "قطة", "🐈‍⬛", "a b", "naïve café", "[bold]x[/bold]", ":cat:"):
        assert printable(name) == name


def test_a_line_stays_one_line_and_a_cell_one_cell(capsys):
    echo("file\nsoftbias: all is well")
    echo(cells("a\tb", "c"))
    assert capsys.readouterr().out == "file\\nsoftbias: all is well\na\\tb\tc\n"


def test_a_console_reads_no_markup_in_names(capsys):
    make_console().print("[/nothing] [red]cat :cat:")
    assert capsys.readouterr().out == "[/nothing] [red]cat :cat:\n"


def test_a_stream_of_another_encoding_gets_escapes_instead_of_an_error(monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    echo("≥ 猫", file=stream, flush=True)
    assert raw.getvalue() == b"\\u2265 \\u732b\n"


def test_everything_is_printed_through_this_module():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            direct = isinstance(called, ast.Name) and called.id in ("print", "Console")
            if direct and name not in OWN_OUTPUT:
                found.append(f"{name}:{node.lineno}")
    assert found == []


def test_a_hostile_file_name_is_harmless_in_what_predict_prints_and_writes(run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name, broken = "=cmd|' \x1b]0;x\x07 \u202e.png", "=broken\x1b[2J.png"
    Image.new("RGB", (16, 16), "red").save(name)
    Path(broken).write_bytes(b"no picture")
    assert main(["predict", str(run), name, broken]) == 1
    printed = capsys.readouterr()
    assert all(line.replace("\t", "").isprintable() for line in (printed.out + printed.err).split("\n"))
    assert main(["predict", str(run), name, broken, "--out", "out.csv"]) == 1
    with open("out.csv", encoding="utf-8", newline="") as stream:
        assert [row["file"] for row in csv.DictReader(stream)] == [f"'{name}", f"'{broken}"]


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@x", "\tx", "\rx", "＝1+1", "'x'", "rose", "", "a=b"])
def test_no_text_of_a_csv_file_is_a_formula_and_the_exact_text_can_be_had_again(name):
    cell = csv_cell(name)
    assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "＝"))
    assert cell.removeprefix("'") == name
