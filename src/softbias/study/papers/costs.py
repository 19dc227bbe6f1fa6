"""Speed of the arms of a study, timed side by side on this device, beside published figures of other hardware."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas
import torch

from softbias.bench.measuring import interleaved, ratio
from softbias.bench.regularization import STEPS, Candidate, random_images
from softbias.bench.throughput import Setting, side_by_side
from softbias.environment import describe_machine
from softbias.models import create_model
from softbias.runs.run import Run
from softbias.study.arms import Arm
from softbias.study.papers.measuring import FOLDER, Point, arms_in_order, compared_runs, draw_beside, write_table
from softbias.study.papers.named import Measured
from softbias.study.spec import read_study


def arms_and_size(folder: Path) -> tuple[list[Arm], int]:
    """The arms that have finished runs, and the side of their pictures."""
    frame = compared_runs(folder)
    there = arms_in_order(frame)
    side = Run(Path(frame["run"].iloc[0])).summary()["img_size"][0]
    return [arm for arm in read_study(folder).arms if arm.name in there], side


def where(device: str) -> str:
    about = describe_machine(torch.device(device))
    return f"{about['hardware']} ({about['device']}, torch {about['torch']}, threads: {about['threads']})"


def inference_speed(folder: Path, device: str, batch: int, rounds: int, theirs: Mapping[str, float], whose: str) -> Measured:
    """Images per second of every arm's model, and relative to the first arm's."""
    arms, side = arms_and_size(folder)
    place = torch.device(device)
    setting = Setting("inference", batch, side, place, torch.bfloat16 if device == "cuda" else torch.float32)
    builders = {arm.name: builder(arm, side) for arm in arms}
    first = arms[0].name
    rows: list[dict[str, Any]] = []
    for row in side_by_side(builders, setting, rounds, against=first):
        published = theirs.get(row.what)
        rows.append(
            {"arm": row.what, "images_per_second": row.value, "spread": row.spread, "relative": row.ratio or 1.0}
            | {"low": (row.quartiles or (1.0, 1.0))[0], "high": (row.quartiles or (1.0, 1.0))[1]}
            | {"published": published, "published_relative": published / theirs[first] if published else None}
            | {"how": str(setting), "hardware": where(device)}
        )
    table = pandas.DataFrame(rows)
    points = [Point(r["arm"], r["relative"], r["low"], r["high"], r["published_relative"]) for r in rows]
    title = f"images/s at inference, relative to {first}"
    picture = draw_beside({str(setting): points}, folder / FOLDER / "speed.png", title, said="published", log=True)
    about = f"Medians and quartiles over {rounds} interleaved rounds on {where(device)}. Open diamonds: {whose}."
    return Measured("Speed at inference", about, (picture,), (write_table(table, folder, "speed"),))


def builder(arm: Arm, side: int) -> Any:
    return lambda: create_model(arm.model, num_classes=1000, img_size=side, **arm.model_options)


def step_time(
    folder: Path, device: str, batch: int, rounds: int, theirs: Mapping[str, float], base: str, whose: str
) -> Measured:
    """Milliseconds of a training step of every arm, and over the base's."""
    arms, side = arms_and_size(folder)
    place = torch.device(device)
    images, labels = random_images(batch, side, place)
    rows = []
    shown: dict[str, list[Point]] = {}
    for mode in ("eager", "compiled, recorded") if device == "cuda" else ("eager",):
        prepared = {
            arm.name: Candidate(
                arm.model, next(iter(arm.recipe.get("regularize", ())), None), True, images, labels, mode, **arm.model_options
            )
            for arm in arms
        }
        timings = interleaved({name: each.steps for name, each in prepared.items()}, place, rounds=rounds, warmup=2)
        how = f"{mode}, batch {batch}, {side} px"
        for name, timing in timings.items():
            middle, low, high = ratio(timings[base], timing)  # how many times faster the base is
            published = theirs[name] / theirs[base] if name in theirs else None
            rows.append(
                {
                    "arm": name,
                    "how": how,
                    "milliseconds": 1e3 * timing.median / STEPS,
                    "relative": middle,
                    "low": low,
                    "high": high,
                }
                | {
                    "memory": prepared[name].memory,
                    "published_epoch_seconds": theirs.get(name),
                    "published_relative": published,
                }
                | {"hardware": where(device)}
            )
            shown.setdefault(how, []).append(Point(name, middle, low, high, published))
        for each in prepared.values():
            each.close()
        del prepared
        torch.compiler.reset()
    picture = draw_beside(shown, folder / FOLDER / "step_time.png", f"time of a training step, relative to {base}", log=True)
    about = (
        f"Forward, backward and AdamW on synthetic pictures, all arms in turn, medians and quartiles over {rounds} rounds of "
        f"{STEPS} steps on {where(device)}. Open diamonds: {whose}."
    )
    return Measured("Time of a training step", about, (picture,), (write_table(pandas.DataFrame(rows), folder, "step_time"),))
