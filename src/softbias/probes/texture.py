"""Texture against shape, by style swaps built from the data itself: each picture takes the style of one of another class.

    amplitude   the phase of the Fourier transform is the picture's own, its amplitude the other's: shape is kept (in phase),
                texture and contrast are the other's
    color       every channel gets the other's mean and standard deviation: palette and contrast alone

    to_shape    share predicted as the picture's own class
    to_style    share predicted as the other picture's class
    shape_bias  to_shape / (to_shape + to_style): of those decided either way (Geirhos et al., 2019, define it so)
    consistency share whose prediction stays

Shapes: B pictures.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn

from softbias.classifier import Classifier
from softbias.errors import SoftbiasError
from softbias.probes.pictures import Source, sample
from softbias.probes.rows import Row, Rows, share_of, stamp


def swap_amplitude(images: Tensor, style: Tensor) -> Tensor:
    """Phase of one picture, amplitude of another.  # (B, 3, H, W) twice"""
    own, other = torch.fft.rfft2(images), torch.fft.rfft2(style)
    return torch.fft.irfft2(torch.polar(other.abs(), own.angle()), s=images.shape[-2:]).clamp(0, 1)


def swap_color(images: Tensor, style: Tensor) -> Tensor:
    """Mean and standard deviation of another picture's channels.  # (B, 3, H, W) twice"""
    (mean, std), (its_mean, its_std) = (
        (one.mean((-2, -1), keepdim=True), one.std((-2, -1), keepdim=True)) for one in (images, style)
    )
    return ((images - mean) / std.clamp_min(1e-6) * its_std + its_mean).clamp(0, 1)


SWAPS = {"amplitude": swap_amplitude, "color": swap_color}


@torch.no_grad()
def texture(model: nn.Module | Classifier, data: Source, *, n: int = 1000, seed: int = 0, split: str = "test") -> Rows:
    """Rows per kind of swap. Three passes per picture."""
    classifier = Classifier.of(model)
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    labels = pictures.needed_labels("texture")
    partner = partners(labels, seed)
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    start = 0
    for images, own in pictures.batches(classifier.device):
        assert own is not None
        other = partner[start : start + len(images)]
        start += len(images)
        style = pictures.images[other].to(images) / 255
        plain = classifier.logits(images).argmax(-1)
        for name, swap in SWAPS.items():
            now = classifier.logits(swap(images, style)).argmax(-1)
            found[name, "to_shape"].append((now == own).cpu())
            found[name, "to_style"].append((now == labels[other].to(now)).cpu())
            found[name, "consistency"].append((now == plain).cpu())
    rows: Rows = []
    for name in SWAPS:
        kinds = {measure: torch.cat(found[name, measure]) for measure in ("to_shape", "to_style", "consistency")}
        rows += [row(measure, name, share_of(values)) for measure, values in kinds.items()]
        decided = kinds["to_shape"] | kinds["to_style"]
        if bool(decided.any()):
            rows.append(row("shape_bias", name, share_of(kinds["to_shape"][decided])))
    return stamp(classifier, "texture", rows, data=pictures.name)


def row(measure: str, swap: str, found: Row) -> Row:
    return {"measure": measure, "unit": "share", "swap": swap, **found}


def partners(labels: Tensor, seed: int) -> Tensor:
    """For every picture one of another class, drawn at random.  # (n,) -> (n,)"""
    if len(labels.unique()) < 2:
        raise SoftbiasError("a style swap needs pictures of at least two classes")
    chance = torch.Generator().manual_seed(seed)
    found = torch.randint(len(labels), (len(labels),), generator=chance)
    while bool((same := labels[found] == labels).any()):
        found[same] = torch.randint(len(labels), (int(same.sum()),), generator=chance)
    return found


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    return bars(rows, folder, "texture", "measure", "swap", "share of pictures")
