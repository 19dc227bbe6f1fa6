"""The studies of IBiT: ImageNet, the ablation completed, scaling, and masks in the first blocks only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from softbias.study.arms import Arm
from softbias.study.papers.named import Measurement, NamedStudy, Scale, number, small_recipe, smoke_recipe, study
from softbias.study.spec import StudySpec
from softbias.training.recipe import Recipe, find_recipe

PAPER = "IBiT: Utilizing Inductive Biases to Create a More Data Efficient Attention Mechanism (anonymous authors, under review)"
NANO = {"patch_size": 8}
SMALL_NOTE = ("Small scale: CIFAR-100 at 32 px in place of ImageNet.",)
DATA: dict[Scale, tuple[str, ...]] = {"smoke": ("imagenet",), "small": ("cifar100",), "paper": ("imagenet",)}
FRACTIONS = (0.05, 0.25, 1.0)
LOGS = {"IBiT": (17.26, 61.03, 74.17), "DeiT": (17.40, 60.28, 71.45)}  # of the release, percent at FRACTIONS

TABLE3 = (
    number("imagenet", "IBiT", 74.2, "IBiT, Table 3"),
    number("imagenet", "DeiT", 72.2, "IBiT, Table 3, as DeiT's authors report"),
    number("imagenet", "DeiT", 71.5, "IBiT, Table 3, their reproduction"),
    number("imagenet", "ConViT", 73.1, "IBiT, Table 3, as ConViT's authors report"),
)


def model(kind: str, scale: Scale, **options: Any) -> tuple[str, dict[str, Any]]:
    return f"{kind}_{'nano' if scale == 'smoke' else 'tiny'}", {**(NANO if scale == "smoke" else {}), **options}


def unmixed(scale: Scale, **overrides: Any) -> Recipe:
    """IBiT's recipe: no CutMix, no mixup."""
    if scale == "paper":
        return find_recipe("ibit").with_overrides(overrides)
    return smoke_recipe(**overrides) if scale == "smoke" else small_recipe(cutmix=0.0, **overrides)


def words(scale: Scale) -> dict[str, Any]:
    """The notes of a scale, and how often masks are measured while the models train."""
    return {"notes": SMALL_NOTE if scale == "small" else (), "probe_every": {"smoke": 1, "small": 5, "paper": 10}[scale]}


def after(folder: Path, scale: Scale, device: str) -> list[Measurement]:
    from softbias.study.papers.through_training import masks_over_epochs

    return masks_over_epochs(folder)


def three_models(scale: Scale) -> tuple[Arm, ...]:
    mixed = {"mixup": 0.8, "cutmix": 1.0}
    return (
        Arm("IBiT", *model("ibit", scale)),
        Arm("DeiT", *model("deit", scale), recipe=mixed),
        Arm("ConViT", *model("convit", scale), recipe=mixed),
    )


def imagenet(scale: Scale) -> StudySpec:
    return study(scale, DATA[scale], three_models(scale), unmixed(scale), **words(scale))


ABLATED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # arm -> options of the model, fields of the recipe
    "mask, Frobenius": ({}, {}),
    "ones, Frobenius": ({"masked_blocks": 0, "unmasked": "ones"}, {}),
    "mask, softmax": ({"norm": "softmax"}, {}),
    "no mask, softmax": ({"masked_blocks": 0}, {}),
    "mask, Frobenius, CutMix": ({}, {"cutmix": 1.0}),
    "no mask, softmax, CutMix": ({"masked_blocks": 0}, {"cutmix": 1.0}),
}


def ablation(scale: Scale) -> StudySpec:
    """One architecture in all six cells: {learned mask, mask of ones} × {Frobenius norm, softmax}, and mask × CutMix.

    Full attention is the mask of ones under a softmax.
    """
    arms = (Arm(name, *model("ibit", scale, **options), recipe=recipe) for name, (options, recipe) in ABLATED.items())
    return study(scale, DATA[scale], tuple(arms), unmixed(scale), **words(scale))


def scaling(scale: Scale) -> StudySpec:
    recipe = unmixed(scale, epochs=1) if scale == "smoke" else unmixed(scale)
    return study(scale, DATA[scale], three_models(scale), recipe, fractions=FRACTIONS, budget="epochs", **words(scale))


