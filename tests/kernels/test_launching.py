"""What Triton found out at the first launch is remembered for others of the same kinds."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from softbias import kernels
from softbias.kernels import tiles
from softbias.kernels.tiles import Tiles, launch


class Kernel:
    """Takes notes like Triton's: `kernel[grid](…)` compiles and starts, and what it returns starts only."""

    arg_names = ("x", "y", "n", "heads", "BLOCK")

    def __init__(self) -> None:
        self.compiled: list = []
        self.started: list = []

    def __getitem__(self, grid):
        def first(*arguments, **options):
            self.compiled.append((grid, arguments, options))
            return Again(self)

        return first


class Again:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        assert len(grid) == 3
        return lambda *arguments: self.kernel.started.append((grid, arguments))


def tensor(address: int, dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, data_ptr=lambda: address)


@pytest.fixture
def kernel(monkeypatch) -> Kernel:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(tiles, "STARTERS", {})
    return Kernel()


def test_the_second_launch_starts_what_the_first_compiled_with_constants_in_the_kernel_s_order(kernel) -> None:
    first, second = (tensor(32), tensor(64)), (tensor(160), tensor(4096))
    for tensors in (first, second):
        launch(kernel, (5, 2), Tiles(16, 4, 2), tensors, (7,), BLOCK=16, heads=3)
    assert kernel.compiled == [((5, 2), (*first, 7), {"BLOCK": 16, "heads": 3, "num_warps": 4, "num_stages": 2})]
    assert kernel.started == [((5, 2, 1), (*second, 7, 3, 16))]


@pytest.mark.parametrize(
    "change",
    [
        {"tensors": (tensor(32), tensor(8))},  # the compiler may have counted on multiples of 16
        {"tensors": (tensor(32), tensor(64, torch.float16))},
        {"numbers": (8,)},
        {"grid": (6, 2)},
        {"tiles": Tiles(16, 8, 2)},
        {"heads": 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_triton_looks_at_makes_another_launch(kernel, change) -> None:
    usual = {"grid": (5, 2), "tiles": Tiles(16, 4, 2), "tensors": (tensor(32), tensor(64)), "numbers": (7,), "heads": 3}
    for asked in (usual, usual | change, usual):
        launch(kernel, asked["grid"], asked["tiles"], asked["tensors"], asked["numbers"], heads=asked["heads"], BLOCK=16)
    assert (len(kernel.compiled), len(kernel.started)) == (2, 1)


def test_cpu_tensors_are_for_the_interpreter_alone(kernel) -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        launch(kernel, (1,), Tiles(16, 4, 2), (torch.zeros(2),), (), BLOCK=16)


def test_the_compiler_takes_the_card_s_age_for_a_constant(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: asked.append(index) or (9, 0))
    monkeypatch.setattr(kernels, "_recent", {})

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if kernels.recent(0) else x - 1

    assert torch.compile(function, fullgraph=True, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    assert kernels.recent(0) and asked == [0]


def test_only_torch_export_exports() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if kernels.exporting() else x - 1

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    x = torch.zeros(2)
    assert torch.compile(function, fullgraph=True, backend="eager")(x).tolist() == [-1, -1]
    for strict in (True, False):
        assert torch.export.export(Module(), (x,), strict=strict).module()(x).tolist() == [1, 1]
