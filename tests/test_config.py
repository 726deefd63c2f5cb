"""Parameters: the paper's values by default, and one sentence for whatever is wrong."""

import json

import pytest

from qe.__main__ import main, parse_parameters
from qe.config import ALGORITHMS, MACHINE, Config, ConfigError, configure
from qe.notebooks import Asked, plan


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
        ({"algorithm": "dqn"}, "algorithm must be 'double_dqn', 'bootstrapped_dqn'"),
        ({"game": "Brekout"}, "the nearest: Breakout"),
        ({"suite": "minatar", "game": "Pong"}, "one of the 5 games of the minatar suite"),
        ({"suite": "chain", "game": "N2"}, "game must be N3 to N1000"),
        ({"suite": "procgen"}, "suite must be 'atari', 'minatar' or 'chain'"),
        ({"suite": 3}, "suite must be 'atari', 'minatar' or 'chain'"),
        ({"profile": "huge"}, "profile must be one of default, paper, reduced, smoke"),
        ({"channels": [1, 2]}, "channels must be 3 positive whole number(s)"),
        ({"epsilon": [[0, 1.0], [0, 0.5]]}, "epsilon must be knots [t, value] with growing t"),
        ({"epsilon": [[0, 1.5]]}, "epsilon must be at most 1"),
        ({"learning_rate": "1e-4"}, "learning_rate must be a list"),
        ({"learning_rate": []}, "learning_rate must be knots"),
        ({"replay_size": 4}, "replay_size must be more than history (4), not 4."),
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
    assert configure(suite="chain", game="n07").game == "N7"


def test_profiles_hold_only_parameters_that_exist():
    for profile in ("default", "smoke", "paper"):
        for suite, game in (("atari", "Pong"), ("minatar", "Breakout"), ("chain", "N5")):
            for algorithm in ALGORITHMS:
                c = configure(profile, suite=suite, game=game, algorithm=algorithm)
                assert (1 if algorithm == "double_dqn" else 10) == c.K


def test_the_fingerprint_tells_runs_apart_and_nothing_else():
    base = configure(suite="chain")
    elsewhere = {"device": "cpu", "threads": 2, "checkpoint_every": 5.0, "keep_network": True}
    assert set(MACHINE) == elsewhere.keys()
    assert base.fingerprint() == configure(suite="chain", **elsewhere).fingerprint()
    for other in ({"seed": 1}, {"lam": 0.2}, {"game": "N11"}, {"epsilon": [[0, 0.5]]}):
        assert base.fingerprint() != configure(**{"suite": "chain"} | other).fingerprint()


def test_a_configuration_survives_json():
    c = configure(suite="minatar", game="Asterix", algorithm="ucb_infogain", rho=0.5)
    again = configure(**json.loads(c.model_dump_json()))
    assert again == c


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
    assert all(f"--{name} " in out for name in Config.model_fields if name != "profile")


def test_a_group_that_params_yaml_lacks_is_refused():
    sections = {"minatar": {"settings": {}}, "ucb": {}, "some": {"atari": {}}}
    for group in ("some", "none"):
        with pytest.raises(ConfigError, match=f"no group '{group}' with settings of minatar"):
            plan(Asked("minatar", "Breakout", "ucb", 0, group=group), sections)
