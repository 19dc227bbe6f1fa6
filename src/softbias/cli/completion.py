"""Completion for shells: a script that knows every command, with every option and every field of a recipe."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Annotated, Any, Union, get_type_hints

import tyro

from softbias.cli import COMMANDS, TRAINING, find
from softbias.cli.parsing import CONFIG, own_options
from softbias.data.augment import Augmentation
from softbias.training.recipe import Recipe


def write_completion(arguments: list[str]) -> None:
    """Let tyro print or write the script that the arguments ask for: every command, with every option and recipe field."""
    from tyro.extras import subcommand_cli_from_dict

    try:
        subcommand_cli_from_dict(tree(), prog="softbias", args=arguments, config=CONFIG)
    except SystemExit as end:
        if end.code:
            raise


def tree() -> dict[str, Callable[..., Any]]:
    functions: dict[str, Callable[..., Any]] = {}
    groups: dict[str, dict[str, Callable[..., Any]]] = {}
    for name in COMMANDS:
        group, _, inner = name.partition(" ")
        if inner:
            groups.setdefault(group, {})[inner] = find(name)
        else:
            functions[name] = with_recipe(find(name)) if name in TRAINING else find(name)
    return functions | {group: together(inner) for group, inner in groups.items()}


def with_recipe(function: Callable[..., Any]) -> Callable[..., Any]:
    """The command with the recipe's fields among its options, by their short names."""
    kind = inspect.get_annotations(function, eval_str=True)["options"]
    hints = get_type_hints(Recipe) | get_type_hints(Augmentation)
    own = own_options(function)
    short = [
        (f.name, hints[f.name], dataclasses.field(default=f.default, default_factory=f.default_factory))
        for f in (*dataclasses.fields(Recipe), *dataclasses.fields(Augmentation))
        if f.name not in own and f.name != "augmentation"
    ]
    recipe = dataclasses.make_dataclass("Changes", short, frozen=True)

    def command(options: Any, recipe: Any) -> None: ...

    command.__annotations__ = {"options": kind, "recipe": Annotated[recipe, tyro.conf.arg(name="")]}
    command.__doc__ = function.__doc__
    return command


def together(inner: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """One command from several of a group, such as `data check` and `data cache`."""
    parts = tuple(Annotated[Any, tyro.conf.subcommand(name, constructor=function)] for name, function in inner.items())

    def command(command: Any) -> None: ...

    command.__annotations__ = {"command": Annotated[Union[parts], tyro.conf.arg(name="")]}  # noqa: UP007
    return command
