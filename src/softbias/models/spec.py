"""Specs: models as data, which are frozen, can be compared, and are the same in Python and in JSON.

`ModelSpec` describes every transformer of this library, `ResNetSpec` and `DWNetSpec` the convolutional networks beside them. A
spec and the weights together define what a model computes; `build` in `softbias.models` makes a module from a spec.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from softbias.attention import find_attention
from softbias.bounds import Classes, Length, NotWhole, ShortText, Side, Within
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.schema import Checked, convert, from_plain

MOST_PATCHES = 65_536  # of an image: 256 × 256
MOST_BLOCKS = 1000
DWNET_PATCH = 4  # pixels
Width = Annotated[int, Within(1, 65_536)]
Channels = Annotated[int, Within(1, 1024)]


@dataclass(frozen=True)
class Layer(Checked):
    """The token mixing of one block: a mechanism by its registered name, and the mechanism's own options."""

    attention: ShortText = "full"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = json.loads(json.dumps(dict(self.options)))  # lists for tuples, so that equal specs stay equal through JSON
        object.__setattr__(self, "options", plain)

    def __hash__(self) -> int:
        return hash((self.attention, json.dumps(self.options, sort_keys=True)))

    def describe(self) -> str:
        """The mechanism in a word or two, as tables and pages name it."""
        return find_attention(self.attention).describe(self.attention, self.options)

    def __str__(self) -> str:
        inside = ",".join(f"{name}={value}" for name, value in self.options.items())
        return f"{self.attention}({inside})" if inside else self.attention


