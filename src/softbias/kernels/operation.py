"""A kernel as an operation of PyTorch, for whoever calls it.

Called eagerly it is an `autograd.Function`; to torch.compile and to subclasses of Tensor (fake ones among them) it is a custom
operator. A custom operator would do for all, but its way through the dispatcher costs the host about as much as all else here
together, and a small model on a fast GPU waits for its host. For the same reason torch.compile does not keep the operator: it
puts the launches in its place, as it does with a `triton_op`, and starts the programs as it starts its own: see
`softbias.environment.DEFAULTS`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.functional_tensor import FunctionalTensorMode

from softbias import kernels
from softbias.kernels.launching import Asked, capture_launches, prepare

Run = Callable[..., Any]  # a tensor, or several


def operation(
    name: str,
    forward: Run,
    backward: Run,
    *,
    like_forward: Run,
    like_backward: Run,
    keep: Callable[[Any, tuple[Any, ...], Any], None],
    differentiate: Callable[..., tuple[Tensor | None, ...]],
) -> Run:
    """`forward(*inputs)` with gradients.

    like_forward, like_backward   empty results of the same kinds, shapes and strides
    keep                          keep(ctx, inputs, output): what `differentiate` will need
    differentiate                 differentiate(ctx, backward, *gradients of the outputs): the gradients of the inputs
    """
    prepared: set[tuple[Any, ...]] = set()
    seen = operator(name, forward, like_forward)
    seen_backward = operator(f"{name}_backward", backward, like_backward)
    seen.register_autograd(lambda ctx, *given: differentiate(ctx, seen_backward, *given), setup_context=keep)

    class Eager(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            first = inputs[0]
            if first.is_cuda and (kind := (first.shape, first.dtype, first.device)) not in prepared:
                prepared.add(kind)
                prepare(likely(inputs, forward, backward, keep, differentiate))
            output = forward(*inputs)
            keep(ctx, inputs, output)
            return output

        @staticmethod
        def backward(ctx: Any, *given: Tensor | None) -> tuple[Tensor | None, ...]:
            return differentiate(ctx, backward, *given)

    def call(*inputs: Any) -> Any:
        if torch.compiler.is_compiling() or type(inputs[0]) is not Tensor:
            return seen(*inputs)
        return Eager.apply(*inputs) if torch.is_grad_enabled() else forward(*inputs)

    return call


class Kept:
    """What autograd hands to `keep` and `differentiate`, as far as they use it."""

    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass


def likely(inputs: tuple[Any, ...], forward: Run, backward: Run, keep: Any, differentiate: Any) -> Asked:
    """What a step with these inputs will start, forward and backward, if gradients come laid out like the outputs."""
    ctx = Kept()
    with capture_launches() as asked:
        output = forward(*inputs)
        keep(ctx, inputs, output)
        outputs = output if isinstance(output, tuple) else (output,)
        differentiate(ctx, backward, *(torch.empty_like(each) for each in outputs))
    return asked


def operator(name: str, run: Run, like: Run) -> Any:
    """`run` as a custom operator that torch.compile sees through.

    What `torch.library.triton_op` does, but for importing the compiler, which takes seconds. Compiled graphs are cached by the
    names of their operators, so the name tells which kernels it means.
    """
    made = torch.library.custom_op(f"softbias::{name}_{version()}", run, mutates_args=())
    made.register_fake(like)
    if kernels.available() and not kernels.INTERPRETED:
        made.register_torch_dispatch(FunctionalTensorMode, lambda mode, op, types, args, kwargs: inside(mode, run, args))
    return made


def inside(mode: FunctionalTensorMode, run: Run, args: tuple[Any, ...]) -> Any:
    with mode:
        return run(*args)


@lru_cache
def version() -> str:
    """Short for the sources of the kernels."""
    sources = sorted((file.name, file.read_bytes()) for file in files(kernels.__name__).iterdir() if file.name.endswith(".py"))
    return hashlib.sha256(b"".join(source for _, source in sources)).hexdigest()[:8]
