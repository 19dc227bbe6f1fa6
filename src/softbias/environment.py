"""The process and its machine: environment variables, signals, devices, versions, hardware.

This is the only module that reads or sets an environment variable. `VARIABLES` lists all of them, and docs/training.md shows
them as a table. torch is imported inside functions, so that `import softbias` stays quick.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from softbias._version import __version__
from softbias.errors import SoftbiasError, unknown_name

VARIABLES: dict[str, str] = {
    "SOFTBIAS_DATA": "folder of the named data sets and of `backgrounds/`",
    "SOFTBIAS_CACHE": "folder of decoded pictures",
    "SOFTBIAS_WEIGHTS": "folder of pretrained weights; a file is named as timm names them: `deit_tiny_patch16_224.safetensors`",
    "SOFTBIAS_CHECKPOINT_SECONDS": "seconds between two checkpoints, for machines that may be taken away",
    "SOFTBIAS_TOKEN": "the token of `softbias app`'s address; without it, or `--token`, each start makes a new one",
    "SOFTBIAS_DEBUG": "if set, a user's mistake shows its traceback, too",
    "SOFTBIAS_OFFLINE": "1: no request leaves this machine: neither weights nor data sets are looked for in the network",
    "HF_HUB_OFFLINE": "1: no weights are fetched from Hugging Face, and it is not asked whether it answers",
    "HF_ENDPOINT": "a mirror of Hugging Face",
    "RANK": "number of this process among those of torchrun; the first one prints",
    "RAY_ADDRESS": "the cluster that `--on ray` joins",
    "CUDA_VISIBLE_DEVICES": "the GPUs to use; each worker of a study is given one of them",
    "OMP_NUM_THREADS": "threads of torch; each worker of a study is given its share",
    "MKL_NUM_THREADS": "the same for MKL; each worker of a study is given its share",
    "GOMP_SPINCOUNT": "we set 30000: how often a waiting thread of torch looks for work before it sleeps",
    "OMP_WAIT_POLICY": "if set, GOMP_SPINCOUNT is left alone",
    "CC": "the C compiler that Triton uses",
    "COLUMNS": "width of tables that are not printed to a terminal",
    "TRITON_INTERPRET": "1: kernels run on a CPU in Triton's interpreter, for tests",
    "TRITON_CACHE_DIR": "the benchmark of start-up times gives its processes an empty one",
    "TORCHINDUCTOR_CACHE_DIR": "the benchmark of start-up times gives its processes an empty one",
    "TORCHINDUCTOR_STATIC_LAUNCH_USER_DEFINED_TRITON_KERNELS": "we set 1: compiled models start our kernels without Python",
}
"""Every variable that softbias reads or sets, and its meaning."""

DEFAULTS = {
    "TORCHINDUCTOR_STATIC_LAUNCH_USER_DEFINED_TRITON_KERNELS": "1",  # Inductor reads it when it is imported
    # GNU's OpenMP, which torch brings along on Linux, reads it when it is loaded. By itself it takes 300,000, which is longer
    # than a time slice: where others use the cores, too, threads that wait for each other then use up the time of the threads
    # that they wait for. With a few thousand they would fall asleep between two operations of a small model.
    "GOMP_SPINCOUNT": "30000",
}


def set_defaults() -> None:
    """Set the variables that torch and others must find when they are imported; what the user has set stays."""
    for name, value in DEFAULTS.items():
        if name != "GOMP_SPINCOUNT" or variable("OMP_WAIT_POLICY") is None:  # the count would overrule the policy
            os.environ.setdefault(name, value)
    if is_on("SOFTBIAS_OFFLINE"):
        os.environ["HF_HUB_OFFLINE"] = "1"  # which the libraries of Hugging Face read when they are imported


def variable(name: str) -> str | None:
    """The value of one of `VARIABLES`; None where it is not set or empty."""
    if name not in VARIABLES:
        raise KeyError(f"{name} is not listed in softbias.environment.VARIABLES")
    return os.environ.get(name) or None


def variables_with(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment for a child process: ours with some of `VARIABLES` changed."""
    unlisted = [name for name in changes if name not in VARIABLES]
    if unlisted:
        raise KeyError(f"{', '.join(unlisted)} not listed in softbias.environment.VARIABLES")
    return {**os.environ, **changes}


