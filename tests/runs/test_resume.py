"""A run survives anything: kills, faults and stops, and its files are none the worse."""

import csv
import json
import math
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from safetensors.torch import load_file

from qe import ROOT, envs
from qe.__main__ import main
from qe.config import Config, ConfigError, configure
from qe.learner import Learner
from qe.replay import BLOCK
from qe.runs import checkpoint
from qe.runs.logs import HEALTH
from qe.runs.records import LOGS
from qe.runs.session import Session, directory_for, run
from qe.runs.signals import Interrupted, import_games
from qe.runs.status import identity, status
from qe.train import Trainer, train

LOG_NAMES = tuple(LOGS.values())


def small(**values) -> Config:
    """Some seconds of training, with checkpoints as often as they come."""
    base = {
        "suite": "minatar", "game": "Breakout", "algorithm": "ucb", "frames": 5000,
        "checkpoint_every": 0.05, "keep_network": True,
    }  # fmt: skip
    return configure("smoke", **base | values)


def contents(directory: Path) -> dict[str, bytes]:
    names = (*LOG_NAMES, "network.safetensors")
    return {n: (directory / n).read_bytes() for n in names if (directory / n).exists()}


def words_of(config: Config, out: Path) -> list[str]:
    words = [sys.executable, "-m", "qe", "run", "--profile", config.profile, "--out", str(out)]
    defaults = configure(config.profile, suite=config.suite, game=config.game)
    for name, value in config.model_dump(mode="json").items():
        if name != "profile" and value != defaults.model_dump(mode="json")[name]:
            words += [f"--{name}", value if isinstance(value, str) else json.dumps(value)]
    return [*words, "--suite", config.suite, "--game", config.game]


def begin(config: Config, out: Path) -> subprocess.Popen:
    """The run in a process of its own, once it has written a checkpoint."""
    process = subprocess.Popen(
        words_of(config, out), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    wait(process, lambda: any((Path(f"{out}.checkpoint") / f"{g}.json").exists() for g in (0, 1)))
    time.sleep(0.3)  # a signal while it is written would be answered by it, not by a second one
    return process


def wait(process: subprocess.Popen, condition) -> None:
    while not condition():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.002)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> dict[str, bytes]:
    """The files of `small()`, made without a stop, in this process."""
    return contents(run(small(), tmp_path_factory.mktemp("whole") / "run", progress=False))


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory) -> Path:
    """The same run, stopped in another process: with a checkpoint of before and one of its stop."""
    out = tmp_path_factory.mktemp("stopped") / "run"
    process = begin(small(), out)
    process.send_signal(signal.SIGTERM)
    errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert "Stopped by SIGTERM at a checkpoint; the same call goes on" in errors
    return out


@pytest.fixture
def stopped(stopped_once, tmp_path) -> Path:
    """A copy of it, to do with as one likes."""
    out = tmp_path / "run"
    shutil.copytree(stopped_once, out)
    shutil.copytree(checkpoint.directory_of(stopped_once), checkpoint.directory_of(out))
    return out


# --- kills -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "attack", ["minatar ucb_infogain", pytest.param("atari ucb", marks=pytest.mark.slow)]
)
def test_whatever_happens_the_result_is_that_of_a_run_left_alone(attack):
    """Kills, power cuts, full disks, damage, crowds: each attack of `make torture` once."""
    suite, algorithm = attack.split()
    words = ["--kills", "0", "--suites", suite, "--algorithms", algorithm]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture", *words], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "0 differences" in done.stdout and "power cuts" in done.stdout


def test_a_stopped_run_goes_on_in_another_process(stopped, whole, capsys):
    assert not (stopped / "run.json").exists()
    run(small(), stopped, progress=False)
    assert "Going on from frame" in capsys.readouterr().out
    assert contents(stopped) == whole
    summary = json.loads((stopped / "run.json").read_text())
    assert summary["resumed"] == 1 and summary["checkpoints"] >= 3
    assert 0 < summary["checkpoint_share"] < 1
    with (stopped / HEALTH).open() as file:  # a row for each checkpoint, before the stop and after
        rows = list(csv.DictReader(file))
    assert len(rows) == summary["checkpoints"]
    assert all(np.diff([int(row["frame"]) for row in rows]) > 0)
    assert all(0.05 < float(row["memory_gb"]) < 50 for row in rows)
    assert not checkpoint.directory_of(stopped).exists()


