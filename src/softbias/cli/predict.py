"""`softbias predict`: classes and probabilities of pictures."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError

if TYPE_CHECKING:
    from softbias.classifier import Prediction


def predict(
    model: Annotated[Path, tyro.conf.Positional, flag("MODEL_OR_RUN", "The folder of a run or of a saved model.")],
    files: Annotated[
        tuple[Path, ...], tyro.conf.Positional, flag("FILES_OR_FOLDERS", "Pictures, folders or CSV files of them.")
    ],
    /,
    out: Path | None = None,
    batch: int = 64,
    threshold: float = 0.5,
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto",
) -> int:
    """Classify pictures: files, folders with all that is below them, and CSV files with a column path.

    A file that cannot be read is named, counted and passed over; the exit status is then 1, and 0 otherwise.

    Args:
        out: Write all probabilities to this file, *.csv or *.json; otherwise the best class of each picture is printed.
        batch: Pictures at a time.
        threshold: A confidence below this is flagged as low.
        device: Where to compute.
    """
    if out is not None and out.suffix.lower() not in (".csv", ".json"):
        raise SoftbiasError(f"--out takes a file named *.csv or *.json, but got {out}")
    if not files:
        raise SoftbiasError("which pictures? softbias predict MODEL FILES_OR_FOLDERS…")
    from softbias.environment import find_device
    from softbias.runs.inference import find_pictures
    from softbias.runs.opening import open_classifier

    classifier = open_classifier(model, device=find_device(device))
    chosen = find_pictures(files)
    count = {"read": 0, "low": 0, "bad": 0}

    def counted() -> Iterator[Prediction]:
        for row in classifier.stream(chosen, batch=batch, threshold=threshold):
            count["bad" if row.error else "read"] += 1
            count["low"] += row.low
            if row.error:
                print(f"softbias: {row.file}: {row.error}", file=sys.stderr)
            yield row

    if out is None:
        for row in counted():
            if row.error is None:
                print(f"{row.file}\t{row.label}\t{row.confidence:.3f}" + ("\tlow confidence" if row.low else ""))
    else:
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = out.with_name(out.name + ".tmp")
        write = write_csv if out.suffix.lower() == ".csv" else write_json
        write(aside, counted(), classifier.output_names)
        aside.replace(out)
    said = f"{count['read']:,} pictures classified, {count['low']:,} of them below {threshold:g}"
    bad = f"; {count['bad']:,} could not be read" if count["bad"] else ""
    print(said + bad + (f"; written to {out}" if out else ""), file=sys.stderr)
    return 1 if count["bad"] else 0


def write_csv(path: Path, rows: Iterator[Prediction], class_names: tuple[str, ...]) -> None:
    """A row per file; the columns p:CLASS hold the probabilities."""
    with path.open("w", newline="", encoding="utf-8", errors="surrogateescape") as stream:
        table = csv.writer(stream)
        table.writerow(["file", "label", "confidence", "low_confidence", "error", *(f"p:{name}" for name in class_names)])
        for row in rows:
            if row.error is not None:
                table.writerow([row.file, "", "", "", row.error, *("" for _ in class_names)])
            else:
                values = (f"{value:.6g}" for value in row.probabilities)
                table.writerow([row.file, row.label, f"{row.confidence:.6g}", int(row.low), "", *values])


def write_json(path: Path, rows: Iterator[Prediction], class_names: tuple[str, ...]) -> None:
    path.write_text(json.dumps([row.to_dict(class_names) for row in rows], indent=1) + "\n")
