"""Backbones whose pretrained weights we recommend: what they are called, what they cost, and under which license they stand.

    find_backbone("deit_tiny")                 ours, which takes timm's weights
    find_backbone("timm:vit_tiny_patch16_224") any model of timm's that has weights on the hub
    find_backbone("convit_nano")               None: nobody has trained it for others

The table is short on purpose. A test compares it with timm's own records of licenses, sizes and normalization.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from softbias.models.presets import IMAGENET_MEAN, IMAGENET_STD, preset_names

HALF = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Backbone:
    """A model with weights to start from.

    model           what softbias builds: a preset of ours where it has the same architecture, otherwise timm:NAME
    name            timm's name of the weights, which is also the name of a file of them
    repository      on the Hugging Face hub
    parameters      with the head of the weights; 0 where that is not known
    megabytes       to download; None where that is not known
    img_size        side of the images that we give it
    model_options   that the weights need, whatever the size of the images is
    needs           how long it takes to fine-tune it, and where
    """

    model: str
    name: str
    repository: str
    license: str | None
    trained_on: str = ""
    parameters: int = 0
    megabytes: int | None = None
    img_size: int = 224
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    model_options: Mapping[str, Any] = field(default_factory=dict)
    needs: str = ""

    @property
    def file_names(self) -> tuple[str, ...]:
        """What a file of the weights may be called, without its ending: timm's name with and without the tag, or ours."""
        names = [self.name, self.name.split(".")[0], self.model.removeprefix("timm:")]
        return tuple(dict.fromkeys(names))


IMAGENET_1K, IMAGENET_21K = "ImageNet-1k", "ImageNet-21k, then ImageNet-1k"
PATCH_16: Mapping[str, Any] = {"patch_size": 16}
APACHE = "apache-2.0"

BACKBONES: tuple[Backbone, ...] = (
    Backbone(
        "deit_tiny", "deit_tiny_patch16_224.fb_in1k", "timm/deit_tiny_patch16_224.fb_in1k", APACHE, IMAGENET_1K, 5_717_416, 23,
        model_options=PATCH_16, needs="minutes on a CPU",
    ),
    Backbone(
        "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k",
        "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", APACHE, IMAGENET_21K, 5_717_416, 23, mean=HALF, std=HALF,
        needs="minutes on a CPU",
    ),
    Backbone(
        "convit_tiny", "convit_tiny.fb_in1k", "timm/convit_tiny.fb_in1k", APACHE, IMAGENET_1K, 5_710_512, 23,
        model_options=PATCH_16, needs="minutes on a CPU",
    ),
    Backbone(
        "deit_small", "deit_small_patch16_224.fb_in1k", "timm/deit_small_patch16_224.fb_in1k", APACHE, IMAGENET_1K, 22_050_664,
        88, model_options=PATCH_16, needs="minutes on a GPU",
    ),
    Backbone(
        "timm:vit_small_patch14_dinov2.lvd142m", "vit_small_patch14_dinov2.lvd142m", "timm/vit_small_patch14_dinov2.lvd142m",
        APACHE, "LVD-142M, without labels", 22_056_192, 88, needs="minutes on a GPU; its positions are for 518 pixels",
    ),
    Backbone(
        "resnet50", "resnet50.a1_in1k", "timm/resnet50.a1_in1k", APACHE, IMAGENET_1K, 25_557_032, 102,
        model_options={"stem": "large"}, needs="minutes on a GPU",
    ),
)  # fmt: skip
ON_CPU = ("deit_tiny", "timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k", "convit_tiny")
ON_GPU = ("deit_small", *ON_CPU)
"""What is chosen on a device, best first."""


def find_backbone(model: str) -> Backbone | None:
    """The backbone that a model's name stands for; None where no weights are known for it."""
    for backbone in BACKBONES:
        if model in (backbone.model, f"timm:{backbone.name}"):
            return backbone if model == backbone.model else of_timm(backbone.name)
    if model in preset_names() or not model.startswith("timm:"):
        return None
    return of_timm(model.removeprefix("timm:"))


def backbone_of_file(stem: str) -> Backbone | None:
    """The backbone whose weights a file with this name holds."""
    return next((backbone for backbone in BACKBONES if stem in backbone.file_names), None)


def of_timm(name: str) -> Backbone | None:
    """Any model of timm's, with what timm records about its weights; None where they are not on the hub."""
    from timm.models import get_pretrained_cfg

    try:
        found: Any = get_pretrained_cfg(name)
    except (RuntimeError, ValueError):  # a tag that timm does not know
        return None
    if found is None or not found.hf_hub_id:
        return None
    listed = next((backbone for backbone in BACKBONES if backbone.repository == found.hf_hub_id), None)
    tagged = f"{name.split('.')[0]}.{found.tag}" if found.tag else name
    return Backbone(
        f"timm:{name}", tagged, found.hf_hub_id, found.license, listed.trained_on if listed else "",
        listed.parameters if listed else 0, listed.megabytes if listed else None,
        listed.img_size if listed else max(found.input_size[1:]), tuple(found.mean), tuple(found.std),
    )  # fmt: skip
