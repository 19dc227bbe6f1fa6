"""The functions that `softbias.bench.kernels` measures: each in several forms, on the shapes of our models."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, scaled_dot_product_attention

from softbias.attention.positional import kernel_centers, position_weights
from softbias.kernels import depthwise, distance, gated, masked, short_seq
from softbias.kernels.dispatch import dot_product_attention

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
Form = Callable[..., Tensor]
Shape = tuple[int, int, int, int]  # images, heads, tokens, channels


@dataclass(frozen=True)
class Case:
    """One function with several forms: each takes the inputs and returns the output."""

    name: str
    kernel: Callable[[Any], Form]  # the form that calls our operation, given the operation
    forms: dict[str, Form]  # "plain" among them; a name in parentheses is another function, for its time
    inputs: tuple[Tensor, ...]  # with gradients
    per_image: int  # the first inputs, which have a row for every image; the others are parameters
    weights: Tensor  # the gradient of the output
    flops: tuple[float, float]  # forward, and forward with backward, at least
    megabytes: tuple[float, float]

    def exact(self, at_once: int) -> tuple[Tensor, ...]:
        """In float64: the output and the gradients for the first images, and the gradients of the parameters from all
        images."""
        batched, parameters = self.inputs[: self.per_image], self.inputs[self.per_image :]
        firsts: list[Tensor] = []
        totals = [torch.zeros_like(x, dtype=torch.float64) for x in parameters]
        for start in range(0, len(self.weights) if parameters else at_once, at_once):
            here = slice(start, start + at_once)
            given = [x.detach().double().requires_grad_() for x in (*(x[here] for x in batched), *parameters)]
            output = self.forms["plain"](*given)
            gradients = torch.autograd.grad(output, given, self.weights[here].double())
            firsts = firsts or [output.detach(), *gradients[: self.per_image]]
            for total, more in zip(totals, gradients[self.per_image :], strict=True):
                total += more
        return *firsts, *totals


def counted(shape: Shape) -> tuple[float, float]:
    """Operations of one product of a map with values, and megabytes of one array of values."""
    images, heads, tokens, channels = shape
    return 2 * images * heads * tokens**2 * channels, images * heads * tokens * channels * 2 / 1e6


def named(kind: str, shape: Shape) -> str:
    return f"{kind} {'x'.join(str(size) for size in shape)}"


def random_qkv(shape: Shape) -> Tensor:
    images, heads, tokens, channels = shape
    return torch.randn(images, tokens, 3, heads, channels, device=DEVICE, dtype=DTYPE)


def random_result(shape: Shape) -> Tensor:
    images, heads, tokens, channels = shape
    return torch.randn(images, tokens, heads, channels, device=DEVICE, dtype=DTYPE)


def with_gradients(*tensors: Tensor) -> tuple[Tensor, ...]:
    return tuple(x.detach().requires_grad_() for x in tensors)


def by_pytorch(qkv: Tensor, scale: float) -> Tensor:
    """# (B, N, 3, H, D) -> (B, H, N, D)"""
    q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
    return dot_product_attention(q, k, v, scale=scale)


def distance_case(shape: Shape) -> Case:
    images, _, tokens, channels = shape
    q, k, _ = random_qkv(shape).permute(2, 0, 3, 1, 4).unbind(0)
    penalty = torch.rand(tokens, tokens, device=DEVICE) * 2 - 1
    halved, scale = penalty.half(), channels**-0.5
    product, array = counted(shape)

    def kernel(run: Form) -> Form:
        return lambda q, k: run(q, k, penalty, scale)

    forms: dict[str, Form] = {
        "kernel": kernel(distance.attention_penalty),
        "kernel, recomputing": lambda q, k: distance.attention_penalty(q, k, penalty, scale, recompute=True),
        "kernel, half penalty": lambda q, k: distance.attention_penalty(q, k, halved, scale),
        "plain": kernel(distance.plain_attention_penalty),
    }
    weights = torch.rand(images, device=DEVICE) / images
    work = (product, 3 * product), (2 * array, 4 * array)
    return Case(named("distance", shape), kernel, forms, with_gradients(q, k), 2, weights, *work)


def masked_case(shape: Shape) -> Case:
    """Factors of rank 9, with a class token."""
    _, heads, tokens, channels = shape
    factors = torch.randn(2, heads, 9, tokens, device=DEVICE) / 3
    given = channels**-0.5, 1, "paper"
    product, array = counted(shape)

    def kernel(run: Callable[..., tuple[Tensor, ...]]) -> Form:
        return lambda qkv, a, b: run(qkv, a, b, *given)[0]

    def full(qkv: Tensor, *_: Tensor) -> Tensor:
        """The attention of DeiT, for its time."""
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return scaled_dot_product_attention(q, k, v).transpose(1, 2)

    forms: dict[str, Form] = {
        "kernel": kernel(masked.attention),
        "plain": lambda qkv, a, b: masked.plain_masked_attention(qkv, a, b, *given),
        "(full attention)": full,
    }
    inputs = with_gradients(random_qkv(shape), factors[0], factors[1])
    work = (2 * product, 7 * product), (4 * array, 12 * array)
    return Case(named("masked", shape), kernel, forms, inputs, 1, random_result(shape), *work)


