"""Are trained convolutions a better start for gated heads? Writes a table of test accuracies.

    python scripts/measure_convolution_start.py TABLE.csv SEED [SEED …]

A `resnet_nano` learns CIFAR-100. Then it learns CIFAR-10 from 500 or 5,000 pictures, all weights: as it is, or with gated heads
in place of the last 3 × 3 convolution of each of its last two stages, which compute nearly the same at the start. Beside them
the same two networks with fresh weights. Rows are added to the table, so that parts can be measured side by side.
"""

from __future__ import annotations

import copy
import csv
import sys
import tempfile
from pathlib import Path

import torch
from torch import nn

import softbias
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.splits import nested_fraction
from softbias.models.convolution_heads import ConvolutionHeads, convert_convolutions
from softbias.training.acceleration import make_accelerator
from softbias.training.batches import Batches, SplitImages, channel_statistics
from softbias.training.checkpoint import Keep
from softbias.training.display import Display
from softbias.training.evaluate import evaluate_split
from softbias.training.loop import train
from softbias.training.plan import TrainingPlan
from softbias.training.recipe import Recipe, find_recipe

CONVOLUTIONS = ("layer3.0.conv2", "layer4.0.conv2")  # on 8 × 8 and 4 × 4 positions
STRENGTH = 8.0  # α of the heads: they differ from the convolution by 3e-3, and their positions can move
FRACTIONS = {500: 0.01, 5_000: 0.1}
RECIPE = {
    "epochs": 20, "batch_size": 64, "optimizer": "adamw", "lr": 0.002, "schedule": "one-cycle", "warmup_epochs": 1.0,
    "clip": 1.0, "val_fraction": 0.0, "select": "last", "smoothing": 0.0, "crop_padding": 0.125, "flip": 0.5,
}  # fmt: skip
LEARNED_STEPS, STEPS = 1500, 400
COLUMNS = ["arm", "images", "seed", "accuracy", "n", "gate"]  # n: test pictures; gate: its mean over heads at the end


def recipe(steps: int) -> Recipe:
    return find_recipe("quick").with_overrides({**RECIPE, "steps": steps})


def learned(seed: int) -> nn.Module:
    """The network after CIFAR-100, with a fresh head for ten classes."""
    with tempfile.TemporaryDirectory() as folder:
        model = softbias.fit(
            "cifar100", "resnet_nano", recipe(LEARNED_STEPS), seed=seed, out=Path(folder) / "run", start="scratch",
            device="cpu", baseline=False, page=False, trackers=(), display=Display(),
        ).model  # fmt: skip
    torch.manual_seed(seed)
    model.reset_classifier(10)
    return model


def fresh(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return softbias.create_model("resnet_nano", num_classes=10, img_size=32)


def with_heads(model: nn.Module) -> nn.Module:
    return convert_convolutions(model, CONVOLUTIONS, 32, strength=STRENGTH)


def accuracy(model: nn.Module, data: Dataset, fraction: float, seed: int) -> float:
    """The share of right answers on all test pictures, after training on a part of the others."""
    chosen = recipe(STEPS)
    accelerator = make_accelerator(chosen, "cpu")
    part = nested_fraction(data.labels, data.splits["train"], fraction, seed=0)
    mean, std = channel_statistics(data, part)
    images = SplitImages(data, part, accelerator.device, whole=False, size=data.img_size)
    batches = Batches(images, chosen, seed, len(data.class_names), mean, std)
    plan = TrainingPlan(accelerator, model, batches, None, None, None, None, Keep(best=False))
    train(plan, Display())
    _, _, score = evaluate_split(
        model, data, data.splits["test"], mean, std, objective=batches.objective, device=accelerator.device
    )
    return float(score["accuracy"])


def mean_gate(model: nn.Module) -> float | None:
    gates = [module.gate.detach().mean() for module in model.modules() if isinstance(module, ConvolutionHeads)]
    return float(torch.stack(gates).mean()) if gates else None


def add(table: Path, row: list[object]) -> None:
    begun = table.exists()
    with table.open("a", newline="") as file:
        csv.writer(file).writerows([row] if begun else [COLUMNS, row])


def main(table: Path, seeds: list[int]) -> None:
    data = load_dataset("cifar10")
    for seed in seeds:
        trained = learned(seed)
        for images, fraction in FRACTIONS.items():
            for arm, start in (("trained", trained), ("fresh", fresh(seed))):
                for kind, model in (("convolutions", copy.deepcopy(start)), ("heads", with_heads(start))):
                    found = accuracy(model, data, fraction, seed)
                    with table.open("a", newline="") as file:
                        csv.writer(file).writerow(
                            [f"{kind}, {arm}", images, seed, found, len(data.splits["test"]), mean_gate(model)]
                        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(seed) for seed in sys.argv[2:]])
