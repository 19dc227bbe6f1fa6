"""Intervals and tests against closed forms, against scipy, and by simulation; the rules on what may be claimed."""

import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from softbias.stats import (
    bootstrap_interval,
    holm,
    image_bootstrap,
    paired_t,
    smallest_detectable,
    t_interval,
    wilson,
)
from softbias.study.comparison import compare_arms, prepare, summarize
from softbias.study.headline import headline
from softbias.study.learning_curve import crossing, curve_fits, data_to_match, fit_curve, matching_data

COVERED = (0.93, 0.97)  # of 95 %, by 2,000 simulations: ± 3.4 standard errors of a right one are ± 0.017


def frame_of(cells, n_test=1000, **changes):
    """Rows as runs_frame gives them; cells: (arm, fraction) -> accuracies by seed."""
    rows = [
        {
            "run": f"{arm}/{fraction}/{seed}", "id": f"{arm}{fraction}{seed}", "arm": arm, "model": arm, "data": "pets",
            "amount": float(fraction), "seed": seed, "objective": "supervised", "pretext": False,
            "n_train": round(5000 * fraction),
            "n_test": n_test, "accuracy": accuracy, "top5": 0.9, "balanced_accuracy": accuracy, "macro_f1": accuracy,
            "baseline_accuracy": 0.5, "parameters": 1000, "macs": 10, "steps": 5, "epochs": 1.0, "images_per_second": 100.0,
            "seconds": 2.0, "peak_memory": 1, "hardware": "x", "finished": True, **changes,
        }
        for (arm, fraction), accuracies in cells.items()
        for seed, accuracy in enumerate(accuracies)
        if accuracy is not None
    ]  # fmt: skip
    return pd.DataFrame(rows)


def without_images(run):
    return None


def test_t_interval_is_scipys_and_silent_about_one_value():
    values = [0.71, 0.69, 0.74, 0.70]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx(expected)
    assert np.isnan(t_interval([0.7])).all()


def test_two_seeds_have_twelve_point_seven_standard_errors():
    low, high = t_interval([0.70, 0.72])
    assert (high - low) / 2 == pytest.approx(12.7062 * 0.01, rel=1e-4)


def test_a_bootstrap_over_few_seeds_is_refused():
    with pytest.raises(ValueError, match="at least 10 of them, but there are 9"):
        bootstrap_interval(np.arange(9))
    values = np.random.default_rng(0).normal(size=40)
    assert bootstrap_interval(values) == pytest.approx(t_interval(values), abs=0.06)


def test_paired_t_is_scipys():
    one, other = [0.71, 0.75, 0.72, 0.70], [0.69, 0.74, 0.68, 0.69]
    found, expected = paired_t(one, other), stats.ttest_rel(one, other)
    assert found.p == pytest.approx(expected.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(expected.confidence_interval(0.95)))
    assert found.difference == pytest.approx(0.02) and found.n == 4


def test_equal_differences_of_counted_scores_are_not_called_certain():
    same = paired_t([0.71, 0.72, 0.73], [0.70, 0.71, 0.72], grain=1 / (100 * 6**0.5))
    assert same.sd == pytest.approx(1 / (100 * 6**0.5)) and 0.01 < same.p < 0.2
    assert np.isnan(paired_t([0.75, 0.5], [0.5, 0.25]).p)  # without a grain nothing can be said
    assert paired_t([0.5, 0.5], [0.5, 0.5]).p == 1.0


def test_holm_by_hand():
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1: 0.02, 0.03, 0.06, 0.04 -> never falling: 0.02, 0.03, 0.06, 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == pytest.approx([1.0, 1.0])
    assert holm([0.02, np.nan, 0.5]) == pytest.approx([0.04, np.nan, 0.5], nan_ok=True)  # what was not tested does not count


def test_holm_keeps_the_family_wise_error():
    p = np.random.default_rng(0).random((4000, 6))
    wrong = np.mean([(holm(row) < 0.05).any() for row in p])
    assert wrong == pytest.approx(1 - (1 - 0.05 / 6) ** 6, abs=0.012)


