"""The intervals that pages of results/ and docs/paper.md quote are those of the packed studies that they name."""

import functools
import importlib.util
import itertools
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats

from softbias.runs.live import read_live
from softbias.runs.run import Run
from softbias.study.archive import unpacked
from softbias.study.report.results import gather

ROOT = Path(__file__).parents[1]
EVIDENCE = ROOT / "results" / "evidence"
ON_ONE_STUDY = ("bias-nano", "eth-nano", "ibit-nano", "mixtures-nano", "pretraining")  # pages about a study or two
WHOLE = [ROOT / "results" / f"{name}.md" for name in ON_ONE_STUDY]
PAGES = [*sorted((ROOT / "results" / "claims").glob("*.md")), ROOT / "docs" / "paper.md", *WHOLE]
MEASURED_BY_PROBES = ("convit-locality-nano", "deep-nano", "sample-efficiency-long")
READ = (("locality", ["non_locality"]), ("gates", ["gate", "strength"]), ("masks", ["kernel_fit"]))  # measures by probe
QUOTED = re.compile(r"([+−]?\d+\.\d) \[(−?\d+\.\d), (−?\d+\.\d)\]")  # points have one digit; patches and cosines have two
QUOTED_OF_PROBES = re.compile(r"([+−]?\d+\.\d\d+) \[(−?\d+\.\d\d+), (−?\d+\.\d\d+)\]")
ROUNDING = 0.0501

DISTANCE = {f"distance, layer {layer}": 1 / 4 for layer in range(4)}
STYLE = {f"style, layer {layer}": 1 / 4 for layer in range(4)}
CONTRASTS: dict[str, list[dict[str, float]]] = {  # sums over several arms: the weight of each
    "arvit-less-nano": [{f"{loss}, a tenth": 1, "base, a tenth": -1, loss: -1, "base": 1} for loss in ("distance", "style")],
    "arvit-nano-layers": [DISTANCE | {"base": -1}],
    "arvit-nano": [DISTANCE | {"base": -1}, STYLE | {"base": -1}, STYLE | dict.fromkeys(DISTANCE, -1 / 4)],
    "bias-pretraining-nano": [
        {f"{model} after views": 1, "DeiT after views": -1, model: -1, "DeiT": 1} for model in ("ConViT", "IBiT")
    ],
    "ibit-parts-nano": [{"masks, CutMix": 1, "masks": -1, "no masks, softmax, CutMix": -1, "no masks, softmax": 1}],
    "sizes-nano": [{"ConViT, width 128": 1, "DeiT, width 128": -1, "ConViT, width 64": -1, "DeiT, width 64": 1}],
    "locality-nano": [
        {f"{layers} gated, α = {alpha}": sign / 2 for layers in (1, 3) for alpha, sign in ((2, 1), (0.5, -1))},
        {f"{layers} gated, α = {alpha}": sign / 3 for layers, sign in ((3, 1), (1, -1)) for alpha in (0.5, 1, 2)},
    ],
}
ELSEWHERE = {  # quoted with a study, but no differences of its scores
    "papers-nano beside mixtures-nano": ["2.4 [1.3, 3.5]", "2.0 [1.2, 2.9]", "−2.2 [−4.1, −0.3]", "−0.6 [−2.0, 0.9]"],
    "accuracy on held-out pictures after the first epoch": ["+5.2 [−11.0, 21.4]", "+2.1 [−0.8, 5.1]", "+0.7 [−0.7, 2.1]"],
    "the curve of head-start-nano": ["+2.3 [0.8, 3.7]", "2.3 [0.8, 3.7]", "−0.7 [−1.4, 0.0]", "+0.3 [−0.1, 0.7]"],
    "the first three of ten seeds": ["−1.4 [−1.7, −1.1]", "1.4 [1.1, 1.7]"],
    "convolution-start.csv, which has a test of its own": [
        "3.2 [1.0, 5.3]",
        "9.7 [7.5, 11.9]",
        "5.3 [4.0, 6.6]",
        "9.2 [7.1, 11.3]",
        "1.0 [0.3, 1.7]",
        "1.1 [0.3, 1.9]",
        "1.2 [0.5, 1.8]",
        "0.6 [0.2, 1.0]",
    ],
    "accuracy on training pictures": ["+6.0 [4.5, 7.5]", "6.0 [4.5, 7.5]", "+4.8 [2.1, 7.5]", "−1.2 [−3.0, 0.6]"],
}


