"""Why a model decided as it did, for one picture.

    seen = softbias.explain("runs/flowers-…", "rose.jpg")
    seen.label, seen.confidence, seen.relevance["gradient-rollout"], seen.looks((2, 3))[0]
    seen.draw().savefig("rose.png");  seen.save("rose.html")          # in a notebook it shows itself

Compute first, then draw: everything here is an array; `figure` and `html` only draw.

Shapes: H heads, N tokens, P = h × w patches, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from softbias.attention.gated import Gated
from softbias.attention.masked import Masked
from softbias.attention.positional import Positional
from softbias.classifier import Classifier, Picture
from softbias.errors import SoftbiasError, unknown_name
from softbias.grid import Grid
from softbias.models.inspect import attention_sites
from softbias.probes.attribution import (
    METHODS,
    GradientInspection,
    inspect_with_gradients,
    methods_for,
    pooled,
    relevance_by_gradient,
)
from softbias.probes.features import cells
from softbias.probes.rollout import output_rows as rows_of_output
from softbias.probes.rollout import relevance, rollout

Array = NDArray[np.float32]
SHOWN = ("rollout", "gradient-rollout", "gradients", "grad-cam")  # of one picture, where the model has them


@dataclass(frozen=True)
class Explanation:
    """picture        as the model saw it, (height, width, 3)
    probabilities  (K,);  target: the class that gradients are about, the predicted one unless another was asked for
    relevance      method -> (h, w), shares
    maps           layer -> (H, N, N);  grids: layer -> where its tokens sit
    gates          layer -> (H,): the share of place in gated heads
    bias           layer -> (H, N, N) learned mask, or (H, P, P) positional map, whatever the picture
    notes          what this model has not, in sentences
    """

    model: str
    weights: str
    picture: NDArray[np.uint8]
    class_names: tuple[str, ...]
    probabilities: Array
    target: int
    relevance: dict[str, Array] = field(default_factory=dict)
    maps: dict[int, Array] = field(default_factory=dict)
    grids: dict[int, Grid] = field(default_factory=dict)
    gates: dict[int, Array] = field(default_factory=dict)
    bias: dict[int, Array] = field(default_factory=dict)
    mechanisms: dict[int, str] = field(default_factory=dict)
    query: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    name: str = "picture"

    @property
    def label(self) -> str:
        return self.class_names[int(self.probabilities.argmax())]

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The likeliest classes."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[place], float(self.probabilities[place])) for place in order]

    def at(self, query: tuple[int, int]) -> Explanation:
        """The same, seen from another patch."""
        return replace(self, query=check_query(query, self.grids))

    def looks(self, query: tuple[int, int] | None = None) -> dict[int, Array]:
        """Where each head looks from a patch; what goes to a class token is left out.  # layer -> (H, h, w)"""
        place = self.query if query is None else check_query(query, self.grids)
        return {} if place is None else {layer: rows(found, self.grids[layer], place) for layer, found in self.maps.items()}

    def looks_of_class_token(self) -> dict[int, Array]:
        """Where the class token looks, in the layers that have one.  # layer -> (H, h, w)"""
        return {
            layer: found[:, 0, grid.prefix :].reshape(-1, grid.height, grid.width)
            for layer, found in self.maps.items()
            if (grid := self.grids[layer]).prefix
        }

    def biases(self, query: tuple[int, int] | None = None) -> dict[int, Array]:
        """The learned mask or positional map around a patch.  # layer -> (H, h, w)"""
        place = self.query if query is None else check_query(query, self.grids)
        return {} if place is None else {layer: rows(found, self.grids[layer], place) for layer, found in self.bias.items()}

    def signed(self, layer: int) -> bool:
        return bool((self.maps[layer] < 0).any())

    def to_dict(self) -> dict[str, Any]:
        """For machines: everything but the pixels and the whole maps, of which the rows of the query are there."""
        return {
            "picture": self.name,
            "model": self.model,
            "weights": self.weights,
            "label": self.label,
            "confidence": self.confidence,
            "target": self.class_names[self.target],
            "probabilities": {name: float(p) for name, p in zip(self.class_names, self.probabilities, strict=True)},
            "relevance": {name: rounded(found) for name, found in self.relevance.items()},
            "query": list(self.query) if self.query else None,
            "attention": {str(layer): rounded(found) for layer, found in self.looks().items()},
            "gates": {str(layer): rounded(found) for layer, found in self.gates.items()},
            "bias": {str(layer): rounded(found) for layer, found in self.biases().items()},
            "mechanisms": {str(layer): name for layer, name in self.mechanisms.items()},
            "notes": list(self.notes),
        }

    def draw(self) -> Any:
        """A matplotlib figure of it all."""
        from softbias.explanations.figure import draw

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write *.png or *.html, by the name of the file."""
        path = Path(path)
        kinds = {".png": lambda: path.write_bytes(png(self)), ".html": lambda: path.write_text(page(self), encoding="utf-8")}
        if path.suffix.lower() not in kinds:
            raise SoftbiasError(f"an explanation is saved as *.png or *.html, but got {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        kinds[path.suffix.lower()]()
        return path

    def _repr_html_(self) -> str:
        from softbias.explanations.html import fragment

        return fragment(self)


def png(seen: Explanation) -> bytes:
    from softbias.explanations.figure import as_png

    return as_png(seen)


def page(seen: Explanation) -> str:
    from softbias.explanations.html import page

    return page(seen)


def rounded(found: Array) -> Any:
    return np.round(found.astype(np.float64), 6).tolist()


def rows(found: Array, grid: Grid, place: tuple[int, int]) -> Array:
    """The row of a patch without prefix tokens.  # (H, N, N) -> (H, h, w)"""
    prefix = found.shape[-1] - grid.patches  # a positional map has none, whatever the layer has
    return found[:, prefix + place[0] * grid.width + place[1], prefix:].reshape(-1, grid.height, grid.width)


