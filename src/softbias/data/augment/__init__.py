"""Augmentation on the device. The settings are here, without torch, so that a command line can read them quickly.

The order is fixed: crop, flips, affine and RandAugment's geometric operations (together one resampling), RandAugment's
photometric operations, color jitter and grayscale, normalization, cutout, erasing; then mixup or CutMix with another
image of the training set. The modules `apply` and `mixing` do it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from softbias.bounds import Probability, Rising, ShareOfSide, ShortText, Within
from softbias.errors import SoftbiasError
from softbias.schema import Checked

Crop = Literal["none", "pad", "resized"]
Fill = Literal["zero", "mean", "reflect"]
ErasingValue = Literal["zero", "noise"]
Strength = Annotated[float, Within(0, 100)]
Area = Annotated[float, Within(0, 1, above=True)]
Factor = Annotated[float, Within(0, 100, above=True)]
AreaRange = Annotated[tuple[Area, Area], Rising()]
FactorRange = Annotated[tuple[Factor, Factor], Rising()]
Margin = Annotated[float, ShareOfSide(0, 1)]


@dataclass(frozen=True)
class RandAugment(Checked):
    """`layers` operations per image, each one of fifteen and applied with `probability` (Cubuk et al., 2020; timm's form).

    magnitude, of at most `magnitude_max`, is normally distributed with `magnitude_std`, or uniform from 0 to magnitude
    where `magnitude_std` is above 100. With `increasing` every operation becomes stronger with magnitude.
    """

    layers: Annotated[int, Within(0, 100)] = 2
    magnitude: Strength = 10.0
    magnitude_std: Annotated[float, Within(0, 1000)] = 0.0
    magnitude_max: Factor = 10.0
    probability: Probability = 0.5
    increasing: bool = False

    @staticmethod
    def parse(text: str) -> RandAugment:
        """timm's notation.

        >>> RandAugment.parse("rand-m9-mstd0.5-inc1")
        RandAugment(layers=2, magnitude=9.0, magnitude_std=0.5, magnitude_max=10.0, probability=0.5, increasing=True)
        """
        kind, *sections = text.split("-")
        words = {"m": "magnitude", "n": "layers", "p": "probability", "mstd": "magnitude_std", "mmax": "magnitude_max"}
        values: dict[str, float] = {}
        for section in sections:
            match = re.fullmatch(r"([a-z]+)(\d+(?:\.\d+)?)", section)
            if kind != "rand" or match is None or match[1] not in {*words, "inc"}:
                kind = ""
                break
            values[words.get(match[1], "increasing")] = float(match[2])
        if kind != "rand":
            raise SoftbiasError(
                f"randaugment={text!r} is not understood; write it as timm does, for example 'rand-m9-mstd0.5-inc1', "
                "from the parts m (magnitude), n (operations), p (probability), mstd, mmax and inc"
            )
        layers = int(min(values.pop("layers", 2), 1e9))
        increasing = bool(values.pop("increasing", 0))
        try:
            return RandAugment(layers=layers, increasing=increasing, **values)
        except SoftbiasError as error:
            raise SoftbiasError(f"randaugment={text!r}: {error}") from error


@dataclass(frozen=True)
class Augmentation(Checked):
    """The operations on a training image; the defaults only normalize it.

    >>> Augmentation(crop="pad", flip=0.5, cutmix=1.0).describe()
    'pad-crop by 0.125 of the side (zero), flip 0.5, CutMix α=1'
    """

    crop: Crop = "none"  # "pad": from the image with `crop_padding` around it; "resized": torchvision's RandomResizedCrop
    crop_padding: Margin = 0.125  # at each border, as a share of the side: 4 of 32 pixels
    crop_scale: AreaRange = (0.08, 1.0)  # share of the image's area
    crop_ratio: FactorRange = (3 / 4, 4 / 3)  # width / height
    fill: Fill = "zero"  # beyond the border: black, the normalization's mean, or the image mirrored
    flip: Probability = 0.0
    vertical_flip: Probability = 0.0
    rotate_degrees: Annotated[float, Within(0, 180)] = 0.0  # uniform in ±
    translate: Probability = 0.0  # uniform in ± this share of each side
    zoom: FactorRange = (1.0, 1.0)  # uniform
    shear_degrees: Annotated[float, Within(0, 80)] = 0.0  # uniform in ±, along the rows
    randaugment: ShortText | None = None  # timm's notation: "rand-m9-mstd0.5-inc1"
    brightness: Strength = 0.0  # factor uniform in 1 ± this, as contrast and saturation
    contrast: Strength = 0.0
    saturation: Strength = 0.0
    hue: Annotated[float, Within(0, 0.5)] = 0.0  # turn of the color circle, uniform in ±; 0.5 is half of it
    grayscale: Probability = 0.0
    cutout: Margin = 0.0  # side of a square set to the mean, as a share of the shorter side; it may reach over the border
    erasing: Probability = 0.0  # of a rectangle
    erasing_scale: AreaRange = (0.02, 1 / 3)  # share of the area
    erasing_ratio: FactorRange = (0.3, 1 / 0.3)  # height / width
    erasing_value: ErasingValue = "zero"  # after normalization; "noise" is normally distributed
    mixup: Strength = 0.0  # α of λ ~ Beta(α, α); 0: no mixup
    cutmix: Strength = 0.0  # the same
    mix_probability: Probability = 1.0  # that an image is mixed at all
    mix_switch: Probability = 0.5  # that it is CutMix, where both are on
    repeats: Annotated[int, Within(1, 1000)] = 1  # appearances of an image in a batch, each time different

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.randaugment_settings  # refuses an unknown notation; torch.compile cannot trace the parser

    @cached_property
    def randaugment_settings(self) -> RandAugment | None:
        return None if self.randaugment is None else RandAugment.parse(self.randaugment)

    @property
    def mixes(self) -> bool:
        return (self.mixup > 0 or self.cutmix > 0) and self.mix_probability > 0

    @property
    def moves(self) -> bool:
        """Whether rotation, translation, zoom or shear are on."""
        return bool(self.rotate_degrees or self.translate or self.shear_degrees) or self.zoom != (1.0, 1.0)

    @property
    def jitters(self) -> bool:
        """Whether colors change."""
        return bool(self.brightness or self.contrast or self.saturation or self.hue or self.grayscale)

    @property
    def resamples(self) -> bool:
        """Whether pixels are interpolated; without that, geometry copies them exactly."""
        return self.crop == "resized" or self.moves or self.randaugment is not None

    def describe(self) -> str:
        """One line, in the order of the operations."""
        parts = {
            f"pad-crop by {self.crop_padding:g} of the side ({self.fill})": self.crop == "pad",
            f"resized crop of {span(self.crop_scale)} of the area": self.crop == "resized",
            f"flip {self.flip:g}": self.flip,
            f"vertical flip {self.vertical_flip:g}": self.vertical_flip,
            f"rotate ±{self.rotate_degrees:g}°": self.rotate_degrees,
            f"translate ±{self.translate:g}": self.translate,
            f"zoom {span(self.zoom)}": self.zoom != (1.0, 1.0),
            f"shear ±{self.shear_degrees:g}°": self.shear_degrees,
            f"RandAugment {self.randaugment}": self.randaugment,
            f"brightness ±{self.brightness:g}": self.brightness,
            f"contrast ±{self.contrast:g}": self.contrast,
            f"saturation ±{self.saturation:g}": self.saturation,
            f"hue ±{self.hue:g}": self.hue,
            f"grayscale {self.grayscale:g}": self.grayscale,
            f"cutout {self.cutout:g} of the side": self.cutout,
            f"erasing {self.erasing:g} ({self.erasing_value})": self.erasing,
            f"mixup α={self.mixup:g}": self.mixes and self.mixup,
            f"CutMix α={self.cutmix:g}": self.mixes and self.cutmix,
            f"mixing probability {self.mix_probability:g}": self.mixes and self.mix_probability < 1,
            f"{self.repeats} repeats": self.repeats > 1,
        }
        return ", ".join(part for part, on in parts.items() if on) or "none (normalized only)"


def span(values: tuple[float, float]) -> str:
    return f"{values[0]:g}–{values[1]:g}"
