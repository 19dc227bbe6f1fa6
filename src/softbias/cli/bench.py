"""`softbias bench`: speed and memory beside peers, in one run."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Literal

import tyro

from softbias.bounds import BatchSize, FilePath, Rounds, ShortText, Side
from softbias.cli.parsing import flag
from softbias.errors import SoftbiasError
from softbias.terminal import make_console

COMPILED: dict[str, tuple[Literal["default", "reduce-overhead"] | None, ...]] = {  # torch.compile's modes
    "off": (None,),
    "on": ("default",),
    "graphs": ("reduce-overhead",),
    "both": (None, "default"),
}


def bench(
    suite: Annotated[ShortText, tyro.conf.Positional, flag("SUITE", "What to measure; several with commas.")] = "peers",
    /,
    models: ShortText | None = None,
    mode: Literal["inference", "training", "both"] = "both",
    img_size: Side = 224,
    batch: BatchSize | None = None,
    rounds: Rounds = 20,
    compile: Literal["off", "on", "graphs", "both"] = "off",
    device: ShortText = "auto",
    json: FilePath | None = None,
) -> None:
    """Measure speed and memory of our models, layers and training loop beside their peers, interleaved in one run.

    Ratios are medians over rounds in which both ran one after the other; the quartiles stand beside them. Suites: peers (our
    models and timm's), convit, masked, ibit (IBiT, ConViT and DeiT: parameters and speed), windows, step (the whole training
    step), depthwise (the step with a convolution in the feed-forward), loops (ours and timm's), startup, load (a CPU that
    others use, too), regularization (the cost of a regularizer, on ARViT and on timm's ViT).
    `python -m softbias.bench.kernels` times single kernels.

    Args:
        models: Names, separated by commas, for the suites peers (any), convit, and ibit (any; ratios are to the second).
        mode: What to time: a forward pass, a training step (AdamW), or both.
        img_size: Side of the image.
        batch: Images per step; chosen by the suite if not given.
        rounds: How often each is timed.
        compile: Whether torch.compile is used; graphs: on, with steps replayed as CUDA graphs; both: off, then on.
        device: cpu, cuda, or auto.
        json: Also write the rows, hardware and versions to this file.
    """
    import torch

    from softbias.bench.measuring import print_rows
    from softbias.bench.suites import SUITES, Options
    from softbias.environment import describe_machine, find_device
    from softbias.errors import unknown_name
    from softbias.files import write_text

    chosen = suite.split(",")
    for name in chosen:
        if name not in SUITES:
            raise unknown_name("suite", name, SUITES)
    automatic = "cuda" if torch.cuda.is_available() else "cpu"
    chosen_device = torch.device(find_device(automatic if device == "auto" else device))
    if compile == "graphs" and chosen_device.type != "cuda":
        raise SoftbiasError("--compile graphs replays CUDA graphs, and there is no GPU here; --compile on compiles only")
    options = Options(
        chosen_device,
        rounds,
        batch,
        img_size,
        tuple(models.split(",")) if models else (),
        ("inference", "training") if mode == "both" else (mode,),
        COMPILED[compile],
    )
    about = describe_machine(chosen_device) | {"rounds": rounds}
    found: dict[str, list[dict[str, object]]] = {}
    for name in chosen:
        rows = []
        found[name] = []
        try:
            for row in SUITES[name](options):
                rows.append(row)
                found[name].append(row.to_dict())
                if json is not None:  # after every row: a later one may fail, or take too long
                    json.parent.mkdir(parents=True, exist_ok=True)
                    write_text(json, json_module.dumps({"environment": about, "suites": found}, indent=2) + "\n")
        finally:
            if rows:
                print_rows(rows)
    make_console().print(", ".join(f"{name} {value}" for name, value in about.items()), style="dim")