def test_ctrl_c_stops_cleanly(tmp_path):
    process = begin(small(), tmp_path / "run")
    process.send_signal(signal.SIGINT)
    errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT
    assert "Stopped by SIGINT" in errors and "Traceback" not in errors


def test_ctrl_c_is_not_lost_in_an_import_that_catches_it(tmp_path, monkeypatch):
    (tmp_path / "minatar.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    x = [i for i in range(1000)]\n"
        "except:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    real = sys.modules.pop("minatar", None)
    try:
        with pytest.raises(KeyboardInterrupt):
            import_games("minatar")
    finally:
        del sys.modules["minatar"]
        if real:
            sys.modules["minatar"] = real


@pytest.mark.parametrize(
    ("command", "module"), [("run", "shtab"), ("run", "seaborn.palettes"), ("verify", "torch")]
)
def test_ctrl_c_gets_a_sentence_whatever_is_being_imported(tmp_path, command, module):
    """At the moment when Python says that a module is imported: early, in MinAtar's, in torch."""
    made = next((ROOT / "results" / "runs").glob("explorer_minatar/*/*/*"))
    words = f"verify {made}"
    if command == "run":
        words = "run --profile smoke --suite minatar --game Breakout --out run"
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "qe", *words.split()], cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert any(line.split()[-1:] == [module] for line in process.stderr)
    process.send_signal(signal.SIGINT)
    said = [line for line in process.stderr if not line.startswith("import time:")]
    assert process.wait() == 130 and said == ["qe: Stopped.\n"]
    assert not list(tmp_path.iterdir())


def test_interrupting_a_kernel_stops_and_running_the_cell_again_goes_on(tmp_path, whole):
    out = tmp_path / "run"
    values = small().model_dump(exclude={"profile"})
    cell = (
        "from qe.config import configure; from qe.runs.session import run\n"
        f"run(configure('smoke', **{values!r}), {str(out)!r}, progress=False)"
    )
    manager, client = start_new_kernel(cwd=str(ROOT))
    try:
        # An error would have the kernel refuse what comes next for a moment, which nobody types in.
        request = client.execute(cell, stop_on_error=False)
        deadline = time.monotonic() + 120
        while not (checkpoint.directory_of(out) / "0.json").exists():
            assert time.monotonic() < deadline
            time.sleep(0.002)
        manager.interrupt_kernel()
        while (reply := client.get_shell_msg(timeout=120))["parent_header"]["msg_id"] != request:
            pass
        assert reply["content"]["ename"] == Interrupted.__name__
        again = client.execute_interactive(cell, timeout=300, output_hook=lambda message: None)
        assert again["content"]["status"] == "ok"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert contents(out) == whole


@pytest.mark.slow
def test_a_killed_notebook_run_resumes_when_it_is_repeated(tmp_path):
    frames = 12_000  # longer than its kernel lives on when papermill is gone, a second or two
    more = {"checkpoint_every": 0.05, "keep_network": True}
    script = (
        "from pathlib import Path; from qe.runs.notebooks import execute\n"
        f"execute(Path({str(ROOT / 'notebooks' / 'ucb.ipynb')!r}), "
        f"dict(profile='smoke', frames={frames}, out={str(tmp_path / 'run')!r}, more={more!r}), "
        "Path('ucb.ipynb'))"
    )
    words = [sys.executable, "-c", script]
    env = os.environ | {"PYTHONPATH": str(ROOT)}

    def start() -> subprocess.Popen:
        return subprocess.Popen(
            words, cwd=tmp_path, env=env, start_new_session=True,
            stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        )  # fmt: skip

    process = start()
    wait(process, lambda: (tmp_path / "run.checkpoint" / "1.json").exists())
    pid = int((tmp_path / "run.checkpoint" / "lock").read_text().split()[1])
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + 120
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)  # the kernel notices that its parent is gone
    process = start()
    errors = process.communicate()[1]
    assert process.returncode == 0, errors
    whole = run(small(frames=frames), tmp_path / "whole", progress=False)
    assert contents(tmp_path / "run") == contents(whole)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["resumed"] == 1


# --- faults ----------------------------------------------------------------------------------


