"""Metrics and tables. The published numbers are the ground truth."""

import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from qe import RESULTS, figures, metrics, tables
from qe.games import atari_games, categories
from qe.metrics import bootstrap, improvement, iqm, matrix, max_mean

PAPER = RESULTS / "paper"
SCORES = tables.paper_table(PAPER, "max_mean_reward")


# --- the paper -------------------------------------------------------------------------------


def test_times_best_is_what_the_paper_prints():
    expected = {"bootstrapped_dqn": 1, "double_dqn": 7, "ensemble_voting": 9, "ucb": 30}
    assert metrics.times_best(SCORES).to_dict() == expected
    last = tables.with_times_best(SCORES).data.loc["Times best"]
    assert last.to_dict() == expected


def test_categories_are_what_the_paper_prints():
    printed = pd.read_csv(PAPER / "category_counts.csv", index_col=0)
    ours = metrics.category_counts(SCORES, categories())
    assert printed.size == 20
    pd.testing.assert_frame_equal(
        ours.loc[printed.index, printed.columns], printed, check_names=False
    )


def test_a3c_plus_is_what_the_paper_prints_but_for_its_erratum():
    table = tables.a3c_table(PAPER)
    last = table.data.loc["Times best"]
    assert last.to_dict() == {"ensemble_voting": 11, "ucb": 28, "a3c_plus": 10}
    assert "Ensemble Voting 11 (10 printed)" in table.note
    assert "48 of 49" in table.note


def test_this_projects_atari_runs_stand_beside_a3c_plus():
    ours = pd.DataFrame({"ucb": [1.5]}, index=["Pong"])
    table = tables.a3c_table(PAPER, ours)
    assert table.data.loc["Pong", "this project: ucb"] == 1.5
    assert table.data["this project: ucb"].notna().sum() == 1
    assert table.bold.loc["Pong", "ensemble_voting"]


def test_ties_are_nobodys():
    assert not metrics.best(SCORES).loc[["Pong", "Montezuma Revenge"]].any(axis=None)
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, 1.0, 5.0]})
    assert metrics.times_best(table).to_dict() == {"a": 1, "b": 1}


# --- scores and curves -----------------------------------------------------------------------


@given(st.lists(st.floats(-1e3, 1e3), max_size=60), st.integers(1, 20))
def test_max_mean_is_the_highest_of_all_windows(returns, window):
    means = [np.mean(returns[i : i + window]) for i in range(len(returns) - window + 1)]
    found = max_mean(returns, window)
    if means:
        assert found == pytest.approx(max(means), abs=1e-9)
    else:
        assert np.isnan(found)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), st.integers(1, 10))
def test_rolling_mean(returns, window):
    expected = [np.mean(returns[max(0, i - window + 1) : i + 1]) for i in range(len(returns))]
    assert metrics.rolling_mean(returns, window) == pytest.approx(expected, abs=1e-6)


def test_on_grid_takes_the_newest_value():
    found = metrics.on_grid([10, 20], [1.0, 2.0], [5, 10, 15, 20, 99])
    assert found == pytest.approx([np.nan, 1, 1, 2, 2], nan_ok=True)


def curve(game, variant, seed, values):
    frames = np.arange(1, len(values) + 1, dtype=float)
    return pd.DataFrame(
        {"game": game, "variant": variant, "seed": seed, "frame": frames, "value": values}
    )


def test_normalized_curves_by_hand():
    curves = pd.concat(
        [
            curve("A", "ucb", 0, [0.0, 8.0]),
            curve("A", "ucb", 1, [2.0, 12.0]),  # mean over seeds: 1, 10
            curve("A", "double_dqn", 0, [0.0, 5.0]),  # game A spans 0 to 10
            curve("B", "ucb", 0, [-4.0, -2.0]),
            curve("B", "double_dqn", 0, [-4.0, 0.0]),  # game B spans -4 to 0
            curve("C", "ucb", 0, [7.0, 7.0]),
            curve("C", "double_dqn", 0, [7.0, 7.0]),  # nothing ever changes: 0
        ]
    )
    table = metrics.normalized_curves(curves, ["double_dqn", "ucb"])
    assert list(table.columns) == ["double_dqn", "ucb"]
    assert table["ucb"].tolist() == pytest.approx([(0.1 + 0 + 0) / 3, (1 + 0.5 + 0) / 3])
    assert table["double_dqn"].tolist() == pytest.approx([0, (0.5 + 1 + 0) / 3])
    # Without Double DQN, game A spans 1 to 10 and game B -4 to -2.
    alone = metrics.normalized_curves(curves, ["ucb"])
    assert alone["ucb"].tolist() == pytest.approx([0, 2 / 3])


