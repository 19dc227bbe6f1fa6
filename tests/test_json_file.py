"""JSON files that cannot be what we wrote are refused in one line."""

import os

import pytest

from softbias.errors import SoftbiasError
from softbias.json_file import MOST_LEVELS, read_json


@pytest.mark.parametrize(
    "content",
    [
        b'{"seed": 1, "seed": 2}',
        b'{"outer": [{"a": 1, "b": 2, "a": 1}]}',
        b"[" * (MOST_LEVELS + 1) + b"]" * (MOST_LEVELS + 1),
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"name": "caf\xe9"}',
        b"",
    ],
    ids=["a key twice", "a key twice inside", "a level too many", "endless levels", "no UTF-8", "empty"],
)
def test_what_no_file_of_ours_holds_is_refused_in_one_line_that_names_the_file(tmp_path, content):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(SoftbiasError) as caught:
        read_json(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_is_within_the_limits_is_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[" * MOST_LEVELS + "]" * MOST_LEVELS)
    assert len(read_json(path)) == 1
    path.write_text('{"a": {"a": 1}, "b": [{"a": 2}, {"a": 3}]}')
    assert read_json(path)["b"][1] == {"a": 3}


def test_a_byte_too_many_is_refused(tmp_path):
    path = tmp_path / "config.json"
    path.write_text("[1, 2]")
    assert read_json(path, most=6) == [1, 2]
    with pytest.raises(SoftbiasError):
        read_json(path, most=5)


def test_nobody_waits_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(SoftbiasError):
        read_json(tmp_path / "config.json")
