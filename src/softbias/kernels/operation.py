"""A kernel as an operation of PyTorch with gradients.

Called eagerly it is an `autograd.Function`; to torch.compile and to subclasses of Tensor (fake ones among them) it is a custom
operator. A custom operator would do for all, but its way through the dispatcher costs the host about as much as everything else
here together, and a small model on a fast GPU waits for its host. For the same reason torch.compile does not keep the operator:
it replaces it by the launches (`torch_api.custom_operator`), and launches the programs as it launches its own
(`softbias.environment.DEFAULTS`).

Kernels read queries, keys and values as one projection gives them, (B, N, 3, H, D).
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from softbias import kernels
from softbias.kernels import triton_api
from softbias.kernels.launching import Launches, Sizes, capture_launches, compile_in_threads
from softbias.kernels.torch_api import custom_operator

Run = Callable[..., Any]  # returns a tensor, or several


class Kernel(ABC):
    """A function in Triton, its gradient, and the tiles of both. A subclass is a dataclass whose fields are tiles, compared by
    identity, so that plans can be remembered for it at little cost.

    The signatures are those of the function: `forward(*inputs)`, and `backward` as `differentiate` calls it.
    """

    @abstractmethod
    def forward(self, *inputs: Any, **options: Any) -> Any: ...

    @abstractmethod
    def backward(self, *given: Any, **options: Any) -> Any: ...

    @abstractmethod
    def like_forward(self, *inputs: Any, **options: Any) -> Any:
        """Empty results with the types, shapes and strides of `forward`."""

    @abstractmethod
    def like_backward(self, *given: Any, **options: Any) -> Any:
        """Empty results with the types, shapes and strides of `backward`."""

    @abstractmethod
    def keep(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the tensors and numbers that `differentiate` will need."""

    @abstractmethod
    def differentiate(self, ctx: Any, backward: Run, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """The gradients of the inputs from those of the outputs, by `backward`."""

    def expected_launches(self, inputs: tuple[Any, ...]) -> Launches:
        """The launches of a step with these inputs, forward and backward, if gradients come laid out like the outputs."""
        ctx = Kept()
        with capture_launches() as launches:
            output = self.forward(*inputs)
            self.keep(ctx, inputs, output)
            outputs = output if isinstance(output, tuple) else (output,)
            self.differentiate(ctx, self.backward, *(torch.empty_like(each) for each in outputs))
        return launches


class Kept:
    """The context that autograd hands to `keep` and `differentiate`, as far as they use it."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass


def eager(kernel: Kernel) -> Run:
    """The function with gradients, for tensors that are neither traced nor of a subclass."""
    prepared: set[tuple[Any, ...]] = set()
    forward, backward, keep, differentiate = kernel.forward, kernel.backward, kernel.keep, kernel.differentiate

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            first = inputs[0]
            if first.is_cuda and (kind := (first.shape, first.dtype, first.device)) not in prepared:
                prepared.add(kind)
                compile_in_threads(kernel.expected_launches(inputs))
            output = forward(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            return differentiate(ctx, backward, *given)

    apply: Run = Eager.apply
    return apply


def operation(name: str, kernel: Kernel) -> Run:
    """The function with gradients, for all tensors, eager and compiled."""
    run, apply = kernel.forward, eager(kernel)
    seen = operator(name, kernel.forward, kernel.like_forward)
    seen_backward = operator(f"{name}_backward", kernel.backward, kernel.like_backward)
    seen.register_autograd(lambda ctx, *given: kernel.differentiate(ctx, seen_backward, *given), setup_context=kernel.keep)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling() or type(inputs[0]) is not Tensor:
            return seen(*inputs)
        return apply(*inputs) if torch.is_grad_enabled() else run(*inputs)

    return call


def operator(name: str, run: Run, like: Run) -> Any:
    """`run` as a custom operator. Compiled graphs are cached by the names of their operators, so the name contains a version of
    the kernels."""
    transparent = triton_api.INSTALLED and not triton_api.INTERPRETED
    return custom_operator(f"softbias::{name}_{version()}", run, like, transparent=transparent)


@lru_cache
def version() -> str:
    """A hash of the sources of the kernels."""
    sources = sorted((file.name, file.read_bytes()) for file in files(kernels.__name__).iterdir() if file.name.endswith(".py"))
    return hashlib.sha256(b"".join(source for _, source in sources)).hexdigest()[:8]


def with_contiguous_channels(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def empty_result(qkv: Tensor) -> Tensor:
    """# (B, N, H, D)"""
    images, tokens, _, heads, channels = qkv.shape
    return qkv.new_empty(images, tokens, heads, channels)


def strides_of_result(shape: Sizes) -> Sizes:
    """The strides of `empty_result` for a projection of this shape."""
    _, tokens, _, heads, channels = shape
    return tokens * heads * channels, heads * channels, channels, 1


def empty_gradients(*inputs: Tensor) -> tuple[Any, ...]:
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in inputs)