def blocks(page: Path) -> Iterator[tuple[list[str], str]]:
    """The paragraphs and entries of lists that name packed studies: their names, and the text on one line."""
    text = page.read_text(encoding="utf-8")
    start = r"\n(?=\*\*\d+\.)" if page.stem == "paper" else r"\n(?=- |\n)"
    for block in [text] if page in WHOLE else re.split(start, text):
        names = [name for name in re.findall(r"[a-z][a-z0-9-]+", block) if (EVIDENCE / f"{name}.zip").is_file()]
        if names:
            yield sorted(set(names)), " ".join(block.split())


def number(text: str) -> float:
    return float(text.replace("−", "-"))


def is_known(row: list[float], known: np.ndarray) -> bool:
    return bool((np.abs(known - row) < ROUNDING).all(1).any())


def accuracy_on_rotations(study: Path) -> dict[tuple[str, float, str], pd.Series]:
    """The accuracy in percent of pre-trained models on rotated test pictures, by seed; a key per model, share and loss."""
    found: dict[tuple[str, float, str], dict[int, float]] = {}
    for file in sorted(study.glob("runs/*/summary.json")):
        summary = json.loads(file.read_text())
        if summary["objective"] == "rotation":
            arm = " ".join([summary["model"], *(summary["regularize"] or [])])
            key = ("rotations", summary["train_fraction"], arm)
            found.setdefault(key, {})[summary["seed"]] = 100 * summary["test"]["accuracy"]
    return {key: pd.Series(values) for key, values in found.items()}


def by_arms(pairs: dict[tuple[str, str, str], dict[float, pd.Series]]) -> dict[tuple[str, str], list[pd.Series]]:
    """The differences of two arms, on every set and amount."""
    found: dict[tuple[str, str], list[pd.Series]] = {}
    for (_, arm, other), over in pairs.items():
        found.setdefault((arm, other), []).extend(over.values())
    return found


@functools.cache
def measured(study: str) -> np.ndarray:
    """Mean and interval over seeds of all scores, differences of two arms, and differences of these, in points.  # (n, 3)"""
    with unpacked(EVIDENCE / f"{study}.zip") as folder:
        runs = gather([folder]).runs
        rotations = accuracy_on_rotations(folder)
    cells = {key: cell.set_index("seed")["value"] * 100 for key, cell in runs.groupby(["data", "amount", "arm"])} | rotations
    profiles = ROOT / "results" / f"{study}.csv"
    if profiles.is_file():  # scores on scenes
        table = pd.read_csv(profiles)
        table["value"] *= np.where(table["unit"] == "share", 100, 1)
        for (measure, arm), part in table.groupby(["measure", "arm"]):
            cells[measure, 0.0, arm] = part.set_index("seed")["value"]
    pairs: dict[tuple[str, str, str], dict[float, pd.Series]] = {}
    for (data, amount, arm), (other_data, other_amount, other) in itertools.permutations(cells, 2):
        if (data, amount) == (other_data, other_amount):
            difference = cells[data, amount, arm] - cells[data, amount, other]
            pairs.setdefault((data, arm, other), {})[amount] = difference
    found = [*cells.values(), *(one for over in pairs.values() for one in over.values())]
    found += [a - b for over in pairs.values() for a, b in itertools.permutations(over.values(), 2)]
    for over in by_arms(pairs).values():
        found.append(sum(over) / len(over))  # the mean over all sets and amounts
    for data, amount in {key[:2] for key in cells}:
        for weights in CONTRASTS.get(study, []):
            if all((data, amount, arm) in cells for arm in weights):
                found.append(sum(weight * cells[data, amount, arm] for arm, weight in weights.items()))
    rows = []
    for values in (one.dropna() for one in found):
        if len(values) >= 3 and values.std() > 0:
            rows.append((values.mean(), *stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))))
    table = np.array(rows)
    return np.concatenate([table, -table[:, [0, 2, 1]]])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_quoted_interval_is_that_of_its_study(page):
    missing = []
    for studies, block in blocks(page):
        known = np.concatenate([measured(study) for study in studies])
        for quoted in QUOTED.findall(block):
            text = "{} [{}, {}]".format(*quoted)
            row = [number(one) for one in quoted]
            if not is_known(row, known) and text not in itertools.chain(*ELSEWHERE.values()):
                missing.append((studies, text))
    assert missing == []