def is_on(name: str) -> bool:
    return (variable(name) or "").lower() in ("1", "on", "yes", "true")


def is_offline() -> bool:
    """Whether the user forbids to ask Hugging Face."""
    return is_on("SOFTBIAS_OFFLINE") or is_on("HF_HUB_OFFLINE")


def hub_address() -> str:
    return variable("HF_ENDPOINT") or "https://huggingface.co"


class StopSignal(KeyboardInterrupt):
    """The process was asked to stop, and does so where it is; signal: SIGINT (Ctrl-C) or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by signal {number}")
        self.signal = number


@contextmanager
def stop_at_once() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise StopSignal inside, so that temporary files go; a second one ends the process without a word."""
    received: list[int] = []

    def receive(number: int, _: Any) -> None:
        if received:
            os._exit(128 + number)  # files are whole or absent at any moment
        received.append(number)
        raise StopSignal(number)

    with on_stop_signal(receive):
        try:
            yield
        except Exception as error:
            if received:  # torch takes any error while it imports numpy for its absence, and what follows breaks
                raise StopSignal(received[0]) from error
            raise


@contextmanager
def on_stop_signal(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Ctrl-C and SIGTERM call `handler` inside; afterwards they do what they did before."""
    try:
        before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, which alone may handle signals
        before = {}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def count_cores() -> int:
    """Of the processor, as many as this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def find_device(name: str) -> str:
    """ "cpu", "cuda" or "mps" for "auto"; any other device is returned as it is, or refused where the machine lacks it."""
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    choices = [kind for kind, present in available.items() if present]
    if name == "auto":
        return choices[0]
    kind, _, index = name.partition(":")
    if kind not in available:
        raise unknown_name("device", name, ("auto", *available))
    if kind not in choices or (index and not (index.isdecimal() and int(index) < max(1, torch.accelerator.device_count()))):
        raise SoftbiasError(f"--device {name}: there is no such device here; choose {' or '.join(choices)}")
    return name


def describe_machine(device: object) -> dict[str, Any]:
    """Versions, hardware and the git commit, which every result carries; `device` is a torch.device or its name."""
    import torch

    name = str(device)
    return {
        "softbias": __version__,
        "git": git_hash(Path(__file__).parent),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        "timm": version("timm"),
        "numpy": version("numpy"),
        "platform": platform.platform(),
        "device": name,
        "hardware": torch.cuda.get_device_name(name) if name.startswith("cuda") else processor(),
        "threads": torch.get_num_threads(),
    }


def processor() -> str:
    """The name of the processor; its architecture where the system does not tell the name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def git_hash(folder: Path) -> str | None:
    """The commit of a folder that git tracks; None for an installed package, also inside another project's checkout."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD", "HEAD:./"], capture_output=True, text=True, cwd=folder)
    except OSError:  # git is not installed
        return None
    return done.stdout.split()[0] if done.returncode == 0 else None


def why_unreachable(url: str, seconds: float, *, any_answer: bool = False) -> str | None:
    """Why a server does not answer; None where it does. Never waits longer than `seconds`, in any state of the network.

    any_answer   a refusal, such as "not found", is an answer, too
    """
    import urllib.error
    import urllib.request

    answer: list[str | None] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=seconds):
                answer.append(None)
        except Exception as error:  # whatever it is, there is no download
            answered = any_answer and isinstance(error, urllib.error.HTTPError)
            answer.append(None if answered else str(getattr(error, "reason", "")) or str(error) or type(error).__name__)

    thread = threading.Thread(target=ask, daemon=True)  # a name server that never answers would outlast the timeout
    thread.start()
    thread.join(seconds)
    return answer[0] if answer else f"no answer in {seconds:.3g} s"
