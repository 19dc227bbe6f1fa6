"""All that we use of PyTorch beside its public interface. Checked with torch 2.11 and 2.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

TRACED = (FakeTensor, FunctionalTensor)
"""The types of tensors whose operations are only written into a graph."""

F = TypeVar("F", bound=Callable[..., Any])


def constant_when_compiled(function: F) -> F:
    """torch.compile calls the function once and takes its result for a constant.

    This is `torch.compiler.assume_constant_result` without importing the compiler, which takes seconds.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@constant_when_compiled
def exporting() -> bool:
    """Whether torch.export runs. As a constant, because in graphs of torch 2.11 `is_exporting` is true under torch.compile,
    too."""
    return torch.compiler.is_exporting()


def custom_operator(name: str, run: Callable[..., Any], like: Callable[..., Any], *, transparent: bool) -> Any:
    """`run` as a custom operator, whose results look like those of `like`. torch.compile replaces a transparent one by the
    launches in it.

    This is `torch.library.triton_op` without importing the compiler, which takes seconds.
    """
    operator = torch.library.custom_op(name, run, mutates_args=())
    operator.register_fake(like)

    def traced(mode: FunctionalTensorMode, op: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        with mode:
            return run(*args)

    if transparent:
        operator.register_torch_dispatch(FunctionalTensorMode, traced)
    return operator


def cpu_has_bf16() -> bool:
    """Whether the CPU multiplies matrices in bf16 by instructions of its own (AVX-512 BF16, AMX). Emulated, it is slow.

    Checked with torch 2.15 alone.
    """
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def memory_efficient_attention(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """PyTorch's memory-efficient kernel by its own name. `sdpa_kernel` chooses the same kernel, but AOTAutograd does not cache
    a graph that contains it, so every process would compile that graph anew."""
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True, scale=scale)[0]
    return out
