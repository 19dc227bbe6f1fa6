"""What the tests of the page share: a small run with checkpoints, made by the command, and a server on loopback."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.app.server import bind, make_server
from softbias.app.shelf import Shelf
from softbias.cli import main
from softbias.training import automatic

CLASSES = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}


def write_pictures(root: Path, each: int = 12, side: int = 32) -> Path:
    """root/class/*.png, whose colors tell the class."""
    chance = np.random.default_rng(0)
    for name, color in CLASSES.items():
        (root / name).mkdir(parents=True)
        for number in range(each):
            pixels = np.clip(np.array(color) + chance.integers(-40, 40, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{name} {number}.png")
    return root


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A finished run of three epochs, each with its checkpoint, on the pictures above."""
    root = tmp_path_factory.mktemp("app")
    out = root / "convit run"
    pictures = write_pictures(root / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(root / "cache"))
        patch.setattr(automatic, "hub_reachable", lambda: False)
        words = ["fit", str(pictures), "--out", str(out), "--device", "cpu", "--model", "convit_nano", "--keep", "last,every=1"]
        assert main([*words, "--recipe.epochs", "3", "--no-baseline", "--trackers", "none"]) == 0
    return out


@pytest.fixture(scope="session")
def shelf(run) -> Shelf:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
        return Shelf([run, "ibit_nano", "resnet_nano"])


class Address:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def served(shelf) -> Address:
    """The real server in a thread, on a free port of 127.0.0.1."""
    listener = bind(0)
    port = listener.getsockname()[1]
    server = make_server(shelf, port)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Address(port)
    server.should_exit = True
    thread.join(10)
    listener.close()
