"""Window attention: full attention among the patches of a neighborhood (Ramachandran et al., 2019; Liu et al., 2021).

    A = softmax over the keys inside the window of the query of Q Kᵀ / √D, zero elsewhere

    mode="block"     the grid is cut into w × w blocks; a patch sees its own block
    mode="shifted"   the same, with the cuts moved by w // 2 in both directions
    mode="sliding"   a patch sees the w × w patches around it, fewer at the borders; w is odd

Locality is hard here: a window never looks outside. Blocks at the far borders are smaller where w does not divide the grid.
A window at least as wide as the image (2 · side − 1 when sliding) is full attention.

Time and memory are O(N w²): queries are gathered into tiles and each tile meets only the keys it can see, so no N × N mask
exists. Prefix tokens see everything and are seen by everything, at O(N) each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from softbias.attention.base import Attention
from softbias.bounds import ShortText, Side
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.dispatch import dot_product_attention

MODES = ("block", "shifted", "sliding")


@dataclass(frozen=True)
class Tiling:
    """How one side of the grid is cut: `before` + side + `after` patches make `tiles` tiles of `tile` queries.

    A tile meets the keys of its own patches and of `halo` more at each end, `reach` = tile + 2 halo in all.
    """

    side: int
    window: int
    tile: int
    before: int = 0
    halo: int = 0
    sliding: bool = False

    @staticmethod
    def of(side: int, window: int, mode: str) -> Tiling:
        if mode == "sliding":  # tiles of at least 4, so that small windows still make matrices worth multiplying
            return Tiling(side, window, tile=min(side, max(window, 4)), halo=min(window // 2, side - 1), sliding=True)
        shift = window // 2 if mode == "shifted" and side > window else 0
        return Tiling(side, window, tile=min(side, window), before=window - shift if shift else 0)

    @property
    def tiles(self) -> int:
        return -(-(self.before + self.side) // self.tile)

    @property
    def after(self) -> int:
        return self.tiles * self.tile - self.before - self.side

    @property
    def reach(self) -> int:
        return self.tile + 2 * self.halo

    @property
    def exact(self) -> bool:
        """Whether every tile is full and sees its own patches alone, so that no mask is needed."""
        return not (self.before or self.after or self.sliding)

    def visible(self) -> Tensor:
        """Whether a tile's query may see a key of its reach; padding is never seen.  # (tiles, tile, reach)"""
        start = torch.arange(self.tiles)[:, None, None] * self.tile - self.before
        query = start + torch.arange(self.tile)[:, None]
        key = start + torch.arange(self.reach) - self.halo
        inside = (key >= 0) & (key < self.side)
        padding = (query < 0) | (query >= self.side)  # sees every key: a softmax over nothing would be NaN
        near = (key - query).abs() <= self.window // 2 if self.sliding else torch.ones_like(inside)
        return inside & (near | padding)


