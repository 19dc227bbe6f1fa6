"""`softbias models`: what can be built, and what it costs."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import tyro


def models(
    pattern: Annotated[str, tyro.conf.Positional] = "*",
    /,
    img_size: int | None = None,
    num_classes: int | None = None,
    json: bool = False,
) -> None:
    """List models: mechanism per block, parameters, and multiply-accumulates for one image.

    Args:
        pattern: Shell pattern of names, such as 'convit_*'.
        img_size: Side of the image; each model's own default if not given.
        num_classes: Number of classes; each model's own default if not given.
        json: Print JSON instead of a table.
    """
    from softbias.models import create_model, list_models
    from softbias.models.cost import count_macs, count_parameters

    names = list_models(pattern)
    if not names:
        raise ValueError(f"no model is named {pattern!r}; softbias models lists them all")
    rows = []
    for name in names:
        model: Any = create_model(name, num_classes=num_classes, img_size=img_size, device="meta")
        spec = model.spec
        macs = count_macs(model, spec.in_chans, *spec.img_size)
        patch = getattr(spec, "patch_size", (None,))[0]
        rows.append(
            {
                "name": name,
                "blocks": spec.describe_layers(),
                "image": spec.img_size[0],
                "patch": patch,
                "parameters": count_parameters(model),
                "macs": macs,
            }
        )
    if json:
        print(json_module.dumps(rows, indent=2))
        return

    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("blocks")
    for column in ("image", "patch", "parameters", "MACs"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        patch = str(row["patch"] or "–")
        table.add_row(
            row["name"],
            row["blocks"],
            str(row["image"]),
            patch,
            f"{row['parameters'] / 1e6:.2f} M",
            f"{row['macs'] / 1e9:.3f} G",
        )
    Console().print(table)
