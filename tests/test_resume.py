"""A run survives anything: kills, faults and stops, and its files are none the worse."""

import csv
import json
import math
import os
import pickle
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from jupyter_client.manager import start_new_kernel
from safetensors.torch import load_file

from qe import ROOT, checkpoint, envs
from qe.config import Config, ConfigError, configure
from qe.run import HEALTH, LOGS, Interrupted, identity, run
from qe.train import Trainer
from tests import torture

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


@pytest.mark.parametrize(("suite", "algorithm"), [("minatar", "ucb_infogain"), ("atari", "ucb")])
def test_a_killed_run_goes_on_as_if_nothing_had_been(suite, algorithm, tmp_path, monkeypatch):
    shorter = re.sub(r"--frames \d+", "--frames 5000", torture.RUNS[suite])
    monkeypatch.setitem(torture.RUNS, suite, shorter)
    assert torture.torture(suite, algorithm, 1, tmp_path, random.Random(0)) >= 1


def test_a_stopped_run_goes_on_in_another_process(stopped, whole, capsys):
    assert not (stopped / "run.json").exists()
    run(small(), stopped, progress=False)
    assert "Going on from frame" in capsys.readouterr().err
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


def test_interrupting_a_kernel_stops_and_running_the_cell_again_goes_on(tmp_path, whole):
    out = tmp_path / "run"
    values = small().model_dump(exclude={"profile"})
    cell = (
        "from qe.config import configure; from qe.run import run\n"
        f"run(configure('smoke', **{values!r}), {str(out)!r}, progress=False)"
    )
    manager, client = start_new_kernel(cwd=str(ROOT))
    try:
        request = client.execute(cell)
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


def test_a_killed_notebook_run_resumes_when_it_is_repeated(tmp_path):
    frames = 12_000  # longer than its kernel lives on when papermill is gone, a second or two
    more = {"checkpoint_every": 0.05, "keep_network": True}
    script = (
        "from pathlib import Path; from qe.notebooks import execute\n"
        f"execute(Path({str(ROOT / 'notebooks' / 'ucb.ipynb')!r}), "
        f"dict(profile='smoke', frames={frames}, out={str(tmp_path / 'run')!r}, more={more!r}), "
        "'ucb')"
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
    deadline = time.monotonic() + 60
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
    assert "holds this run already" in capsys.readouterr().err
    assert (directory / "run.json").stat().st_mtime_ns == before


def test_logs_that_were_cut_are_noticed(stopped):
    (stopped / "episodes.csv").write_text("episode\n")
    with pytest.raises(ConfigError, match=r"episodes.csv is shorter than its checkpoint says"):
        run(small(), stopped, progress=False)


def test_a_second_process_is_refused_and_told_who_is_first(tmp_path):
    process = begin(small(frames=100_000), tmp_path / "run")
    try:
        with pytest.raises(ConfigError, match=rf"process {process.pid} on .* is working on this"):
            run(small(frames=100_000), tmp_path / "run", progress=False)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM


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


def test_a_log_that_can_not_be_written_stops_with_a_sentence(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "diagnostics.csv").symlink_to("/dev/full")
    with pytest.raises(ConfigError, match="No space left on device"):
        run(small(), tmp_path / "run", overwrite=True, progress=False)


def test_a_directory_that_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="Not a directory"):
        run(small(), tmp_path / "file" / "run", progress=False)


def test_a_run_that_does_not_fit_stops_before_it_starts(tmp_path, capsys):
    huge = configure(game="Pong", replay_size=10**10)
    with pytest.raises(ConfigError, match=r"The run needs \d+.\d+ GB of disk and .* has"):
        run(huge, tmp_path / "run", progress=False)
    assert not list(tmp_path.iterdir())
    assert "GB of disk and" in capsys.readouterr().out


def test_learning_that_runs_away_keeps_the_last_good_checkpoint(tmp_path):
    rates = [[0, 1e-3], [0.7, 1e-3], [0.71, 1e37]]
    config = small(learning_rate=rates, clip_norm=1e30, huber_delta=1e30, adam_eps=1e-30)
    with pytest.raises(ConfigError, match=r"Learning has run away: .* checkpoint of .* is kept"):
        run(config, tmp_path / "run", progress=False)
    saved = checkpoint.Store(tmp_path / "run", identity(config)).load()
    assert saved is not None
    weights = saved["trainer"]["learner"]["online"].values()
    assert all(math.isfinite(float(w.abs().max())) for w in weights)
    assert not (tmp_path / "run" / "run.json").exists()


# --- parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "values",
    [
        *({"game": g, "sticky": 0.25} for g in ("Breakout", "Pong", "Qbert", "Seaquest")),
        {"game": "MsPacman", "preset": "modern"},
        *({"suite": "minatar", "game": g} for g in ("Asterix", "Freeway", "Seaquest")),
        *({"suite": "minatar", "game": g} for g in ("Breakout", "SpaceInvaders")),
        {"suite": "chain", "game": "N7"},
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
    while not trainer.done:
        trainer.step()
    kept = load_file(directory / "network.safetensors")
    trained = trainer.learner.online.state_dict()
    assert kept.keys() == trained.keys()
    assert all(torch.equal(kept[name], trained[name]) for name in kept)
    assert "network.safetensors" not in contents(
        run(config.model_copy(update={"keep_network": False}), tmp_path / "two", progress=False)
    )
