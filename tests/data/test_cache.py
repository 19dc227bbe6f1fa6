from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from softbias.data import cache
from softbias.data.cache import decode_all
from softbias.data.cache_folder import cache_location, cache_size, clear_cache
from softbias.data.decode import UnsupportedImageError, decode, in_order
from softbias.data.listing import list_folder

from .rights import open_to_all


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "pictures"


@pytest.fixture
def root(tmp_path) -> Path:
    """Twenty pictures of noise, in two classes."""
    rng = np.random.default_rng(0)
    for index in range(20):
        file = tmp_path / "set" / "ab"[index % 2] / f"{index} ü.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 50, 3), np.uint8)).save(file)
    return tmp_path / "set"


def child(code: str, **options) -> subprocess.Popen:
    preamble = """
import os, resource, signal, time
from softbias.data.cache import decode_all
from softbias.data.listing import list_folder
"""
    return subprocess.Popen(
        [sys.executable, "-c", preamble + code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def test_the_map_holds_what_decode_gives_in_the_listed_order(root):
    listing, calls = list_folder(root), []
    images, kept, problems, _ = decode_all(listing, (16, 24), "pad", progress=lambda done, total: calls.append((done, total)))
    assert isinstance(images, np.memmap)
    assert not images.flags.writeable
    np.testing.assert_array_equal(images, np.stack([decode(file, (16, 24), "pad") for file in listing.files]))
    np.testing.assert_array_equal(kept, np.arange(20))
    assert problems == []
    assert calls == [(done, 20) for done in range(1, 21)]


def test_a_second_time_nothing_is_decoded(root, monkeypatch):
    first, *_ = decode_all(list_folder(root), (16, 16))
    monkeypatch.setattr(cache, "decode_or_error", None)
    second, *_ = decode_all(list_folder(root), (16, 16))
    np.testing.assert_array_equal(first, second)
    with pytest.raises(TypeError):
        decode_all(list_folder(root), (16, 17))


def test_other_sizes_fits_and_changed_files_are_decoded_anew(root, folder):
    listing = list_folder(root)
    before, *_ = decode_all(listing, (16, 16))
    decode_all(listing, (16, 20))
    decode_all(listing, (16, 16), "pad")
    assert len(entries(folder)) == 3
    Image.new("RGB", (40, 40), "red").save(listing.files[3])
    after, *_ = decode_all(listing, (16, 16))
    assert after[3, 0, 0].tolist() == [255, 0, 0]
    np.testing.assert_array_equal(after[4], before[4])
    assert len(entries(folder)) == 4


def test_a_file_changed_within_its_size_is_noticed_by_its_time(root):
    listing = list_folder(root)
    Image.new("RGB", (40, 40), "red").save(listing.files[3], format="BMP")
    before, *_ = decode_all(listing, (16, 16))
    size = listing.files[3].stat().st_size
    Image.new("RGB", (40, 40), "blue").save(listing.files[3], format="BMP")
    assert listing.files[3].stat().st_size == size
    after, *_ = decode_all(listing, (16, 16))
    assert before[3, 0, 0].tolist() == [255, 0, 0]
    assert after[3, 0, 0].tolist() == [0, 0, 255]


def test_broken_files_are_an_error_that_names_ten_of_them_and_the_way_out(root):
    listing = list_folder(root)
    for file in listing.files[:12]:
        file.write_bytes(b"")
    for _ in range(2):  # decoded, then from the cache
        with pytest.raises(ValueError, match="--skip-broken") as caught:
            decode_all(listing, (16, 16))
        text = str(caught.value)
        assert "12 of 20 pictures cannot be read" in text
        assert text.count("has zero bytes") == 10
        assert str(listing.files[9]) in text
        assert "and 2 more" in text


def test_broken_files_can_be_skipped_and_are_counted(root):
    listing = list_folder(root)
    good = decode(listing.files[8], (16, 16))
    listing.files[2].write_bytes(b"no picture")
    listing.files[7].write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100))
    listing.files[5].unlink()
    for _ in range(2):
        images, kept, problems, _ = decode_all(listing, (16, 16), skip_broken=True)
        assert len(images) == len(kept) == 17
        assert sorted({*range(20)} - {*kept.tolist()}) == [2, 5, 7]
        np.testing.assert_array_equal(images[5], good)
        assert [problem.kind for problem in problems][:2] == ["not a picture", "missing"]
        assert [problem.path for problem in problems] == [str(listing.files[index]) for index in (2, 5, 7)]
        assert isinstance(problems[2], UnsupportedImageError) or "pillow_heif" in sys.modules


def test_when_nothing_can_be_read_there_is_nothing_to_skip(root):
    listing = list_folder(root)
    for file in listing.files:
        file.write_bytes(b"no picture")
    with pytest.raises(ValueError, match="none of 20 pictures can be read"):
        decode_all(listing, (16, 16), skip_broken=True)


