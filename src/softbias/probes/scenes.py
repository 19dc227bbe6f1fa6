"""Combined and background, the probes of the ETH study: a classifier on scenes that are larger than its object.

combined     2 × 2 images of distinct classes. Top-4 matching = |top-4 predicted ∩ the four true|: mean and histogram.
             The chance level is 4 · 4 / K: each of the four is among four of K, 1.6 for ten classes, exactly.
background   an image at a random position on a background of four times its side: accuracy; the chance level is 1 / K.

How a scene enters a model decides the result, so both are reported for several entries:

    resize   the scene is brought to the model's size: an object shrinks
    native   the model is brought to the scene's size
    224      or another number: the scene is enlarged to that side, as in the study's code, and so is a model of another size.
             Scenes are made of the set's own pictures, also where the model was trained on enlarged ones; nothing shrinks

The scenes outnumber the test images of a small set, so an image stands in several of them. The interval accounts for it: it
is that of the images (cluster-robust) or of the scenes, whichever is wider. The column `images` counts them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from softbias.bounds import Count, Scale, Seed, Side
from softbias.classifier import Classifier
from softbias.data.dataset import Dataset
from softbias.data.scenes import PARTS, Backgrounds, Scenes, combined, load_backgrounds, on_background
from softbias.errors import NotMeasurableError, SoftbiasError, unknown_name
from softbias.pages.static import hue, panels, save, show_map
from softbias.probes.drawing import draw_points, latest
from softbias.probes.resolution import ENTRIES, NoNativeEntryError, at_size, logits_at
from softbias.probes.rows import Row, Rows, Z, clustered_share, labeled, not_measured
from softbias.probes.sampling import Sample, Source, sample

EVERYTHING = 10**9
Entries = Sequence[str | int] | str | int
BackgroundSource = str | Path | Backgrounds | None


def random_matching(classes: int) -> float:
    """The mean Top-4 matching of a random guess: hypergeometric, 4 · 4 / K.

    >>> random_matching(10)
    1.6
    """
    return PARTS * min(PARTS, classes) / classes


def random_histogram(classes: int) -> list[float]:
    """How often a random guess matches 0, 1, 2, 3, 4 of the four.  # sums to one"""
    rest = classes - PARTS
    return [math.comb(PARTS, hits) * math.comb(rest, PARTS - hits) / math.comb(classes, PARTS) for hits in range(PARTS + 1)]


def combined_probe(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 5000,
    seed: Seed = 0,
    split: str = "test",
    entries: Entries = ENTRIES,
) -> Rows:
    """Top-4 matching on combined scenes: a mean per entry, and its histogram. Two passes per scene, one 4 × as large."""
    classifier = Classifier.of(model)
    classes, rows, name = 0, Rows(), ""
    for entry in entry_names(entries):
        images, own = scene_images(data, classifier, entry, seed, split)
        arrays, labels = as_arrays(images, "combined")
        make = functools.partial(combined, arrays, labels, seed=seed)
        classes, name = count_classes(classifier, images), images.name
        if classes <= PARTS:
            raise NotMeasurableError(f"Top-4 matching needs more than {PARTS} classes: with {classes}, every answer matches")
        ready, size = entry_model(classifier, own, (2 * images.size[0], 2 * images.size[1]), entry)
        if isinstance(ready, NoNativeEntryError):
            rows.append({"measure": "top4_matching", "unit": "classes", "entry": entry, **not_measured(ready)})
            continue
        hits, sources = [], []
        for scenes in in_parts(make, n, 100 if entry == "resize" else 50):
            logits = logits_at(ready, as_tensor(scenes), size)
            hits.append(matches(logits, torch.from_numpy(scenes.labels)))
            sources.append(torch.from_numpy(scenes.sources))
        found, source = torch.cat(hits), torch.cat(sources)  # (n, 4)
        per_image = clustered_share(found.flatten(), source.flatten())
        per_scene = Z * float(found.sum(1).double().std()) / math.sqrt(n)
        half = max(PARTS * (per_image["high"] - per_image["value"]), per_scene)
        value = float(found.sum(1).double().mean())
        about: Row = {"unit": "classes", "entry": entry, "n": n, "images": per_image["images"]}
        rows.append({"measure": "top4_matching", **about, "value": value, "low": value - half, "high": value + half})
        rows[-1]["chance_level"] = random_matching(classes)
        for number, expected in enumerate(random_histogram(classes)):
            equal = (found.sum(1) == number).double()
            spread, value = Z * float(equal.std()) / math.sqrt(n), float(equal.sum()) / n
            edges = {"low": max(0.0, value - spread), "high": min(1.0, value + spread), "chance_level": expected}
            rows.append({"measure": "histogram", **about, "unit": "share", "matched": number, "value": value, **edges})
    return labeled(classifier, "combined", rows, data=name)


