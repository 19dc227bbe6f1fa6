"""Why a model decided as it did, for one picture.

    found = softbias.explain("runs/flowers-…", "rose.jpg")
    found.label, found.confidence, found.relevance["gradient-rollout"], found.attention_from((2, 3))[0]
    found.draw().savefig("rose.png");  found.save("rose.html")          # in a notebook it shows itself

Everything here is an array; `figure` only draws.

Shapes: H heads, N tokens, P = h × w patches, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from softbias.attention import NoAttentionMapError
from softbias.classifier import Classifier, Picture, finite
from softbias.errors import SoftbiasError, unknown_name
from softbias.files import write_bytes, write_text
from softbias.grid import Grid
from softbias.models.inspect import attention_sites
from softbias.notes import Note
from softbias.pages.wording import text
from softbias.probes.attribution import (
    METHODS,
    GradientInspection,
    inspect_with_gradients,
    methods_for,
    pooled,
    relevance_by_gradient,
)
from softbias.probes.features import cells
from softbias.probes.rollout import output_rows, relevance, rollout

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float32]
DEFAULT_METHODS = ("rollout", "gradient-rollout", "gradients", "grad-cam")  # where they suit the model


@dataclass(frozen=True)
class Explanation:
    """picture        as the input of the model, (height, width, 3)
    probabilities  (K,);  target: the class that gradients are about, the predicted one unless another was asked for
    relevance      method -> (h, w), shares
    maps           layer -> (H, N, N);  grids: layer -> the positions of its tokens
    gates          layer -> (H,): the share of position in gated heads
    bias           layer -> (H, P, P): learned mask or positional map, independent of the picture;  bias_names: its name
    mechanisms     layer -> the name of its attention
    query          the patch (row, column) whose attention is shown
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
    bias_names: dict[int, str] = field(default_factory=dict)
    mechanisms: dict[int, str] = field(default_factory=dict)
    query: tuple[int, int] | None = None
    notes: tuple[Note, ...] = ()
    name: str = "picture"

    @property
    def label(self) -> str:
        return self.class_names[int(self.probabilities.argmax())]

    @property
    def confidence(self) -> float:
        return float(self.probabilities.max())

    def top(self, count: int = 5) -> list[tuple[str, float]]:
        """The most likely classes."""
        order = np.argsort(-self.probabilities, kind="stable")[:count]
        return [(self.class_names[number], float(self.probabilities[number])) for number in order]

    def at(self, query: tuple[int, int]) -> Explanation:
        """The same for another query patch."""
        return replace(self, query=check_query(query, self.grids))

    def attention_from(self, query: tuple[int, int] | None = None) -> dict[int, Array]:
        """The attention of every head from a patch to all patches, without the class token.  # layer -> (H, h, w)"""
        return self.rows_of(self.maps, query)

    def bias_from(self, query: tuple[int, int] | None = None) -> dict[int, Array]:
        """The learned mask or positional map of every head around a patch.  # layer -> (H, h, w)"""
        return self.rows_of(self.bias, query)

    def rows_of(self, maps: dict[int, Array], query: tuple[int, int] | None) -> dict[int, Array]:
        patch = self.query if query is None else check_query(query, self.grids)
        return {} if patch is None else {layer: patch_row(found, self.grids[layer], patch) for layer, found in maps.items()}

    def class_token_attention(self) -> dict[int, Array]:
        """The attention of the class token to all patches, in the layers that have one.  # layer -> (H, h, w)"""
        return {
            layer: found[:, 0, grid.prefix :].reshape(-1, grid.height, grid.width)
            for layer, found in self.maps.items()
            if (grid := self.grids[layer]).prefix
        }

    def signed(self, layer: int) -> bool:
        """Whether the map of a layer has negative entries."""
        return bool((self.maps[layer] < 0).any())

    def to_dict(self) -> dict[str, Any]:
        """For machines: everything but the pixels and the whole maps, of which the rows of the query are included."""
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
            "attention": {str(layer): rounded(found) for layer, found in self.attention_from().items()},
            "gates": {str(layer): rounded(found) for layer, found in self.gates.items()},
            "bias": {str(layer): rounded(found) for layer, found in self.bias_from().items()},
            "mechanisms": {str(layer): name for layer, name in self.mechanisms.items()},
            "notes": [{**note.to_dict(), "text": text(note)} for note in self.notes],
        }

    def draw(self) -> Figure:
        """A matplotlib figure of everything."""
        from softbias.explanations.figure import draw

        return draw(self)

    def save(self, path: str | Path) -> Path:
        """Write *.png or *.html, by the name of the file."""
        from softbias.explanations.figure import as_png, page

        path = Path(path)
        if path.suffix.lower() not in (".png", ".html"):
            raise SoftbiasError(f"an explanation is saved as *.png or *.html, but got {path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".png":
            write_bytes(path, as_png(self))
        else:
            write_text(path, page(self))
        return path

    def _repr_html_(self) -> str:
        from softbias.explanations.figure import fragment

        return fragment(self)


def rounded(found: Array) -> Any:
    return np.round(found.astype(np.float64), 6).tolist()


def patch_row(found: Array, grid: Grid, patch: tuple[int, int]) -> Array:
    """The row of a patch, without prefix tokens.  # (H, N, N) or (H, P, P) -> (H, h, w)"""
    prefix = found.shape[-1] - grid.patches  # a bias has none
    return found[:, prefix + patch[0] * grid.width + patch[1], prefix:].reshape(-1, grid.height, grid.width)


def check_query(query: tuple[int, int], grids: dict[int, Grid]) -> tuple[int, int]:
    if not grids:
        raise NoAttentionMapError("this model has no attention maps, so no patch can be the query")
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
    query     the patch (row, column) whose attention is shown; the middle one if not given
    target    the class that gradients are about, by name or number; the predicted one if not given
    methods   of `softbias.probes.attribution.METHODS`; by default rollout, gradient-rollout and gradients, or grad-cam and
              gradients for a model without maps
    """
    classifier = Classifier.of(model)
    resized = classifier.read(image)
    name = Path(image).name if isinstance(image, str | Path) else "picture"
    return explain_array(classifier, resized, query=query, target=target, methods=methods, name=name)


def explain_array(
    classifier: Classifier,
    image: NDArray[np.uint8],
    *,
    query: tuple[int, int] | None = None,
    target: int | str | None = None,
    methods: Sequence[str] | None = None,
    name: str = "picture",
) -> Explanation:
    """The same for a picture of the model's size; one pass forward and one back, and those of further methods."""
    model, names = classifier.model, classifier.output_names
    images = classifier.tensor(image)
    wanted = None if target is None else torch.tensor([class_number(target, names)], device=images.device)
    inspection = inspect_with_gradients(model, images, wanted)
    possible = methods_for(model, images)
    chosen = [method for method in DEFAULT_METHODS if method in possible] if methods is None else list(methods)
    for method in chosen:
        if method not in possible:
            raise unknown_name(f"way to explain {classifier.name}", method, possible)
    found = Explanation(
        classifier.name,
        classifier.weights,
        image,
        names,
        array(finite(inspection.logits.float(), classifier.name).softmax(-1)[0]),
        int(inspection.target[0]),
        {method: array(by_method(method, model, images, inspection)[0]) for method in chosen},
        {layer: array(attention[0]) for layer, attention in inspection.maps.items()},
        dict(inspection.grid),
        notes=tuple(notes_on(inspection, classifier)),
        name=name,
    )
    if inspection.grid:
        grid = next(iter(inspection.grid.values()))
        found = replace(found, **learned_bias(classifier), query=(grid.height // 2, grid.width // 2))
    return found if query is None else found.at(query)


def by_method(method: str, model: nn.Module, images: Tensor, inspection: GradientInspection) -> Tensor:
    """Relevance by a method; the inspection is enough for the usual ones."""
    layers = sorted(inspection.maps)
    if method == "rollout":
        grid = inspection.grid[layers[-1]]
        return relevance(rollout([inspection.maps[layer] for layer in layers]), grid, output_rows(model, grid))
    if method == "gradient-rollout":
        return relevance_by_gradient(model, inspection, layers)
    if method == "gradients":
        return pooled(images * inspection.image_gradient, cells(model, images))
    return METHODS[method](model, images, inspection.target)


@torch.no_grad()
def learned_bias(classifier: Classifier) -> dict[str, Any]:
    """Mechanisms, gates and biases of every layer, read off the weights."""
    found: dict[str, dict[int, Any]] = {"mechanisms": {}, "gates": {}, "bias": {}, "bias_names": {}}
    for layer, site in enumerate(attention_sites(classifier.model, classifier.img_size)):
        attention, bias = site.attention, site.attention.bias_map()
        found["mechanisms"][layer] = site.name
        if bias is not None:
            found["bias"][layer], found["bias_names"][layer] = array(bias), attention.bias_name
        if "gate" in attention.bias_measures:
            gates = [row["value"] for row in attention.bias_rows() if row["measure"] == "gate"]
            found["gates"][layer] = np.array(gates, np.float32)
    return found


def notes_on(inspection: GradientInspection, classifier: Classifier) -> list[Note]:
    notes = []
    if classifier.weights.startswith("untrained"):
        notes.append(Note("never-trained"))
    if not inspection.maps:
        return [*notes, Note("no-attention-maps")]
    if any((attention < 0).any() for attention in inspection.maps.values()):
        notes.append(Note("signed-maps"))
    depth = len(attention_sites(classifier.model, classifier.img_size))
    if len(inspection.maps) < depth:
        notes.append(Note("layers-without-maps", {"layers": sorted(set(range(depth)) - set(inspection.maps))}))
    return notes


def class_number(target: int | str, names: tuple[str, ...]) -> int:
    if isinstance(target, str) and target in names:
        return names.index(target)
    if isinstance(target, str) and not target.isdigit():
        raise unknown_name("class", target, names)
    number = int(target)
    if not 0 <= number < len(names):
        raise SoftbiasError(f"the model has classes 0 to {len(names) - 1}, but target={target}")
    return number


def array(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()
