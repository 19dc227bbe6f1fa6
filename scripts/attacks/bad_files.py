"""Files that a user may name and that are wrong: tables, arrays, settings, studies, folders of saved models.

Settings are real ones with a value replaced by something odd, or with a trick of their format; tables and arrays are written
by hand. Whatever is accepted must be harmless: training is cut off where it would begin, and a model must not reach out.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from attacks.bad_data import TABLES, write_arrays
from attacks.damage import images
from attacks.patches import ACCEPTED, call_briefly
from attacks.verdict import OK, Outcome, judge
from attacks.workshop import OPTIONS, Workshop

URL = "http://127.0.0.1:9/weights"
NEVER = (float("nan"), float("inf"), float("-inf"))
ODD: tuple[Any, ...] = (
    *NEVER,
    None,
    True,
    False,
    -1,
    0,
    0.5,
    1e308,
    10**30,
    2**63,
    "",
    " ",
    "x" * 10_000,
    [],
    {},
    [[]],
    [None],
    {"a": {"b": []}},
    "../../secret/secret.txt",
    "/dev/zero",
    URL,
    "\x1b[31m",
    "@@PLOTLY@@",
    "{{7*7}}",
    "=1+1",
    "\u202e",
    "nan",
    [1] * 1000,
    "a\nb",
    -0.0,
)
YAML_TRICKS = (
    b"!!python/object/apply:os.system ['touch owned']\n",
    b"a: &a [*a]\n",
    b"? [1, 2]\n: x\n",
    b"\0\0\0",
    b"\xff\xfe\xfd",
    b"[" * 5000,
    b"a: 1\na: 2\n",
    b"--- 1\n--- 2\n",
    b"\t- x\n",
    b"data: 2026-01-01\nseed: 1_000\n",
    b"{" * 3000,
    b"",
    b"null\n",
    b"- a\n- b\n",
    b"42\n",
    b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 9)) for n in range(9)),
)


def model_tricks(shop: Workshop) -> list[Callable[[Path], None]]:
    """What somebody may put into the folder of a model that others load."""

    def config(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            plain = json.loads((folder / "config.json").read_text())
            change(plain)
            (folder / "config.json").write_text(json.dumps(plain))

        return apply

    timm = {
        "softbias": {"format": 1, "version": "0.1.0", "name": "timm:vit_tiny_patch16_224"},
        "architecture": "vit_tiny_patch16_224",
    }
    secret = str(shop.secret)
    found = [
        config(lambda plain: plain.update(timm, model_args={"pretrained_cfg": {"url": URL}, "pretrained": True})),
        config(lambda plain: plain.update(timm, model_args={"checkpoint_path": secret})),
        config(lambda plain: plain.update(timm, model_args={"pretrained": True})),
        config(lambda plain: plain.update(timm, model_args={"img_size": 10**9})),
        config(lambda plain: plain.update(timm, model_args={"pretrained_cfg": {"file": secret}, "pretrained": True})),
        config(lambda plain: plain["softbias"].update(name="hf:nobody/model")),
        config(lambda plain: plain["softbias"].update(name="timm:hf_hub:nobody/model")),
        config(lambda plain: plain["softbias"].update(name=f"timm:local-dir:{shop.root}", format=1)),
        config(lambda plain: plain.update(model_type="vit", auto_map={"AutoModel": "evil.Model"})),
        config(lambda plain: plain["pretrained_cfg"].update(mean=[0, 0, 0], std=[0, 0, 0])),
        config(lambda plain: plain["pretrained_cfg"].update(std=[1, 1], input_size=[3, 10**6, 10**6])),
        config(lambda plain: plain.update(label_names=["a", "a", "b"])),
        config(lambda plain: plain.update(label_names=["\x1b[31m", "@@PLOTLY@@", "=1+1"])),
        config(lambda plain: plain.update(num_classes=10**9)),
        config(lambda plain: plain["model_args"]["spec"].update(width=10**7)),
        config(lambda plain: plain["model_args"]["spec"].update(layers=plain["model_args"]["spec"]["layers"] * 10**5)),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}") and None,
        lambda folder: (folder / "model.safetensors").write_bytes(pickled(folder)) and None,
        lambda folder: (folder / "pytorch_model.bin").write_bytes(pickled(folder)) and (folder / "model.safetensors").unlink(),
        lambda folder: (folder / "model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}") and None,
        lambda folder: link(folder / "model.safetensors", secret),
    ]
    return found


def link(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


class Owned:
    """Unpickled, this would write a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (self.path, "w")


def pickled(folder: Path) -> bytes:
    import pickle

    return pickle.dumps(Owned(str(folder / "owned")))