def find_backgrounds(backgrounds: BackgroundSource, side: int) -> Backgrounds:
    """Backgrounds of at least this side in pixels."""
    return backgrounds if isinstance(backgrounds, Backgrounds) else load_backgrounds(backgrounds, smallest=side)


def background_probe(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: Count = 5000,
    seed: Seed = 0,
    split: str = "test",
    entries: Entries = ENTRIES,
    backgrounds: BackgroundSource = None,
    scales: Sequence[Scale] = (1.0,),
    positions: Sequence[str] = ("random",),
    size: Side | None = None,
) -> Rows:
    """Accuracy on images on backgrounds, for every scale × position × entry. Two passes per scene, one 16 × as large."""
    classifier = Classifier.of(model)
    rows, name = Rows(), ""
    for entry in entry_names(entries):
        images, own = scene_images(data, classifier, entry, seed, split)
        arrays, labels = as_arrays(images, "background")
        side, name = size or 4 * max(images.size), images.name
        behind = find_backgrounds(backgrounds, side)
        ready, entry_size = entry_model(classifier, own, (side, side), entry)
        for scale in scales:
            for position in positions:
                about: Row = {"measure": "accuracy", "unit": "share", "entry": entry, "scale": scale, "position": position}
                about["backgrounds"] = behind.source
                if isinstance(ready, NoNativeEntryError):
                    rows.append({**about, **not_measured(ready)})
                    continue
                make = functools.partial(
                    on_background, arrays, labels, behind.images, seed=seed, size=side, scale=scale, position=position
                )
                hits, sources = [], []
                for scenes in in_parts(make, n, 50 if entry == "resize" else 10):
                    predicted = logits_at(ready, as_tensor(scenes), entry_size).argmax(-1)
                    hits.append(predicted == torch.from_numpy(scenes.labels))
                    sources.append(torch.from_numpy(scenes.sources))
                found = clustered_share(torch.cat(hits), torch.cat(sources))
                rows.append({**about, **found, "chance_level": 1 / count_classes(classifier, images)})
    return labeled(classifier, "background", rows, data=name)


def entry_names(entries: Entries) -> list[str]:
    """
    >>> entry_names("resize,224"), entry_names(224), entry_names(("native", 224))
    (['resize', '224'], ['224'], ['native', '224'])
    """
    given = str(entries).split(",") if isinstance(entries, str | int) else map(str, entries)
    return [entry.strip() for entry in given]


def scene_images(data: Source, classifier: Classifier, entry: str, seed: int, split: str) -> tuple[Sample, tuple[int, int]]:
    """The images for scenes, and the size of the model's: as it takes them, or for an entry in pixels the set's own."""
    if entry not in ENTRIES and not entry.isdecimal():
        raise unknown_name("entry", entry, [*ENTRIES, "224 (or another number of pixels)"])
    images = sample(data, classifier, n=EVERYTHING, seed=seed, split=split)
    if entry in ENTRIES or not isinstance(data, Dataset) or data.small is None:
        return images, images.size
    return sample(data.as_small(), classifier, n=EVERYTHING, seed=seed, split=split), images.size


def entry_model(
    classifier: Classifier, own: tuple[int, int], scene: tuple[int, int], entry: str
) -> tuple[Classifier | NoNativeEntryError, tuple[int, int] | None]:
    """The model for an entry, or the reason why there is none, and the size to which scenes are resized (None: as is)."""
    if entry == "resize":
        return classifier, own
    size = scene
    if entry != "native":
        side = int(entry)
        if side < max(scene):
            raise SoftbiasError(
                f"the entry {side} enlarges scenes, but they have {scene[0]} × {scene[1]} px; take a larger number, or resize"
            )
        size = (round(side * scene[0] / max(scene)), round(side * scene[1] / max(scene)))
    try:
        ready: Classifier | NoNativeEntryError = classifier if size == own else at_size(classifier, size)
    except NoNativeEntryError as error:
        ready = error
    return ready, None if entry == "native" else size


def in_parts(make: Callable[[range], Scenes], n: int, part: int) -> Iterator[Scenes]:
    for start in range(0, n, part):
        yield make(range(start, min(start + part, n)))