def newest(directory: Path) -> int:
    records = checkpoint.directory_of(directory)
    return max((0, 1), key=lambda g: json.loads((records / f"{g}.json").read_text())["number"])


@pytest.mark.parametrize("damage", ["torn", "flipped", "no json", "garbage json", "pickle"])
def test_a_broken_checkpoint_falls_back_to_the_one_before(stopped, whole, damage, capsys):
    generation = newest(stopped)
    tensors = checkpoint.directory_of(stopped) / f"{generation}.safetensors"
    record = checkpoint.directory_of(stopped) / f"{generation}.json"
    content = tensors.read_bytes()
    match damage:
        case "torn":
            tensors.write_bytes(content[: len(content) // 2])
        case "flipped":
            middle = len(content) // 2
            tensors.write_bytes(
                content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
            )
        case "no json":
            record.unlink()
        case "garbage json":
            record.write_text('{"number": 9')
        case "pickle":  # with a checksum that fits: still nothing is executed
            tensors.write_bytes(pickle.dumps({"a": 1}))
            fields = json.loads(record.read_text())
            fields["sha256"] = checkpoint._digest(tensors, fields["tree"])
            record.write_text(json.dumps(fields))
    run(small(), stopped, progress=False)
    assert "Going on from the checkpoint before it" in capsys.readouterr().err
    assert contents(stopped) == whole


DELETED = "deleted"


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("number", None),
        ("number", "3"),
        ("seconds", "1"),
        ("checkpoint_seconds", "1"),
        ("resumed", []),
        ("logs", {}),
        ("logs/episodes.csv/bytes", None),
        ("trainer/steps", "1"),
        ("trainer/steps", None),
        ("trainer/solving", None),
        ("trainer/head", "x"),
        ("trainer/env/frames", "x"),
        ("trainer/learner", []),
        ("trainer/rngs/sample/state", None),
        ("trainer/replay/sums", {}),
        ("diary/episodes", "1"),
        ("diary/loss", "1"),
        ("diary/apart", DELETED),
    ],
)
def test_a_checkpoint_whose_content_is_of_a_wrong_type_is_not_used(stopped, place, value, capsys):
    *way, last = place.split("/")
    for generation in (0, 1):
        record = checkpoint.directory_of(stopped) / f"{generation}.json"
        fields = json.loads(record.read_text())
        tree = inner = json.loads(fields["tree"])
        for name in way:
            inner = inner[name]
        inner[last] = value
        if value == DELETED:
            del inner[last]
        fields["tree"] = json.dumps(tree)
        tensors = record.with_suffix(".safetensors")
        fields["sha256"] = checkpoint._digest(tensors, fields["tree"])
        record.write_text(json.dumps(fields))
    with checkpoint.Store(stopped, identity(small())) as store:
        assert Session(small(), stopped, store).trainer.steps == 0
    said = capsys.readouterr().err
    assert said.count("can't be") == 2 and "the run starts again" in said


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", '{"number": "9", "tree": 3, "sha256": ""}'])
def test_a_checkpoint_whose_record_is_of_another_shape_is_not_used(stopped, text, capsys):
    (checkpoint.directory_of(stopped) / f"{newest(stopped)}.json").write_text(text)
    with checkpoint.Store(stopped, identity(small())) as store:
        assert Session(small(), stopped, store).trainer.steps > 0
    assert "Going on from the checkpoint before it" in capsys.readouterr().err
    (store.directory / "identity.json").write_text(text)
    assert status(stopped, small()) == "other"


def test_without_a_whole_checkpoint_the_run_starts_again_and_says_so(stopped, whole, capsys):
    for generation in (0, 1):
        (checkpoint.directory_of(stopped) / f"{generation}.safetensors").write_bytes(b"")
    run(small(), stopped, progress=False)
    assert "No checkpoint is whole: the run starts again." in capsys.readouterr().err
    assert contents(stopped) == whole


def test_a_log_of_another_configuration_is_refused_and_stays(stopped):
    before = contents(stopped)
    for other in (small(lam=0.5), small(seed=1)):
        with pytest.raises(ConfigError, match="holds a run of another configuration or code"):
            run(other, stopped, progress=False)
    assert contents(stopped) == before
    finished = run(small(), stopped, progress=False)
    before = contents(finished)
    with pytest.raises(ConfigError, match="holds a run of another configuration or code"):
        run(small(lam=0.5), stopped, progress=False)
    assert contents(finished) == before
    run(small(lam=0.5, frames=600), stopped, overwrite=True, progress=False)
    assert contents(finished) != before


