"""The directory of a run, finished or not: its files, and what can be read from them.

config.yaml           what defines the run; usable as --config
metrics.jsonl         one line per logged step and per epoch
checkpoints/          see `training.checkpoint`
head.safetensors      the head before the first step, where a recipe fits one (`head_start`)
probes/<name>.jsonl   what probes measured while the run trained, see `live`
model/                config.json + model.safetensors: softbias.load reads it, and so does timm
predictions.npz       see `predictions`
environment.json      versions, hardware, git hash
summary.json          the scores; written after all the others, so its presence means that the run is finished
SHA256SUMS            the checksums of these files, see `artifacts`
report.html           one page about the run, drawn from them

    run = Run("runs/flowers-convit_nano-1a2b3c4d5e"); run.summary()["test"]["accuracy"]
    run.classifier(run.checkpoints[0])                  # the model before its first step

torch is imported only by methods that need it, so that a list of runs appears at once.
"""

from __future__ import annotations

import errno
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import BaseFileLock, FileLock, Timeout

from softbias.checksums import verify_file
from softbias.errors import SoftbiasError
from softbias.files import write_text
from softbias.json_file import MOST_BYTES_OF_TABLES, read_json
from softbias.notes import Note
from softbias.runs.answers import ANSWERS, Answers
from softbias.runs.predictions import Predictions
from softbias.runs.spec import RunSpec, Summary, differences, epoch_rows, read_config, read_notes, write_config
from softbias.runs.start import SAME_STORE, Start
from softbias.schema import from_plain

if TYPE_CHECKING:
    from softbias.classifier import Classifier
    from softbias.data.dataset import Dataset
    from softbias.data.splits import Split


@dataclass(frozen=True)
class Checkpoint:
    """A run at a step. path: None for its start, which is built again from the seed."""

    step: int
    path: Path | None = None


START = Checkpoint(0)


