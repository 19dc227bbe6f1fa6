from __future__ import annotations

from dataclasses import fields

import pytest
import torch
import torchvision.transforms.v2.functional as reference
from torch import Tensor

from softbias.data.augment import apply, color
from softbias.data.augment import rng as hashing
from softbias.data.augment.apply import Augmentation, augment, draws, normalize
from softbias.data.augment.mixing import plan_mix
from softbias.data.augment.rng import Stream
from softbias.training.recipe import RECIPES

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
ZERO, ONE = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)  # gives the levels 0 … 255 back
EVERYTHING = Augmentation(
    crop="resized", crop_scale=(0.3, 1.0), fill="mean", flip=0.5, vertical_flip=0.2, rotate_degrees=15, translate=0.1,
    zoom=(0.8, 1.2), shear_degrees=10, randaugment="rand-m9-mstd0.5-inc1", brightness=0.4, contrast=0.4, saturation=0.4,
    hue=0.1, grayscale=0.1, cutout=0.375, erasing=0.5, erasing_value="noise",
)  # fmt: skip
CHEAP = Augmentation(crop="pad", flip=0.5, cutout=0.25, erasing=0.5)


def random_images(count: int = 8, height: int = 16, width: int = 16) -> Tensor:
    """# (B, 3, H, W) uint8, without a zero"""
    return torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def levels(images: Tensor, settings: Augmentation, epoch: int = 0, **options) -> Tensor:
    return augment(images, torch.arange(len(images)), epoch, 0, settings, ZERO, ONE, **options)


def test_nothing_happens_by_default_but_normalization():
    images = random_images()
    expected = reference.normalize(images / 255, MEAN, STD)
    torch.testing.assert_close(
        augment(images, torch.arange(8), 3, 0, Augmentation(), MEAN, STD), expected, rtol=1e-5, atol=1e-5
    )
    torch.testing.assert_close(normalize(images, torch.tensor(MEAN), torch.tensor(STD)), expected, rtol=1e-5, atol=1e-5)
    assert Augmentation().describe() == "none (normalized only)"


def test_both_layouts_give_the_same():
    images = random_images(height=12)
    first = augment(images, torch.arange(8), 0, 0, EVERYTHING, MEAN, STD)
    assert torch.equal(augment(images.permute(0, 2, 3, 1), torch.arange(8), 0, 0, EVERYTHING, MEAN, STD), first)


@pytest.mark.parametrize("factor", [0.5, 1.0, 1.6])
def test_brightness_contrast_and_saturation_are_torchvisions(factor: float):
    images = random_images().float()
    factors, ones = torch.full((8,), factor), torch.ones(8)
    for i, adjust in enumerate((reference.adjust_brightness, reference.adjust_contrast, reference.adjust_saturation)):
        arguments = [factors if i == j else ones for j in range(3)]
        expected = adjust(images / 255, factor) * 255
        torch.testing.assert_close(color.adjust(images, *arguments), expected, rtol=0, atol=0.1)


def test_jitters_applied_together_equal_one_after_the_other_where_nothing_is_clipped():
    images = random_images().float() * 0.3 + 80
    together = color.adjust(images, torch.full((8,), 1.1), torch.full((8,), 0.8), torch.full((8,), 0.6))
    one_by_one = reference.adjust_brightness(images / 255, 1.1)
    one_by_one = reference.adjust_saturation(reference.adjust_contrast(one_by_one, 0.8), 0.6) * 255
    torch.testing.assert_close(together, one_by_one, rtol=0, atol=0.1)


@pytest.mark.parametrize("turns", [-0.5, -0.13, 0.0, 0.04, 0.25])
def test_the_hue_shifts_as_torchvisions(turns: float):
    images = torch.cat([random_images(6), random_images(2)[:, :1].expand(2, 3, 16, 16)]).float()  # the last two are gray
    expected = reference.adjust_hue(images / 255, turns) * 255
    torch.testing.assert_close(color.shift_hue(images, torch.full((8,), turns)), expected, rtol=0, atol=0.01)


