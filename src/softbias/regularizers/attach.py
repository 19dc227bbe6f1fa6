"""Regularizers attached to the layers of a model that trains: ours, timm's, or any other that can be inspected.

    run = Regularized(model, parse_regularizers(["distance:layer=2,weight=0.01"]))
    with attached(run):
        logits, values = run(images)                                                           # (B, K), (regularizers, B)

Only the chosen layers are touched; their weights and their state dict are not. While attached, the `forward` of such a layer
shares its queries and keys with the regularizer:

    the regularizer has          and the attention has      then
    pairs (`distance`)           `mixture`                  a fused pass over queries and keys that keeps no map
    factors (`style`)            `attend`                   columns beside the values in the same fused attention
    factors, a foreign model     `attend`                   a second fused attention, of the columns alone
    anything else                                           the map, by definition

This works under torch.compile, in a CUDA graph, with DDP, with checkpointed blocks, and in 16 bits.

Shapes: B images, H heads, N tokens, C channels, D = C / H.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from softbias.attention import Attention, NoAttentionMapError
from softbias.errors import SoftbiasError
from softbias.kernels import dispatch
from softbias.models.inspect import Site, attention_sites, choose_layers, describe, unwrap
from softbias.regularizers import RegularizerConfig, find_regularizer
from softbias.regularizers.base import Regularizer
from softbias.regularizers.distance import attention_penalty, penalty_by_head

ALIGN = 8  # fused attention wants widths that are multiples of this


class Regularized(nn.Module):
    """A model that also returns the values of its regularizers; `module` is the model itself.

    fused=False always takes the map, for comparison.
    """

    def __init__(
        self,
        model: nn.Module,
        configs: Mapping[str, RegularizerConfig],
        img_size: tuple[int, int] | None = None,
        *,
        fused: bool = True,
    ) -> None:
        super().__init__()
        self.module = model
        self.configs = dict(configs)
        sites = find_sites(model, self.configs, img_size)
        device = next(model.parameters()).device
        by_layer: dict[int, list[AttachedRegularizer]] = {}
        self.regularizers = nn.ModuleList()  # so that their buffers follow the model to another device
        for label, config in self.configs.items():
            for layer in choose_layers(unwrap(model), sites, config.layers):
                regularizer = find_regularizer(config.name)(sites[layer].grid, **config.options).to(device)
                self.regularizers.append(regularizer)
                one = AttachedRegularizer(label, sites[layer], regularizer, trained=config.weight > 0, fused=fused)
                by_layer.setdefault(layer, []).append(one)
        self.layers = [RegularizedLayer(layer, sites[layer], by_layer[layer]) for layer in sorted(by_layer)]

    @property
    def supports_cuda_graph(self) -> bool:
        """Whether a step can be a CUDA graph; a map by definition may copy from the host."""
        return not any(each.reads_map for layer in self.layers for each in layer.attached)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the mean of each regularizer's values over its layers.  # (B, …) -> (B, K), (regularizers, B)"""
        for layer in self.layers:
            layer.begin(images)
        logits = self.module(images)
        again = bool(getattr(unwrap(self.module), "grad_checkpointing", False))  # blocks run once more in backward
        values: dict[str, list[Tensor]] = {label: [] for label in self.configs}
        for layer in self.layers:
            for one, value in zip(layer.attached, layer.finish(again), strict=True):
                values[one.label].append(value)
        means = [each[0] if len(each) == 1 else torch.stack(each).mean(0) for each in values.values()]
        return logits, torch.stack(means)


@contextmanager
def attached(run: nn.Module) -> Iterator[None]:
    """Replace the `forward` of the regularized layers for a while; a model without regularizers stays as it is."""
    layers = [layer for module in run.modules() if isinstance(module, Regularized) for layer in module.layers]
    for layer in layers:
        layer.attach()
    try:
        yield
    finally:
        for layer in layers:
            layer.detach()


