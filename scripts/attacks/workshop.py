"""The place of work: a temporary folder with pictures and runs, and commands that are called inside this process.

Everything that softbias or a library would keep elsewhere (caches, settings, temporary files) is sent into the folder by
environment variables before torch is imported. An audit hook of Python notes what is opened or connected to outside of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from attacks.rights import as_ordinary_user
from attacks.verdict import Answer, AskedToStopError, HangError

SECRET = "canary-7f1d"  # content of a file that no command may read
CLASSES = {"blue": (40, 60, 200), "green": (40, 180, 60), "red": (210, 50, 40)}
MODEL = ["--model", "convit_nano"]
MODEL += [word for option in ("patch_size=8", "width=16", "depth=3") for word in ("--model-option", option)]
TRAINING = ["--device", "cpu", "--trackers", "none", "--epochs", "3", "--batch-size", "8", "--keep", "last,best,every=1"]
OPTIONS = [*MODEL, *TRAINING, "--img-size", "32"]
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
MEMORY = 12 << 30  # bytes
LIMIT = 60.0  # seconds that a command may take on a busy machine


class Workshop:
    """A temporary folder, removed at the end, in which all attacks of a process work."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.root = Path(tempfile.mkdtemp(prefix="softbias-attack-")).resolve()
        self.leaks: list[str] = []
        self.watching = False
        self.prepared: dict[str, Any] = {}
        self.at_end: list[Callable[[], None]] = []
        for name in ("tmp", "home", "cache", "secret", "case"):
            (self.root / name).mkdir()
        self.secret = self.root / "secret" / "secret.txt"
        self.secret.write_text(SECRET)
        changes = {
            "TMPDIR": "tmp", "HOME": "home", "XDG_CACHE_HOME": "cache", "XDG_CONFIG_HOME": "home", "MPLCONFIGDIR": "home",
            "SOFTBIAS_CACHE": "cache", "HF_HOME": "cache", "TORCH_HOME": "cache", "TORCHINDUCTOR_CACHE_DIR": "cache",
        }  # fmt: skip
        os.environ.update({name: str(self.root / folder) for name, folder in changes.items()})
        os.environ.update({"HF_HUB_OFFLINE": "1", "COLUMNS": "200", "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"})
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.pop("SOFTBIAS_DEBUG", None)
        tempfile.tempdir = None
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))  # a claimed size must not take the machine's memory
        sys.dont_write_bytecode = True
        sys.addaudithook(self.audit)

    def close(self) -> None:
        for function in self.at_end:
            function()
        os.chdir("/")
        shutil.rmtree(self.root, ignore_errors=True)

    # Watching

    def audit(self, event: str, args: tuple[Any, ...]) -> None:
        """Python calls this at every event; only some of them, while a command runs, are of interest."""
        if not self.watching:
            return
        if event == "open" and isinstance(args[0], str | bytes | os.PathLike):
            path, flags = os.path.abspath(os.fsdecode(args[0])), args[2] or 0
            if path == str(self.secret):
                self.leaks.append("the secret file was opened")
            elif flags & WRITES and not self.inside(path):
                self.leaks.append(f"{path} was written")
        elif event in CHANGES and isinstance(args[0], str | bytes | os.PathLike):
            path = os.path.abspath(os.fsdecode(args[0]))
            if not self.inside(path):
                self.leaks.append(f"{event} {path}")
        elif event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] not in ("127.0.0.1", "::1"):
            self.leaks.append(f"connected to {args[1][0]}")
        elif event == "socket.getaddrinfo" and args[0] not in ("localhost", "127.0.0.1", "::1", None, ""):
            self.leaks.append(f"asked for the address of {args[0]}")

    def inside(self, path: str) -> bool:
        return path.startswith((str(self.root), "/dev/null", "/dev/zero", "/proc/", "/dev/shm/", "/dev/tty"))

    # Commands

    def call(self, words: Sequence[str | Path], seconds: float = LIMIT) -> Answer:
        """Run a command of softbias in this process."""
        from softbias.cli import main

        return self.measure(lambda: main([os.fspath(word) for word in words]), seconds)

    def measure(self, function: Any, seconds: float = LIMIT) -> Answer:
        """Call a function that returns an exit status; what it prints and what escapes is the answer."""
        out, err = Printed(), Printed()
        status, error = None, None
        self.leaks.clear()
        self.watching = True
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), time_limit(seconds), as_ordinary_user():
                status = function()
        except (Exception, HangError) as escaped:
            error = escaped
        finally:
            self.watching = False
        if status == 128 + signal.SIGTERM:  # the command took the signal that was meant for us
            raise AskedToStopError
        return Answer(status, out.getvalue(), err.getvalue(), error, tuple(self.leaks))

    # What is attacked

    def images(self) -> Path:
        """A folder of small pictures whose colors tell the class."""
        folder = self.root / "pictures"
        if not folder.exists():
            write_images(folder, 12)
        return folder

    def finished_run(self) -> Path:
        """A run that ended; cases work on copies of it."""
        return self.once("finished", self.make_finished)

    def make_finished(self) -> Path:
        path = self.root / "pristine" / "finished"
        answer = self.call(["fit", self.images(), "--out", path, *OPTIONS], 600)
        if answer.status != 0:
            raise SystemExit(f"the undisturbed run failed: {answer.err[-2000:]} {answer.error!r}")
        return path

    def finished_study(self) -> Path:
        """A study of two runs that ended."""
        return self.once("study", self.make_study)

    def make_study(self) -> Path:
        path = self.root / "pristine" / "study"
        answer = self.call(self.study_words(path), 600)
        if answer.status != 0:
            raise SystemExit(f"the undisturbed study failed: {answer.err[-2000:]} {answer.error!r}")
        return path

    def study_words(self, out: Path) -> list[str | Path]:
        arms = "deit_nano@patch_size=8@width=16@depth=2,convit_nano@patch_size=8@width=16@depth=3"
        more = ["--seeds", "1", "--epochs", "2", "--batch-size", "8", "--device", "cpu", "--img-size", "32", "--quiet"]
        return ["compare", self.images(), "--models", arms, "--out", out, *more]

    def once(self, name: str, make: Any) -> Any:
        if name not in self.prepared:
            self.prepared[name] = make()
        return self.prepared[name]

    def fresh(self, pristine: Path, name: str = "run") -> Path:
        """A copy to damage, always at the same path, so that answers can be compared."""
        case = self.root / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        os.chdir(case)
        shutil.copytree(pristine, case / name, symlinks=True)
        return case / name

    def rng(self, *parts: object) -> random.Random:
        return random.Random(repr((self.seed, *parts)))


