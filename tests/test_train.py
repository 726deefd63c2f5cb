"""Training end to end: it runs, it repeats itself, it stays what it was, and it learns."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from qe import envs, train
from qe.config import ALGORITHMS, Config, configure
from qe.run import run
from qe.train import Diagnostics, Episode, Evaluation, Trainer

GAMES = {"atari": "Pong", "minatar": "Breakout", "chain": "N5"}
GOLDEN = Path(__file__).parent / "golden.json"


def smoke(suite: str, algorithm: str, **values) -> Config:
    return configure("smoke", suite=suite, game=GAMES[suite], algorithm=algorithm, **values)


def records(config: Config) -> list[train.Record]:
    trainer = Trainer(config)
    found: list[train.Record] = []
    while not trainer.done:
        found += trainer.step()
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("suite", GAMES)
def test_each_algorithm_on_each_suite(suite, algorithm, tmp_path):
    config = smoke(suite, algorithm, mask_probability=1.0 if algorithm == "double_dqn" else 0.5)
    first, second = run(config, tmp_path / "a"), run(config, tmp_path / "b")
    for name in ("episodes.csv", "evaluations.csv", "diagnostics.csv"):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
        assert b"\r" not in (first / name).read_bytes()
    with (first / "episodes.csv").open() as file:
        episodes = list(csv.DictReader(file))
    assert list(episodes[0]) == ["episode", "frame", "step", "return", "length"]
    assert [int(row["episode"]) for row in episodes] == list(range(1, len(episodes) + 1))
    with (first / "evaluations.csv").open() as file:
        evaluated = list(csv.DictReader(file))
    assert len(evaluated) == 2 * config.eval_games
    with (first / "diagnostics.csv").open() as file:
        last = list(csv.DictReader(file))[-1]
    assert float(last["loss"]) >= 0
    assert (last["std"] == "nan") == (algorithm == "double_dqn")
    assert (last["bonus"] == "nan") == (algorithm != "ucb_infogain")
    summary = json.loads((first / "run.json").read_text())
    assert configure(**summary["config"]) == config
    assert summary["frames"] >= config.frames and summary["updates"] > 0
    assert summary["episodes"] == len(episodes)
    assert 0.05 < summary["memory_gb"] < 50


def test_train_yields_the_finished_games():
    config = smoke("chain", "ucb")
    games = list(train.train(config))
    assert games == [r for r in records(config) if isinstance(r, Episode)]
    assert [g.length for g in games] == [14] * len(games)
    assert [g.frame for g in games] == [14 * (i + 1) for i in range(len(games))]


def test_another_seed_is_another_run():
    assert records(smoke("minatar", "ucb")) != records(smoke("minatar", "ucb", seed=1))


@pytest.mark.parametrize("suite", GAMES)
def test_evaluating_changes_nothing_in_the_run(suite):
    def without_evaluations(**values) -> list[train.Record]:
        found = records(smoke(suite, "ensemble_voting", **values))
        return [repr(r) for r in found if not isinstance(r, Evaluation)]

    assert without_evaluations() == without_evaluations(eval_every=0)


def test_bootstrapped_dqn_keeps_its_head_for_a_whole_game():
    config = configure("smoke", game="Breakout", algorithm="bootstrapped_dqn", frames=6000)
    trainer = Trainer(config.model_copy(update={"max_frames": None, "eval_every": 0}))
    heads, lives = [trainer.head], 0
    while not trainer.done:
        before = trainer.env.ale.lives()
        finished = any(isinstance(r, Episode) for r in trainer.step())
        lives += trainer.env.ale.lives() < before
        assert finished or trainer.head == heads[-1]
        if finished:
            heads.append(trainer.head)
    assert lives > len(heads) > 3 and len(set(heads)) > 1


def test_the_bonus_is_learned_from_and_never_logged():
    config = smoke("chain", "ucb_infogain", rho=100.0, temperature=0.01)
    trainer = Trainer(config)
    games = []
    while not trainer.done:
        games += [r for r in trainer.step() if isinstance(r, Episode)]
    stored = trainer.replay.rewards
    assert stored.max() > 11  # more than a whole game can pay
    assert max(g.score for g in games) <= 11


def test_clipped_rewards_are_signs_and_the_log_is_raw():
    config = configure(
        "smoke", game="Seaquest", algorithm="double_dqn", frames=8000, max_frames=None, eval_every=0
    )
    trainer = Trainer(config)
    games = []
    while not trainer.done:
        games += [r for r in trainer.step() if isinstance(r, Episode)]
    assert set(np.unique(trainer.replay.rewards)) <= {-1.0, 0.0, 1.0}
    assert max(g.score for g in games) >= 20


@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_masks(probability):
    trainer = Trainer(smoke("chain", "bootstrapped_dqn", mask_probability=probability))
    for _ in range(250):
        trainer.step()
    if probability == 1:
        assert trainer.replay.masks is None
    else:
        assert trainer.replay.masks[:250].mean() == pytest.approx(probability, abs=0.03)


def test_updates_and_targets_come_when_the_table_says():
    config = smoke("chain", "ucb", learning_starts=100, update_every=4, eval_every=0)
    trainer = Trainer(config)
    for _ in range(100):
        trainer.step()
    assert trainer.learner.updates == 0
    for _ in range(100):
        trainer.step()
    assert trainer.learner.updates == 25  # at steps 104, 108, ..., 200


# --- what it was -----------------------------------------------------------------------------


def golden(algorithm: str) -> dict:
    config = configure("smoke", suite="minatar", game="Asterix", algorithm=algorithm, frames=1500)
    found = records(config)
    diagnostics = [r for r in found if isinstance(r, Diagnostics)]
    return {
        "episodes": [list(r) for r in found if isinstance(r, Episode)],
        "evaluations": [list(r) for r in found if isinstance(r, Evaluation)],
        "losses": [r.loss for r in diagnostics if r.loss == r.loss],
        "stds": [r.std for r in diagnostics if r.std == r.std],
    }


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_golden_trajectory(algorithm):
    """If this fails, the runs in results/ are stale. `python tests/test_train.py` rewrites it."""
    expected, now = json.loads(GOLDEN.read_text())[algorithm], golden(algorithm)
    assert now["episodes"] == expected["episodes"]
    assert now["evaluations"] == expected["evaluations"]
    assert now["losses"] == pytest.approx(expected["losses"], rel=1e-3)
    assert now["stds"] == pytest.approx(expected["stds"], rel=1e-3)


# --- learning --------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_solves_a_short_chain(algorithm):
    config = configure(
        suite="chain", game="N6", algorithm=algorithm, frames=4000, eval_every=4000, eval_games=5
    )
    found = records(config)
    returns = [r.score for r in found if isinstance(r, Episode)]
    assert np.mean(returns[-20:]) > 10  # of 11, with 1 % random actions
    assert np.mean([r.score for r in found if isinstance(r, Evaluation)]) > 10


def random_mean(config: Config, games: int) -> float:
    env, rng = envs.make(config, np.random.default_rng(0)), np.random.default_rng(1)
    while len(env.finished) < games:
        env.reset()
        while not env.step(int(rng.integers(env.n_actions))).terminal:
            pass
    return float(np.mean([game.score for game in env.finished]))


@pytest.mark.parametrize("algorithm", ["double_dqn", "bootstrapped_dqn", "ucb_infogain"])
def test_agents_beat_random_on_minatar_breakout(algorithm):
    config = configure(
        suite="minatar", game="Breakout", algorithm=algorithm,
        frames=24_000, hidden=32, eval_every=0, K=1 if algorithm == "double_dqn" else 3,
    )  # fmt: skip
    returns = [r.score for r in records(config) if isinstance(r, Episode)]
    assert np.mean(returns[-100:]) > 3 * random_mean(config, 300)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({a: golden(a) for a in ALGORITHMS}, indent=1) + "\n")
