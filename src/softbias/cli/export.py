"""`softbias export`: a model for programs that know nothing of softbias."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError


def export(
    model: Annotated[Path, tyro.conf.Positional, flag("MODEL_OR_RUN", "The folder of a run or of a saved model.")],
    file: Annotated[Path | None, tyro.conf.Positional, flag("FILE", "The file to write; model.onnx if not given.")] = None,
    /,
    out: Annotated[Path | None, flag("FILE", "The same.")] = None,
) -> None:
    """Write a run's model, or a saved one, as ONNX: images (batch, 3, height, width), normalized, to logits."""
    from softbias.models.storage import export as write
    from softbias.runs.opening import open_classifier

    if file is not None and out is not None:
        raise SoftbiasError(f"which file? {file} or --out {out}")
    out = file or out or Path("model.onnx")
    if out.suffix != ".onnx":  # before the model is read
        raise SoftbiasError(f"an ONNX file is named *.onnx, but got {out}")
    classifier = open_classifier(model)
    assert classifier.img_size is not None
    write(classifier.model, out, img_size=classifier.img_size)
    shape = f"images (batch, 3, {classifier.img_size[0]}, {classifier.img_size[1]})"
    print(f"{out}: {out.stat().st_size / 1e6:,.1f} MB, {shape} to logits (batch, {len(classifier.output_names)})")
    print(f"pixels in [0, 1], normalized by mean {classifier.mean} and std {classifier.std}; {classifier.resize_mode} to size")
