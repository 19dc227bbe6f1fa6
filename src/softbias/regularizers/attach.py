"""Regularizers attached to the layers of a model that trains: ours, timm's, or any that can be inspected.

    run = Regularized(model, parse_requests(["distance:layer=2,weight=0.01"]))
    with attached(run):
        logits, values = run(images)                                                           # (B, K), (regularizers, B)

Only the chosen layers are touched, and their weights and state dict are not. While attached, such a layer's `forward` shares
its queries and keys with the regularizer:

    the regularizer offers       and the attention has      then
    pairs (`distance`)           `mixture`                  a fused pass over queries and keys that keeps no map
    factors (`style`)            `attend`                   columns beside the values in the same fused attention
    factors, a foreign model     `attend`                   a second fused attention, of the columns alone
    anything else                                           the map, by definition

What is attached works under torch.compile, in a recorded CUDA graph, with DDP, with checkpointed blocks and in 16 bits.

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
from softbias.regularizers.base import Regularizer
from softbias.regularizers.config import Request
from softbias.regularizers.distance import attention_penalty, penalty_by_head

ALIGN = 8  # fused attention wants widths that are multiples of this


class Regularized(nn.Module):
    """A model that also returns what its regularizers say about the pictures; `module` is the model itself.

    fused=False always takes the map by definition, for comparison.
    """

    def __init__(
        self,
        model: nn.Module,
        requests: Mapping[str, Request],
        img_size: tuple[int, int] | None = None,
        *,
        fused: bool = True,
    ) -> None:
        super().__init__()
        from softbias.regularizers import REGULARIZERS

        self.module = model
        self.requests = dict(requests)
        sites = find_sites(model, self.requests, img_size)
        device = next(model.parameters()).device
        seats: dict[int, list[Seat]] = {}
        self.regularizers = nn.ModuleList()  # so that their buffers follow the model to another device
        for number, request in enumerate(self.requests.values()):
            for layer in choose_layers(unwrap(model), sites, request.layers):
                regularizer = REGULARIZERS[request.kind](sites[layer].grid, **request.options).to(device)
                self.regularizers.append(regularizer)
                seat = Seat(number, sites[layer], regularizer, trained=request.weight > 0, fused=fused)
                seats.setdefault(layer, []).append(seat)
        self.layers = [Layer(sites[layer], seats[layer]) for layer in sorted(seats)]

    @property
    def supports_cuda_graph(self) -> bool:
        """Whether a step can be one CUDA graph; a map by definition may copy from the host."""
        return not any(seat.reads_map for layer in self.layers for seat in layer.seats)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the mean of each regularizer's values over its layers.  # (B, …) -> (B, K), (regularizers, B)"""
        for layer in self.layers:
            layer.open(images)
        logits = self.module(images)
        again = bool(getattr(unwrap(self.module), "grad_checkpointing", False))  # blocks run once more in backward
        values: list[list[Tensor]] = [[] for _ in self.requests]
        for layer in self.layers:
            for seat, value in zip(layer.seats, layer.take(again), strict=True):
                values[seat.number].append(value)
        return logits, torch.stack([each[0] if len(each) == 1 else torch.stack(each).mean(0) for each in values])


@contextmanager
def attached(run: nn.Module) -> Iterator[None]:
    """The layers' shared `forward` in place for a while; nothing happens to a model without regularizers."""
    layers = [layer for module in run.modules() if isinstance(module, Regularized) for layer in module.layers]
    for layer in layers:
        layer.attach()
    try:
        yield
    finally:
        for layer in layers:
            layer.detach()


def find_sites(model: nn.Module, requests: Mapping[str, Request], img_size: tuple[int, int] | None) -> list[Site]:
    """The model's attention; a layer that has none is an error that names those that do."""
    try:
        sites = attention_sites(model, img_size)
    except NoAttentionMapError as error:
        raise SoftbiasError(f"there is nothing to regularize: {error}") from error
    for request in requests.values():
        try:
            choose_layers(unwrap(model), sites, request.layers)
        except ValueError as error:
            able = [str(number) for number, site in enumerate(sites) if site.attention.has_map]
            asked = "+".join(map(str, request.layers))
            raise SoftbiasError(
                f"{request.kind}:layer={asked} cannot be attached to {describe(model)}, whose layers with an attention map are "
                f"{', '.join(able) or 'none'} (layers count from 0)"
            ) from error
    return sites


class Seat:
    """One regularizer at one layer, and the form it takes there."""

    def __init__(self, number: int, site: Site, regularizer: Regularizer, *, trained: bool, fused: bool = True) -> None:
        self.number, self.site, self.regularizer, self.trained = number, site, regularizer, trained
        mixture = site.attention.mixture()
        pairs, fused = regularizer.pairs is not None, fused and not regularizer.needs_map
        self.by_pairs = fused and pairs and mixture is not None
        self.content_alone = mixture is not None and mixture.share is None
        self.by_columns = fused and not pairs and site.attention.attend is not None
        self.rides_along = self.by_columns and site.attention is site.module and trained
        self.reads_map = not (self.by_pairs or self.by_columns)


