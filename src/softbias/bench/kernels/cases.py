"""What is measured: each function in several forms, on the shapes of our models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from softbias.attention.fused import dot_product_attention
from softbias.attention.positional import kernel_centers, position_weights
from softbias.kernels import distance, gated, masked
from softbias.kernels import gated_short_seq as gated_few
from softbias.kernels import short_seq as few

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
DISTANCE = ((80, 12, 256, 43), (512, 12, 256, 43))  # images, heads, tokens, channels: ARViT at 256 px
MASKED = ((256, 3, 197, 64), (512, 3, 65, 64))  # ibit_tiny at 224 px, and at 32 px with patches of 4
FEW = ((512, 3, 65, 64), (512, 4, 64, 48), (512, 6, 65, 64))  # deit_tiny, the content of convit_tiny, and deit_small at 32 px
GATED = ((256, 4, 196, 48), (256, 16, 196, 48), (512, 4, 64, 48))  # convit_tiny and convit_base, and convit_tiny at 32 px


@dataclass
class Case:
    """One function with several forms: each takes the inputs and returns the output; weights make a scalar of it."""

    name: str
    forms: dict[str, Callable[..., Tensor]]
    inputs: tuple[Tensor, ...]  # with gradients
    exact: Callable[[int], tuple[Tensor, ...]] = field(repr=False)  # output and gradients for the first images, in float64
    weights: Tensor
    flops: tuple[float, float]  # forward, and forward with backward, at least
    megabytes: tuple[float, float]


def distance_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)
    q, k, _ = (x.detach().requires_grad_() for x in qkv.permute(2, 0, 3, 1, 4).unbind(0))
    penalty = torch.rand(tokens, tokens, device=DEVICE) * 2 - 1
    weights = torch.rand(images, device=DEVICE) / images
    halved, scale = penalty.half(), channels**-0.5

    def exact(few: int) -> tuple[Tensor, ...]:
        inputs = [x[:few].detach().double().requires_grad_() for x in (q, k)]
        value = distance.plain_attention_penalty(inputs[0], inputs[1], penalty.double(), scale)
        return value, *torch.autograd.grad((value * weights[:few].double()).sum(), inputs)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms = {
        "kernel": lambda q, k: distance.attention_penalty(q, k, penalty, scale),
        "kernel, recomputing": lambda q, k: distance.attention_penalty(q, k, penalty, scale, recompute=True),
        "kernel, half penalty": lambda q, k: distance.attention_penalty(q, k, halved, scale),
        "plain": lambda q, k: distance.plain_attention_penalty(q, k, penalty, scale),
    }
    name = f"distance {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, (q, k), exact, weights, (product, 3 * product), (2 * array, 4 * array))


def masked_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    """Factors of rank 9, with a class token."""
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)
    factors = torch.randn(2, heads, 9, tokens, device=DEVICE) / 3
    inputs = tuple(x.detach().requires_grad_() for x in (qkv, factors[0], factors[1]))
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)

    def exact(few: int) -> tuple[Tensor, ...]:
        """The factors' gradients need all images."""
        firsts: list[Tensor] = []
        totals = torch.zeros_like(factors, dtype=torch.float64)
        for part, seed in zip(qkv.split(few), weights.split(few), strict=True):
            exactly = tuple(x.detach().double().requires_grad_() for x in (part, *factors))
            output = plain(*exactly)
            of_part, *of_factors = torch.autograd.grad(output, exactly, seed.double())
            totals += torch.stack(of_factors)
            firsts = firsts or [output.detach(), of_part]
        return *firsts, *totals

    def kernel(qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return masked.masked_attention(qkv, a, b, channels**-0.5, 1, "paper")

    def plain(qkv: Tensor, a: Tensor, b: Tensor) -> Tensor:
        return masked.plain_masked_attention(qkv, a, b, channels**-0.5, 1, "paper")

    def full(qkv: Tensor, *_: Tensor) -> Tensor:
        """What DeiT does, for its time."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms: dict[str, Callable[..., Tensor]] = {"kernel": kernel, "plain": plain, "(full attention)": full}
    name = f"masked {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, inputs, exact, weights, (2 * product, 7 * product), (4 * array, 12 * array))


def few_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE).requires_grad_()
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)
    scale = channels**-0.5

    def exact(few_images: int) -> tuple[Tensor, ...]:
        exactly = qkv[:few_images].detach().double().requires_grad_()
        output = few.plain_few_attention(exactly, scale)
        return output.detach(), *torch.autograd.grad(output, exactly, weights[:few_images].double())

    def fused(qkv: Tensor) -> Tensor:
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        return dot_product_attention(q, k, v, scale=scale).transpose(1, 2)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms: dict[str, Callable[..., Tensor]] = {
        "kernel": lambda qkv: few.few_attention(qkv, scale),
        "plain": lambda qkv: few.plain_few_attention(qkv, scale),
        "PyTorch's kernel": fused,
    }
    name = f"few {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, (qkv,), exact, weights, (2 * product, 7 * product), (4 * array, 11 * array))


def gated_few_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    side, scale = math.isqrt(tokens), channels**-0.5
    qkv = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)
    weight = (position_weights(kernel_centers(heads), 1.0) + 0.1 * torch.randn(heads, 3)).to(DEVICE)
    bias, gate = torch.zeros(heads, device=DEVICE), torch.randn(heads, device=DEVICE)
    inputs = tuple(x.detach().requires_grad_() for x in (qkv, weight, gate))
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)

    def plain(qkv: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated_few.plain_gated_few_attention(qkv, weight, bias.to(weight.dtype), gate, scale, side)

    def exact(at_once: int) -> tuple[Tensor, ...]:
        """The gradients of the parameters need all images."""
        firsts: list[Tensor] = []
        totals = [torch.zeros_like(x, dtype=torch.float64) for x in inputs[1:]]
        for part, seed in zip(qkv.split(at_once), weights.split(at_once), strict=True):
            exactly = tuple(x.detach().double().requires_grad_() for x in (part, weight, gate))
            output = plain(*exactly)
            dqkv, *of_parameters = torch.autograd.grad(output, exactly, seed.double())
            for total, more in zip(totals, of_parameters, strict=True):
                total += more
            firsts = firsts or [output.detach(), dqkv]
        return *firsts, *totals

    def mixed(qkv: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        """PyTorch's attention and the mixing kernel after it."""
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        return gated.gated_mix(dot_product_attention(q, k, v, scale=scale), v, weight, bias, gate, side, side)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms: dict[str, Callable[..., Tensor]] = {
        "kernel": lambda qkv, weight, gate: gated_few.gated_few_attention(qkv, weight, bias, gate, scale, side),
        "plain": plain,
        "attention, then mixed": mixed,
    }
    name = f"gated few {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, inputs, exact, weights, (2 * product, 7 * product), (4 * array, 11 * array))


def gated_case(images: int, heads: int, tokens: int, channels: int) -> Case:
    side = math.isqrt(tokens)
    v = torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE).permute(2, 0, 3, 1, 4)[2]
    anywhere = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE).transpose(1, 2)
    weight = (position_weights(kernel_centers(heads), 1.0) + 0.1 * torch.randn(heads, 3)).to(DEVICE)
    bias, gate = torch.zeros(heads, device=DEVICE), torch.randn(heads, device=DEVICE)
    inputs = tuple(x.detach().requires_grad_() for x in (anywhere, v, weight, gate))
    weights = torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)

    def exact(few: int) -> tuple[Tensor, ...]:
        """The gradients of the parameters need all images."""
        firsts: list[Tensor] = []
        totals = [torch.zeros_like(x, dtype=torch.float64) for x in inputs[2:]]
        for a, values, seed in zip(inputs[0].split(few), inputs[1].split(few), weights.split(few), strict=True):
            exactly = tuple(x.detach().double().requires_grad_() for x in (a, values, *inputs[2:]))
            output = plain(*exactly)
            *of_part, dweight, dgate = torch.autograd.grad(output, exactly, seed.double())
            for total, more in zip(totals, (dweight, dgate), strict=True):
                total += more
            firsts = firsts or [output.detach(), *of_part]
        return *firsts, *totals

    def kernel(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated.gated_mix(anywhere, v, weight, bias, gate, side, side)

    def plain(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        return gated.plain_gated_mix(anywhere, v, weight, bias, gate, side, side)

    def matmul(anywhere: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        """The map repeated for every image, as broadcasting does it."""
        nearby = gated.place_map(weight, bias, side, side).to(v.dtype) @ v
        return torch.lerp(anywhere, nearby, gate.sigmoid().to(v.dtype)[:, None, None]).transpose(1, 2)

    product, array = 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6
    forms = {
        "kernel": kernel,
        "plain": plain,
        "matmul": matmul,
        "(no place)": lambda anywhere, *_: anywhere.transpose(1, 2).clone(),
    }
    name = f"gated {images}x{heads}x{tokens}x{channels}"
    return Case(name, forms, inputs, exact, weights, (product, 3 * product), (3 * array, 8 * array))


CASES: dict[str, tuple[Callable[..., Case], tuple[tuple[int, int, int, int], ...]]] = {
    "distance": (distance_case, DISTANCE),
    "masked": (masked_case, MASKED),
    "gated": (gated_case, GATED),
    "few": (few_case, FEW),
    "gated few": (gated_few_case, GATED[2:]),
}