@pytest.mark.parametrize(("n", "alpha"), [(3, 0.05), (5, 0.05), (10, 0.01)])
def test_the_smallest_detectable_difference_is_found_in_four_of_five_studies(n, alpha):
    size = smallest_detectable(0.01, n, alpha=alpha)
    d = np.random.default_rng(0).normal(size, 0.01, (20_000, n))
    t = d.mean(1) * n**0.5 / d.std(1, ddof=1)
    found = (2 * stats.t.sf(abs(t), n - 1) < alpha).mean()
    assert found == pytest.approx(0.8, abs=0.012)


def test_the_smallest_detectable_difference_with_many_pairs_is_the_normal_one():
    expected = (stats.norm.ppf(0.975) + stats.norm.ppf(0.8)) / np.sqrt(2000)
    assert smallest_detectable(1.0, 2000) == pytest.approx(expected, rel=2e-3)
    assert np.isnan(smallest_detectable(0.01, 1)) and smallest_detectable(0.01, 2) > smallest_detectable(0.01, 3)


def share_covered(intervals, truth):
    low, high = np.array(intervals).T
    return ((low <= truth) & (truth <= high)).mean()


@pytest.mark.parametrize("n", [2, 3, 5])
def test_t_intervals_cover(n):
    draws = np.random.default_rng(n).normal(0.7, 0.02, (2000, n))
    assert COVERED[0] < share_covered([t_interval(row) for row in draws], 0.7) < COVERED[1]


@pytest.mark.parametrize("share", [0.6, 0.9, 0.97])
def test_wilson_covers(share):
    right = np.random.default_rng(0).binomial(500, share, 2000)
    assert COVERED[0] < share_covered([wilson(int(hits), 500) for hits in right], share) < COVERED[1]


def test_the_paired_bootstrap_over_images_covers():
    generator = np.random.default_rng(0)
    intervals = []
    for _ in range(1000):
        hard = generator.random(600)  # both models find the same pictures hard
        one, other = (generator.random(600) < 1 - 0.5 * hard**k for k in (2, 1))
        intervals.append(image_bootstrap(one.astype(float) - other, resamples=1000, seed=int(generator.integers(1 << 30))))
    truth = 0.5 * (1 / 2 - 1 / 3)
    assert 0.925 < share_covered(intervals, truth) < 0.975


def test_the_paired_bootstrap_is_scipys():
    d = np.random.default_rng(0).choice([-1.0, 0.0, 1.0], 300, p=[0.1, 0.7, 0.2])
    expected = stats.bootstrap((d,), np.mean, method="percentile", n_resamples=5000, rng=np.random.default_rng(1))
    assert image_bootstrap(d) == pytest.approx(tuple(expected.confidence_interval), abs=0.006)


def test_images_kept_in_pairs_give_a_narrower_interval_than_two_lonely_ones():
    generator = np.random.default_rng(0)
    easy = generator.random(1000) < 0.7
    one, other = easy | (generator.random(1000) < 0.05), easy
    low, high = image_bootstrap(one.astype(float) - other)
    alone = [np.diff(wilson(int(right.sum()), 1000))[0] for right in (one, other)]
    assert high - low < 0.5 * np.hypot(*alone)


def test_interpolation_on_a_known_curve():
    amounts, curve = np.array([10.0, 100.0]), np.array([0.5, 0.7])
    assert crossing(amounts, curve, 0.6)[0] == pytest.approx(10**1.5)  # halfway over the logarithm
    assert crossing(amounts, curve, 0.7)[0] == pytest.approx(100) and crossing(amounts, curve, 0.71)[0] == np.inf
    assert crossing(amounts, curve, 0.5)[0] == -np.inf
    dented = np.array([0.5, 0.7, 0.6, 0.9])
    assert crossing(np.array([1.0, 10, 100, 1000]), dented, 0.65)[0] == pytest.approx(10**0.75)  # the first time counts


