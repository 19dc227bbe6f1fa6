"""What a finished run consists of, in the order of writing, and which of it is lost or damaged.

config.yaml                                        what defines it, before all others
metrics.jsonl, split.csv, head.safetensors         while it trains
attention-before.npz, attention-after.npz          where it has regularizers, before and after training
predictions.npz, neighbors.npz                     from its model: of a classifier, of one that learned features alone
answers.npz, labels.npz                            instead of predictions.npz, in a packed study
model/                                             with checksums of its own, see `models.storage`
environment.json, summary.json, SHA256SUMS         the checksums of all files before it
report.html, confusion.png                         drawn from them, and again by `softbias report`

`find_lost` names what `--resume` makes again: the model and all that comes from it out of the last checkpoint, the page out of
the files. Only metrics.jsonl cannot be made without training again; its loss is noted in the summary. A changed config.yaml is
refused by whoever reads the run, because nothing else says what was trained.
"""

from __future__ import annotations

from collections.abc import Sequence

from softbias.checksums import CHECKSUMS, DamagedError, read_checksums, verify_file, write_checksums
from softbias.errors import SoftbiasError
from softbias.models.storage import is_whole
from softbias.runs.answers import ANSWERS, LABELS
from softbias.runs.galleries import AFTER, BEFORE
from softbias.runs.run import Run

MODEL, METRICS, SUMMARY = "model", "metrics.jsonl", "summary.json"
PREDICTIONS, NEIGHBORS = "predictions.npz", "neighbors.npz"
RESULTS = (
    METRICS, "split.csv", "head.safetensors", BEFORE, AFTER, PREDICTIONS, ANSWERS, LABELS, NEIGHBORS, "environment.json",
    SUMMARY,
)  # fmt: skip
PAGE, CONFUSION = "report.html", "confusion.png"
ENDS = {PAGE: b"</html>", CONFUSION: b"IEND\xaeB`\x82"}  # of a whole file


def write_results_checksums(run: Run) -> None:
    """Write the SHA256SUMS of a run; what is listed there belongs to it from now on."""
    write_checksums(run.path, [name for name in (run.config_path.name, *RESULTS) if (run.path / name).is_file()])


def find_lost(run: Run, *, page: bool) -> tuple[str, ...]:
    """The names of the files of a finished run that are gone or changed; page: whether it has to have one."""
    try:
        listed = {*read_checksums(run.path), SUMMARY, METRICS}
        lost = [name for name in RESULTS if name in listed and is_lost(run, name)]
    except DamagedError:
        lost = [CHECKSUMS]
    lost += [] if is_whole(run.model_folder) else [MODEL]
    return (*lost, *(find_lost_page(run) if page and not {SUMMARY, CHECKSUMS} & {*lost} else ()))


def is_lost(run: Run, name: str) -> bool:
    try:
        verify_file(run.path / name)
    except (OSError, SoftbiasError):
        return True
    return not (run.path / name).is_file()


def find_lost_page(run: Run) -> list[str]:
    """The files of the page that are gone or cut off; a run without test scores has no confusion matrix."""
    scored = bool((run.summary().get("test") or {}).get("classes"))
    expected = [PAGE, CONFUSION] if scored else [PAGE]
    return [name for name in expected if not ends_well(run, name)]


def ends_well(run: Run, name: str) -> bool:
    path = run.path / name
    return path.is_file() and path.read_bytes().rstrip().endswith(ENDS[name])


def needed_for_results(name: str) -> bool:
    """Whether a study needs a file of a run: its model, its scores and its predictions."""
    return name in (MODEL, SUMMARY, PREDICTIONS)


def only_page(lost: Sequence[str]) -> bool:
    """Whether nothing but the page has to be drawn again."""
    return set(lost) <= {PAGE, CONFUSION}
