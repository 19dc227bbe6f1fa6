"""Probes: what a model's bias is, measured. Each is a function (model, data, *, n, seed, …) → tidy rows; a companion draws.

    from softbias.probes import PROBES
    rows = PROBES["locality"].measure(model, data, n=1000)
    PROBES["locality"].draw(rows, "figures")

A model is anything that maps images to logits (ours, timm's, Hugging Face's), data a `Dataset`, or arrays. See docs/probes.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from softbias.classifier import Classifier
from softbias.errors import unknown_name
from softbias.probes import (
    faithfulness,
    gates,
    gradient_biasing,
    illustrations,
    locality,
    masks,
    occlusion,
    patch_shuffle,
    profile,
    receptive_field,
    resolution,
    rollout,
    rotation,
    scenes,
    shift,
    texture,
)
from softbias.probes.rows import Rows

__all__ = ["PROBES", "Classifier", "Probe", "Rows", "find_probe"]


@dataclass(frozen=True)
class Probe:
    """measure   (model, data, **options) → rows
    draw      (rows, folder) → files
    about     what it tells, in a line
    pictures  how many by default; 0 where weights alone are read
    passes    per picture: (how many, at which multiple of the picture's side); a pass back counts as two forward
    needs     "" for any classifier, "maps" for one whose attention can be read, "gates", "masks", "scores"
    scenes    of its own beside the pictures: passes at other sides are then for the default number, whatever is asked
    """

    measure: Callable[..., Rows]
    draw: Callable[[Rows, Any], list[Any]]
    about: str
    pictures: int = 1000
    passes: tuple[tuple[float, float], ...] = ((1, 1),)  # (number, side of the picture relative to the model's)
    needs: str = ""
    scenes: bool = False


PROBES: dict[str, Probe] = {
    "locality": Probe(locality.locality, locality.draw, "how far attention looks, per layer and head", needs="maps"),
    "gates": Probe(gates.gates, gates.draw, "gates, centers and widths of heads that look by place", 0, (), "gates"),
    "masks": Probe(masks.masks, masks.draw, "learned masks: how far they moved, rank, reach", 0, (), "masks"),
    "gradient-biasing": Probe(
        gradient_biasing.gradient_biasing,
        gradient_biasing.draw,
        "the gradient on the map by distance",
        200,
        ((3, 1),),
        "scores",
    ),
    "rollout": Probe(rollout.rollout_rows, rollout.draw, "how many patches a rollout calls important", 1000, ((3, 1),), "maps"),
    "faithfulness": Probe(
        faithfulness.faithfulness,
        faithfulness.draw,
        "insertion and deletion: which explanation to believe",
        200,
        ((280, 1),),
    ),
    "combined": Probe(
        scenes.combined_probe, scenes.draw_combined, "four pictures in one: Top-4 matching", 5000, ((1, 1), (1, 2))
    ),
    "background": Probe(
        scenes.background_probe, scenes.draw_background, "a picture on a large background: accuracy", 5000, ((1, 1), (1, 4))
    ),
    "shift": Probe(shift.shift, shift.draw, "consistency and equivariance under translation", 1000, ((20, 1),)),
    "rotation": Probe(rotation.rotation, rotation.draw, "consistency and accuracy under rotation", 1000, ((7, 1),)),
    "patch-shuffle": Probe(patch_shuffle.patch_shuffle, patch_shuffle.draw, "parts without their order", 1000, ((4, 1),)),
    "occlusion": Probe(occlusion.occlusion, occlusion.draw, "a share of the picture hidden", 1000, ((4, 1),)),
    "texture": Probe(texture.texture, texture.draw, "style swaps between pictures: shape or texture?", 1000, ((3, 1),)),
    "receptive-field": Probe(
        receptive_field.receptive_field, receptive_field.draw, "which pixels a feature depends on", 100, ((12, 1),)
    ),
    "resolution": Probe(
        resolution.resolution, resolution.draw, "less detail, and other sizes", 1000, ((4, 1), (1, 0.75), (1, 1.5), (1, 2))
    ),
    "illustrations": Probe(
        illustrations.illustrations, illustrations.draw, "pictures of positional attention and of mask targets", 0, ()
    ),
    "profile": Probe(
        profile.profile,
        profile.draw,
        "the most telling numbers of all of them on one page",
        passes=((40, 1), (6, 2), (5, 4)),
        scenes=True,
    ),
}


def find_probe(name: str) -> Probe:
    if name not in PROBES:
        raise unknown_name("probe", name, PROBES)
    return PROBES[name]
