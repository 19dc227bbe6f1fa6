"""Probes that change the images and ask the model again: rotation, patch shuffle, occlusion, texture.

    consistency   share of images whose predicted class stays the same
    accuracy      share of changed images that are classified correctly; the row with change "none" is the unchanged one

Shapes: B images, n in all.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from softbias.bounds import Count, Finite, Probability, Seed, Tiles
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.probes.rows import Row, Rows, labeled, share_of
from softbias.probes.sampling import Sample, Source, sample

Change = Callable[[Tensor, torch.Generator], Tensor]  # (B, 3, H, W) in [0, 1] -> the same shape


@torch.no_grad()
def predicted(classifier: Classifier, images: Sample, change: Change | None, seed: int) -> Tensor:
    """The predicted classes of the changed images.  # (n,)"""
    rng = torch.Generator().manual_seed(seed)
    found = []
    for batch, _ in images.batches():
        changed = batch if change is None else change(batch, rng)
        found.append(classifier.logits(changed.to(classifier.device)).argmax(-1).cpu())
    return torch.cat(found)


def compare(classifier: Classifier, images: Sample, changes: Mapping[Any, Change], seed: int, column: str) -> Rows:
    """Consistency and accuracy under every change; `column` names the setting in which the changes differ."""
    before = predicted(classifier, images, None, seed)
    rows: Rows = []
    if images.labels is not None:
        rows.append(share_row("accuracy", column, "none", before == images.labels))
    for setting, change in changes.items():
        after = predicted(classifier, images, change, seed)
        rows.append(share_row("consistency", column, setting, after == before))
        if images.labels is not None:
            rows.append(share_row("accuracy", column, setting, after == images.labels))
    return rows


def share_row(measure: str, column: str, setting: Any, hits: Tensor) -> Row:
    return {"measure": measure, "unit": "share", column: setting, **share_of(hits)}


# Rotation


