"""Every way in which a picture file can fail, made from real files."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import decode as module
from softbias.data.decode import BrokenImageError, UnsupportedImageError, decode

from .rights import open_to_all


def saved(path: Path, picture: Image.Image, **options) -> Path:
    picture.save(path, **options)
    return path


def truncated(path: Path, keep: float = 0.5) -> Path:
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * keep)])
    return path


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8))


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff", "bmp", "gif", "avif", "jp2", "ppm"])
@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9])
def test_a_truncated_file_is_broken_and_says_so(tmp_path, suffix, keep):
    path = truncated(saved(tmp_path / f"a.{suffix}", NOISE), keep)
    with pytest.raises(BrokenImageError) as caught:
        decode(path, (32, 32))
    assert caught.value.path == str(path)
    assert caught.value.kind in ("truncated", "broken", "not a picture")
    assert caught.value.reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_jpeg_is_called_truncated(tmp_path):
    with pytest.raises(BrokenImageError, match="truncated") as caught:
        decode(truncated(saved(tmp_path / "a.jpg", NOISE)), (32, 32))
    assert caught.value.kind == "truncated"


def test_zero_bytes_text_missing_files_and_folders_are_distinguished(tmp_path):
    (tmp_path / "zero.jpg").touch()
    (tmp_path / "text.png").write_text("not a picture at all")
    (tmp_path / "folder.png").mkdir()
    for name, kind in (
        ("zero.jpg", "zero bytes"),
        ("text.png", "not a picture"),
        ("gone.png", "missing"),
        ("folder.png", "not a picture"),
    ):
        with pytest.raises(BrokenImageError, match=name) as caught:
            decode(tmp_path / name, (8, 8))
        assert caught.value.kind == kind


def test_flipped_bytes_in_a_png_are_noticed(tmp_path):
    path = saved(tmp_path / "a.png", NOISE)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(BrokenImageError):
        decode(path, (8, 8))


def test_a_postscript_file_is_never_run(tmp_path):
    (tmp_path / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n")
    with pytest.raises(BrokenImageError, match="not a picture"):
        decode(tmp_path / "a.png", (8, 8))


def png_header(path: Path, width: int, height: int) -> Path:
    head = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    end = b"\0\0\0\0IEND" + struct.pack(">I", zlib.crc32(b"IEND"))
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\r" + head + struct.pack(">I", zlib.crc32(head)) + end)
    return path


@pytest.mark.parametrize("side", [13_378, 60_000])
def test_a_decompression_bomb_is_refused_before_it_goes_off(tmp_path, side):
    with pytest.raises(BrokenImageError, match="178,956,970") as caught:
        decode(png_header(tmp_path / "a.png", side, side), (8, 8))
    assert caught.value.kind == "oversized"


def test_our_own_limit_holds_even_where_pillow_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(BrokenImageError, match="60000 × 60000"):
        decode(png_header(tmp_path / "a.png", 60_000, 60_000), (8, 8))


def test_heic_without_its_package_is_unsupported_rather_than_broken(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    module.heif_available.cache_clear()
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    try:
        with pytest.raises(UnsupportedImageError, match="pip install 'softbias\\[heif\\]'") as caught:
            decode(tmp_path / "a.heic", (8, 8))
        assert caught.value.kind == "unsupported"
    finally:
        module.heif_available.cache_clear()


def test_a_file_that_may_not_be_read_is_unreadable(tmp_path):
    path = saved(tmp_path / "a.png", NOISE)
    path.chmod(0)
    open_to_all(tmp_path)
    code = f"""
import os
from softbias.data.decode import BrokenImageError, decode
if os.getuid() == 0:
    os.setuid(65534)
try:
    decode({str(path)!r}, (8, 8))
except BrokenImageError as error:
    print(error.kind)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "unreadable\n", done.stderr


def test_errors_survive_pickling_and_paths_may_have_spaces_and_accents(tmp_path):
    path = tmp_path / "ein Übel – 破損.png"
    path.touch()
    with pytest.raises(BrokenImageError) as caught:
        decode(path, (8, 8))
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (copy.path, copy.reason, copy.kind) == (str(path), "has zero bytes", "zero bytes")
    assert decode(saved(path, NOISE), (64, 64)).tolist() == np.array(NOISE).tolist()
