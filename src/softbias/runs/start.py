"""What a run begins with: fresh weights, pretrained ones, or those of another run. Nothing here imports torch.

    Start()                                                       fresh weights, from the seed
    Start("pretrained", "timm/deit_tiny_patch16_224.fb_in1k", path="weights/deit_tiny_patch16_224.safetensors", sha256="b2e1…")
    Start("run", "flowers-convit_nano-1a2b3c4d5e", path="runs/flowers-convit_nano-1a2b3c4d5e", sha256="07c4…")

A user asks with a word (`--start auto|pretrained|scratch|RUN`); `runs.starting` finds what it stands for, once. The run keeps
the answer in its config.yaml, so a run that continues or is repeated begins with the same weights or not at all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from softbias.bounds import Finite, Length, ShortText, Side, Text, Within
from softbias.notes import Note
from softbias.schema import Checked

WORDS = ("auto", "pretrained", "scratch")  # any other word names a run
SAME_STORE = "run:"  # begins the path of a run that is named by its id and lies in the same store
Mean = Annotated[tuple[Finite, ...], Length(1, 1000)]
Deviation = Annotated[tuple[Annotated[float, Within(0, 1e6, above=True)], ...], Length(1, 1000)]


@dataclass(frozen=True)
class Start(Checked):
    """The weights that a run begins with.

    name        of the weights: their repository on the hub, their file, or their run
    path        their file or folder; "run:<id>" for a run in the same store, so that the id of a run does not depend on the
                folder
    revision    the commit of their repository, where they come from the hub
    sha256      of their file (see `models.weight_files.digest`); not known for a run that is still to be trained
    license     of the weights, where it is known
    mean, std   by which the model normalizes its images; img_size: (height, width) of the images it was trained on
    """

    kind: Literal["scratch", "pretrained", "run"] = "scratch"
    name: ShortText | None = None
    path: ShortText | None = None
    revision: ShortText | None = None
    sha256: Annotated[str, Text(64, 64)] | None = None
    license: ShortText | None = None
    mean: Mean | None = None
    std: Deviation | None = None
    img_size: tuple[Side, Side] | None = None

    @property
    def learned(self) -> bool:
        """Whether the weights have learned something."""
        return self.kind != "scratch"

    def answers(self, word: str, weights: str | None = None) -> bool:
        """Whether this is what a user asks for, so that nothing needs to be looked up again."""
        if weights is not None:
            return self.kind == "pretrained" and self.path == weights
        if word in WORDS:
            return word in ("auto", self.kind)
        return self.kind == "run" and self.path == word

    def to_dict(self) -> dict[str, Any]:
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


@dataclass(frozen=True)
class StartChoice:
    """A start, the model that takes its weights (None: any), the options that they need, and why it was chosen.

    unfit   files that are named like weights and are not: they were left out
    tuned   whether it is a run that began with pretrained weights
    """

    start: Start
    model: str | None = None
    model_options: Mapping[str, Any] = field(default_factory=dict)
    note: Note | None = None
    unfit: tuple[Note, ...] = ()
    tuned: bool = False

    @property
    def notes(self) -> tuple[Note, ...]:
        return self.unfit if self.note is None else (*self.unfit, self.note)


def start_note(start: Start) -> Note:
    """What a run begins with, for a start that the user or a config named."""
    return Note("start-chosen", {"kind": start.kind, "name": start.name or start.path, "license": start.license or "not known"})


def identity(start: Mapping[str, Any]) -> dict[str, Any]:
    """What makes a start (as `Start.to_dict` gives it) another one: weights with a known hash are the same wherever they lie.

    >>> identity({"kind": "pretrained", "path": "a/w.safetensors", "sha256": "b2e1", "mean": None})
    {'kind': 'pretrained', 'sha256': 'b2e1', 'mean': None}
    """
    about = ("name", "path", "revision", "license") if start.get("sha256") else ()
    return {name: value for name, value in start.items() if name not in about}


def describe(start: Start) -> str:
    """For pages and cards: which weights, and under which license.

    >>> describe(Start("pretrained", "timm/deit_tiny_patch16_224.fb_in1k", license="apache-2.0"))
    'pretrained weights timm/deit_tiny_patch16_224.fb_in1k (license apache-2.0)'
    """
    if not start.learned:
        return "fresh weights"
    what = "pretrained weights" if start.kind == "pretrained" else "the run"
    about = [f"license {start.license}" if start.license else "license not known" if start.kind == "pretrained" else ""]
    about += [f"revision {start.revision[:12]}"] if start.revision else []
    about += [f"SHA-256 {start.sha256[:12]}…"] if start.sha256 else []
    known = ", ".join(part for part in about if part)
    return f"{what} {start.name or start.path}{f' ({known})' if known else ''}"
