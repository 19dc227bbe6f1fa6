"""Resolution: pictures with less detail, and pictures of another size.

    blurred   the picture is made smaller by the scale and enlarged again: less detail at the model's own size
    native    the picture is resized by the scale, and the model with it (positions, masks): see `entry`

Sizes are rounded to whole patches. A scale above 1 adds nothing to see, so it is measured natively alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.classifier import Classifier, patch_size
from softbias.probes.changes import about, compare, predicted
from softbias.probes.entry import NoNativeEntryError, at_size, fitted
from softbias.probes.pictures import Pictures, Source, sample
from softbias.probes.rows import Rows, share_of, stamp

SCALES = (0.5, 0.75, 1.5, 2.0)


def resolution(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    scales: Sequence[float] = SCALES,
) -> Rows:
    """Rows per scale and way. 1 + len(scales below 1) passes per picture at its own size, and one at each scale."""
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    step = rounding(classifier, pictures.size)
    sizes = {scale: rounded(pictures.size, scale, step) for scale in scales}
    blurs = {scale: functools.partial(blurred, size=size) for scale, size in sizes.items() if scale < 1}
    rows = [{**row, "entry": "blurred"} for row in compare(classifier, pictures, blurs, seed, "scale")]
    plain = predicted(classifier, pictures, None, seed)
    for scale, size in sizes.items():
        try:
            ready = at_size(classifier, size)
        except NoNativeEntryError as error:
            nothing = {"value": None, "low": None, "high": None, "n": 0, "note": str(error)}
            rows.append({**about("consistency", "scale", scale, nothing), "entry": "native"})
            continue
        rows += [{**row, "entry": "native"} for row in natively(ready, pictures, plain, scale, size)]
    return stamp(classifier, "resolution", rows, data=pictures.name)


@torch.no_grad()
def natively(ready: Classifier, pictures: Pictures, plain: Tensor, scale: float, size: tuple[int, int]) -> Rows:
    now = torch.cat([ready.logits(fitted(images, size)).argmax(-1).cpu() for images, _ in pictures.batches(ready.device)])
    rows = [about("consistency", "scale", scale, share_of(now == plain))]
    if pictures.labels is not None:
        rows.append(about("accuracy", "scale", scale, share_of(now == pictures.labels)))
    return rows


def rounding(classifier: Classifier, size: tuple[int, int]) -> tuple[int, int]:
    try:
        return patch_size(classifier.model, size)
    except ValueError:  # no patches: any size will do
        return 1, 1


def rounded(size: tuple[int, int], scale: float, step: tuple[int, int]) -> tuple[int, int]:
    """The nearest size of whole patches, two of them at least.

    >>> rounded((32, 32), 0.75, (4, 4)), rounded((32, 32), 0.7, (8, 8))
    ((24, 24), (24, 24))
    """
    height, width = (max(2, round(scale * side / one)) * one for side, one in zip(size, step, strict=True))
    return height, width


def blurred(images: Tensor, _: torch.Generator | None = None, *, size: tuple[int, int]) -> Tensor:
    own = (int(images.shape[-2]), int(images.shape[-1]))
    return fitted(fitted(images, size), own)


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    shown = [row for row in rows if row["measure"] == "accuracy" and row["scale"] != "none"]
    return bars(shown or rows, folder, "resolution", "entry", "scale", "accuracy" if shown else "consistency")
