from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data.decode import decode, load
from softbias.data.resizing import RESIZE_MODES
from softbias.pages import wording

RED, GREEN, BLUE, WHITE = (220, 30, 20), (20, 200, 40), (30, 40, 210), (255, 255, 255)


def quarters(size: int = 64) -> Image.Image:
    """Red and green above, blue and white below."""
    picture = Image.new("RGB", (size, size), WHITE)
    half = size // 2
    picture.paste(RED, (0, 0, half, half))
    picture.paste(GREEN, (half, 0, size, half))
    picture.paste(BLUE, (0, half, half, size))
    return picture


def corners(array: np.ndarray) -> np.ndarray:
    height, width = array.shape[:2]
    y, x = height // 4, width // 4
    return array[[y, y, height - y, height - y], [x, width - x, x, width - x]].astype(int)


def near(array: np.ndarray, *colors: tuple[int, int, int], within: int = 6) -> None:
    np.testing.assert_allclose(array, np.broadcast_to(colors[0] if len(colors) == 1 else colors, array.shape), atol=within)


def saved(path: Path, picture: Image.Image, **options) -> Path:
    picture.save(path, **options)
    return path


@pytest.mark.parametrize("resize_mode", ["crop", "pad", "stretch"])
@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("jpg", {"quality": 95}),
        ("png", {}),
        ("webp", {"lossless": True}),
        ("tiff", {}),
        ("tif", {"compression": "tiff_lzw"}),
        ("bmp", {}),
        ("gif", {}),
        ("ppm", {}),
        ("avif", {"quality": 95}),
        ("jp2", {}),
    ],
)
def test_every_format_keeps_its_colors(tmp_path, suffix, options, resize_mode):
    path = saved(tmp_path / f"a.{suffix}", quarters(), **options)
    array = decode(path, (32, 32), resize_mode)
    assert array.shape == (32, 32, 3)
    assert array.dtype == np.uint8
    near(corners(array), RED, GREEN, BLUE, WHITE, within=10)


def test_a_picture_of_the_wanted_size_keeps_every_byte_and_a_file_object_reads_as_its_path(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    path = saved(tmp_path / "a.png", Image.fromarray(images))
    for resize_mode in ("crop", "pad", "stretch"):
        np.testing.assert_array_equal(decode(path, (20, 30), resize_mode), images)
    np.testing.assert_array_equal(decode(io.BytesIO(path.read_bytes()), (20, 30)), images)
    decode(path, (20, 30))[0, 0] = 1  # writable


def test_the_suffix_does_not_matter(tmp_path):
    near(decode(saved(tmp_path / "a.jpg", quarters(), format="PNG"), (64, 64))[0, 0], RED, within=0)


@pytest.mark.parametrize("suffix", ["png", "tiff"])
def test_16_bit_grey_is_scaled_and_not_clipped(tmp_path, suffix):
    values = np.array([[0, 257, 40000, 65535]] * 4, np.uint16)
    array = decode(saved(tmp_path / f"a.{suffix}", Image.fromarray(values)), (4, 4))
    np.testing.assert_array_equal(array[0, :, 0], [0, 1, 156, 255])
    np.testing.assert_array_equal(array[..., 0], array[..., 2])


def test_big_endian_16_bit_grey_is_not_swapped(tmp_path):
    values = np.array([[0, 257, 40000, 65535]] * 4, ">u2")
    picture = Image.frombytes("I;16B", (4, 4), values.tobytes())
    np.testing.assert_array_equal(decode(saved(tmp_path / "a.tiff", picture), (4, 4))[0, :, 0], [0, 1, 156, 255])


def test_16_bit_color_is_scaled(tmp_path):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    row = b"\0" + struct.pack(">3H", 65535, 32896, 0) * 4
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 16, 2, 0, 0, 0))
    (tmp_path / "a.png").write_bytes(png + chunk(b"IDAT", zlib.compress(row * 4)) + chunk(b"IEND", b""))
    near(decode(tmp_path / "a.png", (4, 4)), (255, 128, 0), within=0)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array([0, 100, 255], np.int32), [0, 100, 255]),
        (np.array([0, 25700, 65535], np.int32), [0, 100, 255]),
        (np.array([-1000, 0, 1000], np.int32), [0, 128, 255]),
        (np.array([0, 0.5, 1], np.float32), [0, 128, 255]),
        (np.array([0, 100, 255], np.float32), [0, 100, 255]),
        (np.array([-3, 0, 3], np.float32), [0, 128, 255]),
        (np.array([0, np.nan, 1], np.float32), [0, 0, 255]),
    ],
)
def test_32_bit_integers_and_floats_follow_the_stated_rule(tmp_path, values, expected):
    path = saved(tmp_path / "a.tiff", Image.fromarray(np.tile(values, (3, 1))))
    np.testing.assert_array_equal(decode(path, (3, 3))[1, :, 1], expected)


