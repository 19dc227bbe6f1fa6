"""`softbias evaluate`: the scores of a run's model, on its own pictures or on others."""

from __future__ import annotations

import dataclasses
import json as json_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro

from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError

if TYPE_CHECKING:
    from softbias.classifier import Classifier
    from softbias.data.dataset import Dataset
    from softbias.runs.run import Run
    from softbias.runs.spec import RunSpec


def evaluate(
    run: Annotated[Path, tyro.conf.Positional, flag("RUN", "A run's folder; with --data also a saved model's.")],
    /,
    data: str | None = None,
    split: Literal["test", "val", "train", "all"] | None = None,
    data_dir: Path | None = None,
    skip_broken: bool = False,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
    json: bool = False,
) -> None:
    """Score a run's model on its test pictures, or on others.

    Args:
        data: Other pictures of the same classes: a folder, a CSV file, arrays, or a named set.
        split: Which pictures; test if not given, and all of them for a folder or file given with --data.
        data_dir: Where named sets lie.
        skip_broken: Leave out pictures that cannot be read, and say how many.
        device: Where to compute.
        json: Print JSON.
    """
    from softbias.environment import find_device
    from softbias.runs.opening import open_classifier
    from softbias.runs.run import Run
    from softbias.training.batches import SplitImages
    from softbias.training.evaluate import predict_probabilities, score
    from softbias.training.objectives import find_objective

    directory = Run(run)
    if data is None and not directory.begun:
        raise SoftbiasError(f"{run} is not a run that knows its pictures; name some with --data")
    classifier = open_classifier(run, device=find_device(device))
    spec = directory.spec if directory.begun else None
    objective = find_objective("supervised" if spec is None else spec.recipe.objective)
    asked = {"data_dir": None if data_dir is None else str(data_dir), "skip_broken": skip_broken or None}
    pictures, name, indices = choose_pictures(classifier, spec, data, split, asked, objective.pretext)
    if not len(indices):
        raise SoftbiasError(f"{pictures.name} has no pictures in {name}")
    learned = 0 if data is None else learned_from(directory, pictures, indices)
    seen = [f"{learned:,} of these {len(indices):,} pictures were learned from: what follows is no test"] if learned else []
    images = SplitImages(pictures, indices, classifier.device)
    probabilities, labels = predict_probabilities(
        classifier.model, images, classifier.mean, classifier.std, objective=objective
    )
    scores = score(probabilities, labels, classifier.output_names)
    if json:
        about = {
            "run": str(run),
            "data": pictures.name,
            "split": name,
            "learned_from": learned,
            "notes": notes_on(pictures, name),
        }
        print(json_module.dumps(about | scores, indent=2))
        return
    print("\n".join([*notes_on(pictures, name), *seen]))
    what = "pictures" if name == "all" else f"{name} pictures"
    shown = objective.scores(probabilities, labels, pictures.class_names)
    show({**scores, **shown, "what": what}, f"{run}: {pictures.name}, {name}")


def notes_on(pictures: Dataset, split: str) -> list[str]:
    """The notes of the set; those about its splits do not matter where all pictures are scored."""
    from softbias.pages.wording import text

    return [text(note) for note in (pictures.notes_without_splits if split == "all" else pictures.notes)]


def learned_from(directory: Run, data: Dataset, indices: Any) -> int:
    """How many of the pictures, known by their files, were in the run's training split."""
    kept = directory.path / "split.csv"
    if data.files is None or not kept.is_file():
        return 0
    from softbias.data.tables import read_table

    table = read_table(kept)
    rows = zip(table["path"], table["split"], strict=True)
    trained = {(kept.parent / file).resolve() for file, split in rows if split == "train"}
    return sum(Path(data.files[index]).resolve() in trained for index in indices)


def choose_pictures(
    classifier: Classifier, spec: RunSpec | None, data: str | None, split: str | None, asked: dict[str, Any], pretext: bool
) -> tuple[Dataset, str, Any]:
    """The set at the model's size, with the model's labels; the split's name, and its indices."""
    import numpy as np

    from softbias.data import load_dataset
    from softbias.data.named import list_datasets
    from softbias.runs.prepare import split_up

    options = {key: value for key, value in asked.items() if value is not None}
    if data is None:
        assert spec is not None
        if not Path(spec.data).exists() and spec.data not in list_datasets():
            raise SoftbiasError(
                f"the run's pictures, {spec.data!r}, are not in {Path.cwd()}: go to the folder it was trained in, "
                "or name them with --data"
            )
        found = load_dataset(spec.data, **{**spec.data_options, **options})
        parts = split_up(found, spec)
        chosen: dict[str, Any] = {"train": parts.train, "val": parts.val, "test": parts.test}
    else:
        found = load_dataset(data, img_size=classifier.img_size, resize_mode=classifier.resize_mode, **options)
        chosen = dict(found.splits)
    name = split or ("all" if data is not None and Path(data).exists() else "test")
    indices = np.arange(len(found)) if name == "all" else chosen.get(name)
    if indices is None:
        has = ", ".join(part for part in chosen if chosen[part] is not None)
        raise SoftbiasError(f"{found.name} has no split {name!r}; it has {has}")
    return found if pretext else with_labels_of(classifier, found), name, indices


def with_labels_of(classifier: Classifier, data: Dataset) -> Dataset:
    """The set with its classes numbered as the model has them."""
    import numpy as np

    known = {name: number for number, name in enumerate(classifier.output_names)}
    strange = [name for name in data.class_names if name not in known]
    if strange:
        raise SoftbiasError(
            f"{data.name} has classes that the model does not know: {', '.join(strange[:5])}; "
            f"it knows {', '.join(classifier.output_names[:20])}"
        )
    numbers = np.array([known[name] for name in data.class_names])
    return dataclasses.replace(data, labels=numbers[data.labels], class_names=classifier.output_names)


def show(scores: dict[str, Any], title: str) -> None:
    from rich.console import Console

    from softbias.runs.printed import print_classes, score_rows

    console = Console(highlight=False)
    console.print(title, markup=False, soft_wrap=True)
    rows = score_rows({"test": scores})
    width = max(len(name) for name, _, _ in rows)
    for name, value, aside in rows:
        console.print(f"  {name:{width}}  {value}  {aside}", markup=False, soft_wrap=True)
    print_classes(scores["classes"], console)
