"""Each operation of RandAugment for explicit arguments, against PIL's and timm's own functions."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps
from scipy import stats
from timm.data import auto_augment
from torch import Tensor

from softbias.data.augment import RandAugment, randaugment
from softbias.data.augment.apply import Augmentation, augment
from softbias.data.augment.geometry import warp
from softbias.data.augment.randaugment import (
    NOTHING,
    OPERATIONS,
    ROTATE,
    SHEAR_X,
    arguments,
    draw_layers,
    layer_matrix,
    photometric,
)
from softbias.data.augment.rng import Stream

SIZE = (24, 30)


def random_images(count: int = 4) -> Tensor:
    """Smooth shapes with noise, of different contrast: neither constant nor pure noise.  # (B, 3, 24, 30) uint8"""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[: SIZE[0], : SIZE[1]]
    waves = [np.sin(x / generator.uniform(2, 6) + c) + np.cos(y / generator.uniform(2, 6)) for c in range(3 * count)]
    values = np.stack(waves).reshape(count, 3, *SIZE) * generator.uniform(10, 40, (count, 3, 1, 1)) + 110
    return torch.from_numpy(np.clip(values + generator.normal(0, 8, values.shape), 0, 255).astype(np.uint8))


def with_pil(images: Tensor, change: Callable[[Image.Image], Image.Image]) -> Tensor:
    changed = [change(Image.fromarray(image.permute(1, 2, 0).numpy())) for image in images]
    return torch.stack([torch.from_numpy(np.array(image)).permute(2, 0, 1) for image in changed]).float()


def layer(name: str, argument: float, count: int = 4) -> randaugment.Layer:
    return torch.full((count,), OPERATIONS.index(name)), torch.full((count,), argument)


PHOTOMETRIC = {
    "autocontrast": (0.0, ImageOps.autocontrast),
    "equalize": (0.0, ImageOps.equalize),
    "invert": (0.0, ImageOps.invert),
    "posterize 1": (1.0, lambda image: ImageOps.posterize(image, 1)),
    "posterize 3": (3.0, lambda image: ImageOps.posterize(image, 3)),
    "solarize 100": (100.0, lambda image: ImageOps.solarize(image, 100)),
    "solarize_add 60": (60.0, lambda image: auto_augment.solarize_add(image, 60)),
    "color 0.2": (0.2, lambda image: ImageEnhance.Color(image).enhance(0.2)),
    "color 1.8": (1.8, lambda image: ImageEnhance.Color(image).enhance(1.8)),
    "contrast 0.3": (0.3, lambda image: ImageEnhance.Contrast(image).enhance(0.3)),
    "contrast 1.9": (1.9, lambda image: ImageEnhance.Contrast(image).enhance(1.9)),
    "brightness 0.4": (0.4, lambda image: ImageEnhance.Brightness(image).enhance(0.4)),
    "brightness 1.7": (1.7, lambda image: ImageEnhance.Brightness(image).enhance(1.7)),
    "sharpness 0.1": (0.1, lambda image: ImageEnhance.Sharpness(image).enhance(0.1)),
    "sharpness 1.9": (1.9, lambda image: ImageEnhance.Sharpness(image).enhance(1.9)),
}
EXACT = {"equalize", "invert", "posterize 1", "posterize 3", "solarize 100", "solarize_add 60"}


@pytest.mark.parametrize("name", PHOTOMETRIC)
def test_a_photometric_operation_equals_pils_to_one_level(name: str):
    argument, reference = PHOTOMETRIC[name]
    images = random_images()
    ours, expected = photometric(images.float(), layer(name.split()[0], argument)), with_pil(images, reference)
    assert (expected - images.float()).abs().mean() > 1  # the reference does something
    assert (ours - expected).abs().max() <= (0 if name in EXACT else 1)


