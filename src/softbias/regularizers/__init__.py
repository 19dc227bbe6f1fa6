"""Losses on attention maps: pure functions first, then what attaches them to a layer of a model in training.

    from softbias.regularizers import distance_loss, style_loss
    distance_loss(attention, grid)             # (B, H, N, N) -> (B,)

    softbias fit DATA --regularize distance:layer=2,weight=0.01

A new one is a file with a `Regularizer`, a line here, and a value known in closed form as its test.
"""

from __future__ import annotations

from softbias.regularizers.attach import Regularized, attached
from softbias.regularizers.base import Regularizer, head_average, minmax, reduce
from softbias.regularizers.config import Request, parse_request, parse_requests
from softbias.regularizers.distance import Distance, attention_penalty, distance_loss, distance_penalty
from softbias.regularizers.style import Style, patch_grams, style_loss, style_similarity

__all__ = [
    "REGULARIZERS",
    "Distance",
    "Regularized",
    "Regularizer",
    "Request",
    "Style",
    "attached",
    "attention_penalty",
    "distance_loss",
    "distance_penalty",
    "head_average",
    "minmax",
    "parse_request",
    "parse_requests",
    "patch_grams",
    "reduce",
    "style_loss",
    "style_similarity",
]

REGULARIZERS: dict[str, type[Regularizer]] = {
    "distance": Distance,
    "style": Style,
}
