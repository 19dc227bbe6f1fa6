"""What the arms of a study begin with: the word of an arm becomes weights with a hash, once, before the study is written.

    with_starts(study, "cpu")        "deit_tiny@start=pretrained" gets its file of weights, license and hash

study.yaml keeps the answer. A study that continues takes it from there, so all runs of an arm begin with the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from softbias.errors import SoftbiasError
from softbias.runs.start import Start
from softbias.study.arms import Arm
from softbias.study.spec import StudySpec


def with_starts(spec: StudySpec, device: str) -> StudySpec:
    """The study with the weights that its arms begin with; device: where it will run."""
    return replace(spec, arms=tuple(with_start(arm, {**spec.data_options, **arm.data_options}, device) for arm in spec.arms))


def with_start(arm: Arm, data_options: Mapping[str, Any], device: str) -> Arm:
    if isinstance(arm.start, Start) or (arm.start == "scratch" and arm.weights is None):
        return arm
    from softbias.runs.starting import ImageFacts, find_start

    word = "pretrained" if arm.weights is not None and arm.start == "scratch" else arm.start  # an arm's default word
    images = ImageFacts(data_options.get("img_size"), "img_size" in data_options)
    try:
        found = find_start(word, arm.weights, arm.model, arm.model_options, device, images)
    except SoftbiasError as error:
        raise SoftbiasError(f"the arm {arm.name}: {error}") from error
    return replace(arm, start=found.start, model=arm.model if found.start.kind == "run" else found.model or arm.model)


def kept_starts(old: StudySpec, new: StudySpec) -> StudySpec:
    """The new study with the starts that the old one found for arms of the same name."""
    before = {arm.name: arm for arm in old.arms}
    arms = []
    for arm in new.arms:
        own = before.get(arm.name)
        if own is not None and isinstance(own.start, Start) and isinstance(arm.start, str):
            word = "pretrained" if arm.weights is not None else arm.start
            arm = replace(arm, start=own.start, model=own.model) if own.start.answers(word, arm.weights) else arm
        arms.append(arm)
    return replace(new, arms=tuple(arms))


def settled(arm: Arm) -> Start:
    """The start of an arm whose word was looked up."""
    if isinstance(arm.start, Start):
        return arm.start
    if arm.start == "scratch" and arm.weights is None:
        return Start()
    raise SoftbiasError(f"the arm {arm.name} has start={arm.start}, which was not looked up; run_study does it")


def needed_options(arm: Arm, data_options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of the model and of the images that an arm's weights need, with those that were named."""
    start = settled(arm)
    if start.kind != "pretrained":
        return dict(arm.model_options), dict(data_options)
    from softbias.models.backbones import find_backbone

    backbone = find_backbone(arm.model)
    options = {**(backbone.model_options if backbone else {}), **arm.model_options}
    size = (
        {} if start.img_size is None else {"img_size": start.img_size[0] if len(set(start.img_size)) == 1 else start.img_size}
    )
    return options, {**size, **data_options}
