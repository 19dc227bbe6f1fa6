"""The command line. A module has one command or a few related ones, and imports what a command needs when it runs, so that
`--help` is quick.

Exit status: 0 done; 1 done, but with something to look at (`predict`: a file could not be read; `data check`: not fit to
train on; `compare`, `study`, `reproduce`: a run failed); 2 a mistake of the user's, in one line (SOFTBIAS_DEBUG=1 shows the
traceback); 130 for Ctrl-C and 143 for SIGTERM, also if they come twice. Any other error is a bug of ours and shows its
traceback.
"""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from softbias import environment
from softbias._version import __version__
from softbias.errors import SoftbiasError, unknown_name
from softbias.terminal import echo

COMMANDS = {
    "fit": "train a classifier on your pictures",
    "pretrain": "train without labels, on pictures with or without classes",
    "compare": "which model is better, by how much, with how much data",
    "study": "run a comparison that a file describes",
    "reproduce": "the papers' tables, with the published numbers beside ours",
    "runs": "list runs",
    "runs diff": "show how two runs differ, in settings and in scores",
    "runs delete": "remove runs",
    "runs pack": "write the results of a study to one small file, without weights",
    "evaluate": "score a run on its test pictures, or on others",
    "predict": "classes and probabilities of pictures",
    "explain": "why a model decides as it does, picture by picture",
    "app": "a page where you click a patch and see where heads look",
    "probe": "measure the bias of models: how far they look, what they rely on",
    "export": "write a model as ONNX",
    "models": "list models, with their size and cost",
    "recipes": "list recipes, or show one in full",
    "data check": "check whether a set of pictures is fit to train on",
    "data scenes": "write scenes of several objects, or of a small one, as a set of pictures",
    "data cache": "show or clear the folder of decoded pictures",
    "bench": "images per second beside timm's",
    "report": "write the page about a study or about runs",
    "demo": "compare small models with and without soft biases, and see the report",
}
MODULES = {  # of commands whose module has another name
    "pretrain": "fit", "evaluate": "predict", "export": "predict", "recipes": "models",
    "study": "compare", "reproduce": "compare", "demo": "compare", "app": "explain",
}  # fmt: skip
TRAINING = ("fit", "pretrain", "compare", "study", "reproduce")
ELSEWHERE = {"train": "fit", "classify": "predict", "infer": "predict", "test": "evaluate", "eval": "evaluate", "serve": "app"}
SHELLS = ("bash", "zsh", "fish")  # tcsh would need the package shtab
COMPLETION = "--tyro-write-completion", "--tyro-print-completion"


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "usage: softbias COMMAND …",
            "",
            "Vision transformers that learn from small image sets.",
            "",
            *lines,
            "",
            "softbias COMMAND --help explains a command; softbias --version prints the version.",
            f"Shell completion: softbias {COMPLETION[0]} {{{','.join(SHELLS)}}} FILE writes a script to source.",
        ]
    )


def find(name: str) -> Callable[..., Any]:
    """The function of a command, by its name."""
    module, _, inner = name.partition(" ")
    found = importlib.import_module(f"softbias.cli.{MODULES.get(name, module)}")
    function: Callable[..., Any] = getattr(found, inner or module)
    return function


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with environment.stop_at_once():
            return dispatch(arguments)
    except SystemExit as end:  # tyro, after printing help
        return end.code if isinstance(end.code, int) else 0
    except BrokenPipeError:  # the reader of a pipe went away, as in `softbias models | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt as stop:
        echo("softbias: stopped", file=sys.stderr)
        return 128 + (stop.signal if isinstance(stop, environment.StopSignal) else signal.SIGINT)
    except (SoftbiasError, OSError) as error:
        if environment.variable("SOFTBIAS_DEBUG"):
            raise
        echo(
            *re.split(r"\n(?=  )", f"softbias: {in_words(error)}"), file=sys.stderr
        )  # a list has a line for each of its entries
        return 2


def in_words(error: SoftbiasError | OSError) -> str:
    """One line; what the system refused is named as the user knows it, without the number of the error.

    >>> in_words(PermissionError(13, "Permission denied", "looks/rose.png"))
    'looks/rose.png: Permission denied; choose another folder or file'
    """
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}; choose another folder or file"
    return str(error)


def dispatch(arguments: list[str]) -> int:
    if arguments in (["--version"], ["-V"]):
        echo(f"softbias {__version__}")
        return 0
    if not arguments or arguments[0] in ("-h", "--help"):
        echo(*usage().split("\n"))
        return 0
    if arguments[0] in COMPLETION:
        return complete_shell(arguments)
    name, rest = arguments[0], arguments[1:]
    groups = {command.split(" ")[0] for command in COMMANDS if " " in command}
    if name in groups and not (name in COMMANDS and f"{name} {''.join(rest[:1])}" not in COMMANDS):
        inner = [command for command in COMMANDS if command.startswith(f"{name} ")]
        if not rest or rest[0] in ("-h", "--help"):
            echo(*(f"softbias {command} …    {COMMANDS[command]}" for command in inner))
            return 0
        name, rest = f"{name} {rest[0]}", rest[1:]
    if name in ELSEWHERE:
        raise SoftbiasError(f"there is no command {name!r}; what it does elsewhere is softbias {ELSEWHERE[name]} here")
    if name not in COMMANDS:
        raise unknown_name("command", name, COMMANDS)
    from softbias.cli.parsing import CommandLine, own_options, parse, parse_overrides, split_recipe

    changes: list[str] = []
    if name in TRAINING:
        if "--help-recipe" in rest:
            return find("recipes")("small") or 0
        rest, changes = split_recipe(rest, own_options(find(name)))
    prog = f"softbias {name}"
    call = parse(find(name), rest, prog)
    if name not in TRAINING:
        return call() or 0
    return call(line=CommandLine(tuple(arguments), tuple(changes), parse_overrides(changes, prog))) or 0


def complete_shell(arguments: list[str]) -> int:
    """tyro writes the script, from all commands with all of their options."""
    wanted = 3 if arguments[0] == COMPLETION[0] else 2
    if len(arguments) != wanted or arguments[1] not in SHELLS:
        raise SoftbiasError(f"{arguments[0]} takes one of {', '.join(SHELLS)}{' and a file' if wanted == 3 else ''}")
    from softbias.cli.completion import write_completion

    write_completion(arguments)
    return 0
