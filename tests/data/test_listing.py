from __future__ import annotations

import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from softbias.data.folders import natural
from softbias.data.listing import list_folder
from softbias.data.sources import read_listing
from softbias.data.tables import list_csv
from softbias.pages.wording import text

from .rights import open_to_all


def tree(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return root


def test_a_flat_folder_has_a_class_per_folder_and_no_splits(tmp_path):
    listing = list_folder(tree(tmp_path / "pets", "dog/2.jpg", "dog/10.png", "cat/deep/er/1.JPEG", "cat/0.tiff"))
    assert listing.name == "pets"
    assert listing.class_names == ("cat", "dog")
    assert listing.relative() == ["cat/0.tiff", "cat/deep/er/1.JPEG", "dog/2.jpg", "dog/10.png"]
    np.testing.assert_array_equal(listing.labels, [0, 0, 1, 1])
    assert listing.split is None
    assert listing.notes == ()


@pytest.mark.parametrize("val", ["val", "valid", "validation", "Validation"])
def test_split_folders_are_kept_under_their_usual_names(tmp_path, val):
    names = [f"{split}/{kind}/1.png" for split in ("train", val, "test") for kind in ("a", "b")]
    listing = list_folder(tree(tmp_path, *names))
    assert sorted(zip(listing.relative(), listing.split, strict=True)) == sorted(
        zip(names, ["train"] * 2 + ["val"] * 2 + ["test"] * 2, strict=True)
    )
    assert listing.class_names == ("a", "b")


def test_class_folders_that_all_hold_the_same_folders_are_remarked_upon(tmp_path):
    years = tree(tmp_path / "years", *(f"{year}/{kind}/1.jpg" for year in (2021, 2022) for kind in ("cat", "dog")))
    listing = list_folder(years)
    assert listing.class_names == ("2021", "2022")
    assert [note.kind for note in listing.notes] == ["classes-one-level-deeper"]
    assert listing.notes[0].values | {"folder": ""} == {"folder": "", "classes": ["2021", "2022"], "inside": ["cat", "dog"]}
    other = tree(tmp_path / "other", "cat/a/1.jpg", "cat/b/1.jpg", "dog/a/1.jpg", "dog/c/1.jpg")
    assert list_folder(other).notes == ()  # one name in common may be chance
    loose = tree(tmp_path / "loose", "cat/a/1.jpg", "cat/b/1.jpg", "cat/2.jpg", "dog/a/1.jpg", "dog/b/1.jpg")
    assert list_folder(loose).notes == ()


def test_two_comes_before_ten():
    assert sorted(["b10", "b9", "a", "B2", "b"], key=natural) == ["a", "b", "B2", "b9", "b10"]
    assert sorted(["1a", "a1", "", "01"], key=natural) == ["", "01", "1a", "a1"]


def test_hidden_and_known_other_files_are_ignored_and_unknown_ones_counted(tmp_path):
    ignored = [
        "a/.hidden.jpg",
        "a/Thumbs.db",
        "a/.DS_Store",
        "a/notes.txt",
        ".git/x/y.jpg",
        "__MACOSX/a/._1.jpg",
        "b/labels.json",
    ]
    listing = list_folder(tree(tmp_path, "a/1.jpg", "b/1.jpg", *ignored))
    assert len(listing) == 2
    assert listing.notes == ()
    listing = list_folder(tree(tmp_path, "a/raw.cr2", "a/2.NEF", "b/none", "loose.jpg"))
    assert len(listing) == 2
    assert any("3 files" in text(note) and ".cr2, .nef, no suffix" in text(note) for note in listing.notes)
    assert any("1 picture directly in" in text(note) for note in listing.notes)


def test_a_folder_of_other_files_is_no_class_but_is_mentioned(tmp_path):
    listing = list_folder(tree(tmp_path, "a/1.jpg", "b/1.jpg", "annotations/1.xml"))
    assert listing.class_names == ("a", "b")
    assert any("annotations" in text(note) for note in listing.notes)


def test_spaces_and_other_alphabets_work(tmp_path):
    composed, decomposed = unicodedata.normalize("NFC", "Bär"), unicodedata.normalize("NFD", "Bär")
    root = tree(
        tmp_path / "meine Bilder ö",
        f"train/{composed}/ein bär.jpg",
        "train/猫/1.jpg",
        f"test/{decomposed}/x.jpg",
        "test/猫/1.jpg",
    )
    listing = list_folder(root)
    assert set(listing.class_names) == {composed, "猫"}  # a Mac's and a PC's ä are one class
    assert all(file.is_file() for file in listing.files)


def test_a_class_may_be_called_train(tmp_path):
    assert list_folder(tree(tmp_path, "train/1.jpg", "bus/1.jpg")).class_names == ("bus", "train")


def test_links_are_followed_and_loops_are_not(tmp_path):
    tree(tmp_path, "elsewhere/1.jpg", "root/b/1.jpg", "root/b/2.jpg")
    (tmp_path / "root" / "a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "root" / "b" / "loop").symlink_to(tmp_path / "root" / "b")
    assert list_folder(tmp_path / "root").relative() == ["a/1.jpg", "b/1.jpg", "b/2.jpg"]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a/1.jpg", "b/"], "class folder .*b has no pictures, it is empty"),
        (["a/1.jpg", "b/.DS_Store"], "class folder .*b has no pictures, it is empty"),
        (["a/1.jpg", "b/1.cr2"], "class folder .*b has no pictures, it holds 1 .cr2"),
        (["a/1.jpg", "a/2.jpg"], "at least two classes, but there is only one: 'a'"),
        (["a/1.jpg", "x.txt"], "at least two pictures, but there is only one"),
        (["inner/a/1.jpg", "inner/b/1.jpg"], "only one class, 'inner'; did you mean .*inner"),
        (["1.jpg", "2.jpg"], "2 pictures, but no class folders"),
        ([], "no pictures and no folders"),
        (["a/", "b/"], "has no pictures, it is empty"),
        (["notes/a.txt", "more/b.txt"], "there are no pictures"),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/c/1.jpg"],
            "1 of the classes of test have no picture in train to learn from: c;",
        ),
        (["train/a/1.jpg", "train/b/1.jpg", "val/c/1.jpg"], "1 of the classes of val have no picture in train"),
        (["train/1.jpg", "test/1.jpg"], "train has pictures, but no class folders"),
        (["train/", "test/a/1.jpg", "test/b/1.jpg"], "train has nothing in it"),
        (["val/a/1.jpg", "test/a/1.jpg"], "has test, val, but no folder train"),
        (["train/a/1.jpg", "train/b/1.jpg", "more/a/1.jpg"], "beside 'more', which has pictures but is no split"),
    ],
)
def test_impossible_folders_are_refused_with_the_reason(tmp_path, names, message):
    tree(tmp_path, *names)
    with pytest.raises(ValueError, match=message):
        list_folder(tmp_path)


