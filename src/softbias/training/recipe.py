"""Recipes: how a model is trained, as frozen data. Nothing here imports torch, so that the command line starts quickly.

Presets state where they come from and, where we measured it, what to expect. Every field can be overridden, also on the
command line (`--recipe small --lr 1e-3 --flip 0`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_type_hints

from softbias.bounds import BatchSize, BlockCount, Count, Epochs, Length, NotWhole, ShortText, Side, Within
from softbias.data.augment import Augmentation
from softbias.errors import SoftbiasError, unknown_name
from softbias.schema import Checked, from_plain
from softbias.training.objectives import OBJECTIVES, list_objectives

Rate = Annotated[float, Within(0, 1000)]


@dataclass(frozen=True)
class Recipe(Checked):
    """Objective, optimizer, schedule, regularizers and augmentation.

    objective          one of `softbias.training.objectives`: "supervised"; without labels "rotation", "instances", "views"; or
                       one that was registered
    rotations          of the objective "rotation": "all" four of each image in a batch, or "one" at random
    epochs, steps      the length; steps, where given, overrides epochs. The last incomplete batch of an epoch is left out
    optimizer          "adamw", "adam", "sgd", or "muon" for the matrices of the blocks with "adamw" for the rest
    lr, lr_per         the learning rate; with lr_per it is lr · batch_size / lr_per
    layer_decay        the learning rate of block i is multiplied by layer_decay^(depth − i)
    frozen_blocks      number of first blocks that stay as they are, with the embeddings before them
    train_size         side of the images in training, where it differs from the model's own; with resized crops alone. Crops
                       show things larger than the images that a model is used on, so a smaller side here matches both
    head_start         "random", or "logistic": the head starts as a logistic regression on the features of the start
    schedule           "cosine" to min_lr, "one-cycle" (up for 30 %, then down), or "constant"; each after a linear warm-up
                       from warmup_lr over warmup_epochs (one-cycle has its own)
    weight_decay       not on vectors (biases, norms, gates) and embeddings
    clip               largest norm of the gradient, 0: any
    ema                decay of the averaged weights, which become the model; 0: none
    class_weights      what makes up for classes of different sizes (`balance`): "adjusted": the log of their shares is added to
                       outputs in training; "balanced": losses weigh by inverse frequency; "auto": adjusted where the classes
                       differ by more than 1:3; "none"
    val_fraction       share of the training images that choose the best epoch, where the set has no validation split
    select             the model is that of the "best" epoch on validation, or of the "last"
    patience           epochs without a better one before training stops; None: never
    precision          "auto": bf16 on a GPU that has it, otherwise fp32; fine-tuning chooses bf16 for CPUs that have it
    compile            "auto": on a GPU, where a run is long enough (see `training.plan.should_compile`)
    regularize         losses on attention maps, such as "distance:layer=2,weight=0.01" (see `softbias.regularizers`)
    """

    objective: ShortText = "supervised"
    rotations: Literal["all", "one"] = "all"
    epochs: Epochs = 100.0
    steps: Count | None = None
    batch_size: BatchSize = 256
    accumulate: BatchSize = 1
    optimizer: Literal["adamw", "adam", "sgd", "muon"] = "adamw"
    lr: Rate = 1e-3
    lr_per: BatchSize | None = None
    layer_decay: Annotated[float, Within(0, 1, above=True)] = 1.0
    frozen_blocks: BlockCount = 0
    train_size: Side | None = None
    head_start: Literal["random", "logistic"] = "random"
    betas: tuple[NotWhole, NotWhole] = (0.9, 0.999)
    weight_decay: Rate = 0.05
    schedule: Literal["cosine", "one-cycle", "constant"] = "cosine"
    warmup_epochs: Annotated[float, Within(0, 1_000_000)] = 5.0
    warmup_lr: Rate = 1e-6
    min_lr: Rate = 1e-5
    smoothing: NotWhole = 0.1
    drop_path: NotWhole = 0.0
    clip: Annotated[float, Within(0, 1_000_000)] = 0.0
    ema: NotWhole = 0.0
    class_weights: Literal["auto", "adjusted", "balanced", "none"] = "auto"
    val_fraction: NotWhole = 0.1
    select: Literal["best", "last"] = "best"
    patience: Count | None = None
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: Literal["auto", "on", "off"] = "auto"
    regularize: Annotated[tuple[ShortText, ...], Length(0, 1000)] = ()
    augmentation: Augmentation = field(default_factory=Augmentation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.objective not in OBJECTIVES and self.objective not in list_objectives():
            raise unknown_name("objective", self.objective, list_objectives())
        if self.batch_size % self.accumulate:
            raise SoftbiasError(f"accumulate={self.accumulate} must divide batch_size={self.batch_size}")
        if self.train_size is not None and self.augmentation.crop != "resized":
            raise SoftbiasError(
                f"train_size={self.train_size} goes with crop='resized', but crop is {self.augmentation.crop!r}"
            )

    def peak_lr(self) -> float:
        return self.lr * self.batch_size / self.lr_per if self.lr_per else self.lr

    def to_dict(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {name: plain_value(value) for name, value in plain.items()}

    @staticmethod
    def from_dict(given: Mapping[str, Any], where: str = "the recipe") -> Recipe:
        """The inverse of `to_dict`; `where` names the file in messages."""
        return from_plain(Recipe, from_yaml(given), where)

    def with_overrides(self, overrides: Mapping[str, Any]) -> Recipe:
        """Fields by name, those of the augmentation as "augmentation.flip" or plainly "flip".

        Epochs take the place of a number of steps that the recipe had.
        """
        inner = {f.name for f in dataclasses.fields(Augmentation)}
        outer = {f.name for f in dataclasses.fields(Recipe)}
        changes: dict[str, Any] = {}
        deeper: dict[str, Any] = {}
        for name, value in from_yaml(overrides).items():
            bare = name.removeprefix("augmentation.")
            if bare in inner and bare not in outer:
                deeper[bare] = tuple_value(value)
            elif name in outer:
                changes[name] = tuple_value(value)
            else:
                raise unknown_name("option of a recipe", name, outer | inner)
        if "epochs" in changes:
            changes.setdefault("steps", None)
        if deeper:
            changes["augmentation"] = replace(self.augmentation, **deeper)
        if deeper.get("crop", "resized") != "resized":  # train_size belongs to resized crops
            changes.setdefault("train_size", None)
        return replace(self, **changes)


def from_yaml(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a recipe as they were meant: YAML reads a bare `off` as false, and `1e-3` as text.

    >>> from_yaml({"compile": False, "lr": "1e-3"})
    {'compile': 'off', 'lr': 0.001}
    """
    plain = dict(given)
    if isinstance(plain.get("compile"), bool):
        plain["compile"] = "on" if plain["compile"] else "off"
    for name, kind in get_type_hints(Recipe).items():
        if kind is float and isinstance(plain.get(name), str):
            with suppress(ValueError):  # left as it is, it is refused by its name
                plain[name] = float(plain[name])
    return plain


