"""How a kernel is launched, at little cost to the host.

A small model on a fast GPU waits for its host, so nothing is computed twice. Everything about a launch except its tensors
follows from sizes and strides, and is kept as a `Program`; the programs that an operation needs are planned once for each
combination of sizes (`planned`). Triton examines every argument at every launch, which takes several times longer than the
launch. A program remembers the result by the properties that Triton examines: types, and whether addresses are multiples of
16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache, wraps
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from softbias.errors import SoftbiasError
from softbias.kernels import triton_api
from softbias.kernels.torch_api import TRACED, constant_when_compiled

LARGE_SMEM = {(8, 0), (8, 7), (9, 0), (10, 0), (10, 3), (11, 0)}  # compute capabilities
Sizes = tuple[int, ...]  # a shape, or strides
Kinds = tuple[Any, ...]  # the device's number, and the types of the tensors
Launcher = Callable[..., None]
R = TypeVar("R")
_large_smem: dict[int, bool] = {}  # by the device's number


@constant_when_compiled
def has_large_smem(index: int) -> bool:
    """Whether a program may have more shared memory than the 99 KB of a GeForce: 163 KB on an A100, for example."""
    if index not in _large_smem:
        _large_smem[index] = torch.cuda.get_device_capability(index) in LARGE_SMEM
    return _large_smem[index]


@dataclass(frozen=True)
class Tiles:
    """How a kernel cuts its work. Tiles are fixed and not tuned at run time: a tuner would measure inside the first step of
    every process, and gains little on our few shapes; `softbias.bench.kernels` sweeps them."""

    size: int  # of the dimension that is walked through
    warps: int
    stages: int
    other: int = 0  # a second size, where a kernel has one
    depth: int = 0  # a third: of the dimension that a product sums over

    def for_tokens(self, tokens: int) -> Tiles:
        """Warps are meant for 256 tokens. Fewer tokens need fewer warps, but Hopper's matrix units work with four."""
        return replace(self, warps=max(4, self.warps * block(tokens) // 256))


def block(length: int) -> int:
    """The tile that holds a dimension: a power of two, and at least the 16 of the matrix units."""
    return max(16, 1 << (length - 1).bit_length())


def padded(length: int) -> int:
    """Rows of maps are this long, so that several entries can be read at once."""
    return length + -length % 16


@dataclass(eq=False)
class Program:
    """`kernel(*tensors, *numbers, **constants)` on a grid, ready for its tensors."""

    kernel: Any
    grid: tuple[int, ...]
    tiles: Tiles
    numbers: tuple[float, ...]
    constants: dict[str, Any]
    launchers: dict[Kinds, Launcher] = field(default_factory=dict)
    compiling: dict[Kinds, Future[Launcher]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.options = self.constants | {"num_warps": self.tiles.warps, "num_stages": self.tiles.stages}
        self.others = (*self.numbers, *(self.constants[name] for name in self.kernel.arg_names if name in self.constants))

    def __call__(self, *tensors: Tensor) -> None:
        """Launch it. CPU tensors need Triton's interpreter. If tensors are only traced, the launch goes into the graph."""
        device = tensors[0].device
        captured = CAPTURED.get()
        if captured is not None:
            captured.append((self, (device.index, *[x.dtype for x in tensors])))
            return
        if isinstance(tensors[0], TRACED):
            return self.by_triton(torch.library.wrap_triton(self.kernel), tensors)
        if device.type == "cpu":
            if not triton_api.is_interpreted(self.kernel):
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
        launch = self.launchers.get(kinds) or self.first_launcher(kinds)
        launch(*tensors, *self.others)

    def by_triton(self, kernel: Any, tensors: tuple[Tensor, ...]) -> None:
        kernel[self.grid](*tensors, *self.numbers, **self.options)

    def first_launcher(self, kinds: Kinds) -> Launcher:
        compiling = self.compiling.pop(kinds, None)
        self.launchers[kinds] = compiling.result() if compiling else self.compiled(*kinds)
        return self.launchers[kinds]

    def compiled(self, index: int, *types: torch.dtype) -> Launcher:
        with torch.cuda.device(index):
            return triton_api.compiled_launcher(self.kernel, types, self.numbers, self.grid, self.options)


Launches = list[tuple[Program, Kinds]]
CAPTURED: ContextVar[Launches | None] = ContextVar("captured", default=None)
PLANS: list[Any] = []


@contextmanager
def capture_launches() -> Iterator[Launches]:
    """Inside, programs are not launched but listed."""
    captured: Launches = []
    token = CAPTURED.set(captured)
    try:
        yield captured
    finally:
        CAPTURED.reset(token)


def compile_in_threads(launches: Launches) -> None:
    """Start to compile all of these together: one after the other, the kernels of one layer take several seconds."""
    wanted = [(each, kinds) for each, kinds in launches if kinds not in each.launchers and kinds not in each.compiling]
    if wanted:
        threads = ThreadPoolExecutor(len(wanted))
        for program, kinds in wanted:
            program.compiling[kinds] = threads.submit(program.compiled, *kinds)
        threads.shutdown(wait=False)


def precompile(model: nn.Module, images: int) -> None:
    """Start to compile, in threads, the programs that the layers of this model need for a step with this number of images.

    One layer of every kind with a fused program (`has_fused`) is called on zeros, without launching its programs; an operation
    that meets new shapes prepares its backward as well (`operation`). Call this under the autocast of the step. On a CPU
    nothing is compiled, and no layer is called.
    """
    seen = set()
    for layer in model.modules():
        if not getattr(layer, "has_fused", False):
            continue
        tokens: Any = layer  # an Attention or a feed-forward, whose modules stand on a higher floor
        device = next(layer.parameters()).device
        kind = type(layer), tokens.grid, tokens.width, getattr(layer, "heads", None)
        if device.type == "cuda" and kind not in seen:
            seen.add(kind)
            with capture_launches(), torch.enable_grad():
                layer(torch.zeros(images, len(tokens.grid), tokens.width, device=device))


def planned(plan: Callable[..., R]) -> Callable[..., R]:
    """Remember the result of this function of sizes and strides. While tracing, some of these may be unknown; such a call is
    not remembered."""
    remembered = lru_cache(maxsize=256)(plan)
    PLANS.append(remembered)

    @wraps(plan)
    def recall(*sizes: Any) -> R:
        try:
            return remembered(*sizes)
        except TypeError:
            return plan(*sizes)

    return recall