def test_unlabeled_test_images_and_empty_splits_are_left_out_with_a_note(tmp_path):
    listing = list_folder(tree(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "test/1.jpg", "test/2.jpg", "val/", "docs/a.txt"))
    assert listing.split == ("train", "train")
    for part in ("2 pictures directly in", "val has no pictures", "docs has no pictures"):
        assert any(part in text(note) for note in listing.notes)


def test_an_empty_class_folder_of_test_is_noted_and_one_of_train_is_refused(tmp_path):
    listing = list_folder(tree(tmp_path, "train/a/1.jpg", "train/b/1.jpg", "test/a/1.jpg", "test/b/"))
    assert listing.split == ("test", "train", "train")
    assert any("b has no pictures" in text(note) for note in listing.notes)
    (tmp_path / "train" / "b" / "1.jpg").unlink()
    with pytest.raises(ValueError, match=r"the class folder .*b has no pictures, it is empty"):
        list_folder(tmp_path)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match="does not exist"):
        list_folder(tmp_path / "gone")
    with pytest.raises(ValueError, match="is not a folder"):
        list_folder(tree(tmp_path, "a.zip") / "a.zip")


@pytest.mark.parametrize("hidden", ["", "a", "a/deep"])
def test_an_unreadable_folder_is_a_clear_error(tmp_path, hidden):
    root = tree(tmp_path / "root", "a/deep/1.jpg", "a/1.jpg", "b/1.jpg")
    open_to_all(tmp_path)
    (root / hidden).chmod(0)
    code = f"""
import os
from softbias.data.listing import list_folder
if os.getuid() == 0:
    os.setuid(65534)
try:
    list_folder({str(root)!r})
except ValueError as error:
    print(error)
"""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        (root / hidden).chmod(0o755)
    assert done.stderr == ""
    assert done.stdout.startswith(f"{root / hidden} may not be read: permission denied")


