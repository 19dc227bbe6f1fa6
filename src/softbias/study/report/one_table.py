"""All models and data sets in one table, beside the published numbers, as a paper prints it.

The columns after the model are its settings, where arms differ in them: the regularizer with its layer, the side of a patch,
and how it was fine-tuned. Layers are ordinal numbers there, because documents count them from 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress

from softbias.errors import SoftbiasError
from softbias.models.presets import preset_spec
from softbias.pages.charts import Cell, Table
from softbias.pages.format import amount_text
from softbias.regularizers import RegularizerConfig, parse_regularizer
from softbias.study.arms import Arm, read_recipe
from softbias.study.headline import each
from softbias.study.report.main_metric import reference_levels
from softbias.study.report.results import Results
from softbias.study.spec import StudySpec

KINDS = {"distance": "2D distance", "style": "region similarity"}  # as ARViT's document calls them
TUNED = {"full": "all weights", "linear": "the head alone", None: "–"}


def one_table(results: Results) -> Table:
    """A row per arm, a column per data set, ours or published."""
    material, metric = results.material, results.metric
    published = results.published[results.published["metric"] == metric.name]
    sets = list(dict.fromkeys([*material.sets, *published["data"]]))
    columns = settings_of(material.study, material.arms) if material.study else {}
    ours = {(row.arm, row.data): row for row in each(results.summary)}
    rows: list[list[Cell]] = []
    for arm in dict.fromkeys([*material.arms, *published["arm"]]):
        cells = [Cell(str(arm), number=results.number(arm)), *(Cell(texts.get(arm, "–")) for texts in columns.values())]
        for data in sets:
            found = ours.get((arm, data))
            main = "–" if found is None else metric.plus_minus(found.value, found.seeds_low, found.seeds_high)
            others = published[(published["arm"] == arm) & (published["data"] == data)]["printed"]
            cells.append(Cell(main, (f"({' / '.join(others)})",) if len(others) else ()))
        rows.append(cells)
    levels = [list(reference_levels(results, data).values()) if data in material.sets else [] for data in sets]
    if any(levels):
        texts = [metric.number(one[0] / metric.factor) if one else "–" for one in levels]
        name = "raw-pixel baseline" if metric.name == "accuracy" else "random answers"
        rows.append([Cell(name), *(Cell("") for _ in columns), *map(Cell, texts)])
    amounts = {data: material.amounts(data)[0] for data in material.sets}
    head = [f"{data}, {amount_text(amounts[data])}" if amounts.get(data, 1.0) != 1 else str(data) for data in sets]
    note = f"{metric.heading}{' in percent' if metric.share else ''}."
    note += " ± is the 95 % t interval over seeds." if results.seeds > 1 else ""
    note += " In parentheses: the published number, with all the data." if len(published) else ""
    absent = [str(data) for data in sets if data not in material.sets]
    note += f" Not among our runs: {', '.join(absent)}." if absent else ""
    caption = f"{metric.heading}{', percent' if metric.share else ''}: all models and data sets"
    return Table("all", caption, ["model", *columns, *head], rows, note)


def settings_of(study: StudySpec, names: list[str]) -> dict[str, dict[str, str]]:
    """Title -> arm -> text: the settings that the arms differ in."""
    arms = [arm for arm in study.arms if arm.name in names]
    found: dict[str, dict[str, str]] = {}
    losses = {arm.name: losses_of(study, arm) for arm in arms}
    if any(losses.values()):
        texts: dict[str, Callable[[RegularizerConfig], str]] = {
            "regularization": lambda one: KINDS.get(one.name, one.name),
            "layer": lambda one: ", ".join(ordinal(layer + 1) for layer in one.layers),
        }
        for title, text in texts.items():
            found[title] = {name: "; ".join(map(text, configs)) for name, configs in losses.items() if configs}
        found["patch"] = {arm.name: patch_of(study, arm) for arm in arms if losses[arm.name]}
    tuned = {arm.name: TUNED[arm.finetune] for arm in arms}
    if len(set(tuned.values())) > 1:
        found["fine-tuned"] = tuned
    return found


def losses_of(study: StudySpec, arm: Arm) -> list[RegularizerConfig]:
    """The regularizers of an arm, in its own training or in the one before."""
    recipes = [read_recipe(arm.recipe, study.recipe), *([arm.pretrain.recipe] if arm.pretrain else [])]
    return [parse_regularizer(text) for recipe in recipes for text in recipe.regularize]


def patch_of(study: StudySpec, arm: Arm) -> str:
    """The side of a patch in pixels."""
    size = {**study.data_options, **arm.data_options}.get("img_size")
    with suppress(SoftbiasError, AttributeError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few patches, which appeared when the study was planned
        height, width = preset_spec(arm.model, img_size=size, **arm.model_options).patch_size  # type: ignore[union-attr]
        return str(height) if height == width else f"{height} × {width}"
    return "–"


def ordinal(number: int) -> str:
    """
    >>> [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 22)]
    ['1st', '2nd', '3rd', '4th', '11th', '12th', '22nd']
    """
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else ending}"
