"""Files that changed after they were written are found."""

from __future__ import annotations

import subprocess

import pytest

from softbias.checksums import DamagedError, sha256, verify_checksums, write_checksums


def test_checksums_find_every_change_and_are_those_of_the_usual_program(tmp_path):
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    write_checksums(tmp_path, ["a", "b"])
    verify_checksums(tmp_path, ["a"])
    assert subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True).returncode == 0
    for change in (lambda: (tmp_path / "b").write_text("twp"), (tmp_path / "b").unlink, (tmp_path / "SHA256SUMS").unlink):
        change()
        with pytest.raises(DamagedError):
            verify_checksums(tmp_path, ["a"])


def test_checksums_never_lead_outside_the_folder(tmp_path):
    (tmp_path / "secret").write_text("x")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "SHA256SUMS").write_text(f"{sha256(tmp_path / 'secret')}  ../secret\n")
    with pytest.raises(DamagedError, match="outside"):
        verify_checksums(tmp_path / "model", [])
