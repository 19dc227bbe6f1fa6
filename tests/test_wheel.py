"""The wheel holds every file of the package, and works where nothing else of this checkout is."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "softbias"

pytestmark = pytest.mark.slow


def run(*command: str | Path, cwd: Path) -> str:
    """What the command prints, or a failure that shows it; nothing of this checkout is on its path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()


def version() -> str:
    scope: dict[str, str] = {}
    exec((PACKAGE / "_version.py").read_text(encoding="utf-8"), scope)
    return scope["__version__"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def scripts(wheel, tmp_path_factory) -> Path:
    """The programs of a new environment with the wheel in it, which borrows this one's other packages."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    scripts, site_packages = Path(paths["scripts"]), Path(paths["purelib"])
    run(sys.executable, "-m", "pip", "--python", folder, "install", "--no-index", "--no-deps", wheel, cwd=folder)
    # Only after the install, or pip would take this checkout's softbias for one that is there already. A .pth file is read
    # in the environment's own folder alone, so the editable install next to the borrowed packages stays without effect.
    (site_packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return scripts


def test_the_wheel_holds_every_file_of_the_package_and_the_license(wheel):
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    wanted = {path.relative_to(PACKAGE.parent).as_posix() for path in files}
    assert "softbias/py.typed" in wanted
    assert not wanted - inside
    assert {name for name in inside if name.endswith("/LICENSE")}
    assert not {name for name in inside if not name.startswith(("softbias/", f"softbias-{version()}.dist-info/"))}


def test_the_wheel_has_its_version_from_the_package(wheel):
    assert wheel.name == f"softbias-{version()}-py3-none-any.whl"


def test_softbias_answers_in_a_new_environment(scripts, tmp_path):
    assert version() in run(scripts / "softbias", "--version", cwd=tmp_path)


def test_what_is_imported_there_is_the_wheel(scripts, tmp_path):
    where = run(scripts / "python", "-c", "import softbias; print(softbias.__file__)", cwd=tmp_path)
    assert Path(where).is_relative_to(scripts.parent)
