"""Make src/softbias/models/soft_nano.safetensors and its card: make_backbone.py --cifar100 PATH --flowers PATH [--minutes 3]

The small weights that come with the package. `soft_nano` learns the 100 classes of CIFAR-100 and the 102 kinds of Flowers-102
together, as 202 classes, by softbias' own engine from a stated seed. Its head is left out, its other weights are written as
float16. The test splits of both sets are not trained on; the card states the accuracy there, of the rounded weights.

    --cifar100   the folder of the sheets (train_0.webp …, classes.json), a folder with images.npy and labels.npy (60,000
                 pictures in the official order, the last 10,000 for testing), or what softbias reads as cifar100
    --flowers    flowers102_96.npz or its folder, or what softbias reads as flowers102

The same command on the same machine makes the same weights if it gives --steps; --minutes depends on how fast the machine is,
and the card records the steps that it took.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

import softbias
from softbias.checksums import sha256
from softbias.data import load_dataset
from softbias.data.dataset import Dataset
from softbias.data.packs import resized_set
from softbias.environment import find_device
from softbias.errors import SoftbiasError
from softbias.files import replacing, write_text
from softbias.models import packaged
from softbias.models.cost import count_parameters
from softbias.models.weights import head_names
from softbias.runs.fit import Result
from softbias.training.batches import SplitImages
from softbias.training.display import Display
from softbias.training.evaluate import predict_probabilities

MODEL = "soft_nano"
LICENSE = "apache-2.0"
EPOCHS = 5000.0  # more than any number of minutes allows
RECIPE = {  # of a model that is too small to learn 50,000 images by heart: no more change than crops, flips and some color
    "batch_size": 512, "lr": 8e-3, "weight_decay": 0.05, "drop_path": 0.0, "smoothing": 0.1, "ema": 0.999, "randaugment": None,
    "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0, "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "val_fraction": 0.0,
    "select": "last", "class_weights": "none", "compile": "off",
}  # fmt: skip
CIFAR_TRAIN, CIFAR_ALL = 50_000, 60_000
TERMS = {
    "CIFAR-100": "no formal license; research use, cite Krizhevsky 2009",
    "Flowers-102": "none stated by its authors; research use, cite Nilsback and Zisserman 2008",
}
SOURCES = {
    "CIFAR-100": "https://www.cs.toronto.edu/~kriz/cifar.html",
    "Flowers-102": "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/",
}


@dataclass(frozen=True)
class Seen:
    """A set as it is trained on. splits: those that are for training; repeats: how often an epoch has each of their images."""

    name: str
    data: Dataset
    splits: tuple[str, ...]
    repeats: int = 1

    @property
    def train(self) -> NDArray[np.int64]:
        return np.concatenate([self.data.splits[split] for split in self.splits])

    @property
    def test(self) -> NDArray[np.int64]:
        return self.data.splits.get("test", np.empty(0, np.int64)) if "test" not in self.splits else np.empty(0, np.int64)


def main(words: list[str] | None = None) -> None:
    given = parse(words)
    try:
        make(given, [sys.argv[0], *sys.argv[1:]] if words is None else ["scripts/make_backbone.py", *words])
    except SoftbiasError as error:
        sys.exit(f"make_backbone: {error}")


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cifar100", type=Path, required=True)
    parser.add_argument("--flowers", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=packaged.weights_path(MODEL), help="the card is written beside it")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--minutes", type=float, help="of training")
    parser.add_argument("--steps", type=int, help="of training, instead of minutes")
    parser.add_argument("--img-size", type=int, default=32)
    parser.add_argument("--patch-size", type=int, default=8)
    parser.add_argument("--flowers-splits", default="train,val", help="for training, with commas (default: train,val)")
    parser.add_argument("--flowers-repeats", type=int, default=4, help="of a flower in an epoch: there are few (default: 4)")
    parser.add_argument("--limit", type=int, help="take only so many training pictures of each set, to try the command out")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another field of the recipe, repeated"
    )
    parser.add_argument("--revision", default="1", help="of the weights (default: 1)")
    parser.add_argument("--run", type=Path, help="keep the run of the training in this folder")
    return parser.parse_args(words)


def make(given: argparse.Namespace, command: list[str]) -> None:
    if (given.minutes is None) == (given.steps is None):
        raise SoftbiasError("give either --minutes or --steps")
    size = (given.img_size, given.img_size)
    sets = [
        Seen("CIFAR-100", resized_set(read_cifar100(given.cifar100), size, "crop"), ("train",)),
        Seen(
            "Flowers-102",
            resized_set(read_flowers(given.flowers), size, "crop"),
            tuple(given.flowers_splits.split(",")),
            given.flowers_repeats,
        ),
    ]
    data = joined(sets, given.limit)
    counts = ", ".join(f"{len(each.train):,} of {each.name}" for each in sets)
    print(f"{len(data.splits['train']):,} pictures an epoch ({counts}), {len(data.class_names)} classes", flush=True)
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = train(data, given, given.run or Path(folder) / "run")
        seconds = time.perf_counter() - started
        model: Any = result.model
        state = rounded(model)
        model.load_state_dict({**model.state_dict(), **state})
        classifier = result.run.classifier()
        mean, std = classifier.mean, classifier.std
        scores = test(model, data, sets, mean, std, find_device(given.device))
    head = head_names(model)
    kept = {name: tensor for name, tensor in state.items() if name not in head}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    with replacing(given.out) as temporary:
        save_file(kept, temporary, metadata={"format": "pt"})
    card = packaged.Card(
        model=MODEL, revision=given.revision, license=LICENSE, sha256=sha256(given.out), bytes=given.out.stat().st_size,
        parameters=count_parameters(model) - sum(model.state_dict()[name].numel() for name in head),
        img_size=given.img_size, patch_size=given.patch_size,
        mean=tuple(round(float(each), 6) for each in mean), std=tuple(round(float(each), 6) for each in std),
        saw=tuple(
            packaged.SeenSet(each.name, ", ".join(each.splits), len(each.train), TERMS[each.name], SOURCES[each.name], *score)
            for each, score in zip(sets, scores, strict=True)
        ),
        command=shlex.join(["python", *shortened(command)]),
        made_with=made_with(given, result, seconds),
    )  # fmt: skip
    write_text(packaged.card_path(given.out), json.dumps(card.to_dict(), indent=2) + "\n")
    print(json.dumps(card.to_dict(), indent=2))


def read_cifar100(path: Path) -> Dataset:
    if (path / "images.npy").is_file() and (path / "labels.npy").is_file():
        images, labels = np.load(path / "images.npy", mmap_mode="r"), np.load(path / "labels.npy").astype(np.int64)
        if images.shape != (CIFAR_ALL, 32, 32, 3) or labels.shape != (CIFAR_ALL,):
            raise SoftbiasError(f"{path} must hold {CIFAR_ALL:,} pictures of CIFAR-100, but has {images.shape}, {labels.shape}")
        splits = {"train": np.arange(CIFAR_TRAIN), "test": np.arange(CIFAR_TRAIN, CIFAR_ALL)}
        return Dataset("cifar100", images, labels, tuple(f"class {label}" for label in range(100)), splits)
    return load_dataset("cifar100", data_dir=path, download=False)


def read_flowers(path: Path) -> Dataset:
    return load_dataset("flowers102", data_dir=path.parent if path.is_file() else path, download=False)


def joined(sets: list[Seen], limit: int | None) -> Dataset:
    """One set with the classes of all; it has the training images of each as often as `repeats` says, then the test images."""
    images, labels, names, train, test = [], [], list[str](), list[int](), list[int]()
    count = 0
    for each in sets:
        chosen = each.train if limit is None else each.train[:: max(1, len(each.train) // limit)]
        for part, indices in ((train, np.tile(chosen, each.repeats)), (test, each.test)):
            images.append(each.data.images[indices])
            labels.append(each.data.labels[indices] + len(names))
            part += range(count, count + len(indices))
            count += len(indices)
        names += [f"{each.name}: {name}" for name in each.data.class_names]
    splits = {"train": np.array(train), "test": np.array(test, np.int64)}
    return Dataset("cifar100-flowers102", np.concatenate(images), np.concatenate(labels), tuple(names), splits)


def train(data: Dataset, given: argparse.Namespace, out: Path) -> Result:
    more = dict(each.split("=", 1) for each in given.set)
    wished = {name: json.loads(value) if value[:1] in "[-0123456789" else value for name, value in more.items()}
    length: dict[str, Any] = {"steps": given.steps} if given.steps else {"epochs": EPOCHS, "warmup_epochs": 2.0}
    without_test = data.with_splits({"train": data.splits["train"]})  # what was not trained on is scored once, at the end
    return softbias.fit(
        without_test, MODEL, "soft", start="scratch", seed=given.seed, out=out, minutes=given.minutes, device=given.device,
        model_options={"patch_size": given.patch_size}, baseline=False, page=False, trackers=(), display=Printed(), keep="last",
        **{**RECIPE, **length, **wished},
    )  # fmt: skip


class Printed(Display):
    def message(self, text: str) -> None:
        print(text, flush=True)


def rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights as float16; counters stay whole numbers."""
    found = {}
    for name, tensor in model.state_dict().items():
        value = tensor.detach().cpu()
        found[name] = (value.half() if value.is_floating_point() else value).contiguous()
        if not torch.isfinite(found[name].float()).all():
            raise SoftbiasError(f"{name} does not fit into float16, or the training diverged")
    return found