def test_a_csv_file_names_images_beside_it(tmp_path):
    tree(tmp_path, "pics/a 1.jpg", "pics/ü.png", "z.jpg")
    absolute = tmp_path / "z.jpg"
    (tmp_path / "set.csv").write_text(
        f"path,label,subject\npics/a 1.jpg,10,x\npics/ü.png,9,x\n{absolute},10,y\n", encoding="utf-8"
    )
    listing = list_csv(tmp_path / "set.csv")
    assert listing.name == "set"
    assert listing.class_names == ("9", "10")
    np.testing.assert_array_equal(listing.labels, [1, 0, 1])
    assert listing.relative() == ["pics/a 1.jpg", "pics/ü.png", "z.jpg"]
    assert listing.split is None
    assert listing.groups is None
    assert list_csv(tmp_path / "set.csv", group_by="subject").groups == ("x", "x", "y")


def test_a_table_from_windows_is_read_with_its_backslashes(tmp_path):
    tree(tmp_path, "cats/a b.jpg", "dogs/b.jpg")
    (tmp_path / "set.csv").write_text("path,label\ncats\\a b.jpg,cat\ndogs\\b.jpg,dog\n")
    assert list_csv(tmp_path / "set.csv").relative() == ["cats/a b.jpg", "dogs/b.jpg"]


