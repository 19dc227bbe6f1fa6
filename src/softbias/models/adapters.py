"""The attention of foreign models, read exactly or refused: timm's ViT, DeiT, BEiT and ConViT, and Hugging Face's ViT.

An adapter reads one attention module of another library through the interface of `softbias.attention.Attention`. The module
stays in its model and runs there as before. An adapter accepts a module by its exact class and by its parts: a part that it
does not know (a norm, a bias, an option of a later release) could change the map, so such a module has no adapter, and its
model raises NoAttentionMapError. Checked against timm 1.0.30 and transformers 5.22.

Shapes: B images, H heads, N tokens, P patches, C channels, D = C / H.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from softbias.attention import Attention, ConversionError, NoAttentionMapError
from softbias.attention.base import BiasRow, Mixture, by_head
from softbias.attention.gated import Gated, gate_rows
from softbias.attention.positional import Positional, bump_rows
from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.kernels.dispatch import dot_product_attention


class ForeignAttention(Attention):
    """What the adapters share: attention by content, softmax(Q Kᵀ / √D), from one layer for queries, keys and values.

    `source` is the module of the other library; only its adapter knows its attributes.
    """

    accepts: ClassVar[str]
    """The exact class of the modules that this adapter reads."""
    parts: ClassVar[frozenset[str]]
    """All submodules, parameters and buffers that such a module may have."""
    arguments: ClassVar[frozenset[str]] = frozenset()
    """Tensors beside the tokens with which such a module may be called: the adapter reads them elsewhere."""
    mechanism: ClassVar[str] = "full"
    """Its name on pages."""
    output_name: ClassVar[str] = "proj"
    """The submodule that takes A V, all heads side by side, as its input."""

    def __init__(self, source: Any, grid: Grid, model: Any) -> None:
        nn.Module.__init__(self)  # not Attention's, which makes projections of its own
        self.source, self.grid, self.reads = source, grid, "qkv"
        self.width, self.heads, self.scale = source.proj.out_features, source.num_heads, source.scale

    @classmethod
    def fits(cls, source: nn.Module) -> bool:
        own = {*source._modules, *source._parameters, *source._buffers}
        return qualified_name(source) == cls.accepts and own <= cls.parts

    def tokens_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
        """A call with a mask, say, is refused: its map is not that of the tokens alone."""
        given = {**{f"argument {index}": value for index, value in enumerate(args)}, **kwargs}
        tokens, *others = given.items()
        for name, value in others:
            if name not in self.arguments and (isinstance(value, Tensor) or (name == "is_causal" and value)):
                raise NoAttentionMapError(f"{self.accepts} was called with {name}, which softbias does not read")
        return super().tokens_of((tokens[1],), {})

    @property
    def output_layer(self) -> nn.Module:
        layer: nn.Module = self.source.get_submodule(self.output_name)
        return layer

    def check_input(self, x: Tensor) -> None:
        if x.shape[1] != len(self.grid):
            raise NoAttentionMapError(f"{self.accepts} has {x.shape[1]} tokens, but {self.grid} has {len(self.grid)}")

    def packed_qkv(self, x: Tensor) -> Tensor:
        self.check_input(x)
        packed: Tensor = self.source.qkv(x)
        return packed.reshape(*x.shape[:2], 3, self.heads, -1)

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        return self.scores(q, k).softmax(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dot_product_attention(q, k, v, scale=self.scale)

    def mixture(self) -> Mixture | None:
        return Mixture()

    def forward(self, x: Tensor) -> Tensor:
        raise NotImplementedError("an adapter reads attention, and the model runs it")

    def projections(self) -> dict[str, Tensor]:
        raise ConversionError(f"{self.accepts} does more than its projections say, so convert cannot replace it")

    def take_projections(self, given: dict[str, Tensor]) -> None:
        raise ConversionError(f"convert changes softbias's own attention and not {self.accepts}")


class TimmAttention(ForeignAttention):
    """A = softmax(norm(Q) norm(K)ᵀ / √D): timm's ViT and DeiT, where the norms are identities as a rule."""

    accepts = "timm.layers.attention.Attention"
    parts = frozenset({"qkv", "q_norm", "k_norm", "attn_drop", "norm", "gate", "proj", "proj_drop"})
    output_name = "norm"  # before the projection; an identity as a rule

    def split_qkv(self, packed: Tensor) -> tuple[Tensor, ...]:
        q, k, v = super().split_qkv(packed)
        return self.source.q_norm(q), self.source.k_norm(k), v

    def projections(self) -> dict[str, Tensor]:
        source = self.source
        others = [name for name in ("q_norm", "k_norm", "norm") if not isinstance(getattr(source, name), nn.Identity)]
        others += ["gate"] if source.gate is not None else []
        if others:
            raise ConversionError(f"convert takes plain attention, but this one has {', '.join(others)}, which ours has not")
        return named_projections(self.width, source.qkv, source.proj)


class TimmConvitAttention(ForeignAttention):
    """The full attention in timm's ConViT."""

    accepts = "timm.models.convit.MHSA"
    parts = frozenset({"qkv", "attn_drop", "proj", "proj_drop"})

    def projections(self) -> dict[str, Tensor]:
        return named_projections(self.width, self.source.qkv, self.source.proj)