@functools.cache
def ends_of_training(study: str) -> dict[tuple[str, str, float], tuple[pd.DataFrame, pd.DataFrame]]:
    """By measure, arm and amount, what probes measured at the first and the last epoch: a row per seed, a column per layer."""
    with unpacked(EVIDENCE / f"{study}.zip") as folder:
        rows = []
        for run in gather([folder]).runs.itertuples():
            for probe, measures in READ:
                found = pd.DataFrame(read_live(Run(run.run), probe))
                if len(found):
                    found = found[found["measure"].isin(measures) & found["head"].notna()]
                    rows.append(found.assign(arm=run.arm, amount=run.amount, seed=run.seed))
    table = pd.concat(rows)
    tables = {}
    for key, part in table.groupby(["measure", "arm", "amount"]):
        layers = part.pivot_table(index=["epoch", "seed"], columns="layer", values="value")
        tables[key] = (layers.loc[0], layers.loc[part["epoch"].max()])
    return tables


@functools.cache
def measured_by_probes(study: str) -> np.ndarray:
    """Mean and interval over seeds of changes through training, of differences at its end, and of correlations with the layer.

    # (n, 3)
    """
    tables = ends_of_training(study)
    found: list[pd.Series] = []
    parts: dict[tuple[str, float], list[dict[str, pd.Series]]] = {}
    for (measure, arm, amount), (start, end) in tables.items():
        gated = next((list(ends[1]) for key, ends in tables.items() if key[0] == "gate" and key[2] == amount), list(end))
        for columns in (list(end), [column for column in gated if column in end]):
            mean = end[columns].mean(axis=1)
            halves = (end[half].mean(axis=1) for half in (columns[len(columns) // 2 :], columns[: len(columns) // 2]))
            found += [mean, mean - start[columns].mean(axis=1), operator.sub(*halves)]
            found.append(pd.Series([stats.spearmanr(columns, values).statistic for values in end[columns].to_numpy()]))
            parts.setdefault((measure, amount), []).append({arm: mean})
        found += [end[layer] for layer in end] + [end[layer] - start[layer] for layer in end]
        found += [end[a] - end[b] for a, b in itertools.permutations(end, 2)]
    for means in parts.values():
        found += [b - a for one, other in itertools.permutations(means, 2) for a in one.values() for b in other.values()]
    rows = [(v.mean(), *stats.t.interval(0.95, len(v) - 1, v.mean(), stats.sem(v))) for v in found if len(v) > 2 and v.std()]
    return np.array(rows)


@pytest.mark.parametrize(("page", "at_least"), [("convit", 20), ("ibit", 5)])
def test_a_quoted_interval_of_a_probe_is_that_of_its_study(page, at_least):
    checked, missing = 0, []
    for studies, block in blocks(ROOT / "results" / "claims" / f"{page}.md"):
        if len(studies) == 1 and studies[0] in MEASURED_BY_PROBES:
            for quoted in QUOTED_OF_PROBES.findall(block):
                row, digits = [number(one) for one in quoted], len(quoted[0].split(".")[1])
                checked += 1
                if not (np.abs(measured_by_probes(studies[0]) - row) < 0.51 * 10**-digits).all(1).any():
                    missing.append((studies[0], quoted))
    assert missing == [] and checked > at_least


# These pages also quote means of runs that are not kept, and of measures beside the score.
MEANS_ELSEWHERE = ("beyond", "ibit", "mixtures-nano")


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem not in MEANS_ELSEWHERE], ids=lambda page: page.stem)
def test_a_quoted_mean_is_that_of_a_study_of_its_page(page):
    text = page.read_text(encoding="utf-8")
    studies = [name for name in set(re.findall(r"[a-z][a-z0-9-]+", text)) if (EVIDENCE / f"{name}.zip").is_file()]
    known = np.concatenate([measured(study) for study in studies])
    known = np.stack([known[:, 0], (known[:, 2] - known[:, 1]) / 2], axis=1)
    quoted = [[number(one) for one in pair] for pair in re.findall(r"(?<![\d.])(\d+\.\d) ± (\d+\.\d)(?![\d.])", text)]
    assert [row for row in quoted if not is_known(row, known)] == []


def test_a_changed_digit_is_caught():
    known = measured("sample-efficiency")
    assert is_known([7.4, 6.4, 8.5], known)
    assert not is_known([7.5, 6.4, 8.5], known)


def test_the_table_of_soft_biases_on_a_pretrained_model_is_that_of_its_runs():
    runs = pd.read_csv(ROOT / "results" / "soft-on-pretrained.csv").astype({"accuracy": "float64"})
    page = (ROOT / "results" / "soft-on-pretrained.md").read_text(encoding="utf-8").replace("−", "-")
    for (_, per_class), cell in runs.groupby(["set", "per_class"]):
        scores = cell.pivot(index="seed", columns="arm", values="accuracy") * 100
        texts = []
        for arm in ("gated", "masked"):
            gain = scores[arm] - scores["base"]
            low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
            texts.append(f"{gain.mean():+.2f} [{low:.2f}, {high:.2f}]".replace("+0.00", "0.00").replace("-0.00", "0.00"))
        assert (scores["distance"] == scores["base"]).all() and len(scores) == 5
        assert f"| {per_class} | {scores['base'].mean():.1f} | {' | '.join(texts)} | 0 |" in page


def test_what_a_start_from_trained_convolutions_gains_is_that_of_its_runs():
    table = pd.read_csv(ROOT / "results" / "convolution-start.csv")
    claim = (ROOT / "results" / "claims" / "convit.md").read_text(encoding="utf-8").split("## Trained convolutions")[1]
    text = " ".join(claim.split()).replace("−", "-")
    pairs = [(f"{kind}, trained", f"{kind}, fresh") for kind in ("heads", "convolutions")]
    pairs += [(f"heads, {weights}", f"convolutions, {weights}") for weights in ("trained", "fresh")]
    for _, cell in table.groupby("images"):
        scores = cell.pivot(index="seed", columns="arm", values="accuracy") * 100
        assert len(scores) >= 3 and not scores.isna().any(axis=None)
        for arm, other in pairs:
            gain = scores[arm] - scores[other]
            low, high = stats.t.interval(0.95, len(gain) - 1, gain.mean(), stats.sem(gain))
            assert f"{gain.mean():+.1f} [{low:.1f}, {high:.1f}]" in text, (arm, other)


@pytest.mark.slow
def test_the_figure_of_the_evidence_is_that_of_the_studies():
    spec = importlib.util.spec_from_file_location("draw_evidence", ROOT / "scripts" / "draw_evidence.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    drawn = Image.open(ROOT / "docs" / "evidence.png").info["Description"]
    assert drawn == script.as_text(script.tables()), "run python scripts/draw_evidence.py"
