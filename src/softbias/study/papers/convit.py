"""The studies of ConViT: sample efficiency, sizes, and the role of locality."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softbias.study.arms import Arm
from softbias.study.papers.named import Measurement, NamedStudy, Scale, number, small_recipe, smoke_recipe, study
from softbias.study.spec import StudySpec
from softbias.training.recipe import find_recipe

PAPER = (
    "S. d'Ascoli, H. Touvron, M. Leavitt, A. Morcos, G. Biroli, L. Sagun: ConViT: Improving Vision Transformers with Soft "
    "Convolutional Inductive Biases, ICML 2021, as the slides by Y. J. Choi print it"
)
FRACTIONS = (0.05, 0.1, 0.3, 0.5, 1.0)
GAPS = {"accuracy": (37, 24, 12, 5, 2), "top5": (22, 12, 5, 2, 1)}  # relative, percent at FRACTIONS
EFFICIENCY = {  # arm -> metric -> percent at FRACTIONS
    "DeiT": {"accuracy": (34.8, 48.0, 66.1, 74.6, 79.9), "top5": (57.8, 71.5, 86.0, 91.8, 95.0)},
    "ConViT": {"accuracy": (47.8, 59.6, 73.7, 78.2, 81.4), "top5": (70.7, 80.3, 90.7, 93.8, 95.8)},
}
PRINTED_COST = {  # size -> million parameters of DeiT and of ConViT, and "flops" in 10⁹ of both
    "Ti": (6, 6, 1, 1), "Ti+": (10, 10, 2, 2), "S": (22, 27, 4.3, 5.4), "S+": (48, 48, 10, 10), "B": (86, 86, 17, 17),
    "B+": (152, 152, 30, 30),
}  # fmt: skip
QUOTED = ("DeiT-Ti", "DeiT-S", "DeiT-B")  # from DeiT's authors, who trained them by their own recipe
PUBLISHED_SIZES: dict[str, tuple[float, float | None, float]] = {  # arm -> top-1, top-5, images/s
    "DeiT-Ti": (72.2, None, 1442), "ConViT-Ti": (73.1, 91.7, 734), "DeiT-Ti+": (75.9, 93.2, 1036),
    "ConViT-Ti+": (76.7, 93.6, 625), "DeiT-S": (79.8, None, 587), "ConViT-S": (81.3, 95.7, 305),
    "DeiT-S+": (79.0, 94.4, 480), "ConViT-S+": (82.2, 95.9, 382), "DeiT-B": (81.8, None, 187),
    "ConViT-B": (82.4, 95.9, 141), "DeiT-B+": (77.5, 93.5, 114), "ConViT-B+": (82.5, 95.9, 96),
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "DeiT-Ti": ("deit_tiny", {}), "ConViT-Ti": ("convit_tiny", {}),
    "DeiT-Ti+": ("deit_tiny", {"width": 256, "heads": 4}), "ConViT-Ti+": ("convit_tiny_plus", {}),
    "DeiT-S": ("deit_small", {}), "ConViT-S": ("convit_small", {}),
    "DeiT-S+": ("deit_small", {"width": 576, "heads": 9}), "ConViT-S+": ("convit_small_plus", {}),
    "DeiT-B": ("deit_base", {}), "ConViT-B": ("convit_base", {}),
    "DeiT-B+": ("deit_base", {"width": 1024, "heads": 16}), "ConViT-B+": ("convit_base_plus", {}),
}  # fmt: skip
OWN_RECIPE = "the slides' own setting, learning rate 0.0004 and batch 512 (recipe convit),"
NANO = {"patch_size": 8}  # 16 tokens of 32 pixels


def sample_efficiency(scale: Scale) -> StudySpec:
    models = {
        "smoke": ("deit_nano", "convit_nano"), "small": ("deit_tiny", "convit_tiny"), "paper": ("deit_small", "convit_small"),
    }[scale]  # fmt: skip
    options = NANO if scale == "smoke" else {}
    arms = tuple(Arm(name, model, options) for name, model in zip(EFFICIENCY, models, strict=True))
    recipe = {"smoke": smoke_recipe(), "small": small_recipe(), "paper": find_recipe("convit")}[scale]
    notes = {
        "small": ("Small scale: DeiT-Ti and ConViT-Ti on CIFAR-100 at 32 px stand in for the S models on ImageNet.",),
        "paper": (f"Paper scale: {OWN_RECIPE} for both. The slides' DeiT-S (79.9) is not the one of DeiT's authors (79.8).",),
    }
    data = "cifar100" if scale == "small" else "imagenet"
    return study(scale, (data,), arms, recipe, fractions=FRACTIONS, notes=notes.get(scale, ()))


def sizes(scale: Scale) -> StudySpec:
    if scale == "smoke":
        plain = {"Ti": NANO, "Ti+": {**NANO, "width": 96}}
        arms = [Arm(f"{kind}-{size}", f"{kind.lower()}_nano", plain[size]) for size in plain for kind in ("DeiT", "ConViT")]
        return study(scale, ("imagenet",), tuple(arms), smoke_recipe())
    names = [name for name in MODELS if scale == "paper" or "-B" not in name]
    if scale == "small":
        arms = [Arm(name, *MODELS[name]) for name in names]
        notes = ("Small scale: CIFAR-100 at 32 px, without the two largest sizes.",)
        return study(scale, ("cifar100",), tuple(arms), small_recipe(), notes=notes)
    arms = [Arm(name, *MODELS[name], recipe={"preset": "deit"} if name in QUOTED else {}) for name in names]
    notes = (
        f"Paper scale: {OWN_RECIPE} except for {', '.join(QUOTED)}, which the slides quote from DeiT's authors: 0.0005 and "
        "1024 (recipe deit).",
    )
    return study(scale, ("imagenet",), tuple(arms), find_recipe("convit"), notes=notes)


def locality(scale: Scale) -> StudySpec:
    """The first arm has no gated block, so that all others are compared with it. DeiT is there for its non-locality."""
    model, depth, strengths, blocks = {
        "smoke": ("convit_nano", 4, (0.5, 2.0), (1, 3)),
        "small": ("convit_tiny", 12, (0.5, 1.0, 2.0), (2, 6, 10)),
        "paper": ("convit_small", 12, (0.25, 0.5, 1.0, 2.0, 4.0), (2, 4, 6, 8, 10)),
    }[scale]
    shape = NANO if scale == "smoke" else {}
    arms = [Arm(f"no gated block of {depth}", model, {**shape, "gated_blocks": 0})]
    arms += [
        Arm(f"{count} gated, α = {strength:g}", model, {**shape, "gated_blocks": count, "strength": strength})
        for count in blocks
        for strength in strengths
    ]
    arms.append(Arm("DeiT", model.replace("convit", "deit"), shape))
    probes = {"probe_every": {"smoke": 1, "small": 5, "paper": 10}[scale]}
    held_out = {"val_fraction": 0.1, "select": "last"}  # learning curves need images that are not trained on
    if scale == "smoke":
        recipe = smoke_recipe(epochs=3, **held_out)
        return study(scale, ("imagenet100",), tuple(arms), recipe, fractions=(0.1,), budget="epochs", **probes)
    if scale == "small":
        notes = ("Small scale: CIFAR-100 at 32 px in place of ImageNet's first 100 classes.",)
        recipe = small_recipe(**held_out)
        return study(scale, ("cifar100",), tuple(arms), recipe, seeds=(0, 1), notes=notes, **probes)
    notes = (
        "Paper scale: imagenet100 is made from ImageNet: its first 100 classes in the order of their WordNet ids, n01440764 to "
        "n01855672. The slides say “the first 100 classes” and name no order.",
    )
    recipe = find_recipe("convit").with_overrides(held_out)
    return study(scale, ("imagenet100",), tuple(arms), recipe, data_options={"img_size": 224}, notes=notes, **probes)


def after_sample_efficiency(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.gaps import relative_gaps

    published = {metric: dict(zip(FRACTIONS, values, strict=True)) for metric, values in GAPS.items()}
    return [relative_gaps(folder, "ConViT", "DeiT", published, "the slides' gaps of the S models, on ImageNet")]


def after_sizes(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.gaps import model_costs
    from softbias.study.papers.measure import inference_speed

    costs = model_costs(folder, MODELS, {arm: (size, flops) for arm, size, flops in printed_costs()}, "the slides' figures")
    batch, rounds = (8, 5) if scale == "smoke" else (128, 20)
    published = {arm: speed for arm, (_, _, speed) in PUBLISHED_SIZES.items()}
    return [costs, inference_speed(folder, device, batch, rounds, published, "the slides' figures, on a Quadro GP100")]


def printed_costs() -> list[tuple[str, float, float]]:
    """Arm, million parameters, 10⁹ "flops", as the slides print them."""
    return [
        (f"{kind}-{name}", numbers[index], numbers[2 + index])
        for name, numbers in PRINTED_COST.items()
        for index, kind in enumerate(("DeiT", "ConViT"))
    ]


def after_locality(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.analyses import locality as analyze

    return analyze(folder, device, images=50 if scale == "smoke" else 1000)


SAMPLE_EFFICIENCY = NamedStudy(
    name="convit-sample-efficiency",
    title="ConViT: sample efficiency",
    question="How much does ConViT gain over DeiT when only 5, 10, 30, 50 or 100 % of the training pictures are used?",
    source=f"{PAPER}: table “Sample efficiency” (train size 5, 10, 30, 50, 100 %; DeiT and ConViT, top-1 and top-5).",
    can="both curves, top-1, top-5 and the relative gap, at equal steps; at paper scale 300 epochs with repeated "
    "augmentation ×3, RandAugment, mixup and CutMix.",
    cannot="whether the original took equal steps or equal epochs with less data (we assume equal steps), nor how it drew "
    "the smaller parts: ours are stratified and nested. The slides print one run per cell, without an interval.",
    build=sample_efficiency,
    published=tuple(
        number("imagenet", arm, value, f"ConViT, table “Sample efficiency”, {arm}-S", train_fraction=fraction, metric=metric)
        for arm, metrics in EFFICIENCY.items()
        for metric, values in metrics.items()
        for fraction, value in zip(FRACTIONS, values, strict=True)
    ),
    beside=tuple(
        number(
            "imagenet",
            "ConViT",
            value,
            f"ConViT, table “Sample efficiency”: Gap of ConViT-S over DeiT-S in {kind}, percent",
            train_fraction=fraction,
            metric=f"relative gap, {metric}",
        )
        for (metric, values), kind in zip(GAPS.items(), ("Top-1", "Top-5"), strict=True)
        for fraction, value in zip(FRACTIONS, values, strict=True)
    ),
    after=after_sample_efficiency,
)

SIZES = NamedStudy(
    name="convit-sizes",
    title="ConViT: sizes",
    question="Does ConViT stay ahead of DeiT from 6 to 152 million parameters, and what does it cost in speed?",
    source=f"{PAPER}: table “Results” (Ti to B+; heads, width, size, flops, speed, top-1, top-5).",
    can="all twelve models with their widths and heads, their accuracy, their sizes and operations beside the printed ones, "
    "and their speed here.",
    cannot="the slides' speeds, measured on a Quadro GP100 at batch 128: compare ratios, not images per second. The DeiT "
    "numbers of Ti, S and B are quoted there from DeiT's authors, so they are not from the same training. One figure of the "
    "slides has 16 × 16 patches of 14 px; the models here have 14 × 14 patches of 16 px, which the printed operations fit.",
    build=sizes,
    published=tuple(
        number("imagenet", arm, value, "ConViT, table “Results”", metric=metric)
        for arm, (top1, top5, _) in PUBLISHED_SIZES.items()
        for metric, value in (("accuracy", top1), ("top5", top5))
        if value is not None
    ),
    beside=tuple(
        number("imagenet", arm, speed, "ConViT, table “Results”: images/s on a Quadro GP100 at batch 128", metric="images/s")
        for arm, (_, _, speed) in PUBLISHED_SIZES.items()
    )
    + tuple(
        number("imagenet", arm, value, f"ConViT, table “Results”: {column}", metric=metric)
        for arm, *values in printed_costs()
        for metric, column, value in zip(("million parameters", "GFLOPs"), ("Size", "Flops"), values, strict=True)
    ),
    after=after_sizes,
)

LOCALITY = NamedStudy(
    name="convit-locality",
    title="ConViT: the role of locality",
    question="Does accuracy grow with the locality strength α and with the number of gated layers? Do gated layers escape "
    "locality while full attention seeks it?",
    source=f"{PAPER}: section “Investigating the role of locality”: “SA layers try to become local, GPSA layers escape "
    "locality”; final accuracy over locality strength and number of GPSA layers, and learning curves, on the first 100 "
    "classes of ImageNet.",
    can="final accuracy over strength × number of gated layers, learning curves per number of gated layers on held-out "
    "pictures, and the gates and the non-locality of every layer, of DeiT and of ConViT, over epochs.",
    cannot="a comparison number by number: the slides show these results as pictures only, and do not print the strengths "
    "they tried (ours are our choice). Non-locality is measured on each layer's own input, where the original's logging "
    "used raw patch embeddings.",
    build=locality,
    after=after_locality,
)
