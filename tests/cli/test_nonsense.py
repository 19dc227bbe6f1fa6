"""Nonsense on the command line is refused in one line, before anything is written."""

from __future__ import annotations

import pytest

from softbias.cli import main

COMMANDS = [
    "fit fashion --epochs inf", "fit fashion --epochs 0", "fit fashion --minutes inf", "fit fashion --minutes -1",
    "fit fashion --lr-per 0", "fit fashion --min-lr nan", "fit fashion --out EMPTY", "fit fashion --out=",
    "fit fashion --seed -1",
    "fit fashion --model-option img_size=0", "fit fashion --img-size 0", "fit fashion --probe-every 0",
    "fit fashion --regularize distance:layer=0,alpha=1e400", "fit EMPTY", "compare fashion --models deit_nano --tune 1.5",
    "compare fashion --models deit_nano --seeds 1000000000", "compare fashion --models deit_nano --fractions nan",
    "app x --port 70000", "bench --rounds 0", "probe deit_nano --n 0", "predict x y --batch -1", "models --img-size 0",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_nonsense_is_one_line_and_writes_nothing(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([word.replace("EMPTY", "") for word in command.split()]) == 2
    assert capsys.readouterr().err.count("\n") == 1 and not list(tmp_path.iterdir())
