"""Reading a command line with tyro: a mistake is one line, and a recipe's many fields stay out of the ordinary help.

`--lr 1e-3 --flip 0`, in full `--recipe.lr 1e-3 --recipe.augmentation.flip 0`, is set apart first (`split_recipe`) and becomes
values by name (`parse_overrides`). They are applied later, because the recipe may be chosen only when the images are counted.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import inspect
import io
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import tyro

from softbias.cli import TRAINING
from softbias.data.augment import Augmentation
from softbias.errors import SoftbiasError
from softbias.schema import bounded_hints, convert, has_bounds
from softbias.training.recipe import Recipe

if TYPE_CHECKING:
    from rich.table import Table

CONFIG = (tyro.conf.FlagCreatePairsOff, tyro.conf.DisallowNone)
PREFIX = "--recipe."
Device = Literal["auto", "cpu", "cuda", "mps"]
ELSEWHERE = {  # how other programs call fields of a recipe
    "learning-rate": "lr", "opt": "optimizer", "sched": "schedule", "wd": "weight-decay", "clip-grad": "clip",
    "model-ema": "ema", "label-smoothing": "smoothing", "batch": "batch-size", "bs": "batch-size", "amp": "precision",
    "hflip": "flip", "reprob": "erasing",
}  # fmt: skip
BESIDE = {"softbias evaluate": ["--data, for other pictures than the run's own"]}  # options that may have been meant


@dataclass(frozen=True)
class CommandLine:
    """A whole command line: its words, the words that change the recipe, and the values of these by name."""

    arguments: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)


Line = Annotated[CommandLine, tyro.conf.Fixed, tyro.conf.Suppress]  # a parameter that `cli.dispatch` gives
NO_LINE = CommandLine()


def flag(metavar: str, help: str, name: str | None = None) -> Any:
    """An option as the help shows it; its text says what happens without it, where that is not obvious."""
    return tyro.conf.arg(metavar=metavar, help=help, name=name, help_behavior_hint="")


def switch(help: str) -> Any:
    return tyro.conf.arg(help=help, help_behavior_hint="")


Score = Annotated[
    Literal["test", "val"] | None,
    flag("test|val", "Pictures that are scored; val is for choosing: validation pictures, and no look at the test pictures."),
]


def parse(function: Callable[..., Any], arguments: Sequence[str], prog: str) -> Callable[..., Any]:
    """The call that the arguments ask for, still to be made; a mistake in them is a SoftbiasError."""

    @functools.wraps(function)
    def later(*args: Any, **options: Any) -> Callable[..., Any]:
        return functools.partial(function, *args, **options)

    refuse_empty(arguments)
    with quoting_tyro(prog):
        call: Any = tyro.cli(later, args=list(arguments), prog=prog, config=CONFIG)
    check_flags(bounded_hints(function), inspect.signature(function).bind_partial(*call.args, **call.keywords).arguments)
    made: Callable[..., Any] = call
    return made


def refuse_empty(arguments: Sequence[str]) -> None:
    """A path or a name that is empty would be taken for the working folder, or for nothing at all.

    >>> refuse_empty(["fashion", "--out", ""])
    Traceback (most recent call last):
    softbias.errors.SoftbiasError: --out is empty; give it a value, or leave it out
    """
    for before, word in zip(("", *arguments), arguments, strict=False):
        name, equals, value = word.partition("=")
        if word.startswith("--") and equals and not value.strip():
            raise SoftbiasError(f"{name} is empty; give it a value, or leave it out")
        if not word.strip():
            named = before if before.startswith("--") and "=" not in before else "an argument"
            raise SoftbiasError(f"{named} is empty; give it a value, or leave it out")


def check_flags(hints: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Hold the values of a command line to the bounds of their types; an error calls an option as the user did."""
    for name, value in given.items():
        kind = hints.get(name)
        if dataclasses.is_dataclass(value) and not isinstance(value, CommandLine):
            options: Any = type(value)
            check_flags(bounded_hints(options), {each.name: getattr(value, each.name) for each in dataclasses.fields(value)})
        elif has_bounds(kind):
            convert(kind, value, "", flag_name(name, kind))