def check_query(query: tuple[int, int], grids: dict[int, Grid]) -> tuple[int, int]:
    if not grids:
        raise SoftbiasError("this model has no attention maps, so there is no patch to look from")
    grid = next(iter(grids.values()))
    if len(query) != 2 or not (0 <= query[0] < grid.height and 0 <= query[1] < grid.width):
        raise SoftbiasError(
            f"the query must be a patch, row 0 to {grid.height - 1} and column 0 to {grid.width - 1}, but is {query}"
        )
    return int(query[0]), int(query[1])


def explain(
    model: nn.Module | Classifier,
    image: Picture,
    *,
    query: tuple[int, int] | None = None,
    target: int | str | None = None,
    methods: Sequence[str] | None = None,
) -> Explanation:
    """Explain one picture.

    image     a file, a PIL image, or an array (height, width, 3) of uint8
    query     the patch (row, column) from which heads look; the middle one if not given
    target    the class that gradients are about, by name or number; the predicted one if not given
    methods   of `softbias.probes.attribution.METHODS`; by default rollout, gradient-rollout and gradients, or grad-cam and
              gradients for a model without maps
    """
    classifier = Classifier.of(model)
    pixels = classifier.read(image)
    name = Path(image).name if isinstance(image, str | Path) else "picture"
    return explain_pixels(classifier, pixels, query=query, target=target, methods=methods, name=name)


