"""Bad input, drawn at random: a success, or one sentence and exit code 2; never a traceback."""

import copy
import io
import json
import shutil
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qe.__main__ import PIPELINE, USERS, main
from qe.config import Config, configure
from qe.runs.session import run
from qe.runs.status import Made, checksums
from tests.conftest import EXPERIMENTS

FUZZ = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
SMALL = ["--profile", "smoke", "--suite", "minatar", "--game", "Breakout", "--frames", "150"]
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**30), 10**30),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(
        ["", "nan", "[[0, 1]]", "[]", "{}", "-1", "1e999", "9" * 5000, "é" * 300, "../x", "[[]]"]
    ),
    st.sampled_from(["1e300", "-1e308", "[" * 50_000, "\udcff", "x y\n", "..", "/dev/null"]),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def call(words: list[str]) -> int:
    """The exit code; where it is 2, the last word is one sentence."""
    errors = io.StringIO()
    with redirect_stderr(errors), redirect_stdout(io.StringIO()):
        try:
            code = main(words)
        except SystemExit as stopped:  # argparse's own
            code = int(stopped.code or 0)
    said = errors.getvalue()
    assert code in (0, 2), (words, said)
    if code == 2:
        last = said.strip().splitlines()[-1]
        assert last.startswith(("qe: ", "python -m qe")) or ": error: " in last, said
        assert len(last) < 700, said
    return code


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    config = configure("smoke", suite="minatar", game="Breakout", frames=150, keep_network=True)
    return run(config, tmp_path_factory.mktemp("fuzz") / "run", progress=False)


def as_text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("\0", "")


# Wrong for every parameter, which is then refused before it takes any time.
wrong = st.sampled_from(["9" * 5000, "[" * 50_000, "[[]]", "{}", "", "x", "-1", "nan", "\udcff"])


# What a run.json may say anything of, in words or numbers.
FREE = ("code", "commit", "frames", "episodes", "seconds", "steps_per_second", "memory_gb", "steps")
# What would take minutes, or ask for another machine, where it is right.
SLOW = {"frames", "suite", "game", "batch_size", "update_every", "eval_games", "eval_every"}


@settings(FUZZ, max_examples=60)
@given(st.sampled_from(sorted(Config.model_fields.keys() - SLOW)), junk)
def test_any_value_of_any_parameter(tmp_path, name, value):
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.rmtree(tmp_path / "run.checkpoint", ignore_errors=True)
    call(["run", *SMALL, f"--{name}={as_text(value)}", "--out", str(tmp_path / "run")])


@settings(FUZZ, max_examples=60)
@given(st.sampled_from(sorted(SLOW | {"seed", "profile"})), wrong)
def test_any_wrong_value_of_a_parameter_that_takes_time(tmp_path, name, value):
    words = ["run", *SMALL, f"--{name}={value}", "--out", str(tmp_path / "run")]
    assert call(words) == 2 and not (tmp_path / "run").exists()


@settings(FUZZ, max_examples=80)
@given(
    st.sampled_from([*(USERS | PIPELINE), "", "--help", "nonsense"]).filter(
        lambda c: c != "random"
    ),
    st.lists(
        st.one_of(
            st.sampled_from(["--out", "--run", "--steps", "--seed", "--params", "--dry", "--help"]),
            st.sampled_from(["--fps", "--workers", "--price", "--profile", "--suite", "--game"]),
            junk.map(as_text).filter(lambda text: len(text) < 400),
        ),
        max_size=4,
    ),
)
def test_any_words(command, words):
    call([command, *words])


@settings(FUZZ, max_examples=60)
@given(
    st.sampled_from(["random", "verify", "compare", "watch", "estimate"]),
    st.sampled_from(["--out", "--suite", "--steps", "--fps", "--seed", "--workers", "--price"]),
    st.one_of(wrong, junk.map(as_text)),
    st.binary(max_size=30),
)
def test_any_word_of_a_command_that_reads_a_run(finished, tmp_path, command, name, value, table):
    (tmp_path / "minatar.csv").write_bytes(table)
    words = {
        "random": ["--game", "Breakout", "--games", "2", "--out", str(tmp_path)],
        "verify": [str(finished), "--steps", "3"],
        "compare": [str(finished)],
        "watch": [str(finished), "--steps", "1"],
        "estimate": ["--params", "none.yaml"],
    }[command]
    call([command, *words, f"{name}={value}"])