class TimmGatedAttention(ForeignAttention):
    """The gated attention in timm's ConViT (GPSA); its rows are normalized once more, which changes nothing."""

    accepts = "timm.models.convit.GPSA"
    parts = frozenset({"qk", "v", "attn_drop", "proj", "pos_proj", "proj_drop", "gating_param"})
    mechanism, bias_name, bias_measures = "gated", Gated.bias_name, Gated.bias_measures

    def __init__(self, source: Any, grid: Grid, model: Any) -> None:
        super().__init__(source, grid, model)
        if grid.height != grid.width:
            raise NoAttentionMapError(f"timm's ConViT takes square grids, but this one is {grid.height} × {grid.width}")

    def packed_qkv(self, x: Tensor) -> Tensor:
        self.check_input(x)
        return torch.cat([self.source.qk(x), self.source.v(x)], -1).reshape(*x.shape[:2], 3, self.heads, -1)

    def mixture(self) -> Mixture:
        return Mixture(self.share(), self.bias_map())

    def share(self) -> Tensor:
        """g, the share of position.  # (H,)"""
        share: Tensor = self.source.gating_param.sigmoid()
        return share.flatten()

    def attention_map(self, x: Tensor) -> Tensor:
        g = self.share()[:, None, None]
        return (1 - g) * super().attention_map(x) + g * self.bias_map()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        content_out, position_out = super().attend(q, k, v), self.bias_map().to(v.dtype) @ v
        return torch.lerp(content_out, position_out, self.share()[:, None, None].to(v.dtype))

    def bias_map(self) -> Tensor:
        offsets = self.grid.offsets().to(self.source.pos_proj.weight)
        encoding = torch.cat([offsets.flip(-1), offsets.square().sum(-1, keepdim=True)], -1)  # (δ_column, δ_row, ‖δ‖²)
        scores: Tensor = self.source.pos_proj(encoding)  # (P, P, H)
        return scores.permute(2, 0, 1).softmax(-1)

    def bias_rows(self) -> list[BiasRow]:
        return by_head(gate_rows(self.share()) + bump_rows(self.source.pos_proj.weight))

    def projections(self) -> dict[str, Tensor]:
        raise ConversionError("convert cannot read timm's ConViT; load its weights into ours with softbias.load_weights first")


class TimmBeitAttention(ForeignAttention):
    """A = softmax(Q Kᵀ / √D + b(δ)): timm's BEiT, with a table of biases b per layer, one that all layers share, or both."""

    accepts = "timm.models.beit.Attention"
    parts = frozenset(
        {"qkv", "q_bias", "k_bias", "v_bias", "relative_position_bias_table", "relative_position_index"}
        | {"attn_drop", "proj", "proj_drop"}
    )
    arguments = frozenset({"shared_rel_pos_bias"})
    mechanism, bias_name = "relative position", Positional.bias_name

    def __init__(self, source: Any, grid: Grid, model: Any) -> None:
        super().__init__(source, grid, model)
        self.shared: Any = model.rel_pos_bias

    def packed_qkv(self, x: Tensor) -> Tensor:
        self.check_input(x)
        biases = [self.source.q_bias, self.source.k_bias, self.source.v_bias]
        packed = linear(x, self.source.qkv.weight, None if biases[0] is None else torch.cat(biases))
        return packed.reshape(*x.shape[:2], 3, self.heads, -1)

    def bias(self) -> Tensor | None:
        """b for every pair of tokens.  # (H, N, N)"""
        found = None
        for holder in (self.source, self.shared):
            table = getattr(holder, "relative_position_bias_table", None)
            if table is not None:
                bias: Tensor = table[holder.relative_position_index].permute(2, 0, 1)
                found = bias if found is None else found + bias
        return found

    def attention_map(self, x: Tensor) -> Tensor:
        q, k, _ = self.project(x)
        scores, bias = self.scores(q, k), self.bias()
        return (scores if bias is None else scores + bias).softmax(-1)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        bias = self.bias()
        return dot_product_attention(q, k, v, None if bias is None else bias.to(q.dtype), scale=self.scale)

    def mixture(self) -> Mixture | None:
        return None

    def bias_map(self) -> Tensor | None:
        bias = self.bias()
        return None if bias is None else self.grid.patches_only(bias).softmax(-1)


class HuggingFaceAttention(ForeignAttention):
    """The attention of Hugging Face's ViT."""

    accepts = "transformers.models.vit.modeling_vit.ViTAttention"
    parts = frozenset({"q_proj", "k_proj", "v_proj", "o_proj"})
    output_name = "o_proj"

    def __init__(self, source: Any, grid: Grid) -> None:
        nn.Module.__init__(self)
        self.source, self.grid, self.reads = source, grid, "qkv"
        self.width, self.heads, self.scale = source.o_proj.out_features, source.num_attention_heads, source.scaling

    def packed_qkv(self, x: Tensor) -> Tensor:
        self.check_input(x)
        parts = [self.source.q_proj(x), self.source.k_proj(x), self.source.v_proj(x)]
        return torch.cat(parts, -1).reshape(*x.shape[:2], 3, self.heads, -1)


class Replacement(nn.Module):
    """One of our mechanisms where timm's attention was; timm's blocks hand it a mask, too."""

    def __init__(self, mechanism: Attention, name: str) -> None:
        super().__init__()
        self.mechanism, self.name = mechanism, name

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        if attn_mask is not None or is_causal:
            raise SoftbiasError(f"{type(self.mechanism).__name__} attention takes no attention mask")
        mixed: Tensor = self.mechanism(x)
        return mixed


def named_projections(width: int, qkv: nn.Linear, proj: nn.Linear) -> dict[str, Tensor]:
    """As `Attention.projections` gives them."""
    if not (type(qkv) is type(proj) is nn.Linear) or (qkv.out_features, proj.in_features) != (3 * width, width):
        raise ConversionError(f"convert takes linear projections of {width} channels, but these are {qkv} and {proj}")
    given = {f"proj.{kind}": tensor.detach() for kind, tensor in proj.named_parameters()}
    for kind, tensor in qkv.named_parameters():
        given |= {f"{name}.{kind}": part for name, part in zip("qkv", tensor.detach().chunk(3), strict=True)}
    return given


def qualified_name(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"
