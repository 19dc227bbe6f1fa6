"""Translation: does the prediction stay, and do the features move along?

    consistency   share of pictures whose class stays when the picture moves by s pixels (in each of four directions)
    equivariance  mean cos(F(T x)[p + t], F(x)[p]): features before pooling, moved back by the t places that the picture moved.
                  Features are centered by their mean over places and pictures, because what all places share says nothing.
    unmoved       the same without moving back, cos(F(T x)[p], F(x)[p]): a model whose features are tied to absolute places, or
                  the same everywhere, scores as high here. The gap between the two is what follows the picture.

What enters at the border is what left on the other side (fill="roll", the default), the border's own pixels ("edge"), or black
("zero"). Equivariance needs moves by whole places of the feature map, so it is measured there only, and at places whose
partner stays inside.

Shapes: B pictures, C channels, h × w places.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.classifier import Classifier, feature_map
from softbias.errors import SoftbiasError
from softbias.probes.pictures import Pictures, Source, sample
from softbias.probes.rows import Rows, mean_of, stamp

FILLS = ("roll", "edge", "zero")
DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@torch.no_grad()
def shift(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 1000,
    seed: int = 0,
    split: str = "test",
    pixels: Sequence[int] = (1, 2, 4, 8),
    fill: str = "roll",
) -> Rows:
    """Rows per number of pixels. 1 + 4 · len(pixels) passes per picture for predictions, up to 3 more for features."""
    classifier = Classifier.of(model)
    if fill not in FILLS:
        raise SoftbiasError(f"fill must be one of {', '.join(FILLS)}, but fill={fill!r}")
    pictures = sample(data, classifier, n=n, seed=seed, split=split)
    same: dict[int, list[Tensor]] = defaultdict(list)
    for images, _ in pictures.batches(classifier.device):
        plain = classifier.logits(images).argmax(-1)
        for distance in pixels:
            moves = (moved(images, distance * down, distance * across, fill) for down, across in DIRECTIONS)
            stays = torch.stack([(classifier.logits(one).argmax(-1) == plain).float() for one in moves])
            same[distance].append(stays.mean(0).cpu())  # a picture's share of four: the interval is over pictures
    rows: Rows = [
        {"measure": "consistency", "unit": "share", "pixels": distance, **mean_of(torch.cat(parts))}
        for distance, parts in same.items()
    ]
    return stamp(classifier, "shift", rows + equivariance(classifier, pictures, pixels, fill), fill=fill, data=pictures.name)


def moved(images: Tensor, down: int, across: int, fill: str) -> Tensor:
    """Pictures moved by whole pixels.  # (B, 3, H, W)"""
    if fill == "roll":
        return images.roll((down, across), (-2, -1))
    reach = max(abs(down), abs(across))
    mode = {"edge": "replicate", "zero": "constant"}[fill]
    around = pad(images, (reach,) * 4, mode=mode)
    height, width = images.shape[-2:]
    return around[..., reach - down : reach - down + height, reach - across : reach - across + width]


def equivariance(classifier: Classifier, pictures: Pictures, pixels: Sequence[int], fill: str) -> Rows:
    """Rows for the moves that are whole places of the feature map; none for a map of one place."""
    found: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
    for images, _ in pictures.batches(classifier.device):
        try:
            plain = feature_map(classifier, images).float()
        except ValueError:
            return []
        step = images.shape[-1] // plain.shape[-1]
        center = plain.mean((0, 2, 3), keepdim=True)
        for distance in pixels:
            places = distance // step
            if distance % step or not 0 < places < plain.shape[-1] // 2:
                continue
            now = feature_map(classifier, moved(images, 0, distance, fill)).float()
            along = cosine(now[..., places:] - center, plain[..., :-places] - center)
            found["equivariance", distance].append(along)
            found["unmoved", distance].append(cosine(now - center, plain - center))
    return [
        {"measure": measure, "unit": "cosine", "pixels": distance, **mean_of(torch.cat(parts))}
        for (measure, distance), parts in found.items()
    ]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine over places.  # (B, C, h, w) twice -> (B,)"""
    return torch.cosine_similarity(a, b, dim=1).mean((-2, -1)).cpu()


def draw(rows: Rows, folder: Any) -> list[Any]:
    from softbias.probes.drawing import bars

    return bars(rows, folder, "shift", "measure", "pixels", "share, or cosine")
