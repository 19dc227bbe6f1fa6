"""Shell completion: every command, with every option and every field of a recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Union

import tyro
from tyro.extras import subcommand_cli_from_dict

from softbias.cli import COMMANDS, TRAINING, find
from softbias.cli.parsing import CONFIG
from softbias.training.recipe import Recipe


def write_completion(arguments: list[str]) -> None:
    """Let tyro print or write the script that the arguments ask for."""
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
    """The command with the recipe's fields among its options."""
    import inspect

    kind = inspect.get_annotations(function, eval_str=True)["options"]

    def command(options: Any, recipe: Recipe = Recipe()) -> None: ...  # noqa: B008

    command.__annotations__ = {"options": kind, "recipe": Recipe}
    command.__doc__ = function.__doc__
    return command


def together(inner: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
    """One command from several of a group, such as `data check` and `data cache`."""
    parts = tuple(Annotated[Any, tyro.conf.subcommand(name, constructor=function)] for name, function in inner.items())

    def command(command: Any) -> None: ...

    command.__annotations__ = {"command": Annotated[Union[parts], tyro.conf.arg(name="")]}  # noqa: UP007
    return command