@pytest.mark.parametrize("damage", ["images.u8", "about.json", "shape", "gone"])
def test_a_damaged_entry_is_made_anew(root, folder, damage):
    listing = list_folder(root)
    before = np.array(decode_all(listing, (16, 16))[0])
    entry = folder / entries(folder)[0]
    if damage == "shape":
        (entry / "about.json").write_text('{"shape": [3, 16, 16, 3], "kept": [0, 1, 2], "problems": []}')
    elif damage == "gone":
        (entry / "images.u8").unlink()
    else:
        (entry / damage).write_bytes((entry / damage).read_bytes()[:-5])
    np.testing.assert_array_equal(decode_all(listing, (16, 16))[0], before)


def test_a_process_killed_halfway_leaves_no_entry_and_its_rest_goes_after_a_day(root, folder):
    code = f"""
def stop(done, total):
    if done == 9:
        os.kill(os.getpid(), signal.SIGKILL)
decode_all(list_folder({str(root)!r}), (16, 16), progress=stop)
"""
    killed = child(code)
    killed.communicate()
    assert killed.returncode == -9
    (rest,) = entries(folder)
    assert rest.endswith(".part")
    decode_all(list_folder(root), (16, 16))
    assert rest in entries(folder)  # it may belong to somebody who still writes
    for path in (*(folder / rest).iterdir(), folder / rest):
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    decode_all(list_folder(root), (16, 17))
    assert rest not in entries(folder)
    assert len(entries(folder)) == 2


def test_two_processes_at_once_make_one_entry(root, folder):
    code = f"""
images, *_ = decode_all(list_folder({str(root)!r}), (16, 16), progress=lambda *_: time.sleep(0.02))
print(images.sum())
"""
    children = [child(code) for _ in range(2)]
    outputs = [process.communicate() for process in children]
    assert outputs[0] == outputs[1] == (f"{decode_all(list_folder(root), (16, 16))[0].sum()}\n", "")
    assert len(entries(folder)) == 1


def test_a_full_disk_is_a_clear_error_and_leaves_nothing(root, folder):
    code = f"""
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    decode_all(list_folder({str(root)!r}), (64, 64))
except ValueError as error:
    print(error)
"""
    output, errors = child(code).communicate()
    assert errors == ""
    assert output.startswith(f"no space for 0.2 MB of decoded pictures in {folder} (File too large); make room")
    assert entries(folder) == []
    assert len(decode_all(list_folder(root), (64, 64))[0]) == 20


def test_too_little_room_is_reported_before_the_work(root, folder, monkeypatch):
    monkeypatch.setattr(cache.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    monkeypatch.setattr(cache, "decode_or_error", None)
    with pytest.raises(ValueError, match=r"no space for 0\.2 MB"):
        decode_all(list_folder(root), (64, 64))
    assert entries(folder) == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(root, tmp_path):
    open_to_all(tmp_path)
    code = f"""
os.getuid() or os.setuid(65534)
try:
    decode_all(list_folder({str(root)!r}), (16, 16), cache_dir="/proc/nowhere")
except ValueError as error:
    print(error)
"""
    output, errors = child(code).communicate()
    assert errors == ""
    assert "cannot be kept in /proc/nowhere/pictures" in output
    assert "SOFTBIAS_CACHE" in output


def test_an_interruption_leaves_nothing(root, folder):
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        decode_all(list_folder(root), (16, 16), progress=stop)
    assert entries(folder) == []


def test_the_folder_follows_argument_variable_and_system(tmp_path, monkeypatch):
    assert cache_location(tmp_path / "mine") == tmp_path / "mine" / "pictures"
    assert cache_location() == tmp_path / "cache" / "pictures"
    monkeypatch.delenv("SOFTBIAS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_location() == tmp_path / "xdg" / "softbias" / "pictures"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_location() == tmp_path / ".cache" / "softbias" / "pictures"
    monkeypatch.setattr("platformdirs.user_cache_path", lambda *_args, **_options: Path("~/.cache/softbias"))  # no home
    assert cache_location() == Path(tempfile.gettempdir()) / "softbias" / "pictures"


def test_clearing_frees_what_size_says_and_touches_nothing_else(root, folder):
    assert cache_size() == 0
    assert clear_cache() == 0
    decode_all(list_folder(root), (16, 16))
    (folder / "my holiday").mkdir()
    (folder / "my holiday" / "1.jpg").touch()
    size = cache_size()
    assert size >= 20 * 16 * 16 * 3
    assert clear_cache() == size
    assert cache_size() == 0
    assert entries(folder) == ["my holiday"]


def test_threads_keep_the_order_and_compute_few_items_in_advance():
    started, gate = [], threading.Event()

    def work(item: int) -> int:
        started.append(item)
        gate.wait(5)
        return item * 2

    results = in_order(work, range(1000), workers=2)
    threading.Timer(0.2, gate.set).start()
    assert next(results) == 0
    assert len(started) <= 20
    assert list(results) == [2 * item for item in range(1, 1000)]


def test_an_error_in_a_thread_comes_out():
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda item: 1 // item, [1, 0, 1], workers=2))
