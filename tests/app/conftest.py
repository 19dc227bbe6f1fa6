"""What the tests of the page share: a small run with checkpoints, made by the command, and a server on loopback."""

from __future__ import annotations

import http.client
import io
import json
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.app.safety import Access
from softbias.app.serving import bind, make_server
from softbias.app.state import AppState
from softbias.cli import main

CLASSES = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}


def write_images(root: Path, each: int = 12, side: int = 32) -> Path:
    """root/class/*.png, whose colors tell the class."""
    rng = np.random.default_rng(0)
    for name, color in CLASSES.items():
        (root / name).mkdir(parents=True)
        for number in range(each):
            array = np.clip(np.array(color) + rng.integers(-40, 40, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(root / name / f"{name} {number}.png")
    return root


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """A finished run of three epochs, each with its checkpoint, on the pictures above."""
    root = tmp_path_factory.mktemp("app")
    out = root / "convit run"
    folder = write_images(root / "pictures")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(root / "cache"))
        words = ["fit", str(folder), "--out", str(out), "--device", "cpu", "--model", "convit_nano", "--keep", "last,every=1"]
        assert main([*words, "--recipe.epochs", "3", "--no-baseline", "--trackers", "none"]) == 0
    return out


@pytest.fixture(scope="session")
def app_state(run) -> AppState:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(run.parent / "cache"))
        return AppState([run, "ibit_nano", "resnet_nano"])


class Address:
    """Where the server listens, and ways to talk to it."""

    def __init__(self, port: int, access: Access) -> None:
        self.port, self.access = port, access
        self.url = f"http://127.0.0.1:{port}"
        self.cookie = f"softbias-{port}={access.cookie}"

    def ask(self, path, method="GET", body=None, headers=None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request, with the headers given and our cookie."""
        return self.ask_bare(path, method, body, {"Cookie": self.cookie, **(headers or {})})

    def ask_bare(self, path, method="GET", body=None, headers=None) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of a request, with exactly the headers given."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def get(self, path):
        status, _, body = self.ask(path)
        assert status == 200, body
        return json.loads(body)

    def upload(self, content, kind="image/png", **headers) -> tuple[int, dict[str, str], bytes]:
        return self.ask("/api/pictures", "POST", content, {"Content-Type": kind, **headers})


@pytest.fixture(scope="session")
def served(app_state) -> Iterator[Address]:
    with serving(app_state) as address:
        yield address


@contextmanager
def serving(app_state: AppState, access: Access | None = None) -> Iterator[Address]:
    """The real server in a thread, on a free port of 127.0.0.1."""
    access, listener = access or Access(), bind(0)
    server = make_server(app_state, access)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield Address(listener.getsockname()[1], access)
    server.should_exit = server.force_exit = True  # a browser may keep its connection open
    thread.join(10)
    listener.close()


@pytest.fixture(scope="session")
def png():
    """`png(side)`: the file of a red square."""

    def file(side: int = 20) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (side, side), (200, 30, 40)).save(stream, "PNG")
        return stream.getvalue()

    return file
