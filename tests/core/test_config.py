"""Parameters: the paper's values by default, and one sentence for whatever is wrong."""

import json

import numpy as np
import pytest

from qe import config as config_module
from qe.__main__ import main, parse_parameters
from qe.config import MACHINE, Config, ConfigError, configure, param
from qe.selectors import ALGORITHMS, Given


def test_defaults_are_the_papers_table():
    c = configure("paper", game="Pong", algorithm="ucb_infogain")
    assert c == configure(game="Pong", algorithm="ucb_infogain", profile="default").model_copy(
        update={"profile": "paper"}
    )
    table = {
        "frames": 40_000_000, "batch_size": 32, "replay_size": 1_000_000, "history": 4,
        "target_every": 10_000, "discount": 0.99, "action_repeat": 4, "update_every": 4,
        "adam_beta1": 0.9, "adam_beta2": 0.99, "adam_eps": 1e-4, "learning_starts": 50_000,
        "learning_rate": ((0, 1e-4), (1e6, 1e-4), (5e6, 5e-5)),
        "epsilon": ((0, 1.0), (1e6, 0.1), (5e6, 0.01)), "schedule_unit": "steps",
        "K": 10, "lam": 0.1, "rho": 1.0, "temperature": 1.0, "mask_probability": 1.0,
    }  # fmt: skip
    assert {name: getattr(c, name) for name in table} == table
    assert c.steps == 10_000_000