def flag_name(name: str, kind: Any) -> str:
    """An option as it is typed, or an argument as the help calls it."""
    metadata = kind.__metadata__ if get_origin(kind) is Annotated else ()
    config = next((each for each in metadata if hasattr(each, "metavar")), None)
    if config is not None and tyro.conf.Positional in metadata:
        return str(config.metavar)
    return f"--{(getattr(config, 'name', None) or name).replace('_', '-')}"


@contextlib.contextmanager
def quoting_tyro(prog: str) -> Any:
    """tyro prints a box and exits; here that becomes a SoftbiasError of one line."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            yield
    except SystemExit as end:
        if end.code:
            raise SoftbiasError(one_line(printed.getvalue(), prog)) from None
        raise


def one_line(box: str, prog: str) -> str:
    """What tyro's box says first, and what it thinks was meant; it draws with ASCII where it does not trust the terminal.

    >>> lines = "╭─ Wrong ─╮", "│ Unrecognized options: --modle │", "│ ── │", "│ Perhaps you meant: │", "│   --model NAME │"
    >>> one_line("\\n".join(lines), "softbias fit")
    'Unrecognized options: --modle; perhaps you meant --model NAME; softbias fit --help explains'
    """
    parts: list[list[str]] = [[]]  # the title, what is wrong, and hints, with rules between them
    for line in re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines():
        text = line.strip(" │")
        if line.startswith("╭") or (text and set(text) <= set("─-╰╯")):
            parts.append([])
        elif text:
            parts[-1].append(text)
    text = " ".join(parts[1] if len(parts) > 1 else parts[0]).rstrip(".")
    hints = [part[1] for part in parts if len(part) > 1 and part[0].startswith("Perhaps you meant")]
    unknown = re.match(r"Unrecognized options: (.*)", text)
    if unknown and not unknown[1].startswith("-"):
        text = f"{unknown[1]!r} is one argument too many"
        hints = BESIDE.get(prog, [])
    elif unknown and prog.removeprefix("softbias ") in TRAINING:
        words = [word.removeprefix("--").split("=")[0] for word in unknown[1].split(", ") if word.startswith("--")]
        hints = [f"--{ELSEWHERE[word]}" for word in words if word in ELSEWHERE] or hints or near_fields(words)
    wrong = re.match(r"Error parsing (\S+): .*?(int|float)\b.*'(.*?)'$", text, re.IGNORECASE)
    other = re.match(r"Error parsing (\S+): no type matching .* from \['(.*?)'\].*: (.*)", text)
    choice = re.match(r"invalid choice '(.*)' for argument '(.*)'. Expected one of \((.*)\)", text)
    if wrong:
        wanted = {"int": "a whole number", "float": "a number"}[wrong[2].lower()]
        text = f"{wrong[1]} cannot be {wrong[3]!r}: it takes {wanted}"
    elif other:
        text = f"{other[1]} cannot be {other[2]!r}: {other[3]}"
    elif choice:
        allowed = sorted(name for name in re.findall(r"'(.*?)'", choice[3]) if name != "None")
        text = f"{choice[2]} cannot be {choice[1]!r}: it takes {', '.join(allowed[:-1])} or {''.join(allowed[-1:])}"
    return "; ".join([text, *(f"perhaps you meant {hint}" for hint in hints), f"{prog} --help explains"])


def near_fields(words: Sequence[str]) -> list[str]:
    """Fields of the recipe that may have been meant by these names.

    >>> near_fields(["epoch", "flipp", "nonsense"])
    ['--epochs', '--flip']
    """
    names = [name.replace("_", "-") for name in (*outer_fields(), *inner_fields())]
    return [f"--{name}" for word in words for name in difflib.get_close_matches(word, names, n=1, cutoff=0.75)]


def own_options(function: Callable[..., Any]) -> set[str]:
    """The options of a command, among which there may be names of a recipe's fields."""
    kinds = [kind for kind in get_type_hints(function).values() if dataclasses.is_dataclass(kind)]
    return {field.name for kind in kinds for field in dataclasses.fields(kind)}


