"""`softbias models` and `softbias recipes`: what can be built, and how it can be trained."""

from __future__ import annotations

import dataclasses
import json as json_module
from fnmatch import fnmatch
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional

from softbias.bounds import Classes, ShortText, Side
from softbias.cli.parsing import flag, table
from softbias.errors import SoftbiasError
from softbias.terminal import echo, make_console

if TYPE_CHECKING:
    from softbias.models.spec import Spec


def models(
    pattern: Annotated[ShortText, Positional] = "*",
    /,
    img_size: Side | None = None,
    num_classes: Classes | None = None,
    pretrained: bool = False,
    json: bool = False,
) -> None:
    """List models: mechanism per block, parameters, and multiply-accumulates for one image.

    Args:
        pattern: Shell pattern of names, such as 'convit_*'.
        img_size: Side of the image; each model's own default if not given.
        num_classes: Number of classes; each model's own default if not given.
        pretrained: List models with pretrained weights instead: their license, their size, and whether they are at hand.
        json: Print JSON instead of a table.
    """
    if pretrained:
        if img_size is not None or num_classes is not None:
            raise SoftbiasError("--pretrained lists weights as they are; leave out --img-size and --num-classes")
        list_pretrained(pattern, json=json)
        return
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
                "classes": spec.num_classes,
                "flattened_head": flattened_head(spec),
            }
        )
    if json:
        echo(*json_module.dumps(rows, indent=2).split("\n"))
        return
    numbers = ("image", "patch", "parameters", "MACs")
    found = table("model", "blocks", *numbers, right=numbers, fold=("blocks",))
    for row in rows:
        costs = f"{row['parameters'] / 1e6:.2f} M", f"{row['macs'] / 1e9:.3f} G"
        found.add_row(row["name"], row["blocks"], str(row["image"]), str(row["patch"] or "–"), *costs)

    make_console().print(found)
    for row in rows:
        if row["flattened_head"]:
            own = f"{row['flattened_head'] / 1e6:.2f} M of its parameters"
            echo(f"{row['name']}: its head sees every patch, so {own} belong to {row['classes']:,} classes (--num-classes)")


def flattened_head(spec: Spec) -> int:
    """Parameters of a head that sees the output of all patches; 0 where it sees one vector."""
    from softbias.models.spec import ModelSpec

    if not isinstance(spec, ModelSpec) or spec.pool != "flatten":
        return 0
    return spec.num_classes * (spec.grid(0).patches * spec.width + 1)


def list_pretrained(pattern: str, *, json: bool) -> None:
    """The recommended backbones, and whether their weights are on this machine."""
    from softbias.models.backbones import BACKBONES
    from softbias.models.weight_files import find_at_hand

    chosen = [backbone for backbone in BACKBONES if fnmatch(backbone.model, pattern)]
    if not chosen:
        raise SoftbiasError(f"no pretrained model is named {pattern!r}; softbias models --pretrained lists them all")
    searched = [find_at_hand(backbone) for backbone in chosen]
    files = [each.file for each in searched]
    if json:
        rows = [
            dataclasses.asdict(backbone) | {"at_hand": None if file is None else str(file.path)}
            for backbone, file in zip(chosen, files, strict=True)
        ]
        echo(*json_module.dumps(rows, indent=2).split("\n"))
        return
    numbers = ("parameters", "MB", "image")
    found = table(
        "model",
        "weights",
        *numbers,
        "license",
        "trained on",
        "fine-tuning",
        "at hand",
        right=numbers,
        fold=("weights", "fine-tuning"),
    )
    origins = {"folder": "in SOFTBIAS_WEIGHTS", "cache": "in the hub's cache"}
    for backbone, file in zip(chosen, files, strict=True):
        costs = f"{backbone.parameters / 1e6:.1f} M", str(backbone.megabytes), str(backbone.img_size)
        where = "no" if file is None else origins[file.origin]
        words = backbone.license or "not known", backbone.trained_on, backbone.needs, where
        found.add_row(backbone.model, backbone.repository, *costs, *words)
    make_console().print(found)
    left_out = [f"{why}; this file is left out" for each in searched for why in each.unfit]
    echo(*left_out, "softbias fit DATA --model NAME --start pretrained begins with them; timm:NAME and hf:FOLDER work as well.")


def recipes(
    name: Annotated[ShortText | None, Positional, flag("NAME", "A recipe, to be shown in full.")] = None,
    /,
    json: bool = False,
) -> None:
    """List recipes, or show one in full, with the option that changes each of its fields.

    Args:
        json: Print JSON.
    """
    from softbias.training.recipe import ABOUT, MEASURED, RECIPES, Recipe, find_recipe

    if json:
        chosen = RECIPES if name is None else {name: find_recipe(name)}
        plain = {key: {"about": ABOUT[key], **recipe.to_dict()} for key, recipe in chosen.items()}
        echo(*json_module.dumps(plain, indent=2).split("\n"))
        return

    if name is None:
        make_console().print(overview())
        return
    recipe = find_recipe(name)
    measured = [f"measured: {MEASURED[name]}"] if name in MEASURED else []
    echo(f"{name}: {ABOUT[name]}", *measured, f"augmentation: {recipe.augmentation.describe()}", "")
    meaning = (Recipe.__doc__ or "").split("\n\n", 1)[-1].rstrip()
    echo(*(line.removeprefix("    ") for line in meaning.splitlines()), "")
    rows = fields(recipe) + fields(recipe.augmentation)
    width = max(len(option) for option, _ in rows)
    for option, value in rows:
        echo(f"{option:{width}}  {value}")


def fields(settings: Any) -> list[tuple[str, str]]:
    """Flag and value of every field."""
    found = []
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        if not dataclasses.is_dataclass(value):
            text = " ".join(f"{part:.4g}" for part in value) if isinstance(value, tuple) else str(value)
            found.append((f"--{field.name.replace('_', '-')}", text))
    return found


def overview() -> Any:
    from softbias.training.recipe import ABOUT, RECIPES

    numbers = ("epochs", "batch", "lr")
    found = table("recipe", *numbers, "optimizer", "for", right=numbers, fold=("for",))
    for name, recipe in RECIPES.items():
        lr = f"{recipe.lr:g}" + (f"/{recipe.lr_per}" if recipe.lr_per else "")
        how = f"{recipe.optimizer}, {recipe.schedule}"
        found.add_row(name, f"{recipe.epochs:g}", str(recipe.batch_size), lr, how, ABOUT[name])
    return found
