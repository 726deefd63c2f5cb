"""Making the beginning of a run again."""

import json

import pytest

from qe.__main__ import main
from qe.config import configure
from qe.run import run


@pytest.fixture
def made(tmp_path):
    config = configure("smoke", suite="minatar", game="Breakout", algorithm="ucb_infogain")
    return run(config, tmp_path / "run", progress=False)


def test_a_run_is_what_its_code_makes(made, capsys):
    assert main(["verify", str(made), "--steps", "350"]) == 0
    assert "the same, byte for byte, up to step 350" in capsys.readouterr().out
    assert main(["verify", str(made)]) == 0  # all of it: there are no 20 000
    assert "up to step 600" in capsys.readouterr().out
    log = made / "episodes.csv"
    log.write_bytes(log.read_bytes()[:60])  # cut off in a row
    assert main(["verify", str(made)]) == 2
    assert "episodes.csv differs in line" in capsys.readouterr().err


@pytest.mark.parametrize("log", ["episodes.csv", "evaluations.csv", "diagnostics.csv"])
def test_a_changed_number_is_found(made, log, capsys):
    path = made / log
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:-1] + ("1" if lines[1][-1] != "1" else "2")
    path.write_text("\n".join(lines) + "\n")
    assert main(["verify", str(made), "--steps", "600"]) == 2
    assert f"{log} differs in line 2" in capsys.readouterr().err


def test_what_may_be_the_reason_is_said(made, capsys):
    summary = json.loads((made / "run.json").read_text())
    summary["code"], summary["machine"]["cpu"] = "other", "Z80"
    summary["config"]["seed"] = 1
    (made / "run.json").write_text(json.dumps(summary))
    assert main(["verify", str(made), "--steps", "600"]) == 2
    said = capsys.readouterr().err
    assert "It was made by other code" in said and "on another processor, Z80" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["nowhere"], "There is no finished run in nowhere."),
        (["nowhere", "--steps", "0"], "steps must be at least 1, not 0."),
    ],
)
def test_what_cannot_be_verified_is_refused(words, sentence, capsys):
    assert main(["verify", *words]) == 2
    assert sentence in capsys.readouterr().err
