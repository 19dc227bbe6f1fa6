"""`softbias bench`: images per second beside timm's, in one run."""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Literal


def bench(
    models: str = "deit_tiny,convit_tiny",
    mode: Literal["inference", "training", "both"] = "both",
    img_size: int = 224,
    batch: int | None = None,
    rounds: int = 20,
    compile: bool = False,
    device: str = "auto",
    json: Path | None = None,
) -> None:
    """Measure images per second of our models and of timm's, interleaved in one run.

    Ratios are medians over rounds in which both ran one after the other; the quartiles stand beside them.

    Args:
        models: Names, separated by commas.
        mode: What to time: a forward pass, a training step (AdamW), or both.
        img_size: Side of the image.
        batch: Images per step; 8 on a CPU and 256 on a GPU if not given.
        rounds: How often each is timed.
        compile: Use torch.compile for all.
        device: cpu, cuda, or auto.
        json: Also write the rows, hardware and versions to this file.
    """
    import torch
    from rich.console import Console
    from rich.table import Table

    from softbias.bench.throughput import Setting, compare_with_peers, environment

    if rounds < 2:
        raise ValueError(f"rounds must be at least 2, but rounds={rounds}")
    place = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
    on_gpu = place.type == "cuda"
    batch = batch or (256 if on_gpu else 8)
    modes = ["inference", "training"] if mode == "both" else [mode]
    rows = []
    for each in modes:
        setting = Setting(each, batch, img_size, place, torch.bfloat16 if on_gpu else torch.float32, compile)
        rows += compare_with_peers(models.split(","), setting, rounds)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("model", "mode", "images/s", "timm's", "ratio", "quartiles"):
        table.add_column(column, justify="left" if column in ("model", "mode") else "right", no_wrap=True)
    for row in rows:
        theirs = f"{row['peer_images_per_second']:,.1f}" if "peer" in row else "–"
        low, high = row.get("ratio_quartiles", (0, 0))
        ratios = (f"{row['ratio']:.3f}", f"{low:.3f} – {high:.3f}") if "peer" in row else ("–", "–")
        table.add_row(row["model"], row["mode"], f"{row['images_per_second']:,.1f}", theirs, *ratios)
    console = Console()
    console.print(table)
    about = environment(place) | {"batch": batch, "img_size": img_size, "rounds": rounds, "compile": compile}
    console.print(", ".join(f"{name} {value}" for name, value in about.items()), style="dim", highlight=False)
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_text(json_module.dumps({"environment": about, "rows": rows}, indent=2) + "\n")