def test_one_bit_and_grey_images_become_three_equal_channels(tmp_path):
    bits = Image.new("1", (8, 8))
    bits.paste(1, (4, 0, 8, 8))
    near(decode(saved(tmp_path / "a.png", bits), (8, 8))[0, [0, 7]], (0, 0, 0), WHITE, within=0)
    near(decode(saved(tmp_path / "b.png", Image.new("L", (8, 8), 77)), (8, 8)), (77, 77, 77), within=0)


def test_palettes_keep_their_colors_and_what_is_transparent_in_them_becomes_white(tmp_path):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, *RED, *GREEN])
    picture.paste(2, (4, 0, 8, 8))
    for suffix in ("png", "gif"):
        near(decode(saved(tmp_path / f"a.{suffix}", picture), (8, 8))[0, [0, 7]], RED, GREEN, within=0)
        clear = saved(tmp_path / f"b.{suffix}", picture, transparency=1)
        near(decode(clear, (8, 8))[0, [0, 7]], WHITE, GREEN, within=0)


def test_partly_transparent_palette_entries_are_mixed_with_white(tmp_path):
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, 0, 0, 0])
    near(decode(saved(tmp_path / "a.png", picture, transparency=bytes([255, 51])), (8, 8)), (204, 204, 204), within=1)


@pytest.mark.parametrize("suffix", ["png", "webp", "tiff"])
def test_alpha_is_laid_on_white(tmp_path, suffix):
    picture = Image.new("RGBA", (8, 8), (200, 100, 0, 0))
    picture.paste((200, 100, 0, 255), (0, 4, 8, 8))
    picture.paste((0, 0, 0, 51), (4, 4, 8, 8))
    options = {"lossless": True, "exact": True} if suffix == "webp" else {}
    array = decode(saved(tmp_path / f"a.{suffix}", picture, **options), (8, 8))
    near(array[[0, 7, 7], [0, 0, 7]], WHITE, (200, 100, 0), (204, 204, 204), within=1)


def test_grey_with_alpha_or_with_one_transparent_value_is_laid_on_white(tmp_path):
    near(decode(saved(tmp_path / "a.png", Image.new("LA", (4, 4), (0, 51))), (4, 4)), (204, 204, 204), within=1)
    near(decode(saved(tmp_path / "b.png", Image.new("L", (4, 4), 7), transparency=7), (4, 4)), WHITE, within=0)
    deep = Image.fromarray(np.full((4, 4), 1234, np.uint16))
    near(decode(saved(tmp_path / "c.png", deep, transparency=1234), (4, 4)), WHITE, within=0)


@pytest.mark.parametrize("suffix", ["jpg", "tiff"])
def test_cmyk_is_not_inverted(tmp_path, suffix):
    picture = Image.new("CMYK", (32, 32), (0, 255, 255, 0))
    picture.paste((255, 0, 0, 128), (16, 0, 32, 32))
    near(decode(saved(tmp_path / f"a.{suffix}", picture), (32, 32))[16, [4, 28]], (255, 0, 0), (0, 127, 127), within=4)


