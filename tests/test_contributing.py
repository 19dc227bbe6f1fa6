"""CONTRIBUTING.md shows how to add an attention and a probe. Here its blocks are put where they say they belong, and run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import softbias

ROOT = Path(__file__).parent.parent
SOURCE = Path(softbias.__file__).parent.parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
NO_CACHES = shutil.ignore_patterns("__pycache__", "*.egg-info")

MECHANISM = "src/softbias/attention/fading.py"
REGISTRY = "src/softbias/attention/__init__.py"
TEST = "tests/attention/test_fading.py"
PROBE = "src/softbias/probes/inverted.py"
PROBES = "src/softbias/probes/__init__.py"
TEST_PROBE = "tests/probes/test_inverted.py"
ADDED = (MECHANISM, TEST, PROBE, TEST_PROBE)
TEST_OUTSIDE = "tests/test_fading.py"


def block(path: str) -> str:
    """The fenced block whose first line names the file."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", GUIDE, re.M | re.S)
    found = [text for text in blocks if text.split("\n")[0].endswith(f" {path}")]
    assert len(found) == 1, f"CONTRIBUTING.md has {len(found)} blocks for {path}"
    return found[0]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def patched(text: str, diff: str) -> str:
    """The text with the diff applied; every hunk must fit in exactly one place."""
    for hunk in diff.partition("\n")[2].split("@@\n"):
        lines = hunk.splitlines(keepends=True)
        before, after = ("".join(line[1:] for line in lines if line[0] != sign) for sign in "+-")
        assert text.count(before) == 1, f"the diff in CONTRIBUTING.md no longer fits its file:\n{before}"
        text = text.replace(before, after)
    return text


def run(folder: Path, path: Path, *command: str) -> str:
    """What the command prints, or a failure that shows it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(SOURCE)]), "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """This project with the examples added, as a contributor would."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=NO_CACHES)
    shutil.copy(ROOT / "pyproject.toml", folder)
    for path in ADDED:
        write(folder / path, block(path))
    for registry in (REGISTRY, PROBES):
        file = folder / registry
        write(file, patched(file.read_text(encoding="utf-8"), block(registry)))
    return folder


def test_the_examples_pass_their_tests_and_the_contracts_that_run_by_themselves(checkout):
    files = [TEST, TEST_PROBE, "tests/attention/test_contract.py", "tests/probes/test_contract.py"]
    printed = run(checkout, checkout / "src", "pytest", "-v", "-p", "no:cacheprovider", *files, "-k", "fading or inverted")
    passed = re.findall(r"(tests/\w+/\w+\.py)::(\S+) PASSED", printed)
    for path in (TEST, TEST_PROBE):
        assert {name for file, name in passed if file == path} == set(re.findall(r"def (test_\w+)", block(path)))
    for path in files[2:]:
        assert [name for file, name in passed if file == path], f"no contract was run on it:\n{printed}"


def test_the_examples_pass_the_linter(checkout):
    run(checkout, checkout / "src", "ruff", "check", "--no-cache", *ADDED, REGISTRY, PROBES)
    run(checkout, checkout / "src", "ruff", "format", "--no-cache", "--check", *ADDED, REGISTRY, PROBES)


def test_the_example_works_from_another_package(tmp_path):
    entry_points = tomllib.loads(block("pyproject.toml"))["project"]["entry-points"]
    lines = [f"[{group}]\n{name} = {target}\n" for group, named in entry_points.items() for name, target in named.items()]
    write(tmp_path / "my_package-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    write(tmp_path / "my_package-1.0.dist-info/entry_points.txt", "".join(lines))
    write(tmp_path / "my_package/__init__.py", "")
    write(tmp_path / "my_package/fading.py", block(MECHANISM))
    write(tmp_path / TEST_OUTSIDE, block(TEST_OUTSIDE))
    run(tmp_path, tmp_path, "pytest", "-v", "-p", "no:cacheprovider", "tests")
