"""The models of the papers, by name: a preset is a family of models and a size, and gives a spec.

Papers' names stand here and in docstrings; mechanisms are named after what they do. A new preset is a line in PRESETS; from
outside the package it is `register_preset("mine", Preset(family, size))`, or an entry point in the group "softbias.models".
"""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from softbias.bounds import BlockCount, Blocks, Centers, Count, Finite, ShortText, Side
from softbias.errors import FewTokensWarning, SoftbiasError, unknown_name
from softbias.models.spec import Layer, ModelSpec, ResNetSpec, Spec, cpu_patch, fine_patch, pair, suitable_patch
from softbias.registry import Registry
from softbias.schema import check_options

FEW_PATCHES = 16


def deit(*, width: int, heads: int, depth: Blocks = 12, **image: Any) -> ModelSpec:
    """ViT as DeiT has it (Touvron et al., 2021), without distillation: full attention, class token, learned positions."""
    return ModelSpec(width=width, heads=heads, layers=(Layer("full"),) * depth, **image)


def convit(
    *,
    width: int,
    heads: int,
    depth: Blocks = 12,
    gated_blocks: BlockCount | None = None,
    strength: Finite = 1.0,
    gate: Finite = 1.0,
    centers: Centers = "square",
    **image: Any,
) -> ModelSpec:
    """ConViT (d'Ascoli et al., 2021): gated blocks first (all but two), then the class token, then full attention.

    If every block is gated, no class token joins, and the head sees the average patch.
    """
    gated_blocks = depth - 2 if gated_blocks is None else gated_blocks
    if not 0 <= gated_blocks <= depth:
        raise SoftbiasError(f"gated_blocks must lie between 0 and depth={depth}, but gated_blocks={gated_blocks}")
    options: dict[str, Any] = {"strength": strength, "gate": gate, "centers": centers}
    options = {name: value for name, value in options.items() if value != {"centers": "square"}.get(name, 1.0)}
    everywhere = gated_blocks == depth
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer("gated", options),) * gated_blocks + (Layer("full"),) * (depth - gated_blocks),
        class_token=None if everywhere else gated_blocks,
        pool="average" if everywhere else "token",
        qkv_bias=False,
        **image,
    )


def ibit(
    *,
    width: int,
    heads: int,
    depth: Blocks = 12,
    masked_blocks: BlockCount | None = None,
    norm: ShortText = "frobenius",
    rank: Count = 9,
    kernel: ShortText = "exp_l2",
    fit: ShortText = "svd",
    roll: ShortText | None = None,
    released: bool = False,
    **image: Any,
) -> ModelSpec:
    """IBiT: DeiT with learned masks in its attention, in the first `masked_blocks` blocks (all of them by default).

    released=True is the published code rather than the paper: the branch is added to its normalized input, positions are a
    1-D sinusoid, and the mask is read one column off.
    """
    masked_blocks = depth if masked_blocks is None else masked_blocks
    if not 0 <= masked_blocks <= depth:
        raise SoftbiasError(f"masked_blocks must lie between 0 and depth={depth}, but masked_blocks={masked_blocks}")
    roll = roll or ("released" if released else "paper")
    options = {"norm": norm, "rank": rank, "kernel": kernel, "fit": fit, "roll": roll}
    release: dict[str, Any] = {"residual": "normalized", "positions": "sinusoid_1d"} if released else {}
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer("masked", options),) * masked_blocks + (Layer("full"),) * (depth - masked_blocks),
        drop_path_feed_forward=False,
        **release,
        **image,
    )


def arvit(*, width: int, heads: int, depth: Blocks = 6, released: bool = False, **image: Any) -> ModelSpec:
    """ARViT (Mormille et al.): few wide blocks with one linear layer as feed-forward, and a head that sees every patch.

    released=True is the published code: post-norm, ReLU of 256, dropout, and 0.3 × the positions at every attention.
    """
    release: dict[str, Any] = {}
    if released:
        release = {"pre_norm": False, "feed_forward": "relu", "hidden": 256, "dropout": 0.1}
        release |= {"positions_at": "attention", "position_scale": 0.3}
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer("full"),) * depth,
        **{"class_token": None, "pool": "flatten", "positions": "sinusoid", "feed_forward": "linear", **release},
        **image,
    )


