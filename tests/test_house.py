"""What CONTRIBUTING.md says about the house is true: its rooms, its picture, and a picture's way from the disk to the page."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import softbias
from softbias.cli import main
from softbias.data.dataset import Dataset
from softbias.data.listing import Listing
from softbias.data.sources import Source
from softbias.data.splits import Split
from softbias.runs.predictions import Predictions
from softbias.training.batches import SplitImages

ROOT = Path(__file__).parents[1]
PACKAGE = Path(softbias.__file__).parent
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SETS = (Listing, Dataset, Split, SplitImages, Predictions)
MODEL = ("models/", "attention/", "kernels/")
LATE = ("matplotlib.figure", "sklearn.linear_model", "softbias.runs.fit", "torch._dynamo", "tyro")
EACH, TEST = 10, 6  # pictures of a class; test pictures of all three


def house() -> Any:
    spec = importlib.util.spec_from_file_location("draw_house", ROOT / "scripts" / "draw_house.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(heading: str) -> list[list[str]]:
    """The rows of the table below a heading of CONTRIBUTING.md, without its first two."""
    section = GUIDE.split(f"# {heading}\n")[1].split("\n#")[0]
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")][2:]


def test_the_table_of_floors_has_every_room_in_the_order_of_the_contract():
    floors = [re.findall(r"`(\w+)/?`", row[1]) for row in table("The house")]
    floor_of = {room: number for number, rooms in enumerate(floors) for room in rooms}
    rooms = house().rooms()
    assert sorted(rooms) == sorted(floor_of) and len(rooms) == sum(map(len, floors))
    assert [floor_of[room] for room in rooms] == sorted(floor_of.values()), "a room stands on the wrong floor"


def test_every_module_of_the_package_is_in_a_room():
    modules = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
    assert {name for name in modules if not name.startswith("_")} == set(house().rooms())


def test_the_picture_of_the_house_shows_the_rooms_of_the_contract():
    drawn = json.loads(Image.open(ROOT / "docs" / "house.png").info["Description"])
    assert drawn == house().rooms(), "run python scripts/draw_house.py"


@dataclass(frozen=True)
class Call:
    """From one of our files into another. carries: whether an argument or the result holds test pictures or their scores."""

    caller: str
    callee: str
    function: str
    carries: bool


@dataclass
class Recorder:
    """Is a profiler that notes the calls between our files, in order."""

    calls: list[Call] = field(default_factory=list)
    files: dict[CodeType, str | None] = field(default_factory=dict)

    def file(self, code: CodeType) -> str | None:
        if code not in self.files:
            path = Path(code.co_filename)
            ours = path.is_relative_to(PACKAGE)
            self.files[code] = path.relative_to(PACKAGE).with_suffix("").as_posix() if ours else None
        return self.files[code]

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        code = frame.f_code
        if event not in ("call", "return") or self.file(code) is None:
            return
        above = frame.f_back
        while above is not None and self.file(above.f_code) in (None, "schema"):  # which only checks arguments
            above = above.f_back
        if above is None or self.file(above.f_code) == self.file(code):
            return
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if event == "call" else ()
        values = [frame.f_locals.get(name) for name in names] if event == "call" else [result]
        own = names[:1] == ("self",) and isinstance(values[0], SETS)  # a set that is asked about itself
        carries = not own and any(map(holds_test_images, values))
        if event == "call" or carries:
            self.calls.append(Call(self.file(above.f_code) or "", self.file(code) or "", code.co_qualname, carries))


def holds_test_images(value: object) -> bool:
    if isinstance(value, tuple):
        return any(map(holds_test_images, value[:4]))
    if isinstance(value, np.ndarray | torch.Tensor):
        return value.ndim > 1 and len(value) == TEST
    if isinstance(value, dict):
        scores = value["test"] if isinstance(value.get("test"), dict) else value
        return "accuracy_interval" in scores
    return isinstance(value, SETS) or (isinstance(value, Source) and value.listing is not None)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory) -> list[Call]:
    """The calls of `softbias fit FOLDER`."""
    folder = tmp_path_factory.mktemp("way")
    rng = np.random.default_rng(0)
    for name in "abc":
        (folder / "set" / name).mkdir(parents=True)
        for number in range(EACH):
            image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8))
            image.save(folder / "set" / name / f"{number}.png")
    for name in LATE:
        importlib.import_module(name)  # imports are slow while calls are recorded
    recorder = Recorder()
    options = [
        "--model",
        "convit_nano",
        "--img-size",
        "16",
        "--epochs",
        "1",
        "--trackers",
        "none",
        "--device",
        "cpu",
        "--quiet",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOFTBIAS_CACHE", str(folder / "cache"))
        before = sys.getprofile()
        threading.setprofile(recorder)
        sys.setprofile(recorder)
        try:
            status = main(["fit", str(folder / "set"), "--out", str(folder / "run"), *options])
        finally:
            sys.setprofile(before)
            threading.setprofile(None)
    assert status == 0 and "accuracy_interval" in json.loads((folder / "run" / "summary.json").read_text())["test"]
    return recorder.calls


def listed_way() -> list[tuple[str, str, str]]:
    """Caller, callee and function of each row in CONTRIBUTING.md."""
    rows = table("From a picture on the disk to a number on the page")
    assert [int(row[0]) for row in rows] == list(range(1, len(rows) + 1))
    return [(row[1].strip("`"), *row[2].strip("`").rsplit(".", 1)) for row in rows]


def is_row(call: Call, rows: list[tuple[str, str, str]]) -> bool:
    return any(
        (call.caller, call.callee) == (caller, callee) and function in call.function.split(".")
        for caller, callee, function in rows
    )


def test_the_way_of_an_image_is_made_of_calls_that_happen_in_this_order(recorded):
    calls = iter(recorded)
    for caller, callee, function in listed_way():
        happens = any((call.caller, call.callee) == (caller, callee) and function in call.function.split(".") for call in calls)
        assert happens, f"after the rows before it, {caller} does not call {callee}.{function}"


def test_the_way_of_an_image_never_returns_to_a_file_that_it_left(recorded):
    """Neither by a row of the table nor by a call that the table leaves out."""
    rows = listed_way()
    entered, left, number = [rows[0][0]], set(), 0
    for call in recorded:
        if is_row(call, rows[number : number + 1]):
            caller, callee, _ = rows[number]
            assert caller in entered, f"row {number + 1}: the way is not in {caller}, but in {entered}"
            while entered[-1] != caller:
                left.add(entered.pop())
            assert callee not in left and callee not in entered, f"row {number + 1} returns to {callee}"
            entered.append(callee)
            number += 1
        elif call.carries and not call.caller.startswith(MODEL) and not is_row(call, rows[:number]):  # a loop asks again
            assert call.callee not in left, f"{call.caller} returns to {call.callee}.{call.function}, after row {number}"
    assert number == len(rows)
