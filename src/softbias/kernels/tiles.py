"""How a kernel cuts its work, and how it is started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

TRACED = (FakeTensor, FunctionalTensor)


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work. Fixed and not tuned at run time: a tuner would measure inside the first step of every
    process, and gains little on shapes as few as these; `softbias.bench.kernels` sweeps them."""

    size: int  # of the dimension that is walked through
    warps: int
    stages: int
    other: int = 0  # a second size, where a kernel has one
    depth: int = 0  # a third: of the dimension that a product sums over

    @lru_cache  # noqa: B019  (a handful of constants)
    def for_tokens(self, tokens: int) -> Tiles:
        """Warps are meant for 256 tokens; fewer tokens need fewer, but four is what Hopper's matrix units work with."""
        return replace(self, warps=max(4, self.warps * block(tokens) // 256))


def block(length: int) -> int:
    """The tile that holds a dimension: a power of two, and at least the 16 of the matrix units."""
    return max(16, 1 << (length - 1).bit_length())


def launch(
    kernel: Any, grid: tuple[int, ...], tiles: Tiles, tensors: tuple[Tensor, ...], numbers: tuple[float, ...], **constants: Any
) -> None:
    """Start the programs of `kernel(*tensors, *numbers, **constants)`; on CPU tensors in Triton's interpreter, which must have
    been chosen before Triton was imported; where tensors are only traced, in the graph that is being made.

    Triton looks at every argument anew at every launch, which takes the host several times longer than starting the programs.
    What it found is remembered here, by what it looks at: types, numbers, and whether addresses are multiples of 16.
    """
    device = tensors[0].device
    options = {"num_warps": tiles.warps, "num_stages": tiles.stages}
    if isinstance(tensors[0], TRACED):
        torch.library.wrap_triton(kernel)[grid](*tensors, *numbers, **constants, **options)
        return
    if device.type == "cpu":
        if type(kernel).__name__ != "InterpretedFunction":
            raise ValueError("Triton kernels take CPU tensors only in its interpreter: set TRITON_INTERPRET=1 before the start")
        kernel[grid](*tensors, *numbers, **constants, **options)
        return
    kinds = [(x.dtype, x.data_ptr() % 16) for x in tensors]
    key = (id(kernel), device.index, grid, *options.values(), *kinds, *numbers, *constants.values())
    with nullcontext() if device.index == torch.cuda.current_device() else torch.cuda.device(device):
        if key in STARTERS:
            start, others = STARTERS[key]
            start(*tensors, *numbers, *others)
            return
        compiled = kernel[grid](*tensors, *numbers, **constants, **options)
        others = tuple(constants[name] for name in kernel.arg_names if name in constants)
        STARTERS[key] = compiled[(*grid, 1, 1)[:3]], others


STARTERS: dict[tuple[Any, ...], tuple[Callable[..., None], tuple[Any, ...]]] = {}