def split_recipe(arguments: Sequence[str], own: Collection[str] = ()) -> tuple[list[str], list[str]]:
    """The ordinary arguments, and those that change the recipe, by their short names.

    >>> split_recipe(["--lr", "1e-3", "fashion", "--recipe.zoom", "0.9", "1.1", "--recipe", "small"])
    (['fashion', '--recipe', 'small'], ['--lr', '1e-3', '--zoom', '0.9', '1.1'])
    """
    rest: list[str] = []
    changes: list[str] = []
    wanted = 0  # values that the last field still takes
    for token in arguments:
        name, equals, value = token.removeprefix(PREFIX).removeprefix("--").partition("=")
        plain = name.replace("-", "_")
        short = token.startswith("--") and plain not in own and (plain in outer_fields() or plain in inner_fields())
        if short or token.startswith(PREFIX):
            short_name, values = find_field(name)
            changes.append(f"--{short_name.replace('_', '-')}{equals}{value}")
            wanted = 0 if equals else values
        elif wanted and not token.startswith("--"):
            changes.append(token)
            wanted -= 1
        else:
            wanted = 0
            rest.append(token)
    return rest, changes


@functools.cache
def outer_fields() -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(Recipe) if field.name != "augmentation"}


@functools.cache
def inner_fields() -> dict[str, Any]:
    return {field.name: field for field in dataclasses.fields(Augmentation)}


def find_field(name: str) -> tuple[str, int]:
    """A field's name without "augmentation.", and the number of its values."""
    outer, inner = outer_fields(), inner_fields()
    plain = name.replace("-", "_")
    bare = plain.removeprefix("augmentation.")
    if plain in outer:
        return plain, 2 if isinstance(outer[plain].default, tuple) and outer[plain].default else 1
    if bare in inner:
        return bare, 2 if isinstance(inner[bare].default, tuple) else 1
    nearest = difflib.get_close_matches(bare, [*outer, *inner], n=1, cutoff=0.5)
    hint = f"did you mean --{nearest[0].replace('_', '-')}? " if nearest else ""
    raise SoftbiasError(f"a recipe has no field {name!r}; {hint}softbias recipes small shows them all")


def parse_overrides(changes: Sequence[str], prog: str) -> dict[str, Any]:
    """The values that `split_recipe` set apart, by the names of their fields.

    >>> parse_overrides(["--lr", "1e-3", "--zoom", "0.9", "1.1"], "softbias fit")
    {'lr': 0.001, 'zoom': (0.9, 1.1)}
    >>> parse_overrides(["--randaugment", "none", "--crop", "none"], "softbias fit")  # switched off; a word of its own
    {'randaugment': None, 'crop': 'none'}
    """
    if not changes:
        return {}
    names = dict.fromkeys(
        word.removeprefix("--").partition("=")[0].replace("-", "_") for word in changes if word.startswith("--")
    )
    hints = get_type_hints(Augmentation) | get_type_hints(Recipe)
    asked = dataclasses.make_dataclass("Overrides", [(name, hints[name]) for name in names])
    with quoting_tyro(prog):
        found = dict(vars(tyro.cli(asked, args=list(changes), prog=prog, config=(tyro.conf.FlagCreatePairsOff,))))
    switched_off = {name for name, value in found.items() if value == "none" and type(None) in get_args(hints[name])}
    return {name: None if name in switched_off else value for name, value in found.items()}


def parse_options(given: Sequence[str]) -> dict[str, Any]:
    """NAME=VALUE pairs; a value that is no Python literal is text.

    >>> parse_options(("patch_size=8", "strength=1.5", "pool=average", "released=true"))
    {'patch_size': 8, 'strength': 1.5, 'pool': 'average', 'released': True}
    """
    found: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise SoftbiasError(f"--model-option takes NAME=VALUE, such as patch_size=8, but got {pair!r}")
        words = {"true": True, "false": False, "none": None}
        try:
            found[name.replace("-", "_")] = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            found[name.replace("-", "_")] = text
    return found


def table(*columns: str, right: Collection[str] = (), fold: Collection[str] = ()) -> Table:
    """A plain table for the terminal; only the columns in `fold` are ever narrower than their cells."""
    from rich.table import Table

    found = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        found.add_column(name, justify="right" if name in right else "left", no_wrap=name not in fold, overflow="fold")
    return found