class Layer:
    """What is attached to one attention module: it runs the module, and keeps the seats' values until they are taken."""

    def __init__(self, site: Site, seats: list[Seat]) -> None:
        self.site, self.seats = site, seats
        self.attention = site.attention
        self.own = site.attention is site.module
        self.shares = self.own and site.attention.attend is not None
        self.hook: Any = None
        self.clear()

    def clear(self) -> None:
        self.images: Tensor | None = None
        self.factors: list[tuple[Tensor, Tensor] | None] = []
        self.values: list[Tensor] = []
        self.projected: Tensor | None = None
        self.mode: bool | None = None  # training or evaluation, of the call under way; any other passes straight through
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

    def open(self, images: Tensor) -> None:
        self.images, self.values = images, []
        self.factors = [seat.regularizer.factors(images) if seat.by_columns else None for seat in self.seats]
        self.mode, self.collecting = self.module.training, True

    def take(self, again: bool) -> list[Tensor]:
        """The values; what has a history is not kept, so that the model can be copied between steps."""
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
        """In the place of the module's own."""
        module = self.module
        if self.mode is None or self.mode != module.training:
            return type(module).forward(module, *args, **kwargs)
        x = self.attention.tokens_of(args, kwargs)
        if self.shares:
            projected, known = self.penalized(module.project(x))
            output, along = self.mixed(projected)
            output, along = module.merge(output), along | known
        else:
            output, along = type(module).forward(module, *args, **kwargs), {}
            kept, self.projected = self.projected, None
            projected = self.projected_again(x, kept)
        values = []
        for place, seat in enumerate(self.seats):
            with torch.set_grad_enabled(torch.is_grad_enabled() and seat.trained):
                totals = along[place] if place in along else self.total(place, seat, x, projected)
                values.append(totals if seat.reads_map else seat.regularizer.reduce(totals))
        if self.collecting:
            self.values = values
        return output

    def projected_again(self, x: Tensor, kept: Tensor | None) -> tuple[Tensor, ...]:
        """Queries, keys and values of a foreign layer: from the output of its projection, where that was kept."""
        if all(seat.reads_map for seat in self.seats):
            return ()
        if kept is None:
            return self.attention.project(x)
        return self.attention.split_qkv(kept.unflatten(-1, (3, self.attention.heads, -1)))

    def penalized(self, projected: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], dict[int, Tensor]]:
        """Where one kernel gives both the value and what its gradient adds to that of queries and keys."""
        values: dict[int, Tensor] = {}
        for place, seat in enumerate(self.seats):
            if seat.by_pairs and seat.trained and seat.content_alone and torch.is_grad_enabled():
                q, k, v = projected
                program = dispatch.penalized(q)
                if program is not None:
                    assert seat.regularizer.pairs is not None
                    q, k, values[place] = program(q, k, seat.regularizer.pairs, self.module.scale)
                    projected = q, k, v
        return projected, values

    def mixed(self, projected: tuple[Tensor, ...]) -> tuple[Tensor, dict[int, Tensor]]:
        """The module's own mixing, with right factors as further values.  # 3 × (B, H, N, D) -> (B, H, N, D), {seat: (B,)}"""
        riding = [place for place, seat in enumerate(self.seats) if seat.rides_along]
        if not riding:
            return self.attend(*projected), {}
        *others, v = projected
        right = [self.pair(place)[1] for place in riding]
        widths = [v.shape[-1], *(columns.shape[-1] for columns in right)]
        spare = -sum(widths) % ALIGN
        columns = torch.cat(right, -1).to(v.dtype)[:, None].expand(-1, v.shape[1], -1, -1)
        wide = torch.cat([v, columns, *([v.new_zeros(1).expand(*v.shape[:-1], spare)] if spare else [])], -1)
        extra = wide.shape[-1] - v.shape[-1]
        mixed = self.attend(*(pad(tensor, (0, extra)) for tensor in others), wide)
        output, *applied = mixed.split([*widths, *([spare] if spare else [])], -1)
        return output, {place: product_total(self.pair(place)[0], each) for place, each in zip(riding, applied, strict=False)}

    def total(self, place: int, seat: Seat, x: Tensor, projected: tuple[Tensor, ...]) -> Tensor:
        """l of a seat from what the module has projected; or its value, by definition.  # (B,)"""
        if seat.by_pairs:
            assert seat.regularizer.pairs is not None
            return pair_total(self.attention, projected, seat.regularizer.pairs)
        if seat.by_columns:
            left, right = self.pair(place)
            q, k = projected[:-1] if len(projected) == 3 else (projected[0], projected[0])
            columns = right.to(q.dtype)[:, None].expand(-1, q.shape[1], -1, -1)
            if not self.own:
                wide = pad(columns, (0, max(0, q.shape[-1] - columns.shape[-1])))
                applied = self.attend(q, k, wide)[..., : columns.shape[-1]]
            else:
                applied = self.attend(*projected[:-1], columns)
            return product_total(left, applied)
        assert self.images is not None
        return seat.regularizer(self.attention.attention_map(x), self.images)

    def attend(self, *projected: Tensor) -> Tensor:
        assert self.attention.attend is not None
        return self.attention.attend(*projected)

    def pair(self, place: int) -> tuple[Tensor, Tensor]:
        pair = self.factors[place]
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
