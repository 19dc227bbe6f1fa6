"""The studies of ARViT: Table 1, smaller pre-training sets, and what a regularizer costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from softbias.study.arms import Arm, Pretrain
from softbias.study.papers.named import Measurement, NamedStudy, Scale, number, smoke_recipe, study
from softbias.study.spec import StudySpec
from softbias.training.recipe import Recipe, find_recipe

PAPER = "L. H. B. Mormille: Vision transformers with Inductive Bias introduced through self-attention regularization"
ARTICLE = (
    "L. H. Mormille, C. Broni-Bediako, M. Atsumi: Regularizing self-attention on vision transformers with 2D spatial distance "
    "loss, Artificial Life and Robotics 27, 2022, abstract"
)
ORDER = (  # the article prints no accuracy of the three
    "“ARViT … outperforms a similar capacity Vision Transformer by large margins on all tasks (up to 24%). When comparing with "
    "large-scale self-supervised vision transformers, ARViT also outperforms the SiT …, but still underperforms when compared "
    "to MoCo … and DINO …”"
)
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
BASE, BASE_512, VIT = "ARViT-Base", "ARViT-Base 512/8", "ViT-Tiny"
SHARES = (0.1, 0.3, 1.0)  # of the pre-training pictures
EPOCH = {"ARViT-Base": 1004, "distance": 1100, "similarity": 1124, "ViT-Tiny": 1365, "ViT-B": 6552}  # seconds: 16m44 … 1h49m12
NANO = {"patch_size": 8, "depth": LAYERS, "width": 32}
MODELS = ("arvit_base", "arvit_style", "arvit_vit_tiny")


def before(scale: Scale, regularize: str | None, share: float = 1.0) -> Pretrain:
    """Rotation pre-training, shared by the fine-tunes of an arm and seed; with fewer pictures it takes as many steps."""
    if scale == "smoke":
        recipe = smoke_recipe(steps=8, batch_size=16, objective="rotation", lr=1e-3)
    else:
        recipe = find_recipe("arvit-pretrain")
    if scale == "small":
        recipe = recipe.with_overrides({"lr": 3e-4, "warmup_epochs": 0, "epochs": 60, "compile": "off"})
    if recipe.steps is None and share < 1:
        recipe = recipe.with_overrides({"epochs": round(recipe.epochs / share, 3)})
    if regularize:
        recipe = recipe.with_overrides({"regularize": (regularize,)})
    return Pretrain(recipe, data="imagenette" if scale == "small" else "imagenet", train_fraction=share)


def table_rows(scale: Scale) -> dict[str, tuple[str, dict[str, Any], str | None]]:
    """The rows of Table 1: model, options, and the loss of pre-training. The document's layers count from 1.

    The similarity rows are 512 wide with 8 heads, so they have a base of their own, which the document lacks.
    """
    nano: dict[str, Any] = NANO if scale == "smoke" else {"patch_size": 8} if scale == "small" else {}
    wide = {**nano, "width": 64} if scale == "smoke" else nano
    base, style, vit = ("arvit_nano", "arvit_nano", "deit_nano") if scale == "smoke" else MODELS
    rows: dict[str, tuple[str, dict[str, Any], str | None]] = {BASE: (base, nano, None), VIT: (vit, nano, None)}
    rows |= {f"ARViT-L{layer + 1}": (base, nano, f"distance:layer={layer},weight=0.01") for layer in range(LAYERS)}
    rows |= {BASE_512: (style, wide, None)}
    rows |= {f"ARViT-R1-{layer + 1}": (style, wide, f"style:layer={layer},weight=0.01") for layer in range(LAYERS)}
    return rows


def table1(scale: Scale) -> StudySpec:
    """Base first: all others are compared with it."""
    return finetuned(scale, table_arms(scale, finetune="full"))


def table1_head(scale: Scale) -> StudySpec:
    """The same pre-trainings, in the same folder: whichever of the two studies comes first does them."""
    epochs = {"smoke": {}, "small": {"epochs": 15.0}, "paper": {"epochs": 90.0}}[scale]
    return on_the_same_runs(scale, table_arms(scale, finetune="linear", recipe=epochs))


def table_arms(scale: Scale, **more: Any) -> tuple[Arm, ...]:
    return tuple(
        Arm(name, model, options, pretrain=before(scale, loss), **more)
        for name, (model, options, loss) in table_rows(scale).items()
    )


def less_pretraining(scale: Scale) -> StudySpec:
    """The base, the best row of each loss in the document, the base of the second, and ViT-Tiny: 10, 30 and 100 %."""
    rows = table_rows(scale)
    chosen = (BASE, "ARViT-L3", BASE_512, "ARViT-R1-5", VIT)
    arms = []
    for share in sorted(SHARES, reverse=True):
        for name in chosen:
            model, options, loss = rows[name]
            named = f"{name}, {100 * share:g} %"
            arms.append(Arm(named, model, options, pretrain=before(scale, loss, share), finetune="full"))
    return on_the_same_runs(scale, tuple(arms))


def on_the_same_runs(scale: Scale, arms: tuple[Arm, ...]) -> StudySpec:
    return replace(finetuned(scale, arms), store=f"../arvit-table1-{scale}/runs")


def finetuned(scale: Scale, arms: tuple[Arm, ...]) -> StudySpec:
    if scale == "smoke":
        return study(scale, SETS, arms, smoke_recipe(steps=8), fractions=(0.1,))  # the raw-pixel baseline takes longest
    if scale == "small":
        notes = (
            "Small scale: pre-training on Imagenette instead of ImageNet, 64 px in patches of 8 instead of 256 in 16, "
            "60 epochs of pre-training and 10 of fine-tuning (15 of the head alone).",
        )
        recipe = finetuning(batch_size=320, lr=3e-4, epochs=10)
        return study(scale, SETS, arms, recipe, budget="epochs", data_options={"img_size": 64}, notes=notes)
    return study(scale, SETS, arms, finetuning(), budget="epochs", data_options={"img_size": 256})


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
    from softbias.study.papers.gaps import gaps_to

    to_vit = dict.fromkeys((*(arm for arm in TABLE if arm != VIT), BASE_512), VIT)
    to_base = {arm: BASE_512 if arm.startswith("ARViT-R") else BASE for arm in TABLE if arm not in (BASE, VIT)}
    about = f"{PUBLISHED} They are all differences to {BASE}: the document has no base of 512/8."
    gaps = gaps_to(folder, to_vit, table_gaps(VIT), (f"The gap to {VIT}", "gap_to_vit"), PUBLISHED)
    gaps += gaps_to(folder, to_base, table_gaps(BASE), ("What a loss adds to its own base", "gap_to_base"), about)
    return [*gaps, *pretraining(folder)]


def table_gaps(other: str) -> dict[str, dict[str, float]]:
    """Set -> row of Table 1 -> points above another row."""
    return {
        data: {arm: round(values[index] - TABLE[other][index], 2) for arm, values in TABLE.items()}
        for index, data in enumerate(SETS)
    }


def after_less_pretraining(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.gaps import pretraining_shares

    return pretraining_shares(folder)


def minutes(seconds: int) -> str:
    """
    >>> minutes(1004), minutes(6552)
    ('16m44s', '1h49m12s')
    """
    hours = f"{seconds // 3600}h" if seconds >= 3600 else ""
    return f"{hours}{seconds % 3600 // 60}m{seconds % 60:02d}s"


def after_cost(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.measure import step_time

    batch, rounds = (8, 4) if scale == "smoke" else (80, 20)
    return [step_time(folder, device, batch, rounds, EPOCH, "ARViT-Base", "the document's epochs, on four GTX 2080 Ti")]


PUBLISHED = "Open diamonds: differences between rows of the document's Table 1."
SOURCE = (
    f"{PAPER}: Table 1, “Comparison between the performance of ARViT on different downstream tasks when regularized with "
    f"different methods and set-ups”; section 4.2.1 on the gap to {VIT}. {ARTICLE}: {ORDER}"
)
ROWS = (
    "all fourteen rows and five columns: rotation pre-training with either loss on each of the six layers (the document's L3 "
    f"is layer 2 here); a base of the similarity rows' own width; the gap to {VIT}; and the convergence of pre-training with "
    "and without a loss."
)
UNLIKE = (
    "the document's accuracies as they were taken: its release re-splits training and test pictures at random after training, "
    "so they are likely inflated (CIFAR-100 above CIFAR-10); here the official test split is kept apart. ViT-Tiny's width is "
    "our reading (the document gives blocks and heads). The similarity rows have width 512 and 8 heads as released, so they "
    f"differ from {BASE} in more than the loss, and from {BASE_512} in the loss alone. SiT, MoCo and DINO are not trained "
    "here: the article gives their order and no numbers."
)
NUMBERS = tuple(
    number(data, arm, value, "ARViT, Table 1")
    for arm, values in TABLE.items()
    for data, value in zip(SETS, values, strict=True)
)

TABLE1 = NamedStudy(
    name="arvit-table1",
    title="ARViT: Table 1",
    question="Does a distance or a similarity loss on one attention layer during pre-training help on downstream sets, "
    "and on which layer?",
    source=SOURCE,
    can=f"with all weights fine-tuned, {ROWS}",
    cannot=f"{UNLIKE} Whether all weights were fine-tuned is not stated; the release trains the head alone, as "
    "arvit-table1-head does.",
    build=table1,
    published=NUMBERS,
    after=after_table1,
)

TABLE1_HEAD = NamedStudy(
    name="arvit-table1-head",
    title="ARViT: Table 1, the head alone fine-tuned",
    question="Does a loss on one attention layer during pre-training make features that help on downstream sets?",
    source=SOURCE,
    can=f"with the head alone fine-tuned, as the release does it, {ROWS}",
    cannot=f"{UNLIKE} The release trains the head for 30 and then for 60 epochs; here it is one schedule of 90 (15 at small "
    "scale).",
    build=table1_head,
    published=NUMBERS,
    after=after_table1,
)

LESS_PRETRAINING = NamedStudy(
    name="arvit-pretraining",
    title="ARViT: smaller pre-training sets",
    question="Does regularized attention need fewer pictures for pre-training?",
    source=f"{PAPER}: section 1.2, first aim: “to improve its ability to generalize well when pre-trained on smaller volumes "
    "of data”; abstract: “especially on models pre-trained on mid-size datasets”.",
    can=f"accuracy after pre-training on 10, 30 and 100 % of the pictures, in equal steps: {BASE}, the document's best layer "
    f"of each loss, a base of the similarity row's own width, and {VIT}.",
    cannot="a comparison with the document, which states this aim and pre-trains on all of ImageNet only.",
    build=less_pretraining,
    after=after_less_pretraining,
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
    metric="step_time",
    published=tuple(
        number(
            "imagenet",
            arm,
            round(seconds / EPOCH[BASE], 3),
            f"ARViT, section 4.3: {minutes(seconds)} against {minutes(EPOCH[BASE])} an epoch",
            metric="step_time",
        )
        for arm, seconds in EPOCH.items()
    ),
    beside=tuple(
        number("imagenet", arm, seconds, "ARViT, section 4.3: seconds per epoch", metric="epoch seconds")
        for arm, seconds in EPOCH.items()
    ),
    after=after_cost,
)