def test_a_finished_run_is_not_made_again(tmp_path, capsys):
    directory = run(small(frames=600), tmp_path / "run", progress=False)
    before = (directory / "run.json").stat().st_mtime_ns
    assert run(small(frames=600), directory, progress=False) == directory
    assert "holds this run already" in capsys.readouterr().out
    assert (directory / "run.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("damage", ["cut", "changed", "missing"])
def test_logs_that_were_damaged_are_noticed_and_made_again(stopped, whole, damage, capsys):
    log = stopped / "episodes.csv"
    content = log.read_bytes()
    match damage:
        case "cut":
            log.write_text("episode\n")
        case "changed":
            log.write_bytes(content.replace(b"\n1,", b"\n9,"))
        case "missing":
            log.unlink()
    run(small(), stopped, progress=False)
    said = capsys.readouterr().err
    assert "can't be used" in said and "episodes.csv is not what it was then" in said
    assert contents(stopped) == whole


def test_a_second_process_is_refused_and_told_who_is_first(tmp_path):
    process = begin(small(frames=100_000), tmp_path / "run")
    try:
        with pytest.raises(ConfigError, match=rf"process {process.pid} on .* is working on this"):
            run(small(frames=100_000), tmp_path / "run", progress=False)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


def test_a_process_that_waited_for_the_lock_looks_again(tmp_path, monkeypatch, capsys):
    config = small(frames=600)
    made = run(config, tmp_path / "made", progress=False)
    out = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "PATIENCE", 60.0)
    with checkpoint.Store(out, identity(config)) as store, ThreadPoolExecutor() as pool:
        waiters = [pool.submit(run, config, out, progress=False) for _ in range(2)]
        time.sleep(1)
        assert not any(waiter.done() for waiter in waiters)
        shutil.copytree(made, out, dirs_exist_ok=True)  # the one that has the lock finishes
        finished = (out / "run.json").stat().st_ino
        store.discard()
        assert all(waiter.result() == out for waiter in waiters)
    assert capsys.readouterr().out.count("holds this run already") == 2
    assert (out / "run.json").stat().st_ino == finished
    assert not checkpoint.directory_of(out).exists()


@pytest.mark.parametrize("end", ["finished", "stopped"])
def test_a_process_that_waited_for_the_lock_destroys_no_other_run(tmp_path, monkeypatch, end):
    config, other = small(frames=300), small(frames=300, seed=1)
    made = run(other, tmp_path / "made", progress=False)
    out = tmp_path / "run"
    monkeypatch.setattr(checkpoint, "PATIENCE", 60.0)
    with checkpoint.Store(out, identity(other)) as store, ThreadPoolExecutor() as pool:
        waiter = pool.submit(run, config, out, progress=False)
        time.sleep(1)
        assert not waiter.done()
        if end == "finished":
            shutil.copytree(made, out, dirs_exist_ok=True)
            store.discard()
        else:
            store.claim()
            store.save({"number": 1})
            store.__exit__()
        with pytest.raises(ConfigError, match="holds a run of another configuration or code"):
            waiter.result()
    if end == "finished":
        assert contents(out) == contents(made) and (out / "run.json").exists()
        assert not checkpoint.directory_of(out).exists()
    else:
        assert status(out, other) == "resumable" and (store.directory / "0.json").exists()


def test_a_full_disk_stops_with_a_sentence_and_loses_nothing(tmp_path, whole):
    process = begin(small(), tmp_path / "run")
    # From now on no file may grow: what a full disk does to a process.
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (512, 512))
    errors = process.communicate()[1]
    assert process.returncode == 2
    assert "Writing to" in errors and "once it is mended, the same call goes on" in errors
    assert "Traceback" not in errors
    run(small(), tmp_path / "run", progress=False)
    assert contents(tmp_path / "run") == whole


def test_a_disk_that_is_full_when_tensors_are_written_is_an_error_of_the_system(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, limit[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.save_tensors({"weights": torch.zeros(1000)}, tmp_path / "network")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)


def test_files_have_the_umasks_mode(tmp_path):
    before = os.umask(0o027)
    try:
        out = run(small(frames=300), tmp_path / "run", progress=False)
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o640}