def test_a_third_of_a_turn_of_the_hue_exchanges_the_channels():
    images = random_images().float()
    turned = color.shift_hue(images, torch.tensor([1 / 3, -1 / 3]).repeat(4))
    torch.testing.assert_close(turned[0::2], images[0::2, [2, 0, 1]], rtol=0, atol=0.01)
    torch.testing.assert_close(turned[1::2], images[1::2, [1, 2, 0]], rtol=0, atol=0.01)


def test_grayscale_takes_the_color_of_as_many_samples_as_asked():
    gray = levels(random_images(400, 4, 4), Augmentation(grayscale=0.25))
    colorless = (gray.amax(1) - gray.amin(1)).flatten(1).amax(1) < 1e-3
    assert colorless.float().mean().item() == pytest.approx(0.25, abs=0.07)


def test_cutout_takes_a_square_that_may_reach_over_the_border():
    images = torch.full((2000, 3, 16, 16), 255, dtype=torch.uint8)
    gone = levels(images, Augmentation(cutout=0.375)) == 0
    assert torch.equal(gone[:, 0], gone[:, 2])
    areas = gone[:, 0].sum((1, 2))
    assert (areas.max().item(), areas.min().item()) == (36, 9)
    assert gone[:, 0].float().mean(0)[8, 8].item() == pytest.approx(36 / 256, abs=0.03)


@pytest.mark.parametrize(("height", "width", "side"), [(28, 28, 7), (32, 32, 8), (96, 64, 16), (224, 224, 56)])
def test_cutout_covers_the_same_share_at_every_size(height: int, width: int, side: int):
    gone = levels(torch.full((64, 3, height, width), 255, dtype=torch.uint8), Augmentation(cutout=0.25))[:, 0] == 0
    rows, columns = gone.any(2).sum(1), gone.any(1).sum(1)
    assert (rows.max().item(), columns.max().item()) == (side, side)


def test_erasing_covers_the_share_that_was_asked_for():
    settings = Augmentation(erasing=0.4, erasing_scale=(0.1, 0.3))
    gone = apply.draw_erasing(Stream.of(0, 0, torch.arange(3000)), settings, (32, 32))
    areas = gone.float().mean((1, 2, 3))
    assert (areas > 0).float().mean().item() == pytest.approx(0.4, abs=0.03)
    erased = areas[areas > 0]
    assert erased.mean().item() == pytest.approx(0.2, abs=0.01)
    assert 0.09 < erased.min() < 0.11
    assert 0.29 < erased.max() < 0.32  # sides are rounded to whole pixels
    height = gone.any(-1).sum((1, 2)).float()
    ratio = height[areas > 0] ** 2 / (erased * 1024)
    assert 0.25 < ratio.min() < 0.4
    assert 2.6 < ratio.max() < 4


def test_erased_parts_become_the_mean_or_noise():
    images = random_images(500)
    for value in ("zero", "noise"):
        settings = Augmentation(erasing=1.0, erasing_value=value)
        given = augment(images, torch.arange(500), 0, 0, settings, MEAN, STD)
        gone = apply.draw_erasing(Stream.of(0, 0, torch.arange(500)), settings, (16, 16)).expand_as(given)
        kept = normalize(images, MEAN, STD)
        torch.testing.assert_close(given[~gone], kept[~gone], rtol=1e-5, atol=1e-5)
        spread = given[gone].std().item()
        assert spread == 0 if value == "zero" else spread == pytest.approx(1, abs=0.02)


def test_noise_differs_between_positions_channels_and_samples():
    noise = apply.noise(Stream.of(0, 0, torch.arange(200)), (16, 16))
    assert abs(torch.corrcoef(noise.transpose(0, 1).flatten(1)) - torch.eye(3)).max() < 0.02
    assert abs(torch.corrcoef(noise[:2].flatten(1)) - torch.eye(2)).max() < 0.15
    assert len(noise[0, 0].unique()) > 250


