"""How a kernel is started, at little cost to the host.

A small model on a fast GPU waits for its host, so nothing is found out twice. Everything about a launch but its tensors follows
from sizes and strides, and is a `Program`; which programs an operation needs is planned once for each of them (`planned`).
Triton looks at every argument anew at every launch, which takes several times longer than starting; what it found is remembered
by the program, by what it looks at: types, and whether addresses are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from softbias.errors import SoftbiasError
from softbias.kernels.tiles import Tiles

TRACED = (FakeTensor, FunctionalTensor)
Kinds = tuple[Any, ...]  # the device's number, and the types of the tensors
R = TypeVar("R")


@dataclass(eq=False)
class Program:
    """`kernel(*tensors, *numbers, **constants)` on a grid, waiting for its tensors."""

    kernel: Any
    grid: tuple[int, ...]
    tiles: Tiles
    numbers: tuple[float, ...]
    constants: dict[str, Any]
    starts: dict[Kinds, Callable[..., None]] = field(default_factory=dict)
    coming: dict[Kinds, Future[Callable[..., None]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = self.constants | {"num_warps": self.tiles.warps, "num_stages": self.tiles.stages}
        self.others = (*self.numbers, *(self.constants[name] for name in self.kernel.arg_names if name in self.constants))

    def __call__(self, *tensors: Tensor) -> None:
        """Start it: on CPU tensors in Triton's interpreter, which must have been chosen before Triton was imported; where
        tensors are only traced, in the graph that is being made."""
        device = tensors[0].device
        asked = ASKED.get()
        if asked is not None:
            asked.append((self, (device.index, *[x.dtype for x in tensors])))
            return
        if isinstance(tensors[0], TRACED):
            return self.by_triton(torch.library.wrap_triton(self.kernel), tensors)
        if device.type == "cpu":
            if type(self.kernel).__name__ != "InterpretedFunction":
                raise SoftbiasError(
                    "Triton kernels take CPU tensors only in its interpreter, so set TRITON_INTERPRET=1 at the start"
                )
            return self.by_triton(self.kernel, tensors)
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                return self(*tensors)
        types, addresses = [], 0
        for x in tensors:
            types.append(x.dtype)
            addresses |= x.data_ptr()
        if addresses % 16:  # too rare to be worth remembering
            return self.by_triton(self.kernel, tensors)
        kinds = (device.index, *types)
        start = self.starts.get(kinds) or self.first(kinds)
        start(*tensors, *self.others)

    def by_triton(self, kernel: Any, tensors: tuple[Tensor, ...]) -> None:
        kernel[self.grid](*tensors, *self.numbers, **self.options)

    def first(self, kinds: Kinds) -> Callable[..., None]:
        coming = self.coming.pop(kinds, None)
        self.starts[kinds] = coming.result() if coming else self.compiled(*kinds)
        return self.starts[kinds]

    def compiled(self, index: int, *types: torch.dtype) -> Callable[..., None]:
        with torch.cuda.device(index):
            return self.kernel.warmup(*types, *self.numbers, grid=self.grid, **self.options)[(*self.grid, 1, 1)[:3]]


@contextmanager
def capture_launches() -> Iterator[Asked]:
    """Inside, programs are not started; what would have been is listed."""
    asked: Asked = []
    token = ASKED.set(asked)
    try:
        yield asked
    finally:
        ASKED.reset(token)


def prepare(asked: Asked) -> None:
    """Compile these at once, in threads: one after the other, the kernels of one layer take a new machine some seconds."""
    wanted = [(program, kinds) for program, kinds in asked if kinds not in program.starts and kinds not in program.coming]
    if wanted:
        threads = ThreadPoolExecutor(len(wanted))
        for program, kinds in wanted:
            program.coming[kinds] = threads.submit(program.compiled, *kinds)
        threads.shutdown(wait=False)


Asked = list[tuple[Program, Kinds]]
ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)
PLANS: list[Any] = []


def planned(plan: Callable[..., R]) -> Callable[..., R]:
    """Remember what this function of sizes and strides returns; while tracing some of them may be unknown, and cannot be."""
    remembered = lru_cache(maxsize=256)(plan)
    PLANS.append(remembered)

    @wraps(plan)
    def recall(*sizes: Any) -> R:
        try:
            return remembered(*sizes)
        except TypeError:
            return plan(*sizes)

    return recall


def forget_plans() -> None:
    """After tiles were changed."""
    for plan in PLANS:
        plan.cache_clear()
