"""The zip file of a packed study: what lies in it, and that a bad one is refused in one line and leaves nothing behind."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest

from softbias.cli import main
from softbias.errors import SoftbiasError
from softbias.study.archive import unpacked, write_archive

TEXTS = ("SHA256SUMS", "config.yaml", "summary.json")
FINISHED = {"cifar10-a": 1.7e9, "cifar10-b": 1.7e9 + 60}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of a study with two runs on the same images."""
    made: Path = tmp_path_factory.mktemp("archive") / "mine"
    files = {"study.yaml": "name: mine\n", "plan.json": "{}\n"}
    for run in FINISHED:
        files |= {f"runs/{run}/{name}": f"{name} of {run}\n" * 200 for name in TEXTS}
        files |= {f"runs/{run}/answers.npz": f"answers of {run}", f"runs/{run}/labels.npz": "labels of both"}
    for name, content in files.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_text(content)
    return made


@pytest.fixture(scope="module")
def archived(folder, tmp_path_factory) -> Path:
    file: Path = tmp_path_factory.mktemp("archived") / "mine.zip"
    write_archive(folder, file, FINISHED)
    return file


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def runs_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("runs/*"))


def times_of(folder: Path) -> dict[str, float]:
    return {name: (folder / name).stat().st_mtime for name in files_of(folder)}


def test_the_texts_of_the_runs_lie_in_one_plain_tar_equal_kinds_beside_each_other(archived):
    with zipfile.ZipFile(archived) as archive:
        names, content = archive.namelist(), archive.read("runs.tar")
    assert names.count("runs.tar") == 1 and {"study.yaml", "plan.json"} <= set(names)
    assert {Path(name).suffix for name in names if name.startswith("runs/")} == {".npz"}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
        members = tar.getmembers()
    assert [member.name for member in members] == sorted(
        (member.name for member in members), key=lambda name: (name.split("/")[2:], name)
    )
    assert {(member.type, member.mode, member.uid, member.gid, member.uname, member.gname) for member in members} == {
        (tarfile.REGTYPE, 0o644, 0, 0, "", "")
    }
    kinds = [Path(member.name).name for member in members]
    assert kinds.count("summary.json") == kinds.count("config.yaml") == kinds.count("SHA256SUMS") == 2


def test_files_and_their_times_survive_a_second_packing(archived, tmp_path):
    with unpacked(archived) as again:
        wanted, times = files_of(again), times_of(again)
        finished = {path.name: times[f"runs/{path.name}/summary.json"] for path in runs_of(again)}
        write_archive(again, tmp_path / "again.zip", finished)
    with unpacked(tmp_path / "again.zip") as last:
        assert files_of(last) == wanted and times_of(last) == times


def test_the_folder_comes_back_and_equal_files_are_stored_once(folder, archived):
    with zipfile.ZipFile(archived) as archive:
        assert len([name for name in archive.namelist() if name.endswith("labels.npz")]) == 1
    with unpacked(archived) as again:
        assert files_of(again) == files_of(folder)
        assert times_of(again)["runs/cifar10-b/config.yaml"] == FINISHED["cifar10-b"]


def test_an_older_file_has_an_entry_for_every_text_and_is_read_as_well(archived, tmp_path):
    with unpacked(archived) as folder, zipfile.ZipFile(tmp_path / "older.zip", "w", zipfile.ZIP_LZMA) as archive:
        wanted = files_of(folder)
        for name in wanted:
            archive.write(folder / name, name)
    with unpacked(tmp_path / "older.zip") as folder:
        assert files_of(folder) == wanted


def test_a_text_whose_name_is_too_long_for_a_plain_tar_is_an_entry_of_its_own(tmp_path):
    names = ["study.yaml", *(f"runs/{'ü' * half}/config.yaml" for half in (41, 42))]  # 99 and 101 bytes
    for name in names:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    write_archive(tmp_path / "mine", tmp_path / "mine.zip", {Path(name).parent.name: 1.7e9 for name in names[1:]})
    with zipfile.ZipFile(tmp_path / "mine.zip") as archive:
        assert sorted(archive.namelist()) == sorted(["runs.tar", names[0], names[2]])
    with unpacked(tmp_path / "mine.zip") as folder:
        assert files_of(folder) == files_of(tmp_path / "mine")


def archive_with(name: str, content: bytes = b"x") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr(name, content)
    return stream.getvalue()


def tar_with(name: str, content: bytes = b"x", **fields: object) -> bytes:
    """A packed study's tar of one member."""
    member = tarfile.TarInfo(name)
    for field, value in {"size": len(content), "mtime": 1_700_000_000, **fields}.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512) + bytes(1024)


