"""Nonsense commands, generated from the options that the commands have: numbers that are none, empty texts, odd paths.

A command refuses in one line, or does what was asked; long work (training, serving) is cut off where it would begin. Numbers
that are not finite, and empty texts, must be refused.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
from typing import Any, get_type_hints

from attacks.patches import ACCEPTED, call_briefly
from attacks.verdict import OK, Outcome, judge
from attacks.workshop import Workshop

NEVER = ("nan", "inf", "-inf", "1e999")  # as the value of an option with a number
VALUES = (
    *NEVER,
    "-1",
    "0",
    "0.0",
    "-0.0",
    "1e-320",
    "99999999999999999999",
    "1e300",
    "2147483648",
    "",
    " ",
    "None",
    "true",
    "[]",
    "{}",
    "[1,2",
    "..",
    "/dev/null",
    "/dev/zero",
    "/proc/self/mem",
    "nothing/there",
    "ü\u202e☃",
    "\x1b[31mred",
    "a\nb",
    "=1+1",
    "--",
    "@@PLOTLY@@",
    "x" * 3000,
    "0,1,,",
    "1,nan",
    "a=b=c",
    "lr=nan",
    "width=0",
    "img_size=0",
    "patch_size=-1",
    "depth=100000",
    "spec={}",
    "pretrained_cfg={'url':'http://127.0.0.1:9'}",
    "distance:layer=99",
    "distance:layer=0,weight=nan",
    ":",
    "=",
    ",",
    "\0",
)
SKIPPED = ("data", "file", "name", "host")  # positional ones; and a host is looked up, as the user asked
SLOW = ("export", "probe")  # that do real work when they accept; fewer of them


class Commands:
    def __init__(self, shop: Workshop, cases: int = 1200) -> None:
        self.shop = shop
        self.folder = shop.finished_run()
        from softbias.cli import COMMANDS

        self.options = {name: options_of(name) for name in COMMANDS}
        self.cases = [self.generate(number) for number in range(cases)]

    def __len__(self) -> int:
        return len(self.cases)

    def generate(self, number: int) -> tuple[list[str], bool]:
        """The words, and whether an option with a number got a value that is no number at all."""
        rng = self.shop.rng("commands", number)
        names = [name for name in self.options if name not in SLOW or rng.random() < 0.2]
        weights = [4.0 if name in ("fit", "compare") else 1.0 for name in names]
        name = rng.choices(names, weights)[0]
        words = [*name.split(" "), *self.base(name, rng)]
        chosen = rng.sample(sorted(self.options[name]), min(len(self.options[name]), rng.choice((1, 1, 1, 2, 3))))
        refused = False
        for option in chosen:
            kind = self.options[name][option]
            value = rng.choice(VALUES)
            if kind == "number" and rng.random() < 0.5:
                value = rng.choice(NEVER)
            words += (
                [f"--{option}"]
                if kind == "switch"
                else [f"--{option}={value}"]
                if rng.random() < 0.5
                else [f"--{option}", value]
            )
            refused |= kind == "number" and value in NEVER
        if rng.random() < 0.1:
            words.append(rng.choice(VALUES))
        return words, refused

    def base(self, name: str, rng: Any) -> list[str]:
        """What the command needs, mostly right."""
        run, images = "run", str(self.shop.images())
        if rng.random() < 0.1:
            run = images = rng.choice(VALUES)
        image = os.path.join(images, "blue", "blue0.png")
        found = {
            "fit": [images],
            "pretrain": [images],
            "compare": [images, "--models", "deit_nano"],
            "study": [images],
            "reproduce": ["convit", "--dry-run"],
            "runs": ["."],
            "runs diff": [run, run],
            "runs delete": [run],
            "evaluate": [run],
            "predict": [run, image],
            "explain": [run, image, "--json"],
            "app": [run, "--no-browser"],
            "probe": [run, "--n", "4"],
            "export": [run],
            "data check": [images],
            "report": [run],
        }
        return found.get(name, [])

    def title(self, number: int) -> str:
        return f"softbias {' '.join(repr(word)[:60] for word in self.cases[number][0])}"

    def run(self, number: int) -> Outcome:
        words, refused = self.cases[number]
        self.shop.fresh(self.folder)
        answer = call_briefly(self.shop, words)
        found = judge(dataclasses.replace(answer, status=0) if answer.status == ACCEPTED else answer)
        if found is not OK:
            return found
        if refused and answer.status in (0, ACCEPTED):
            return Outcome("silent wrong number", "a number that is not finite is accepted")
        return OK


def options_of(name: str) -> dict[str, str]:
    """The options of a command, with their kind: switch, number or text."""
    from softbias.cli import TRAINING, find
    from softbias.cli.parsing import inner_fields, outer_fields
    from softbias.data.augment import Augmentation
    from softbias.training.recipe import Recipe

    function = find(name)
    given = inspect.signature(function).parameters
    hints: dict[str, Any] = {}
    for parameter, kind in get_type_hints(function).items():
        if dataclasses.is_dataclass(kind):
            hints |= get_type_hints(kind)
        elif parameter in given and given[parameter].kind is not inspect.Parameter.POSITIONAL_ONLY and parameter != "line":
            hints[parameter] = kind
    if name in TRAINING:
        of_recipe = get_type_hints(Recipe) | get_type_hints(Augmentation)
        hints |= {each: of_recipe[each] for each in (*outer_fields(), *inner_fields())}
    shorter = {"source": "from", "list_studies": "list"}
    named = {shorter.get(each, each).replace("_", "-"): kind_of(hint) for each, hint in hints.items()}
    return {each: kind for each, kind in named.items() if each not in SKIPPED}


def kind_of(hint: Any) -> str:
    text = str(hint)
    if hint is bool:
        return "switch"
    return "number" if ("int" in text or "float" in text) and "str" not in text and "tuple" not in text else "text"
