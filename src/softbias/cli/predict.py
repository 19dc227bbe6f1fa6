"""`softbias predict`, `softbias evaluate` and `softbias export`: a trained model at work."""

from __future__ import annotations

import csv
import json as json_module
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional

from softbias.bounds import BatchSize, FilePath, Probability, ShortText
from softbias.cli.parsing import Device, flag
from softbias.errors import SoftbiasError
from softbias.terminal import cells, echo

if TYPE_CHECKING:
    from softbias.classifier import Prediction


def predict(
    model: Annotated[
        ShortText, Positional, flag("MODEL_OR_RUN", "The folder of a run or of a saved model, timm:NAME or hf:FOLDER.")
    ],
    files: Annotated[tuple[FilePath, ...], Positional, flag("FILES_OR_FOLDERS", "Pictures, folders or CSV files of them.")],
    /,
    out: FilePath | None = None,
    batch: BatchSize = 64,
    threshold: Probability = 0.5,
    mirror: bool = False,
    device: Device = "auto",
) -> int:
    """Classify pictures: files, folders with all that is below them, and CSV files with a column path.

    A file that cannot be read is named, counted and left out; the exit status is then 1, and 0 otherwise.

    Args:
        out: Write all probabilities to this file, *.csv or *.json; otherwise the best class of each picture is printed.
        batch: Pictures at a time.
        threshold: A confidence below this is flagged as low.
        mirror: Average over every picture and its mirror image: more often right, in twice the time.
        device: Where to compute.
    """
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise SoftbiasError(f"--out takes a file named *.csv or *.json, but got {out}")
    if not files:
        raise SoftbiasError("which pictures? softbias predict MODEL FILES_OR_FOLDERS…")
    from softbias.data.listing import counted_images
    from softbias.environment import find_device
    from softbias.notes import Note
    from softbias.pages.wording import text
    from softbias.runs.inference import find_image_files, mirror_notes
    from softbias.runs.opening import find_run, open_classifier

    run = find_run(model)
    classifier = open_classifier(run or model, device=find_device(device))
    notes = [Note("run-not-finished", {"name": classifier.name})] if run is not None and not run.finished else []
    if mirror:
        classifier, notes = classifier.mirrored(), [*notes, *mirror_notes(run)]
    for note in notes:
        echo(f"softbias: {text(note)}", file=sys.stderr)
    count = {"read": 0, "low": 0, "broken": 0}

    def counted() -> Iterator[Prediction]:
        for row in classifier.stream(find_image_files(files), batch=batch, threshold=threshold):
            count["broken" if row.error else "read"] += 1
            count["low"] += row.low
            if row.error:
                echo(f"softbias: {row.file}: {row.error}", file=sys.stderr)
            yield row

    if out is None:
        for row in counted():
            if row.error is None:
                echo(cells(row.file, row.label, f"{row.confidence:.3f}", *(["low confidence"] if row.low else [])))
    else:
        write_predictions(out, counted(), classifier.output_names)
    total = f"{counted_images(count['read'])} classified, {count['low']:,} of them below {threshold:g}"
    broken = f"; {count['broken']:,} could not be read" if count["broken"] else ""
    echo(total + broken + (f"; written to {out}" if out else ""), file=sys.stderr)
    return 1 if count["broken"] else 0


def write_predictions(path: Path, rows: Iterable[Prediction], class_names: tuple[str, ...]) -> None:
    """A row per file, as JSON or as CSV, where the columns p:CLASS hold the probabilities (see `files.csv_cell`)."""
    from softbias.files import csv_cell, replacing

    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as temporary:
        if path.suffix.lower() == ".json":
            temporary.write_text(json_module.dumps([row.to_dict(class_names) for row in rows], indent=1) + "\n")
            return
        with temporary.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
            table = csv.writer(stream)
            table.writerow(["file", "label", "confidence", "low_confidence", "error", *(f"p:{name}" for name in class_names)])
            for row in rows:
                if row.error is not None:
                    table.writerow([csv_cell(row.file), "", "", "", csv_cell(row.error), *("" for _ in class_names)])
                else:
                    values = (f"{value:.6g}" for value in row.probabilities)
                    label = "" if row.label is None else csv_cell(row.label)
                    table.writerow([csv_cell(row.file), label, f"{row.confidence:.6g}", int(row.low), "", *values])


def evaluate(
    run: Annotated[ShortText, Positional, flag("RUN", "A run's folder; with --data also a saved model's.")],
    /,
    data: ShortText | None = None,
    split: Literal["test", "val", "train", "all"] | None = None,
    score: Literal["test", "val"] | None = None,
    data_dir: FilePath | None = None,
    skip_broken: bool = False,
    mirror: bool = False,
    device: Device = "auto",
    json: bool = False,
) -> None:
    """Score a run's model on its test pictures, or on others.

    Args:
        data: Other pictures of the same classes: a folder, a CSV file, arrays, or a named set.
        split: Which pictures; test if not given, and all of them for a folder or file given with --data.
        score: Of a run for choosing (fit --score val): test scores its test pictures, which it has not seen.
        data_dir: Folder of named sets.
        skip_broken: Leave out pictures that cannot be read, and say how many.
        mirror: Average over every picture and its mirror image, as in predict.
        device: Where to compute.
        json: Print JSON.
    """
    from softbias.runs.inference import evaluate

    found = evaluate(
        run, data, split=split, score=score, data_dir=data_dir, skip_broken=skip_broken, mirror=mirror, device=device
    )
    if json:
        echo(*json_module.dumps(found.to_dict(), indent=2).split("\n"))
        return
    from softbias.runs.printed import print_evaluation

    print_evaluation(found)


def export(
    model: Annotated[ShortText, Positional, flag("MODEL_OR_RUN", "The folder of a run or of a saved model.")],
    file: Annotated[FilePath | None, Positional, flag("FILE", "The file to write; model.onnx if not given.")] = None,
    /,
    out: Annotated[FilePath | None, flag("FILE", "Another way to name the file.")] = None,
) -> None:
    """Write a run's model, or a saved one, as ONNX: images (batch, 3, height, width), normalized, to logits."""
    if file is not None and out is not None:
        raise SoftbiasError(f"which file? {file} or --out {out}")
    out = file or out or Path("model.onnx")
    if out.suffix != ".onnx":  # before the model is read
        raise SoftbiasError(f"an ONNX file is named *.onnx, but got {out}")
    from softbias.models.export import export
    from softbias.notes import Note
    from softbias.pages.wording import text
    from softbias.runs.opening import open_classifier

    classifier = open_classifier(model)
    export(classifier.model, out, img_size=classifier.img_size)
    size = "height, width" if classifier.img_size is None else ", ".join(map(str, classifier.img_size))
    shape = f"images (batch, 3, {size}) to logits (batch, {len(classifier.output_names)})"
    echo(f"{out}: {out.stat().st_size / 1e6:,.1f} MB, {shape}")
    echo(f"pixels in [0, 1], normalized by mean {classifier.mean} and std {classifier.std}; {classifier.resize_mode} to size")
    if classifier.value_range is not None:
        low, high = classifier.value_range
        echo(text(Note("value-range", {"low": low, "high": high, "named": True})))
