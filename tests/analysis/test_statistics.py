"""Statistics: against other definitions, by hand, and by what they cover."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qe.analysis import statistics
from qe.analysis.statistics import (
    contrasts,
    coverage,
    difference,
    holm,
    improvement,
    interval,
    iqm,
    on_common_games,
    permutation_test,
    profiles,
    seeds_needed,
    share,
)
from qe.config import ConfigError


def sample(values, games=None) -> pd.DataFrame:
    array = np.asarray(values, dtype=float)
    return pd.DataFrame(array, index=games or [f"G{i}" for i in range(len(array))])


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_iqm_is_scipys_and_rliables(values):
    found = iqm(np.array([values]))
    assert found == pytest.approx(stats.trim_mean(values, 0.25), abs=1e-9)
    cut = int(0.25 * len(values))  # rliable: scipy's trim_mean of all runs; by hand:
    assert found == pytest.approx(np.mean(sorted(values)[cut : len(values) - cut]), abs=1e-9)


def test_improvement_counts_pairs_and_halves_ties():
    assert improvement(np.array([[1, 2]]), np.array([[0, 1]])) == pytest.approx(3.5 / 4)
    assert improvement(np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])) == 0.5


def test_variants_are_compared_by_name_on_the_games_that_both_have():
    x = sample([[1.0, 1.0], [5.0, 5.0]], ["A", "B"])
    y = sample([[0.0, 0.0], [9.0, 9.0]], ["A", "C"])
    assert interval(improvement, x, y).value == 1.0  # by position it would be a half
    assert interval(difference, x, y).value == 1.0
    with pytest.raises(ConfigError, match="no game in common"):
        interval(difference, x, sample([[1.0]], ["D"]))


def test_the_permutation_test_is_the_exact_one_in_the_limit():
    rng = np.random.default_rng(1)
    x, y = rng.normal(0.8, 1, 6), rng.normal(0, 1, 5)
    exact = stats.permutation_test(
        (x, y), lambda a, b, axis: a.mean(axis) - b.mean(axis), vectorized=True, n_resamples=np.inf
    ).pvalue
    assert permutation_test(sample([x]), sample([y])) == pytest.approx(exact, abs=0.01)


def test_the_permutation_test_holds_its_level_and_finds_what_is_there():
    rng = np.random.default_rng(0)
    level = [
        permutation_test(sample(rng.normal(size=(5, 10))), sample(rng.normal(size=(5, 10))), 500)
        for _ in range(300)
    ]
    assert 0.02 < np.mean(np.array(level) < 0.05) < 0.09
    shifted = rng.normal(size=(5, 10)) + 1
    assert permutation_test(sample(shifted), sample(rng.normal(size=(5, 10)))) < 0.001
    assert np.isnan(permutation_test(sample([[1.0]]), sample([[2.0]])))


def test_holms_correction():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx(
        {"a": 0.03, "b": 0.06, "c": 0.06}
    )
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}


def test_shares_have_exact_intervals():
    none = share(0, 3)
    assert (none.value, none.low) == (0, 0) and none.high == pytest.approx(0.7076, abs=1e-4)
    assert share(10, 10).low == pytest.approx(0.6915, abs=1e-4)


def test_the_seeds_that_a_difference_needs():
    rng = np.random.default_rng(0)
    x, y = sample(rng.normal(0.5, 1, (5, 400))), sample(rng.normal(0, 1, (5, 400)))
    # Two samples, standard deviation 1, difference a half: 63 each; five games share them.
    assert seeds_needed(x, y) == pytest.approx(63 / 5, abs=2)
    assert seeds_needed(x, x) == 0


def test_intervals_repeat_themselves_and_need_something_to_draw():
    x = sample(np.arange(20.0).reshape(5, 4))
    assert interval(iqm, x) == interval(iqm, x)
    assert interval(iqm, x).low < interval(iqm, x).value < interval(iqm, x).high
    over_games = interval(iqm, x[[0]])
    assert over_games.low < over_games.high
    assert np.isnan(interval(iqm, x[[0]].iloc[:1]).low)


def test_what_intervals_cover_is_measured():
    found = coverage(games=5, seeds=10, heavy=False, between=0.0, trials=200)
    assert 0.85 < found["these games"] <= 1.0
    few = coverage(games=5, seeds=2, heavy=True, between=1.0, trials=200)
    assert few["all games"] < 0.97


def test_the_papers_questions_are_asked_of_those_that_are_there():
    samples = {"ucb-lam=1": sample([[2.0, 2.1]]), "double_dqn": sample([[1.0, 1.2]])}
    table = contrasts(samples)
    assert table.index.tolist() == ["ucb-lam=1 over double_dqn"]
    row = table.iloc[0]
    assert row["difference"] == pytest.approx(0.95) and row["chance"] == 1.0
    assert int(row["seeds needed"]) >= 2


def test_without_the_papers_pairs_there_is_no_contrast():
    table = contrasts(
        {"double_dqn": sample([[1.0, 2.0]]), "bootstrapped_dqn": sample([[1.0, 2.0]])}
    )
    assert table.empty and {"difference", "low", "high", "p"} <= set(table.columns)


def test_aggregates_are_over_the_games_that_all_have():
    samples = {"ucb": sample([[1.0], [2.0]]), "double_dqn": sample([[3.0]])}
    kept = on_common_games(samples)
    assert [len(table) for table in kept.values()] == [1, 1]


def test_profiles_fall():
    found = profiles({"ucb": sample([[0.0, 1.0], [2.0, 3.0]])}, np.array([-1.0, 0.5, 5.0]))
    assert found["value"].tolist() == [1.0, 0.75, 0.0]
    assert statistics.PERMUTATIONS == 100_000 and statistics.DRAWS == 10_000  # the protocol's