def explain_pixels(
    classifier: Classifier,
    pixels: NDArray[np.uint8],
    *,
    query: tuple[int, int] | None = None,
    target: int | str | None = None,
    methods: Sequence[str] | None = None,
    name: str = "picture",
) -> Explanation:
    """The same for a picture of the model's size; one pass forward and one back, and what further methods take."""
    names = classifier.output_names
    images = classifier.tensor(pixels)
    wanted = None if target is None else torch.tensor([class_number(target, names)], device=images.device)
    seen = inspect_with_gradients(classifier.model, images, wanted)
    possible = methods_for(classifier.model, images)
    chosen = [method for method in SHOWN if method in possible] if methods is None else list(methods)
    for method in chosen:
        if method not in possible:
            raise unknown_name(f"way to explain {classifier.name}", method, possible)
    found = Explanation(
        classifier.name,
        classifier.weights,
        pixels,
        names,
        array(seen.logits.float().softmax(-1)[0]),
        int(seen.target[0]),
        {method: array(by_method(method, classifier, images, seen)[0]) for method in chosen},
        {layer: array(attention[0]) for layer, attention in seen.maps.items()},
        dict(seen.grid),
        notes=tuple(notes(seen, classifier)),
        name=name,
    )
    if seen.grid:
        grid = next(iter(seen.grid.values()))
        found = replace(found, **learned(classifier), query=(grid.height // 2, grid.width // 2))
    return found if query is None else found.at(query)


def by_method(method: str, classifier: Classifier, images: torch.Tensor, seen: GradientInspection) -> torch.Tensor:
    """Relevance, from what was seen already where that is enough."""
    model, layers = classifier.model, sorted(seen.maps)
    if method == "rollout":
        grid = seen.grid[layers[-1]]
        return relevance(rollout([seen.maps[layer] for layer in layers]), grid, rows_of_output(model, grid))
    if method == "gradient-rollout":
        return relevance_by_gradient(model, seen, layers)
    if method == "gradients":
        return pooled(images * seen.image_gradient, cells(model, images))
    return METHODS[method](model, images, seen.target)


def learned(classifier: Classifier) -> dict[str, Any]:
    """Mechanisms, gates and biases of every layer, read off the weights."""
    mechanisms, gates, bias = {}, {}, {}
    with torch.no_grad():
        for layer, site in enumerate(attention_sites(classifier.model, classifier.img_size)):
            module: Any = site.module
            mechanisms[layer] = type(module).__name__.lower()
            if isinstance(module, Gated):
                gates[layer], bias[layer] = array(module.gate.sigmoid()), array(module.place.map())
            elif isinstance(module, Positional):
                bias[layer] = array(module.place.map())
            elif isinstance(module, Masked):
                bias[layer] = array(module.mask())
            elif mechanisms[layer] == "gpsa":  # timm's ConViT; it knows its offsets after the first picture
                gates[layer] = array(module.gating_param.sigmoid().flatten())
                if module.rel_indices is not None:
                    scores = module.pos_proj(module.rel_indices).permute(0, 3, 1, 2)
                    bias[layer] = array(scores.softmax(-1)[0])
    return {"mechanisms": mechanisms, "gates": gates, "bias": bias}


def notes(seen: GradientInspection, classifier: Classifier) -> list[str]:
    said = []
    if classifier.weights.startswith("untrained"):
        said.append("The weights were never trained: this shows what the model starts from, not what it has learned.")
    if not seen.maps:
        said.append(
            "This model has no attention maps: what counts for its decision is read from gradients instead "
            "(Grad-CAM on its last feature map, and the gradient of the pixels)."
        )
        return said
    if any((attention < 0).any() for attention in seen.maps.values()):
        said.append(
            "Some maps have negative entries (learned masks under the Frobenius norm): rollout takes their absolute values; "
            "the gradient-weighted rollout needs no such rule."
        )
    depth = len(attention_sites(classifier.model, classifier.img_size))
    if len(seen.maps) < depth:
        without = sorted(set(range(depth)) - set(seen.maps))
        said.append(f"Layers {without} mix patches without attention; rollout passes them over.")
    return said


def class_number(target: int | str, names: tuple[str, ...]) -> int:
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, str) and not target.isdigit():
        raise unknown_name("class", target, names)
    number = int(target)
    if not 0 <= number < len(names):
        raise SoftbiasError(f"the model has classes 0 to {len(names) - 1}, but target={target}")
    return number


def array(tensor: torch.Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()