def test_ycbcr_and_lab_are_converted(tmp_path):
    near(decode(saved(tmp_path / "a.tiff", Image.new("YCbCr", (4, 4), (76, 85, 255))), (4, 4)), (254, 0, 0), within=2)
    grey = Image.new("LAB", (4, 4), (136, 128, 128))  # L* = 53.4 is sRGB 128
    near(decode(saved(tmp_path / "b.tiff", grey), (4, 4)), (128, 128, 128), within=2)


STORED = {  # what the camera stores so that a viewer who follows the tag sees `quarters`
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied_once(tmp_path, orientation, suffix):
    picture = quarters(256).resize((320, 160))
    turn = STORED[orientation]
    stored = picture.transpose(turn) if turn is not None else picture
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = saved(tmp_path / f"a.{suffix}", stored, exif=exif.tobytes() if suffix != "tiff" else exif)
    assert load(path).size == (320, 160)
    array = decode(path, (16, 32))
    assert array.shape == (16, 32, 3)
    near(corners(array), RED, GREEN, BLUE, WHITE, within=12)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_damaged_exif_does_not_spoil_the_image(tmp_path):
    path = saved(tmp_path / "a.jpg", quarters(), quality=95, exif=b"Exif\0\0II*\0\xff\xff\xff\xff")
    near(corners(decode(path, (64, 64))), RED, GREEN, BLUE, WHITE, within=12)


def test_a_gif_gives_its_first_frame(tmp_path):
    frames = [Image.new("RGB", (8, 8), color) for color in (RED, GREEN)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    near(decode(tmp_path / "a.gif", (8, 8)), RED, within=2)


def test_crop_keeps_the_center_and_the_aspect_ratio(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (32, 48, 3), np.uint8)
    path = saved(tmp_path / "a.png", Image.fromarray(images))
    np.testing.assert_array_equal(decode(path, (32, 32), "crop"), images[:, 8:40])


def test_pad_shows_everything_between_black_bars(tmp_path):
    array = decode(saved(tmp_path / "a.png", Image.new("RGB", (64, 32), RED)), (32, 32), "pad")
    near(array[8:24], RED, within=0)
    assert not array[:8].any()
    assert not array[24:].any()
    needle = decode(saved(tmp_path / "b.png", Image.new("RGB", (1000, 2), RED)), (32, 32), "pad")
    near(needle[15], RED, within=0)  # one row at least


def test_stretch_shows_everything_and_nothing_else(tmp_path):
    picture = Image.new("RGB", (64, 32), RED)
    picture.paste(BLUE, (32, 0, 64, 32))
    array = decode(saved(tmp_path / "a.png", picture), (32, 32), "stretch")
    near(array[:, [0, 31]], RED, BLUE, within=1)


def test_a_large_jpeg_decoded_small_looks_like_the_whole_one_resized(tmp_path):
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 256, (24, 36, 3), np.uint8)).resize((1800, 1200), Image.Resampling.BICUBIC)
    jpeg, png = saved(tmp_path / "a.jpg", smooth, quality=95), saved(tmp_path / "a.png", smooth)
    assert load(jpeg, wanted=(64, 64)).image.size == (225, 150)  # an eighth, still more than twice 64
    assert load(jpeg, wanted=(140, 140)).image.size == (450, 300)
    assert load(jpeg, wanted=(200, 200)).image.size == (900, 600)
    difference = np.abs(decode(jpeg, (64, 64)).astype(int) - decode(png, (64, 64)))
    assert difference.mean() < 2
    assert difference.max() < 24


def test_heic_is_read_where_its_package_is_installed(tmp_path):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    near(corners(decode(saved(tmp_path / "a.heic", quarters(), quality=95), (32, 32))), RED, GREEN, BLUE, WHITE, within=12)


def test_an_unknown_resize_mode_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="did you mean 'crop'"):
        decode("never opened.png", (8, 8), "corp")
    assert set(RESIZE_MODES) == set(wording.RESIZE_MODES) and "aspect ratio is kept" in wording.RESIZE_MODES["pad"]
