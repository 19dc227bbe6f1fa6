from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from softbias.attention import Full, Gated, Masked
from softbias.grid import Grid
from softbias.kernels import dispatch, triton_api
from softbias.kernels.launching import Program, precompile
from softbias.kernels.masked import masked_attention
from softbias.models.layers import DepthwiseFeedForward

HERE = Path(__file__).parent
needs_triton = pytest.mark.skipif(not triton_api.INSTALLED, reason="Triton is not installed")


@needs_triton
def test_kernels_agree_with_plain_pytorch_in_triton_s_interpreter(request) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("this is the interpreter's process")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(HERE / "interpreted")]
    command += ["--slow"] if request.config.getoption("--slow") else []
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, cwd=HERE.parents[1], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


def test_cpu_tensors_are_left_to_pytorch_and_triton_is_not_even_imported() -> None:
    code = (
        "import sys, torch; from softbias.attention import Gated, Masked; from softbias.grid import Grid\n"
        "Masked(16, 2, Grid(3, 3))(torch.randn(2, 9, 16)).sum().backward()\n"
        "Gated(32, 4, Grid(3, 3))(torch.randn(2, 9, 32)).sum().backward()\n"
        "sys.exit(any(name.endswith('_program') for name in sys.modules if name.startswith('softbias.kernels.')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("dtype", "tokens", "channels", "expected"),
    [
        (torch.bfloat16, 197, 64, True),
        (torch.float16, 256, 43, True),
        (torch.float32, 197, 64, False),
        (torch.bfloat16, 257, 64, False),
        (torch.bfloat16, 197, 65, False),
    ],
)
def test_kernels_are_used_for_half_precision_on_a_recent_card_within_their_sizes(
    monkeypatch, dtype, tokens, channels, expected
) -> None:
    class OnACard:
        is_cuda, device = True, torch.device("cuda", 0)

    monkeypatch.setattr(dispatch, "recent", lambda index: True)
    monkeypatch.setattr(triton_api, "INSTALLED", True)
    tensor = OnACard()
    tensor.dtype = dtype
    assert dispatch.usable(tensor, tokens, channels) is expected
    with dispatch.disabled():
        assert not dispatch.usable(tensor, tokens, channels)
    assert dispatch.usable(tensor, tokens, channels) is expected
    half = dtype in dispatch.HALF
    assert dispatch.usable(tensor, tokens, channels, longest=1024, widest=128) is half
    assert not dispatch.usable(tensor, tokens, channels, longest=tokens - 1, widest=128)


@needs_triton
def test_a_cpu_tensor_given_to_a_kernel_names_the_interpreter() -> None:
    with pytest.raises(ValueError, match="set TRITON_INTERPRET=1"):
        masked_attention(torch.zeros(1, 4, 3, 1, 16), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4), 1.0, 0, "paper")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "build",
    [
        lambda: Masked(192, 3, Grid(14, 14, prefix=1)),
        lambda: Masked(192, 3, Grid(8, 8, prefix=1)),
        lambda: Gated(192, 4, Grid(14, 14)),
        lambda: Gated(192, 4, Grid(8, 8)),
        lambda: Full(192, 3, Grid(8, 8, prefix=1)),
        lambda: Full(192, 4, Grid(8, 8)),
    ],
    ids=["masked", "masked at 32 px", "gated", "gated at 32 px", "full, 65 tokens", "full, 64 tokens"],
)
def test_the_layer_with_its_kernel_equals_its_definition_on_the_card(build, dtype) -> None:
    torch.manual_seed(0)
    layer = build().cuda()
    x = torch.randn(4, len(layer.grid), 192, device="cuda", requires_grad=True)
    weights = torch.randn_like(x)
    into = {"x": x} | {name: p for name, p in layer.named_parameters() if name != "position.bias"}  # whose gradient is zero
    with torch.autocast("cuda", dtype):
        found = torch.autograd.grad((layer(x) * weights).sum(), list(into.values()))
    wanted = torch.autograd.grad((layer.by_definition(x) * weights).sum(), list(into.values()))
    for name, a, b in zip(into, found, wanted, strict=True):
        assert (a - b).norm() < 0.02 * b.norm(), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("build", "program"),
    [
        (lambda: Masked(192, 3, Grid(14, 14, prefix=1)), "forward_program"),
        (lambda: Masked(192, 3, Grid(8, 8, prefix=1)), "forward_program"),
        (lambda: Gated(192, 4, Grid(14, 14)), "mix_program"),
        (lambda: Gated(192, 4, Grid(8, 8)), "forward_program"),
        (lambda: Full(192, 3, Grid(8, 8, prefix=1)), "forward_program"),
    ],
    ids=["masked", "masked at 32 px", "gated", "gated at 32 px", "full"],
)
def test_a_compiled_layer_starts_the_kernels_itself_on_the_card(build, program) -> None:
    from torch._inductor.utils import run_and_get_code

    torch.manual_seed(0)
    layer = build().cuda()
    x = torch.randn(4, len(layer.grid), 192, device="cuda", requires_grad=True)
    weights = torch.randn_like(x)
    into = [x, *(p for name, p in layer.named_parameters() if name != "position.bias")]

    def gradients(run):
        with torch.autocast("cuda", torch.bfloat16):
            return torch.autograd.grad((run(x) * weights).sum(), into)

    found, codes = run_and_get_code(lambda: gradients(torch.compile(layer, fullgraph=True)))
    assert f"{program}_" in codes[0] and "torch.ops.softbias" not in "".join(codes)
    for a, b in zip(found, gradients(layer), strict=True):
        assert (a - b).norm() < 0.01 * b.norm()


def test_nothing_is_precompiled_on_a_cpu(monkeypatch) -> None:
    monkeypatch.setattr(Full, "forward", None)
    precompile(Full(192, 3, Grid(8, 8)), 4)


def test_a_subclass_has_no_fused_program_unless_it_defines_one(monkeypatch) -> None:
    class Mine(Full):
        pass

    class Fused(Full):
        def fused(self, qkv: torch.Tensor) -> torch.Tensor:
            return qkv[:, :, 2]

    assert Full.has_fused and not Mine.has_fused and Fused.has_fused
    monkeypatch.setattr(dispatch, "softmax_attention", lambda qkv: pytest.fail("it was asked for a program"))
    x = torch.randn(2, 9, 32)
    layer = Mine(32, 2, Grid(3, 3))
    torch.testing.assert_close(layer(x), layer.by_definition(x))
    layer = Fused(32, 2, Grid(3, 3))
    torch.testing.assert_close(layer(x), layer.merge(layer.values(x)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_step_needs_no_more_than_was_precompiled_on_the_card(monkeypatch, new_plans) -> None:
    grid = Grid(8, 8)
    model = torch.nn.Sequential(
        Full(192, 3, grid), Full(192, 3, grid), Masked(192, 3, grid), Gated(192, 4, grid), DepthwiseFeedForward(192, 768, grid)
    ).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        precompile(model, 6)
        waiting: list[Program] = []
        first = Program.first_launcher

        def recorded(program: Program, kinds: tuple) -> object:
            assert kinds in program.compiling
            waiting.append(program)
            return first(program, kinds)

        monkeypatch.setattr(Program, "first_launcher", recorded)
        model(torch.randn(6, 64, 192, device="cuda", requires_grad=True)).sum().backward()
    assert len(waiting) == 2 + 4 + 3 + 3
