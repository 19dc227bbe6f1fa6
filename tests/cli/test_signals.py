"""Ctrl-C ends with 130 and SIGTERM with 143, whenever they come and however often."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from softbias.environment import StopSignal, stop_at_once
from softbias.training.loop import stop_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM]
LONG = [
    "--model",
    "deit_nano",
    "--recipe",
    "quick",
    "--epochs",
    "100000",
    "--img-size",
    "16",
    "--device",
    "cpu",
    "--trackers",
    "none",
]


def start(*arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "softbias", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )


def status(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status as a shell shows it, and what was printed to stderr."""
    _, err = process.communicate(timeout=60)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode, err


def answers_signals(process: subprocess.Popen[str]) -> bool:
    """Whether our first lines have been run: the process has a handler for SIGTERM, which Python alone has not."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process answers to")
@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("early", [True, False])
def test_a_signal_during_the_imports_of_a_command(number, early, tmp_path):
    process = start("probe", "convit_nano", "--probes", "all", "--data", "fashion", "--out", str(tmp_path))
    deadline = time.monotonic() + 60
    while not early and not answers_signals(process) and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(number)
    found, err = status(process)
    assert found == 128 + number
    assert early or "Traceback" not in err  # before our first line Python itself answers


@pytest.mark.parametrize("number", SIGNALS)
def test_a_stop_that_a_library_takes_for_its_own_error_is_still_a_stop(number):
    def half_import() -> None:
        with suppress(BaseException):
            os.kill(os.getpid(), number)
        raise RuntimeError("half imported")

    with pytest.raises(StopSignal) as stop, stop_at_once():
        half_import()
    assert stop.value.signal == number


@pytest.mark.parametrize("number", SIGNALS)
def test_the_second_signal_during_a_training_says_which_one_it_was(number):
    with stop_signals() as received:
        os.kill(os.getpid(), number)
        assert received == [number]
        with pytest.raises(StopSignal) as stop:
            os.kill(os.getpid(), number)
    assert stop.value.signal == number


@pytest.mark.slow
@pytest.mark.parametrize("number", SIGNALS)
def test_two_signals_to_a_training_end_it_with_the_status_of_the_signal(number, image_folder, tmp_path):
    process = start("fit", str(image_folder), *LONG, "--out", str(tmp_path / "run"))
    assert process.stdout is not None
    while "epoch" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    process.send_signal(number)
    found, err = status(process)
    assert found == 128 + number and "Traceback" not in err


def test_a_second_signal_ends_a_process_that_does_not_react_to_the_first():
    code = (
        "import sys, time\n"
        "from softbias import environment\n"
        "with environment.stop_at_once():\n"
        "    try:\n"
        "        print('ready', flush=True); time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        print('first', flush=True); time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "first\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM
    process.stdout.close()
