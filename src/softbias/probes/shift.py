"""Translation: does the prediction stay, and do the features move with the image?

    consistency   share of images whose class stays when the image moves by s pixels (in each of four directions)
    equivariance  mean cos(F(T x)[p + t], F(x)[p]): features before pooling, moved back by the t cells that the image moved.
                  Features are centered by their mean over cells and images, because a part that all cells share is no
                  evidence of movement.
    unmoved       the same without moving back, cos(F(T x)[p], F(x)[p]): a model whose features are tied to absolute
                  positions, or the same everywhere, scores as high here. The gap between the two follows the image.

The border is filled with the pixels that left on the other side (fill="roll", the default), with the border's own pixels
("edge"), or with black ("zero"). Equivariance needs moves by whole cells of the feature map, so it is measured there only,
and at cells whose partner stays inside.

Shapes: B images, C channels, h × w cells of the feature map.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.bounds import Count, Index, Seed
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, unknown_name
from softbias.probes.features import feature_map
from softbias.probes.rows import Rows, labeled, mean_of, not_measured
from softbias.probes.sampling import Sample, Source, sample

FILLS = ("roll", "edge", "zero")
DIRECTIONS = ((0, 1), (1, 0), (0, -1), (-1, 0))


@torch.no_grad()
def shift(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 1000,
    seed: Seed = 0,
    split: str = "test",
    distances: Sequence[Index] = (1, 2, 4, 8),
    fill: str = "roll",
) -> Rows:
    """Rows per distance in pixels. 1 + 4 · len(distances) passes per image for predictions, up to 3 more for features."""
    classifier = Classifier.of(model)
    if fill not in FILLS:
        raise unknown_name("fill of the border", fill, FILLS)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    same: dict[int, list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device):
        before = classifier.logits(batch).argmax(-1)
        for distance in distances:
            moves = (moved(batch, distance * down, distance * across, fill) for down, across in DIRECTIONS)
            stays = torch.stack([(classifier.logits(one).argmax(-1) == before).float() for one in moves])
            same[distance].append(stays.mean(0).cpu())  # one share of four per image: the interval is over images
    rows: Rows = [
        {"measure": "consistency", "unit": "share", "pixels": distance, **mean_of(torch.cat(parts))}
        for distance, parts in same.items()
    ]
    return labeled(classifier, "shift", rows + equivariance(classifier, images, distances, fill), fill=fill, data=images.name)


def moved(images: Tensor, down: int, across: int, fill: str) -> Tensor:
    """Images moved by whole pixels.  # (B, 3, H, W)"""
    if fill == "roll":
        return images.roll((down, across), (-2, -1))
    reach = max(abs(down), abs(across))
    mode = {"edge": "replicate", "zero": "constant"}[fill]
    around = pad(images, (reach,) * 4, mode=mode)
    height, width = images.shape[-2:]
    return around[..., reach - down : reach - down + height, reach - across : reach - across + width]


def equivariance(classifier: Classifier, images: Sample, distances: Sequence[int], fill: str) -> Rows:
    """Rows for the moves by whole cells of the feature map; none for a map of one cell."""
    found: dict[tuple[str, int], list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device):
        try:
            before = feature_map(classifier, batch).float()
        except NotMeasurableError as error:
            nothing = {"measure": "equivariance", "unit": "cosine", **not_measured(error)}
            return [{**nothing, "pixels": distance} for distance in distances]
        step = batch.shape[-1] // before.shape[-1]
        center = before.mean((0, 2, 3), keepdim=True)
        for distance in distances:
            cells = distance // step
            if distance % step or not 0 < cells < before.shape[-1] // 2:
                continue
            after = feature_map(classifier, moved(batch, 0, distance, fill)).float()
            followed = cosine(after[..., cells:] - center, before[..., :-cells] - center)
            found["equivariance", distance].append(followed)
            found["unmoved", distance].append(cosine(after - center, before - center))
    return [
        {"measure": measure, "unit": "cosine", "pixels": distance, **mean_of(torch.cat(parts))}
        for (measure, distance), parts in found.items()
    ]


def cosine(a: Tensor, b: Tensor) -> Tensor:
    """Mean cosine over cells.  # (B, C, h, w) twice -> (B,)"""
    return torch.cosine_similarity(a, b, dim=1).mean((-2, -1)).cpu()