def test_every_parameter_says_where_it_comes_from():
    assert all(field.description for field in Config.model_fields.values())


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"framse": 3}, "There is no parameter 'framse'; did you mean frames?"),
        ({"lambda": 0.1}, "There is no parameter 'lambda'"),
        ({"K": 0}, "K must be at least 1, not 0."),
        ({"K": 2.5}, "K must be a whole number, not 2.5."),
        ({"K": "10"}, "K must be a whole number, not '10'."),
        ({"K": True}, "K must be a whole number, not True."),
        ({"algorithm": "double_dqn", "K": 3}, "K must be 1 for double_dqn, not 3."),
        ({"algorithm": "ucb_infogain", "temperature": 0.0}, "temperature must be more than 0"),
        ({"algorithm": "ucb_infogain", "temperature": -1}, "temperature must be more than 0"),
        ({"lam": float("nan")}, "lam must be a finite number"),
        ({"lam": float("inf")}, "lam must be a finite number"),
        ({"algorithm": "double_dqn", "lam": 0.5}, "lam has no effect on double_dqn"),
        ({"algorithm": "ucb", "rho": 0.5}, "rho has no effect on ucb"),
        ({"algorithm": "dqn"}, "algorithm must be double_dqn, bootstrapped_dqn"),
        ({"algorithm": 3}, "algorithm must be a string, not 3."),
        ({"source": "def f(q, rng): return 0"}, "algorithm must be double_dqn"),
        (
            {"algorithm": "double_dqn", "prior_scale": 3.0},
            "prior_scale has no effect on double_dqn",
        ),
        ({"K": 1, "prior_scale": 3.0}, "prior_scale must be 0 for K = 1"),
        ({"prior_scale": -1.0}, "prior_scale must be at least 0"),
        ({"head_per": "life"}, "head_per has no effect on ucb; only on bootstrapped_dqn"),
        ({"algorithm": "double_dqn", "tie_break": "mean"}, "tie_break has no effect on double_dqn"),
        ({"init": "he"}, "init must be 'xavier' or 'torch'"),
        ({"precision": "float16"}, "precision must be 'float32' or 'bfloat16'"),
        ({"frames": 3}, "frames must be at least action_repeat (4), not 3."),
        ({"max_frames": 20}, "max_frames must be at least 48 on Atari"),
        ({"hidden": 100_000_000}, "hidden must be at most 65536"),
        ({"threads": 100_000}, "threads must be at most 1024"),
        ({"frames": 10**30}, "frames must be at most 1000000000000"),
        ({"channels": [1, 2, 5000]}, "channels must be 3 whole number(s) from 1 to 4096"),
        ({"game": "Brekout"}, "the nearest: Breakout"),
        ({"suite": "minatar", "game": "Pong"}, "one of the 5 games of the minatar suite"),
        ({"suite": "deepsea", "game": "N1"}, "game must be N2 to N100"),
        ({"suite": "deepsea", "game": "ten"}, "game must be N2 to N100"),
        ({"suite": "procgen"}, "suite must be 'atari', 'minatar' or 'deepsea'"),
        ({"suite": 3}, "suite must be 'atari', 'minatar' or 'deepsea'"),
        ({"profile": "huge"}, "profile must be one of default, paper, reduced, scaled, smoke"),
        ({"channels": [1, 2]}, "channels must be 3 whole number(s)"),
        ({"epsilon": [[0, 1.0], [0, 0.5]]}, "epsilon must be knots [t, value] with growing t"),
        ({"epsilon": [[0, 1.5]]}, "epsilon must be at most 1"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a list"),
        ({"learning_rate": []}, "learning_rate must be knots"),
        ({"replay_size": 4}, "replay_size must be at least history + 2 (6), not 4."),
        ({"algorithm": "../x", "source": "y"}, "algorithm must be double_dqn"),
        ({"mask_probability": 0.0}, "mask_probability must be more than 0"),
        ({"device": "gpu9"}, "device must be auto, cpu, cuda, cuda:N or mps, not 'gpu9'."),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(values, sentence):
    with pytest.raises(ConfigError) as caught:
        configure(**values)
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message and message[-1] in ".?"


def test_games_are_found_whatever_their_spelling():
    assert configure(game="space invaders").game == "SpaceInvaders"
    assert configure(suite="minatar", game="space_invaders").game == "SpaceInvaders"
    assert configure(suite="deepsea", game="n07").game == "N7"


def test_profiles_hold_only_parameters_that_exist():
    for profile in ("default", "smoke", "paper"):
        for suite, game in (("atari", "Pong"), ("minatar", "Breakout"), ("deepsea", "N5")):
            for algorithm in ALGORITHMS:
                c = configure(profile, suite=suite, game=game, algorithm=algorithm)
                assert (1 if algorithm == "double_dqn" else 10) == c.K


def test_the_fingerprint_tells_runs_apart_and_nothing_else():
    base = configure(suite="deepsea")
    elsewhere = {"device": "cpu", "threads": 2, "checkpoint_every": 5.0, "keep_network": True}
    assert set(MACHINE) == elsewhere.keys()
    assert base.fingerprint() == configure(suite="deepsea", **elsewhere).fingerprint()
    for other in ({"seed": 1}, {"lam": 0.2}, {"game": "N11"}, {"epsilon": [[0, 0.5]]}):
        assert base.fingerprint() != configure(**{"suite": "deepsea"} | other).fingerprint()


def test_a_parameter_that_is_added_later_leaves_old_fingerprints_as_they_are(monkeypatch):
    class Newer(Config):
        patience: int = param(3, "came later")

    old = configure(suite="minatar", game="Asterix", lam=0.5)
    values = old.model_dump()
    assert Newer(**values).fingerprint() != old.fingerprint()  # unless it is listed as such
    monkeypatch.setattr(config_module, "LATER", ("patience",))
    assert Newer(**values).fingerprint() == old.fingerprint()
    assert Newer(**values, patience=4).fingerprint() != old.fingerprint()


def test_a_sea_has_a_budget_and_a_warm_up_of_its_size():
    small, large = (configure(suite="deepsea", game=game) for game in ("N6", "N20"))
    assert (small.frames, small.learning_starts) == (12_000, 36)
    assert (large.frames, large.learning_starts) == (40_000, 400)
    assert configure(suite="deepsea", game="N20", frames=500).frames == 500
    assert configure(suite="deepsea", algorithm="ucb").ensemble_epsilon == "warmup_only"
    assert configure(suite="deepsea", algorithm="double_dqn").ensemble_epsilon == "schedule"


def own_algorithm(q, rng):
    return q.mean(0).argmax()


def test_an_algorithm_of_ones_own_is_part_of_the_configuration():
    def another(q, rng):
        return q.mean(0).argmax() * 1

    config = configure(suite="minatar", game="Asterix", algorithm=own_algorithm, K=4)
    assert config.algorithm == "own_algorithm" and "q.mean(0)" in config.source
    assert config.rule.choose(np.eye(3), Given(rng=np.random.default_rng(0))) == 0
    other = another
    other.__name__ = "own_algorithm"
    changed = configure(suite="minatar", game="Asterix", algorithm=other, K=4)
    assert config.fingerprint() != changed.fingerprint()
    without = configure(**json.loads(config.model_dump_json()))  # as a file has it
    assert without.fingerprint() == config.fingerprint()
    with pytest.raises(ConfigError, match="own_algorithm is not of this package"):
        _ = without.rule
    with pytest.raises(ConfigError, match="lam has no effect on own_algorithm"):
        configure(algorithm=own_algorithm, lam=0.5)
    with pytest.raises(ConfigError, match="algorithm must be a name, or a function made with"):
        configure(algorithm=lambda q, rng: 0)


@pytest.mark.parametrize("profile", ["default", "paper", "reduced", "smoke"])
@pytest.mark.parametrize("suite", ["atari", "minatar", "deepsea"])
def test_a_configuration_survives_json(suite, profile):
    game = {"atari": "Pong", "minatar": "Asterix", "deepsea": "N7"}[suite]
    c = configure(profile, suite=suite, game=game, algorithm="ucb_infogain", rho=0.5)
    again = configure(**json.loads(c.model_dump_json()))
    assert again == c and again.fingerprint() == c.fingerprint()
    said = configure(profile, **json.loads(c.model_dump_json(exclude={"profile"})))
    assert said.fingerprint() == c.fingerprint()  # as it is by default


def test_the_command_line_reads_every_kind_of_value():
    words = "--game=Pong --frames 1e6 --lam 1e-2 --clip-rewards false --max_frames null"
    values = parse_parameters([*words.split(), "--epsilon", "[[0, 1], [10, 0.5]]", "--K", "1_0"])
    assert values == {
        "game": "Pong", "frames": 1_000_000, "lam": 0.01, "clip_rewards": False,
        "max_frames": None, "epsilon": [[0, 1], [10, 0.5]], "K": 10,
    }  # fmt: skip
    assert isinstance(values["frames"], int)
    configure(**values)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("run --suite minatar --game Breakout --algoritm ucb", "did you mean algorithm?"),
        ("run --K many", "K must be a whole number, not 'many'."),
        ("run --frames", "frames needs a value."),
        ("run --frames " + "9" * 5000, "frames must be a whole number"),
        ("run Pong", "Expected a parameter such as --game, not 'Pong'."),
        ("run --profile tiny", "profile must be one of"),
        ("parameters --suite nes", "suite must be"),
    ],
)
def test_the_command_line_refuses_with_a_sentence(words, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("qe: ") and sentence in captured.err
    assert captured.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_list_of_parameters(capsys):
    assert main(["parameters", "--suite", "minatar"]) == 0
    out = capsys.readouterr().out
    assert all(
        f"--{name} " in out for name in Config.model_fields if name not in ("profile", "source")
    )