def test_a_log_that_can_not_be_written_stops_with_a_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("qe.runs.session.HEALTH", "/dev/full")
    with pytest.raises(ConfigError, match="No space left on device"):
        run(small(), tmp_path / "run", progress=False)


@pytest.mark.parametrize("damage", ["flipped", "missing", "truncated", "longer"])
def test_a_damaged_replay_memory_is_noticed_and_the_run_made_again(stopped, whole, damage, capsys):
    path = checkpoint.directory_of(stopped) / "replay" / "frames"
    content = bytearray(path.read_bytes())
    match damage:
        case "flipped":
            content[100] ^= 1
            path.write_bytes(content)
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(content[:5000])
        case "longer":
            path.write_bytes(content + b"0")
    run(small(), stopped, progress=False)
    said = capsys.readouterr().err
    assert "can't be used (the replay memory is damaged)" in said
    assert "No checkpoint is whole: the run starts again." in said
    assert contents(stopped) == whole


def test_a_replay_that_is_damaged_after_a_checkpoint_falls_back_to_it(tmp_path, whole, capsys):
    out = tmp_path / "run"
    process = begin(small(), out)
    process.send_signal(signal.SIGTERM)
    process.communicate()
    records = [checkpoint.directory_of(out) / f"{g}.json" for g in (0, 1)]
    states = [json.loads(json.loads(r.read_text())["tree"])["trainer"] for r in records]
    first, second = sorted(state["replay"]["added"] for state in states)
    slot = (second - 1) % (300 + 20_000 + BLOCK)
    assert first < second
    path = checkpoint.directory_of(out) / "replay" / "rewards"
    with path.open("r+b") as file:
        file.seek(4 * slot)
        file.write(b"wxyz")
    run(small(), out, progress=False)
    assert "Going on from the checkpoint before it" in capsys.readouterr().err
    assert contents(out) == whole


def test_a_run_that_lost_its_last_rows_in_a_power_cut_goes_on_from_its_checkpoint(
    stopped, whole, tmp_path
):
    kept = tmp_path / "kept"
    shutil.copytree(checkpoint.directory_of(stopped), kept)
    run(small(), stopped, progress=False)
    for name in ("episodes.csv", "network.safetensors"):
        shutil.copytree(kept, checkpoint.directory_of(stopped), dirs_exist_ok=True)
        path = stopped / name
        path.write_bytes(path.read_bytes()[:-40])
        assert status(stopped, small()) == "resumable"
        run(small(), stopped, progress=False)
        assert contents(stopped) == whole


def test_a_finished_run_whose_files_were_changed_is_refused(tmp_path):
    out = run(small(frames=600), tmp_path / "run", progress=False)
    log = out / "episodes.csv"
    content = log.read_bytes()
    log.write_bytes(content[:-1])
    with pytest.raises(ConfigError, match=r"episodes.csv is not the file that run.json .* lists"):
        run(small(frames=600), out, progress=False)
    log.unlink()
    with pytest.raises(ConfigError, match=r"episodes.csv is missing, which run.json .* lists"):
        run(small(frames=600), out, progress=False)
    run(small(frames=600), out, overwrite=True, progress=False)
    assert log.read_bytes() == content


def test_overwriting_leaves_nothing_of_the_run_before(tmp_path):
    out = run(small(frames=600), tmp_path / "run", progress=False)
    assert (out / "network.safetensors").exists()
    run(small(frames=600, seed=1, keep_network=False), out, overwrite=True, progress=False)
    assert not (out / "network.safetensors").exists()
    assert "network.safetensors" not in json.loads((out / "run.json").read_text())["files"]


def test_a_run_that_cant_be_made_here_overwrites_nothing(tmp_path):
    out = run(small(frames=600), tmp_path / "run", progress=False)
    before = contents(out)
    with pytest.raises(ConfigError, match="device must be one that is here"):
        run(small(frames=600, device="cuda:99"), out, overwrite=True, progress=False)
    assert contents(out) == before and (out / "run.json").exists()
    with pytest.raises(ConfigError, match="device must be one that is here"):
        run(small(frames=600, device="cuda:99"), tmp_path / "new", progress=False)
    assert not (tmp_path / "new").exists()


