"""What softbias takes from accelerate: a device with a precision, agreement between processes, and trackers.

Only this module uses interfaces of accelerate that are not public: `AcceleratorState._reset_state`, the tables of
`accelerate.tracking`, and assignments to `Accelerator.log_with` and `.trackers`. Checked with accelerate 1.15.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import broadcast

from softbias.environment import find_device
from softbias.errors import SoftbiasError, unknown_name
from softbias.training.display import Display
from softbias.training.recipe import Recipe


def make_accelerator(recipe: Recipe, device: str) -> Accelerator:
    """The device and the precision of a run, whatever an earlier run of this process had."""
    kind, _, number = find_device(device).partition(":")
    if number:
        raise SoftbiasError(f"training uses the devices that it sees, but device={device!r}; set CUDA_VISIBLE_DEVICES={number}")
    forget_earlier_accelerators(processes=not (torch.distributed.is_available() and torch.distributed.is_initialized()))
    return Accelerator(mixed_precision=mixed_precision(recipe, kind), cpu=kind == "cpu")


def forget_earlier_accelerators(*, processes: bool = True) -> None:
    """Let the next accelerator choose its own settings; processes=False keeps the group of processes that is running."""
    AcceleratorState._reset_state(reset_partial_state=processes)


def mixed_precision(recipe: Recipe, kind: str) -> str:
    """The recipe's precision on this kind of device, in accelerate's words."""
    bf16 = kind == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)  # emulated, it is slower than fp32
    return {"auto": "bf16" if bf16 else "no", "fp32": "no"}.get(recipe.precision, recipe.precision)


def agreed(accelerator: Accelerator, number: float) -> float:
    """The main process's number, in all processes: they must end at the same step."""
    if accelerator.num_processes == 1:
        return number
    return float(broadcast(torch.tensor(number, device=accelerator.device, dtype=torch.float64)))


def start_trackers(
    accelerator: Accelerator, folder: Path, trackers: tuple[str, ...], display: Display
) -> Callable[[dict[str, Any]], None] | None:
    """Start TensorBoard, W&B or MLflow, and return a function that logs the row of an epoch; None without a tracker."""
    installed = [str(each) for each in get_available_trackers()]
    for name in trackers:
        if name not in LOGGER_TYPE_TO_CLASS:
            raise unknown_name("tracker", name, LOGGER_TYPE_TO_CLASS)
        if name not in installed and name != "tensorboard":
            raise SoftbiasError(f"the tracker {name} is not installed: pip install {name}, or leave it out")
    if "tensorboard" in trackers and "tensorboard" not in installed:  # it is the default, so its absence is no error
        display.message("TensorBoard is not installed, so the run writes nothing for it")
    accelerator.project_configuration.set_directories(str(folder))
    accelerator.project_configuration.logging_dir = str(folder)
    started: list[Any] = []
    for name in [each for each in trackers if each in installed]:  # one by one: to TensorBoard, a project is a folder
        accelerator.log_with, accelerator.trackers = [name], []
        try:
            accelerator.init_trackers("tensorboard" if name == "tensorboard" else "softbias")
        except Exception as error:
            warnings.warn(f"the tracker {name} could not be started: {error}", stacklevel=2)
        else:
            started += accelerator.trackers
    accelerator.trackers = started
    if not started:
        return None

    def log(row: dict[str, Any]) -> None:
        accelerator.log({name: value for name, value in row.items() if isinstance(value, int | float)}, step=row["step"])

    return log