@pytest.mark.parametrize("path", ["path", "file", "filename", "image", "Path "])
@pytest.mark.parametrize("label", ["label", "class", "target"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_usual_column_names_and_separators_are_understood(tmp_path, path, label, separator):
    tree(tmp_path, "a.jpg", "b.jpg")
    rows = [[label, "extra", path], ["x", "", "a.jpg"], ["y", "", "b.jpg"]]
    (tmp_path / "set.tsv").write_text("\n".join(separator.join(row) for row in rows), encoding="utf-8-sig")
    listing = list_csv(tmp_path / "set.tsv")
    assert listing.class_names == ("x", "y")
    assert listing.relative() == ["a.jpg", "b.jpg"]


def test_a_split_column_takes_the_usual_names_and_may_be_empty(tmp_path):
    tree(tmp_path, *"abcdef")
    rows = "a,x,train\nb,y,Training\nc,x,valid\nd,y,val\ne,x,\nf,y, \n"
    (tmp_path / "set.csv").write_text("path,label,split\n" + rows)
    assert list_csv(tmp_path / "set.csv").split == ("train", "train", "val", "val", "", "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "needs a column 'path'"),
        ("path,kind\na,x\n", "needs a column 'label' .*but has path, kind"),
        ("path,label\na,x\ngone.jpg,y\n", "1 of 2 pictures not found: gone.jpg"),
        ("path,label\na,x\nb,\n", "no label in line 3"),
        ("path,label\na,x\n,y\n", "no path in line 3"),
        ("path,label\na,x\na,y\n", "lists 1 picture more than once: a"),
        ("path,label\na,x\nb,y,z\n", "line 3 has 3 columns"),
        ("path,label,split\na,x,train\nb,y,holdout\n", "train, val, test or nothing, but has holdout"),
        ("path,label,split\na,x,train\nb,y,train\nc,z,test\n", "no picture in train to learn from: z"),
        ("path,label\na,x\nb,x\n", "only one: 'x'"),
        ("path,label\na,x\n", "only one"),
        ("path,label\n", "no pictures"),
        ("path,label\na,x\n./a,y\n", "lists 1 picture more than once: a"),
        ("path,label\na,x\nb\0,y\n", "line 3 has zero bytes"),
        ("p\0a\0t\0h\0,\0", "line 1 has zero bytes: .*UTF-16"),
        (f"path,label\na,x\n{'b' * 5000},y\n", "1 of 2 pictures not found"),
    ],
)
def test_tables_that_do_not_match_are_refused_with_the_line(tmp_path, text, message):
    tree(tmp_path, *"abc")
    (tmp_path / "set.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        list_csv(tmp_path / "set.csv")


def test_two_ways_to_write_a_letter_are_one_class(tmp_path):
    tree(tmp_path, *"abc")
    (tmp_path / "set.csv").write_text("path,label\na,é\nb,e\u0301\nc,z\n", encoding="utf-8")
    assert list_csv(tmp_path / "set.csv").class_names == ("é", "z")


def test_a_table_that_is_not_utf8_says_so_where_it_matters(tmp_path):
    tree(tmp_path, "rosé/1.jpg", "dog/1.jpg")
    text = "path,label\nrosé/1.jpg,rose\ndog/1.jpg,dog\n"
    (tmp_path / "old.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(ValueError, match=r"1 of 2 pictures not found: ros\\xe9/1\.jpg; the table is not in UTF-8: .*iconv"):
        list_csv(tmp_path / "old.csv")
    (tmp_path / "labels.csv").write_bytes("path,label\n\ndog/1.jpg,dog\nrosé/1.jpg,".encode() + b"ros\xe9\n")
    with pytest.raises(ValueError, match=r"labels\.csv, line 4: the label ros\\xe9 is not in UTF-8: .*iconv"):
        list_csv(tmp_path / "labels.csv")
    (tmp_path / "other.csv").write_bytes("path,label,by\nrosé/1.jpg,rose,".encode() + b"Ren\xe9\ndog/1.jpg,dog,X\n")
    assert list_csv(tmp_path / "other.csv", group_by="by").class_names == ("dog", "rose")  # nothing writes this column
    (tmp_path / "excel.csv").write_bytes(text.encode("utf-16"))
    with pytest.raises(ValueError, match=r"excel\.csv is UTF-16: save it as CSV in UTF-8"):
        list_csv(tmp_path / "excel.csv")


def test_a_missing_table_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        list_csv(tmp_path / "set.csv")


def test_groups_come_from_a_column_or_from_an_expression(tmp_path):
    tree(tmp_path, "a/s1_x.jpg", "b/s2_x.jpg")
    assert read_listing(tmp_path, r"s\d").groups == ("s1", "s2")
    (tmp_path / "set.csv").write_text("path,label,who\na/s1_x.jpg,a,Ann\nb/s2_x.jpg,b,Bob\n")
    assert read_listing(tmp_path / "set.csv", "who").groups == ("Ann", "Bob")
    assert read_listing(tmp_path / "set.csv", r"s(\d)").groups == ("1", "2")
    with pytest.raises(ValueError, match=r"'woh': it is not found in 'a/s1_x\.jpg'.* a column"):
        read_listing(tmp_path / "set.csv", "woh")


def test_taking_some_keeps_everything_in_step(tmp_path):
    listing = read_listing(
        tree(tmp_path, *(f"{split}/{kind}/{n}.jpg" for split in ("train", "test") for kind in "ab" for n in "12")), r"\d"
    )
    some = listing.take([0, 3, 6])
    assert some.relative() == [listing.relative()[index] for index in (0, 3, 6)]
    assert some.split == tuple(listing.split[index] for index in (0, 3, 6))
    assert some.groups == tuple(listing.groups[index] for index in (0, 3, 6))
    np.testing.assert_array_equal(some.labels, listing.labels[[0, 3, 6]])


def test_columns_of_one_name_are_refused(tmp_path):
    tree(tmp_path, "a/1.jpg", "b/1.jpg")
    (tmp_path / "set.csv").write_text("path,label,Label\na/1.jpg,a,x\nb/1.jpg,b,y\n")
    with pytest.raises(ValueError, match="each column needs a name of its own, but label stands there twice"):
        list_csv(tmp_path / "set.csv")