def test_data_to_match_needs_two_seeds_for_an_interval_and_says_when_it_is_not_reached():
    found = data_to_match([100, 10], [[0.7], [0.5]], [0.6])
    assert found.amount == pytest.approx(10**1.5) and np.isnan(found.low)
    found = data_to_match([10, 100], [[0.50, 0.51, 0.49], [0.70, 0.71, 0.69]], [0.68, 0.70, 0.69])
    assert 10 < found.low < found.amount < 100 and found.high == np.inf


def test_the_interval_of_data_to_match_covers():
    generator = np.random.default_rng(0)
    sizes, truth = np.array([10.0, 30.0, 100.0]), np.array([0.5, 0.6, 0.7])
    wanted, intervals = crossing(sizes, truth, 0.64)[0], []
    for _ in range(400):
        cells = [generator.normal(mean, 0.01, 4) for mean in truth]
        found = data_to_match(sizes, cells, generator.normal(0.64, 0.01, 4), draws=800)
        intervals.append((found.low, found.high))
    assert 0.92 < share_covered(intervals, wanted) <= 0.99  # at least what is promised; a little wider is the t draws' price


def test_a_power_law_is_found_again_and_its_band_covers():
    sizes, generator = np.repeat([500.0, 1500.0, 5000.0], 3), np.random.default_rng(0)
    exact = fit_curve(sizes, 1 - 2.0 * sizes**-0.3)
    assert (exact.a, exact.b, exact.c) == pytest.approx((2.0, 0.3, 0.0))
    bands, slopes = [], []
    for _ in range(1000):
        errors = 2.0 * sizes**-0.3 * np.exp(generator.normal(0, 0.05, len(sizes)))
        fit = fit_curve(sizes, 1 - errors)
        low, high = fit.band([1000.0])
        bands.append((low[0], high[0]))
        slopes.append(fit.b_interval)
    assert COVERED[0] < share_covered(bands, 1 - 2.0 * 1000**-0.3) < COVERED[1]
    assert COVERED[0] < share_covered(slopes, 0.3) < COVERED[1]


def test_the_straight_fit_is_linear_regression():
    x, accuracy = np.array([100.0, 300, 1000, 100, 300, 1000]), np.array([0.5, 0.6, 0.72, 0.52, 0.63, 0.70])
    fit, line = fit_curve(x, accuracy), stats.linregress(np.log(x), np.log(1 - accuracy))
    assert fit.b == pytest.approx(-line.slope) and np.log(fit.a) == pytest.approx(line.intercept)
    half = stats.t.ppf(0.975, 4) * line.stderr
    assert fit.b_interval == pytest.approx((-line.slope - half, -line.slope + half))


def test_a_floor_is_fitted_where_the_error_stops_falling():
    sizes = np.repeat([100.0, 300, 1000, 3000, 10_000, 30_000], 3)
    errors = (0.1 + 3 * sizes**-0.6) * np.exp(np.random.default_rng(0).normal(0, 0.01, len(sizes)))
    fit = fit_curve(sizes, 1 - errors)
    assert fit.c == pytest.approx(0.1, abs=0.01) and fit.b == pytest.approx(0.6, abs=0.05)
    low, high = fit.band([1e5])
    assert low[0] < 0.9 < high[0] + 0.02


@pytest.mark.parametrize("accuracies", [[0.5, 0.6], [0.5, 0.6, 0.7], [0.5, 0.6, 1.0, 0.5, 0.6, 1.0]])
def test_too_little_to_fit_gives_no_curve(accuracies):
    assert fit_curve([100.0, 300.0, 1000.0, 100.0, 300.0, 1000.0][: len(accuracies)], accuracies) is None


def test_a_summary_names_both_sources_of_chance():
    frame = frame_of({("a", 0.1): [0.70, 0.72, 0.74], ("b", 0.1): [0.5, None, None]})
    table = summarize(frame).set_index("arm")
    assert table.loc["a", "accuracy"] == pytest.approx(0.72) and table.loc["a", "n"] == 3
    assert tuple(table.loc["a", ["seeds_low", "seeds_high"]]) == pytest.approx(t_interval([0.70, 0.72, 0.74]))
    assert tuple(table.loc["a", ["images_low", "images_high"]]) == pytest.approx(wilson(720, 1000))  # not 2160 of 3000
    assert (
        np.isnan(table.loc["b", "seeds_low"]) and table.loc["b", "images_high"] > 0.5 and np.isnan(table.loc["a", "boot_low"])
    )
    many = summarize(frame_of({("a", 0.1): list(np.linspace(0.6, 0.7, 12))}))
    assert many["boot_low"].notna().all()


