from __future__ import annotations

import io
import time

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from softbias.data.duplicates import clusters, near_pairs, thumbnails
from softbias.data.resizing import resized


def scenes(count: int, size: int = 96, seed: int = 0) -> list[Image.Image]:
    """Random soft blobs, which resemble photographs."""
    rng = np.random.default_rng(seed)
    return [
        Image.fromarray(rng.integers(0, 256, (7, 7, 3), np.uint8)).resize((size, size), Image.Resampling.BICUBIC)
        for _ in range(count)
    ]


def thumbs(images: list[Image.Image]) -> np.ndarray:
    return np.stack([np.array(resized(picture, (16, 16), "stretch")) for picture in images])


def jpeg(picture: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=quality)
    return Image.open(io.BytesIO(file.getvalue())).convert("RGB")


@pytest.mark.parametrize(
    "change",
    [
        lambda picture: jpeg(picture, 50),
        lambda picture: jpeg(picture.resize((48, 48), Image.Resampling.BICUBIC), 80),
        lambda picture: picture.resize((120, 80)),
        lambda picture: ImageEnhance.Brightness(picture).enhance(1.03),
    ],
    ids=["re-encoded", "half the size", "stretched", "brighter"],
)
def test_copies_are_found_and_nothing_else(change):
    originals = scenes(100)
    pairs = near_pairs(thumbs([*originals, *map(change, originals)]))
    found, right = {(a, b) for a, b in pairs.tolist()}, {(index, index + 100) for index in range(100)}
    assert len(found & right) >= 98
    assert not found - right


def test_images_that_share_a_layout_but_not_their_content_are_not_copies():
    half = np.zeros((2, 96, 96, 3), np.uint8)
    half[:, :, 48:] = 250
    half[1, 20:60, 10:40] = (200, 30, 30)  # something stands there
    assert near_pairs(thumbnails(half)).tolist() == []


def test_pale_images_that_differ_in_color_alone_are_not_copies():
    pale = np.repeat(np.linspace(110, 145, 32)[None, None, :, None], 32, axis=1).repeat(3, axis=3).repeat(2, axis=0)
    pale[1, 6:26, 6:26] += (12, 0, -12)
    assert near_pairs(thumbnails(pale.astype(np.uint8))).tolist() == []


def test_blank_images_of_one_color_are_copies_and_of_another_are_not():
    blank = np.stack([np.full((32, 32, 3), value, np.uint8) for value in (100, 101, 200)])
    assert near_pairs(thumbnails(blank)).tolist() == [[0, 1]]


def test_a_thumbnail_averages_over_areas():
    picture = np.zeros((1, 32, 48, 3), np.uint8)
    picture[0, :2, :3] = 100
    small = thumbnails(picture)
    assert small.shape == (1, 16, 16, 3)
    assert small[0, 0, 0].tolist() == [100, 100, 100]
    assert small.sum() == 300
    np.testing.assert_array_equal(thumbnails(small), small)
    assert thumbnails(np.full((1, 5, 7, 3), 9, np.uint8)).min() == 9  # enlarged


def test_pairs_connect_into_clusters():
    assert clusters(6, [(1, 3), (4, 3), (0, 5)]).tolist() == [0, 1, 2, 1, 1, 0]
    assert clusters(2, np.empty((0, 2), int)).tolist() == [0, 1]


@pytest.mark.parametrize("heap", [0, pytest.param(10_000, marks=pytest.mark.slow)])
def test_fifty_thousand_images_take_seconds_even_if_many_are_blank(heap):
    rng = np.random.default_rng(0)
    many = rng.integers(0, 256, (50_000, 16, 16, 3), np.uint8)
    many[:heap] = rng.integers(120, 122, (heap, 16, 16, 3), np.uint8)
    many[-1] = many[-2]
    start = time.process_time()  # of this process alone: the machine may be busy
    pairs = near_pairs(many)
    assert time.process_time() - start < 30
    assert pairs[-1].tolist() == [49_998, 49_999]
    number = clusters(50_000, pairs)
    assert (number[:heap] == 0).all()
    assert len(np.unique(number)) == 50_000 - 1 - max(0, heap - 1)