def depth(scale: Scale) -> StudySpec:
    """The first arm has masks everywhere, as the document's model.

    Where a mask goes, the Frobenius norm must stay, or the arms differ in two things. So two series keep their norm in every
    block, with a mask of ones in the later ones; a third has full attention there, as one would build it.
    """
    counts = (4, 2, 0) if scale == "smoke" else (12, 10, 8, 6, 4, 2, 0)
    series: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
        "Frobenius": ({"unmasked": "ones"}, counts),
        "softmax": ({"norm": "softmax"}, counts),
        "then full": ({}, counts[1:-1]),
    }
    arms = tuple(
        Arm(f"{count} masks, {name}", *model("ibit", scale, masked_blocks=count, **options))
        for name, (options, counted) in series.items()
        for count in counted
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
    after=after,
    published=TABLE3,
)

ABLATION = NamedStudy(
    name="ibit-ablation",
    title="IBiT: mask × norm × CutMix",
    question="How much do learned masks help, how much does the norm, and how much does it help to leave out CutMix?",
    source=f"{PAPER}: Table 4, “Ablation Configurations”: A masks without CutMix 74.2, B masks with CutMix 72.2, C (DeiT) "
    "no masks with CutMix 71.5.",
    can="learned mask or mask of ones × Frobenius norm or softmax, without CutMix; and mask × CutMix, with the cell that the "
    "document lacks (no mask, no CutMix). Everything else is equal.",
    cannot="the document's cell C as it was trained: it also had mixup, and stochastic depth on the feed-forward part. Between "
    "its cells B and C two things change, because full attention has a softmax in place of the Frobenius norm; the two arms "
    "“ones, Frobenius” and “mask, softmax” tell them apart.",
    build=ablation,
    after=after,
    published=(
        number("imagenet", "mask, Frobenius", 74.2, "IBiT, Table 4, A"),
        number("imagenet", "mask, Frobenius, CutMix", 72.2, "IBiT, Table 4, B"),
        number("imagenet", "no mask, softmax, CutMix", 71.5, "IBiT, Table 4, C"),
    ),
)

SCALING = NamedStudy(
    name="ibit-scaling",
    title="IBiT: scaling",
    question="Does the advantage of learned masks grow with the amount of data?",
    source=f"{PAPER}: Figure 4, “Training and Scaling Curves”, without numbers. Section 4.1 names ConViT for this experiment, "
    "its Table 2 and Figure 4 do not. Numbers at 100 % are those of its Table 3; those of the release's logs are facts about "
    "the release, not about the document.",
    can="three curves at 5, 25 and 100 % of the data, at equal epochs, as the release's logs have 300 at every share.",
    cannot="the document's curves, whose numbers it does not print. The logs belong to the released models, which differ from "
    "the document's IBiT and DeiT (positions, residual, final norm, weight decay). There is no published ConViT below 100 %.",
    build=scaling,
    after=after,
    published=(
        *TABLE3,
        *(
            number("imagenet", arm, value, f"IBiT, logs of the release, not in the document: {whose}", train_fraction=fraction)
            for (arm, values), whose in zip(LOGS.items(), ("its IBiT", "its baseline"), strict=True)
            for fraction, value in zip(FRACTIONS, values, strict=True)
        ),
    ),
)

DEPTH = NamedStudy(
    name="ibit-depth",
    title="IBiT: masks in the first blocks",
    question="Are masks needed in later layers?",
    source=f"{PAPER}: section 6.1: “This motivates the idea that learned masks may not even be needed in later layers, "
    "though we leave further architectural modifications to future work.”",
    can="accuracy with masks in the first k blocks: with the same norm in every block (Frobenius, or softmax) and a mask of "
    "ones in the later ones, so that only the masks differ; and with full attention in the later ones.",
    cannot="a comparison with the document, which conjectures this and measured only masks in all blocks.",
    build=depth,
    after=after,
    published=(number("imagenet", "12 masks, Frobenius", 74.2, "IBiT, Table 3"),),
)
