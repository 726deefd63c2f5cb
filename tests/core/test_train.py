"""Training end to end: it runs, it repeats itself, it stays what it was, and it learns."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from qe import envs
from qe.config import Config, configure
from qe.learner import NotFiniteError
from qe.runs.records import Diagnostics, Diary, Episode, Evaluation, Record
from qe.runs.session import run
from qe.selectors import ALGORITHMS
from qe.train import Trainer, train
from tests.core.test_network import bfloat16

GAMES = {"atari": "Pong", "minatar": "Breakout", "deepsea": "N5"}
GOLDEN = Path(__file__).parent / "golden.json"


def smoke(suite: str, algorithm: str, **values) -> Config:
    return configure("smoke", suite=suite, game=GAMES[suite], algorithm=algorithm, **values)


def records(config: Config) -> list[Record]:
    return [row for rows in Diary(Trainer(config)).keep() for row in rows]


def returns(config: Config) -> list[float]:
    return [row.return_ for row in records(config) if isinstance(row, Episode)]


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
    assert list(evaluated[0]) == ["frame", "step", "number", "return", "length"]
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


def test_the_loop_is_a_generator_of_what_happens():
    trainer = Trainer(smoke("deepsea", "ucb"))
    steps = list(train(trainer))
    assert len(steps) == trainer.steps == 600 and trainer.done
    assert sum(len(happened.games) for happened in steps) == 120
    assert all((happened.loss is None) == (i < 100) for i, happened in enumerate(steps))
    assert all(happened.move.thought is None for happened in steps[:100])  # random, no bonus
    for happened in steps[100:]:
        assert happened.move.action == happened.move.thought.choice


def test_a_run_ends_when_its_game_is_solved():
    values = {"solved_return": -1.0, "solved_games": 7}
    trainer = Trainer(smoke("deepsea", "ucb", **values))
    games = sum(len(happened.games) for happened in train(trainer))
    assert games == 7 and trainer.frame == 35
    never = Trainer(smoke("deepsea", "ucb", solved_return=2.0))
    assert sum(len(happened.games) for happened in train(never)) == 120
    assert len(never.solving) == 100


def test_another_seed_is_another_run():
    assert records(smoke("minatar", "ucb")) != records(smoke("minatar", "ucb", seed=1))


@pytest.mark.parametrize("suite", GAMES)
def test_evaluating_changes_nothing_in_the_run(suite):
    def without_evaluations(**values) -> list[str]:
        found = records(smoke(suite, "ensemble_voting", **values))
        return [repr(r) for r in found if not isinstance(r, Evaluation)]

    assert without_evaluations() == without_evaluations(eval_every=0)


@pytest.mark.parametrize("head_per", ["game", "life"])
def test_bootstrapped_dqn_keeps_its_head_for_a_whole_game_or_life(head_per):
    config = configure(
        "smoke", game="Breakout", algorithm="bootstrapped_dqn", frames=8000, max_frames=None,
        eval_every=0, head_per=head_per,
    )  # fmt: skip
    trainer = Trainer(config)
    games = lives = changes = 0
    while not trainer.done:
        head, lives_left = trainer.agent.head, trainer.env.ale.lives()
        finished = bool(trainer.step().games)
        lost = trainer.env.ale.lives() < lives_left and not finished
        games, lives = games + finished, lives + lost
        changed = trainer.agent.head != head
        changes += changed
        assert not changed or finished or (lost and head_per == "life")
    assert lives > games > 3
    assert changes > games if head_per == "life" else 0 < changes <= games


def test_the_bonus_is_learned_from_and_never_logged():
    config = smoke("deepsea", "ucb_infogain", rho=100.0, temperature=0.01)
    trainer = Trainer(config)
    games = [game for happened in train(trainer) for game in happened.games]
    assert trainer.replay.rewards.max() > 2  # more than a whole game can pay
    assert max(game.return_ for game in games) <= 1


def test_clipped_rewards_are_signs_and_the_log_is_raw():
    config = configure(
        "smoke", game="Seaquest", algorithm="double_dqn", frames=8000, max_frames=None, eval_every=0
    )
    trainer = Trainer(config)
    games = [game for happened in train(trainer) for game in happened.games]
    assert set(np.unique(trainer.replay.rewards)) <= {-1.0, 0.0, 1.0}
    assert max(game.return_ for game in games) >= 20


@pytest.mark.parametrize("probability", [0.25, 1.0])
def test_masks(probability):
    trainer = Trainer(smoke("deepsea", "bootstrapped_dqn", mask_probability=probability))
    for _ in range(250):
        trainer.step()
    if probability == 1:
        assert trainer.replay.masks is None
    else:
        assert trainer.replay.masks[:250].mean() == pytest.approx(probability, abs=0.03)


def test_updates_and_targets_come_when_the_table_says():
    config = smoke("deepsea", "ucb", learning_starts=100, update_every=4, eval_every=0)
    trainer = Trainer(config)
    for _ in range(100):
        trainer.step()
    assert trainer.learner.updates == 0
    for _ in range(100):
        trainer.step()
    assert trainer.learner.updates == 25  # at steps 104, 108, ..., 200


def test_a_random_action_is_as_likely_as_epsilon_says():
    config = smoke("minatar", "ucb", learning_starts=0, epsilon=[[0, 0.4]], frames=4000)
    moves = [happened.move for happened in train(Trainer(config))]
    assert np.mean([move.thought is None for move in moves]) == pytest.approx(0.4, abs=0.03)
    warmed_up = config.model_copy(update={"ensemble_epsilon": "warmup_only"})
    assert all(happened.move.thought for happened in train(Trainer(warmed_up)))


def test_diagnostics_are_means_over_the_states_that_the_heads_were_asked_about():
    config = smoke("minatar", "ucb_infogain", learning_starts=50, log_every=300, frames=600)
    trainer, thoughts = Trainer(config), []
    act = trainer.agent.act

    def listening(*args):
        moves = act(*args)
        thoughts.extend(move.thought for move in moves)
        return moves

    trainer.agent.act = listening
    rows = [row for rows in Diary(trainer).keep() for row in rows if isinstance(row, Diagnostics)]
    for i, row in enumerate(rows):
        found = thoughts[300 * i : 300 * (i + 1)]  # the bonus asks on every step
        q = np.stack([t.q for t in found]).astype(float)
        choice = np.array([t.choice for t in found])
        votes = np.stack([np.bincount(state.argmax(1), minlength=q.shape[2]) for state in q])
        own = q - q.mean(2, keepdims=True)
        expected = {
            "std": q.std(1)[range(300), choice],
            "own_std": own.std(1)[range(300), choice],
            "agreement": votes.max(1) / config.K,
            "tie_rate": (votes == votes.max(1, keepdims=True)).sum(1) > 1,
            "off_mean": q.mean(1).argmax(1) != choice,
            "bonus": [t.bonus for t in found],
        }
        for name, values in expected.items():
            assert getattr(row, name) == pytest.approx(np.mean(values), rel=1e-5), name


def test_learning_that_runs_away_is_noticed():
    config = smoke("deepsea", "ucb_infogain", rho=1e45, eval_every=0)
    with pytest.raises(NotFiniteError, match=r"the loss is (inf|nan) at update 1"):
        list(train(Trainer(config)))
    trainer = Trainer(smoke("deepsea", "ucb"))
    trainer.learner.check_finite()
    trainer.learner.net.flat[3] = float("inf")
    with pytest.raises(NotFiniteError, match="a weight is not a number after update 0"):
        trainer.learner.check_finite()


# --- what it was -----------------------------------------------------------------------------

CASES = {
    **{algorithm: {"algorithm": algorithm} for algorithm in ALGORITHMS},
    "mask": {"algorithm": "bootstrapped_dqn", "mask_probability": 0.5},
    "prior_scale": {"algorithm": "ucb", "prior_scale": 3.0},
    "init torch": {"algorithm": "ucb", "init": "torch"},
    "tie_break mean": {"algorithm": "ensemble_voting", "tie_break": "mean"},
    "tie_break random": {"algorithm": "ensemble_voting", "tie_break": "random"},
    "bfloat16": {"algorithm": "ucb", "precision": "bfloat16"},
    "head_per life": {
        "suite": "atari", "game": "Breakout", "algorithm": "bootstrapped_dqn", "head_per": "life",
        "frames": 4000, "max_frames": None,
    },
    "deepsea": {
        "suite": "deepsea", "game": "N6", "algorithm": "bootstrapped_dqn", "prior_scale": 3.0,
    },
}  # fmt: skip


def golden(case: str) -> dict:
    values = {"suite": "minatar", "game": "Asterix", "frames": 1500} | CASES[case]
    found = records(configure("smoke", **values))
    diagnostics = [row for row in found if isinstance(row, Diagnostics)]
    return {
        "episodes": [list(row) for row in found if isinstance(row, Episode)],
        "evaluations": [list(row) for row in found if isinstance(row, Evaluation)],
        "losses": [row.loss for row in diagnostics if row.loss == row.loss],
        "stds": [row.std for row in diagnostics if row.std == row.std],
    }


@pytest.mark.parametrize("case", CASES)
def test_golden_trajectory(case):
    """If this fails, the runs in results/ are stale.

    `python -m tests.core.test_train` writes it anew, when the learning code is changed on purpose.
    """
    if case == "bfloat16" and not bfloat16():
        pytest.skip("this processor does not compute in bfloat16")
    expected, now = json.loads(GOLDEN.read_text())[case], golden(case)
    assert now["episodes"] == expected["episodes"]
    assert now["evaluations"] == expected["evaluations"]
    assert now["losses"] == pytest.approx(expected["losses"], rel=1e-3)
    assert now["stds"] == pytest.approx(expected["stds"], rel=1e-3)


def test_the_golden_trajectories_differ_from_each_other():
    cases = json.loads(GOLDEN.read_text())
    assert len({json.dumps(case) for case in cases.values()}) == len(CASES)


# --- learning --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
def test_ensembles_with_a_prior_find_the_treasure(seed):
    for algorithm, values in (("bootstrapped_dqn", {}), ("ucb", {"lam": 1.0})):
        config = configure(
            suite="deepsea", game="N8", algorithm=algorithm, prior_scale=3.0, seed=seed, **values
        )
        trainer = Trainer(config)
        games = sum(len(happened.games) for happened in train(trainer))
        assert sum(trainer.solving) == config.solved_games, algorithm
        assert games < 1000


def random_mean(config: Config, games: int) -> float:
    env, rng = envs.make(config, np.random.default_rng(0)), np.random.default_rng(1)
    while len(env.finished) < games:
        env.reset()
        while not env.step(int(rng.integers(env.n_actions))).terminal:
            pass
    return float(np.mean([game.return_ for game in env.finished]))


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": "double_dqn", "K": 1},
        pytest.param({"algorithm": "ucb_infogain"}, marks=pytest.mark.slow),
        pytest.param(
            {"algorithm": "ucb", "precision": "bfloat16"},
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(not bfloat16(), reason="no bfloat16 on this processor"),
            ],
        ),
    ],
    ids=lambda values: "-".join(str(v) for v in values.values()),
)
def test_agents_beat_random_on_minatar_breakout(values):
    config = configure(
        **{"suite": "minatar", "game": "Breakout", "frames": 24_000, "hidden": 32, "K": 3}
        | {"eval_every": 0}
        | values
    )
    assert np.mean(returns(config)[-100:]) > 3 * random_mean(config, 300)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps({case: golden(case) for case in CASES}, indent=1) + "\n")
