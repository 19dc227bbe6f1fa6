"""Whole pictures are kept beside the center crops, and training cuts its crops from them."""

import numpy as np
import pytest
import torch
from PIL import Image

from softbias.data import load_dataset
from softbias.data.augment import Augmentation, geometry
from softbias.data.augment.apply import augment
from softbias.data.augment.rng import Stream
from softbias.data.cache_folder import cache_location
from softbias.errors import SoftbiasError
from softbias.training.batches import SplitImages

CROP = Augmentation(crop="resized", crop_scale=(0.2, 1.0))


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """Pictures of 120 × 60 pixels whose left and right quarter are red, which a center crop loses."""
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    for folder in ("a", "b"):
        (tmp_path / "set" / folder).mkdir(parents=True)
        for index in range(8):
            picture = np.zeros((60, 120, 3), np.uint8)
            picture[:, 30:90, 1] = 10 * index + 40
            picture[:, :30, 0] = picture[:, 90:, 0] = 255
            Image.fromarray(picture).save(tmp_path / "set" / folder / f"{index}.png")
    return tmp_path / "set"


def test_the_center_crops_are_the_same_with_whole_images_beside_them(wide):
    plain, both = load_dataset(wide, img_size=32), load_dataset(wide, img_size=32, crop_from=48)
    np.testing.assert_array_equal(plain.images, both.images)
    assert plain.whole is None and both.whole.images.shape == (16, 48, 48, 3)
    np.testing.assert_array_equal(both.whole.aspects, np.full(16, 2, np.float32))
    assert not (plain.images[..., 0] > 128).any() and (both.whole.images[:, :, [0, -1], 0] > 250).all()
    assert any(note.kind == "crops-from" and note.values == {"side": 48} for note in both.notes)


def test_a_damaged_entry_is_made_again(wide):
    before = np.array(load_dataset(wide, img_size=32, crop_from=48).whole.images)
    (file,) = [path for path in cache_location().glob("*/whole.u8") if path.stat().st_size]
    file.write_bytes(b"short")
    np.testing.assert_array_equal(load_dataset(wide, img_size=32, crop_from=48).whole.images, before)


def test_crops_have_the_aspect_ratio_that_they_have_in_the_picture():
    aspect = torch.tensor([0.5, 1.0, 2.0]).repeat(300)
    stream = Stream.of(0, 0, torch.arange(900), geometry.draws(CROP))
    _, _, height, width = geometry.draw_crops(stream, CROP, (600, 600), (32, 32), aspect)
    true = width * aspect / height
    assert true.min() > 0.74 and true.max() < 1.35
    assert true.log().mean().abs() < 0.05  # not wider than high on average
    plain = Stream.of(0, 0, torch.arange(900), geometry.draws(CROP))
    _, _, same_height, same_width = geometry.draw_crops(plain, CROP, (600, 600), (32, 32))
    square = aspect == 1
    assert torch.equal(height[square], same_height[square]) and torch.equal(width[square], same_width[square])


def test_a_long_strip_falls_back_to_its_center():
    settings = Augmentation(crop="resized", crop_scale=(0.9, 1.0))
    aspect = torch.tensor([8.0, 1 / 8])
    stream = Stream.of(0, 0, torch.arange(2), geometry.draws(settings))
    top, left, height, width = geometry.draw_crops(stream, settings, (600, 600), (32, 32), aspect)
    assert height.tolist() == [600, 100] and width.tolist() == [100, 600]
    assert top.tolist() == [0, 250] and left.tolist() == [250, 0]


def test_training_crops_reach_the_borders_that_a_center_crop_loses(wide):
    data = load_dataset(wide, img_size=32, crop_from=48)
    index = torch.arange(16)
    device, zero, one = torch.device("cpu"), (0.0,) * 3, (1 / 255,) * 3
    seen = {}
    for whole in (False, True):
        images = SplitImages(data, np.arange(16), device, whole=whole)
        crops = augment(
            images.load(index), index, 0, 0, CROP, zero, one, size=images.size,
            aspect=None if images.aspects is None else images.aspects[index],
        )  # fmt: skip
        assert crops.shape == (16, 3, 32, 32)
        seen[whole] = bool((crops[:, 0] > 250).any())
    assert seen == {False: False, True: True}


def test_arrays_other_modes_and_named_sets_refuse_it(wide, tmp_path):
    np.savez(tmp_path / "x.npz", images=np.zeros((9, 8, 8, 3), np.uint8), labels=np.arange(9) % 3)
    for source, options in ((tmp_path / "x.npz", {}), (wide, {"img_size": 32, "resize_mode": "pad"}), ("fashion", {})):
        with pytest.raises(SoftbiasError, match="crop_from"):
            load_dataset(source, crop_from=48, **options)
