"""Combined and background, the probes of the ETH study: what becomes of a classifier when the scene is larger than its object.

combined     2 × 2 pictures of distinct classes. Top-4 matching = |top-4 predicted ∩ the four true|: mean and histogram.
             By chance 4 · 4 / K: each of the four is among four of K, 1.6 for ten classes, exactly.
background   a picture at a random place on a background of four times its side: accuracy; by chance 1 / K.

Both are reported for either entry: `resize` brings the scene to the model's size, `native` the model to the scene's.

The scenes outnumber the test pictures of a small set, so pictures stand in several of them. The interval accounts for it: it
is that of the pictures (cluster-robust) or of the scenes, whichever is wider. The column `pictures` says how many there were.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from softbias.classifier import Classifier
from softbias.data.scenes import PARTS, Scenes, combined, on_background
from softbias.data.textures import Backgrounds, load_backgrounds
from softbias.errors import SoftbiasError
from softbias.probes.entry import ENTRIES, NoNativeEntryError, at_size, enter
from softbias.probes.pictures import Pictures, Source, sample
from softbias.probes.rows import Row, Rows, Z, clustered_share, stamp

EVERYTHING = 10**9


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
    n: int = 5000,
    seed: int = 0,
    split: str = "test",
    entries: Sequence[str] = ENTRIES,
) -> Rows:
    """Top-4 matching on combined scenes: a mean per entry, and its histogram. Two passes per scene, one 4 × as large."""
    classifier, pictures = Classifier.of(model), sample(data, Classifier.of(model), n=EVERYTHING, seed=seed, split=split)
    images, labels = as_arrays(pictures, "combined")
    make = functools.partial(combined, images, labels, seed=seed)
    rows: Rows = []
    for entry, ready, size in entered(classifier, pictures.size, (2 * pictures.size[0], 2 * pictures.size[1]), entries):
        if ready is None:
            rows.append({"measure": "top4_matching", "unit": "classes", "entry": entry, **absent(size)})
            continue
        hits, sources = [], []
        for scenes in in_parts(make, n, 100 if entry == "resize" else 50):
            logits = enter(ready, as_pixels(scenes), size)
            hits.append(matches(logits, torch.from_numpy(scenes.labels)))
            sources.append(torch.from_numpy(scenes.sources))
        found, source = torch.cat(hits), torch.cat(sources)  # (n, 4)
        per_picture = clustered_share(found.flatten(), source.flatten())
        per_scene = Z * float(found.sum(1).double().std()) / math.sqrt(n)
        half = max(PARTS * (per_picture["high"] - per_picture["value"]), per_scene)
        value = float(found.sum(1).double().mean())
        chance = random_matching(classifier_classes(classifier, pictures))
        about: Row = {"unit": "classes", "entry": entry, "n": n, "pictures": per_picture["pictures"]}
        rows.append({"measure": "top4_matching", **about, "value": value, "low": value - half, "high": value + half})
        rows[-1]["chance"] = chance
        counts = torch.bincount(found.sum(1).long(), minlength=PARTS + 1)
        expected = random_histogram(classifier_classes(classifier, pictures))
        for number in range(PARTS + 1):
            right = (found.sum(1) == number).double()
            spread = Z * float(right.std()) / math.sqrt(n)
            value = float(counts[number]) / n
            edges = {"low": max(0.0, value - spread), "high": min(1.0, value + spread), "chance": expected[number]}
            rows.append({"measure": "histogram", **about, "unit": "share", "matched": number, "value": value, **edges})
    return stamp(classifier, "combined", rows, data=pictures.name)


def background_probe(
    model: nn.Module | Classifier,
    data: Source,
    *,
    n: int = 5000,
    seed: int = 0,
    split: str = "test",
    entries: Sequence[str] = ENTRIES,
    backgrounds: str | Path | Backgrounds | None = None,
    scales: Sequence[float] = (1.0,),
    places: Sequence[str] = ("random",),
    size: int | None = None,
) -> Rows:
    """Accuracy on pictures pasted on backgrounds, for every scale × place × entry. Two passes per scene, one 16 × as large."""
    classifier, pictures = Classifier.of(model), sample(data, Classifier.of(model), n=EVERYTHING, seed=seed, split=split)
    images, labels = as_arrays(pictures, "background")
    side = size or 4 * max(pictures.size)
    behind = backgrounds if isinstance(backgrounds, Backgrounds) else load_backgrounds(backgrounds, smallest=side)
    rows: Rows = []
    for entry, ready, entry_size in entered(classifier, pictures.size, (side, side), entries):
        for scale in scales:
            for place in places:
                about: Row = {"measure": "accuracy", "unit": "share", "entry": entry, "scale": scale, "place": place}
                about["backgrounds"] = behind.source
                if ready is None:
                    rows.append({**about, **absent(entry_size)})
                    continue
                make = functools.partial(
                    on_background, images, labels, behind.pictures, seed=seed, size=side, scale=scale, place=place
                )
                right, sources = [], []
                for scenes in in_parts(make, n, 50 if entry == "resize" else 10):
                    predicted = enter(ready, as_pixels(scenes), entry_size).argmax(-1)
                    right.append(predicted == torch.from_numpy(scenes.labels))
                    sources.append(torch.from_numpy(scenes.sources))
                found = clustered_share(torch.cat(right), torch.cat(sources))
                rows.append({**about, **found, "chance": 1 / classifier_classes(classifier, pictures)})
    return stamp(classifier, "background", rows, data=pictures.name)


def absent(why: Any) -> Row:
    return {"value": None, "low": None, "high": None, "n": 0, "note": str(why)}


def entered(
    classifier: Classifier, own: tuple[int, int], scene: tuple[int, int], entries: Sequence[str]
) -> Iterator[tuple[str, Classifier | None, Any]]:
    """Entry, the model made ready for it, and the size that scenes are brought to (or why it cannot be)."""
    for entry in entries:
        if entry not in ENTRIES:
            raise SoftbiasError(f"entries are {' and '.join(ENTRIES)}, but got {entry!r}")
        if entry == "resize":
            yield entry, classifier, own
            continue
        try:
            yield entry, at_size(classifier, scene), None
        except NoNativeEntryError as error:
            yield entry, None, error


def in_parts(make: Any, n: int, part: int) -> Iterator[Scenes]:
    for start in range(0, n, part):
        yield make(range(start, min(start + part, n)))


def matches(logits: Tensor, labels: Tensor) -> Tensor:
    """Which of the four true classes are among the four most likely.  # (n, K), (n, 4) -> (n, 4) of 0 and 1"""
    top = logits.topk(min(PARTS, logits.shape[1]), dim=1).indices
    return (labels[:, :, None] == top[:, None, :]).any(-1).long()


