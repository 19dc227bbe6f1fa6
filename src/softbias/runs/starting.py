"""From the word of a user to the weights of a run: `--start auto|pretrained|scratch|RUN`, `--weights FILE|FOLDER`.

    choose_start("auto", "deit_tiny", {}, "cpu", ImageFacts(128))      pretrained, where its weights can be had
    find_start("runs/rotations", None, "arvit_nano", …)               the model of another run (see `named_starts`)

"auto" takes pretrained weights where they can be had without a large download, and fresh ones otherwise; a note says which,
why, and what more would cost. "pretrained" is an error where none can be had, or where a file does not hold what its name says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from softbias.errors import SoftbiasError
from softbias.models import weight_files
from softbias.models.backbones import BACKBONES, ON_CPU, ON_GPU, Backbone, find_backbone
from softbias.models.hub import NoWeightsError
from softbias.models.weight_files import UNASKED_MEGABYTES, WeightsFile
from softbias.notes import Note
from softbias.runs import finetuning
from softbias.runs.named_starts import LOCAL, REMOTE, hugging_face_start, run_start, timm_folder_start, weights_start
from softbias.runs.start import WORDS, Start, StartChoice

MANY = 50_000  # pictures; at 192 pixels they take 5.5 GB, and ten minutes to be seen once by a CPU
MANY_SMALL = 150_000  # the same for pictures below finetuning.SMALL


@dataclass(frozen=True)
class ImageFacts:
    """What is known about a set when its start is chosen.

    side    of the pictures, or the one that the user asks for (`named`); None where it is not known yet
    count   how many there are, where that is known
    """

    side: int | None = None
    named: bool = False
    count: int | None = None


def choose_start(
    word: str, model: str | None, options: Mapping[str, Any], device: str, images: ImageFacts, *, asked: bool | None = None
) -> StartChoice:
    """The start that a word stands for, for a model that the user named, or for one to be chosen.

    options   of the model, which the user named
    asked     whether weights are asked for, so that it is an error if there are none; as the word says, if not given
    """
    asked = word == "pretrained" if asked is None else asked
    if word == "scratch":
        return StartChoice(Start())
    if model is not None and model.startswith("hf:"):
        return hugging_face_start(model, asked=asked)
    if model is not None and model.startswith((LOCAL, REMOTE)):
        return timm_folder_start(model)
    reason = None if asked else why_scratch(images, device, options)
    if reason is not None:
        values = {"side": images.side, "count": images.count}
        return StartChoice(Start(), note=scratch_note(reason, model, more=values))
    candidates = (
        [find_backbone(model)] if model is not None else list(map(find_backbone, ON_CPU if device == "cpu" else ON_GPU))
    )
    known = [backbone for backbone in candidates if backbone is not None]
    if not known and asked:
        listed = ", ".join(backbone.model for backbone in BACKBONES)
        raise SoftbiasError(
            f"no pretrained weights are known for {model}: take --start scratch, name a file of them with --weights, or take "
            f"another model: {listed}, or timm:NAME"
        )
    if not known:
        return StartChoice(Start(), note=scratch_note("no-weights", model))
    unfit: list[str] = []
    for backbone in known:
        found = weight_files.find_at_hand(backbone)
        unfit += found.unfit
        if unfit and asked:
            raise SoftbiasError(f"{unfit[0]}; remove or replace the file, or name another one with --weights")
        if found.file is not None:
            choice = backbone_start(backbone, found.file, better=known[0] if backbone is not known[0] else None)
            break
    else:
        choice = from_hub(known, model, asked=asked)
    return replace(choice, unfit=(*(Note("weights-left-out", {"why": why}) for why in unfit), *choice.unfit))


def find_start(
    word: str, weights: str | Path | None, model: str, options: Mapping[str, Any], device: str, images: ImageFacts
) -> StartChoice:
    """The start for a model that is named: from a file of weights, from another run, or as the word says."""
    if weights is not None:
        if word == "scratch":
            raise SoftbiasError("fresh weights and named ones exclude each other; leave out start='scratch', or the weights")
        return weights_start(weights, model, options, images.side if images.named else None)
    return run_start(word) if word not in WORDS else choose_start(word, model, options, device, images)


def has_weights(model: str) -> bool:
    """Whether weights are known for a model, wherever they lie."""
    return model.startswith((LOCAL, REMOTE)) or find_backbone(model) is not None


def why_scratch(images: ImageFacts, device: str, options: Mapping[str, Any]) -> str | None:
    """Why an automatic start stays from scratch, whatever weights there are."""
    if options:
        return "model-options"  # they may change the shapes of the weights
    small = images.side is not None and images.side < finetuning.SMALL
    if small and images.named:
        return "small-pictures"
    return "many-pictures" if device == "cpu" and (images.count or 0) >= (MANY_SMALL if small else MANY) else None


def from_hub(known: list[Backbone], model: str | None, *, asked: bool) -> StartChoice:
    """The first backbone that may be downloaded; fresh weights with the reason, where none may be and none was asked for."""
    if asked:
        return backbone_start(known[0], fetched(known[0]))
    reason = weight_files.why_not_now()
    if reason is not None:
        return StartChoice(Start(), note=scratch_note(reason, model, known[0]))
    sizes = []
    for backbone in known:
        sizes.append(backbone.megabytes)
        if (backbone.megabytes or 0) > UNASKED_MEGABYTES:
            continue
        try:
            sizes[-1] = weight_files.megabytes(backbone.repository)
            if sizes[-1] is not None and sizes[-1] <= UNASKED_MEGABYTES:
                return backbone_start(backbone, fetched(backbone))
        except NoWeightsError as error:
            return StartChoice(Start(), note=scratch_note("not-fetched", model, backbone, {"reason": str(error)}))
    return StartChoice(Start(), note=scratch_note("large-download", model, known[0], {"megabytes": sizes[0]}))


def fetched(backbone: Backbone) -> WeightsFile:
    """The weights of a backbone from the hub."""
    found = weight_files.fetch(backbone.repository)
    why = weight_files.why_unfit(backbone, found.path)
    if why is not None:
        raise NoWeightsError(why)
    return found


def scratch_note(
    why: str, model: str | None, backbone: Backbone | None = None, more: Mapping[str, int | str | None] | None = None
) -> Note:
    values: dict[str, Any] = {"kind": "scratch", "why": why}
    values |= {"model": model} if model else {}
    values |= {"name": backbone.repository, "megabytes": backbone.megabytes} if backbone else {}
    return Note("start-chosen", {name: value for name, value in {**values, **(more or {})}.items() if value is not None})


def backbone_start(backbone: Backbone, found: WeightsFile, better: Backbone | None = None) -> StartChoice:
    size = (backbone.img_size, backbone.img_size)
    start = Start(
        "pretrained", backbone.repository, str(found.path), found.revision, weight_files.digest(found.path), backbone.license,
        backbone.mean, backbone.std, size,
    )  # fmt: skip
    values: dict[str, Any] = {"kind": "pretrained", "model": backbone.model, "name": backbone.repository}
    values |= {"origin": found.origin, "license": backbone.license or "not known"}
    values |= {"trained_on": backbone.trained_on} if backbone.trained_on else {}
    if better is not None:
        values |= {"better": better.model, "better_name": better.repository, "better_megabytes": better.megabytes}
    return StartChoice(start, backbone.model, backbone.model_options, Note("start-chosen", values))
