"""`softbias models`: what can be built, and what it costs."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import tyro

from softbias.errors import SoftbiasError


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
    from softbias.models import create_model, list_models, preset_spec
    from softbias.models.cost import COSTS, count_macs, count_parameters

    names = list_models(pattern)
    if not names:
        raise SoftbiasError(f"no model is named {pattern!r}; softbias models lists them all")
    rows: list[dict[str, Any]] = []
    for name in names:
        spec = preset_spec(name, num_classes=num_classes, img_size=img_size)
        if img_size is None and num_classes is None and name in COSTS:
            parameters, macs = COSTS[name]
        else:
            model = create_model(name, num_classes=num_classes, img_size=img_size, device="meta")
            parameters, macs = count_parameters(model), count_macs(model, spec.in_chans, *spec.img_size)
        rows.append(
            {
                "name": name,
                "blocks": spec.describe_layers(),
                "image": spec.img_size[0],
                "patch": getattr(spec, "patch_size", (None,))[0],
                "parameters": parameters,
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
