"""What every attention mechanism shares: its projections, and all that it says about itself.

Probes, explanations, regularizers, `resize` and `convert` know a mechanism by these methods alone, and never by its type. So a
mechanism from outside the package has them all, and so has the attention of a foreign model (`softbias.models.adapters`).

    attention_map(x)            how much each token takes from each other one
    attend(q, k, v), mixture(), score_mask()          forms of the map that spare others from building it
    bias_map(), bias_rows()     what it has learned about positions, as a map and as numbers
    resize_state(grid), options_on(grid, options)     the same for another grid
    projections(), take_projections(…), options_to_replace(…)      weights that move between mechanisms
    describe(name, options)     its name in tables and on pages

Shapes: B images, H heads, N tokens, P patches, C channels, D = C / H.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, NotRequired, TypedDict

import torch
from torch import Tensor, nn

from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.grid import Grid


class NoAttentionMapError(NotMeasurableError):
    """Asked for the attention map of something that has none."""


class ConversionError(SoftbiasError):
    """Asked for the projections of an attention that does more than they say."""


class BiasRow(TypedDict):
    """One number that a head has learned; with `row` and `column` it belongs to one patch."""

    measure: str
    unit: str
    head: int
    value: float
    row: NotRequired[int]
    column: NotRequired[int]


class Mixture(NamedTuple):
    """A = (1 − g) softmax(Q Kᵀ / √D) + g P between patches, with g and P the same for every image; g = 0 if both are None."""

    share: Tensor | None = None  # g (H,)
    positional: Tensor | None = None  # P (H, P, P)


class Attention(nn.Module):
    """A mechanism defines `attention_map`; it may replace `forward` by a faster path to the same result.

        forward(x) = merge(attention_map(x) · values(x))

    `softbias.attention.contract` proves that equality for any mechanism, in float64, with gradients.

    Every mechanism is built as `Mechanism(width, heads, grid, *, qkv_bias=…, own options)` and keeps its projections in
    `qkv` (queries, keys and values side by side, C -> 3C) and `proj` (C -> C), so that weights move between mechanisms.
    One that needs values alone says `reads="v"`, and its `qkv` is C -> C.
    """

    formula: ClassVar[str] = ""
    """The map in one line, for the table in docs/mechanisms.md."""

    has_map: ClassVar[bool] = True
    """False for mixers that are not attention; their `attention_map` raises NoAttentionMapError."""

    rows_sum_to_one: bool = True
    """Whether each row of the map is a probability distribution; if not, the map may have negative entries."""

    bias_name: ClassVar[str] = ""
    """What `bias_map` shows, in words for a page: "learned mask"."""

    bias_measures: ClassVar[tuple[str, ...]] = ()
    """The measures of `bias_rows`, so that no rows are computed in vain."""

    def __init__(self, width: int, heads: int, grid: Grid, *, qkv_bias: bool = True, reads: str = "qkv") -> None:
        super().__init__()
        if heads < 1 or width < 1 or width % heads:
            raise SoftbiasError(f"width must be a multiple of heads, but width={width} and heads={heads}")
        if not isinstance(grid, Grid):
            raise SoftbiasError(f"grid must be a softbias.grid.Grid, but got {grid!r}")
        self.width, self.heads, self.grid = width, heads, grid
        self.scale: float = (width // heads) ** -0.5
        self.reads = reads
        self.qkv = nn.Linear(width, len(reads) * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)

    def attention_map(self, x: Tensor) -> Tensor:
        """How much token i takes from token j, for every head.  # (B, N, C) -> (B, H, N, N)"""
        raise NotImplementedError

    attend: Callable[..., Tensor] | None = None
    """`attend(*project(x))`: the map applied to the values without building it; `forward` is then `merge(attend(*project(x)))`.
    It is linear in the values, which may be wider than the queries and keys; those may be padded with zeros. So a regularizer
    can have the map applied to columns of its own, beside the values.  # 3 × (B, H, N, D) -> (B, H, N, D)
    """

    has_fused: ClassVar[bool] = False
    """Whether the class itself defines `fused`."""

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass may compute something else, so it does not inherit `fused`; it may define its own."""
        super().__init_subclass__(**options)
        cls.has_fused = "fused" in vars(cls)

    def fused(self, qkv: Tensor) -> Tensor | None:
        """The map applied to the values, by a fused program, where one serves this call.  # (B, N, 3, H, D) -> (B, N, H, D)"""
        return None

    def forward(self, x: Tensor) -> Tensor:
        if self.attend is None:
            return self.by_definition(x)
        if not self.has_fused:
            return self.merge(self.attend(*self.project(x)))
        qkv = self.packed_qkv(x)
        mixed = self.fused(qkv)
        if mixed is None:
            return self.merge(self.attend(*self.split_qkv(qkv)))
        out: Tensor = self.proj(mixed.flatten(2))
        return out

    def by_definition(self, x: Tensor) -> Tensor:
        """What `forward` must equal; builds the whole map."""
        return self.merge(self.attention_map(x) @ self.values(x))

    def values(self, x: Tensor) -> Tensor:
        """# (B, N, C) -> (B, H, N, D)"""
        return self.project(x)[-1]

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        """What the mechanism reads, queries, keys and values as a rule.  # (B, N, C) -> 3 × (B, H, N, D)

        They are views of one product, split along the axis on which they lie in memory, so that backward writes their gradients
        once, side by side; `permute(2, 0, 3, 1, 4).unbind(0)` would write them one after the other, and copy them.
        """
        return self.split_qkv(self.packed_qkv(x))

    def packed_qkv(self, x: Tensor) -> Tensor:
        """The same as one tensor, as kernels take it.  # (B, N, C) -> (B, N, 3, H, D)"""
        self.check_input(x)
        packed: Tensor = self.qkv(x).unflatten(-1, (len(self.reads), self.heads, -1))
        return packed

    def split_qkv(self, packed: Tensor) -> tuple[Tensor, ...]:
        """# (B, N, 3, H, D) -> 3 × (B, H, N, D)"""
        return tuple(part.transpose(1, 2) for part in packed.unbind(2))

    def split_heads(self, x: Tensor) -> Tensor:
        """# (B, N, C) -> (B, H, N, D)"""
        return x.reshape(*x.shape[:-1], self.heads, -1).transpose(1, 2)

    def merge(self, heads: Tensor) -> Tensor:
        """# (B, H, N, D) -> (B, N, C)"""
        out: Tensor = self.proj(heads.transpose(1, 2).flatten(2))
        return out

    def tokens_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """The tokens among the arguments of a call, as hooks see them."""
        tokens: Tensor = args[0] if args else next(iter(kwargs.values()))
        return tokens

    @property
    def output_layer(self) -> nn.Module:
        """The layer that takes A V, all heads side by side, as its input."""
        return self.proj

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Q Kᵀ / √D.  # (B, H, N, N)"""
        return (q * self.scale) @ k.mT

    def check_input(self, x: Tensor) -> None:
        if x.ndim != 3 or x.shape[1] != len(self.grid) or x.shape[2] != self.width:
            raise SoftbiasError(
                f"{type(self).__name__} for {self.grid} takes tokens of shape (batch, {len(self.grid)}, {self.width}), "
                f"but got {tuple(x.shape)}"
            )

    # What it says about itself

    def bias_map(self) -> Tensor | None:
        """What the mechanism has learned about positions, the same for every image; None if nothing.  # (H, P, P)"""
        return None

    def bias_rows(self) -> list[BiasRow]:
        """The same as numbers per head: gates, centers, masks."""
        return []

    def mixture(self) -> Mixture | None:
        """The shares of content and of position, for a mechanism whose map is such a mixture."""
        return None

    def score_mask(self) -> Tensor | None:
        """M, for a mechanism that multiplies its scores by it: A V = apply_scores(Q Kᵀ / √D ⊙ M, V).  # (H, N, N)"""
        return None

    def apply_scores(self, scores: Tensor, v: Tensor) -> Tensor:
        """Scores, normalized as the mechanism does it, applied to the values.  # (B, H, N, N), (B, H, N, D) -> (B, H, N, D)"""
        return scores.softmax(-1) @ v

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        """The mechanism, registered as `name`, with these options, in a word or two."""
        return name

    # Other grids, other mechanisms

    @classmethod
    def options_on(cls, grid: Grid, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options that stand for the same on another grid."""
        return dict(options)

    def resize_state(self, grid: Grid) -> dict[str, Tensor]:
        """The state dict of the same mechanism on another grid; what depends on offsets alone stays as it is."""
        return self.state_dict()

    def is_plain(self) -> bool:
        """Whether its map is softmax(Q Kᵀ / √D) and nothing else."""
        mixture = self.mixture()
        return mixture is not None and mixture.share is None

    @classmethod
    def options_to_replace(cls, source: Attention, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with which this mechanism takes over the projections of another one, computing the same where it can."""
        given = source.projections()
        return {"qkv_bias": "q.bias" in given or "v.bias" in given, **options}

    def init_buffers(self) -> None:
        """Fill the non-persistent buffers, which depend on the grid alone (again after `to_empty`)."""

    def init_weights(self) -> None:
        """Put back what the mechanism starts from, after a model has initialized all linear layers its own way."""

    def projections(self) -> dict[str, Tensor]:
        """The weights that another mechanism can take over, by name."""
        found = {}
        for kind, tensor in self.qkv.named_parameters():
            for name, part in zip(self.reads, tensor.detach().chunk(len(self.reads)), strict=True):
                found[f"{name}.{kind}"] = part
        return found | {f"proj.{kind}": tensor.detach() for kind, tensor in self.proj.named_parameters()}

    @torch.no_grad()
    def take_projections(self, given: dict[str, Tensor]) -> None:
        """Copy weights as `projections` of another mechanism returned them."""
        for kind, tensor in self.qkv.named_parameters():
            for name, part in zip(self.reads, tensor.chunk(len(self.reads)), strict=True):
                copy_projection(part, f"{name}.{kind}", given)
        for kind, tensor in self.proj.named_parameters():
            copy_projection(tensor, f"proj.{kind}", given)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, grid={self.grid.height}×{self.grid.width}+{self.grid.prefix}"


def by_head(rows: list[BiasRow]) -> list[BiasRow]:
    return sorted(rows, key=lambda row: row["head"])


def copy_projection(target: Tensor, name: str, given: dict[str, Tensor]) -> None:
    if name in given:
        target.copy_(given[name])
    elif name.endswith(".bias"):
        target.zero_()  # a projection without bias is one whose bias is zero
    else:
        raise SoftbiasError(f"there is no weight {name!r} to take over, only {', '.join(sorted(given))}")


def refuse_prefix(grid: Grid, mechanism: str, advice: str) -> None:
    if grid.prefix:
        raise SoftbiasError(f"{mechanism} takes no prefix tokens, but prefix={grid.prefix}; {advice}")
