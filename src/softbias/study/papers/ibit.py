"""The studies of IBiT: ImageNet, the ablation completed, scaling, and masks in the first blocks only."""

from __future__ import annotations

from typing import Any

from softbias.study.arms import Arm
from softbias.study.papers.named import NamedStudy, Scale, number, small_recipe, smoke_recipe, study
from softbias.study.spec import StudySpec
from softbias.training.recipe import Recipe, find_recipe

PAPER = "IBiT: Utilizing Inductive Biases to Create a More Data Efficient Attention Mechanism (anonymous authors, under review)"
NANO = {"patch_size": 8}
SMALL_NOTE = ("Small scale: CIFAR-100 at 32 px in place of ImageNet.",)
DATA: dict[Scale, tuple[str, ...]] = {"smoke": ("imagenet",), "small": ("cifar100",), "paper": ("imagenet",)}
FRACTIONS = (0.05, 0.25, 1.0)
LOGS = {"IBiT": (17.26, 61.03, 74.17), "DeiT": (17.40, 60.28, 71.45)}  # of the release, percent at FRACTIONS


def model(kind: str, scale: Scale, **options: Any) -> tuple[str, dict[str, Any]]:
    return f"{kind}_{'nano' if scale == 'smoke' else 'tiny'}", {**(NANO if scale == "smoke" else {}), **options}


def unmixed(scale: Scale, **overrides: Any) -> Recipe:
    """IBiT's recipe: no CutMix, no mixup."""
    if scale == "paper":
        return find_recipe("ibit").with_overrides(overrides)
    return smoke_recipe(**overrides) if scale == "smoke" else small_recipe(cutmix=0.0, **overrides)


def words(scale: Scale) -> dict[str, Any]:
    return {"notes": SMALL_NOTE} if scale == "small" else {}


def imagenet(scale: Scale) -> StudySpec:
    mixed = {"mixup": 0.8, "cutmix": 1.0}
    arms = (
        Arm("IBiT", *model("ibit", scale)),
        Arm("DeiT", *model("deit", scale), recipe=mixed),
        Arm("ConViT", *model("convit", scale), recipe=mixed),
    )
    return study(scale, DATA[scale], arms, unmixed(scale), **words(scale))


def ablation(scale: Scale) -> StudySpec:
    """One architecture in all four cells: without masks it is IBiT with masks in none of its blocks."""
    arms = tuple(
        Arm(name, *model("ibit", scale, **options), recipe=recipe)
        for name, options, recipe in (
            ("mask, no CutMix", {}, {}),
            ("mask, CutMix", {}, {"cutmix": 1.0}),
            ("no mask, CutMix", {"masked_blocks": 0}, {"cutmix": 1.0}),
            ("no mask, no CutMix", {"masked_blocks": 0}, {}),
        )
    )
    return study(scale, DATA[scale], arms, unmixed(scale), **words(scale))


def scaling(scale: Scale) -> StudySpec:
    arms = (
        Arm("IBiT", *model("ibit", scale)),
        Arm("DeiT", *model("deit", scale), recipe={"mixup": 0.8, "cutmix": 1.0}),
    )
    recipe = unmixed(scale, epochs=1) if scale == "smoke" else unmixed(scale)
    return study(scale, DATA[scale], arms, recipe, fractions=FRACTIONS, budget="epochs", **words(scale))


def depth(scale: Scale) -> StudySpec:
    """The first arm has masks everywhere, as the document's model."""
    blocks, counts = (4, (4, 2, 0)) if scale == "smoke" else (12, (12, 10, 8, 6, 4, 2, 0))
    arms = tuple(
        Arm(
            f"masks in {f'the first {count}' if 0 < count < blocks else count} of {blocks}",
            *model("ibit", scale, masked_blocks=count),
        )
        for count in counts
    )
    return study(scale, DATA[scale], arms, unmixed(scale), **words(scale))


IMAGENET = NamedStudy(
    name="ibit-imagenet",
    title="IBiT: ImageNet",
    question="Is a DeiT with learned masks better than DeiT and ConViT of the same size?",
    source=f"{PAPER}: Table 3, “Training Results”: IBiT 74.2, DeiT 72.2 (their reproduction 71.5), ConViT 73.1.",
    can="the three models, each with the augmentation the document gives it: IBiT without CutMix and mixup, the others with.",
    cannot="the effect of the masks alone, because the augmentation differs between the arms: ibit-ablation does that. The "
    "document contradicts itself on heads (3 in Table 1, 4 in the appendix: we take 3), its released code differs from it, "
    "and DeiT 72.2 and ConViT 73.1 are quoted there from other papers, with other weight decay.",
    build=imagenet,
    published=(
        number("imagenet", "IBiT", 74.2, "IBiT, Table 3"),
        number("imagenet", "DeiT", 72.2, "IBiT, Table 3, as DeiT's authors report"),
        number("imagenet", "DeiT", 71.5, "IBiT, Table 3, their reproduction"),
        number("imagenet", "ConViT", 73.1, "IBiT, Table 3, as ConViT's authors report"),
    ),
)

ABLATION = NamedStudy(
    name="ibit-ablation",
    title="IBiT: mask × CutMix",
    question="How much do learned masks help, and how much does it help to leave out CutMix?",
    source=f"{PAPER}: Table 4, “Ablation Configurations”: A masks without CutMix 74.2, B masks with CutMix 72.2, C (DeiT) "
    "no masks with CutMix 71.5.",
    can="all four cells, also the one that the document lacks (no mask, no CutMix), everything else equal.",
    cannot="the document's cell C as it was trained: it also had mixup, and stochastic depth on the feed-forward part.",
    build=ablation,
    published=(
        number("imagenet", "mask, no CutMix", 74.2, "IBiT, Table 4, A"),
        number("imagenet", "mask, CutMix", 72.2, "IBiT, Table 4, B"),
        number("imagenet", "no mask, CutMix", 71.5, "IBiT, Table 4, C"),
    ),
)

SCALING = NamedStudy(
    name="ibit-scaling",
    title="IBiT: scaling",
    question="Does the advantage of learned masks grow with the amount of data?",
    source=f"{PAPER}: Figure 4, “Training and Scaling Curves”; numbers from the logs of its release.",
    can="both curves at 5, 25 and 100 % of the data, at equal epochs.",
    cannot="the budget of the original, which it does not state: equal epochs is our reading of 17 % at 5 % of the data. "
    "The logs belong to the released models, which differ from the document's IBiT and DeiT (positions, residual, weight "
    "decay).",
    build=scaling,
    published=tuple(
        number("imagenet", arm, value, "IBiT, logs of the release", train_fraction=fraction)
        for arm, values in LOGS.items()
        for fraction, value in zip(FRACTIONS, values, strict=True)
    ),
)

DEPTH = NamedStudy(
    name="ibit-depth",
    title="IBiT: masks in the first blocks",
    question="Are masks needed in later layers?",
    source=f"{PAPER}: section 6.1: “This motivates the idea that learned masks may not even be needed in later layers, "
    "though we leave further architectural modifications to future work.”",
    can="accuracy with masks in the first k blocks, everything else equal.",
    cannot="a comparison with the document, which conjectures this and measured only masks in all blocks.",
    build=depth,
    published=(number("imagenet", "masks in 12 of 12", 74.2, "IBiT, Table 3"),),
)
