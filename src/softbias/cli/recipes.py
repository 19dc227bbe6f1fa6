"""`softbias recipes`: how a model can be trained."""

from __future__ import annotations

import dataclasses
import json as json_module
from typing import Annotated, Any

import tyro

from softbias.cli.parsing import flag


def recipes(
    name: Annotated[str | None, tyro.conf.Positional, flag("NAME", "A recipe, to be shown in full.")] = None,
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
        print(json_module.dumps({key: {"about": ABOUT[key], **recipe.to_dict()} for key, recipe in chosen.items()}, indent=2))
        return
    from rich.console import Console

    if name is None:
        Console(highlight=False).print(overview())
        return
    recipe = find_recipe(name)
    measured = f"measured: {MEASURED[name]}\n" if name in MEASURED else ""
    print(f"{name}: {ABOUT[name]}\n{measured}augmentation: {recipe.augmentation.describe()}\n")
    meaning = (Recipe.__doc__ or "").split("\n\n", 1)[-1].rstrip()
    print("\n".join(line.removeprefix("    ") for line in meaning.splitlines()) + "\n")
    rows = fields(recipe) + fields(recipe.augmentation)
    width = max(len(option) for option, _ in rows)
    for option, value in rows:
        print(f"{option:{width}}  {value}")


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
    from rich.table import Table

    from softbias.training.recipe import ABOUT, RECIPES

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("recipe", no_wrap=True)
    for column in ("epochs", "batch", "lr"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("optimizer", no_wrap=True)
    table.add_column("for")
    for name, recipe in RECIPES.items():
        lr = f"{recipe.lr:g}" + (f"/{recipe.lr_per}" if recipe.lr_per else "")
        how = f"{recipe.optimizer}, {recipe.schedule}"
        table.add_row(name, f"{recipe.epochs:g}", str(recipe.batch_size), lr, how, ABOUT[name])
    return table
