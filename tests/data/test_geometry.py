"""Where pixels come from: crops, flips, affine moves and quarter turns."""

from __future__ import annotations

import math

import pytest
import torch
import torchvision.transforms.v2.functional as reference
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms.v2 import InterpolationMode, RandomResizedCrop

from softbias.data.augment import geometry
from softbias.data.augment.apply import Augmentation, augment, normalize, rotate_quarter
from softbias.data.augment.rng import Stream

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
ZERO, ONE = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)  # gives the levels 0 … 255 back


def random_images(count: int = 8, height: int = 16, width: int = 16) -> Tensor:
    """# (B, 3, H, W) uint8, without a zero"""
    return torch.randint(1, 256, (count, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def levels(images: Tensor, settings: Augmentation, epoch: int = 0, **options) -> Tensor:
    return augment(images, torch.arange(len(images)), epoch, 0, settings, ZERO, ONE, **options)


def test_flips_mirror_columns_or_rows():
    images = random_images(height=12)
    assert torch.equal(levels(images, Augmentation(flip=1.0)), images.flip(-1).float())
    assert torch.equal(levels(images, Augmentation(vertical_flip=1.0)), images.flip(-2).float())


def test_a_flip_of_a_half_turns_half_of_the_samples_anew_in_each_epoch():
    images = random_images(1000, 2, 2)
    flipped = [(levels(images, Augmentation(flip=0.5), epoch) == images.flip(-1)).flatten(1).all(1) for epoch in (0, 1)]
    assert flipped[0].float().mean().item() == pytest.approx(0.5, abs=0.06)
    assert (flipped[0] == flipped[1]).float().mean().item() == pytest.approx(0.5, abs=0.06)


def test_horizontal_and_vertical_flips_are_drawn_separately():
    rows, columns = geometry.draw_flips(Stream.of(0, 0, torch.arange(4000)), Augmentation(flip=0.5, vertical_flip=0.5))
    assert torch.bincount(2 * rows + columns).min() > 900


def test_what_a_seed_gives_never_changes():
    stream, index = Stream.of(3, 1, torch.arange(6)), torch.arange(6)
    boxes = geometry.draw_crops(stream, Augmentation(crop="pad"), (32, 32), (32, 32))
    assert [side.tolist() for side in boxes[:2]] == [[2, 4, 0, 4, 0, -3], [2, -3, 3, -2, -1, -3]]
    boxes = geometry.draw_crops(stream, Augmentation(crop="resized"), (32, 32), (32, 32))
    assert [side.tolist() for side in boxes] == [
        [2, 16, 6, 10, 3, 2],
        [2, 2, 14, 4, 5, 2],
        [29, 15, 19, 22, 25, 18],
        [30, 17, 16, 19, 19, 17],
    ]
    _, flips = geometry.draw_flips(stream, Augmentation(flip=0.5))
    assert flips.tolist() == [False, True, False, True, False, True]
    flat = torch.arange(6 * 3 * 8 * 8).reshape(6, 3, 8, 8).remainder(251).byte()
    given = augment(flat, index, 1, 3, Augmentation(crop="pad", crop_padding=0.5, flip=0.5, cutout=0.375), ZERO, ONE)
    assert given.sum((1, 2, 3)).tolist() == [9225.0, 7578.0, 13428.0, 8555.0, 14970.0, 9125.0]


@pytest.mark.parametrize("fill", ["zero", "mean", "reflect"])
def test_a_pad_crop_is_a_window_of_the_padded_picture(fill: str):
    images, settings = random_images(height=12), Augmentation(crop="pad", crop_padding=0.25, fill=fill, flip=0.5)
    mode = {"mode": "reflect"} if fill == "reflect" else {}
    value = 255 * torch.tensor(MEAN)[:, None, None] if fill == "mean" else torch.zeros(3, 1, 1)
    padded = pad(images.float() - value, (4, 4, 3, 3), **mode) + value  # a quarter of 16 columns, and of 12 rows
    given = augment(images, torch.arange(8), 0, 0, settings, MEAN, STD)
    stream = Stream.of(0, 0, torch.arange(8))
    top, left, _, _ = geometry.draw_crops(stream, settings, (12, 16), (12, 16))
    _, flip = geometry.draw_flips(stream, settings)
    for i in range(8):
        window = padded[i, :, 3 + top[i] : 15 + top[i], 4 + left[i] : 20 + left[i]]
        window = window.flip(-1) if flip[i] else window
        torch.testing.assert_close(given[i : i + 1], normalize(window[None], MEAN, STD), rtol=1e-5, atol=1e-5)
    assert len({(int(t), int(x)) for t, x in zip(top, left, strict=True)}) > 4


@pytest.mark.parametrize(("height", "width"), [(28, 28), (32, 32), (96, 64), (224, 224)])
def test_pad_crops_move_by_an_eighth_of_each_side_at_every_size(height: int, width: int):
    stream, size = Stream.of(0, 0, torch.arange(20_000)), (height, width)
    top, left, _, _ = geometry.draw_crops(stream, Augmentation(crop="pad"), size, size)
    down, across = (height + 4) // 8, (width + 4) // 8
    assert (top.min().item(), top.max().item(), left.min().item(), left.max().item()) == (-down, down, -across, across)


def test_pad_crops_reach_every_position():
    stream = Stream.of(0, 0, torch.arange(5000))
    top, left, _, _ = geometry.draw_crops(stream, Augmentation(crop="pad", crop_padding=0.25), (8, 8), (8, 8))
    assert torch.bincount((top + 2) * 5 + left + 2, minlength=25).min() > 120  # 25 places, 200 each


def test_a_smaller_size_is_cut_out_of_the_middle_or_at_random():
    images = random_images(height=20, width=24)
    assert torch.equal(levels(images, Augmentation(), size=(16, 16)), images[..., 2:18, 4:20].float())
    assert levels(images, Augmentation(crop="pad", crop_padding=0), size=(16, 16)).min() >= 1  # nothing from outside
    assert levels(images, Augmentation(crop="resized", rotate_degrees=9), size=(16, 18)).shape == (8, 3, 16, 18)


def test_resized_crops_have_torchvisions_areas_and_aspects():
    settings = Augmentation(crop="resized", crop_scale=(0.2, 0.9))
    source = (48, 64)
    top, left, height, width = geometry.draw_crops(Stream.of(0, 0, torch.arange(4000)), settings, source, (32, 32))
    assert min(top.min(), left.min()) >= 0
    assert ((top + height <= 48) & (left + width <= 64)).all()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        transform = RandomResizedCrop(32, scale=(0.2, 0.9))
        drawn = [transform.make_params([torch.empty(3, *source)]) for _ in range(4000)]
    for ours, name in ((top, "top"), (left, "left"), (height, "height"), (width, "width")):
        expected = torch.tensor([float(one[name]) for one in drawn])
        assert ours.double().mean().item() == pytest.approx(expected.mean().item(), abs=0.8), name
        assert ours.double().std().item() == pytest.approx(expected.std().item(), rel=0.06), name


def test_a_resized_crop_is_the_bilinear_resize_of_its_rectangle():
    images, settings = random_images(height=24, width=20), Augmentation(crop="resized", crop_scale=(0.2, 0.6))
    given = levels(images, settings, size=(24, 20))
    boxes = geometry.draw_crops(Stream.of(0, 0, torch.arange(8)), settings, (24, 20), (24, 20))
    for i, (top, left, height, width) in enumerate(zip(*(side.tolist() for side in boxes), strict=True)):
        expected = reference.resized_crop(images[i].float(), top, left, height, width, [24, 20], antialias=False)
        middle = slice(3, -3)  # at the crop's border we look beyond it, they repeat its edge
        torch.testing.assert_close(given[i][:, middle, middle], expected[:, middle, middle], rtol=0, atol=0.05)


def test_where_no_rectangle_fits_the_largest_central_one_is_taken():
    settings = Augmentation(crop="resized", crop_scale=(1.0, 1.0), crop_ratio=(3.0, 3.0))
    boxes = geometry.draw_crops(Stream.of(0, 0, torch.arange(5)), settings, (30, 30), (8, 8))
    assert [side.unique().tolist() for side in boxes] == [[10], [0], [10], [30]]


@pytest.mark.parametrize(
    ("turn", "zoom", "shear", "right", "down"),
    [(20, 1, 0, 0, 0), (0, 1.3, 0, 0, 0), (0, 1, 15, 0, 0), (0, 1, 0, 3, -2), (-12, 0.8, 8, 2, 1)],
)
def test_an_affine_move_is_torchvisions(turn: float, zoom: float, shear: float, right: int, down: int):
    images = random_images(2, 24, 30)
    values = (math.radians(turn), zoom, math.radians(shear), float(right), float(down))
    matrix = geometry.affine_matrix(*(torch.full((2,), value) for value in values))
    expected = reference.affine(
        images.float(), -turn, [right, down], zoom, [shear, 0.0], interpolation=InterpolationMode.BILINEAR
    )
    torch.testing.assert_close(geometry.warp(images.float(), matrix, (24, 30)), expected, rtol=0, atol=0.05)


def test_moves_stay_within_their_ranges():
    stream, settings = Stream.of(0, 0, torch.arange(3000)), Augmentation(rotate_degrees=20, translate=0.25)
    moves = geometry.draw_affine(stream, settings, (40, 60))
    degrees = torch.rad2deg(torch.atan2(moves[:, 1, 0], moves[:, 0, 0]))
    shift = torch.linalg.solve(moves[:, :, :2], moves[:, :, 2:])[..., 0]
    assert 19.5 < degrees.abs().max() <= 20.001
    assert 14.5 < shift[:, 0].abs().max() <= 15.001
    assert 9.5 < shift[:, 1].abs().max() <= 10.001


def test_composed_matrices_do_one_after_the_other():
    position = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    position[:, 2] = 1
    first, second = torch.randn(2, 5, 2, 3, generator=torch.Generator().manual_seed(1))
    inner = torch.cat([(second @ position[..., None])[..., 0], torch.ones(5, 1)], 1)
    expected = (first @ inner[..., None])[..., 0]
    torch.testing.assert_close((geometry.compose(first, second) @ position[..., None])[..., 0], expected)


def test_a_picture_is_cropped_then_flipped_then_moved():
    images = random_images(16, 24, 24)
    copied = {"crop": "pad", "crop_padding": 5 / 24, "flip": 1.0}
    together = levels(images, Augmentation(**copied, rotate_degrees=40, translate=0.2))
    first = levels(images, Augmentation(**copied))
    moves = geometry.draw_affine(Stream.of(0, 0, torch.arange(16)), Augmentation(rotate_degrees=40, translate=0.2), (24, 24))
    inside = geometry.warp((first > 0).float(), moves, (24, 24)) > 0.999  # beyond its crop we still see the picture
    assert inside.float().mean() > 0.3
    torch.testing.assert_close(together[inside], geometry.warp(first, moves, (24, 24))[inside], rtol=0, atol=0.05)


def test_outside_lies_black_the_mean_or_the_mirrored_picture():
    images = torch.full((4, 3, 16, 16), 200, dtype=torch.uint8)
    for fill, corner in (("zero", 0.0), ("mean", 128.0), ("reflect", 200.0)):
        matrix = geometry.affine_matrix(torch.full((4,), 0.7), *torch.tensor([[1.0], [0], [0], [0]]).expand(4, 4))
        outside = torch.full((3, 1, 1), 128.0) if fill == "mean" else None
        turned = geometry.warp(images.float(), matrix, (16, 16), fill=outside, reflect=fill == "reflect")
        assert turned[0, 0, 0, 0].item() == pytest.approx(corner, abs=1e-3)
        assert turned[0, 0, 8, 8].item() == pytest.approx(200, abs=1e-3)


def test_a_quarter_turn_is_rot90():
    images, quarters = random_images(), torch.arange(8) % 4
    turned = rotate_quarter(images, quarters)
    for i in range(8):
        assert torch.equal(turned[i], torch.rot90(images[i], i % 4, (-2, -1)))
    with pytest.raises(ValueError, match="12 × 16"):
        rotate_quarter(random_images(height=12), quarters)
