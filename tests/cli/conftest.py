"""What the tests of the command line share: small pictures, a cache of their own, no network, and one trained run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.cli import main

CLASSES = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}
SHORT = ["--epochs", "2", "--no-baseline", "--trackers", "none"]


def write_images(root: Path, each: int = 20, side: int = 20, seed: int = 0) -> Path:
    """root/class/*.png, whose colors tell the class."""
    rng = np.random.default_rng(seed)
    for name, color in CLASSES.items():
        (root / name).mkdir(parents=True)
        for number in range(each):
            noise = rng.integers(-40, 40, (side, side, 3))
            image = np.clip(np.array(color) + noise, 0, 255).astype(np.uint8)
            Image.fromarray(image).save(root / name / f"{name} {number}.png")
    return root


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory) -> Path:
    return write_images(tmp_path_factory.mktemp("data") / "pictures")


@pytest.fixture(scope="session")
def run(image_folder, tmp_path_factory) -> Path:
    """A finished run on the pictures, with its page, made by the command."""
    out = tmp_path_factory.mktemp("runs") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(out.parent / "cache"))
        assert main(["fit", str(image_folder), "--out", str(out), "--device", "cpu", "--recipe.epochs", "10"]) == 0
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("SOFTBIAS_DATA", raising=False)


@pytest.fixture
def no_page(monkeypatch) -> None:
    """Spare the second that drawing the page takes; `run` has one."""
    monkeypatch.setattr("softbias.runs.fit.write_page", lambda run, summary, data: run.page_path)