class BadFiles:
    KINDS = ("config", "study", "model", "model tricks", "table", "arrays", "yaml", "classes")

    def __init__(self, shop: Workshop, cases: int = 700) -> None:
        self.shop, self.cases = shop, cases
        self.folder = shop.finished_run()
        self.tricks = model_tricks(shop)

    def __len__(self) -> int:
        return self.cases

    def plan(self, number: int) -> str:
        return self.KINDS[number % len(self.KINDS)]

    def title(self, number: int) -> str:
        return f"{self.plan(number)}: {self.describe(number)}"

    def describe(self, number: int) -> str:
        kind, rng = self.plan(number), self.shop.rng("bad files", number)
        if kind in ("config", "study", "model"):
            return change(self.plain(kind), rng)[1]
        return f"number {number // len(self.KINDS)}"

    def plain(self, kind: str) -> Any:
        import yaml

        if kind == "config":
            return yaml.safe_load((self.folder / "config.yaml").read_text())
        if kind == "model":
            return json.loads((self.folder / "model" / "config.json").read_text())
        arms = [{"name": "a", "model": "deit_nano", "model_options": {"patch_size": 8}}, "convit_nano@strength=2"]
        recipe = {"epochs": 1, "lr": 0.001, "augmentation": {"flip": 0.5}}
        more = {
            "fractions": [0.5, 1],
            "seeds": [0, 1],
            "budget": "steps",
            "tune": 0,
            "title": "t",
            "data_options": {"img_size": 32},
        }
        return {"name": "mine", "data": [str(self.shop.images())], "arms": arms, "recipe": recipe, **more}

    def run(self, number: int) -> Outcome:
        kind, rng = self.plan(number), self.shop.rng("bad files", number)
        run = self.shop.fresh(self.folder)
        never = self.make(kind, run, rng, number // len(self.KINDS))
        answer = call_briefly(self.shop, self.words(kind, run, number))
        found = judge(dataclasses.replace(answer, status=0) if answer.status == ACCEPTED else answer)
        if found is not OK:
            return found
        if any(run.parent.rglob("owned")):
            return Outcome("leak", "code in a file was executed")
        if never and answer.status in (0, ACCEPTED):
            return Outcome("silent wrong number", "a number that is not finite is accepted")
        if answer.status == 0 and "nan" in answer.out.lower().split():
            return Outcome("silent wrong number", f"nan is printed: {answer.out[:100]!r}")
        return OK

    def words(self, kind: str, run: Path, number: int) -> list[Any]:
        if kind in ("config", "yaml") and number % 2:
            return ["fit", "--config", "bad.yaml", "--out", "new", "--device", "cpu", "--trackers", "none"]
        if kind in ("study", "yaml", "config"):
            return ["study", "bad.yaml", "--out", "study", "--dry-run"] if kind != "config" else ["evaluate", run]
        if kind in ("model", "model tricks"):
            return [["predict", run, *images(self.shop)], ["explain", run / "model", images(self.shop)[0], "--json"]][
                number % 2
            ]
        source = {"table": "bad.csv", "arrays": "bad.npz", "classes": "arrays"}[kind]
        check = ["data", "check", source]
        return check if number % 3 else ["fit", source, "--out", "new", *OPTIONS]

    def make(self, kind: str, run: Path, rng: Random, number: int) -> bool:
        """Write the bad file; whether it holds a number that must be refused."""
        import yaml

        if kind in ("config", "study"):
            plain, _, never = change(self.plain(kind), rng)
            for path in (Path("bad.yaml"), run / "config.yaml") if kind == "config" else (Path("bad.yaml"),):
                path.write_text(yaml.safe_dump(plain, allow_unicode=True))
            return never
        if kind == "yaml":
            Path("bad.yaml").write_bytes(YAML_TRICKS[number % len(YAML_TRICKS)])
        elif kind == "model":
            plain, _, never = change(self.plain(kind), rng)
            (run / "model" / "config.json").write_text(json.dumps(plain))
            seal(run / "model")
            return never
        elif kind == "model tricks":
            self.tricks[number % len(self.tricks)](run / "model")
            seal(run / "model")
        elif kind == "table":
            text = TABLES[number % len(TABLES)]
            good = [os.fsencode(self.shop.images() / f"{name}/{name}0.png") for name in ("red", "blue")]
            Path("bad.csv").write_bytes(text.replace(b"IMAGE2", good[0]).replace(b"IMAGE", good[1]))
        else:
            write_arrays(Path("bad.npz"), Path("arrays"), rng)
        return False


def seal(folder: Path) -> None:
    """Write the checksums again, where the folder has some: an attacker would."""
    import hashlib

    sums = folder / "SHA256SUMS"
    if sums.is_file():
        names = [line.split("  ", 1)[1] for line in sums.read_text().splitlines()]
        lines = [
            f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}" for name in names if (folder / name).is_file()
        ]
        sums.write_text("\n".join(lines) + "\n")


def change(plain: Any, rng: Random) -> tuple[Any, str, bool]:
    """Plain data with one value replaced, removed or added; where; and whether it now holds a number that is not finite."""
    plain = copy.deepcopy(plain)
    keys: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            keys.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    walk(plain)
    node, key = rng.choice(keys)
    way, odd = rng.random(), rng.choice(ODD)
    if way < 0.1:
        del node[key]
        return plain, f"{key} is removed", False
    if way < 0.2 and isinstance(node, dict):
        node["unknown"] = odd
        return plain, f"unknown: {odd!r:.60} beside {key}", False
    number = isinstance(node[key], int | float) and not isinstance(node[key], bool)
    node[key] = odd
    return (
        plain,
        f"{key}: {odd!r:.60}",
        number and any(odd is never for never in NEVER),
    )