def as_arrays(pictures: Pictures, probe: str) -> tuple[Any, Any]:
    labels = pictures.needed_labels(probe)
    return pictures.images.permute(0, 2, 3, 1).numpy(), labels.numpy()


def as_pixels(scenes: Scenes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(scenes.images)).permute(0, 3, 1, 2).float() / 255


def classifier_classes(classifier: Classifier, pictures: Pictures) -> int:
    return int(getattr(classifier.model, "num_classes", 0) or pictures.classes or 0)


def draw_combined(rows: Rows, folder: Any) -> list[Any]:
    """The histogram of matches, a panel per entry, with what chance gives."""
    from softbias.probes.drawing import HUES, latest, panels, save

    shown = [row for row in rows if row["measure"] == "histogram"]
    if not shown:
        return []
    entries = list(dict.fromkeys(row["entry"] for row in shown))
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
            said = f"{name}: {means[0]['value']:.2f} ± {means[0]['high'] - means[0]['value']:.2f}"
            axes.bar(at, [row["value"] for row in chosen], width, yerr=spread, color=HUES[number % len(HUES)], label=said)
        chance = [row["chance"] for row in shown if row["entry"] == entry][: PARTS + 1]
        mean = sum(number * share for number, share in enumerate(chance))
        steps = [chance[0], *chance, chance[-1]]
        axes.step([-0.5, *range(5), 4.5], steps, where="mid", color="black", lw=1, ls=":", label=f"random: {mean:.2f}")
        axes.set_title(f"{entry} entry", fontsize=9)
        axes.set_xlabel("classes matched of four", fontsize=8)
        axes.set_ylim(0, 1.35 * axes.get_ylim()[1])
        axes.legend(fontsize=7, frameon=False, loc="upper right")
    grid[0].set_ylabel("share of scenes", fontsize=8)
    return [save(figure, folder, "combined")]


def draw_background(rows: Rows, folder: Any) -> list[Any]:
    """Accuracy per entry; with several scales or places, along these."""
    from softbias.probes.drawing import bars

    across = "scale" if len({row["scale"] for row in rows}) > 1 else "place"
    chance = next((row["chance"] for row in rows if row.get("chance")), None)
    both = across == "scale" and len({row["place"] for row in rows}) > 1
    named = [{**row, "entry": f"{row['entry']} entry" + (f", {row['place']}" if both else "")} for row in rows]
    return bars(named, folder, "background", "entry", across, "accuracy", chance=chance)


def sheet(
    data: Source,
    path: str | Path,
    *,
    kind: str = "combined",
    count: int = 12,
    seed: int = 0,
    split: str = "test",
    backgrounds: str | Path | Backgrounds | None = None,
    class_names: Sequence[str] | None = None,
    **options: Any,
) -> Path:
    """A picture of example scenes with their labels."""
    from softbias.probes.drawing import panels, picture, save

    names = class_names or getattr(data, "class_names", None)
    pictures = sample(data, NOBODY, n=EVERYTHING, seed=seed, split=split)
    images, labels = as_arrays(pictures, kind)
    if kind == "combined":
        scenes = combined(images, labels, range(count), seed)
    else:
        side = options.get("size") or 4 * max(pictures.size)
        behind = backgrounds if isinstance(backgrounds, Backgrounds) else load_backgrounds(backgrounds, smallest=side)
        scenes = on_background(images, labels, behind.pictures, range(count), seed, **options)
    figure, grid = panels(count, side=1.7, height=1.75 + 0.2 * (kind == "combined"))
    for axes, image, label in zip(grid, scenes.images, scenes.labels, strict=True):
        picture(axes, image)
        said = [str(names[one]) if names else str(one) for one in np.atleast_1d(label)]
        lines = [said[:2], said[2:]] if len(said) == PARTS else [said]
        axes.set_title("\n".join(" · ".join(line) for line in lines), fontsize=6)
    path = Path(path)
    return save(figure, path.parent, path.stem)


NOBODY = Classifier(nn.Identity(), "nobody", "unknown")
