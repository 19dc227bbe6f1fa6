"""How far attention reaches: non-locality, attention distance and entropy, per layer and head.

    D = (1/P) Σ_ij A_ij ‖δ_ij‖          non-locality, in patches (d'Ascoli et al., 2021); × patch size: distance, in pixels
    E = −(1/P) Σ_ij A_ij log A_ij        entropy, in nats: log P for uniform attention, 0 for attention to one patch

A is the map of a layer on its real input, without the rows and columns of prefix tokens, its rows normalized again.
`original=True` is ConViT's own logging, which gives every layer the raw patch embeddings instead (an open bug there).

A map with signs or without normalized rows (learned masks under the Frobenius norm) is read as |A|, its rows normalized: the
strength of attention, of either sign, by distance. The column `map` names the reading.

Shapes: B images, H heads, N tokens, P patches.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from softbias.bounds import Count, Seed
from softbias.classifier import Classifier
from softbias.grid import Grid
from softbias.models.inspect import Site, attention_sites, choose_layers, inspect
from softbias.probes.drawing import by_layer, over_training, through_training
from softbias.probes.features import patch_size, patch_tokens
from softbias.probes.rows import Rows, labeled, mean_of
from softbias.probes.sampling import Source, sample

TINY = 1e-12
UNITS = {"non_locality": "patches", "distance": "pixels", "entropy": "nats"}
PLAIN, ABSOLUTE = "A, rows normalized", "|A|, rows normalized"


@torch.no_grad()
def locality(
    model: nn.Module | Classifier, data: Source, *, n: Count = 1000, seed: Seed = 0, split: str = "test", original: bool = False
) -> Rows:
    """Rows per layer and head, and per layer over all heads (head None). One pass per image."""
    classifier = Classifier.of(model)
    images = sample(data, classifier, n=n, seed=seed, split=split)
    sites = attention_sites(classifier.model, images.size)
    layers = choose_layers(classifier.model, sites, None)
    patch = patch_size(classifier.model, images.size)
    found: dict[tuple[int, str], list[Tensor]] = defaultdict(list)
    for batch, _ in images.batches(classifier.device):
        x = classifier.normalized(batch)
        maps = original_maps(classifier.model, sites, layers, x) if original else inspect(classifier.model, x).maps
        for layer in layers:
            attention = patch_map(maps[layer], sites[layer])
            for measure, values in measures(attention, sites[layer].grid, patch).items():
                found[layer, measure].append(values.cpu())
    rows: Rows = []
    for (layer, measure), parts in found.items():
        values = torch.cat(parts)  # (n, H)
        about: dict[str, Any] = {"measure": measure, "unit": UNITS[measure], "layer": layer, "map": map_reading(sites[layer])}
        rows.append({**about, "head": None, **mean_of(values.mean(1))})
        rows += [{**about, "head": head, **mean_of(values[:, head])} for head in range(values.shape[1])]
    return labeled(
        classifier, "locality", rows, input="raw patch embeddings" if original else "the layer's own", data=images.name
    )


def map_reading(site: Site) -> str:
    return PLAIN if site.attention.rows_sum_to_one else ABSOLUTE


def patch_map(attention: Tensor, site: Site) -> Tensor:
    """The patches' part of a map as shares: each row sums to one.  # (B, H, N, N) -> (B, H, P, P)"""
    part = site.grid.patches_only(attention.float())
    part = part if map_reading(site) == PLAIN else part.abs()
    return part / part.sum(-1, keepdim=True).clamp_min(TINY)


def measures(attention: Tensor, grid: Grid, patch: tuple[int, int]) -> dict[str, Tensor]:
    """Non-locality, distance and entropy of maps whose rows sum to one.  # (…, P, P) -> (…)"""
    offsets = grid.offsets().to(attention)
    lengths = (offsets * torch.tensor(patch).to(attention)).square().sum(-1).sqrt()
    entropy = -(attention * attention.clamp_min(TINY).log()).sum(-1)
    return {
        "non_locality": (attention * grid.distances().to(attention)).sum(-1).mean(-1),
        "distance": (attention * lengths).sum(-1).mean(-1),
        "entropy": entropy.mean(-1),
    }


def original_maps(model: nn.Module, sites: list[Site], layers: list[int], images: Tensor) -> dict[int, Tensor]:
    """Every layer's map of the raw patch embeddings.

    The original has no class token there. Where a layer expects prefix tokens they are zeros. Their values do not matter:
    rows are normalized after the columns of prefix tokens are dropped.
    """
    tokens = patch_tokens(model, images)
    found = {}
    for layer in layers:
        site = sites[layer]
        padded = torch.cat([tokens.new_zeros(len(tokens), site.grid.prefix, tokens.shape[-1]), tokens], dim=1)
        found[layer] = site.attention.attention_map(padded)
    return found


def draw(rows: Rows, folder: Path) -> list[Path]:
    """Distance and entropy by layer, a dot per head; non-locality over epochs for rows of several checkpoints."""
    if through_training(rows):
        return over_training(rows, folder, "locality", "non_locality", "non-locality (patches)")
    return by_layer(
        rows, folder, "locality", {"distance": "attention distance (pixels)", "entropy": "attention entropy (nats)"}
    )
