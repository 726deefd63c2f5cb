"""Many runs at once: the same files as one after another, whatever happens on the way."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

from qe import ROOT
from qe.__main__ import parse_options
from qe.cluster import Options
from qe.config import ALGORITHMS, ConfigError, configure
from qe.grid import estimate_grid, grid
from qe.pipeline import Run
from qe.run import LOGS, run
from qe.status import directory_of as checkpoint_of
from qe.sweep import STOPPED, Clock, Local, Sweep
from tests.copies import Copy, small
from tests.slurm import Cluster, missing

SETTINGS = {"profile": "smoke", "hidden": 16, "checkpoint_every": 0.5}
FRAMES = 7000  # some seconds
STAGES = "minatar@Breakout-ensemble_voting-0", "minatar@Breakout-ucb-0"  # in dvc.yaml's order


def copy_with(where: Path, frames: int) -> Copy:
    copy = small(where)
    copy.set("minatar", "settings", value={**SETTINGS, "frames": frames})
    copy.git("add", "-A")
    copy.git("commit", "-qm", "state")
    return copy


def directory(copy: Copy, stage: str) -> Path:
    game, algorithm, seed = stage.split("@")[1].split("-")
    return copy.path / "results" / "runs" / "minatar" / game / algorithm / seed


def logs(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in LOGS.values()}


def made_alone(stage: str, frames: int, where: Path) -> Path:
    """The same run, never interrupted, in this process."""
    game, algorithm, seed = stage.split("@")[1].split("-")
    values = {k: v for k, v in SETTINGS.items() if k != "profile"}
    config = configure("smoke", suite="minatar", game=game, algorithm=algorithm, seed=int(seed),
                       frames=frames, **values)  # fmt: skip
    return run(config, where / stage, progress=False)


def start(copy: Copy, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "qe", "sweep", *words], cwd=copy.path, env=env or copy.env,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def wait_for(true, process: subprocess.Popen, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def rows(run: Path) -> int:
    path = run / "episodes.csv"
    return len(path.read_text().splitlines()) if path.exists() else 0


def checkpoints(run: Path) -> int:
    """How many it has written."""
    records = checkpoint_of(run).glob("[01].json")
    try:
        return max((json.loads(record.read_text())["number"] for record in records), default=0)
    except FileNotFoundError:  # replaced meanwhile
        return 0


def test_a_failed_run_is_retried_and_reported_and_the_others_are_made(tmp_path):
    copy = copy_with(tmp_path / "repo", frames=600)
    path = copy.path / "notebooks" / "double_dqn.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.insert(2, nbformat.v4.new_code_cell("raise RuntimeError('no luck')"))
    nbformat.write(notebook, path)
    broken = "minatar@Breakout-double_dqn-0"
    process = start(copy, STAGES[0], broken)
    _, errors = process.communicate()
    assert process.returncode == 1
    executed = Path("results/executed/runs-minatar-Breakout-double_dqn-0")
    assert f"{broken} failed: see {executed}.log and {executed}.ipynb." in errors
    assert (copy.path / executed).with_suffix(".log").read_text().count("no luck") == 2
    assert (copy.path / executed).with_suffix(".ipynb").exists()
    assert "1 of 2 finished, 1 recorded, 0 running, 0 waiting, 1 failed." in errors
    assert logs(directory(copy, STAGES[0])) == logs(made_alone(STAGES[0], 600, tmp_path))
    stale = copy.stale()
    assert STAGES[0] not in stale and STAGES[1] in stale and broken in stale

    refused = copy.call(sys.executable, "-m", "qe", "sweep", "minatr", ok=False)
    assert "'minatr' is no run of dvc.yaml: name a stage, or one of lam, minatar" in refused


def test_a_sweep_that_ends_in_mid_run_goes_on(tmp_path):
    copy = copy_with(tmp_path / "repo", FRAMES)
    done, out = (directory(copy, stage) for stage in STAGES)
    shutil.copytree(made_alone(STAGES[0], FRAMES, tmp_path), done)  # finished, not recorded
    made = (done / "run.json").stat().st_mtime_ns

    process = start(copy, *STAGES)
    wait_for(lambda: checkpoints(out) > 0, process)
    refused = copy.call(sys.executable, "-m", "qe", "sweep", ok=False)
    assert "Another sweep is at work in this folder" in refused
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (out / "run.json").exists()

    process = start(copy, *STAGES)
    assert process.wait() == 0, process.communicate()
    assert json.loads((out / "run.json").read_text())["resumed"] == 1
    assert logs(out) == logs(made_alone(STAGES[1], FRAMES, tmp_path))
    assert (done / "run.json").stat().st_mtime_ns == made
    assert not set(STAGES) & copy.stale()


def test_a_run_that_someone_else_stops_goes_on_and_a_stop_of_our_own_is_the_end(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    words = "python -m qe run --profile smoke --suite minatar --game Breakout --frames 50000"
    config = configure("smoke", suite="minatar", game="Breakout")
    made = Run("stage", (*words.split(), "--out", str(out)), config, out, "name")
    place = Local(workers=1, retries=0)
    sweep = Sweep([made], place, Clock([made], workers=1))

    def process() -> subprocess.Popen | None:
        return next((process for _, process in place._processes.values()), None)

    while rows(out) < 20:
        sweep.step()
    first = process()
    first.terminate()
    assert first.wait() in STOPPED and checkpoints(out) > 0
    while process() in (first, None):
        sweep.step()
    assert not sweep.failed

    assert "the same command goes on" in place.stop()
    sweep.step()
    assert not place.running() and sweep.pending and not (out / "run.json").exists()


def test_a_run_that_will_replace_another_has_not_begun(tmp_path):
    def planned(**values) -> Run:
        config = configure("smoke", suite="minatar", game="Breakout", **values)
        return Run("stage", (), config, tmp_path / "run", "name")

    old, new = planned(), planned(seed=1)
    run(old.config, old.out, progress=False)
    assert old.frame() == old.config.frames and new.frame() == 0
    summary = json.loads((old.out / "run.json").read_text())
    (old.out / "run.json").write_text(json.dumps(summary | {"code": "of before"}))
    assert old.frame() == 0


@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_slurm_gives_a_run_of_a_lost_node_to_another_which_goes_on(tmp_path):
    copy = copy_with(tmp_path / "repo", FRAMES)
    with Cluster(tmp_path / "slurm") as cluster:
        env = cluster.env | {"PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}"}
        words = (*STAGES, "--cluster", "slurm", "--memory", "1", "--hours", "1")
        process = start(copy, *words, env=env)

        def states() -> dict[str, tuple[str, str]]:
            lines = cluster.call("squeue", "-h", "-r", "-o", "%i %T %N").splitlines()
            return {line.split()[0]: tuple(line.split()[1:]) for line in lines}

        def mid_run(stage: str) -> bool:
            return checkpoints(directory(copy, stage)) > 0

        wait_for(lambda: all(map(mid_run, STAGES)), process)
        jobs = states()
        nodes = {state[1]: job for job, state in jobs.items()}
        assert set(nodes) == {"n1", "n2"}, jobs
        cluster.lose("n1")
        cluster.call("scancel", "--signal=USR2", nodes["n2"])  # what a preemption sends
        wait_for(lambda: all(s[0] == "PENDING" for s in states().values()), process)
        os.kill(process.pid, signal.SIGINT)  # the jobs go on without the sweep
        _, errors = process.communicate()
        assert "the jobs go on, and the same command watches them again" in errors
        for job in jobs:  # Slurm waits for two minutes after a requeue
            cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")

        process = start(copy, *words, env=env)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors + cluster.logs()
    for stage in STAGES:
        assert json.loads((directory(copy, stage) / "run.json").read_text())["resumed"] == 1
        assert logs(directory(copy, stage)) == logs(made_alone(stage, FRAMES, tmp_path))
    submitted = json.loads((copy.path / "results/executed/slurm/jobs.json").read_text())
    assert submitted.keys() == jobs.keys()  # none was submitted twice
    assert not set(STAGES) & copy.stale()


def test_the_papers_grid_has_490_runs_for_dvc_and_for_the_estimate(tmp_path):
    copy = small(tmp_path / "repo", ALGORITHMS)
    paper = ROOT / "qe" / "profiles" / "paper" / "params.yaml"
    (copy.path / "params.yaml").write_text(paper.read_text())
    listed = copy.call(sys.executable, "-m", "qe", "sweep", "--dry").split()
    runs = list(grid(paper))
    names = [f"atari@{r.config.game}-{r.algorithm}-{r.config.seed}" for r in runs]
    assert sorted(listed) == sorted(names) and len(set(names)) == 490
    config = configure("paper", suite="atari", game="Pong", algorithm="ucb", seed=1)
    assert config in [r.config for r in runs]


def test_the_shipped_grid_is_the_one_that_is_estimated():
    listed = subprocess.run([sys.executable, "-m", "dvc", "stage", "list", "--name-only"],
                            cwd=ROOT, capture_output=True, text=True, check=True)  # fmt: skip
    groups = ("minatar@", "atari@", "temperature@", "lam@")
    declared = [name for name in listed.stdout.split() if name.startswith(groups)]
    assert len(list(grid(ROOT / "params.yaml"))) == len(declared)


def test_an_estimate_says_what_a_grid_takes(tmp_path, monkeypatch):
    copy = copy_with(tmp_path / "repo", frames=600)
    monkeypatch.chdir(copy.path)
    params = Path("params.yaml")
    said = estimate_grid(params, 1, 2.0)
    assert "7 runs, 1 at once on this machine" in said and "At 2 an hour:" in said
    for arguments, sentence in (
        ((params, None, -1.0), "price must be at least 0, not -1"),
        ((params, 0, None), "workers must be at least 1, not 0"),
        ((Path("none.yaml"), None, None), "There is no none.yaml"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            estimate_grid(*arguments)


def test_what_a_cluster_can_not_give_is_refused():
    with pytest.raises(ConfigError, match="per_job must be at least 1, not 0"):
        Options(None, 1.0, 1, 0, 0, 1.0, {}).check()
    with pytest.raises(ConfigError, match="sbatch must be name=value, not 'exclusive'"):
        parse_options(["account=me", "exclusive"])