class Printed(io.TextIOWrapper):
    """Text that is kept as a terminal would get it: UTF-8, and strict."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="strict", newline="\n", write_through=True)

    def getvalue(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode("utf-8", "backslashreplace")  # type: ignore[attr-defined]


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise HangError in the main thread when the time is over, also out of a system call that waits."""

    def ring(number: int, frame: Any) -> None:
        raise HangError(f"no answer in {seconds:g} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again every second: somebody may catch the first one
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def write_images(folder: Path, each: int, side: int = 32) -> Path:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, color in CLASSES.items():
        (folder / name).mkdir(parents=True)
        for number in range(each):
            array = np.clip(np.array(color) + rng.integers(-90, 90, (side, side, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(array).save(folder / name / f"{name}{number}.png")
    return folder


def signatures(folder: Path) -> dict[str, tuple[int, int]]:
    """The files of a folder with size and time of change: quicker than checksums."""
    found = {}
    for path in folder.rglob("*"):
        state = path.lstat()
        if not path.is_dir():
            found[path.relative_to(folder).as_posix()] = state.st_size, state.st_mtime_ns
    return found


def digests(folder: Path) -> dict[str, str]:
    """The files of a folder with their checksums; what is no plain file has its kind instead."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = "link"
        elif path.is_file() and path.stat().st_mode & 0o400:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif not path.is_dir():
            found[name] = "special"
    return found


def temporary_files(folder: Path) -> list[str]:
    """Files that a killed process may leave behind, and that no later one should."""
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if ".tmp" in path.name]
