"""Environment variables are known in one module, and documented from it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import softbias
from softbias import environment

SOURCE = Path(softbias.__file__).parent


def test_the_documentation_lists_every_variable_with_its_meaning():
    text = (Path(__file__).parents[1] / "docs" / "training.md").read_text()
    table = text[text.index("## Environment variables") :]
    assert dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", table, re.MULTILINE)) == environment.VARIABLES


def test_no_other_module_reads_or_sets_a_variable():
    found = [
        f"{file.relative_to(SOURCE)}: {line.strip()}"
        for file in SOURCE.rglob("*.py")
        if file.name != "environment.py"
        for line in file.read_text().splitlines()
        if re.search(r"os\.environ|os\.getenv|putenv", line)
    ]
    assert found == []


def test_a_variable_that_is_not_listed_is_refused():
    with pytest.raises(KeyError, match="SOFTBIAS_NEW"):
        environment.variable("SOFTBIAS_NEW")
    with pytest.raises(KeyError, match="SOFTBIAS_NEW"):
        environment.variables_with({"SOFTBIAS_NEW": "1"})


def test_an_empty_variable_counts_as_not_set(monkeypatch):
    monkeypatch.setenv("SOFTBIAS_DATA", "")
    assert environment.variable("SOFTBIAS_DATA") is None
    for value, offline in (("", False), ("0", False), ("1", True)):
        monkeypatch.setenv("HF_HUB_OFFLINE", value)
        assert environment.is_offline() is offline


@pytest.mark.parametrize("name", environment.DEFAULTS)
def test_what_torch_must_find_is_set_before_torch_is_imported(name):
    assert seen_by_torch(name, {}) == (environment.DEFAULTS[name], False)
    assert seen_by_torch(name, {name: "0"}) == ("0", False)


def test_a_user_who_chooses_how_threads_wait_is_not_overruled():
    assert seen_by_torch("GOMP_SPINCOUNT", {"OMP_WAIT_POLICY": "passive"}) == ("None", False)


def seen_by_torch(name: str, given: dict[str, str]) -> tuple[str, bool]:
    """The value of a variable after the import of softbias, and whether torch was imported by then."""
    code = f"import os, sys, softbias; print(os.environ.get('{name}'), 'torch' in sys.modules)"
    unset = {key: value for key, value in os.environ.items() if key not in environment.VARIABLES}
    done = subprocess.run([sys.executable, "-c", code], env=unset | given, capture_output=True, text=True, check=True)
    value, imported = done.stdout.split()
    return value, imported == "True"


@pytest.mark.skipif(sys.platform != "linux", reason="torch brings GNU's OpenMP along on Linux alone")
def test_the_openmp_of_torch_takes_the_time_that_threads_wait_from_us():
    code = "import softbias, torch; torch.ones(10)"
    unset = {key: value for key, value in os.environ.items() if key not in environment.VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], env=unset | {"OMP_DISPLAY_ENV": "verbose"}, capture_output=True, text=True, check=True
    )
    assert f"GOMP_SPINCOUNT = '{environment.DEFAULTS['GOMP_SPINCOUNT']}'" in done.stderr


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot limit a process to some cores")
def test_only_the_cores_that_a_process_may_use_are_counted():
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert environment.count_cores() == 1
    finally:
        os.sched_setaffinity(0, before)
    assert environment.count_cores() == len(before)
