"""Positional self-attention with the quadratic encoding (Cordonnier et al., 2020), the background of ConViT.

    A = softmax(Q Kᵀ / √D + v · r(δ))        content=True
    A = softmax(v · r(δ))                    content=False: position alone, the same map for every image
    r(δ) = (δ_column, δ_row, ‖δ‖²),  v = α (2 Δ_column, 2 Δ_row, −1)   so that   v · r(δ) = −α ‖δ − Δ‖² + constant

Each head is a Gaussian bump at the offset Δ from the query, narrower the larger α. K² such heads on the offsets of a
K × K kernel, with suitable value and output weights, are a convolution: `tests/attention/test_theorems.py` builds it.

The score is a sum of a term in δ_row and a term in δ_column, so on a rectangular grid its softmax is the product of a
softmax over rows and a softmax over columns: no (N, N, 3) encoding is ever stored, and the exponentials are few.

With content, a prefix token (which has no position) takes part by content: the positional term is zero in its row and column.
Without content a prefix token would see nothing, so it is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.attention.base import Attention, BiasRow, refuse_prefix
from softbias.bounds import Centers, Finite
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.dispatch import dot_product_attention

UNITS = {"strength": "α", "center_row": "patches", "center_column": "patches", "width": "patches"}


class PositionBias(nn.Module):
    """v · r(δ) for every head: learned weights on (δ_column, δ_row, ‖δ‖²).

    The optional bias is one constant per head, which every softmax over positions ignores; ConViT's checkpoints carry it.
    """

    rows: Tensor
    columns: Tensor

    def __init__(
        self, heads: int, grid: Grid, strength: float, centers: str | Sequence[Sequence[float]], *, bias: bool = False
    ) -> None:
        super().__init__()
        self.grid = grid
        self.weight = nn.Parameter(position_weights(resolve_centers(heads, centers), strength))
        self.bias = nn.Parameter(torch.zeros(heads)) if bias else None
        self.register_buffer("rows", torch.empty(grid.height, grid.height), persistent=False)
        self.register_buffer("columns", torch.empty(grid.width, grid.width), persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        rows, columns = self.grid.axis_offsets()
        self.rows.copy_(rows)
        self.columns.copy_(columns)

    def axis_scores(self) -> tuple[Tensor, Tensor]:
        """The two terms of the score.  # (H, height, height), (H, width, width)"""
        across, down, square = self.weight[:, :, None, None].unbind(1)
        rows = down * self.rows + square * self.rows.square()
        columns = across * self.columns + square * self.columns.square()
        return (rows if self.bias is None else rows + self.bias[:, None, None]), columns

    def axis_maps(self) -> tuple[Tensor, Tensor]:
        """The two factors of the map.  # (H, height, height), (H, width, width)"""
        rows, columns = self.axis_scores()
        return rows.softmax(-1), columns.softmax(-1)

    def scores(self) -> Tensor:
        """# (H, P, P)"""
        rows, columns = self.axis_scores()
        return (rows[:, :, None, :, None] + columns[:, None, :, None, :]).flatten(3, 4).flatten(1, 2)

    def map(self) -> Tensor:
        """softmax(v · r(δ)), straight from the definition.  # (H, P, P)"""
        return self.scores().softmax(-1)

    def rows_of_heads(self) -> list[BiasRow]:
        """Strength α, center Δ and width of every head's bump: α = −v₃, Δ = v₁₂ / 2α, width = 1 / √(2α).

        The width is the standard deviation of the Gaussian, in patches. Where α ≤ 0 there is no bump, because the head prefers
        what is far away; center and width are NaN there.
        """
        return bump_rows(self.weight)

    def forward(self, v: Tensor) -> Tensor:
        """`map()` applied to values, from its factors, which are computed once for all images.  # (B, H, P, D) -> (B, H, P, D)

        A CPU applies the factors one after the other: a seventh of the arithmetic on 14 × 14, and 6 % of ConViT-Ti's step. On a
        GPU such small products are slow (their gradient is one sum over the whole batch), so it applies the whole map: once per
        head, to the values of all images side by side. (`both @ v` would first write, and keep, a copy of it for every image.)
        """
        rows, columns = (factor.to(v.dtype) for factor in self.axis_maps())
        if v.is_cuda:
            both = rows[:, :, None, :, None] * columns[:, None, :, None, :]
            return torch.einsum("hij,bhjd->bhid", both.flatten(3, 4).flatten(1, 2), v)
        v = v.unflatten(2, (self.grid.height, self.grid.width))
        v = torch.einsum("hcz,bhrzd->bhrcd", columns, v)
        return torch.einsum("hrz,bhzcd->bhrcd", rows, v).flatten(2, 3)


