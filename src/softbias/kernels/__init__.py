"""Fused attention kernels in Triton, for what PyTorch's own attention cannot express, or does slowly among few tokens.

Each has a twin in plain PyTorch that computes the same; callers ask `usable` and take the twin where it says no. Modules
named `*_program` hold the Triton code and are imported at the first launch, so that nothing here needs Triton to be installed.
With TRITON_INTERPRET=1 they take CPU tensors, in Triton's interpreter, for tests.

Shapes: B images, H heads, N tokens, D channels per head.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

import torch
from torch import Tensor

from softbias import environment
from softbias.kernels import toolchain

LONGEST = 256  # tokens: whole rows of the map are kept in registers
WIDEST = 64  # channels per head
HALF = (torch.bfloat16, torch.float16)
ROOMY = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3), (11, 0)}

INTERPRETED = environment.variable("TRITON_INTERPRET") == "1"

_triton = find_spec("triton") is not None
_enabled = True
_recent: dict[int, bool] = {}  # by the device's number
_roomy: dict[int, bool] = {}


def available() -> bool:
    """Whether Triton is installed."""
    return _triton


@contextmanager
def disabled() -> Iterator[None]:
    """Plain PyTorch everywhere inside, to compare with; a compiled model is compiled again."""
    global _enabled
    before, _enabled = _enabled, False
    try:
        yield
    finally:
        _enabled = before


def recent(index: int) -> bool:
    """Ampere or later, with bfloat16 in the matrix units and shared memory for most of our tiles; and Triton works."""
    if index not in _recent:
        new = torch.version.hip is None and torch.cuda.get_device_capability(index) >= (8, 0)
        _recent[index] = new and toolchain.works()
    return _recent[index]


def has_large_smem(index: int) -> bool:
    """Whether a program may have more shared memory than the 99 KB of a GeForce: 163 or 227 KB, on an A100 or H100, say."""
    if index not in _roomy:
        _roomy[index] = torch.cuda.get_device_capability(index) in ROOMY
    return _roomy[index]


def exporting() -> bool:
    """Whether torch.export runs. In graphs of torch 2.11, `is_exporting` itself is true under torch.compile, too."""
    return torch.compiler.is_exporting()


# What torch.compiler.assume_constant_result does, but for importing the compiler, which takes seconds.
recent._dynamo_marked_constant = True  # type: ignore[attr-defined]
has_large_smem._dynamo_marked_constant = True  # type: ignore[attr-defined]
exporting._dynamo_marked_constant = True  # type: ignore[attr-defined]


def usable(tensor: Tensor, tokens: int, channels: int, *, longest: int = LONGEST, widest: int = WIDEST) -> bool:
    """Whether the kernels take a tensor of this kind with so many tokens and channels per head; a kernel may allow more of them
    than most. In float32 they would need three passes of the matrix units, or none; there PyTorch is as good, and obeys
    `torch.backends`. An exported program should run without softbias, so it gets plain PyTorch."""
    if not (_enabled and _triton and tensor.is_cuda) or exporting():
        return False
    return tensor.dtype in HALF and tokens <= longest and channels <= widest and recent(tensor.device.index)
