"""A compiled layer is one graph that contains its fused program."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.backends.debugging import aot_eager

from softbias.attention import Full, Gated, Masked
from softbias.grid import Grid
from softbias.kernels import dispatch
from softbias.models.layers import DepthwiseFeedForward

LAYERS = {
    "short_seq_attention": lambda: Full(32, 2, Grid(4, 4)),
    "gated_short_seq_attention": lambda: Gated(64, 4, Grid(3, 4)),
    "gated_mix": lambda: Gated(64, 4, Grid(9, 8)),
    "masked_attention": lambda: Masked(32, 2, Grid(3, 4, prefix=1)),
    "depthwise_gelu": lambda: DepthwiseFeedForward(16, 32, Grid(2, 3, prefix=1)),
}


def by_definition(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    with dispatch.disabled():
        return layer(x) if isinstance(layer, DepthwiseFeedForward) else layer.by_definition(x)


@pytest.mark.parametrize("name", LAYERS)
def test_torch_compile_finds_the_program_of_a_layer(monkeypatch, name) -> None:
    operators = []

    def backend(module, example_inputs):
        operators.extend(str(node.target) for node in module.graph.nodes if "softbias" in str(node.target))
        return aot_eager(module, example_inputs)

    monkeypatch.setattr(dispatch, "available", lambda tensor, types: dispatch._enabled)
    torch.manual_seed(0)
    torch.compiler.reset()
    layer = LAYERS[name]()
    x = torch.randn(2, len(layer.grid), layer.width, requires_grad=True)
    (found,) = torch.autograd.grad(torch.compile(layer, fullgraph=True, backend=backend)(x).sin().sum(), x)
    (wanted,) = torch.autograd.grad(by_definition(layer, x).sin().sum(), x)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert [operator.startswith(f"softbias.{name}_") for operator in operators] == [True]