RUN = "runs/a/config.yaml"
BAD_TARS = {
    "no tar": (b"nothing of the kind" * 100, "invalid header"),
    "an empty tar": (b"", "empty header"),
    "half a header": (tar_with(RUN)[:300], "truncated header"),
    "no end": (tar_with(RUN)[:1024], "empty header"),
    "half a file": (tar_with(RUN, b"x" * 100)[:600], "no file of a run"),
    "damage after a file": (tar_with(RUN)[:1024] + tar_with(RUN).replace(b"/a/", b"/b/"), "bad checksum"),
    "a way out": (tar_with("runs/../../study.yaml"), "no file of a study"),
    "an absolute path": (tar_with("/runs/a/config.yaml"), "no file of a run"),
    "a file outside of the runs": (tar_with("study.yaml"), "no file of a run"),
    "a list of copies": (tar_with("same.json", b"{}"), "no file of a run"),
    "a symbolic link": (tar_with(RUN, b"", type=tarfile.SYMTYPE, linkname="/etc/passwd"), "no file of a run"),
    "a hard link": (tar_with(RUN, b"", type=tarfile.LNKTYPE, linkname="study.yaml"), "no file of a run"),
    "a folder": (tar_with("runs/a", b"", type=tarfile.DIRTYPE), "no file of a run"),
    "a device": (tar_with(RUN, b"", type=tarfile.CHRTYPE, devmajor=1, devminor=5), "no file of a run"),
    "a pipe": (tar_with(RUN, b"", type=tarfile.FIFOTYPE), "no file of a run"),
    "a sparse file": (tar_with(RUN, type=tarfile.GNUTYPE_SPARSE), "no file of a run"),
    "a long name": (tar_with(f"runs/{'a' * 200}/config.yaml"), "no file of a run"),
    "a size below zero": (tar_with(RUN, b"", size=-512), "no file of a run"),
    "a size without end": (tar_with(RUN, size=2**60), "no file of a run"),
    "a time that no file has": (tar_with(RUN, mtime=2**70), "no file of a run"),
    "a file twice": (tar_with(RUN)[:1024] + tar_with(RUN), "twice"),
    "a file in a file": (tar_with("runs/a")[:1024] + tar_with(RUN), "cannot be read"),
}


@pytest.mark.parametrize(("tar", "why"), BAD_TARS.values(), ids=list(BAD_TARS))
def test_texts_of_runs_are_read_from_a_plain_tar_only(tar, why, tmp_path):
    (tmp_path / "bad.zip").write_bytes(archive_with("runs.tar", tar))
    with pytest.raises(SoftbiasError, match=why) as caught, unpacked(tmp_path / "bad.zip"):
        pass
    assert "\n" not in str(caught.value) and [path.name for path in tmp_path.iterdir()] == ["bad.zip"]


def test_a_file_beside_the_tar_and_in_it_is_refused(tmp_path):
    (tmp_path / "bad.zip").write_bytes(archive_with("runs.tar", tar_with(RUN)))
    with zipfile.ZipFile(tmp_path / "bad.zip", "a") as archive:
        archive.writestr(RUN, b"y")
    with pytest.raises(SoftbiasError, match="twice"), unpacked(tmp_path / "bad.zip"):
        pass


BAD = {
    "no archive": b"nothing of the kind",
    "another archive": archive_with("notes.txt"),
    "a way out": archive_with("../study.yaml"),
    "a hidden way out": archive_with("runs/../../study.yaml"),
    "an absolute path": archive_with("/study.yaml"),
    "a copy that leads out": archive_with("same.json", b'{"../study.yaml": "same.json"}'),
    "a bad tar": archive_with("runs.tar", b"nothing of the kind"),
    "a copy of nothing": archive_with("same.json", b'{"study.yaml": "gone.yaml"}'),
    "no list of copies": archive_with("same.json", b"[]"),
    "a copy of two": archive_with("same.json", b'{"study.yaml": ["same.json"]}'),
}


@pytest.mark.parametrize("content", BAD.values(), ids=list(BAD))
def test_a_file_that_is_no_packed_study_is_refused_in_one_line(content, tmp_path, capsys):
    (tmp_path / "bad.zip").write_bytes(content)
    assert main(["report", str(tmp_path / "bad.zip"), "--out", str(tmp_path / "report")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.zip"]


def test_an_archive_that_grows_beyond_its_bound_is_not_unpacked(archived, monkeypatch):
    monkeypatch.setattr("softbias.study.archive.MOST_BYTES", 5000)
    with pytest.raises(SoftbiasError, match="more than 5,000 bytes"), unpacked(archived):
        pass


def test_files_in_the_tar_and_copies_count_as_entries(archived, monkeypatch):
    with unpacked(archived) as folder:
        count = len(files_of(folder))
    with zipfile.ZipFile(archived) as archive:
        entries, copies = len(archive.namelist()), len(json.loads(archive.read("same.json")))
    assert copies and entries < count - copies
    for most, enough in ((entries, False), (count - copies, False), (count + 1, True)):  # same.json is one
        monkeypatch.setattr("softbias.study.archive.MOST_ENTRIES", most)
        if enough:
            with unpacked(archived):
                continue
        with pytest.raises(SoftbiasError, match=f"entries, and at most {most:,} are read"), unpacked(archived):
            pass


def test_a_damaged_file_is_refused(archived, tmp_path):
    content = bytearray(archived.read_bytes())
    with zipfile.ZipFile(archived) as archive:
        entry = max(archive.infolist(), key=lambda entry: entry.compress_size)
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 255
    (tmp_path / "damaged.zip").write_bytes(bytes(content))
    with pytest.raises(SoftbiasError, match=r"cannot be read|damaged"), unpacked(tmp_path / "damaged.zip"):
        pass