@pytest.mark.parametrize(
    ("name", "argument", "reference"),
    [
        ("rotate", 17.0, lambda image: image.rotate(17.0, resample=Image.Resampling.BILINEAR)),
        ("rotate", -30.0, lambda image: image.rotate(-30.0, resample=Image.Resampling.BILINEAR)),
        ("shear_x", 0.25, lambda image: auto_augment.shear_x(image, 0.25, resample=Image.Resampling.BILINEAR)),
        ("shear_y", -0.3, lambda image: auto_augment.shear_y(image, -0.3, resample=Image.Resampling.BILINEAR)),
        ("translate_x", 0.21, lambda image: auto_augment.translate_x_rel(image, 0.21, resample=Image.Resampling.BILINEAR)),
        ("translate_y", -0.4, lambda image: auto_augment.translate_y_rel(image, -0.4, resample=Image.Resampling.BILINEAR)),
    ],
)
def test_a_geometric_operation_equals_timms_away_from_the_border(name: str, argument: float, reference):
    images = random_images()
    matrix = layer_matrix(layer(name, argument), SIZE)
    ours, expected = warp(images.float(), matrix, SIZE), with_pil(images, reference)
    inside = torch.zeros(1, 1, *SIZE)
    inside[..., 1:-1, 1:-1] = 1
    inside = (warp(inside.expand(4, 1, *SIZE), matrix, SIZE) > 0.999).expand_as(ours)
    assert inside.float().mean() > 0.3
    assert (ours - expected)[inside].abs().max() <= 1.01


def test_operations_a_sample_did_not_draw_leave_it_alone():
    images = random_images().float()
    for name in (*OPERATIONS, None):
        operation = torch.full((4,), NOTHING if name is None else OPERATIONS.index(name))
        geometric = name in {"rotate", "shear_x", "shear_y", "translate_x", "translate_y"}
        drawn = operation, torch.full((4,), 2.0)
        identity = torch.eye(2, 3).expand(4, 2, 3)
        assert torch.equal(layer_matrix(drawn, SIZE), identity) != geometric
        assert torch.equal(photometric(images, drawn), images) == (geometric or name is None), name


def test_each_sample_of_a_batch_gets_its_own_operation():
    images = random_images(15).float()
    operation, argument = torch.arange(15), torch.full((15,), 1.5)
    together = photometric(images, (operation, argument))
    for i in range(15):
        alone = photometric(images[i : i + 1], (operation[i : i + 1], argument[i : i + 1]))
        assert torch.equal(together[i : i + 1], alone)


def test_a_picture_of_one_level_survives_autocontrast_and_equalize():
    flat = torch.full((1, 3, 8, 8), 77.0)
    for name in ("autocontrast", "equalize"):
        assert torch.equal(photometric(flat, layer(name, 0.0, 1)), flat)


TIMM_LEVELS = {
    "rotate": ("Rotate", "Rotate"),
    "posterize": ("Posterize", "PosterizeIncreasing"),
    "solarize": ("Solarize", "SolarizeIncreasing"),
    "solarize_add": ("SolarizeAdd", "SolarizeAdd"),
    "color": ("Color", "ColorIncreasing"),
    "contrast": ("Contrast", "ContrastIncreasing"),
    "brightness": ("Brightness", "BrightnessIncreasing"),
    "sharpness": ("Sharpness", "SharpnessIncreasing"),
    "shear_x": ("ShearX", "ShearX"),
    "shear_y": ("ShearY", "ShearY"),
    "translate_x": ("TranslateXRel", "TranslateXRel"),
    "translate_y": ("TranslateYRel", "TranslateYRel"),
}


@pytest.mark.parametrize("increasing", [False, True])
@pytest.mark.parametrize("name", TIMM_LEVELS)
def test_a_level_means_what_it_means_in_timm(name: str, increasing: bool, monkeypatch: pytest.MonkeyPatch):
    meaning = auto_augment.LEVEL_TO_ARG[TIMM_LEVELS[name][increasing]]
    operation = torch.tensor([OPERATIONS.index(name)])
    for level in (0.0, 2.2, 5.0, 9.0, 10.0):
        for sign, coin in ((1.0, 0.1), (-1.0, 0.9)):
            monkeypatch.setattr(random, "random", lambda coin=coin: coin)
            ours = arguments(operation, torch.tensor([level]), torch.tensor([sign]), increasing).item()
            expected = meaning(level, {})[0]
            assert ours == pytest.approx(max(expected, 1) if name == "posterize" else expected, abs=1e-5)


