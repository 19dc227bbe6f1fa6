"""A model at work: `softbias.predict`, `softbias.evaluate` and `softbias.explain` take whatever names a model.

softbias.predict("runs/flowers-…", "new_pictures")              # a row per file
softbias.evaluate("runs/flowers-…").scores["accuracy"]          # on the run's own test images
softbias.explain("runs/flowers-…", "rose.jpg")                  # shows itself in a notebook
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from softbias.bounds import AnyPath, BatchSize, Index, Probability, ShortText
from softbias.classifier import LOW_CONFIDENCE, Classifier, Picture, Prediction
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.folders import LOOP, FolderWalk
from softbias.data.sources import is_named, source_name
from softbias.data.tables import TABLES, file_of, read_table
from softbias.environment import find_device
from softbias.errors import SoftbiasError
from softbias.explanations import Explanation
from softbias.explanations import explain as explain_image
from softbias.notes import Note
from softbias.pages.html import render
from softbias.pages.wording import text
from softbias.runs.opening import Source, find_run, open_classifier
from softbias.runs.printed import score_rows
from softbias.runs.run import Run
from softbias.schema import checked_arguments
from softbias.training.evaluate import evaluate_split
from softbias.training.objectives import find_objective


@checked_arguments
def predict(
    source: Source,
    files: str | Path | Iterable[str | Path],
    *,
    batch: BatchSize = 64,
    threshold: Probability = LOW_CONFIDENCE,
    mirror: bool = False,
    device: ShortText = "auto",
) -> list[Prediction]:
    """Classify files: a row for each, in order; a file that cannot be read has an error instead of a class.

    source      a run's or saved model's folder, "timm:NAME", "hf:FOLDER", a name of `softbias models`, or a module
    files       image files, folders, or CSV files with a column path
    threshold   a confidence below this is flagged as low
    mirror      average over every picture and its mirror image: more often right, in twice the time
    """
    sources = [files] if isinstance(files, str | Path) else files
    classifier = open_classifier(source, device=find_device(device))
    classifier = classifier.mirrored() if mirror else classifier
    return classifier.predict(find_image_files(sources), batch=batch, threshold=threshold)


def find_image_files(sources: Iterable[str | Path]) -> list[Path]:
    """The files named, those listed in the tables named, and the pictures below the folders named, in natural order."""
    found: list[Path] = []
    for source in map(Path, sources):
        if source.suffix.lower() in TABLES and source.is_file():
            found += [file_of(source.parent, name) for name in read_table(source, needed=("path",))["path"]]
            continue
        if not source.is_dir():
            found.append(source)
            continue
        walk = FolderWalk(source, strict=False)
        inside = walk.below(source)
        inside += [*walk.denied, *(path for path, kind in walk.skipped.items() if kind != LOOP)]  # rows that say why not
        if not inside:
            raise SoftbiasError(f"there are no pictures in {source}")
        found += inside
    return found


@checked_arguments
def explain(
    source: Source,
    image: Picture,
    *,
    query: tuple[Index, Index] | None = None,
    target: Index | ShortText | None = None,
    methods: Sequence[ShortText] | None = None,
    device: ShortText = "cpu",
) -> Explanation:
    """Explain one picture.

    source    see `predict`
    image     a file, a PIL image, or an array (height, width, 3) of uint8
    query     the patch (row, column) from which heads look; the middle one if not given
    target    the class that gradients are about, by name or number; the predicted one if not given
    methods   of `softbias.probes.attribution.METHODS`; by default rollout, gradient-rollout and gradients, or grad-cam and
              gradients for a model without maps
    """
    classifier = open_classifier(source, device=find_device(device))
    return explain_image(classifier, image, query=query, target=target, methods=methods)


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on some images. A notebook shows them.

    split          "train", "val", "test" or "all"
    scores         accuracy with its interval, scores per class, the confusion matrix, …
    learned_from   how many of the images the run was trained on; then the scores are no test
    """

    name: str
    data: str
    split: str
    scores: dict[str, Any]
    learned_from: int = 0
    notes: tuple[Note, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.name}: {self.data}, {self.split}"

    @property
    def rows(self) -> list[tuple[str, str, str]]:
        """Name, value and remark of every score."""
        what = "pictures" if self.split == "all" else f"{self.split} pictures"
        return score_rows({"test": {**self.scores, "what": what}})

    def to_dict(self) -> dict[str, Any]:
        about = {"run": self.name, "data": self.data, "split": self.split, "learned_from": self.learned_from}
        return {**about, "notes": [note.to_dict() for note in self.notes], **self.scores}

    def _repr_html_(self) -> str:
        notes = [text(note) for note in self.notes]
        return render("result.html.jinja", title=self.title, scores=self.rows, verdict=None, notes=notes, run=None)


