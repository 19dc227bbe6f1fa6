"""`softbias fit`: from a folder of pictures to a trained run."""

from __future__ import annotations

from typing import Annotated

from tyro.conf import Fixed, Suppress, arg

from softbias.cli.options import TrainingOptions
from softbias.cli.parsing import Given
from softbias.cli.training import run_training


def fit(options: Annotated[TrainingOptions, arg(name="")], *, given: Annotated[Given, Fixed, Suppress] = Given()) -> int:  # noqa: B008
    """Train a classifier on your pictures.

    With nothing but DATA, model, recipe, epochs and image size are chosen to suit the pictures and the device, and said.
    DATA is root/CLASS/*.jpg, or root/{train,val,test}/CLASS/*.jpg; a split is made where there is none.

      softbias fit my_pictures
      softbias fit cifar10 --model convit_tiny --recipe small --epochs 100 --seed 1
      softbias fit my_pictures --from runs/pretrained --finetune linear
    """
    return run_training(options, given, "fit")