class Window(Attention):
    formula: ClassVar[str] = 'softmax inside a window: `mode="block"`, `"shifted"`, `"sliding"`'

    tile_mask: Tensor | None

    def __init__(
        self, width: int, heads: int, grid: Grid, *, window: Side = 7, mode: ShortText = "block", qkv_bias: bool = True
    ) -> None:
        super().__init__(width, heads, grid, qkv_bias=qkv_bias)
        if mode not in MODES:
            raise SoftbiasError(f"mode must be one of {', '.join(MODES)}, but mode={mode!r}")
        if window < 1:
            raise SoftbiasError(f"window must be at least 1, but window={window}")
        if mode == "sliding" and window % 2 == 0:
            raise SoftbiasError(f"a sliding window has the query in its middle, so window must be odd, but window={window}")
        self.window, self.mode = window, mode
        self.rows = Tiling.of(grid.height, window, mode)
        self.columns = Tiling.of(grid.width, window, mode)
        mask = None
        if not (self.rows.exact and self.columns.exact):
            tiles = self.rows.tiles * self.columns.tiles
            queries, keys = self.rows.tile * self.columns.tile, self.rows.reach * self.columns.reach
            mask = torch.empty(tiles, queries, grid.prefix + keys, dtype=torch.bool)
        self.register_buffer("tile_mask", mask, persistent=False)
        self.init_buffers()

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        return f"{options.get('mode', 'block')}-{name}"

    def init_buffers(self) -> None:
        if self.tile_mask is not None:
            rows, columns = self.rows.visible(), self.columns.visible()
            seen = rows[:, None, :, None, :, None] & columns[None, :, None, :, None, :]
            seen = seen.flatten(4, 5).flatten(2, 3).flatten(0, 1)  # (T, tile², reach²)
            self.tile_mask.copy_(pad(seen, (self.grid.prefix, 0), value=True))

    def allowed(self) -> Tensor:
        """Whether the query i may see the key j, straight from the definition.  # (N, N)"""
        if self.mode == "sliding":
            patches = self.grid.offsets().abs().amax(-1) <= self.window // 2
        else:
            cut = torch.tensor([self.grid.height, self.grid.width]) > self.window
            shift = cut * (self.window // 2) if self.mode == "shifted" else 0 * cut
            block = (self.grid.positions() - shift).div(self.window, rounding_mode="floor")
            patches = (block[None, :] == block[:, None]).all(-1)
        return pad(patches, (self.grid.prefix, 0, self.grid.prefix, 0), value=True)

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        outside = ~self.allowed().to(x.device)
        return self.scores(q, k).masked_fill(outside, float("-inf")).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        first = self.grid.prefix
        tiles = self.query_tiles(q[:, :, first:]), self.key_tiles(k), self.key_tiles(v)
        seen = dot_product_attention(*tiles, self.tile_mask, scale=self.scale)
        patches = self.untile(seen)
        if not first:
            return self.merge(patches)
        return self.merge(torch.cat([dot_product_attention(q[:, :, :first], k, v, scale=self.scale), patches], dim=2))

    # Heads are folded into the batch, and tiles become the second dimension, (B·H, T, …): fused kernels want four dimensions,
    # and one mask serves all images and heads.

    def query_tiles(self, q: Tensor) -> Tensor:
        """# (B, H, P, D) -> (B·H, T, tile², D)"""
        q = self.padded(q, halo=False).unflatten(2, (self.columns.tiles, -1)).unflatten(1, (self.rows.tiles, -1))
        return q.transpose(2, 3).flatten(3, 4).flatten(1, 2)

    def key_tiles(self, k: Tensor) -> Tensor:
        """# (B, H, N, D) -> (B·H, T, prefix + reach², D)"""
        first = self.grid.prefix
        tiles = self.padded(k[:, :, first:], halo=True)
        tiles = tiles.unfold(1, self.rows.reach, self.rows.tile).unfold(2, self.columns.reach, self.columns.tile)
        tiles = tiles.permute(0, 1, 2, 4, 5, 3).flatten(3, 4).flatten(1, 2)
        if not first:
            return tiles
        prefix = k[:, :, :first].flatten(0, 1)[:, None].expand(-1, tiles.shape[1], -1, -1)
        return torch.cat([prefix, tiles], dim=2)

    def untile(self, tiles: Tensor) -> Tensor:
        """The inverse of `query_tiles`.  # (B·H, T, tile², D) -> (B, H, P, D)"""
        rows, columns = self.rows, self.columns
        x = tiles.unflatten(2, (rows.tile, columns.tile)).unflatten(1, (rows.tiles, columns.tiles))
        x = x.transpose(2, 3).flatten(3, 4).flatten(1, 2)  # (B·H, padded height, padded width, D)
        x = x[:, rows.before : rows.before + rows.side, columns.before : columns.before + columns.side]
        patches: Tensor = x.flatten(1, 2).unflatten(0, (-1, self.heads))
        return patches

    def padded(self, x: Tensor, *, halo: bool) -> Tensor:
        """# (B, H, P, D) -> (B·H, padded height, padded width, D)"""
        x = x.flatten(0, 1).unflatten(1, (self.grid.height, self.grid.width))
        around = [0, 0]
        for axis in (self.columns, self.rows):
            more = axis.halo if halo else 0
            around += [axis.before + more, axis.after + more]
        return pad(x, around) if any(around) else x
