"""One VisionTransformer for every transformer of this library; they differ in their specs.

    images -> patches + positions -> blocks (a class token joins before block k) -> norm -> pool -> head -> logits

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

from softbias.errors import SoftbiasError
from softbias.grid import Grid
from softbias.models.layers import Block, PatchEmbed, fixed_positions
from softbias.models.spec import ModelSpec


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
        self.global_pool = {"token": "token", "average": "avg", "flatten": "flatten"}[spec.pool]
        self.grad_checkpointing = False

        self.patch_embed = PatchEmbed(spec)
        self.cls_token = None if spec.class_token is None else nn.Parameter(torch.zeros(1, 1, spec.width))
        first = spec.grid(0)
        learned, once = spec.positions == "learned", spec.positions_at == "input"
        self.pos_embed = nn.Parameter(torch.zeros(1, len(first), spec.width)) if learned else None
        fixed = torch.empty(1, len(first), spec.width) if once and spec.positions not in ("learned", "none") else None
        self.register_buffer("fixed_positions", fixed, persistent=False)
        self.dropout = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        self.blocks = nn.ModuleList(Block(spec, index) for index in range(spec.depth))
        self.norm = nn.LayerNorm(spec.width, eps=spec.norm_eps)
        self.head: nn.Module = self.build_head(spec.num_classes)
        self.init_buffers()
        self.init_weights()

    # Building

    def build_head(self, num_classes: int) -> nn.Module:
        patches = self.spec.grid(0).patches if self.spec.pool == "flatten" else 1
        return nn.Linear(patches * self.spec.width, num_classes) if num_classes else nn.Identity()

    def init_buffers(self) -> None:
        if self.fixed_positions is not None:
            positions = fixed_positions(self.spec.grid(0), self.spec.width, self.spec.positions)
            self.fixed_positions.copy_(self.spec.position_scale * positions)

    def init_weights(self) -> None:
        """Truncated normal of .02 as in ViT, then the initial values of each mechanism."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for embedding in (self.cls_token, self.pos_embed):
            if embedding is not None:
                nn.init.trunc_normal_(embedding, std=0.02)
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
        if self.spec.class_token == 0:
            x = self.join_class_token(x)
        positions = self.pos_embed if self.pos_embed is not None else self.fixed_positions
        out: Tensor = self.dropout(x if positions is None else x + positions)
        return out

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
            pooled = x[:, 0] if self.spec.pool == "token" else self.patches(x).mean(1)
        out: Tensor = pooled if pre_logits else self.head(pooled)
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
        pools = {"token": "token", "avg": "average", "average": "average", "flatten": "flatten", None: self.spec.pool}
        if global_pool not in pools:
            raise SoftbiasError(f"global_pool must be token, avg or flatten, but global_pool={global_pool!r}")
        self.spec = replace(self.spec, num_classes=num_classes, pool=pools[global_pool])
        self.global_pool = {"average": "avg"}.get(self.spec.pool, self.spec.pool)
        self.num_classes = num_classes
        like = self.norm.weight
        head = self.build_head(num_classes).to(device=like.device, dtype=like.dtype)
        if isinstance(head, nn.Linear):
            nn.init.trunc_normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
        self.head = head.train(self.training)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    def no_weight_decay(self) -> set[str]:
        """Embeddings, by name; vectors (gates, biases, norms) are excluded by every optimizer factory already."""
        return {"pos_embed", "cls_token"}

    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Which parameters belong to which depth, for timm's layer-wise learning rates."""
        return {"stem": r"^cls_token|pos_embed|patch_embed", "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))]}