def test_rotation_runs_and_runs_without_a_score_are_not_compared():
    frame = pd.concat([
        frame_of({("a", 0.1): [0.7]}), frame_of({("pre", 0.1): [0.9]}, pretext=True), frame_of({("c", 0.1): [np.nan]}),
        frame_of({("a", 0.1): [0.8]}),
    ])  # fmt: skip
    assert prepare(frame)[["arm", "accuracy"]].to_numpy().tolist() == [["a", 0.8]]  # the later of two runs of one cell


def test_differences_are_paired_by_seed_and_corrected_over_the_whole_table():
    cells = {("a", 0.1): [0.50, 0.60, 0.70], ("b", 0.1): [0.52, 0.625, 0.718], ("c", 0.1): [0.1, 0.9, None]}
    table = compare_arms(frame_of(cells), correct=without_images).set_index(["arm", "other"])
    row = table.loc["b", "a"]
    expected = stats.ttest_rel([0.52, 0.625, 0.718], [0.50, 0.60, 0.70])
    assert row["difference"] == pytest.approx(0.021) and row["p"] == pytest.approx(expected.pvalue) and row["n"] == 3
    assert row["p_holm"] == pytest.approx(3 * expected.pvalue) and row["family"] == 3
    assert row["relative"] == pytest.approx(0.021 / 0.6) and row["detectable"] < row["detectable_family"]
    assert table.loc[("c", "a"), "n"] == 2  # the seeds they share


def test_the_relative_gap_is_that_of_the_convit_table():
    frame = frame_of({("deit", 0.05): [0.348], ("convit", 0.05): [0.478]})
    assert compare_arms(frame, correct=without_images)["relative"][0] == pytest.approx(0.37, abs=0.005)  # "37 %"


def test_with_many_arms_each_is_compared_with_the_first():
    frame = frame_of({(f"arm{i}", 0.1): [0.5 + i / 100, 0.6] for i in range(8)})
    assert len(compare_arms(frame, correct=without_images)) == 7
    chosen = compare_arms(frame_of({(n, 0.1): [0.5, 0.6] for n in "abc"}), reference="c", correct=without_images)
    assert list(chosen["other"]) == ["c", "c"]
    with pytest.raises(ValueError, match="there is no arm 'd'"):
        compare_arms(frame, reference="d")


def test_images_decide_with_the_seeds(tmp_path):
    def correct(run):
        arm, _, seed = run.split("/")
        right = np.zeros(1000, bool)
        right[: {"a": 700, "b": 720, "c": 900}[arm] + int(seed)] = True
        if arm != "a":
            right = np.roll(right, 350)  # right about other pictures
        return np.arange(1000), right

    cells = {(arm, 0.1): [(base + seed) / 1000 for seed in range(4)] for arm, base in (("a", 700), ("b", 720), ("c", 900))}
    table = compare_arms(frame_of(cells), correct=correct).set_index(["arm", "other"])
    assert (
        table.loc[("b", "a"), "p_holm"] < 0.001 and not table.loc[("b", "a"), "supported"]
    )  # seeds agree; the pictures are few
    assert table.loc[("b", "a"), "images_low"] < 0 < table.loc[("b", "a"), "images_high"]
    assert table.loc[("c", "a"), "supported"] and table.loc[("c", "a"), "n_images"] == 1000


def test_runs_tested_on_other_images_get_no_interval_over_images():
    def correct(run):
        return np.arange(10) + (run[0] == "b"), np.ones(10, bool)

    table = compare_arms(frame_of({("a", 0.1): [0.5], ("b", 0.1): [0.6]}), correct=correct)
    assert np.isnan(table["images_low"][0]) and table["n_images"][0] == 0


