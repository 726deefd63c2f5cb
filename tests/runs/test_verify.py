"""Making the beginning of a run again."""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest

from qe.__main__ import main
from qe.config import ConfigError, configure
from qe.runs.notebooks import sockets
from qe.runs.records import LOGS
from qe.runs.session import run
from qe.runs.status import checksums
from qe.runs.verify import verify


def sign(run: Path) -> None:
    """Have run.json list the logs as they are now."""
    summary = json.loads((run / "run.json").read_text())
    summary["files"] = checksums(run, list(LOGS.values()))
    (run / "run.json").write_text(json.dumps(summary))


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
    assert "episodes.csv is not the file that run.json beside it lists" in capsys.readouterr().err
    sign(made)
    assert main(["verify", str(made)]) == 2
    assert "episodes.csv differs in line" in capsys.readouterr().err


@pytest.mark.parametrize("log", ["episodes.csv", "evaluations.csv", "diagnostics.csv"])
def test_a_changed_number_is_found(made, log, capsys):
    path = made / log
    lines = path.read_text().splitlines()
    lines[1] = lines[1][:-1] + ("1" if lines[1][-1] != "1" else "2")
    path.write_text("\n".join(lines) + "\n")
    sign(made)
    assert main(["verify", str(made), "--steps", "600"]) == 2
    assert f"{log} differs in line 2" in capsys.readouterr().err


def test_what_may_be_the_reason_is_said(made, capsys):
    summary = json.loads((made / "run.json").read_text())
    summary["code"], summary["machine"]["cpu"] = "other", "Z80"
    (made / "run.json").write_text(json.dumps(summary))
    log = made / "episodes.csv"
    log.write_bytes(log.read_bytes().replace(b"\n1,", b"\n9,"))
    sign(made)
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


def softly(q, rng):
    """Not in the paper: an action that some head would take."""
    return rng.choice(q.argmax(1))


def test_a_run_of_ones_own_algorithm_needs_its_function(tmp_path, capsys):
    config = configure("smoke", suite="minatar", game="Breakout", algorithm=softly, K=3)
    made = run(config, tmp_path / "run", progress=False)
    assert main(["verify", str(made)]) == 2
    said = capsys.readouterr().err
    assert "was made by softly, a function that is not in this package" in said
    assert verify(made, 600, softly, progress=False)[0] == 600

    def other(q, rng):
        return rng.choice(q.argmax(1)) * 1

    other.__name__ = "softly"
    with pytest.raises(ConfigError, match="was made by another softly"):
        verify(made, 600, other, progress=False)


def test_a_run_json_that_is_none_is_refused(made, capsys):
    whole = json.loads((made / "run.json").read_text())
    config = whole["config"]
    for text, sentence in (
        ("", "can't be read"),
        ("[" * 100_000, "can't be read"),
        ("[]", "is not of a finished run: fingerprint is missing."),
        ("{}", "is not of a finished run: fingerprint is missing."),
        (whole | {"steps": -5}, "steps must be at least 1, not -5."),
        (whole | {"steps": "600"}, "steps must be a whole number, not '600'."),
        (whole | {"machine": {}}, "machine.cpu is missing."),
        (whole | {"files": {}}, "files lacks diagnostics.csv."),
        (whole | {"files": {"../x": {}}}, "files.../x"),
        (whole | {"config": {}}, "its config does not have its fingerprint."),
        (whole | {"config": config | {"seed": 1}}, "its config does not have its fingerprint."),
        (whole | {"config": config | {"lambda": 1}}, "There is no lambda."),
        (whole | {"config": 3}, "config must be a dictionary, not 3."),
    ):
        (made / "run.json").write_text(text if isinstance(text, str) else json.dumps(text))
        words = ["--profile", "smoke", "--suite", "minatar", "--game", "Breakout"]
        words += ["--algorithm", "ucb_infogain"]
        for command in (
            ["verify", str(made)],
            ["compare", str(made)],
            ["watch", str(made)],
            ["run", *words, "--out", str(made)],
        ):
            assert main(command) == 2
            said = capsys.readouterr().err
            assert sentence in said and said.count("\n") == 1, said


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00" * 20, b"a,b\n1,2\n", b"frame,return\nx,y\n"]
)
def test_a_log_that_is_none_is_refused(made, content, tmp_path, capsys):
    (made / "episodes.csv").write_bytes(content)
    sign(made)
    assert main(["verify", str(made)]) == 2
    assert "episodes.csv differs in line 1" in capsys.readouterr().err
    assert main(["compare", str(made), "--out", str(tmp_path / "compared.svg")]) == 2
    assert "episodes.csv is no log of games." in capsys.readouterr().err


def test_what_a_killed_verification_left_behind_is_removed(made):
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = Path(tempfile.gettempdir(), f"qe-{ended.pid}-left")
    left.mkdir()
    with sockets() as folder:
        assert Path(folder).is_dir() and not left.exists()
