"""Probes: the bias of a model, measured. A probe is a function (classifier, data, *, n, seed, …) → tidy rows.

    from softbias.probes import find_probe
    rows = find_probe("locality").measure(model, data, n=1000)
    find_probe("locality").draw(rows, "figures")

A model is any module that maps images to logits (ours, timm's, Hugging Face's) or a `Classifier`; data is a `Dataset` or
arrays. A probe knows no run: `softbias.probe` measures runs. A new probe is a function in a file, a line in PROBES, and a test
of its value on a model whose answer is known; the contract runs by itself. From outside the package it is
`register_probe("mine", Probe(…))`, or an entry point in the group "softbias.probes". See docs/probes.md.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, unknown_name
from softbias.models.inspect import unwrap
from softbias.probes import (
    changes,
    convolution,
    faithfulness,
    gradient_biasing,
    illustrations,
    learned_bias,
    locality,
    profile,
    receptive_field,
    resolution,
    scenes,
    shift,
)
from softbias.probes.attribution import evaluating
from softbias.probes.drawing import draw_points
from softbias.probes.rows import Rows
from softbias.probes.sampling import Source
from softbias.registry import Registry

__all__ = ["PROBES", "NotMeasurableError", "Probe", "Rows", "find_probe", "list_probes", "register_probe"]


@dataclass(frozen=True)
class Probe:
    """function   (classifier, data, **options) → rows
    draw       (rows, folder) → files
    about      the question that it answers, in a line
    n          the default number of images, or of scenes made from them; 0 where only weights are read
    passes     per image: (number, side of the image relative to the model's); a backward pass counts as two forward passes
    scenes     whether n counts scenes, of which there can be more than images; their examples are drawn beside the figures
    scene_passes  as `passes`, per scene: for a probe that makes scenes beside its n images and has an option `scenes`
    """

    function: Callable[..., Rows]
    draw: Callable[[Rows, Path], list[Path]]
    about: str
    n: int = 1000
    passes: tuple[tuple[float, float], ...] = ((1, 1),)
    scenes: bool = False
    scene_passes: tuple[tuple[float, float], ...] = ()

    @property
    def options(self) -> tuple[str, ...]:
        """The names of the options of the function."""
        return tuple(inspect.signature(self.function).parameters)[2:]

    def default(self, option: str) -> Any:
        """What an option is where nobody names it; None for an option that the probe does not have."""
        found = inspect.signature(self.function).parameters.get(option)
        return None if found is None else found.default

    def measure(self, model: nn.Module | Classifier, data: Source | None = None, **options: Any) -> Rows:
        """The rows of a model, which is left in the mode it was in."""
        for name in options:
            if name not in self.options:
                raise unknown_name("option of this probe", name, self.options)
        with evaluating(unwrap(model.model if isinstance(model, Classifier) else model)):
            return self.function(Classifier.of(model), data, **options)

    def pass_text(self) -> str:
        """
        >>> PROBES["combined"].pass_text()
        '2 (1, 1 at 2 × the side)'
        >>> PROBES["profile"].pass_text()
        '31 (30, 1 at 2 × the side); per scene 4 (2, 1 at 2 × the side, 1 at 4 × the side)'
        """
        scenes = f"; per scene {counted(self.scene_passes)}" if self.scene_passes else ""
        return counted(self.passes) + scenes


def counted(passes: Sequence[tuple[float, float]]) -> str:
    parts = [f"{count:g}" if side == 1 else f"{count:g} at {side:g} × the side" for count, side in passes]
    kinds = f" ({', '.join(parts)})" if len(parts) > 1 else ""
    return f"{sum(count for count, _ in passes):g}{kinds}"


def points(stem: str, across: str, title: str = "share of pictures") -> Callable[[Rows, Path], list[Path]]:
    return partial(draw_points, stem=stem, panels_by="measure", across=across, title=title)


PROBES = Registry[Probe]("probe", group="softbias.probes", instance_of=Probe)
PROBES |= {
    "locality": Probe(locality.locality, locality.draw, "how far attention reaches, per layer and head"),
    "gates": Probe(
        learned_bias.gates, learned_bias.draw_gates, "gate, strength α, center and width of every positional head", 0, ()
    ),
    "masks": Probe(
        learned_bias.masks, learned_bias.draw_masks,
        "learned masks: distance from the start, rank used, reach, the mask itself", 0, (),
    ),
    "gradient-biasing": Probe(
        gradient_biasing.gradient_biasing, gradient_biasing.draw,
        "the gradient on scores and on the map by distance, beside the mask", 200, ((3, 1),),
    ),
    "rollout": Probe(
        faithfulness.rollout_agreement, faithfulness.draw_rollout,
        "how many patches a rollout calls important, and how far rollouts agree", 1000, ((3, 1),),
    ),
    "faithfulness": Probe(
        faithfulness.faithfulness, faithfulness.draw_faithfulness,
        "insertion and deletion: which explanation to believe", 200, ((280, 1),),
    ),
    "combined": Probe(
        scenes.combined_probe, scenes.draw_combined, "four pictures in one: Top-4 matching, histogram",
        5000, ((1, 1), (1, 2)), scenes=True,
    ),
    "background": Probe(
        scenes.background_probe, scenes.draw_background, "a picture on a background of four times its side: accuracy",
        5000, ((1, 1), (1, 4)), scenes=True,
    ),
    "shift": Probe(
        shift.shift, points("shift", "pixels", "share, or cosine"),
        "translation: whether the class stays and features follow", 1000, ((20, 1),),
    ),
    "rotation": Probe(changes.rotation, points("rotation", "angle"), "rotation: same class, accuracy", 1000, ((7, 1),)),
    "patch-shuffle": Probe(
        changes.patch_shuffle, points("patch_shuffle", "tiles"), "tiles in another order: same class, accuracy", 1000, ((4, 1),)
    ),
    "occlusion": Probe(
        changes.occlusion, points("occlusion", "hidden"), "a share of the picture hidden: same class, accuracy", 1000, ((4, 1),)
    ),
    "texture": Probe(
        changes.texture, points("texture", "swap"), "style swaps between pictures: shape or texture?", 1000, ((3, 1),)
    ),
    "receptive-field": Probe(
        receptive_field.receptive_field, receptive_field.draw, "the pixels that the middle feature depends on", 100, ((12, 1),)
    ),
    "resolution": Probe(
        resolution.resolution, resolution.draw, "less detail, and other sizes: same class, accuracy",
        1000, ((4, 1), (1, 0.75), (1, 1.5), (1, 2)),
    ),
    "illustrations": Probe(
        illustrations.illustrations, illustrations.draw, "figures of positional attention and of mask targets", 0, ()
    ),
    "convolution": Probe(
        convolution.convolution, convolution.draw, "a convolution built from positional heads: the same output, one tap a head",
        0, (),
    ),
    "profile": Probe(
        profile.profile, profile.draw, "the most telling numbers of all probes: one page, one table",
        passes=((30, 1), (1, 2)), scene_passes=((2, 1), (1, 2), (1, 4)),
    ),
}  # fmt: skip
register_probe = PROBES.register
find_probe = PROBES.find
list_probes = PROBES.names

SUMMARIES = ("profile", "illustrations", "convolution")  # probes that measure nothing beyond the others
