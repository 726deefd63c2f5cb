"""From logs to curves and scores."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from qe.analysis.compare import compare, plot_beside, plot_runs
from qe.analysis.load import (
    CONSTANTS,
    about,
    at_the_papers_scale,
    frames_of,
    load_costs,
    load_logs,
    made_runs,
    scale_for,
)
from qe.analysis.scores import (
    human_scale,
    last_quarter,
    learning_curves,
    matrix,
    max_mean,
    max_means,
    papers_scale,
    rolling_mean,
    score_table,
)
from qe.analysis.statistics import over_frames
from qe.analysis.tables import cost_table
from qe.config import ConfigError
from qe.runs.experiments import Experiment, read_params, runs_of
from tests.conftest import declared_in, sign, write_run

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
    assert rolling_mean(returns, window) == pytest.approx(expected, abs=1e-6)


def test_a_curve_is_the_mean_of_the_games_that_ended_in_a_window_of_frames():
    games = pd.DataFrame(
        {"frame": [1, 10, 11, 40, 40], "return": [1.0, 3.0, 5.0, 7.0, 9.0]}
    ).assign(game="A", variant="ucb", seed=0)
    curves = learning_curves(games, frames=40, points=4)
    assert curves["frame"].tolist() == [10, 20, 30, 40]
    assert curves["value"].tolist() == pytest.approx([2, 5, np.nan, 8], nan_ok=True)


def curve(game, variant, seed, values):
    frames = np.arange(1, len(values) + 1, dtype=float)
    return pd.DataFrame(
        {"game": game, "variant": variant, "seed": seed, "frame": frames, "value": values}
    )


def test_the_papers_normalized_curves_by_hand():
    curves = pd.concat(
        [
            curve("A", "ucb", 0, [0.0, 8.0]),
            curve("A", "ucb", 1, [2.0, 12.0]),  # mean over seeds: 1, 10
            curve("A", "double_dqn", 0, [0.0, 5.0]),
            curve("A", "double_dqn", 1, [0.0, 5.0]),  # game A spans 0 to 10
            curve("B", "ucb", 0, [-4.0, -2.0]),
            curve("B", "ucb", 1, [-4.0, -2.0]),
            curve("B", "double_dqn", 0, [-4.0, 0.0]),
            curve("B", "double_dqn", 1, [-4.0, 0.0]),  # game B spans -4 to 0
            curve("C", "ucb", 0, [7.0, 7.0]),
            curve("C", "ucb", 1, [7.0, 7.0]),
            curve("C", "double_dqn", 0, [7.0, 7.0]),
            curve("C", "double_dqn", 1, [7.0, 7.0]),  # nothing ever changes: 0
        ]
    )
    table = over_frames(papers_scale(curves).apply(curves, "value"), ["double_dqn", "ucb"])
    means = table.pivot(index="frame", columns="variant", values="value")
    assert means["ucb"].tolist() == pytest.approx([(0.1 + 0 + 0) / 3, (1 + 0.5 + 0) / 3])
    assert means["double_dqn"].tolist() == pytest.approx([0, (0.5 + 1 + 0) / 3])
    assert (table["low"] <= table["value"]).all() and (table["value"] <= table["high"]).all()


def test_scores_against_humans():
    scores = pd.DataFrame({"game": ["Pong", "Pong"], "score": [-20.7, 14.6]})
    assert human_scale().apply(scores)["score"].tolist() == pytest.approx([0, 1])


def test_the_reference_is_the_scale_where_there_is_one(root):
    runs = made_runs(root, "minatar")
    scores = last_quarter(load_logs(runs), frames_of(runs))
    assert not scale_for(root, runs, scores).fixed
    (root / CONSTANTS).parent.mkdir(parents=True)
    (root / CONSTANTS).write_text("game,random,reference\nBreakout,1,3\nSpaceInvaders,0,\n")
    with pytest.raises(ConfigError, match="must have a reference above random play in every game"):
        scale_for(root, runs, scores)
    (root / CONSTANTS).write_text("game,random,reference\nBreakout,1,3\nSpaceInvaders,0,10\n")
    scale = scale_for(root, runs, scores)
    assert scale.fixed
    one = pd.DataFrame({"game": ["Breakout", "SpaceInvaders"], "score": [2.0, 5.0]})
    assert scale.apply(one)["score"].tolist() == [0.5, 0.5]
    assert scale_for(root, made_runs(root, "atari"), scores).words.endswith("a human's score")


# --- logs ------------------------------------------------------------------------------------


def test_logs_become_a_score_table(root):
    runs = [run for run in made_runs(root, "minatar") if run.config.algorithm == "ucb"]
    for run in runs:
        level = 1.0 if run.config.seed == 0 else 3.0
        pd.DataFrame({"frame": range(150), "return": [0.0] * 50 + [level] * 100}).to_csv(
            run.out / "episodes.csv", index=False
        )
        sign(run)
    scores = max_means(load_logs(runs))
    assert scores["score"].tolist() == [1.0, 3.0, 3.0] * 2
    assert score_table(scores).loc["Breakout", "ucb"] == pytest.approx(7 / 3)
    assert score_table(scores, "max").loc["Breakout", "ucb"] == 3.0
    assert matrix(scores, "ucb").to_numpy().tolist() == [[1.0, 3.0, 3.0]] * 2


def test_what_is_missing_damaged_or_not_as_declared_is_never_averaged(root):
    runs = made_runs(root, "minatar")
    assert len(load_logs(runs)) == 30 * 160
    log = runs[0].out / "episodes.csv"
    before = log.read_text()
    log.write_text(before.replace("\n1,", "\n9,"))
    with pytest.raises(ConfigError, match=r"episodes.csv is not the file that run.json .* lists"):
        made_runs(root, "minatar")
    log.write_text(before)
    params = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(params.replace("frames: 8000", "frames: 3000"))
    with pytest.raises(ConfigError, match=r"was made with frames 8000, and params.yaml says 3000"):
        made_runs(root, "minatar")
    (root / "params.yaml").write_text(params.replace("seeds: 3", "seeds: 4"))
    with pytest.raises(ConfigError, match="is not made yet: `dvc repro` makes it"):
        made_runs(root, "minatar")


def test_a_score_is_of_the_last_quarter_of_the_declared_frames():
    games = pd.DataFrame({"frame": [70, 75, 76, 90], "return": [50.0, 50.0, 1.0, 3.0]})
    games = games.assign(game="A", variant="ucb", seed=0)
    assert last_quarter(games, 100)["score"].tolist() == [2.0]
    assert last_quarter(games, 1000).empty


def test_what_runs_are_and_what_they_took(root):
    runs, reduced = made_runs(root, "minatar"), made_runs(root, "atari")
    assert about(runs) == "MinAtar, 8,000 frames, 3 seeds"
    assert about(reduced) == "Atari, reduced profile, 8,000 frames, 2 seeds, provisional"
    assert at_the_papers_scale(root) == []
    costs = load_costs(runs)
    assert len(costs) == 30 and set(costs["minutes"]) == {1.0}
    assert set(costs["commit"]) == {"unknown", "012345678901+"}
    table = cost_table(costs).data
    assert table.loc["ucb", "runs"] == "6"
    assert table.loc["ucb", "hours in all"] == pytest.approx(6 / 60)
    assert table.loc["All", "hours in all"] == pytest.approx(30 / 60)


def test_runs_are_compared_by_what_they_do_not_share(root):
    runs = made_runs(root, "lambda")
    paths = [run.out for run in runs if run.config.game == "Breakout"]
    figure = plot_runs(paths[:2])
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels == ["seed=0", "seed=1"]
    assert "lam=0.0, seed=0" in [line.get_label() for line in plot_runs(paths).axes[0].lines]
    assert compare(paths, root / "figure.svg").read_text().startswith("<?xml")
    others = [run.out for run in runs if run.config.game != "Breakout"]
    with pytest.raises(ConfigError, match="Runs of different games can't be compared"):
        plot_runs([paths[0], others[0]])
    with pytest.raises(ConfigError, match="There is no finished run in"):
        plot_runs([root])
    with pytest.raises(ConfigError, match=r"out must end with .svg, .png or .pdf"):
        compare(paths, root / "figure.doc")


def test_a_run_stands_beside_the_shipped_runs_of_its_game_and_budget(root, capsys):
    (mine, *_) = [run.out for run in made_runs(root, "lambda") if run.config.game == "Breakout"]
    figure = plot_beside(mine, root / "results" / "runs")
    labels = [line.get_label() for line in figure.axes[0].lines]
    assert labels[:3] == ["this run", "Bootstrapped DQN", "Double DQN"]
    assert "UCB, lam = 1" in labels
    assert plot_beside(mine, root / "nothing") is None
    assert "has Breakout with 8,000 frames" in capsys.readouterr().out


def test_runs_of_two_budgets_are_refused_in_one_table(root):
    run, *_ = made_runs(root, "minatar")
    longer = run._replace(config=run.config.model_copy(update={"frames": 9000}))
    with pytest.raises(ConfigError, match=r"must have one budget .* not 2 \(8,000, 9,000 frames\)"):
        frames_of([run, longer])


def test_runs_of_two_learning_codes_are_refused_in_one_number(root):
    run, *_ = made_runs(root, "minatar")
    path = run.out / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "older"}))
    with pytest.raises(ConfigError, match="runs of minatar were made by different learning code"):
        made_runs(root, "minatar")


def test_what_an_experiment_sets_stands_below_its_figures(root):
    params = read_params(root / "params.yaml")
    experiment = {
        "suite": "minatar", "games": ["Breakout"], "variants": ["ucb-lam=1"],
        "settings": {"frames": 8000, "discount": 0.9},
    }  # fmt: skip
    params.controls["a"] = Experiment.model_validate(experiment)
    said = "MinAtar, 8,000 frames, discount = 0.9, 1 seed, provisional"
    assert about(list(runs_of("a", params))) == said


def test_only_runs_of_the_papers_settings_stand_beside_its_own(root):
    algorithms = {"ucb": {}}
    grid = {"suite": "atari", "games": ["Pong"], "variants": ["ucb"]}
    small = grid | {"settings": {"profile": "paper", "frames": 8000, "K": 2}}
    whole = grid | {"settings": {"profile": "paper"}}
    for entry, count in ((small, 0), (whole, 1)):
        text = yaml.safe_dump({"algorithms": algorithms, "grids": {"paper": entry}})
        (root / "params.yaml").write_text(text)
        for run in declared_in(root):
            write_run(run, 1.0)
        assert len(at_the_papers_scale(root)) == count
