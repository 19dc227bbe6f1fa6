"""Folders as they are found: pipes, sockets, devices, links in loops, files without rights."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from softbias.data import load_dataset
from softbias.data.arrays import read_arrays
from softbias.data.check import check
from softbias.data.decode import MAX_BYTES, BrokenImageError, decode
from softbias.data.folders import FolderWalk
from softbias.data.listing import list_folder
from softbias.data.tables import read_table
from softbias.errors import SoftbiasError
from softbias.files import NotAFileError, open_regular
from softbias.runs.inference import find_image_files

from .rights import open_to_all

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files")


@pytest.fixture(autouse=True)
def _at_most_half_a_minute(tmp_path, monkeypatch) -> Iterator[None]:
    """A pipe that is opened waits for ever; the test should not."""
    monkeypatch.setenv("SOFTBIAS_CACHE", str(tmp_path / "cache"))

    def wake(*_: object) -> None:
        raise AssertionError("it waits for a pipe")

    before = signal.signal(signal.SIGALRM, wake)
    signal.setitimer(signal.ITIMER_REAL, 30)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def root(tmp_path) -> Path:
    """Two classes with six pictures each."""
    for number, name in enumerate("ab"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(6):
            noise = os.urandom(27)
            Image.frombytes("RGB", (3, 3), noise).resize((24, 24)).save(tmp_path / "set" / name / f"{number}{index}.png")
    return tmp_path / "set"


@pytest.fixture
def special(root) -> dict[str, str]:
    """Things in a class folder that are named as pictures are -> what they are."""
    os.mkfifo(root / "a" / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(root / "a" / "socket.jpg"))  # a socket's path must be short
    (root / "a" / "zero.jpg").symlink_to("/dev/zero")
    return {"pipe.jpg": "pipe", "socket.jpg": "socket", "zero.jpg": "device"}


def test_special_files_are_named_and_left_out_and_nothing_waits_for_them(root, special):
    for notes, total in ((check(root).notes, check(root).total), (load_dataset(root, img_size=8).notes, 12)):
        (note,) = [note for note in notes if note.kind == "no-files"]
        assert total == 12 and note.values["count"] == 3
        assert note.values["named"] == [f"{root / 'a' / name} ({kind})" for name, kind in special.items()]
    assert check(root).fit_to_train


def test_special_files_that_are_named_are_refused_with_a_reason(root, special):
    for name, kind in special.items():
        with pytest.raises(BrokenImageError) as broken:
            decode(root / "a" / name, (8, 8))
        assert (broken.value.reason, broken.value.kind) == (f"is a {kind}, not a file", "not a picture")
        with pytest.raises(NotAFileError) as refused:
            open_regular(root / "a" / name)
        assert refused.value.kind == kind
    found = find_image_files([root])
    assert len(found) == 15 and {file.name for file in found[12:]} == set(special)


@pytest.mark.parametrize("name", ["list.csv", "set.npz"])
def test_a_pipe_that_is_named_as_a_table_or_as_arrays_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(SoftbiasError, match="is a pipe, not a file"):
        read_table(tmp_path / name) if name.endswith("csv") else read_arrays(tmp_path / name)
    assert not check(tmp_path / name).fit_to_train
    with pytest.raises(SoftbiasError, match="is a pipe, not a file"):
        load_dataset(tmp_path / name)


def test_a_table_that_lists_a_pipe_is_refused_by_the_name_of_the_pipe(root, special):
    rows = [f"{name}/{number}{index}.png,{name}" for number, name in enumerate("ab") for index in range(6)]
    (root / "list.csv").write_text("\n".join(["path,label", *rows, "a/pipe.jpg,a"]))
    with pytest.raises(SoftbiasError, match=r"a/pipe\.jpg"):
        load_dataset(root / "list.csv")
    assert not check(root / "list.csv").fit_to_train


def test_links_in_a_loop_do_not_stop_the_folder(root):
    (root / "a" / "itself.jpg").symlink_to("itself.jpg")
    (root / "a" / "up").symlink_to("..")
    (root / "a" / "here").symlink_to(".")
    (root / "whole").symlink_to(".")
    (root / "lost").symlink_to("nowhere")
    listing = list_folder(root)
    assert listing.class_names == ("a", "b") and len(listing) == 13
    (note,) = [note for note in listing.notes if note.kind == "no-files"]
    assert {Path(named.partition(" (")[0]).name for named in note.values["named"]} == {"up", "whole", "lost"}
    (problem,) = check(root).problems[:1]
    assert problem.severity == "error" and problem.note.values == {"count": 1, "problem": "missing"}
    assert problem.files == ("a/itself.jpg: is a link that leads to itself",)
    with pytest.raises(SoftbiasError, match=r"1 of 13 pictures cannot be read(.|\n)*itself\.jpg"):
        load_dataset(root, img_size=8)
    assert len(load_dataset(root, img_size=8, skip_broken=True)) == 12
    assert [file.name for file in find_image_files([root])].count("itself.jpg") == 1


def test_a_folder_that_is_linked_twice_is_read_once(root, tmp_path):
    (tmp_path / "elsewhere" / "deep").mkdir(parents=True)
    (tmp_path / "elsewhere" / "deep" / "more.png").write_bytes((root / "a" / "00.png").read_bytes())
    for name in ("one", "two"):
        (root / "a" / name).symlink_to(tmp_path / "elsewhere")
    assert len(list_folder(root)) == 13
    assert len(find_image_files([root])) == 13


def test_a_file_with_a_hole_of_a_terabyte_is_not_read(root):
    with (root / "a" / "hole.png").open("wb") as file:
        file.truncate(MAX_BYTES + 1)
    assert check(root).problems[0].note.values == {"count": 1, "problem": "oversized"}
    with pytest.raises(BrokenImageError) as broken:
        decode(root / "a" / "hole.png", (8, 8))
    assert broken.value.kind == "oversized"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can become another user")
def test_files_and_folders_without_rights_are_counted_for_an_ordinary_user(root, tmp_path):
    open_to_all(tmp_path)
    (root / "a" / "00.png").chmod(0)
    (root / "b" / "closed").mkdir(mode=0o700)
    code = f"""
import os
from softbias.data.check import check
from softbias.data.decode import decode
from softbias.data.folders import FolderWalk
from softbias.errors import SoftbiasError
from pathlib import Path
decode({str(root / "b" / "10.png")!r}, (8, 8))  # imports Pillow's plugins, which this user may not be able to read later
os.setuid(65534)
walk = FolderWalk(Path({str(root)!r}), strict=False)
for file in [*walk.below(Path({str(root)!r})), *walk.denied]:
    try:
        decode(file, (8, 8))
    except SoftbiasError as error:
        print(os.path.basename(error.path), error.kind)
print(check({str(root / "a")!r} + "/..").problems[0].note.values["reason"])
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "HOME": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.stderr == ""
    found = done.stdout.splitlines()
    assert found[:2] == ["00.png unreadable", "closed unreadable"]
    assert "closed may not be read: permission denied" in found[2]


def test_a_walk_leaves_hidden_files_and_clutter_out(root):
    for name in (".hidden.jpg", "Thumbs.db"):
        (root / "a" / name).touch()
    assert len(FolderWalk(root).below(root)) == 12