@dataclass(frozen=True)
class ModelSpec(Checked):
    """A vision transformer.

    layers          one Layer per block, so that mechanisms can be mixed
    class_token     the block before which a class token joins (0: at the input), or None for none
    stem            from pixels to patches: one linear map ("patch"), overlapping convolutions ("conv"; "strided" costs less;
                    "residual" as a ResNet begins), or the image beside its shifted copies ("shifted"); see
                    `softbias.models.stems`
    pool            what the head sees: the class "token", the "average" patch, all patches one after another ("flatten"), or
                    their average with learned shares ("sequence")
    positions       "learned" (with the class token when it joins at 0), fixed 2-D "sinusoid", "sinusoid_1d", or "none"
    class_position  whether a class token that joins at 0 has a learned position of its own (ConViT: no)
    positions_at    added once at the "input", or to the input of every "attention" (not to the residual)
    pre_norm        LayerNorm before each residual branch, or after it (False)
    final_norm      LayerNorm after the last block (IBiT's release: none)
    feed_forward    two layers around a "gelu" or "relu" of `hidden` channels (default 4 × width), the same with a depth-wise
                    convolution inside ("dwconv"), or one "linear" layer
    layer_scale     where learned factors of each branch start; 0: there are none
    residual        "plain", or "normalized": the branch is added to its normalized input, as IBiT's release does
    drop_path       stochastic depth: the share of images for which a branch is left out
    drop_path_rule  "linear": from 0 in the first block to `drop_path` in the last; "constant": the same in every block
    drop_path_feed_forward   whether it applies to the feed-forward branch too (IBiT: no)
    dropout         a share of values that are set to zero in training
    dropout_in      where: after the positions at the "input", after each "branch", between the layers of the feed-forward
                    ("hidden"); that of attention weights is an option of the mechanism
    initial         weights of linear layers: "normal", "normal_stem", "xavier" or "torch"; see `softbias.models.initial`
    """

    img_size: tuple[Side, Side]
    patch_size: tuple[Side, Side]
    width: Width
    heads: Annotated[int, Within(1, 1024)]
    layers: Annotated[tuple[Layer, ...], Length(1, MOST_BLOCKS)]
    num_classes: Classes = 1000
    in_chans: Channels = 3
    class_token: Annotated[int, Within(0, MOST_BLOCKS)] | None = 0
    stem: Literal["patch", "conv", "strided", "residual", "shifted"] = "patch"
    pool: Literal["token", "average", "flatten", "sequence"] = "token"
    positions: Literal["learned", "sinusoid", "sinusoid_1d", "none"] = "learned"
    class_position: bool = True
    positions_at: Literal["input", "attention"] = "input"
    position_scale: Annotated[float, Within(0, 1000)] = 1.0
    pre_norm: bool = True
    final_norm: bool = True
    norm_eps: Annotated[float, Within(0, 1, above=True)] = 1e-6
    feed_forward: Literal["gelu", "relu", "dwconv", "linear"] = "gelu"
    hidden: Annotated[int, Within(1, 1_000_000)] | None = None
    residual: Literal["plain", "normalized"] = "plain"
    layer_scale: Annotated[float, Within(0, 10)] = 0.0
    qkv_bias: bool = True
    drop_path: NotWhole = 0.0
    drop_path_rule: Literal["linear", "constant"] = "linear"
    drop_path_feed_forward: bool = True
    dropout: NotWhole = 0.0
    dropout_in: Annotated[tuple[Literal["input", "branch", "hidden"], ...], Length(1, 3)] = ("input", "branch")
    initial: Literal["normal", "normal_stem", "xavier", "torch"] = "normal"

    kind = "transformer"

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", pair("img_size", self.img_size))
        object.__setattr__(self, "patch_size", pair("patch_size", self.patch_size))
        super().__post_init__()
        if self.class_token is not None and not 0 <= self.class_token < self.depth:
            raise SoftbiasError(
                f"the class token joins before a block, 0 to {self.depth - 1}, or never (None), "
                f"but class_token={self.class_token}"
            )
        if self.pool == "token" and self.class_token is None:
            raise SoftbiasError('pool="token" needs a class token: set class_token to a block, or pool="average"')
        if self.positions in ("sinusoid", "sinusoid_1d") and self.width % 4:
            raise SoftbiasError(f"sinusoid positions need a width that is a multiple of 4, but width={self.width}")
        if self.stem == "conv" and (
            len({*self.patch_size}) > 1 or self.patch_size[0].bit_count() != 1 or self.patch_size[0] < 2
        ):
            raise SoftbiasError(f'stem="conv" halves the image, so patch_size must be 2, 4, 8, …, but is {self.patch_size}')
        if self.stem in ("strided", "residual") and (len({*self.patch_size}) > 1 or self.patch_size[0] < 2):
            raise SoftbiasError(
                f'stem="{self.stem}" takes square patches of at least 2 pixels, but patch_size={self.patch_size}'
            )
        for image, patch, side in zip(self.img_size, self.patch_size, ("height", "width"), strict=True):
            if image % patch:
                raise SoftbiasError(
                    f"the image's {side} must be a multiple of the patch's, but {image} is not a multiple of {patch}; "
                    f"nearest that works: {max(1, round(image / patch)) * patch}"
                )
        patches = math.prod(image // patch for image, patch in zip(self.img_size, self.patch_size, strict=True))
        if patches > MOST_PATCHES:
            raise SoftbiasError(
                f"an image has at most {MOST_PATCHES:,} patches, but img_size={self.img_size} and "
                f"patch_size={self.patch_size} give {patches:,}"
            )

    @property
    def depth(self) -> int:
        return len(self.layers)

    def grid(self, block: int) -> Grid:
        """The positions of the tokens of a block: patches, and the class token once it has joined."""
        height, width = (image // patch for image, patch in zip(self.img_size, self.patch_size, strict=True))
        joined = self.class_token is not None and self.class_token <= block
        return Grid(height, width, prefix=int(joined))

    def describe_layers(self) -> str:
        """Mechanisms in block order, runs joined: "10 × gated, 2 × full"."""
        runs: list[tuple[str, int]] = []
        for layer in self.layers:
            name = layer.describe()
            if runs and runs[-1][0] == name:
                runs[-1] = (name, runs[-1][1] + 1)
            else:
                runs.append((name, 1))
        names = [name for name, _ in runs]
        if len(runs) > 3 and names == [names[index % 2] for index in range(len(names))]:
            return f"{len(runs)} × {' / '.join(names[:2])}"
        return ", ".join(f"{count} × {name}" for name, count in runs)

    def to_dict(self) -> dict[str, Any]:
        plain = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        plain["layers"] = [{"attention": layer.attention, "options": dict(layer.options)} for layer in self.layers]
        plain |= {name: list(plain[name]) for name in ("img_size", "patch_size", "dropout_in")}
        return {"kind": self.kind, **plain}


@dataclass(frozen=True)
class ResNetSpec(Checked):
    """A residual convolutional network (He et al., 2016), the comparator of every study.

    stem           "large": 7 × 7 convolution of stride 2 and a max-pool, for 224 px; "small": one 3 × 3 convolution
    start_closed   whether the last norm of each block starts at zero, so that the block starts as the identity. torchvision's
                   starts at one: with `stem="large"` and False, the model and its initial weights are torchvision's
    """

    img_size: tuple[Side, Side]
    blocks: Annotated[tuple[Annotated[int, Within(1, MOST_BLOCKS)], ...], Length(1, 32)] = (3, 4, 6, 3)
    channels: Annotated[tuple[Width, ...], Length(1, 32)] = (64, 128, 256, 512)
    bottleneck: bool = True
    stem: Literal["large", "small"] = "large"
    num_classes: Classes = 1000
    in_chans: Channels = 3
    drop_path: NotWhole = 0.0
    start_closed: bool = True

    kind = "resnet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", pair("img_size", self.img_size))
        super().__post_init__()
        if len(self.blocks) != len(self.channels):
            raise SoftbiasError(f"blocks and channels must be equally many, but are {self.blocks} and {self.channels}")

    def describe_layers(self) -> str:
        return f"{sum(self.blocks)} × {'bottleneck' if self.bottleneck else 'basic'} convolution"

    def to_dict(self) -> dict[str, Any]:
        return plain_spec(self)


@dataclass(frozen=True)
class DWNetSpec(Checked):
    """A network of depth-wise convolutions in four stages (Han et al., 2022), the "local" network of the ETH study.

    blocks        of each stage; the map is halved and the channels are doubled between stages
    width         channels of the first stage
    dynamic       kernels per image, predicted from its average; or one learned kernel per channel
    """

    img_size: tuple[Side, Side]
    blocks: Annotated[tuple[Annotated[int, Within(1, MOST_BLOCKS)], ...], Length(1, 8)] = (2, 2, 6, 2)
    width: Annotated[int, Within(4, 8192)] = 96
    dynamic: bool = False
    kernel_size: Annotated[int, Within(1, 63)] = 7
    num_classes: Classes = 1000
    in_chans: Channels = 3
    drop_path: NotWhole = 0.0

    kind = "dwnet"

    def __post_init__(self) -> None:
        object.__setattr__(self, "img_size", pair("img_size", self.img_size))
        super().__post_init__()
        if self.kernel_size % 2 == 0:
            raise SoftbiasError(f"kernel_size must be odd, but kernel_size={self.kernel_size}")
        if any(side % DWNET_PATCH for side in self.img_size):
            raise SoftbiasError(
                f"a dwnet takes images whose sides are multiples of {DWNET_PATCH} pixels, but img_size={self.img_size}"
            )

    def describe_layers(self) -> str:
        kernels = f"{'dynamic ' * self.dynamic}{self.kernel_size} × {self.kernel_size}"
        return f"{' + '.join(map(str, self.blocks))} × {kernels} depth-wise convolution"

    def to_dict(self) -> dict[str, Any]:
        return plain_spec(self)


Spec = ModelSpec | ResNetSpec | DWNetSpec


def plain_spec(spec: ResNetSpec | DWNetSpec) -> dict[str, Any]:
    plain = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return {"kind": spec.kind, **{name: list(v) if isinstance(v, tuple) else v for name, v in plain.items()}}


def spec_from_dict(plain: Mapping[str, Any], where: str = "a model's spec") -> Spec:
    """The inverse of `to_dict`; a field that is unknown, missing or of a wrong type is an error. `where` names the file."""
    kinds: dict[str, type[Spec]] = {"transformer": ModelSpec, "resnet": ResNetSpec, "dwnet": DWNetSpec}
    given = from_plain(dict[str, Any], plain, where)
    kind = given.pop("kind", "transformer")
    if kind not in kinds:
        raise unknown_name("kind of model", kind, kinds)
    return from_plain(kinds[kind], given, where)


def pair(name: str, value: Any) -> tuple[int, int]:
    """
    >>> pair("img_size", 32), pair("img_size", [24, 32])
    ((32, 32), (24, 32))
    """
    sides: int | tuple[int, int] = convert(Side | tuple[Side, Side], value, "", name)
    return (sides, sides) if isinstance(sides, int) else sides