def places(tree: Any, path: tuple = ()) -> list[tuple]:
    """The way to every value in nested dictionaries and lists."""
    found = [path] if path else []
    if isinstance(tree, dict | list):
        for key in tree if isinstance(tree, dict) else range(len(tree)):
            found += places(tree[key], (*path, key))
    return found


def changed(tree: Any, path: tuple, value: Any) -> Any:
    tree = copy.deepcopy(tree)
    inner = tree
    for key in path[:-1]:
        inner = inner[key]
    if value == "DELETE" and isinstance(inner, dict):
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return tree


@settings(FUZZ, max_examples=150)
@given(st.sampled_from(places(EXPERIMENTS)), st.one_of(junk, st.just("DELETE")))
def test_any_change_of_params(tmp_path, path, value):
    text = yaml.safe_dump(changed(EXPERIMENTS, path, value), sort_keys=False)
    (tmp_path / "params.yaml").write_text(text)
    for experiment in ("minatar", "atari", "lambda"):
        call(["make", experiment, "--dry"])


@settings(FUZZ, max_examples=60)
@given(st.text(max_size=200))
def test_any_text_in_the_place_of_params(tmp_path, text):
    (tmp_path / "params.yaml").write_text(text, errors="surrogateescape")
    call(["make", "minatar", "--dry"])


@settings(FUZZ, max_examples=60)
@given(st.data())
def test_any_change_of_a_finished_runs_record(finished, tmp_path, data):
    whole = json.loads((finished / "run.json").read_text())
    path = data.draw(st.sampled_from(places(whole)))
    value = data.draw(st.one_of(junk, st.just("DELETE")))
    shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
    text = json.dumps(changed(whole, path, value))
    (tmp_path / "run" / "run.json").write_text(text)
    call(["verify", str(tmp_path / "run"), "--steps", "20"])
    call(["compare", str(tmp_path / "run"), str(finished)])
    call(["run", *SMALL, "--keep_network", "true", "--out", str(tmp_path / "run")])


@settings(FUZZ, max_examples=100)
@given(
    st.sampled_from(sorted(Made.model_fields)),
    st.sampled_from([None, "x", -5, 1e308, [], {}, [{}], {"x": {}}, True, "DELETE"]),
)
def test_every_kind_of_change_of_what_readers_rely_on(finished, tmp_path, name, value):
    whole = json.loads((finished / "run.json").read_text())
    (tmp_path / "run").mkdir(exist_ok=True)
    for file in finished.iterdir():
        shutil.copy(file, tmp_path / "run")
    text = json.dumps(changed(whole, (name,), value))
    (tmp_path / "run" / "run.json").write_text(text)
    for words in (["verify", "run", "--steps", "3"], ["compare", "run"]):
        assert call(words) == 2 or name in FREE, (name, value)
    call(["run", *SMALL, "--keep_network", "true", "--out", "run"])


@settings(FUZZ, max_examples=40)
@given(
    st.one_of(st.binary(max_size=40), st.sampled_from([b"", b"frame,return\n", b"a\n\xff"])),
    st.sampled_from(["network.safetensors", "episodes.csv"]),
)
def test_any_bytes_that_run_json_has_the_checksum_of(finished, tmp_path, content, name):
    shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
    (tmp_path / "run" / name).write_bytes(content)
    made = json.loads((finished / "run.json").read_text())
    made["files"] |= checksums(tmp_path / "run", [name])
    (tmp_path / "run" / "run.json").write_text(json.dumps(made))
    if name == "episodes.csv":
        assert call(["verify", "run", "--steps", "150"]) == 2
        call(["compare", "run"])
    else:
        assert call(["watch", "run", "--steps", "1"]) == 2


@settings(FUZZ, max_examples=40)
@given(
    st.one_of(st.binary(max_size=40), st.just(b"[" * 100_000)),
    st.sampled_from(["run.json", "network.safetensors", "episodes.csv"]),
)
def test_any_bytes_in_the_place_of_a_runs_file(finished, tmp_path, content, name):
    shutil.copytree(finished, tmp_path / "run", dirs_exist_ok=True)
    (tmp_path / "run" / name).write_bytes(content)
    assert call(["verify", str(tmp_path / "run")]) == 2
    assert call(["watch", str(tmp_path / "run"), "--steps", "2"]) == 2