def short_seq_case(shape: Shape) -> Case:
    scale = shape[-1] ** -0.5
    product, array = counted(shape)

    def kernel(run: Form) -> Form:
        return lambda qkv: run(qkv, scale)

    forms: dict[str, Form] = {
        "kernel": kernel(short_seq.short_seq_attention),
        "plain": kernel(short_seq.plain_short_seq_attention),
        "PyTorch's kernel": lambda qkv: by_pytorch(qkv, scale).transpose(1, 2),
    }
    work = (2 * product, 7 * product), (4 * array, 11 * array)
    inputs = with_gradients(random_qkv(shape))
    return Case(named("short_seq", shape), kernel, forms, inputs, 1, random_result(shape), *work)


def random_positions(heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Weight, bias and gate of a gated layer, near to where it starts."""
    weight = (position_weights(kernel_centers(heads), 1.0) + 0.1 * torch.randn(heads, 3)).to(DEVICE)
    return weight, torch.zeros(heads, device=DEVICE), torch.randn(heads, device=DEVICE)


def gated_short_seq_case(shape: Shape) -> Case:
    side, scale = math.isqrt(shape[2]), shape[-1] ** -0.5
    weight, bias, gate = random_positions(shape[1])
    product, array = counted(shape)

    def kernel(run: Form) -> Form:
        return lambda qkv, weight, gate: run(qkv, weight, bias, gate, scale, side)

    def mixed(qkv: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        v = qkv[:, :, 2].transpose(1, 2)
        return gated.gated_mix(by_pytorch(qkv, scale), v, weight, bias, gate, side, side)

    forms: dict[str, Form] = {
        "kernel": kernel(short_seq.gated_short_seq_attention),
        "plain": kernel(short_seq.plain_gated_short_seq_attention),
        "attention, then mixed": mixed,
    }
    inputs = with_gradients(random_qkv(shape), weight, gate)
    work = (2 * product, 7 * product), (4 * array, 11 * array)
    return Case(named("gated short_seq", shape), kernel, forms, inputs, 1, random_result(shape), *work)


def gated_case(shape: Shape) -> Case:
    side = math.isqrt(shape[2])
    v, content_out = random_qkv(shape).permute(2, 0, 3, 1, 4)[2], random_result(shape).transpose(1, 2)
    weight, bias, gate = random_positions(shape[1])
    product, array = counted(shape)

    def kernel(run: Callable[..., tuple[Tensor, ...]]) -> Form:
        return lambda content_out, v, weight, gate: run(content_out, v, weight, bias, gate, side, side)[0]

    def matmul(content_out: Tensor, v: Tensor, weight: Tensor, gate: Tensor) -> Tensor:
        """The map repeated for every image, as broadcasting does it."""
        position_out = gated.position_map(weight, bias, side, side).to(v.dtype) @ v
        return torch.lerp(content_out, position_out, gate.sigmoid().to(v.dtype)[:, None, None]).transpose(1, 2)

    forms: dict[str, Form] = {
        "kernel": kernel(gated.mix),
        "plain": lambda content_out, v, weight, gate: gated.plain_gated_mix(content_out, v, weight, bias, gate, side, side),
        "matmul": matmul,
        "(content only)": lambda content_out, *_: content_out.transpose(1, 2).clone(),
    }
    inputs = with_gradients(content_out, v, weight, gate)
    work = (product, 3 * product), (3 * array, 8 * array)
    return Case(named("gated", shape), kernel, forms, inputs, 2, random_result(shape), *work)


def depthwise_case(shape: Shape) -> Case:
    images, _, tokens, channels = shape
    side = math.isqrt(tokens)
    x, weights = (torch.randn(images, tokens, channels, device=DEVICE, dtype=DTYPE) for _ in range(2))
    parameters = (torch.randn(*size, device=DEVICE) / 3 for size in ((channels,), (channels, 1, 3, 3), (channels,)))
    array = x.numel()

    def kernel(run: Form) -> Form:
        return lambda *given: run(*given, side, side)

    forms: dict[str, Form] = {
        "kernel": kernel(depthwise.depthwise_gelu),
        "plain": kernel(depthwise.plain_depthwise_gelu),
        "(one GELU)": lambda x, shift, *_: gelu(x + shift.to(x.dtype)),
    }
    work = (18 * array, 72 * array), (4 * array / 1e6, 10 * array / 1e6)
    return Case(named("depthwise", shape), kernel, forms, with_gradients(x, *parameters), 1, weights, *work)


CASES: dict[str, tuple[Callable[[Shape], Case], tuple[Shape, ...]]] = {
    "distance": (distance_case, ((80, 12, 256, 43), (512, 12, 256, 43))),  # ARViT at 256 px
    "masked": (masked_case, ((256, 3, 197, 64), (512, 3, 65, 64))),  # ibit_tiny at 224 px, and at 32 px with patches of 4
    "gated": (gated_case, ((256, 4, 196, 48), (256, 16, 196, 48), (512, 4, 64, 48))),  # convit_tiny, _base, _tiny at 32 px
    "short_seq": (short_seq_case, ((512, 3, 65, 64), (512, 4, 64, 48), (512, 6, 65, 64))),  # deit_tiny, convit_tiny, deit_small
    "gated short_seq": (gated_short_seq_case, ((512, 4, 64, 48),)),  # convit_tiny at 32 px
    "depthwise": (depthwise_case, ((512, 1, 64, 768), (256, 1, 196, 768))),  # the feed-forward of soft_tiny, at 32 and 224 px
}
