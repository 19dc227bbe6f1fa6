"""The depth-wise convolution between two GELUs where it runs: on a card. In Triton's interpreter, see `interpreted`."""

from __future__ import annotations

import pytest
import torch

from softbias.grid import Grid
from softbias.kernels import dispatch, triton_api
from softbias.kernels.depthwise import depthwise_gelu
from softbias.models.layers import DepthwiseFeedForward

on_card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GRIDS = {
    "32 px": Grid(8, 8),
    "a class token": Grid(14, 14, prefix=1),
    "oblong": Grid(3, 5, prefix=2),
    "long": Grid(2, 40),
}
ALLOWED = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def make_layer(grid: Grid, hidden: int = 200) -> tuple[DepthwiseFeedForward, torch.Tensor]:
    torch.manual_seed(0)
    layer = DepthwiseFeedForward(64, hidden, grid).cuda()
    torch.nn.init.normal_(layer.conv.bias)
    return layer, torch.randn(5, len(grid), 64, device="cuda", requires_grad=True)


def gradients(run, layer: DepthwiseFeedForward, x: torch.Tensor, dtype: torch.dtype) -> list[torch.Tensor]:
    with torch.autocast("cuda", dtype, enabled=dtype in dispatch.HALF):
        out = run(x)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    return [out.detach(), *torch.autograd.grad(out, (x, *layer.parameters()), weights)]


def test_a_cpu_and_an_export_keep_plain_pytorch() -> None:
    x = torch.randn(2, 6, 16)
    assert dispatch.depthwise_gelu(x) is None
    layer = DepthwiseFeedForward(16, 32, Grid(2, 3)).eval()
    graph = torch.export.export(layer, (x,)).graph
    assert not any("softbias" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_the_kernel_takes_every_size_in_single_and_half_precision(monkeypatch, dtype) -> None:
    class OnACard:
        is_cuda, device = True, torch.device("cuda", 0)

    monkeypatch.setattr(dispatch, "recent", lambda index: True)
    monkeypatch.setattr(triton_api, "INSTALLED", True)
    tokens = OnACard()
    tokens.dtype = dtype
    assert (dispatch.depthwise_gelu(tokens) is depthwise_gelu) == (dtype != torch.float64)
    with dispatch.disabled():
        assert dispatch.depthwise_gelu(tokens) is None


@on_card
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("grid", GRIDS.values(), ids=list(GRIDS))
def test_the_layer_with_its_kernel_equals_the_layer_in_float64_on_the_card(grid, dtype) -> None:
    layer, x = make_layer(grid)
    assert dispatch.depthwise_gelu(x) is not None and dispatch.depthwise_gelu(x.double()) is None
    found = gradients(layer, layer, x, dtype)
    exact = x.detach().double().requires_grad_()
    layer.double()
    wanted = gradients(layer, layer, exact, torch.float64)
    for name, a, b in zip(("out", "x", *dict(layer.named_parameters())), found, wanted, strict=True):
        assert (a - b).norm() < ALLOWED[dtype] * b.norm(), name


@on_card
def test_a_compiled_layer_starts_its_kernels_itself_on_the_card() -> None:
    from torch._inductor.utils import run_and_get_code

    layer, x = make_layer(Grid(8, 8))
    compiled = torch.compile(layer, fullgraph=True)
    found, codes = run_and_get_code(lambda: gradients(compiled, layer, x, torch.bfloat16))
    assert "forward_program" in codes[0] and "torch.ops.softbias" not in "".join(codes)
    for a, b in zip(found, gradients(layer, layer, x, torch.bfloat16), strict=True):
        assert (a - b).norm() < 0.01 * b.norm()


@on_card
def test_the_same_bits_come_out_twice_on_the_card() -> None:
    layer, x = make_layer(Grid(8, 8))
    first, second = (gradients(layer, layer, x, torch.bfloat16) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
