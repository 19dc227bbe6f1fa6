"""Families of models: functions that make a spec from options of their own and from the fields of the image.

Papers' names stand here and in docstrings; mechanisms are named after what they do. `presets` gives families their sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from softbias.bounds import BlockCount, Blocks, Centers, Count, Finite, Length, NotWhole, ShortText, Side
from softbias.errors import SoftbiasError
from softbias.models.spec import DWNetSpec, Layer, ModelSpec, ResNetSpec, pair


def deit(*, width: int, heads: int, depth: Blocks = 12, **image: Any) -> ModelSpec:
    """ViT as DeiT has it (Touvron et al., 2021), without distillation: full attention, class token, learned positions."""
    return ModelSpec(width=width, heads=heads, layers=(Layer("full"),) * depth, **image)


def vit(*, width: int, heads: int, depth: Blocks = 12, **image: Any) -> ModelSpec:
    """ViT (Dosovitskiy et al., 2020) as Hugging Face's transformers makes it by default.

    It is DeiT but for the eps of its norms, and for its initial weights, which are normal in the stem, too.
    """
    return ModelSpec(width=width, heads=heads, layers=(Layer("full"),) * depth, norm_eps=1e-12, initial="normal_stem", **image)


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

    The class token has no position, also where no block is gated and it joins at the input. If every block is gated, none
    joins, and the head sees the average patch; the original never inserts it, and its head reads a patch.
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
        class_position=False,
        qkv_bias=False,
        **image,
    )


def ibit(
    *,
    width: int,
    heads: int,
    depth: Blocks = 12,
    masked_blocks: BlockCount | None = None,
    unmasked: Literal["full", "ones"] = "full",
    norm: ShortText = "frobenius",
    rank: Count = 9,
    kernel: ShortText = "exp_l2",
    fit: ShortText = "svd",
    roll: ShortText | None = None,
    biased_gradient: bool = True,
    released: bool = False,
    **image: Any,
) -> ModelSpec:
    """IBiT: DeiT with learned masks in its attention, in the first `masked_blocks` blocks (all of them by default).

    unmasked is the attention of the other blocks: "full" has a softmax, so that it takes the Frobenius norm away together with
    the mask; "ones" is a mask of ones that stays, under the same norm, so that it takes the mask away alone.
    biased_gradient=False leaves the gradient of the scores unscaled by the mask.

    released=True is the published code rather than the paper: the mask is read one column off, the branch is added to its
    normalized input, there is no norm after the last block, and the eps of norms is 1e-5; positions are a 1-D sinusoid; a tenth
    of the attention branches is dropped in every block; weights start as PyTorch starts them. Its masks are fitted by Adam
    (fit="adam"), which comes close to what we start from.
    """
    masked_blocks = depth if masked_blocks is None else masked_blocks
    if not 0 <= masked_blocks <= depth:
        raise SoftbiasError(f"masked_blocks must lie between 0 and depth={depth}, but masked_blocks={masked_blocks}")
    roll = roll or ("released" if released else "paper")
    options = {"norm": norm, "rank": rank, "kernel": kernel, "fit": fit, "roll": roll}
    options |= {} if biased_gradient else {"biased_gradient": False}
    ones = Layer("masked", {"norm": norm, "rank": 1, "kernel": "ones", "learned": False})
    other = ones if unmasked == "ones" and norm != "softmax" else Layer("full")  # the same function under a softmax
    release: dict[str, Any] = {}
    if released:
        release = {"residual": "normalized", "positions": "sinusoid_1d", "final_norm": False, "norm_eps": 1e-5}
        release |= {"drop_path": 0.1, "drop_path_rule": "constant", "initial": "torch"}
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer("masked", options),) * masked_blocks + (other,) * (depth - masked_blocks),
        drop_path_feed_forward=False,
        **release,
        **image,
    )


def arvit(
    *, width: int, heads: int, depth: Blocks = 6, released: bool = False, dropout: NotWhole | None = None, **image: Any
) -> ModelSpec:
    """ARViT (Mormille et al.): few wide blocks with one linear layer as feed-forward, and a head that sees every patch.

    released=True is the published code: post-norm with an eps of 1e-5, ReLU of 256, 0.3 × the positions at every attention;
    dropout of .1 on the attention weights, inside the feed-forward and after each branch; initial weights after Glorot. There a
    regularizer sees the map after dropout; here those that read a whole map see it before.
    """
    rate = (0.1 if released else 0.0) if dropout is None else dropout
    release: dict[str, Any] = {}
    if released:
        release = {"pre_norm": False, "norm_eps": 1e-5, "feed_forward": "relu", "hidden": 256, "initial": "xavier"}
        release |= {"positions_at": "attention", "position_scale": 0.3, "dropout_in": ("branch", "hidden")}
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer("full", {"dropout": rate} if released and rate else {}),) * depth,
        dropout=rate,
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
    """A flat transformer with depth-wise convolutions instead of attention. No paper has it; `dwnet` is the ETH study's."""
    layer = Layer("dwconv", {"kernel_size": kernel_size, "dynamic": dynamic})
    return ModelSpec(
        width=width, heads=heads, layers=(layer,) * depth, class_token=None, pool="average", positions="none", **image
    )


def dwnet(
    *,
    width: Side,
    blocks: Annotated[tuple[Blocks, ...], Length(1, 8)],
    dynamic: bool = False,
    kernel_size: Side = 7,
    **image: Any,
) -> DWNetSpec:
    """DWNet (Han et al., 2022), the "local" network of the ETH study, as its code has it.

    Depth-wise convolutions in four stages: the shape of Swin, without attention. With `dynamic=True` the kernels of each image
    are predicted; that at the base size is what the study trained.
    """
    return DWNetSpec(width=width, blocks=blocks, dynamic=dynamic, kernel_size=kernel_size, **image)


def soft(
    *,
    width: int,
    heads: int,
    depth: Blocks = 8,
    biased_blocks: BlockCount | None = None,
    attention: ShortText = "gated",
    attention_options: Mapping[str, Any] | None = None,
    **image: Any,
) -> ModelSpec:
    """Our own model for small sets: soft biases in every part. No paper has it.

    A stem of overlapping convolutions, gated attention in all blocks but the last two, a depth-wise convolution in every
    feed-forward, and the average patch for the head. `attention` is the mechanism of the first `biased_blocks` blocks, with
    `attention_options` of its own. The nano size is for CPUs: a residual stem, few patches, and no depth-wise convolutions,
    which gain nothing on so small a grid.
    """
    biased_blocks = max(0, depth - 2) if biased_blocks is None else biased_blocks
    if not 0 <= biased_blocks <= depth:
        raise SoftbiasError(f"biased_blocks must lie between 0 and depth={depth}, but biased_blocks={biased_blocks}")
    return ModelSpec(
        width=width,
        heads=heads,
        layers=(Layer(attention, attention_options or {}),) * biased_blocks + (Layer("full"),) * (depth - biased_blocks),
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
