"""Files are whole or absent, whatever stops the writing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from softbias import files
from softbias.files import replacing, replacing_folder, write_bytes, write_text


def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first")
    write_text(path, "zweite Fassung: ü")
    assert path.read_text(encoding="utf-8") == "zweite Fassung: ü"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:
        temporary.write_text(f"half of the ne{1 / 0}")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["a.txt"]


def test_libraries_that_go_by_the_suffix_write_the_same_file(tmp_path):
    with replacing(tmp_path / "a.npz") as temporary:
        np.savez(temporary, x=np.arange(3))
    assert os.listdir(tmp_path) == ["a.npz"] and np.load(tmp_path / "a.npz")["x"].tolist() == [0, 1, 2]


def test_a_link_in_the_way_is_not_followed(tmp_path, monkeypatch):
    path, other = tmp_path / "a.txt", tmp_path / "other.txt"
    other.write_text("somebody's")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0" * 2 * size)  # as if the name had been guessed
    files.temporary_name(path).symlink_to(other)
    with pytest.raises(FileExistsError):
        write_bytes(path, b"ours")
    assert other.read_text() == "somebody's" and not path.exists()


def test_temporary_names_cannot_be_foreseen(tmp_path):
    assert len({files.temporary_name(tmp_path / "a.txt") for _ in range(100)}) == 100


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_every_file_has_the_mode_that_the_umask_gives(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_text(tmp_path / "a.txt", "text")
        with replacing(tmp_path / "a.safetensors") as temporary:
            save_file({"a": np.zeros(3)}, temporary)
        with replacing_folder(tmp_path / "folder") as temporary:
            save_file({"a": np.zeros(3)}, temporary / "a.safetensors")
    finally:
        os.umask(before)
    found = [tmp_path / "a.txt", tmp_path / "a.safetensors", tmp_path / "folder" / "a.safetensors"]
    assert [path.stat().st_mode & 0o777 for path in found] == [mode] * 3


def test_a_folder_is_replaced_whole_and_an_error_leaves_the_old_one(tmp_path):
    for content in ("old", "new"):
        with replacing_folder(tmp_path / "deep" / "folder") as temporary:
            (temporary / "a.txt").write_text(content)
    with pytest.raises(ZeroDivisionError), replacing_folder(tmp_path / "deep" / "folder"):
        _ = 1 / 0
    assert (tmp_path / "deep" / "folder" / "a.txt").read_text() == "new" and os.listdir(tmp_path / "deep") == ["folder"]


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_file_is_synced_before_its_rename_and_its_folder_after_it(tmp_path, monkeypatch, kind):
    events = []

    def fsync(descriptor, real=os.fsync):
        events.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        real(descriptor)

    def renamed(self, target, real):
        events.append(("rename", str(target)))
        return real(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    for method in ("replace", "rename"):
        real = getattr(Path, method)
        monkeypatch.setattr(Path, method, lambda self, target, real=real: renamed(self, target, real))
    target = tmp_path / "a.txt"
    if kind == "file":
        write_text(target, "text")
    else:
        with replacing_folder(target) as temporary:
            (temporary / "inside").write_text("text")
    renamed_at = events.index(("rename", str(target)))
    synced = [Path(path).name for what, path in events[:renamed_at] if what == "sync"]
    assert any(files.TEMPORARY.fullmatch(name) for name in synced) and ("inside" in synced) == (kind == "folder")
    assert ("sync", str(tmp_path)) in events[renamed_at:]


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from softbias.files import replacing, replacing_folder\n"
        "with replacing_folder(Path(sys.argv[1]) / 'folder') as a, replacing(Path(sys.argv[1]) / 'b.npz') as b:\n"
        "    (a / 'half').write_text('x'); b.write_text('y'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path]).returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    kept = [
        tmp_path / ".notes.tmp",
        tmp_path / "a.12-0123456789abcdef.tmp",
        tmp_path / f".a.{os.getppid()}-0123456789abcdef.tmp",
    ]
    for path in kept:
        path.write_text("somebody's, or of a process that lives")
    assert len(files.remove_stale(tmp_path)) == 2
    assert sorted(tmp_path.iterdir()) == sorted(kept)


def test_an_error_of_the_disk_names_the_file_and_not_the_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "a.txt", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a.txt")


@pytest.mark.parametrize("writing", [replacing_folder, files.adding_to_folder])
def test_an_error_inside_a_new_folder_names_the_folder_that_the_user_knows(tmp_path, writing):
    with pytest.raises(FileNotFoundError) as caught, writing(tmp_path / "model") as temporary:
        (temporary / "nowhere" / "a.txt").write_text("text")
    assert ".tmp" not in caught.value.filename and caught.value.filename.startswith(str(tmp_path / "model"))
    assert not list(tmp_path.rglob("*.tmp"))