def window(
    *, width: int, heads: int, depth: Blocks = 12, window: Side | None = None, mode: ShortText = "alternate", **image: Any
) -> ModelSpec:
    """Window attention in every block, average pooling; "alternate" is block, shifted, block, … as in Swin.

    The default window is 7, or 4 (sliding: 3) where the grid has fewer than 14 patches a side.
    """
    side = min(pair("img_size", image["img_size"])) // min(pair("patch_size", image["patch_size"]))
    if window is None:
        window = 7 if side >= 14 else 3 if mode == "sliding" else 4
    modes = ("block", "shifted") if mode == "alternate" else (mode, mode)
    layers = tuple(Layer("window", {"window": window, "mode": modes[index % 2]}) for index in range(depth))
    return ModelSpec(width=width, heads=heads, layers=layers, class_token=None, pool="average", **image)


def dwconv(
    *, width: int, heads: int, depth: Blocks = 12, kernel_size: Side = 7, dynamic: bool = False, **image: Any
) -> ModelSpec:
    """Depth-wise convolutions instead of attention (the "local" network of the ETH study, as its code has it)."""
    layer = Layer("dwconv", {"kernel_size": kernel_size, "dynamic": dynamic})
    return ModelSpec(
        width=width, heads=heads, layers=(layer,) * depth, class_token=None, pool="average", positions="none", **image
    )


def soft(
    *,
    width: int,
    heads: int,
    depth: Blocks = 8,
    biased_blocks: BlockCount | None = None,
    attention: ShortText = "gated",
    **image: Any,
) -> ModelSpec:
    """Our own model for small sets: soft biases in every part. No paper has it.

    A stem of overlapping convolutions, gated attention in all blocks but the last two, a depth-wise convolution in every
    feed-forward, and the average patch for the head. `attention` is the mechanism of the first `biased_blocks` blocks. The nano
    size is for CPUs: a cheaper stem, few patches, and no depth-wise convolutions, which gain nothing on so small a grid.
    """
    biased_blocks = max(0, depth - 2) if biased_blocks is None else biased_blocks
    if not 0 <= biased_blocks <= depth:
        raise SoftbiasError(f"biased_blocks must lie between 0 and depth={depth}, but biased_blocks={biased_blocks}")
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer(attention),) * biased_blocks + (Layer("full"),) * (depth - biased_blocks),
        class_token=None,
        pool="average",
        qkv_bias=False,
        **{"stem": "conv", "feed_forward": "dwconv", **image},
    )


def resnet(*, stem: Literal["small", "large"] | None = None, img_size: Any, **options: Any) -> ResNetSpec:
    """ResNet; the stem suits the image unless it is given."""
    options.pop("patch_size", None)
    stem = stem or ("small" if max(pair("img_size", img_size)) <= 64 else "large")
    return ResNetSpec(img_size=img_size, stem=stem, **options)


@dataclass(frozen=True)
class Preset:
    """family: a function that makes a spec from its own options and from the fields of the image; size: some of its options;
    patch: the side of the patches that suits an image."""

    family: Callable[..., Spec]
    size: dict[str, Any]
    img_size: int = 224
    num_classes: int = 1000
    kind: type[Spec] = ModelSpec
    patch: Callable[[int | tuple[int, int]], int] = suitable_patch


TINY, SMALL, BASE = {"width": 192, "heads": 3}, {"width": 384, "heads": 6}, {"width": 768, "heads": 12}
NANO = {"width": 64, "heads": 4, "depth": 4}
SOFT_NANO = {"width": 64, "heads": 4, "depth": 3, "biased_blocks": 3, "stem": "strided", "feed_forward": "gelu", "hidden": 128}

