"""scripts/attack.py damages, kills and fuzzes; nothing may break. The short form runs here, the long one with --slow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import verdict

import softbias

ROOT = Path(__file__).parent.parent
SOURCE = Path(softbias.__file__).parent.parent


QUICK = "damage,pictures,commands,files,requests"  # kinds that need no process of their own for each case


def attack(*options: str, seconds: float) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, str(ROOT / "scripts" / "attack.py"), *options]
    return subprocess.run(words, capture_output=True, text=True, env=environment, timeout=seconds)


def cases(done: subprocess.CompletedProcess[str]) -> int:
    """The number of cases in the last row of the table."""
    found = re.search(r"^\| all \| ([\d,]+) \|", done.stdout, re.M)
    assert found is not None, done.stdout[-2000:] + done.stderr[-2000:]
    return int(found[1].replace(",", ""))


def test_three_hundred_attacks_break_nothing():
    done = attack("--cases", "300", "--seconds", "20", "--kinds", QUICK, seconds=300)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert cases(done) > 20  # on a machine that is very busy the time is over early


@pytest.mark.slow
def test_three_thousand_attacks_break_nothing():
    done = attack("--cases", "3300", "--seconds", "1700", seconds=2400)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert cases(done) > 1000


def test_the_judge_recognizes_what_is_wrong():
    answer = verdict.Answer
    wrong = {
        "traceback": answer(None, "", "", KeyError("x")),
        "hang": answer(None, "", "", verdict.HangError("no answer")),
        "leak": answer(0, "", "", None, ("/etc/passwd was written",)),
        "unclear": answer(2, "", "no such file\n"),
    }
    for name, each in wrong.items():
        assert verdict.judge(each).verdict == name
    assert verdict.judge(answer(0, "\x1b[31m", "")).verdict == verdict.judge(answer(3, "", "")).verdict == "unclear"
    for each in (answer(0, "fine", ""), answer(1, "", "one is broken"), answer(2, "", "softbias: no such file\n")):
        assert verdict.judge(each).verdict == "ok"
