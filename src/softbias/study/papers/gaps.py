"""How far one arm is ahead of another, and how large models are, beside what a paper prints; and accuracy over the share of the
pictures that a pre-training had."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas

from softbias.models import create_model
from softbias.models.cost import count_macs, count_parameters
from softbias.pages.charts import Axis, Chart, Series
from softbias.pages.format import amount_text
from softbias.pages.static import save, sheet
from softbias.study.papers.measure import ArmValue, arms_in_order, compared_runs, draw_beside, with_margin, write_table
from softbias.study.papers.named import Measurement
from softbias.study.scores import EXTRA
from softbias.study.spec import read_study

METRICS = {"accuracy": "top-1", "top5": "top-5"}
SIDE, CLASSES = 224, 1000  # of the models whose sizes papers print


def paired(frame: pandas.DataFrame, arm: str, other: str, metric: str) -> pandas.DataFrame:
    """The scores of two arms on the same data, amount and seed: columns data, amount, seed, arm, other."""
    found = [frame[frame["arm"] == name][["data", "amount", "seed", metric]] for name in (arm, other)]
    pairs = found[0].merge(found[1], on=["data", "amount", "seed"], suffixes=("_arm", "_other"))
    return pairs.rename(columns={f"{metric}_arm": "arm", f"{metric}_other": "other"})


def relative_gaps(
    folder: Path, arm: str, other: str, published: Mapping[str, Mapping[float, float]], whose: str
) -> Measurement:
    """The gap (arm − other) / other in percent at every amount of data. published: metric -> amount -> gap."""
    frame = compared_runs(folder)
    panels: dict[str, list[ArmValue]] = {}
    rows: list[dict[str, Any]] = []
    for metric, printed in published.items():
        pairs = paired(frame, arm, other, metric).dropna()
        pairs = pairs[pairs["other"] > 0]
        for amount, cell in pairs.groupby("amount"):
            gaps = (100 * (cell["arm"] - cell["other"]) / cell["other"]).tolist()
            value = ArmValue.over_seeds(amount_text(float(str(amount))), gaps, printed.get(float(str(amount))))
            panels.setdefault(METRICS[metric], []).append(value)
            rows.append({"metric": metric, "amount": amount, "seeds": len(gaps), **vars(value)})
    table = pandas.DataFrame(rows).drop(columns="arm", errors="ignore")
    title = f"{arm} over {other}, percent of {other}'s"
    names = f"ours, on {', '.join(dict.fromkeys(frame['data']))}", "published, on imagenet"
    figures = (draw_beside(panels, folder / EXTRA / "gaps.png", title, whose=names),) if panels else ()
    about = (
        f"({arm} − {other}) / {other}, a row for each share of the training pictures; mean over seeds of paired runs, with its "
        f"95 % interval. Open diamonds: {whose}."
    )
    return Measurement(f"The relative gap between {arm} and {other}", about, figures, (write_table(table, folder, "gaps"),))


def gaps_to(
    folder: Path, others: Mapping[str, str], published: Mapping[str, Mapping[str, float]], called: tuple[str, str], about: str
) -> list[Measurement]:
    """The difference of arms to other arms in points, a panel for each set.

    others      arm -> the arm to compare it with
    published   data -> arm -> points
    called      the title, and the name of the files
    """
    frame = compared_runs(folder)
    rows: list[dict[str, Any]] = []
    panels: dict[str, list[ArmValue]] = {}
    for arm, other in others.items():
        for data, cell in paired(frame, arm, other, "accuracy").groupby("data", sort=False):
            points = (100 * (cell["arm"] - cell["other"])).tolist()
            same = bool((cell["amount"] == 1).all())  # the published numbers are those of all the data
            value = ArmValue.over_seeds(arm, points, published.get(str(data), {}).get(arm) if same else None)
            panels.setdefault(str(data), []).append(value)
            rows.append({"data": data, "other": other, "seeds": len(points), **vars(value)})
    if not rows:
        return []
    picture = draw_beside(panels, folder / EXTRA / f"{called[1]}.png", "difference, points of accuracy")
    table = write_table(pandas.DataFrame(rows), folder, called[1])
    beside = any(one.published is not None for values in panels.values() for one in values)
    text = (
        f"Differences of test accuracy, over paired seeds. {about if beside else 'The document has no numbers for these sets.'}"
    )
    return [Measurement(called[0], text, (picture,), (table,))]


def pretraining_shares(folder: Path) -> list[Measurement]:
    """Accuracy over the share of the pictures that pre-training had: a line for each kind of arm, a panel for each set."""
    frame = compared_runs(folder)
    shares = {arm.name: arm.pretrain.train_fraction for arm in read_study(folder).arms if arm.pretrain}
    frame["share"] = [shares.get(arm) for arm in frame["arm"]]
    frame["kind"] = [arm.rpartition(", ")[0] for arm in frame["arm"]]
    table = frame[frame["share"].notna()].groupby(["data", "kind", "share"], sort=False)["accuracy"].agg(["mean", "count"])
    rows = table.reset_index().rename(columns={"mean": "accuracy", "count": "seeds"}).sort_values(["data", "kind", "share"])
    if rows.empty:
        return []
    kinds = list(dict.fromkeys(frame["kind"]))
    ticks = [(100 * share, f"{100 * share:g}") for share in sorted(set(rows["share"]))]
    x = Axis("pictures of pre-training, %", log=True, ticks=ticks, range=with_margin([at for at, _ in ticks], True))
    y = Axis("test accuracy, %", range=with_margin((100 * rows["accuracy"]).tolist(), False))
    charts = []
    for data, cell in rows.groupby("data", sort=False):
        series = []
        for number, kind in enumerate(kinds):
            line = cell[cell["kind"] == kind]
            series.append(Series("line", kind, (100 * line["share"]).tolist(), (100 * line["accuracy"]).tolist(), number))
        charts.append(Chart("pretraining_shares", str(data), series, x, y, names=kinds))
    picture = save(sheet(charts, width=4.4, height=3.3), folder / EXTRA, "pretraining_shares")
    about = "Test accuracy after fine-tuning all weights, mean over seeds. Every pre-training took the same number of steps."
    files = (write_table(rows, folder, "pretraining_shares"),)
    return [Measurement("Accuracy over the share of pre-training pictures", about, (picture,), files)]


def model_costs(
    folder: Path,
    models: Mapping[str, tuple[str, Mapping[str, Any]]],
    published: Mapping[str, tuple[float, float]],
    whose: str,
) -> Measurement:
    """Million parameters and 10⁹ multiply-accumulates of a paper's models, at its size and number of classes.

    models      arm -> preset and options, which need no run: smaller models may stand in for them at this scale
    published   arm -> million parameters, 10⁹ operations
    """
    named = {arm.name for arm in arms_in_order(folder, compared_runs(folder))}
    rows: list[dict[str, Any]] = []
    for arm, (preset, options) in models.items():
        if arm not in named:
            continue
        model = create_model(preset, num_classes=CLASSES, img_size=SIDE, device="meta", **options)
        own = count_parameters(model) / 1e6, count_macs(model, 3, SIDE, SIDE) / 1e9
        rows.append({"arm": arm, "parameters": own[0], "macs": own[1]})
        rows[-1] |= dict(zip(("published_parameters", "published_macs"), published[arm], strict=True))
    figures = []
    for column, title in (("parameters", "million parameters"), ("macs", "10⁹ multiply-accumulates")):
        values = [ArmValue(row["arm"], row[column], published=row[f"published_{column}"]) for row in rows]
        figures.append(draw_beside({"": values}, folder / EXTRA / f"model_{column}.png", title, log=True))
    about = (
        f"The paper's models at {SIDE} px and {CLASSES:,} classes, whatever was trained here. Open diamonds: {whose}, which "
        "are rounded and call a multiply-accumulate a flop."
    )
    table = write_table(pandas.DataFrame(rows), folder, "model_costs")
    return Measurement("Size and operations", about, tuple(figures), (table,))