def says(cells):
    frame = frame_of(cells)
    return headline(compare_arms(frame, correct=without_images), summarize(frame))


def test_with_one_seed_nothing_is_claimed():
    found = says({("a", 0.1): [0.1], ("b", 0.1): [0.9], ("a", 1): [0.2], ("b", 1): [0.95]})
    assert not found.supported
    assert found.more == () and "a" not in found.text.split()


def test_with_two_seeds_a_difference_is_stated_but_never_supported():
    found = says({("a", 0.1): [0.500, 0.600], ("b", 0.1): [0.600, 0.702]})  # p = 0.006
    assert "2 seeds" in found.text and not found.supported
    assert "10.1 ± 1.3 points" in found.more[0]


def test_a_difference_that_holds_is_the_headline():
    found = says(
        {
            ("a", 0.1): [0.50, 0.52, 0.51],
            ("b", 0.1): [0.60, 0.621, 0.609],
            ("a", 1): [0.7, 0.6, 0.8],
            ("b", 1): [0.6, 0.8, 0.7],
        }
    )
    assert found.supported and found.text.startswith(
        "With 10 % of the data, b beats a by 10.0 ± 0.2 points (n = 3 seeds, p < 0.001"
    )
    assert found.more[0].startswith("With all the data, no difference between")


def test_the_headline_is_about_the_first_arm_if_it_has_a_supported_difference():
    scores = {"a": 0.70, "b": 0.60, "c": 0.75, "d": 0.50}
    cells = {(arm, 0.1): [score, score + 0.02, score + 0.01 + k / 1000] for k, (arm, score) in enumerate(scores.items())}
    frame = frame_of(cells)
    compared, summary = compare_arms(frame, correct=without_images), summarize(frame)
    found = headline(compared, summary, "a")
    assert found.supported and "a beats d by 19.9" in found.text  # and not c, by 24.9
    assert "c beats d" in headline(compared, summary, "c").text and "c beats d" in headline(compared, summary).text


def test_without_a_difference_the_headline_says_how_large_one_would_have_to_be():
    found = says({("a", 0.1): [0.50, 0.60, 0.55], ("b", 0.1): [0.58, 0.52, 0.57]})
    assert "3 seeds" in found.text and not found.supported
    assert re.search(r"\d\.\d points", found.text)


def test_a_single_arm_is_stated_with_all_data_first():
    found = says({("a", 0.1): [0.5, 0.6, 0.7], ("a", 1): [0.8, 0.8, 0.8]})
    assert found.text.startswith("a has 80.0 ± 0.0 % accuracy on ") and "with all the data (n = 3 seeds)" in found.text
    assert "no other model" in found.text and not found.supported
    assert len(found.more) == 1 and "60.0 ± 24.8 % accuracy" in found.more[0] and "with 10 % of the data" in found.more[0]
    assert "50.0 % accuracy" in says({("a", 1): [0.5]}).text and "one seed" in says({("a", 1): [0.5]}).text


def test_without_a_shared_seed_nothing_is_compared():
    assert "share no seed" in says({("a", 0.1): [0.5, None], ("b", 0.1): [None, 0.6]}).text


def test_how_much_data_the_weaker_arm_needs():
    cells = {("a", 0.1): [0.50, 0.51], ("a", 1): [0.70, 0.71], ("b", 0.1): [0.60, 0.61], ("b", 1): [0.80, 0.81]}
    frame = frame_of(cells)
    table = matching_data(frame, compare_arms(frame, correct=without_images))
    assert len(table) == 1 and table["arm"][0] == "b" and table["needed"][0] == pytest.approx(10**-0.5)
    assert table["low"][0] < 10**-0.5 < table["high"][0]


def test_curves_are_fitted_per_arm():
    cells = {("a", size): [1 - 1.5 * (5000 * size) ** -0.2 + 0.001 * s for s in range(2)] for size in (0.1, 0.3, 1)}
    assert list(curve_fits(frame_of(cells | {("b", 0.1): [0.5, 0.6]}))) == [("pets", "a")]
    assert curve_fits(frame_of(cells))["pets", "a"].b == pytest.approx(0.2, abs=0.02)
