"""What was found out at the first launch is remembered for others of the same kinds."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from softbias import kernels
from softbias.kernels import gated, masked
from softbias.kernels import gated_short_seq as gated_few
from softbias.kernels import short_seq as few
from softbias.kernels.launching import PLANS, Program, capture_launches, forget_plans, planned, prepare
from softbias.kernels.operation import likely
from softbias.kernels.tiles import Tiles


class Kernel:
    """Takes notes like Triton's: `kernel[grid](…)` looks at everything and starts; what `warmup` returns starts only."""

    arg_names = ("x", "y", "n", "heads", "BLOCK")

    def __init__(self) -> None:
        self.compiled: list = []
        self.started: list = []
        self.looked: list = []
        self.may_compile = Event()
        self.may_compile.set()

    def __getitem__(self, grid):
        return lambda *arguments, **options: self.looked.append((grid, arguments, options))

    def warmup(self, *arguments, grid, **options):
        assert self.may_compile.wait(30)
        self.compiled.append((grid, arguments, options))
        return Again(self)


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
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    return Kernel()


@pytest.fixture
def program(kernel) -> Program:
    return Program(kernel, (5, 2), Tiles(16, 4, 2), (7,), {"BLOCK": 16, "heads": 3})


HALF = torch.bfloat16
OPTIONS = {"BLOCK": 16, "heads": 3, "num_warps": 4, "num_stages": 2}


def test_it_is_compiled_once_and_started_with_constants_in_the_kernel_s_order(kernel, program) -> None:
    first, second = (tensor(32), tensor(64)), (tensor(160), tensor(4096))
    for tensors in (first, second):
        program(*tensors)
    assert kernel.compiled == [((5, 2), (HALF, HALF, 7), OPTIONS)]
    assert kernel.started == [((5, 2, 1), (*first, 7, 3, 16)), ((5, 2, 1), (*second, 7, 3, 16))]


def test_other_types_are_compiled_for_themselves(kernel, program) -> None:
    for types in ((HALF, HALF), (HALF, torch.float16), (HALF, HALF)):
        program(*(tensor(32, dtype) for dtype in types))
    assert [arguments[:2] for _, arguments, _ in kernel.compiled] == [(HALF, HALF), (HALF, torch.float16)]
    assert len(kernel.started) == 3


def test_addresses_that_the_compiler_did_not_count_on_are_left_to_triton(kernel, program) -> None:
    odd = (tensor(32), tensor(8))
    program(*odd)
    program(tensor(32), tensor(64))
    program(*odd)
    assert kernel.looked == 2 * [((5, 2), (*odd, 7), OPTIONS)]
    assert len(kernel.compiled) == len(kernel.started) == 1


def test_prepared_programs_are_compiled_aside_and_waited_for(kernel, program) -> None:
    other = Program(kernel, (1,), Tiles(16, 4, 2), (8,), {"BLOCK": 16, "heads": 3})
    kinds = (0, HALF, HALF)
    kernel.may_compile.clear()
    prepare([(program, kinds), (other, kinds)])
    prepare([(program, kinds)])  # already coming
    assert not kernel.compiled
    kernel.may_compile.set()
    for each in (program, other, program):
        each(tensor(32), tensor(64))
    assert sorted(arguments[2] for _, arguments, _ in kernel.compiled) == [7, 8]
    assert [arguments[2] for _, arguments in kernel.started] == [7, 8, 7]
    prepare([(program, kinds)])  # here already
    assert not program.coming


def test_a_failure_aside_is_raised_where_the_program_is_started(kernel, program) -> None:
    kernel.warmup = None
    prepare([(program, (0, HALF, HALF))])
    with pytest.raises(TypeError, match="not callable"):
        program(tensor(32), tensor(64))


def test_plans_are_made_once_unless_sizes_are_unknown_or_tiles_change() -> None:
    made = []

    @planned
    def plan(*sizes):
        made.append(sizes)
        return object()

    assert plan((2, 3), 4) is plan((2, 3), 4) and len(made) == 1
    assert plan([2, 3], 4) is not plan([2, 3], 4)  # not hashable, like a size that is being traced
    forget_plans()
    plan((2, 3), 4)
    assert len(made) == 4
    PLANS.pop()


@pytest.mark.parametrize("name", ["few", "gated", "gated_few", "masked", "masked, few"])
@pytest.mark.skipif(not kernels.available(), reason="Triton is not installed")
def test_what_a_step_is_likely_to_start_is_what_it_starts(monkeypatch, name) -> None:
    def empty(*size: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, requires_grad=True)

    if name == "few":
        module, inputs = few, (empty(6, 17, 3, 2, 16), 0.25)
    elif name == "gated_few":
        parameters = (empty(*size, dtype=torch.float32) for size in ((4, 3), (4,), (4,)))
        module, inputs = gated_few, (empty(6, 12, 3, 4, 16), *parameters, 0.25, 4)
    elif name == "gated":
        module = gated
        v, anywhere = empty(6, 12, 3, 4, 16).permute(2, 0, 3, 1, 4)[2], empty(6, 12, 4, 16).transpose(1, 2)
        inputs = (anywhere, v, *(empty(*size, dtype=torch.float32) for size in ((4, 3), (4,), (4,))), 3, 4)
    else:
        module, tokens = masked, 70 if name == "masked" else 13
        factors = (empty(2, 3, tokens, dtype=torch.float32) for _ in range(2))
        inputs = (empty(6, tokens, 3, 2, 16), *factors, 0.25, 1, "paper")
    expected = likely(inputs, module.run_forward, module.run_backward, module.keep, module.differentiate)
    started = []
    monkeypatch.setattr(Program, "__call__", lambda self, *given: started.append((self, (None, *(x.dtype for x in given)))))
    calls = {"gated": gated.gated_mix, "few": few.few_attention, "gated_few": gated_few.gated_few_attention}
    calls.get(name, masked.masked_attention)(*inputs).sum().backward()
    programs = {"few": 2, "gated": 6, "gated_few": 3, "masked": 5, "masked, few": 4}
    assert len(expected) == programs[name] and started == expected


def test_what_is_asked_for_is_not_started(kernel, program) -> None:
    with capture_launches() as asked:
        program(tensor(32), tensor(64))
    assert asked == [(program, (0, HALF, HALF))] and not (kernel.compiled or kernel.started)
    program(tensor(32), tensor(64))
    assert len(kernel.started) == 1


def test_cpu_tensors_are_for_the_interpreter_alone(program) -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        program(torch.zeros(2), torch.zeros(2))


def test_the_compiler_takes_the_card_s_age_for_a_constant(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: asked.append(index) or (9, 0))
    monkeypatch.setattr(kernels, "_recent", {})
    monkeypatch.setattr(kernels.toolchain, "works", lambda: True)

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