def find_sites(model: nn.Module, configs: Mapping[str, RegularizerConfig], img_size: tuple[int, int] | None) -> list[Site]:
    """The attention layers of the model; a chosen layer without a map is an error that names those that have one."""
    try:
        sites = attention_sites(model, img_size)
    except NoAttentionMapError as error:
        raise SoftbiasError(f"there is nothing to regularize: {error}") from error
    for config in configs.values():
        try:
            choose_layers(unwrap(model), sites, config.layers)
        except SoftbiasError as error:
            able = [str(index) for index, site in enumerate(sites) if site.attention.has_map]
            chosen = "+".join(map(str, config.layers))
            raise SoftbiasError(
                f"{config.name}:layer={chosen} cannot be attached to {describe(model)}, whose layers with an attention map are "
                f"{', '.join(able) or 'none'} (layers count from 0)"
            ) from error
    return sites


class AttachedRegularizer:
    """One regularizer at one layer, and the form that its value takes there."""

    def __init__(self, label: str, site: Site, regularizer: Regularizer, *, trained: bool, fused: bool = True) -> None:
        self.label, self.regularizer, self.trained = label, regularizer, trained
        mixture = site.attention.mixture()
        pairs, fused = regularizer.pairs is not None, fused and not regularizer.needs_map
        self.by_pairs = fused and pairs and mixture is not None
        self.content_alone = mixture is not None and mixture.share is None
        self.by_columns = fused and not pairs and regularizer.has_factors and site.attention.attend is not None
        self.joins_values = self.by_columns and site.attention is site.module and trained
        self.reads_map = not (self.by_pairs or self.by_columns)