def matches(logits: Tensor, labels: Tensor) -> Tensor:
    """Which of the four true classes are among the four most likely.  # (n, K), (n, 4) -> (n, 4) of 0 and 1"""
    top = logits.topk(min(PARTS, logits.shape[1]), dim=1).indices
    return (labels[:, :, None] == top[:, None, :]).any(-1).long()


def as_arrays(images: Sample, probe: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    return images.images.permute(0, 2, 3, 1).numpy(), images.needed_labels(probe).numpy()


def as_tensor(scenes: Scenes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(scenes.images)).permute(0, 3, 1, 2).float() / 255


def count_classes(classifier: Classifier, images: Sample) -> int:
    return int(getattr(classifier.model, "num_classes", 0) or images.classes or 0)


def draw_combined(rows: Rows, folder: Path) -> list[Path]:
    """The histogram of matches, a panel per entry, with the chance level."""
    histograms = [row for row in rows if row["measure"] == "histogram"]
    if not histograms:
        return []
    entries = list(dict.fromkeys(row["entry"] for row in histograms))
    figure, grid = panels(len(entries), side=4.4, height=3.1)
    models = latest(rows)
    for axes, entry in zip(grid, entries, strict=True):
        for number, (name, of_model) in enumerate(models.items()):
            chosen = [row for row in of_model if row["entry"] == entry and row["measure"] == "histogram"]
            means = [row for row in of_model if row["entry"] == entry and row["measure"] == "top4_matching"]
            if not chosen:
                continue
            width = 0.8 / len(models)
            at = [row["matched"] + width * (number - (len(models) - 1) / 2) for row in chosen]
            spread = [row["high"] - row["value"] for row in chosen]
            label = f"{name}: {means[0]['value']:.2f} ± {means[0]['high'] - means[0]['value']:.2f}"
            axes.bar(at, [row["value"] for row in chosen], width, yerr=spread, color=hue(number), label=label)
        expected = [row["chance_level"] for row in histograms if row["entry"] == entry][: PARTS + 1]
        mean = sum(number * share for number, share in enumerate(expected))
        steps = [expected[0], *expected, expected[-1]]
        axes.step([-0.5, *range(5), 4.5], steps, where="mid", color="black", lw=1, ls=":", label=f"random: {mean:.2f}")
        axes.set_title(f"{entry} entry", fontsize=9)
        axes.set_xlabel("classes matched of four", fontsize=8)
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
        axes.legend(fontsize=7, frameon=False, loc="upper right")
    grid[0].set_ylabel("share of scenes", fontsize=8)
    return [save(figure, folder, "combined")]


def draw_background(rows: Rows, folder: Path) -> list[Path]:
    """Accuracy per entry; with several scales or positions, along these."""
    across = "scale" if len({row["scale"] for row in rows}) > 1 else "position"
    level = next((row["chance_level"] for row in rows if row.get("chance_level")), None)
    both = across == "scale" and len({row["position"] for row in rows}) > 1
    named = [{**row, "entry": f"{row['entry']} entry" + (f", {row['position']}" if both else "")} for row in rows]
    return draw_points(named, folder, "background", "entry", across, "accuracy", chance_level=level)


def draw_examples(
    data: Source,
    path: str | Path,
    *,
    kind: str = "combined",
    count: int = 12,
    seed: int = 0,
    split: str = "test",
    backgrounds: BackgroundSource = None,
    size: int | None = None,
) -> Path:
    """A figure of example scenes with their labels."""
    names = getattr(data, "class_names", None)
    images = sample(data, Classifier(nn.Identity(), "none", "unknown"), n=EVERYTHING, seed=seed, split=split)
    arrays, labels = as_arrays(images, kind)
    if kind == "combined":
        scenes = combined(arrays, labels, range(count), seed)
    else:
        behind = find_backgrounds(backgrounds, size or 4 * max(images.size))
        scenes = on_background(arrays, labels, behind.images, range(count), seed, size=size)
    figure, grid = panels(count, side=1.7, height=1.75 + 0.2 * (kind == "combined"))
    for axes, image, label in zip(grid, scenes.images, scenes.labels, strict=True):
        show_map(axes, image)
        words = [str(names[one]) if names else str(one) for one in np.atleast_1d(label)]
        lines = [words[:2], words[2:]] if len(words) == PARTS else [words]
        axes.set_title("\n".join(" · ".join(line) for line in lines), fontsize=6)
    path = Path(path)
    return save(figure, path.parent, path.stem)