PRESETS = Registry[Preset]("model", group="softbias.models", instance_of=Preset)
PRESETS |= {
    "deit_tiny": Preset(deit, TINY),
    "deit_small": Preset(deit, SMALL),
    "deit_base": Preset(deit, BASE),
    "convit_tiny": Preset(convit, {"width": 192, "heads": 4}),
    "convit_tiny_plus": Preset(convit, {"width": 256, "heads": 4}),
    "convit_small": Preset(convit, {"width": 432, "heads": 9}),
    "convit_small_plus": Preset(convit, {"width": 576, "heads": 9}),
    "convit_base": Preset(convit, {"width": 768, "heads": 16}),
    "convit_base_plus": Preset(convit, {"width": 1024, "heads": 16}),
    "ibit_tiny": Preset(ibit, TINY),
    "ibit_small": Preset(ibit, SMALL),
    "ibit_base": Preset(ibit, BASE),
    "arvit_base": Preset(arvit, {"width": 516, "heads": 12}, img_size=256),
    "arvit_style": Preset(arvit, {"width": 512, "heads": 8}, img_size=256),
    "arvit_vit_tiny": Preset(deit, {"width": 516, "heads": 12, "depth": 6}, img_size=256),
    "window_tiny": Preset(window, TINY),
    "window_small": Preset(window, SMALL),
    "dwconv_tiny": Preset(dwconv, TINY),
    "dwconv_dynamic_tiny": Preset(dwconv, TINY | {"dynamic": True}),
    "soft_tiny": Preset(soft, {"width": 192, "heads": 4}, 32, 10),
    "soft_small": Preset(soft, {"width": 288, "heads": 9, "depth": 12}, 96, 10, patch=fine_patch),
    "resnet50": Preset(resnet, {}, kind=ResNetSpec),
    "soft_nano": Preset(soft, SOFT_NANO, 32, 10, patch=cpu_patch),
    "deit_nano": Preset(deit, NANO, 32, 10),
    "convit_nano": Preset(convit, NANO | {"gated_blocks": 3}, 32, 10),
    "ibit_nano": Preset(ibit, NANO, 32, 10),
    "arvit_nano": Preset(arvit, NANO, 32, 10),
    "window_nano": Preset(window, NANO, 32, 10),
    "dwconv_nano": Preset(dwconv, NANO, 32, 10),
    "resnet_nano": Preset(
        resnet, {"blocks": (1, 1, 1, 1), "channels": (16, 32, 64, 96), "bottleneck": False}, 32, 10, ResNetSpec
    ),
}
register_preset, find_preset, preset_names = PRESETS.register, PRESETS.find, PRESETS.names
BUILT_IN = tuple(PRESETS)  # these are in timm's registry, too


def preset_spec(
    name: str,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    in_chans: int = 3,
    **overrides: Any,
) -> Spec:
    """The spec of a preset, for the given images, with overrides.

    An override is an option of the preset's family (`strength` of ConViT, `rank` of IBiT, `depth`, …) or a field of the spec
    (`drop_path`, `pool`, …); any other name is an error.
    """
    preset = find_preset(name)
    size = pair("img_size", preset.img_size if img_size is None else img_size)
    image = {"img_size": size, "in_chans": in_chans}
    image["num_classes"] = preset.num_classes if num_classes is None else num_classes
    signature = inspect.signature(preset.family).parameters
    own = [option for option, parameter in signature.items() if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
    of_family = preset.size | {option: overrides.pop(option) for option in own if option in overrides}
    known = {field.name for field in dataclasses.fields(preset.kind)} | set(own)
    for option in overrides:
        if option not in known:
            raise unknown_name(f"option of {name}", option, known)
    if preset.kind is ModelSpec:
        image["patch_size"] = preset.patch(size) if patch_size is None else pair("patch_size", patch_size)
    elif patch_size is not None:
        raise SoftbiasError(f"{name} has no patches, but patch_size={patch_size}")
    check_options(preset.family, of_family)
    spec = preset.family(**of_family, **image)
    if overrides:
        spec = dataclasses.replace(spec, **overrides)
    warn_of_few_patches(spec)
    return spec


def warn_of_few_patches(spec: Spec) -> None:
    if isinstance(spec, ModelSpec) and spec.grid(0).patches < FEW_PATCHES:
        patches, better = spec.grid(0).patches, suitable_patch(spec.img_size)
        warnings.warn(
            f"an image of {spec.img_size[0]} × {spec.img_size[1]} in patches of {spec.patch_size[0]} × {spec.patch_size[1]} "
            f"leaves only {patches} tokens to attend to; patch_size={better} is a better choice",
            FewTokensWarning,
            stacklevel=3,
        )


IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def timm_cfg(spec: Spec, name: str | None) -> dict[str, Any]:
    """timm's `pretrained_cfg` of a model; without a preset's name its architecture is the one that takes a whole spec."""
    transformer, colored = isinstance(spec, ModelSpec), spec.in_chans == 3
    return {
        "architecture": f"softbias_{name if name in BUILT_IN else 'vit'}",
        "url": "",
        "num_classes": spec.num_classes,
        "input_size": (spec.in_chans, *spec.img_size),
        "fixed_input_size": transformer,
        "pool_size": None,
        "crop_pct": 1.0,
        "interpolation": "bicubic",
        "mean": IMAGENET_MEAN if colored else (0.5,) * spec.in_chans,
        "std": IMAGENET_STD if colored else (0.5,) * spec.in_chans,
        "first_conv": "patch_embed.proj" if transformer else "conv1",
        "classifier": "head" if transformer else "fc",
        "license": "apache-2.0",
    }