def test(
    model: torch.nn.Module, data: Dataset, sets: list[Seen], mean: Any, std: Any, device: str
) -> list[tuple[float | None, int | None]]:
    """Accuracy among all classes, and number of test images, for each set."""
    found: list[tuple[float | None, int | None]] = []
    start = 0
    for each in sets:
        count = len(each.test)
        indices = data.splits["test"][start : start + count]
        start += count
        if not count:
            found.append((None, None))
            continue
        images = SplitImages(data, indices, torch.device(device))
        probabilities, labels = predict_probabilities(model.to(device), images, mean, std)
        found.append((round(float((probabilities.argmax(1) == labels).mean()), 4), count))
    return found


def shortened(command: list[str]) -> list[str]:
    """The command without the folders of this machine."""
    words = ["scripts/make_backbone.py"]
    hidden = {"--cifar100": "CIFAR100", "--flowers": "FLOWERS"}
    iterator = iter(command[1:])
    for word in iterator:
        name, _, value = word.partition("=")
        if name in ("--out", "--run"):
            if not value:
                next(iterator)
        elif name in hidden:
            if not value:
                next(iterator)
            words += [name, hidden[name]]
        else:
            words.append(word)
    return words


def made_with(given: argparse.Namespace, result: Result, seconds: float) -> str:
    device = find_device(given.device)
    name = torch.cuda.get_device_name() if device == "cuda" else platform.machine()
    versions = f"softbias {softbias.__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    return f"{versions}, {name}, {result.summary.get('steps', 'unknown')} steps in {seconds:.0f} s"


if __name__ == "__main__":
    main()
