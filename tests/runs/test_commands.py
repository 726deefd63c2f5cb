"""What the command line says of words that are wrong, and whom it asks."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from qe import TERMINAL
from qe import __main__ as command_line
from qe.__main__ import agreed, main
from qe.config import ConfigError
from qe.runs.progress import progress_bar
from qe.runs.signals import PARENT, die_with_parent

RUN = ["run", "--profile", "smoke", "--suite", "minatar", "--game", "Breakout"]
LONG = "9" * 5000


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([*RUN, "--huber_delta", "1e300"], "Learning fails"),
        ([*RUN, "--rho", "1e308", "--algorithm", "ucb_infogain"], "less extreme values"),
        ([*RUN, "--lam", "[" * 100_000], "lam must be"),
        ([*RUN, "--epsilon", "[[]]"], "epsilon has too few values in ()."),
        ([*RUN, LONG], "Expected a parameter"),
        ([*RUN, "--" + LONG, "1"], "There is no parameter"),
        ([*RUN, "--game", LONG], "game must be one of the 5 games"),
        ([*RUN, "--suite", LONG], "suite must be"),
        ([*RUN, "--profile", LONG], "profile must be"),
        ([*RUN, "--algorithm", LONG], "algorithm must be"),
        ([*RUN, "--out", LONG], "out must be"),
        (["run", "--suite", "deepsea", "--game", LONG], "game must be N2 to N100"),
        (["run", "--suite", "minatar"], "game must be given: --suite minatar --game Breakout"),
        (["run"], "game must be given: --suite atari --game Pong"),
        (["estimate", "--workers", LONG], "invalid int value"),
        (["make", LONG], "There is no params.yaml"),
        (["compare", LONG], "File name too long"),
        ([LONG], "invalid choice"),
    ],
)
def test_words_that_are_wrong_get_a_short_sentence(words, sentence, capsys):
    try:
        assert main(words) == 2
    except SystemExit as stopped:
        assert stopped.code == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert sentence in said and len(said) < 700, said
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"game,mean\nPong,1\n", b"game,games,mean,sd\nx\n"]
)
def test_a_broken_table_of_random_play_is_refused_and_stays(content, capsys):
    path = Path("minatar.csv")
    path.write_bytes(content)
    code = main(["random", "--game", "Breakout", "--games", "2", "--out", "."])
    if content:
        assert code == 2 and "is no table of random play" in capsys.readouterr().err
        assert path.read_bytes() == content
    else:
        assert code == 0 and path.read_text().count("\n") == 2


@pytest.mark.parametrize("said", ["x", "", "-1", "9" * 5000])
def test_a_parent_that_is_no_number_is_refused(said, monkeypatch):
    monkeypatch.setenv(PARENT, said)
    with pytest.raises(ConfigError, match="QE_PARENT must be a process number"):
        die_with_parent()


def test_a_full_disk_is_said_with_a_name(capsys):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "qe", "games"], stdout=full, stderr=subprocess.PIPE, text=True,
            check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == "qe: No space left on device: the standard output.\n"


class Keyboard:
    def isatty(self) -> bool:
        return True


def test_a_long_run_asks_a_person_first(monkeypatch):
    def answer(text: str):
        monkeypatch.setattr("builtins.input", lambda prompt: text)

    monkeypatch.setattr(sys, "stdin", Keyboard())
    for name in (TERMINAL, "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    answer("")
    assert agreed(3000) and not agreed(4000)
    answer("Y ")
    assert agreed(4000)
    answer("no")
    for name in (TERMINAL, "DVC_ROOT"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "1")
            assert agreed(4000)
    monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115, PTH123
    assert agreed(4000)


def test_a_long_run_that_is_not_wanted_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "agreed", lambda seconds: False)
    assert main([*RUN, "--out", "run"]) == 2
    assert "Not begun." in capsys.readouterr().err and not list(Path().iterdir())
    assert main([*RUN, "--frames", "200", "--out", "run", "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "run"
    assert main([*RUN, "--frames", "200", "--out", "run"]) == 0  # held already
    said = capsys.readouterr().out.splitlines()
    assert "holds this run already" in said[0] and said[-1] == "run"


def test_bars_are_seldom_drawn_in_a_log_file():
    with progress_bar(total=3) as bar:
        assert bar.mininterval == 30
