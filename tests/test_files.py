"""Files are whole or absent, whatever stops the writing."""

from __future__ import annotations

import os

import numpy as np
import pytest

from softbias.files import replacing, write_bytes, write_text


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


def test_a_link_in_the_way_is_not_followed(tmp_path):
    path, other = tmp_path / "a.txt", tmp_path / "other.txt"
    other.write_text("somebody's")
    with replacing(path) as temporary:
        pass_name = temporary.name
        temporary.write_text("")
    (tmp_path / pass_name).symlink_to(other)
    write_bytes(path, b"ours")
    assert other.read_text() == "somebody's" and path.read_bytes() == b"ours"


def test_an_error_of_the_disk_names_the_file_and_not_the_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "nowhere" / "a.txt", "text")
    assert caught.value.filename == str(tmp_path / "nowhere" / "a.txt")
