"""Positional attention is a convolution (Cordonnier et al., 2020), shown on one picture: both outputs, and each head's tap.

    softbias probe convit_nano --data fashion --probes convolution
    softbias probe resnet_nano --data fashion --probes convolution --option convolution.layer=conv1

K² heads, each of which looks at one offset from its query, are built from a kernel and compared with the convolution itself.
The kernel is an edge detector of K × K on the picture as the model gets it, or that of a convolution inside the model on its
real input. Heads look at positions alone here; `softbias.convert_convolutions` makes them for a model that goes on learning.

    borders "padded"        zeros around the picture are tokens, and their outputs are cut away: equal at every pixel
    borders "not padded"    attention over the picture alone: equal in the interior, and not at the border

Differences are the largest over all pixels, in units of the largest output of the convolution, in float64. How small they are
depends on how sharply a head looks, α: a finite α leaves about 4 e^(−α) of its attention to the neighbors of its tap.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from softbias.attention import ConversionError
from softbias.attention.positional import PositionBias
from softbias.bounds import Finite, Seed, ShortText, Side
from softbias.classifier import Classifier
from softbias.errors import NotMeasurableError, SoftbiasError
from softbias.grid import Grid
from softbias.models.convolution_heads import STRENGTH, ConvolutionHeads
from softbias.pages.static import heading, new_figure, save, show_map
from softbias.pages.theme import LIGHT
from softbias.probes.drawing import as_matrix, by_model
from softbias.probes.rows import Rows, labeled, model_label, without_interval
from softbias.probes.sampling import Source, sample

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STRENGTHS = (2.0, 4.0, 8.0, 12.0, 16.0, 20.0)
MOST_SIDE = 32  # of the picture's side: each is a token
AROUND = 1  # taps beyond the kernel that a figure shows
DIFFERENCE = "largest difference"
OF_OUTPUT = "of the largest output"
COMPUTED = "computed, not sampled"


@torch.no_grad()
def convolution(
    model: nn.Module | Classifier,
    data: Source,
    *,
    seed: Seed = 0,
    split: str = "test",
    layer: ShortText | None = None,
    side: Side = 3,
    strength: Finite = STRENGTH,
) -> Rows:
    """Differences between a convolution and its heads, the pixels of both for one picture, and the attention of every head.

    layer      the name of an nn.Conv2d of the model; an edge detector of `side` × `side` if not given
    strength   α of the heads in the figure
    """
    if side % 2 == 0:
        raise SoftbiasError(f"an edge detector has a middle, so side must be odd, but side={side}")
    classifier = Classifier.of(model)
    with torch.random.fork_rng(devices=[]):  # queries and keys are drawn, though nothing here depends on them
        rows = measure(classifier, data, seed, split, layer, side, strength)
    return labeled(classifier, "convolution", rows, kernel=layer or f"edge detector of {side} × {side}")


def measure(classifier: Classifier, data: Source, seed: int, split: str, layer: str | None, side: int, strength: float) -> Rows:
    image = next(iter(sample(data, classifier, n=1, seed=seed, split=split).batches()))[0].double()  # (1, 3, H, W)
    if layer is None:
        conv, seen = edge_detector(side), smaller(classifier.normalized(image))
    else:
        conv, seen = layer_and_input(classifier, image, layer)
    size = (seen.shape[-2], seen.shape[-1])
    try:
        heads = ConvolutionHeads.of(conv, size, strength=strength)
    except ConversionError as error:
        raise NotMeasurableError(f"{layer} of {classifier.name}: {error}") from error
    wanted = conv(seen)
    unit = wanted.abs().max().clamp_min(1e-300)
    about = {"layer": None, "head": None}
    found: Rows = []

    def add(difference: Tensor, where: str, borders: str, alpha: float) -> None:
        value = float(difference.abs().max() / unit) if difference.numel() else 0.0
        row = {"measure": DIFFERENCE, "unit": OF_OUTPUT, **about, "borders": borders, "where": where, "strength": alpha}
        found.append({**row, **without_interval(value, COMPUTED)})

    for alpha in sorted({*STRENGTHS, float(strength)}):
        add(ConvolutionHeads.of(conv, size, strength=alpha)(seen) - wanted, "everywhere", "padded", alpha)
    if heads.stride == 1 and wanted.shape[-2:] == seen.shape[-2:]:
        difference = without_padding(heads, seen) - wanted
        top, left = heads.first
        inner = difference[..., top : size[0] - top, left : size[1] - left].clone()
        add(inner, "interior", "not padded", strength)
        difference[..., top : size[0] - top, left : size[1] - left] = 0
        add(difference, "border", "not padded", strength)
    found.append({"measure": "heads", "unit": "heads", **about, **without_interval(heads.heads, COMPUTED)})
    made = heads(seen)
    channel = int(wanted.var((0, 2, 3)).argmax()) if wanted[0, 0].numel() > 1 else 0  # the channel with the most to see
    by_name = {"picture": seen.mean(1)[0], "convolution": wanted[0, channel], "heads, output": made[0, channel]}
    by_name["difference"] = made[0, channel] - wanted[0, channel]
    for name, values in by_name.items():
        found += cells(name, values, None)
    for head, tap in enumerate(taps(heads)):
        found += cells("tap", tap, head)
    return found


def edge_detector(side: int) -> nn.Conv2d:
    """Every pixel against the mean of its neighbors, over all colors; zeros beyond the border."""
    conv: nn.Conv2d = nn.utils.skip_init(nn.Conv2d, 3, 1, side, padding=side // 2, bias=False, dtype=torch.float64)
    weight = -torch.ones(side, side, dtype=torch.float64)
    weight[side // 2, side // 2] = max(1, side * side - 1)
    conv.weight.copy_((weight / weight.abs().max() / 3).expand(1, 3, -1, -1))
    return conv


def smaller(image: Tensor) -> Tensor:
    """The picture with at most MOST_SIDE a side."""
    larger = max(image.shape[-2:]) / MOST_SIDE
    if larger <= 1:
        return image
    size = [max(1, round(edge / larger)) for edge in image.shape[-2:]]
    return interpolate(image, size, mode="bilinear", antialias=True, align_corners=False)


def layer_and_input(classifier: Classifier, image: Tensor, layer: str) -> tuple[nn.Conv2d, Tensor]:
    """A copy of a convolution of the model in float64, and what it gets for the picture."""
    modules = dict(classifier.model.named_modules())
    conv = modules.get(layer)
    if not isinstance(conv, nn.Conv2d):
        known = ", ".join(name for name, module in modules.items() if isinstance(module, nn.Conv2d))
        raise NotMeasurableError(f"{classifier.name} has no convolution named {layer!r}, but {known or 'none at all'}")
    given: list[Tensor] = []
    hook = conv.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0].detach().clone()))
    try:
        classifier.logits(image.to(conv.weight))
    finally:
        hook.remove()
    if not given:
        raise NotMeasurableError(f"the convolution {layer} takes no part in the output of {classifier.name}")
    return copy.deepcopy(conv).cpu().double(), given[0].cpu().double()


def without_padding(heads: ConvolutionHeads, seen: Tensor) -> Tensor:
    """The same heads over the tokens of the picture alone.  # (1, C, height, width) -> (1, C', height, width)"""
    grid = Grid(*heads.size)
    position = PositionBias(heads.heads, grid, 1.0, [(0, 0)] * heads.heads).double()
    position.weight.copy_(heads.position.weight)
    width = heads.heads * heads.head_width
    values = heads.qkv(grid.as_tokens(seen))[..., 2 * width :].unflatten(-1, (heads.heads, heads.head_width)).transpose(1, 2)
    mixed = position(values).transpose(1, 2).flatten(2)
    out: Tensor = grid.as_image(heads.proj(mixed))
    return out


