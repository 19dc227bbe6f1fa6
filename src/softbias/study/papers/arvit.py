"""The studies of ARViT: Table 1, and what a regularizer costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softbias.study.arms import Arm, Pretrain
from softbias.study.papers.named import Measurement, NamedStudy, Scale, number, smoke_recipe, study
from softbias.study.spec import StudySpec
from softbias.training.recipe import Recipe, find_recipe

PAPER = "L. H. B. Mormille: Vision transformers with Inductive Bias introduced through self-attention regularization"
SETS = ("cifar10", "cifar100", "flowers102", "imagenette", "imagewoof")
LAYERS = 6
TABLE: dict[str, tuple[float, ...]] = {  # Table 1, percent on SETS; the document's layers count from 1
    "ARViT-Base": (83.13, 76.27, 81.61, 91.18, 73.01),
    "ViT-Tiny": (73.30, 53.55, 73.91, 84.72, 61.77),
    "ARViT-L1": (82.02, 75.89, 80.12, 90.58, 72.92),
    "ARViT-L2": (83.63, 76.20, 81.27, 91.56, 74.81),
    "ARViT-L3": (84.76, 76.63, 83.08, 92.05, 75.90),
    "ARViT-L4": (83.31, 76.52, 81.98, 91.88, 75.24),
    "ARViT-L5": (83.70, 76.01, 81.21, 91.30, 73.46),
    "ARViT-L6": (79.81, 74.84, 79.14, 88.77, 70.44),
    "ARViT-R1-1": (88.29, 88.63, 85.58, 95.48, 82.31),
    "ARViT-R1-2": (86.99, 86.40, 85.15, 94.28, 79.61),
    "ARViT-R1-3": (87.17, 84.91, 85.33, 95.36, 82.20),
    "ARViT-R1-4": (87.54, 86.13, 85.31, 95.48, 82.93),
    "ARViT-R1-5": (88.45, 89.65, 85.82, 95.40, 82.70),
    "ARViT-R1-6": (87.55, 87.31, 85.15, 95.78, 81.15),
}
EPOCH = {"ARViT-Base": 1004, "distance": 1100, "similarity": 1124, "ViT-Tiny": 1365, "ViT-B": 6552}  # seconds: 16m44 … 1h49m12
NANO = {"patch_size": 8, "depth": LAYERS, "width": 32}


def before(scale: Scale, regularize: str | None) -> Pretrain:
    """Rotation pre-training, shared by the five fine-tunes of an arm and seed."""
    if scale == "smoke":
        recipe = smoke_recipe(steps=8, batch_size=16, objective="rotation", lr=1e-3)
    else:
        recipe = find_recipe("arvit-pretrain")
    if scale == "small":
        recipe = recipe.with_overrides({"lr": 3e-4, "warmup_epochs": 0, "epochs": 60, "compile": "off"})
    if regularize:
        recipe = recipe.with_overrides({"regularize": (regularize,)})
    return Pretrain(recipe, data="imagenette" if scale == "small" else "imagenet")


def table1(scale: Scale) -> StudySpec:
    """Base first: all others are compared with it. Distance on L1 to L6 and style on R1-1 to R1-6 are layers 0 to 5."""
    nano = NANO if scale == "smoke" else {}
    patch = {"patch_size": 8} if scale == "small" else {}
    base = "arvit_nano" if scale == "smoke" else "arvit_base"
    style = ("arvit_nano", nano) if scale == "smoke" else ("arvit_style", patch)
    vit = ("deit_nano", nano) if scale == "smoke" else ("arvit_vit_tiny", patch)
    tune: dict[str, Any] = {"finetune": "full"}
    arms = [Arm("ARViT-Base", base, {**nano, **patch}, pretrain=before(scale, None), **tune)]
    arms += [Arm("ViT-Tiny", *vit, pretrain=before(scale, None), **tune)]
    for layer in range(LAYERS):
        asked = before(scale, f"distance:layer={layer},weight=0.01")
        arms.append(Arm(f"ARViT-L{layer + 1}", base, {**nano, **patch}, pretrain=asked, **tune))
    for layer in range(LAYERS):
        arms.append(Arm(f"ARViT-R1-{layer + 1}", *style, pretrain=before(scale, f"style:layer={layer},weight=0.01"), **tune))
    if scale == "smoke":
        return study(scale, SETS, tuple(arms), smoke_recipe(steps=8), fractions=(0.1,))  # the raw-pixel baseline takes longest
    if scale == "small":
        notes = (
            "Small scale: pre-training on Imagenette instead of ImageNet, 64 px in patches of 8 instead of 256 in 16, "
            "60 epochs of pre-training and 10 of fine-tuning.",
        )
        recipe = finetuning(batch_size=320, lr=3e-4, epochs=10)
        return study(scale, SETS, tuple(arms), recipe, budget="epochs", data_options={"img_size": 64}, notes=notes)
    return study(scale, SETS, tuple(arms), finetuning(), budget="epochs", data_options={"img_size": 256})


def finetuning(**overrides: Any) -> Recipe:
    return find_recipe("arvit-finetune").with_overrides({"val_fraction": 0.0, "select": "last", **overrides})


def cost(scale: Scale) -> StudySpec:
    """One short training per arm, for speed and memory under the real loop; `after` times steps side by side."""
    nano = scale == "smoke"
    base, vit = ("arvit_nano", "deit_nano") if nano else ("arvit_base", "arvit_vit_tiny")
    options: dict[str, Any] = NANO if nano else {}
    large = ("deit_nano", {**NANO, "depth": 12, "width": 64}) if nano else ("deit_base", {})
    arms = (
        Arm("ARViT-Base", base, options),
        Arm("distance", base, options, recipe={"regularize": ("distance:layer=2,weight=0.01",)}),
        Arm("similarity", base, options, recipe={"regularize": ("style:layer=2,weight=0.01",)}),
        Arm("ViT-Tiny", vit, options),
        Arm("ViT-B", *large),
    )
    if nano:
        return study(scale, ("imagenet",), arms, smoke_recipe(steps=5))
    note = "Accuracy means nothing here: the runs are only long enough to be timed."
    if scale == "small":
        recipe = finetuning(steps=300, lr=1e-4)
        return study(scale, ("imagenette",), arms, recipe, data_options={"img_size": 256}, seeds=(0,), notes=(note,))
    recipe = finetuning(epochs=1, lr=1e-4)
    return study(scale, ("imagenet",), arms, recipe, budget="epochs", data_options={"img_size": 256}, notes=(note,))


def after_table1(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.analyses import pretraining

    return pretraining(folder)


def after_cost(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.measure import step_time

    batch, rounds = (8, 4) if scale == "smoke" else (80, 20)
    return [step_time(folder, device, batch, rounds, EPOCH, "ARViT-Base", "the document's epochs, on four GTX 2080 Ti")]


TABLE1 = NamedStudy(
    name="arvit-table1",
    title="ARViT: Table 1",
    question="Does a distance or a similarity loss on one attention layer during pre-training help on downstream sets, "
    "and on which layer?",
    source=f"{PAPER}: Table 1, “Comparison between the performance of ARViT on different downstream tasks when regularized "
    "with different methods and set-ups”.",
    can="all fourteen rows and five columns: rotation pre-training with either loss on each of the six layers (the "
    "document's L3 is layer 2 here), then fine-tuning; and the convergence of pre-training with and without a loss.",
    cannot="the document's accuracies as they were taken: its release re-splits training and test pictures at random after "
    "training, so they are likely inflated (CIFAR-100 above CIFAR-10); here the official test split is kept apart. "
    "ViT-Tiny's width is our reading (the document gives blocks and heads), the similarity rows have width 512 and 8 "
    "heads as released, so they differ from the base in more than the loss, and whether all weights were fine-tuned is "
    "our reading, too.",
    build=table1,
    published=tuple(
        number(data, arm, value, "ARViT, Table 1")
        for arm, values in TABLE.items()
        for data, value in zip(SETS, values, strict=True)
    ),
    after=after_table1,
)

COST = NamedStudy(
    name="arvit-cost",
    title="ARViT: what a regularizer costs",
    question="How much longer does a training step take with a distance or a similarity loss? How long do ViT-Tiny "
    "and ViT-B take?",
    source=f"{PAPER}: section 4.3, “Computational cost”: 16m44s per epoch without regularization, 18m20s with the distance "
    "loss, 18m44s with the similarity loss, 22m45s for ViT-Tiny, 1h49m12s for ViT-B.",
    can="the time of a training step of all five, taken side by side, and speed and memory under the real training loop.",
    cannot="the document's minutes, measured on four GTX 2080 Ti: compare ratios to the base. Here all five have the base's "
    "batch, and the similarity loss is timed on the base's width, so that the ratio shows the loss alone.",
    build=cost,
    beside=tuple(
        number("imagenet", arm, seconds, "ARViT, section 4.3: seconds per epoch", metric="epoch seconds")
        for arm, seconds in EPOCH.items()
    ),
    after=after_cost,
)
