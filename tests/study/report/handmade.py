"""Studies made by hand, in moments: run directories as `fit` would leave them; and a report's page as a reader sees it."""

import json
import re
from html import unescape
from pathlib import Path

import numpy as np
import yaml

from softbias.runs.predictions import Predictions
from softbias.runs.spec import RunSpec, write_config
from softbias.training.evaluate import score
from softbias.training.recipe import Recipe

CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SKILL = {"deit_nano": 0.55, "convit_nano": 0.60, "ibit_nano": 0.70}
ENVIRONMENT = {
    "softbias": "0.1.0",
    "git": "abc",
    "python": "3.11",
    "torch": "2.15",
    "device": "cpu",
    "hardware": "x",
    "threads": 1,
}
TESTED = np.arange(5000, 5200)  # pictures of the embedded set, of class k mod 10


def make_run(folder, model, fraction, seed, *, data="fashion", n=200, names=CLASSES, val=True, baseline=0.5):
    """A run directory as `fit` would leave it, with predictions as good as the model's skill."""
    generator = np.random.default_rng([len(model), round(100 * fraction), seed])
    index = TESTED[:n]
    labels = index % 10
    skill = SKILL.get(model, 0.5) + 0.08 * np.log10(10 * fraction) + 0.005 * seed
    hard = np.random.default_rng(7).random(n)  # the same pictures are hard for all
    right = hard + generator.normal(0, 0.1, n) < skill
    predicted = np.where(right, labels, (labels + generator.integers(1, 10, n)) % 10)
    probabilities = (0.9 * np.eye(10)[predicted] + 0.01).astype(np.float32)
    spec = RunSpec(data, model, Recipe(), seed=seed, train_fraction=fraction)
    run = folder / f"{model}-{100 * fraction:g}-{seed}-{spec.id}"
    run.mkdir(parents=True)
    summary = {
        "status": "finished", "id": spec.id, "data": data, "model": model, "seed": seed, "train_fraction": fraction,
        "objective": "supervised", "pretext": False, "parameters": 200_000 + len(model),
        "macs": 3_600_000, "steps": 100, "epochs": 4.0,
        "pictures": {"train": round(5000 * fraction), "val": 0}, "img_size": [32, 32], "seconds": 12.5,
        "images_per_second": 900.0 + len(model), "peak_memory": 2**29 + len(model) * 2**20, "notes": [],
        "test": score(probabilities, labels, names),
        "baseline": {"name": "pixels", "accuracy": baseline, "accuracy_interval": [baseline - 0.05, baseline + 0.05]},
    }  # fmt: skip
    (run / "summary.json").write_text(json.dumps(summary))
    rows = [{"event": "epoch", "epoch": e, "step": 25 * e, "loss": 2 / e, "accuracy": 0.2 * e} for e in (1, 2, 3, 4)]
    rows = [row | ({"val_accuracy": 0.15 * row["epoch"]} if val else {}) for row in rows]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "environment.json").write_text(json.dumps(ENVIRONMENT))
    (run / "config.yaml").write_text(write_config(spec))
    Predictions(index, labels, probabilities).write(run / "predictions.npz")
    return run


def make_study(folder, models=tuple(SKILL), fractions=(0.1, 0.3, 1.0), seeds=3, study=None, **options):
    for model in models:
        for fraction in fractions:
            for seed in range(seeds):
                make_run(folder / "runs", model, fraction, seed, **options)
    plain = {"name": "mine", "data": [options.get("data", "fashion")], "arms": list(models), "fractions": list(fractions)}
    plain |= {"seeds": seeds, "budget": "steps", **(study or {})}
    (folder / "study.yaml").write_text(yaml.safe_dump(plain))
    return folder


def html_of(page: Path) -> str:
    """The page without its script and its style."""
    return re.sub(r"<(script|style)>.*?</\1>", "", page.read_text(), flags=re.S)


def groups_of(page: Path, chart: str, kind: str) -> list[tuple[list[str], list]]:
    """Classes and points, as [x, y, text], of the series of a kind in a chart, as it is drawn for a wide page."""
    drawn = page.read_text().split(f'data-chart="{chart}"')[1].split("</figure>")[0].split('class="plot slim"')[0]
    found = re.findall(rf'<g class="(k-{kind} [^"]*)"(?: data-points="([^"]*)")?>', drawn)
    return [(names.split(), json.loads(unescape(points or "[]"))) for names, points in found]


def text_of(page: Path) -> str:
    """What a reader sees, with simple spaces."""
    bare = re.sub(r"<[^>]+>", " ", html_of(page))
    return re.sub(r"\s+", " ", unescape(bare))