@pytest.mark.parametrize("settings", [CHEAP, EVERYTHING], ids=["cheap", "everything"])
def test_what_a_sample_becomes_does_not_depend_on_its_batch(settings: Augmentation):
    images, index = random_images(24), torch.arange(100, 124)
    whole = augment(images, index, 5, 9, settings, MEAN, STD)
    order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(augment(images[order], index[order], 5, 9, settings, MEAN, STD), whole[order])
    parts = [augment(images[i : i + 7], index[i : i + 7], torch.tensor(5), 9, settings, MEAN, STD) for i in range(0, 24, 7)]
    torch.testing.assert_close(torch.cat(parts), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("recipe", ["small", "quick", "deit", "arvit-pretrain"])
def test_everything_but_noise_is_drawn_at_once(monkeypatch, recipe: str):
    settings, asked = RECIPES[recipe].augmentation, []
    monkeypatch.setattr(hashing, "finalize", lambda z, usual=hashing.finalize: asked.append(tuple(z.shape)) or usual(z))
    levels(random_images(), settings)
    noise = [(8, 256)] if settings.erasing and settings.erasing_value == "noise" else []
    assert asked == [(8,), (8,), (8,), (8, sum(draws(settings).values())), *noise]
    if settings.mixes:
        asked.clear()
        plan_mix(torch.arange(8), 0, 0, 100, settings, (16, 16))
        assert asked == [(8,), (8,), (8,), (8, 7)]


@pytest.mark.parametrize("change", [{"epoch": 1}, {"seed": 1}, {"index": torch.arange(1, 9)}], ids=str)
def test_another_epoch_seed_or_index_gives_another_picture(change: dict):
    arguments = {"index": torch.arange(8), "epoch": 0, "seed": 0, "settings": EVERYTHING, "mean": MEAN, "std": STD}
    first, second = augment(random_images(), **arguments), augment(random_images(), **(arguments | change))
    assert ((first - second).abs().flatten(1).mean(1) > 0.01).all()


def test_stored_images_are_left_as_they_are():
    images = random_images()
    before = images.clone()
    for settings in (Augmentation(), CHEAP, EVERYTHING):
        levels(images, settings)
    assert torch.equal(images, before)


@pytest.mark.parametrize("settings", [CHEAP, pytest.param(EVERYTHING, marks=pytest.mark.slow)], ids=["cheap", "everything"])
def test_augmentation_compiles_into_one_graph(settings: Augmentation):
    def step(images: Tensor, index: Tensor, epoch: Tensor) -> Tensor:
        return augment(images, index, epoch, 0, settings, MEAN, STD)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for epoch in (0, 1):
        arguments = random_images(), torch.arange(8), torch.tensor(epoch)
        torch.testing.assert_close(compiled(*arguments), step(*arguments), rtol=0, atol=1e-5)


def test_a_description_names_everything_that_is_on():
    line = EVERYTHING.describe()
    for part in (
        "resized crop of 0.3–1",
        "flip 0.5",
        "±15°",
        "zoom 0.8–1.2",
        "rand-m9",
        "hue ±0.1",
        "cutout 0.375",
        "0.5 (noise)",
    ):
        assert part in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"crop": "padd"}, "did you mean 'pad'"),
        ({"fill": "black"}, "mean, reflect, zero"),
        ({"flip": 1.5}, "flip must be a number from 0 to 1"),
        ({"crop_scale": (0.5, 0.2)}, "smaller one first"),
        ({"cutout": -0.1}, "cutout must be a number from 0 to 1"),
        ({"crop_padding": 4}, r"4 of 32 pixels are 0\.125"),
        ({"cutout": 8}, r"8 of 32 pixels are 0\.25"),
        ({"hue": 0.7}, "from 0 to 0.5"),
        ({"randaugment": "m9"}, "write it as timm does"),
    ],
)
def test_impossible_settings_are_refused_with_the_choices(wrong: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Augmentation(**wrong)
    assert set(wrong) <= {field.name for field in fields(Augmentation)}


def test_impossible_images_are_refused_with_advice():
    index = torch.arange(8)
    for images, settings, options, message in [
        (random_images().float(), Augmentation(), {}, "before normalizing"),
        (random_images()[:, :2], Augmentation(), {}, r"\(B, H, W, 3\)"),
        (random_images(7), Augmentation(), {}, "7 pictures need as many indices"),
        (random_images(), Augmentation(), {"size": (20, 20)}, "crop='resized'"),
        (random_images(), Augmentation(crop="pad", crop_padding=1.0, fill="reflect"), {}, "crop_padding=1 is too much"),
    ]:
        with pytest.raises(ValueError, match=message):
            augment(images, index, 0, 0, settings, MEAN, STD, **options)