def test_an_algorithm_that_returns_no_action_is_told_so(tmp_path):
    def silent(q, rng):
        return None

    with pytest.raises(ConfigError, match="silent must return an action, a whole number from 0"):
        run(small(algorithm=silent), tmp_path / "run", progress=False)


def test_a_finished_run_of_other_code_is_not_taken_for_this_one(tmp_path, monkeypatch):
    out = run(small(frames=600), tmp_path / "run", progress=False)
    monkeypatch.setattr("qe.runs.status.code_fingerprint", lambda: "of today")
    with pytest.raises(ConfigError, match="holds a run of another configuration or code"):
        run(small(frames=600), out, progress=False)


def test_a_stop_in_a_frozen_evaluation_is_obeyed_and_the_evaluation_begins_again(tmp_path):
    values = {"frames": 300, "eval_every": 300, "eval_games": 20, "eval_max_frames": 10_000}
    config = configure("smoke", suite="minatar", game="Freeway", keep_network=True, **values)
    whole = run(config, tmp_path / "whole", progress=False)
    out, steps = tmp_path / "run", []

    def stop_in_mid_evaluation(*args):
        steps.append(1)
        if len(steps) == 700:  # 300 of training, 100 of them at random, and then of the evaluation
            os.kill(os.getpid(), signal.SIGTERM)
        return asked(*args)

    asked = Learner.q_values
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        patch.setattr(Learner, "q_values", stop_in_mid_evaluation)
        run(config, out, progress=False)
    assert len(steps) == 700  # at once
    assert (out / "evaluations.csv").read_text().count("\n") == 1
    run(config, out, progress=False)
    assert contents(out) == contents(whole)


def either(q, rng):
    """Not in the paper: a head for every step."""
    return q[rng.integers(len(q))].argmax()


@pytest.mark.parametrize(
    "values",
    [
        {"algorithm": either},
        {"algorithm": "ensemble_voting", "tie_break": "random"},
        {"algorithm": "ucb", "prior_scale": 3.0},
        {"suite": "deepsea", "game": "N6", "algorithm": "bootstrapped_dqn", "prior_scale": 3.0},
        {"suite": "atari", "game": "Breakout", "algorithm": "bootstrapped_dqn", "head_per": "life"},
    ],
    ids=["own", "ties", "prior", "deepsea", "lives"],
)
def test_whatever_a_run_has_is_in_its_checkpoint(values, tmp_path):
    config = small(**{"frames": 2000} | values)
    whole = run(config, tmp_path / "whole", progress=False)
    assert json.loads((whole / "run.json").read_text())["config"]["algorithm"] == config.algorithm
    update, calls = Learner.update, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) in (20, 50):
            os.kill(os.getpid(), signal.SIGTERM)
        return update(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "update", interrupted)
        for _ in range(2):
            with pytest.raises(Interrupted):
                run(config, tmp_path / "run", progress=False)
        run(config, tmp_path / "run", progress=False)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["resumed"] == 2
    assert contents(tmp_path / "run") == contents(whole)


def test_a_directory_that_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        run(small(), tmp_path / "file" / "run", progress=False)


def test_a_place_that_is_not_a_runs_own_is_refused_before_anything_is_written(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "letter.txt").write_text("")
    (tmp_path / "file").write_text("")
    words = ["run", "--profile", "smoke", "--suite", "minatar", "--game", "Breakout", "--out"]
    before = sorted(tmp_path.rglob("*"))
    for out, sentence in (
        ("..", "out must be a directory of its own"),
        (".", "out must be a directory of its own"),
        ("texts", "holds other files, 'letter.txt' for one"),
        ("file", "Not a directory"),
        ("file/run", "Not a directory"),
        ("a" * 201, "out must be a directory of its own"),
        ("\udcff", "is no text in UTF-8"),
    ):
        for more in ([], ["--overwrite"]):
            assert main([*words, out, *more]) == 2
            said = capsys.readouterr()
            assert sentence in said.err and said.err.count("\n") == 1 and not said.out
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert directory_for(small(), "empty") == Path("empty")
    made = run(small(frames=300), "empty", progress=False)
    (made / "notes.txt").write_text("")
    assert directory_for(small(), made) == made


