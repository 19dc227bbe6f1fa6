"""The note about what a run starts from, in words: which weights, why, and what it would cost to do better."""

from __future__ import annotations

from typing import Any

ORIGINS = {
    "named": "as you named them",
    "folder": "from the folder SOFTBIAS_WEIGHTS",
    "cache": "from the hub's cache",
    "hub": "downloaded from the hub",
}
HELP = "with a few thousand photographs, pretrained weights usually help most"


def start_chosen(kind: str, name: str | None = None, **more: Any) -> str:
    if kind == "scratch":
        return f"start from scratch: {why_scratch(name=name, **more)}"
    if kind == "run":
        return f"start from the model of {name}"
    model = f"model {more['model']}, " if more.get("model") else ""
    learned = f"{more['trained_on']}, " if more.get("trained_on") else ""
    origin = f", {ORIGINS[more['origin']]}" if more.get("origin") else ""
    text = f"{model}start from pretrained weights {name} ({learned}license {more['license']}){origin}"
    if more.get("better") is None:
        return text
    size = in_megabytes(more.get("better_megabytes"))
    return f"{text}; a larger model may do better: --model {more['better']} --start pretrained downloads {size}"


def why_scratch(
    why: str,
    model: str | None = None,
    name: str | None = None,
    megabytes: int | None = None,
    side: int | None = None,
    count: int | None = None,
    reason: str = "",
) -> str:
    """The reason, and what it would cost to do better."""
    size = in_megabytes(megabytes)
    fetch = f"{HELP}: name a file of {name} ({size}) with --weights, or put it into the folder SOFTBIAS_WEIGHTS"
    reasons = {
        "no-weights": f"no pretrained weights are known for {model}; softbias models --pretrained lists models that have some",
        "offline": f"no pretrained weights are at hand, and the network is switched off; {fetch}",
        "unreachable": f"no pretrained weights are at hand, and the hub does not answer; {fetch}",
        "not-fetched": f"{reason}; {fetch}",
        "large-download": f"the weights {name} are a download of {size}, which --start pretrained allows; {HELP}",
        "model-options": "options of the model were named, which pretrained weights may not fit; --start pretrained tries it",
        "small-pictures": f"{side} pixels were asked for, which are few for pretrained weights; without --img-size pictures "
        "are enlarged for them",
        "many-pictures": f"{count or 0:,} pictures are many for a large model on a CPU; --start pretrained takes it",
    }
    return reasons[why]


def in_megabytes(size: int | None) -> str:
    return "a size that is not known" if size is None else f"{size} MB"