def taps(heads: ConvolutionHeads) -> Tensor:
    """The attention of the middle token, around it, for every head.  # (H, rows, columns)"""
    grid = heads.grid
    row, column = grid.height // 2, grid.width // 2
    centers = [(entry["measure"], entry["value"]) for entry in heads.bias_rows()]
    down, across = (
        max(abs(round(value)) for name, value in centers if name == kind) for kind in ("center_row", "center_column")
    )
    rows, columns = heads.position.axis_maps()
    seen = rows[:, row, :, None] * columns[:, column, None, :]  # (H, height, width)
    down, across = min(down + AROUND, row), min(across + AROUND, column)
    return seen[:, row - down : row + down + 1, column - across : column + across + 1]


def cells(measure: str, values: Tensor, head: int | None) -> Rows:
    return [
        {"measure": measure, "unit": "value", "layer": None, "head": head, "row": row, "column": column,
         **without_interval(value, COMPUTED)}
        for row, line in enumerate(values.tolist()) for column, value in enumerate(line)
    ]  # fmt: skip


def draw(rows: Rows, folder: Path) -> list[Path]:
    """convolution.png: the picture, the two outputs and their difference, and beside them what each head looks at."""
    models = by_model(rows)
    return [
        save(figure_of(of_model), folder, "convolution", name if len(models) > 1 else None) for name, of_model in models.items()
    ]


def figure_of(rows: Rows) -> Figure:
    found: dict[tuple[str, int | None], dict[tuple[int, int], float]] = {}
    for row in rows:
        if row.get("row") is not None:
            found.setdefault((row["measure"], row["head"]), {})[row["row"], row["column"]] = row["value"]
    maps = {key: as_matrix(values) for key, values in found.items()}
    heads = [key for key in maps if key[0] == "tap"]
    across = max(1, round(len(heads) ** 0.5))
    figure = new_figure(7.6, 4.1, dpi=110)
    halves: Any = figure.subfigures(1, 2)
    left, right = halves
    top, largest = (float(abs(maps[name, None]).max()) for name in ("convolution", "difference"))
    top = max(top, 1e-12)
    same = {"cmap": "RdBu_r", "vmin": -top, "vmax": top}
    panels: dict[str, tuple[str, dict[str, Any]]] = {
        "picture": ("picture", {"cmap": "gray"}),
        "convolution": ("convolution", same),
        "heads, output": (f"{len(heads)} heads", same),
        "difference": (f"difference: at most {largest:.0e}", same),
    }
    for axes, (name, (title, options)) in zip(left.subplots(2, 2).flat, panels.items(), strict=True):
        show_map(axes, maps[name, None], frame=LIGHT["line"], **options)
        axes.set_title(title, fontsize=8)
    grid = right.subplots(-(-len(heads) // across), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axes, key in zip(grid.flat, heads, strict=False):
        axes.set_axis_on()
        values = maps[key]
        show_map(axes, values, frame=LIGHT["line"], cmap="viridis", vmin=0, vmax=1)
        axes.plot(values.shape[1] // 2, values.shape[0] // 2, "+", color="white", markersize=6)
        if len(heads) <= 25:
            axes.set_title(f"head {key[1]}", fontsize=7)
    kernel = rows[0]["kernel"] if rows[0]["kernel"].startswith("edge") else f"{rows[0]['kernel']} of {model_label(rows[0])}"
    heading(figure, f"{kernel}: the convolution, and heads that each look at one tap from their query (+)")
    return figure