class RegularizedLayer:
    """The `forward` of one attention module with its regularizers, whose values are kept until `finish`.

    index   of the layer in the model
    """

    def __init__(self, index: int, site: Site, attached: list[AttachedRegularizer]) -> None:
        self.index, self.site, self.attached = index, site, attached
        self.attention = site.attention
        self.own = site.attention is site.module  # of this library
        self.shares = self.own and site.attention.attend is not None
        self.hook: Any = None
        self.clear()

    def clear(self) -> None:
        self.images: Tensor | None = None
        self.factors: list[tuple[Tensor, Tensor] | None] = []
        self.values: list[Tensor] = []
        self.projected: Tensor | None = None
        self.mode: bool | None = None  # training or evaluation, of the call under way; in the other mode the layer is as it was
        self.collecting = False

    @property
    def module(self) -> Any:  # of this library or another
        return self.site.module

    def attach(self) -> None:
        self.module.forward = self.forward
        if not self.own and hasattr(self.module, "qkv"):
            self.hook = self.module.qkv.register_forward_hook(self.keep)

    def detach(self) -> None:
        self.module.__dict__.pop("forward", None)
        if self.hook is not None:
            self.hook.remove()
            self.hook = None
        self.clear()

    def begin(self, images: Tensor) -> None:
        self.images, self.values = images, []
        self.factors = [one.regularizer.factors(images) if one.by_columns else None for one in self.attached]
        self.mode, self.collecting = self.module.training, True

    def finish(self, again: bool) -> list[Tensor]:
        """The values. No tensor with a gradient is kept, so that the model can be copied between steps."""
        if not self.values:
            raise RuntimeError("the regularized layer did not run as attached: call the model inside `with attached(run)`")
        values = self.values
        self.values, self.collecting = [], False
        if not again:
            self.images, self.factors, self.mode = None, [], None
        return values

    def keep(self, module: nn.Module, args: Any, projected: Tensor) -> None:
        if self.mode is not None and self.mode == self.module.training:
            self.projected = projected

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replaces the forward of the module."""
        module = self.module
        if self.mode is None or self.mode != module.training:
            return type(module).forward(module, *args, **kwargs)
        x = self.attention.tokens_of(args, kwargs)
        if self.shares:
            projected, known = self.penalized(module.project(x))
            mixed, more = self.mixed(projected)
            output, known = module.merge(mixed), known | more
        else:
            output, known = type(module).forward(module, *args, **kwargs), {}
            kept, self.projected = self.projected, None
            projected = self.projected_again(x, kept)
        values = []
        for number, one in enumerate(self.attached):
            with torch.set_grad_enabled(torch.is_grad_enabled() and one.trained):
                totals = known[number] if number in known else self.total(number, one, x, projected)
                values.append(totals if one.reads_map else one.regularizer.reduce(totals))
        if self.collecting:
            self.values = values
        return output

    def projected_again(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values of a foreign layer: from the output of its projection, where that was kept."""
        if all(one.reads_map for one in self.attached):
            return ()
        if kept is None:
            return self.attention.project(x)
        return self.attention.split_qkv(kept.unflatten(-1, (3, self.attention.heads, -1)))

    def penalized(self, projected: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[int, Tensor]]:
        """Totals of a kernel that also adds their gradient to that of queries and keys.  # 3 × (B, H, N, D), {number: (B,)}"""
        values: dict[int, Tensor] = {}
        for number, one in enumerate(self.attached):
            if one.by_pairs and one.trained and one.content_alone and torch.is_grad_enabled():
                q, k, v = projected
                program = dispatch.penalized(q)
                if program is not None:
                    assert one.regularizer.pairs is not None
                    q, k, values[number] = program(q, k, one.regularizer.pairs, self.module.scale)
                    projected = q, k, v
        return projected, values

    def mixed(self, projected: tuple[Tensor, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """The module's own mixing, with right factors as more values.  # 3 × (B, H, N, D) -> (B, H, N, D), {number: (B,)}"""
        joined = [number for number, one in enumerate(self.attached) if one.joins_values]
        if not joined:
            return self.attend(*projected), {}
        *others, v = projected
        right = [self.pair(number)[1] for number in joined]
        widths = [v.shape[-1], *(columns.shape[-1] for columns in right)]
        spare = -sum(widths) % ALIGN
        columns = torch.cat(right, -1).to(v.dtype)[:, None].expand(-1, v.shape[1], -1, -1)
        wide = torch.cat([v, columns, *([v.new_zeros(1).expand(*v.shape[:-1], spare)] if spare else [])], -1)
        extra = wide.shape[-1] - v.shape[-1]
        mixed = self.attend(*(pad(tensor, (0, extra)) for tensor in others), wide)
        output, *applied = mixed.split([*widths, *([spare] if spare else [])], -1)
        totals = zip(joined, applied, strict=False)  # the last of `applied` may be the spare columns
        return output, {number: product_total(self.pair(number)[0], each) for number, each in totals}

    def total(self, number: int, one: AttachedRegularizer, x: Tensor, projected: tuple[Tensor, ...]) -> Tensor:
        """l from the projected tokens; or the value itself, by definition.  # (B,)"""
        if one.by_pairs:
            assert one.regularizer.pairs is not None
            return pair_total(self.attention, projected, one.regularizer.pairs)
        if one.by_columns:
            left, right = self.pair(number)
            q, k = projected[:-1] if len(projected) == 3 else (projected[0], projected[0])
            columns = right.to(q.dtype)[:, None].expand(-1, q.shape[1], -1, -1)
            if not self.own:
                wide = pad(columns, (0, max(0, q.shape[-1] - columns.shape[-1])))
                applied = self.attend(q, k, wide)[..., : columns.shape[-1]]
            else:
                applied = self.attend(*projected[:-1], columns)
            return product_total(left, applied)
        assert self.images is not None
        value: Tensor = one.regularizer(self.attention.attention_map(x), self.images)
        return value

    def attend(self, *projected: Tensor) -> Tensor:
        assert self.attention.attend is not None
        return self.attention.attend(*projected)

    def pair(self, number: int) -> tuple[Tensor, Tensor]:
        pair = self.factors[number]
        assert pair is not None
        return pair


def product_total(left: Tensor, applied: Tensor) -> Tensor:
    """Σ left ⊙ (A · right), averaged over the heads, in at least float32.  # (B, N, c), (B, H, N, c) -> (B,)"""
    return (left[:, None] * applied).sum((1, 2, 3)) / applied.shape[1]


def pair_total(attention: Attention, projected: tuple[Tensor, ...], pairs: Tensor) -> Tensor:
    """Σ A ⊙ pairs of a mixture of content and position, averaged over the heads.  # 3 × (B, H, N, D) -> (B,)"""
    q, k, _ = projected
    mixture = attention.mixture()
    assert mixture is not None
    if mixture.share is None or mixture.positional is None:
        return attention_penalty(q, k, pairs, attention.scale)
    by_content = penalty_by_head(q, k, pairs, attention.scale)  # (B, H)
    by_position = (mixture.positional * attention.grid.patches_only(pairs)).sum((1, 2))  # (H,); zero for prefix tokens
    return ((1 - mixture.share) * by_content + mixture.share * by_position).mean(1)
