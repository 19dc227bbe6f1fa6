"""One VisionTransformer for every transformer of this library; models differ in their specs.

    images -> stem + positions -> blocks (a class token joins before block k) -> norm -> pool -> head -> logits

It follows timm's conventions (`forward_features`, `forward_head`, `reset_classifier`, …) and parameter names, so that
checkpoints and tools of that ecosystem fit.

Shapes: B images, N tokens, C channels, K classes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from softbias.attention import Attention, find_attention
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.initial import INITIAL, init_normal
from softbias.models.layers import DropPath, LayerScale, SequencePool, build_feed_forward, fixed_positions
from softbias.models.spec import Layer, ModelSpec
from softbias.models.stems import STEMS
from softbias.schema import check_options

GLOBAL_POOLS = {"token": "token", "average": "avg", "flatten": "flatten", "sequence": "sequence"}  # our names and timm's


def build_attention(layer: Layer, width: int, heads: int, grid: Grid, **defaults: Any) -> Attention:
    """A mechanism by name. An unknown option is an error; the options of the layer override `defaults`."""
    mechanism = find_attention(layer.attention)
    known = list(mechanism.__init__.__kwdefaults__ or {})
    for name in layer.options:
        if name not in known:
            raise unknown_name(f"option of {layer.attention} attention", name, known)
    check_options(mechanism, layer.options)
    return mechanism(width, heads, grid, **{**defaults, **layer.options})


class Block(nn.Module):
    """Attention and feed-forward, each on a residual branch.

        x + f(norm(x))            pre_norm=True
        norm(x + f(x))            pre_norm=False

    With residual="normalized" a pre-norm branch is added to norm(x) and not to x, as IBiT's release does.
    """

    positions: Tensor | None

    def __init__(self, spec: ModelSpec, index: int) -> None:
        super().__init__()
        grid = spec.grid(index)
        self.pre_norm, self.normalized = spec.pre_norm, spec.residual == "normalized"
        rate = spec.drop_path if spec.drop_path_rule == "constant" else spec.drop_path * index / max(1, spec.depth - 1)
        self.norm1 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.attn = build_attention(spec.layers[index], spec.width, spec.heads, grid, qkv_bias=spec.qkv_bias)
        self.drop_path1 = DropPath(rate) if rate else nn.Identity()
        self.norm2 = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.mlp = build_feed_forward(spec, grid)
        self.drop_path2 = DropPath(rate) if rate and spec.drop_path_feed_forward else nn.Identity()
        self.dropout = nn.Dropout(spec.dropout) if spec.dropout and "branch" in spec.dropout_in else nn.Identity()
        self.ls1, self.ls2 = (LayerScale(spec.width, spec.layer_scale) if spec.layer_scale else nn.Identity() for _ in range(2))
        repeated = spec.positions != "none" and spec.positions_at == "attention"
        self.position_kind, self.position_scale = spec.positions, spec.position_scale
        self.register_buffer("positions", torch.empty(len(grid), spec.width) if repeated else None, persistent=False)
        self.init_buffers()

    def init_buffers(self) -> None:
        if self.positions is not None:
            grid, width = self.attn.grid, self.attn.width
            self.positions.copy_(self.position_scale * fixed_positions(grid, width, self.position_kind))

    def attend(self, x: Tensor) -> Tensor:
        seen = self.attn(x if self.positions is None else x + self.positions)
        out: Tensor = self.drop_path1(self.ls1(self.dropout(seen)))
        return out

    def feed(self, x: Tensor) -> Tensor:
        out: Tensor = self.drop_path2(self.ls2(self.dropout(self.mlp(x))))
        return out

    def forward(self, x: Tensor) -> Tensor:
        if not self.pre_norm:
            x = self.norm1(x + self.attend(x))
            x = self.norm2(x + self.feed(x))
            return x
        normed = self.norm1(x)
        x = (normed if self.normalized else x) + self.attend(normed)
        normed = self.norm2(x)
        x = (normed if self.normalized else x) + self.feed(normed)
        return x


class VisionTransformer(nn.Module):
    """Build it with `softbias.create_model` or from a spec; `model(images)` returns logits.  # (B, …) -> (B, K)"""

    fixed_positions: Tensor | None
    name: str | None = None
    class_names: tuple[str, ...] | None = None
    pretrained_cfg: dict[str, Any]
    default_cfg: dict[str, Any]

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.num_classes = spec.num_classes
        self.num_features = self.embed_dim = self.head_hidden_size = spec.width
        self.global_pool = GLOBAL_POOLS[spec.pool]
        self.grad_checkpointing = False

        self.patch_embed = STEMS[spec.stem](spec)
        self.cls_token = None if spec.class_token is None else nn.Parameter(torch.zeros(1, 1, spec.width))
        first = spec.grid(0)
        learned, once = spec.positions == "learned", spec.positions_at == "input"
        positions = len(first) if spec.class_position else first.patches
        self.pos_embed = nn.Parameter(torch.zeros(1, positions, spec.width)) if learned else None
        fixed = torch.empty(1, positions, spec.width) if once and spec.positions not in ("learned", "none") else None
        self.register_buffer("fixed_positions", fixed, persistent=False)
        self.dropout = nn.Dropout(spec.dropout) if spec.dropout and "input" in spec.dropout_in else nn.Identity()
        self.blocks = nn.ModuleList(Block(spec, index) for index in range(spec.depth))
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_eps) if spec.final_norm else nn.Identity()
        self.pool = SequencePool(spec.width) if spec.pool == "sequence" else None
        self.head: nn.Module = self.build_head(spec.num_classes)
        self.init_buffers()
        self.init_weights()

    # Building

    def build_head(self, num_classes: int) -> nn.Module:
        patches = self.spec.grid(0).patches if self.spec.pool == "flatten" else 1
        return nn.Linear(patches * self.spec.width, num_classes) if num_classes else nn.Identity()

    def init_buffers(self) -> None:
        if self.fixed_positions is not None:
            first = self.spec.grid(0)
            positions = fixed_positions(first, self.spec.width, self.spec.positions)[-self.fixed_positions.shape[1] :]
            self.fixed_positions.copy_(self.spec.position_scale * positions)

    def init_weights(self) -> None:
        """As `initial` of the spec says, then the initial values of each mechanism."""
        INITIAL[self.spec.initial](self)
        for embedding in (self.cls_token, self.pos_embed):
            if embedding is not None:
                nn.init.trunc_normal_(embedding, std=0.001 if self.spec.initial == "torch" else 0.02)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.attn.init_weights()

    # Running

    def forward(self, images: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(images))

    def forward_features(self, images: Tensor) -> Tensor:
        """Tokens after the last norm.  # (B, N, C)"""
        x = self.embed(images)
        for index, block in enumerate(self.blocks):
            if index and index == self.spec.class_token:
                x = self.join_class_token(x)
            if self.grad_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        out: Tensor = self.norm(x)
        return out

    def embed(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images)
        positions = self.pos_embed if self.pos_embed is not None else self.fixed_positions
        joins, after = self.spec.class_token == 0, not self.spec.class_position
        if joins and not after:
            x = self.join_class_token(x)
        x = self.dropout(x if positions is None else x + positions)
        return self.join_class_token(x) if joins and after else x

    def join_class_token(self, x: Tensor) -> Tensor:
        assert self.cls_token is not None
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Logits from tokens; with `pre_logits`, or without a head, one feature vector per image.  # (B, N, C) -> (B, K)

        A flatten head goes from all tokens to logits in one step; the feature vector of such a model is the average patch.
        """
        if self.spec.pool == "flatten" and self.num_classes and not pre_logits:
            pooled = self.patches(x).flatten(1)
        else:
            pooled = x[:, 0] if self.spec.pool == "token" else self.pooled(self.patches(x))
        out: Tensor = pooled if pre_logits else self.head(pooled)
        return out

    def pooled(self, patches: Tensor) -> Tensor:
        """# (B, P, C) -> (B, C)"""
        out: Tensor = patches.mean(1) if self.pool is None else self.pool(patches)
        return out

    def patches(self, x: Tensor) -> Tensor:
        return x[:, self.grid(len(self.blocks) - 1).prefix :]

    def grid(self, block: int) -> Grid:
        """The positions of the tokens of a block."""
        return self.spec.grid(block)

    # timm's conventions

    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new head for another number of classes; the spec follows."""
        pools: dict[str | None, Any] = {name: name for name in GLOBAL_POOLS}
        pools |= {"avg": "average", None: self.spec.pool}
        if global_pool not in pools:
            raise SoftbiasError(f"global_pool must be {', '.join(GLOBAL_POOLS.values())}, but global_pool={global_pool!r}")
        self.spec = replace(self.spec, num_classes=num_classes, pool=pools[global_pool])
        self.global_pool = GLOBAL_POOLS[self.spec.pool]
        self.num_classes = num_classes
        like = next(self.blocks.parameters())
        head = self.build_head(num_classes).to(device=like.device, dtype=like.dtype)
        if isinstance(head, nn.Linear) and self.spec.initial in ("normal", "normal_stem"):
            init_normal(head)
        self.head = head.train(self.training)
        if (self.pool is not None) != (self.spec.pool == "sequence"):
            self.pool = SequencePool(self.spec.width).to(like) if self.pool is None else None

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Embeddings, by name; vectors (gates, biases, norms) are excluded by every optimizer factory already."""
        return {"pos_embed", "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which parameters belong to which depth, for timm's layer-wise learning rates."""
        return {"stem": r"^cls_token|pos_embed|patch_embed", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}
