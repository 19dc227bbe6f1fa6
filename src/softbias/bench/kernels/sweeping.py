"""Other tiles for each kernel, timed beside the usual ones."""

from __future__ import annotations

from typing import Any

from softbias.bench.kernels.cases import (
    DEVICE,
    DISTANCE,
    FEW,
    GATED,
    MASKED,
    distance_case,
    few_case,
    gated_case,
    masked_case,
)
from softbias.bench.kernels.measuring import captured, reported, step
from softbias.bench.timing import interleaved
from softbias.kernels import distance, gated, masked
from softbias.kernels import short_seq as few
from softbias.kernels.launching import forget_plans
from softbias.kernels.tiles import Tiles

GATED_TILES = (  # size, other, depth, warps, stages
    (128, 128, 32, 8, 3),
    (128, 128, 32, 8, 4),
    (128, 128, 64, 8, 3),
    (128, 64, 32, 4, 4),
    (64, 128, 32, 4, 4),
    (64, 256, 32, 8, 3),
    (256, 64, 32, 8, 3),
    (256, 128, 32, 8, 3),
    (128, 256, 32, 8, 3),
)
SWEEP: dict[str, list[Any]] = {
    "distance": [Tiles(s, w, n) for s, w, n in ((16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 8, 3), (64, 8, 2), (32, 16, 2))],
    "forward": [
        Tiles(s, w, n) for s, w, n in ((16, 8, 1), (16, 8, 2), (32, 4, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (64, 8, 2))
    ],
    "backward": [Tiles(s, w, n) for s, w, n in ((16, 8, 1), (16, 8, 2), (32, 8, 1), (32, 8, 2), (32, 16, 2), (16, 16, 2))],
    "backward of few": [Tiles(s, w, n) for s, w, n in ((264, 4, 1), (264, 4, 2), (264, 4, 3), (132, 4, 2), (396, 4, 2))],
    "mask": [
        Tiles(s, w, n, o)
        for s, w, n, o in ((64, 4, 2, 64), (64, 8, 2, 64), (64, 8, 3, 64), (64, 8, 2, 128), (64, 8, 3, 128), (32, 4, 3, 128))
    ],
    "unroll": [Tiles(s, w, 1) for s, w in ((16, 1), (16, 4), (32, 2), (32, 4), (32, 8), (64, 8))],
    "factors": [Tiles(s, w, 1, o) for s, w, o in ((2048, 4, 8), (4096, 4, 8), (8192, 4, 8), (8192, 8, 8), (8192, 8, 16))],
    "mix": [Tiles(s, w, n, o, d) for s, o, d, w, n in GATED_TILES],
    "mix backward": [Tiles(s, w, n, o, d) for s, o, d, w, n in GATED_TILES],
    "pairs": [
        Tiles(s, w, n, o, d)
        for s, o, d, w, n in (
            (128, 128, 64, 8, 3),
            (128, 128, 64, 8, 4),
            (128, 128, 32, 8, 4),
            (128, 64, 64, 4, 4),
            (64, 64, 64, 4, 4),
            (64, 128, 64, 4, 3),
            (128, 256, 64, 8, 3),
        )
    ],
    "few forward": [Tiles(64, w, 1) for w in (2, 4, 8)],
    "few backward": [Tiles(64, w, 1) for w in (2, 4, 8)],
    "parts": [132, 264, 396, 528],
}

FORWARD_ONLY = ("forward", "unroll", "mix", "few forward")


def sweep(names: list[str], rounds: int) -> None:
    for name, module, attribute, shapes, build in (
        ("distance", distance, "TILES", DISTANCE[1:], distance_case),
        ("forward", masked, "FORWARD", MASKED, masked_case),
        ("backward", masked, "BACKWARD", MASKED, masked_case),
        ("backward of few", masked, "BACKWARD_OF_FEW", MASKED[1:], masked_case),
        ("mask", masked, "MASK", MASKED, masked_case),
        ("unroll", masked, "UNROLL", MASKED, masked_case),
        ("factors", masked, "FACTORS", MASKED, masked_case),
        ("mix", gated, "MIX", GATED, gated_case),
        ("mix backward", gated, "VALUES", GATED, gated_case),
        ("pairs", gated, "PAIRS", GATED, gated_case),
        ("parts", gated, "PROGRAMS", GATED, gated_case),
        ("few forward", few, "FORWARD", FEW, few_case),
        ("few backward", few, "BACKWARD", FEW, few_case),
    ):
        if name not in names:
            continue
        usual = getattr(module, attribute)
        for shape in shapes:
            case, replays = build(*shape), {}
            for tiles in SWEEP[name]:
                setattr(module, attribute, {True: tiles, False: tiles} if name == "distance" else tiles)
                forget_plans()
                with reported(f"{name} {tiles}"):
                    for backward in (False, True) if name == "distance" else (name not in FORWARD_ONLY,):
                        replays[f"{tiles} {'with' if backward else 'without'} gradient"] = captured(
                            step(case, "kernel", backward)
                        )
            setattr(module, attribute, usual)
            forget_plans()
            print(f"\nsweep of {name}, {case.name}, usual {usual}")
            for form, timing in sorted(interleaved(replays, DEVICE, rounds=rounds).items(), key=lambda pair: pair[1].median):
                print(f"  {timing.median * 1e3:7.3f} ms  {form}")