def test_a_run_that_does_not_fit_stops_before_it_starts(tmp_path):
    huge = configure(game="Pong", replay_size=10**10)
    with pytest.raises(ConfigError, match=r"The run needs \d+.\d+ GB of disk and .* has"):
        run(huge, tmp_path / "run", progress=False)
    assert not list(tmp_path.iterdir())


def test_learning_that_runs_away_keeps_the_last_good_checkpoint(tmp_path):
    rates = [[0, 1e-3], [0.7, 1e-3], [0.71, 1e37]]
    config = small(learning_rate=rates, clip_norm=1e30, huber_delta=1e30, adam_eps=1e-30)
    with pytest.raises(ConfigError, match=r"Learning has run away: .* checkpoint of .* is kept"):
        run(config, tmp_path / "run", progress=False)
    found = []
    assert checkpoint.Store(tmp_path / "run", identity(config)).load(found.append)
    assert math.isfinite(float(found[0]["trainer"]["learner"]["online"].abs().max()))
    assert not (tmp_path / "run" / "run.json").exists()


# --- parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        *({"game": g, "sticky": 0.25} for g in ("Breakout", "Pong", "Qbert", "Seaquest")),
        {"game": "MsPacman", "preset": "modern"},
        *({"suite": "minatar", "game": g} for g in ("Asterix", "Freeway", "Seaquest")),
        *({"suite": "minatar", "game": g} for g in ("Breakout", "SpaceInvaders")),
        {"suite": "deepsea", "game": "N7"},
    ],
    ids=lambda v: f"{v.get('suite', 'atari')}-{v['game']}",
)
def test_a_game_goes_on_from_its_state(values):
    config = configure(**values)
    rng = np.random.default_rng(0)
    env = envs.make(config, rng)
    choices = np.random.default_rng(1)

    def play(env: envs.Env, choices: np.random.Generator, steps: int) -> list[tuple]:
        seen = []
        for _ in range(steps):
            new = env.step(int(choices.integers(env.n_actions)))
            seen.append((new.frame.tobytes(), *new[1:], env.frames, tuple(env.finished)))
            env.finished.clear()
            if new.terminal or new.truncated:
                seen.append((env.reset().tobytes(),))
        return seen

    env.reset()
    for _ in range(12):  # at many moments: after a sticky action, a lost life, a new game
        play(env, choices, 23)
        tensors: dict[str, torch.Tensor] = {}
        tree = checkpoint.split(env.get_state(), "", tensors)
        saved = json.dumps(tree, default=checkpoint._plain)
        tensors = {path: tensor.clone() for path, tensor in tensors.items()}  # as on the disk
        generators = rng.bit_generator.state, choices.bit_generator.state
        expected = play(env, choices, 60)

        rng = np.random.default_rng(99)
        env = envs.make(config, rng)
        env.reset()
        env.set_state(checkpoint.join(json.loads(saved), tensors))
        rng.bit_generator.state, choices.bit_generator.state = generators
        assert play(env, choices, 60) == expected


def test_frames_written_after_a_checkpoint_never_spoil_it(tmp_path):
    config = small(frames=10**6, replay_size=500)
    trainer = Trainer(config, tmp_path / "replay")
    while trainer.replay.added < 2000:
        trainer.step()
    replay = trainer.replay
    slots = np.arange(replay.added - replay.capacity, replay.added) % replay.slots
    before = replay.frames[slots].copy(), replay.actions[slots].copy()
    frame = np.ones(trainer.env.frame_shape, np.uint8)
    for _ in range(replay.slack):
        replay.add(frame, 9, 0.0, False)
    assert np.array_equal(before[0], replay.frames[slots])
    assert np.array_equal(before[1], replay.actions[slots])


def test_the_kept_network_is_the_one_that_was_trained(tmp_path):
    config = small(frames=1500)
    directory = run(config, tmp_path / "run", progress=False)
    trainer = Trainer(config)
    list(train(trainer))
    kept = load_file(directory / "network.safetensors")
    trained = trainer.learner.net.state_dict()
    assert kept.keys() == trained.keys()
    assert all(torch.equal(kept[name], trained[name]) for name in kept)
    assert "network.safetensors" not in contents(
        run(config.model_copy(update={"keep_network": False}), tmp_path / "two", progress=False)
    )