class Run:
    """The files of one run, and the lock that keeps a second process out."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.lock: BaseFileLock | None = None
        self.loaded: dict[str, Classifier] = {}  # by device: checkpoints are loaded into a copy of it

    @property
    def config_path(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics_path(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_folder(self) -> Path:
        return self.path / "checkpoints"

    @property
    def probe_folder(self) -> Path:
        return self.path / "probes"

    @property
    def model_folder(self) -> Path:
        return self.path / "model"

    @property
    def summary_path(self) -> Path:
        return self.path / "summary.json"

    @property
    def predictions_path(self) -> Path:
        return self.path / "predictions.npz"

    @property
    def head_path(self) -> Path:
        return self.path / "head.safetensors"

    @property
    def answers_path(self) -> Path:
        return self.path / ANSWERS

    @property
    def neighbors_path(self) -> Path:
        return self.path / "neighbors.npz"

    @property
    def page_path(self) -> Path:
        return self.path / "report.html"

    @property
    def begun(self) -> bool:
        return self.config_path.is_file()

    @property
    def finished(self) -> bool:
        return self.summary_path.is_file()

    # Reading

    @cached_property
    def spec(self) -> RunSpec:
        return read_config(self.config_path)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Why the settings are as they are, where the user did not name them."""
        return read_notes(self.config_path) if self.begun else ()

    def summary(self) -> dict[str, Any]:
        """The scores of a finished run."""
        if not self.finished:
            raise SoftbiasError(f"{self.path} holds no finished run: it has no summary.json")
        verify_file(self.summary_path)
        plain: dict[str, Any] = read_json(self.summary_path, MOST_BYTES_OF_TABLES)
        from_plain(Summary, plain, str(self.summary_path))
        return plain

    def environment(self) -> dict[str, Any]:
        """Versions and hardware; nothing while the run is not finished."""
        path = self.path / "environment.json"
        if not path.is_file():
            return {}
        verify_file(path)
        return from_plain(dict[str, str | int | None], read_json(path), str(path))

    def predictions(self) -> Predictions | None:
        """The predictions on the test images; None for a run without them."""
        if not self.predictions_path.is_file():
            return None
        verify_file(self.predictions_path)
        return Predictions.read(self.predictions_path)

    def answers(self) -> Answers | None:
        """Class and confidence for every test image, from the predictions or, in a packed study, without them."""
        found = self.predictions()
        if found is not None:
            return Answers.of(found)
        return Answers.read(self.path) if self.answers_path.is_file() else None

    def metrics(self) -> list[dict[str, Any]]:
        """A row per epoch; a last line that a kill tore is dropped."""
        if self.finished and self.metrics_path.is_file():
            verify_file(self.metrics_path)
        return epoch_rows(self.metrics_path)

    @property
    def source_folder(self) -> Path | None:
        """The folder of the run or the saved model that the run starts from."""
        return self.source_of(self.spec.start)

    def source_of(self, start: Start) -> Path | None:
        """The folder of the run that a start names; None for another kind of start."""
        source = start.path
        if start.kind != "run" or source is None:
            return None
        if not source.startswith(SAME_STORE):
            return Path(source)
        name = source.removeprefix(SAME_STORE)
        found = [path for path in self.path.parent.glob(f"*-{name}") if Run(path).finished]
        if not found:
            raise SoftbiasError(f"the run starts from {source}, but {self.path.parent} holds no finished run {name}")
        return found[0]

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints that the run kept, in order; the untrained model comes first if it can be built from the seed."""
        from softbias.training.checkpoint import listed

        saved = [Checkpoint(int(path.name.removeprefix("step-")), path) for path in listed(self.checkpoint_folder)]
        return [START, *saved] if saved and not self.spec.start.learned and saved[0].step else saved

    def data(self, read: Callable[..., Dataset] | None = None, **options: Any) -> Dataset:
        """The run's data set.

        read      is called instead of `load_dataset`, for example to read a set only once for several runs
        options   of `load_dataset`; they replace those of the run's spec
        """
        from softbias.data import load_dataset
        from softbias.data.named import list_datasets

        name = self.spec.data
        if not Path(name).exists() and name not in list_datasets():
            raise SoftbiasError(
                f"the run's pictures, {name!r}, are not in {Path.cwd()}: go to the folder it was trained in, "
                "or name them with --data"
            )
        return (read or load_dataset)(name, **{**self.spec.data_options, **options})

    def split(self, data: Dataset | None = None) -> Split:
        """The split of the run's set, as training made it."""
        from softbias.runs.prepare import make_split

        return make_split(data or self.data(), self.spec)

    def classifier(
        self, checkpoint: Checkpoint | None = None, device: str = "cpu", *, read: Callable[..., Dataset] | None = None
    ) -> Classifier:
        """The model of the run, or the model at a checkpoint.

        A run that is not finished gives its last checkpoint, with the step in its name. A checkpoint holds neither the names
        of the classes nor the normalization, so the run's data set is read for them (`read` is explained at `data`).
        """
        from softbias.runs.opening import at_checkpoint, open_run

        if device not in self.loaded:
            self.loaded[device] = open_run(self, device, read)
        return self.loaded[device] if checkpoint is None else at_checkpoint(self, self.loaded[device], checkpoint)

    def page(self, data: Dataset | None = None) -> Path:
        """Write report.html. If `data` is not given, the run's data set is read for its images, where it can be found."""
        from softbias.runs.page import write_page

        if data is None:
            with suppress(SoftbiasError, OSError):  # the page then says that the pictures are missing
                data = self.data(download=False)
        return write_page(self, self.summary(), data)

    # Writing

    def open(self, spec: RunSpec, *, resume: bool) -> None:
        """Lock the directory for a run; an error gives the reason if that is not possible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = take_lock(self.path / ".lock")
        except Timeout as error:
            raise SoftbiasError(f"another process is training in {self.path}; choose another --out") from error
        except OSError as error:
            raise SoftbiasError(f"the run cannot be written to {self.path}: {error.strerror}; choose another --out") from error
        try:
            self.check(spec, resume=resume)
        except BaseException:
            self.close()  # a notebook keeps the error, and with it this object and the lock
            raise

    def check(self, spec: RunSpec, *, resume: bool) -> None:
        """Refuse a folder that holds another run."""
        if not resume:
            self.refuse_if_begun()
        different = differences(self.spec.identity(), spec.identity()) if self.begun else []
        if different:
            raise SoftbiasError(f"{self.path} was started with other settings: {'; '.join(different)}; choose another --out")
        if not self.begun and self.checkpoint_folder.is_dir():
            raise SoftbiasError(f"{self.path} holds checkpoints of a run whose config.yaml is lost; choose another --out")

    def refuse_if_begun(self) -> None:
        if self.finished:
            quoted = shlex.quote(str(self.path))
            raise SoftbiasError(f"{self.path} holds a finished run: choose another --out, or softbias runs delete {quoted}")
        if self.begun:
            raise SoftbiasError(f"{self.path} holds a run that was stopped; --resume continues it, or choose another --out")

    def begin(self, spec: RunSpec, notes: Sequence[Note] = ()) -> None:
        """Write config.yaml; called when the images could be read, so that a failed start leaves nothing behind."""
        if not self.begun:
            write_text(self.config_path, write_config(spec, notes))

    def close(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None


def take_lock(path: Path) -> BaseFileLock | None:
    """The lock of a file; Timeout if another process has it; None on a file system without locks, where only claims protect."""
    lock = FileLock(path, timeout=0, fallback_to_soft=False)  # a killed process would leave a soft lock behind for ever
    try:
        lock.acquire()
    except OSError as error:
        if isinstance(error, Timeout) or error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return None
    return lock