def test_logs_become_a_score_table(tmp_path):
    for seed, level in ((0, 1.0), (1, 3.0)):
        directory = tmp_path / "Pong" / "ucb" / str(seed)
        directory.mkdir(parents=True)
        (directory / "run.json").write_text("{}")
        pd.DataFrame({"frame": range(150), "return": [0.0] * 50 + [level] * 100}).to_csv(
            directory / "episodes.csv", index=False
        )
    unfinished = tmp_path / "Pong" / "ucb" / "2"
    unfinished.mkdir()
    (unfinished / "episodes.csv").write_text("frame,return\n1,99\n")
    scores = metrics.seed_scores(metrics.load_runs(tmp_path))
    assert scores["score"].tolist() == [1.0, 3.0]
    assert metrics.score_table(scores).loc["Pong", "ucb"] == 2.0
    assert metrics.score_table(scores, "max").loc["Pong", "ucb"] == 3.0
    assert matrix(scores, "ucb").tolist() == [[1.0, 3.0]]


def test_a_sweep_takes_the_algorithms_own_runs_along(tmp_path):
    for parts, config in (
        (("runs", "minatar", "Breakout", "ucb", "0"), {"lam": 0.1}),
        (("runs", "minatar", "Breakout", "ucb", "1"), {"lam": 0.1}),  # a seed that is not swept
        (("runs", "minatar", "Asterix", "ucb", "0"), {"lam": 0.1}),
        (("sweeps", "lam", "minatar", "Breakout", "1.0", "0"), {"lam": 1.0}),
    ):
        directory = tmp_path.joinpath(*parts)
        directory.mkdir(parents=True)
        (directory / "run.json").write_text(json.dumps({"config": config}))
        (directory / "episodes.csv").write_text("frame,return\n1,2\n")
    swept = metrics.load_sweep(tmp_path, "minatar", "lam", "ucb")
    assert set(zip(swept["game"], swept["variant"], strict=True)) == {
        ("Breakout", "0.1"),
        ("Breakout", "1.0"),
    }
    assert swept["seed"].tolist() == [0, 0]


def test_acting_and_learning_are_compared_over_the_last_quarter(tmp_path):
    for seed, level in ((0, 1.0), (1, 3.0)):
        directory = tmp_path / "runs" / "minatar" / "Breakout" / "ucb" / str(seed)
        directory.mkdir(parents=True)
        (directory / "run.json").write_text("{}")
        for name, early, late in (("episodes", 50.0, level), ("evaluations", 90.0, 2 * level)):
            pd.DataFrame({"frame": [70, 75, 76, 100], "return": [early, early, late, late]}).to_csv(
                directory / f"{name}.csv", index=False
            )
    table = metrics.frozen_and_training(tmp_path, "minatar")
    assert table.to_dict("records") == [
        {"game": "Breakout", "variant": "ucb", "seed": 0, "training": 1.0, "frozen": 2.0},
        {"game": "Breakout", "variant": "ucb", "seed": 1, "training": 3.0, "frozen": 6.0},
    ]


def test_progress_compares_the_first_quarter_with_the_last():
    runs = pd.DataFrame({"game": "Pong", "frame": [25, 26, 75, 76, 100], "return": [1, 9, 9, 3, 5]})
    assert metrics.progress(runs).loc["Pong"].tolist() == [5, 1, 4]


def test_what_runs_are_and_what_they_took(results):
    assert metrics.about(results / "runs" / "minatar") == "MinAtar, 8,000 frames, 2 seeds"
    reduced = "Atari, reduced profile, 8,000 frames, 2 seeds"
    assert metrics.about(results / "runs" / "atari") == reduced
    assert metrics.load_runs(results / "runs" / "atari", profile="paper").empty
    assert len(metrics.load_runs(results / "runs" / "atari", profile="reduced")) == 20 * 160
    costs = metrics.load_costs(results / "runs" / "minatar")
    assert len(costs) == 20 and set(costs["minutes"]) == {1.0}
    assert set(costs["commit"]) == {"unknown", "012345678901+"}
    table = tables.cost_table(costs).data
    assert table.loc["ucb", "runs"] == "4"
    assert table.loc["ucb", "hours in all"] == pytest.approx(4 / 60)
    assert table.loc["All", "hours in all"] == pytest.approx(20 / 60)


