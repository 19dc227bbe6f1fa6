"""A convolution as a sum over its taps: for each offset the matrix from the pixels of a patch to the outputs, and its factors.

    conv(x) = Σ_Δ M_Δ · moved(x, Δ) + b,    M_Δ = W_Δ V_Δ

With a stride of s the offsets count patches of s × s pixels, and M_Δ reads all pixels of a patch.
`softbias.models.convolution_heads` makes a head of every tap.

Shapes: C channels, C' outputs, H taps, D the largest rank of their matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

ZERO = 1e-12  # singular values below this share of the largest count as zero
MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate", "circular": "circular"}  # torch's names for `pad`


def dense_kernel(conv: nn.Conv2d) -> Tensor:
    """The kernel with zeros between groups.  # (C', C / groups, …) -> (C', C, …)"""
    weight = conv.weight.detach()
    if conv.groups == 1:
        return weight
    kernel = weight.new_zeros(conv.out_channels, conv.in_channels, *weight.shape[2:])
    outputs, inputs = conv.out_channels // conv.groups, conv.in_channels // conv.groups
    for group in range(conv.groups):
        mine = slice(group * outputs, (group + 1) * outputs)
        kernel[mine, group * inputs : (group + 1) * inputs] = weight[mine]
    return kernel


def pads_of(conv: nn.Conv2d) -> tuple[int, int, int, int]:
    """Pixels at the left, right, top and bottom; "same" has the odd one at the end."""
    if conv.padding == "same":
        down, across = (dilation * (side - 1) for dilation, side in zip(conv.dilation, conv.kernel_size, strict=True))
        return across // 2, across - across // 2, down // 2, down - down // 2
    if isinstance(conv.padding, str):  # "valid"
        return 0, 0, 0, 0
    down, across = conv.padding
    return across, across, down, down


def tap_maps(kernel: Tensor, stride: int, dilation: tuple[int, int]) -> dict[tuple[int, int], Tensor]:
    """By offset in patches from the first one: the matrix from the pixels of a patch to the outputs.  # (C', s² C) each

    The pixels of a patch are ordered as `pixel_unshuffle` orders them. Offsets whose matrix is zero are left out.
    """
    outputs, inputs, rows, columns = kernel.shape
    found: dict[tuple[int, int], Tensor] = {}
    for row in range(rows):
        for column in range(columns):
            (down, inner_row), (across, inner_column) = divmod(row * dilation[0], stride), divmod(column * dilation[1], stride)
            patch = found.setdefault((down, across), kernel.new_zeros(outputs, inputs, stride, stride))
            patch[:, :, inner_row, inner_column] += kernel[:, :, row, column]
    maps = {offset: patch.flatten(1) for offset, patch in found.items() if bool(patch.any())}
    return maps or {(0, 0): kernel.new_zeros(outputs, inputs * stride * stride)}


def factors(maps: Tensor) -> tuple[Tensor, Tensor]:
    """V_h and W_h with W_h V_h = M_h, as narrow as the ranks allow.  # (H, C', C) -> (H, D, C), (H, C', D)

    >>> values, outputs = factors(torch.ones(2, 5, 3))
    >>> values.shape, outputs.shape, torch.allclose(outputs @ values, torch.ones(2, 5, 3))
    (torch.Size([2, 1, 3]), torch.Size([2, 5, 1]), True)
    """
    left, sizes, right = torch.linalg.svd(maps.double(), full_matrices=False)
    rank = max(1, int((sizes > ZERO * sizes.amax()).sum(1).amax()))
    if rank == maps.shape[2]:
        return torch.eye(rank, dtype=maps.dtype, device=maps.device).expand(len(maps), -1, -1), maps
    root = sizes[:, :rank].sqrt()
    return (root[:, :, None] * right[:, :rank]).to(maps.dtype), (left[:, :, :rank] * root[:, None]).to(maps.dtype)
