"""`softbias pretrain`: learn from pictures without their labels."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Fixed, Suppress, arg

from softbias.cli.options import PretrainOptions
from softbias.cli.parsing import Given
from softbias.cli.training import run_training


def pretrain(
    options: Annotated[PretrainOptions, arg(name="")],
    *,
    given: Annotated[Given, Fixed, Suppress] = Given(),  # noqa: B008
) -> int:
    """Train without labels: which of four rotations a picture stands in (ARViT's pretext task).

    `softbias fit DATA --from RUN` then trains a classifier from it.
    """
    return run_training(options, given, "pretrain")