def bump_rows(weight: Tensor) -> list[BiasRow]:
    """What `PositionBias.rows_of_heads` returns, for weights v of any origin.  # (H, 3)"""
    found: list[BiasRow] = []
    for head, (across, down, square) in enumerate(weight.detach().tolist()):
        strength = -square
        width = 1 / math.sqrt(2 * strength) if strength > 0 else math.nan
        center_row, center_column = (side / (2 * strength) if strength > 0 else math.nan for side in (down, across))
        values = {"strength": strength, "center_row": center_row, "center_column": center_column, "width": width}
        found += [{"measure": name, "unit": UNITS[name], "head": head, "value": value} for name, value in values.items()]
    return found


def kernel_centers(heads: int, *, rectangular: bool = False) -> Tensor:
    """One center Δ = (row, column) per head, on the taps of a kernel around the query.  # (H, 2)

    A square number of heads tiles a √H × √H kernel. Other numbers are refused, because leaving some heads without a position
    (as the original code does, silently) is never what one wants; `rectangular=True` tiles the nearest rectangle instead.
    Head h1 + k·h2 sits at row h1 and column h2, as in the original, so that weights can be exchanged.
    """
    rows = max(side for side in range(1, math.isqrt(heads) + 1) if heads % side == 0)
    columns = heads // rows
    if rows != columns and not rectangular:
        raise SoftbiasError(
            f"heads must be a square number (1, 4, 9, 16, …) so that they tile a kernel, but heads={heads}; "
            f'ask for centers="rectangular" to lay them out as {rows} × {columns}'
        )
    across, down = torch.meshgrid(torch.arange(columns), torch.arange(rows), indexing="ij")
    middle = torch.tensor([(rows - 1) / 2, (columns - 1) / 2])
    return torch.stack([down.flatten(), across.flatten()], dim=-1) - middle


def position_weights(centers: Tensor, strength: float) -> Tensor:
    """v for bumps of the given strength α at the given centers Δ.  # (H, 2) -> (H, 3)"""
    rows, columns = centers.to(torch.get_default_dtype()).unbind(-1)
    return strength * torch.stack([2 * columns, 2 * rows, -torch.ones_like(rows)], dim=-1)


def resolve_centers(heads: int, centers: str | Sequence[Sequence[float]]) -> Tensor:
    if isinstance(centers, str):
        if centers not in ("square", "rectangular"):
            raise SoftbiasError(f'centers must be "square", "rectangular" or (row, column) pairs, but centers={centers!r}')
        return kernel_centers(heads, rectangular=centers == "rectangular")
    given = torch.as_tensor(centers, dtype=torch.get_default_dtype())
    if given.shape != (heads, 2):
        raise SoftbiasError(f"centers must be one (row, column) per head, {heads} pairs, but got shape {tuple(given.shape)}")
    return given


class Positional(Attention):
    formula: ClassVar[str] = "softmax(QKᵀ/√D + v·r(δ)); `content=False`: softmax(v·r(δ))"
    bias_name: ClassVar[str] = "positional map"
    bias_measures: ClassVar[tuple[str, ...]] = tuple(UNITS)

    def __init__(
        self,
        width: int,
        heads: int,
        grid: Grid,
        *,
        content: bool = True,
        strength: Finite = 1.0,
        centers: Centers = "square",
        qkv_bias: bool = True,
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias, reads="qkv" if content else "v")
        if not content:
            refuse_prefix(grid, "positional attention without content", "let them join at a later block")
        self.content = content
        self.position = PositionBias(heads, grid, strength, centers)

    def bias_map(self) -> Tensor:
        return self.position.map()

    def bias_rows(self) -> list[BiasRow]:
        return self.position.rows_of_heads()

    def position_scores(self) -> Tensor:
        """v · r(δ), zero where a prefix token takes part.  # (H, N, N)"""
        return pad(self.position.scores(), (self.grid.prefix, 0, self.grid.prefix, 0))

    def attention_map(self, x: Tensor) -> Tensor:
        if not self.content:
            self.check_input(x)
            return self.position.map().to(x.dtype).expand(x.shape[0], -1, -1, -1)
        q, k, _ = self.project(x)
        return (self.scores(q, k) + self.position_scores()).softmax(-1)

    def attend(self, *projected: Tensor) -> Tensor:
        if not self.content:
            position_out: Tensor = self.position(projected[0])
            return position_out
        q, k, v = projected
        return dot_product_attention(q, k, v, self.position_scores().to(q.dtype), scale=self.scale)
