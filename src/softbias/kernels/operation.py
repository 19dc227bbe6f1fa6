"""A kernel as an operation of PyTorch, for whoever calls it.

Called eagerly it is an `autograd.Function`; to torch.compile and to subclasses of Tensor (fake ones among them) it is a custom
operator, which they can see through without running it. A custom operator would do for all, but its way through the dispatcher
costs the host about as much as all else here together, and a small model on a fast GPU waits for its host.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Run = Callable[..., tuple[Tensor, ...]]


def operation(
    name: str,
    forward: Run,
    backward: Run,
    *,
    like_forward: Run,
    like_backward: Run,
    keep: Callable[[Any, tuple[Any, ...], tuple[Tensor, ...]], None],
    differentiate: Callable[..., tuple[Tensor | None, ...]],
) -> Run:
    """`forward(*inputs)` with gradients.

    like_forward, like_backward   empty results of the same kinds, shapes and strides
    keep                          keep(ctx, inputs, output): what `differentiate` will need
    differentiate                 differentiate(ctx, backward, *gradients of the outputs): the gradients of the inputs
    """
    seen = torch.library.custom_op(f"softbias::{name}", forward, mutates_args=())
    seen_backward = torch.library.custom_op(f"softbias::{name}_backward", backward, mutates_args=())
    seen.register_fake(like_forward)
    seen_backward.register_fake(like_backward)
    seen.register_autograd(lambda ctx, *given: differentiate(ctx, seen_backward, *given), setup_context=keep)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
            output = forward(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            return differentiate(ctx, backward, *given)

    def call(*inputs: Any) -> tuple[Tensor, ...]:
        if torch.compiler.is_compiling() or type(inputs[0]) is not Tensor:
            return seen(*inputs)
        return Eager.apply(*inputs)

    return call