def rotation(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 1000,
    seed: Seed = 0,
    split: str = "test",
    angles: Sequence[Finite] = (15, 30, 45, 90, 180, 270),
) -> Rows:
    """Rows per angle in degrees, counter-clockwise, about the center. 1 + len(angles) passes per image."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    changes = {angle: functools.partial(rotated, angle=angle) for angle in angles}
    return labeled(classifier, "rotation", compare(classifier, images, changes, seed, "angle"), data=images.name)


def rotated(images: Tensor, _: torch.Generator | None = None, *, angle: float) -> Tensor:
    """Quarter turns move pixels exactly; other angles are bilinear. Corners that come in are black.  # (B, 3, H, W)"""
    square = images.shape[-1] == images.shape[-2]
    if angle % 90 == 0 and (square or angle % 180 == 0):
        return images.rot90(int(angle // 90) % 4, (-2, -1))
    from torchvision.transforms.v2.functional import InterpolationMode, rotate

    turned: Tensor = rotate(images, angle, interpolation=InterpolationMode.BILINEAR)
    return turned


# Patch shuffle


def patch_shuffle(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 1000,
    seed: Seed = 0,
    split: str = "test",
    tiles: Sequence[Tiles] = (2, 4, 8),
) -> Rows:
    """The image is cut into tiles × tiles parts, which are put in another order. 1 + len(tiles) passes per image.

    A model that still recognizes the class reads parts and not the shape as a whole.
    """
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    for count in tiles:
        check_tiles(count, 2, images)
    changes = {count: functools.partial(shuffled, tiles=count) for count in tiles}
    return labeled(classifier, "patch-shuffle", compare(classifier, images, changes, seed, "tiles"), data=images.name)


def check_tiles(tiles: int, least: int, images: Sample) -> None:
    if tiles < least or any(side % tiles for side in images.size):
        raise NotMeasurableError(
            f"tiles must be at least {least} and divide images of {images.size[0]} × {images.size[1]} pixels, but {tiles=}"
        )


def shuffled(images: Tensor, rng: torch.Generator, *, tiles: int) -> Tensor:
    """Tiles in a random order that is never the present one.  # (B, 3, H, W)"""
    batch, channels, height, width = images.shape
    parts = images.unflatten(3, (tiles, width // tiles)).unflatten(2, (tiles, height // tiles))  # (B, 3, k, h, k, w)
    parts = parts.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)  # (B, k², 3, h, w)
    count = tiles * tiles
    orders = torch.stack([torch.randperm(count, generator=rng) for _ in range(batch)])
    stay = (orders == torch.arange(count)).all(1)
    orders[stay] = orders[stay].roll(1, dims=1)
    parts = parts[torch.arange(batch)[:, None], orders].unflatten(1, (tiles, tiles))
    mixed: Tensor = parts.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)
    return mixed


# Occlusion


def occlusion(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 1000,
    seed: Seed = 0,
    split: str = "test",
    shares: Sequence[Probability] = (0.25, 0.5, 0.75),
    tiles: Tiles = 8,
) -> Rows:
    """A share of the tiles, drawn at random, gets the mean color of all images. 1 + len(shares) passes per image."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    check_tiles(tiles, 1, images)
    if not all(0 <= share <= 1 for share in shares):
        raise SoftbiasError(f"shares must lie in [0, 1], but shares={tuple(shares)}")
    color = images.images.float().mean((0, 2, 3)) / 255
    changes = {share: functools.partial(hidden, share=share, tiles=tiles, color=color) for share in shares}
    rows = compare(classifier, images, changes, seed, "hidden")
    return labeled(classifier, "occlusion", rows, tiles=tiles, data=images.name)


def hidden(images: Tensor, rng: torch.Generator, *, share: float, tiles: int, color: Tensor) -> Tensor:
    """# (B, 3, H, W)"""
    count = round(share * tiles * tiles)
    order = torch.rand(len(images), tiles * tiles, generator=rng).argsort(1)
    cover = torch.zeros(len(images), tiles * tiles)
    cover.scatter_(1, order[:, :count], 1.0)
    height, width = images.shape[-2:]
    cover = cover.view(-1, 1, tiles, tiles).repeat_interleave(height // tiles, 2).repeat_interleave(width // tiles, 3)
    return images * (1 - cover) + color[:, None, None] * cover


# Texture


@torch.no_grad()
def texture(model: nn.Module | Classifier, data: Source, *, n: Count = 1000, seed: Seed = 0, split: str = "test") -> Rows:
    """Each image takes the style of one of another class. Rows per kind of swap; three passes per image.

    amplitude    the phase of the Fourier transform is the image's own, its amplitude the other's: the shape is kept (it is
                 in the phase), texture and contrast are the other's
    color        every channel gets the other's mean and standard deviation: palette and contrast alone

    to_shape     share predicted as the image's own class
    to_style     share predicted as the other image's class
    shape_bias   to_shape / (to_shape + to_style): of those predicted as either (Geirhos et al., 2019)
    """
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    labels = images.needed_labels("texture")
    partner = partners(labels, seed)
    found: dict[tuple[str, str], list[Tensor]] = defaultdict(list)
    start = 0
    for batch, own in images.batches(classifier.device):
        assert own is not None
        other = partner[start : start + len(batch)]
        start += len(batch)
        style = images.images[other].to(batch) / 255
        before = classifier.logits(batch).argmax(-1)
        for name, swap in SWAPS.items():
            after = classifier.logits(swap(batch, style)).argmax(-1)
            found[name, "to_shape"].append((after == own).cpu())
            found[name, "to_style"].append((after == labels[other].to(after)).cpu())
            found[name, "consistency"].append((after == before).cpu())
    rows: Rows = []
    for name in SWAPS:
        hits = {measure: torch.cat(found[name, measure]) for measure in ("to_shape", "to_style", "consistency")}
        rows += [share_row(measure, "swap", name, values) for measure, values in hits.items()]
        either = hits["to_shape"] | hits["to_style"]
        if bool(either.any()):
            rows.append(share_row("shape_bias", "swap", name, hits["to_shape"][either]))
    return labeled(classifier, "texture", rows, data=images.name)


def partners(labels: Tensor, seed: int) -> Tensor:
    """For every image the index of one of another class, drawn at random.  # (n,) -> (n,)"""
    if len(labels.unique()) < 2:
        raise NotMeasurableError("a style swap needs images of at least two classes")
    rng = torch.Generator().manual_seed(seed)
    found = torch.randint(len(labels), (len(labels),), generator=rng)
    while bool((same := labels[found] == labels).any()):
        found[same] = torch.randint(len(labels), (int(same.sum()),), generator=rng)
    return found


def swap_amplitude(images: Tensor, style: Tensor) -> Tensor:
    """Phase of one image, amplitude of another.  # (B, 3, H, W) twice"""
    own, other = torch.fft.rfft2(images), torch.fft.rfft2(style)
    swapped: Tensor = torch.fft.irfft2(torch.polar(other.abs(), own.angle()), s=images.shape[-2:])
    return swapped.clamp(0, 1)


def swap_color(images: Tensor, style: Tensor) -> Tensor:
    """Mean and standard deviation of another image's channels.  # (B, 3, H, W) twice"""
    (mean, std), (other_mean, other_std) = (
        (one.mean((-2, -1), keepdim=True), one.std((-2, -1), keepdim=True)) for one in (images, style)
    )
    return ((images - mean) / std.clamp_min(1e-6) * other_std + other_mean).clamp(0, 1)


SWAPS = {"amplitude": swap_amplitude, "color": swap_color}
