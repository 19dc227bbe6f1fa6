"""Attention on a CPU in bf16: plain operations for short sequences, with the values and gradients of the definition."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from softbias.kernels.dispatch import SHORT_ON_CPU, dot_product_attention


@pytest.mark.parametrize("tokens", [5, 101, SHORT_ON_CPU + 1])
def test_bf16_on_a_cpu_has_the_values_and_gradients_of_the_definition(tokens):
    torch.manual_seed(0)
    given = [torch.randn(2, 3, tokens, 16) for _ in range(3)]
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        leaves = [each.to(torch.bfloat16).to(dtype).requires_grad_() for each in given]
        attend = dot_product_attention if dtype == torch.bfloat16 else scaled_dot_product_attention
        out = attend(*leaves, scale=0.25)
        out.square().sum().backward()
        assert out.dtype == dtype
        found.append([out, *(each.grad for each in leaves)])
    for ours, reference in zip(*found, strict=True):
        assert (ours.float() - reference).abs().max() <= 0.05 * reference.abs().max()


def test_fp32_on_a_cpu_keeps_the_bits_of_pytorch_s_kernel():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 37, 16) for _ in range(3))
    assert torch.equal(dot_product_attention(q, k, v, scale=0.25), scaled_dot_product_attention(q, k, v, scale=0.25))