# --- aggregates ------------------------------------------------------------------------------


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=10))
def test_iqm_is_the_trimmed_mean(values):
    four = values * 4  # where a quarter is a whole number of scores, scipy's is the same
    assert iqm(four) == pytest.approx(stats.trim_mean(sorted(four), 0.25), abs=1e-9)


def test_iqm_of_a_few():
    assert iqm([5.0]) == 5
    assert iqm([0.0, 1.0, 2.0]) == pytest.approx(1.0)
    assert iqm([0.0, 0.0, 0.0, 0.0, 1000.0]) == 0


def test_scores_against_humans():
    scores = pd.DataFrame({"game": ["Pong", "Pong"], "score": [-20.7, 14.6]})
    found = metrics.human_normalized_scores(scores, atari_games())["score"]
    assert found.tolist() == pytest.approx([0, 1])


def test_improvement_counts_pairs_and_halves_ties():
    assert improvement([[1, 2]], [[0, 1]]) == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert improvement([[1.0], [0.0]], [[0.0], [1.0]]) == 0.5


def test_the_papers_questions_are_asked_of_those_that_are_there():
    samples = {"ucb": np.array([[2.0], [2.0]]), "double_dqn": np.array([[1.0], [3.0]])}
    table = metrics.improvements(samples, "games")
    assert table.index.tolist() == ["ucb over double_dqn"]
    assert table.loc["ucb over double_dqn"].tolist() == [0.5, 0.0, 1.0]
    assert tables.label("ucb over double_dqn") == "UCB over Double DQN"


def test_the_bootstrap_repeats_itself_and_covers_the_truth():
    rng = np.random.default_rng(0)
    hits = 0
    for i in range(60):
        sample = rng.normal(1.0, 1.0, (8, 5))
        found = bootstrap(lambda s: float(s.mean()), sample, repeats=300, seed=i)
        hits += found.low <= 1.0 <= found.high
    assert hits >= 48  # 95 % nominal, with five seeds somewhat less
    assert bootstrap(iqm, sample) == bootstrap(iqm, sample)


def test_one_seed_has_no_interval_over_seeds_but_one_over_games():
    sample = np.arange(10.0)[:, None]
    assert np.isnan(bootstrap(iqm, sample).low)
    over_games = bootstrap(iqm, sample, over="games")
    assert over_games.low < over_games.value < over_games.high
    assert np.isnan(bootstrap(iqm, sample[:1], over="games").low)  # one game: nothing to draw


def test_human_normalisation():
    table = pd.DataFrame({"ucb": [5.0, 20.0]}, index=["A", "B"])
    found = metrics.human_normalized(
        table, random=pd.Series({"A": 0.0, "B": 10.0}), human=pd.Series({"A": 10.0, "B": 20.0})
    )
    assert found["ucb"].tolist() == [0.5, 1.0]


# --- rendering -------------------------------------------------------------------------------


def test_renderings_mark_the_best_and_leave_what_is_missing_empty(tmp_path):
    data = pd.DataFrame(
        {"ucb": [2.5, np.nan], "double_dqn": [1.0, 3.0]}, index=["R&D <1>", "Freeway"]
    )
    table = tables.with_times_best(data, "A note.")
    tables.write(table, tmp_path, "t")
    markdown = (tmp_path / "t.md").read_text()
    assert "| R&D <1> | 1.00 | **2.50** |" in markdown
    assert "| Freeway | **3** |  |" in markdown
    assert "| Times best | 1 | 1 |" in markdown and markdown.endswith("A note.\n")
    assert r"R\&D <1> & 1.00 & \textbf{2.50} \\" in (tmp_path / "t.tex").read_text()
    page = (tmp_path / "t.html").read_text()
    assert "R&amp;D &lt;1&gt;" in page and "<b>2.50</b>" in page
    again = pd.read_csv(tmp_path / "t.csv", index_col=0)
    assert again.loc["R&D <1>", "ucb"] == 2.5


def test_the_same_figure_is_the_same_file(tmp_path):
    table = pd.DataFrame({"ucb": [0.0, 1.0], "double_dqn": [0.0, 0.5]}, index=[1.0, 2.0])
    for name in ("a.svg", "b.svg"):
        figures.use_style()
        figures.save(figures.plot_normalized(table), tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in first