def test_operations_are_drawn_equally_often_and_half_of_them_applied():
    stream = Stream.of(0, 0, torch.arange(30_000))
    first, second = draw_layers(stream, RandAugment.parse("rand-m9-mstd0.5-inc1"))
    for operation, _ in (first, second):
        counts = torch.bincount(operation, minlength=16)
        assert counts[NOTHING].item() == pytest.approx(15_000, abs=500)
        assert stats.chisquare(counts[:NOTHING].numpy()).pvalue > 1e-4
    assert stats.chi2_contingency(torch.bincount(first[0] * 16 + second[0], minlength=256).view(16, 16)).pvalue > 1e-4


def test_magnitudes_vary_around_their_mean_and_stop_at_the_greatest():
    stream = Stream.of(0, 0, torch.arange(30_000))
    ((operation, argument),) = draw_layers(stream, RandAugment.parse("rand-m9-n1-p1-mstd0.5-inc1"))
    degrees = argument[operation == OPERATIONS.index("rotate")].abs()
    assert degrees.max().item() == pytest.approx(30.0)
    assert degrees[degrees < 29.99].std().item() == pytest.approx(1.5, abs=0.2)
    assert degrees.median().item() == pytest.approx(27.0, abs=0.2)
    ((operation, argument),) = draw_layers(stream, RandAugment.parse("rand-m9-n1-p1-mstd101"))
    degrees = argument[operation == OPERATIONS.index("rotate")].double().numpy()
    assert stats.kstest(degrees, "uniform", args=(-27, 54)).pvalue > 1e-4


def test_augment_applies_the_drawn_operations_in_their_order():
    y, x = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    ramps = torch.stack([60 + 4 * x, 60 + 4 * y, 100 + 2 * (x + y)])  # interpolating a ramp is exact, so is doing it twice
    images, index = ramps.byte().expand(400, 3, 24, 24), torch.arange(400)
    policy = "rand-m3-n2-p1-inc1"
    given = augment(images, index, 0, 0, Augmentation(randaugment=policy), (0.0,) * 3, (1 / 255,) * 3)
    first, second = draw_layers(Stream.of(0, 0, index), RandAugment.parse(policy))
    moves = [(operation == ROTATE) | (operation >= SHEAR_X) for operation, _ in (first, second)]
    colored = ~moves[0] & ~moves[1]
    torch.testing.assert_close(given[colored], photometric(photometric(images.float(), first), second)[colored])
    one_by_one, seen = images.float(), torch.ones(400, 1, 24, 24)
    for layer in (first, second):
        one_by_one, seen = (warp(what, layer_matrix(layer, (24, 24)), (24, 24)) for what in (one_by_one, seen))
    inside = ((seen > 0.999) & (moves[0] & moves[1])[:, None, None, None]).expand_as(given)
    assert min(colored.sum(), (moves[0] & moves[1]).sum()) > 30
    torch.testing.assert_close(given[inside], one_by_one[inside], rtol=0, atol=0.51)  # rounded to whole levels


def test_the_notation_is_timms_and_anything_else_is_refused():
    assert RandAugment.parse("rand-m7-n3-p0.8-mmax12").layers == 3
    for wrong in ("augmix-m3", "rand-m9-w0", "rand-m", "rand-tweights"):
        with pytest.raises(ValueError, match=r"rand-m9-mstd0\.5-inc1"):
            RandAugment.parse(wrong)
    with pytest.raises(ValueError, match="from 0 to 1"):
        RandAugment.parse("rand-p2")