@checked_arguments
def evaluate(
    source: Source,
    data: AnyPath | Dataset | None = None,
    *,
    split: ShortText | None = None,
    score: ShortText | None = None,
    data_dir: AnyPath | None = None,
    skip_broken: bool = False,
    mirror: bool = False,
    device: ShortText = "auto",
) -> Evaluation:
    """Score a run's model on its own test images, or any model on other images of the same classes.

    source   see `predict`
    split    "train", "val", "test" or "all"; "test" if not given, and "all" for a folder or a file of other images
    score    "test" or "val", as in `fit`; the run's own if not given. A run for choosing (score="val") meets its test images
             with score="test"
    mirror   see `predict`
    """
    run = find_run(source)
    if data is None and run is None:
        raise SoftbiasError(f"{source} is not a run that knows its pictures; name some with --data")
    classifier = open_classifier(run or source, device=find_device(device))
    objective = find_objective("supervised" if run is None else run.spec.recipe.objective)
    options = {"data_dir": None if data_dir is None else str(data_dir), "skip_broken": skip_broken or None, "score": score}
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if data is None:
        assert run is not None
        images = run.data(**given)
        splits = run.split(images).as_dict()
    else:
        images = data if isinstance(data, Dataset) else load_other(source_name(data), classifier, given)
        splits = images.splits
    own = isinstance(data, str | Path) and not is_named(data)
    name = split or ("all" if own else "test")
    indices = np.arange(len(images)) if name == "all" else splits.get(name)
    if indices is None:
        raise SoftbiasError(f"{images.name} has no split {name!r}; it has {', '.join(splits)}")
    if not len(indices):
        raise SoftbiasError(f"{images.name} has no pictures in {name}")
    if objective.learns_features:
        raise SoftbiasError(
            f"{classifier.name} has learned features and knows no classes, so there is nothing to score; softbias fit DATA "
            "--start RUN trains a classifier from it"
        )
    if mirror and objective.pretext:
        raise SoftbiasError(
            f"{classifier.name} was trained on a task without classes ({objective.task}); mirror is for classes"
        )
    labeled = images if objective.pretext else with_labels_of(classifier, images)
    classifier = classifier.mirrored() if mirror else classifier
    _, _, scores = evaluate_split(
        classifier.model, labeled, indices, classifier.mean, classifier.std, objective=objective, device=classifier.device
    )
    if objective.pretext:
        scores |= objective.pretext_scores(scores, labeled.class_names)
    if name == "test" and any(note.kind == "scored-on-val" for note in images.notes):
        name = "val"
    notes = images.notes_without_splits if name == "all" else images.notes
    if run is not None and not run.finished:
        notes = (*notes, Note("run-not-finished", {"name": classifier.name}))
    notes = (*notes, *mirror_notes(run)) if mirror else notes
    learned = 0 if data is None or run is None else count_learned_from(run, images, indices)
    if learned:
        notes = (*notes, Note("images-learned-from", {"count": learned, "of": len(indices)}))
    title = str(source) if isinstance(source, str | Path) else classifier.name
    return Evaluation(title, images.name, name, scores, learned, tuple(notes))


def mirror_notes(run: Run | None) -> list[Note]:
    """That answers are averaged over mirror images, and whether the run has learned from such."""
    flips = None if run is None else run.spec.recipe.augmentation.flip
    return [Note("mirrored", {"learned": flips is None or flips > 0})]


def load_other(data: str, classifier: Classifier, options: dict[str, Any]) -> Dataset:
    """Other images than the run's own, at the model's size, and with its black and white."""
    if classifier.value_range is not None and not is_named(data):
        options = {**options, "value_range": classifier.value_range}
    return load_dataset(data, img_size=classifier.img_size, resize_mode=classifier.resize_mode, **options)


def with_labels_of(classifier: Classifier, data: Dataset) -> Dataset:
    """The set with its classes numbered as the model has them."""
    known = {name: number for number, name in enumerate(classifier.output_names)}
    strange = [name for name in data.class_names if name not in known]
    if strange:
        raise SoftbiasError(
            f"{data.name} has classes that the model does not know: {', '.join(strange[:5])}; "
            f"it knows {', '.join(classifier.output_names[:20])}"
        )
    numbers = np.array([known[name] for name in data.class_names])
    return dataclasses.replace(data, labels=numbers[data.labels], class_names=classifier.output_names)


def count_learned_from(run: Run, data: Dataset, indices: NDArray[np.int64]) -> int:
    """How many of the images, known by their files, were in the run's training split."""
    kept = run.path / "split.csv"
    if data.files is None or not kept.is_file():
        return 0
    table = read_table(kept)
    rows = zip(table["path"], table["split"], strict=True)
    trained = {(kept.parent / file).resolve() for file, split in rows if split == "train"}
    return sum(Path(data.files[index]).resolve() in trained for index in indices)