def plain_value(value: Any) -> Any:
    """Tuples as lists, as YAML and JSON have them."""
    if isinstance(value, dict):
        return {name: plain_value(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def tuple_value(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


DEIT_AUGMENTATION = Augmentation(
    crop="resized", flip=0.5, randaugment="rand-m9-mstd0.5-inc1", erasing=0.25, erasing_value="noise", mixup=0.8, cutmix=1.0,
    repeats=3,
)  # fmt: skip

VIEW_AUGMENTATION = Augmentation(
    crop="resized", crop_scale=(0.2, 1.0), flip=0.5, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, grayscale=0.2,
)  # fmt: skip

RECIPES: dict[str, Recipe] = {
    "small": Recipe(
        epochs=240, batch_size=256, lr=5e-4, lr_per=256, weight_decay=0.06, warmup_epochs=10, drop_path=0.1, clip=1.0,
        ema=0.999,
        augmentation=Augmentation(
            crop="pad", fill="reflect", flip=0.5, rotate_degrees=10, translate=0.05, zoom=(0.9, 1.1),
            brightness=0.3, contrast=0.3, saturation=0.3, cutout=0.25, cutmix=1.0, mix_probability=0.5,
        ),
    ),
    "soft": Recipe(
        epochs=200, batch_size=512, optimizer="muon", lr=4e-3, weight_decay=0.1, drop_path=0.1, clip=1.0, ema=0.9995,
        augmentation=Augmentation(
            crop="pad", flip=0.5, randaugment="rand-m9-mstd0.5-inc1", erasing=0.25, erasing_value="noise",
            mixup=0.8, cutmix=1.0,
        ),
    ),
    "quick": Recipe(
        epochs=20, batch_size=64, optimizer="muon", lr=8e-3, schedule="one-cycle", smoothing=0.0, clip=1.0, val_fraction=0.0,
        select="last", augmentation=Augmentation(crop="pad", crop_padding=1 / 32, flip=0.5),
    ),
    "deit": Recipe(
        epochs=300, batch_size=1024, lr=5e-4, lr_per=512, drop_path=0.1, val_fraction=0.0, select="last",
        augmentation=DEIT_AUGMENTATION,
    ),
    "convit": Recipe(
        epochs=300, batch_size=512, lr=4e-4, lr_per=512, drop_path=0.1, val_fraction=0.0, select="last",
        augmentation=DEIT_AUGMENTATION,
    ),
    "ibit": Recipe(
        epochs=300, batch_size=1024, lr=1e-3, weight_decay=0.005, drop_path=0.1, val_fraction=0.0, select="last",
        augmentation=replace(DEIT_AUGMENTATION, mixup=0.0, cutmix=0.0),
    ),
    "arvit-pretrain": Recipe(
        objective="rotation", epochs=90, batch_size=80, lr=1e-4, schedule="one-cycle", smoothing=0.0, weight_decay=0.0,
        optimizer="adam", augmentation=Augmentation(crop="resized", crop_scale=(0.5, 1.0), flip=0.5),
    ),
    "views": Recipe(
        objective="views", epochs=200, batch_size=512, lr=2e-3, weight_decay=0.05, warmup_epochs=10, clip=1.0, ema=0.999,
        smoothing=0.0, val_fraction=0.0, select="last", augmentation=VIEW_AUGMENTATION,
    ),
    "instances": Recipe(
        objective="instances", epochs=400, batch_size=512, lr=2e-3, weight_decay=0.05, warmup_epochs=10, clip=1.0, ema=0.999,
        smoothing=0.0, val_fraction=0.0, select="last", augmentation=VIEW_AUGMENTATION,
    ),
    "arvit-finetune": Recipe(
        epochs=60, batch_size=80, lr=5e-4, schedule="one-cycle", smoothing=0.0, weight_decay=0.0, optimizer="adam",
        augmentation=Augmentation(crop="resized", crop_scale=(0.5, 1.0), flip=0.5),
    ),
    "finetune": Recipe(
        epochs=30, batch_size=64, lr=1e-3, warmup_epochs=3, min_lr=1e-6, clip=1.0, ema=0.99, val_fraction=0.0, select="last",
        drop_path=0.1,
        augmentation=Augmentation(
            crop="resized", crop_scale=(0.35, 1.0), flip=0.5, brightness=0.3, contrast=0.3, saturation=0.3, fill="reflect",
            mixup=0.2, cutmix=1.0, mix_probability=0.5,
        ),
    ),
    "eth": Recipe(
        epochs=80, batch_size=64, lr=1e-5, schedule="one-cycle", optimizer="adam", weight_decay=5e-4, smoothing=0.0,
        val_fraction=0.0, select="last", augmentation=Augmentation(crop="pad", flip=0.5),
    ),
}  # fmt: skip

ABOUT: dict[str, str] = {
    "small": "from scratch on small sets with AdamW, on a GPU",
    "soft": "from scratch on small sets with Muon: our default on a GPU",
    "quick": "a first look in a minute or two on a CPU",
    "deit": "ImageNet as DeiT's authors: cosine, RandAugment, mixup, CutMix, repeated augmentation",
    "convit": "ImageNet as ConViT's authors: DeiT's recipe with lr 4e-4 and batch 512",
    "ibit": "ImageNet as IBiT's paper: DeiT without mixup and CutMix",
    "arvit-pretrain": "ARViT's pretext task: which of four rotations",
    "views": "without labels: two views of a picture belong together; softbias pretrain --objective views",
    "instances": "without labels: every picture is a class of its own; softbias pretrain --objective instances",
    "arvit-finetune": "ARViT's fine-tuning of a pre-trained run; its release trains the head alone (--finetune linear)",
    "finetune": "all weights of a model that has learned from many pictures; on a CPU without its first blocks",
    "eth": "the ETH study's CIFAR-10 setting: Adam, one-cycle, maximum lr 1e-5",
}

MEASURED: dict[str, str] = {  # accuracy of a recipe, with n; the tables are in results/training.md
    "small": "CIFAR-10, convit_tiny, 32 px, one H200, bf16: 94.3 % [93.9, 94.8 over test pictures] in 7 minutes, with "
    "--epochs 390 --batch-size 1024 --val-fraction 0 --select last; 93.7 % [93.2, 94.1] with "
    "240 epochs (n = 1 seed each)",
    "soft": "soft_tiny, 32 px, one H200, bf16, --val-fraction 0 --select last: CIFAR-10 96.5 % [96.1, 96.8 over test pictures] "
    "(n = 3 seeds), CIFAR-100 81.6 % [80.7, 82.5 over seeds] (n = 3)",
    "finetune": "Flowers-102, deit_tiny pretrained, five folds, two CPU cores, bf16, --steps 430: 94.4 % [93.9, 94.9 over test "
    "pictures] in 6.6 minutes (n = 1 seed a fold); CIFAR-10, one H200, 20 epochs, all pictures mixed: 97.5 % [97.1, 97.8] in "
    "2.4 minutes (n = 1)",
    "quick": "fashion, soft_nano, one CPU core, --steps 680: 88.3 % [87.7, 88.8 over seeds] in 30 s (n = 5 seeds); "
    "see results/nano.md",
}


def find_recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise unknown_name("recipe", name, RECIPES)
    return RECIPES[name]
