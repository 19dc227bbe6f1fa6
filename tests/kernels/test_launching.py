"""A launch is examined once; later launches with arguments of the same kinds reuse the result."""

from __future__ import annotations

from contextlib import nullcontext
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from softbias.kernels import dispatch, gated, masked, short_seq, triton_api
from softbias.kernels.launching import PLANS, Program, Tiles, capture_launches, compile_in_threads, planned
from softbias.kernels.operation import Kernel, eager
from softbias.kernels.torch_api import exporting


class FakeKernel:
    """Takes notes, with Triton's interface: `kernel[grid](…)` examines everything and launches; `warmup` returns launchers."""

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
    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel

    def __getitem__(self, grid):
        assert len(grid) == 3
        return lambda *arguments: self.kernel.started.append((grid, arguments))


def tensor(address: int, dtype: torch.dtype = torch.bfloat16) -> SimpleNamespace:
    return SimpleNamespace(device=torch.device("cuda", 0), dtype=dtype, data_ptr=lambda: address)


@pytest.fixture
def kernel(monkeypatch) -> FakeKernel:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext())
    return FakeKernel()


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
    compile_in_threads([(program, kinds), (other, kinds)])
    compile_in_threads([(program, kinds)])  # already coming
    assert not kernel.compiled
    kernel.may_compile.set()
    for each in (program, other, program):
        each(tensor(32), tensor(64))
    assert sorted(arguments[2] for _, arguments, _ in kernel.compiled) == [7, 8]
    assert [arguments[2] for _, arguments in kernel.started] == [7, 8, 7]
    compile_in_threads([(program, kinds)])  # here already
    assert not program.compiling


def test_a_failure_aside_is_raised_where_the_program_is_started(kernel, program) -> None:
    kernel.warmup = None
    compile_in_threads([(program, (0, HALF, HALF))])
    with pytest.raises(TypeError, match="not callable"):
        program(tensor(32), tensor(64))


def test_plans_are_made_once_unless_sizes_are_unknown() -> None:
    made = []

    @planned
    def plan(*sizes):
        made.append(sizes)
        return object()

    assert plan((2, 3), 4) is plan((2, 3), 4) and len(made) == 1
    assert plan([2, 3], 4) is not plan([2, 3], 4)  # not hashable, like a size that is being traced
    assert len(made) == 3
    PLANS.pop()


def test_every_choice_of_tiles_has_plans_of_its_own() -> None:
    kernels = [short_seq.ShortSeqAttention(), short_seq.ShortSeqAttention(forward_tiles=Tiles(64, 8, 1))]
    first, other = (kernel.plan_forward((2, 17, 3, 1, 16), (816, 48, 16, 16, 1), 0.25) for kernel in kernels)
    assert (first.tiles.warps, other.tiles.warps) == (4, 8)


@pytest.mark.parametrize("name", ["short_seq", "gated", "gated short_seq", "masked", "masked short_seq"])
@pytest.mark.skipif(not triton_api.INSTALLED, reason="Triton is not installed")
def test_the_expected_launches_of_a_step_are_those_of_the_step(monkeypatch, name) -> None:
    def empty(*size: int, dtype: torch.dtype = HALF) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, requires_grad=True)

    parameters = tuple(empty(*size, dtype=torch.float32) for size in ((4, 3), (4,), (4,)))
    kernel: Kernel
    if name == "short_seq":
        kernel, inputs = short_seq.ShortSeqAttention(), (empty(6, 17, 3, 2, 16), 0.25)
    elif name == "gated short_seq":
        kernel, inputs = short_seq.GatedShortSeqAttention(), (empty(6, 12, 3, 4, 16), *parameters, 0.25, 4)
    elif name == "gated":
        v, content_out = empty(6, 12, 3, 4, 16).permute(2, 0, 3, 1, 4)[2], empty(6, 12, 4, 16).transpose(1, 2)
        kernel, inputs = gated.GatedMix(), (content_out, v, *parameters, 3, 4)
    else:
        tokens = 70 if name == "masked" else 13
        factors = (empty(2, 3, tokens, dtype=torch.float32) for _ in range(2))
        kernel, inputs = masked.MaskedAttention(), (empty(6, tokens, 3, 2, 16), *factors, 0.25, 1, "paper")
    expected = kernel.expected_launches(inputs)
    launched = []
    monkeypatch.setattr(Program, "__call__", lambda self, *given: launched.append((self, (None, *(x.dtype for x in given)))))
    output = eager(kernel)(*inputs)
    (output[0] if isinstance(output, tuple) else output).sum().backward()
    programs = {"short_seq": 2, "gated": 6, "gated short_seq": 3, "masked": 5, "masked short_seq": 4}
    assert len(expected) == programs[name] and launched == expected


def test_captured_launches_are_not_started(kernel, program) -> None:
    with capture_launches() as captured:
        program(tensor(32), tensor(64))
    assert captured == [(program, (0, HALF, HALF))] and not (kernel.compiled or kernel.started)
    program(tensor(32), tensor(64))
    assert len(kernel.started) == 1


def test_cpu_tensors_are_for_the_interpreter_alone(program) -> None:
    with pytest.raises(ValueError, match="TRITON_INTERPRET=1"):
        program(torch.zeros(2), torch.zeros(2))


def test_the_compiler_takes_the_age_of_a_card_for_a_constant(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: asked.append(index) or (9, 0))
    monkeypatch.setattr(dispatch, "_recent", {})
    monkeypatch.setattr(triton_api, "works", lambda: True)

    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if dispatch.recent(0) else x - 1

    assert torch.compile(function, fullgraph=True, backend="eager")(torch.zeros(2)).tolist() == [1, 1]
    assert dispatch.recent(0) and asked == [0]


def test_only_torch_export_exports() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if exporting() else x - 1

    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(x)

    x = torch.zeros(2)
    assert torch.compile(function, fullgraph=True, backend="eager")(x).tolist() == [-1, -1]
    for strict in (True, False):
        assert torch.export.export(Module(), (x,), strict=strict).module()(x).tolist() == [1, 1]
