"""`fit` and `predict` on a CPU that others use as well: how much of their speed on a quiet machine they keep.

    python -m softbias.bench.load fit|predict      reads seconds from stdin, works that long, and writes a speed to stdout

Every candidate is a process of its own, because OpenMP reads its variables once, when it is loaded. In every round each
candidate has two turns, one on the machine as it is and one beside as many busy processes as there are cores. With as many
threads as cores a fair share is a half; with one thread on two cores it is two thirds.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import cycle, islice
from pathlib import Path

import torch
from PIL import Image

from softbias.bench.measuring import Row, Timing, compared
from softbias.bench.step import CLASSES, random_images, worker
from softbias.classifier import Classifier
from softbias.environment import count_cores, variables_with
from softbias.models import create_model
from softbias.runs.automatic import choose

IMG_SIZE, IMAGES, BATCH = 32, 1000, 64
TURN, PAUSE = 0.5, 0.2  # seconds of a turn, and before it
KEPT, QUIET = 0.35, 0.97  # the least share of the quiet speed beside busy processes; the least beside torch's own waiting
LONGEST = 60.0  # seconds that a busy process lives, should nobody end it

CANDIDATES: dict[str, dict[str, str]] = {  # name -> variables
    "softbias": {},
    "OpenMP's own waiting": {"GOMP_SPINCOUNT": "300000"},  # what libgomp takes where nothing is set
    "one thread": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
}
Work = Callable[[], int]
"""A piece of work, which returns its number of images."""


def fit_work() -> Work:
    """A training step of the model and the recipe that `fit` chooses for a small set."""
    choice = choose(IMAGES, (IMG_SIZE, IMG_SIZE), "cpu", torch.get_num_threads())
    step = worker(choice.model, random_images(IMAGES, IMG_SIZE), choice.recipe, burst=1, device="cpu", **choice.model_options)

    def take() -> int:
        step()
        return step.batches.batch_size

    return take


def predict_work() -> Work:
    """A batch of an endless list of files, classified by the same model."""
    choice = choose(IMAGES, (IMG_SIZE, IMG_SIZE), "cpu", torch.get_num_threads())
    classifier = Classifier.of(create_model(choice.model, CLASSES, IMG_SIZE, **choice.model_options).eval())
    folder = tempfile.TemporaryDirectory()
    files = [Path(folder.name) / f"{number}.png" for number in range(256)]
    for file, image in zip(files, random_images(len(files), IMG_SIZE).images, strict=True):
        Image.fromarray(image).save(file)
    rows = classifier.stream(cycle(files), batch=BATCH)

    def predict(kept: object = folder) -> int:  # the folder lives as long as the function
        return sum(row.error is None for row in islice(rows, BATCH))

    return predict


WORK = {"fit": fit_work, "predict": predict_work}


class MeasuredProcess:
    """A process that works for a while when it is asked to, and then says how many images a second it did."""

    def __init__(self, what: str, variables: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "softbias.bench.load", what],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables_with(variables),
        )  # fmt: skip

    def seconds_per_image(self, seconds: float) -> float:
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(seconds, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the measured process ended with exit status {self.process.wait()}")
        return float(answer)

    def __enter__(self) -> MeasuredProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Processes that do nothing, as fast as they can."""
    code = f"import time\nend = time.monotonic() + {LONGEST}\nwhile time.monotonic() < end: pass"
    processes = [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure_load(
    what: str, rounds: int, *, candidates: Mapping[str, Mapping[str, str]] = CANDIDATES, turn: float = TURN
) -> dict[str, tuple[Timing, Timing]]:
    """Seconds per image of every candidate: quiet, and beside busy processes."""
    cores = count_cores()
    quiet: dict[str, list[float]] = {name: [] for name in candidates}
    loaded: dict[str, list[float]] = {name: [] for name in candidates}
    with ExitStack() as stack:
        processes = {name: stack.enter_context(MeasuredProcess(what, changes)) for name, changes in candidates.items()}
        for process in processes.values():
            process.seconds_per_image(0.0)  # it has started and warmed up
        names = list(processes)
        for number in range(rounds):
            order = names[number % len(names) :] + names[: number % len(names)]
            for name in order:
                time.sleep(PAUSE)
                quiet[name].append(processes[name].seconds_per_image(turn))
            with busy_processes(cores):
                for name in order:
                    time.sleep(PAUSE)
                    loaded[name].append(processes[name].seconds_per_image(turn))
    return {name: (Timing(tuple(quiet[name])), Timing(tuple(loaded[name]))) for name in candidates}


def load_rows(what: str, rounds: int) -> Iterator[Row]:
    """How fast a command is when quiet, beside OpenMP's own waiting; and what it keeps beside busy processes."""
    measured = measure_load(what, rounds)
    cores = count_cores()
    peer = "OpenMP's own waiting"
    for name, (quiet, _) in measured.items():
        yield compared(
            f"{what}, quiet", name, 1 / quiet.median, "images/s", quiet, peer, measured[peer][0],
            target=QUIET if name == "softbias" else None,
        )  # fmt: skip
    for name, (quiet, loaded) in measured.items():
        yield compared(
            f"{what}, beside {cores} busy processes", name, 1 / loaded.median, "images/s", loaded, "the same, quiet", quiet,
            target=KEPT if name == "softbias" else None,
        )  # fmt: skip


def main(what: str) -> None:
    """Work as long as stdin says, line by line."""
    work = WORK[what]()
    for _ in range(3):
        work()
    for line in sys.stdin:
        began, images = time.perf_counter(), 0
        while not images or time.perf_counter() - began < float(line):
            images += work()
        print((time.perf_counter() - began) / images, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
