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
from qe.__main__ import main, parse_options
from qe.config import ConfigError
from qe.runs.cluster import Options
from qe.runs.estimate import estimate_all
from qe.runs.experiments import Run, declared, parse_variant, read_params, variant_name
from qe.runs.make import STOPPED, Clock, Local, Making, hold
from qe.runs.records import LOGS
from qe.runs.session import run as make_run
from qe.runs.status import directory_of as checkpoint_of
from tests.copies import Copy, small
from tests.slurm import Cluster, missing

FRAMES = 7000  # some seconds
OFTEN = {"hidden": 16, "checkpoint_every": 0.5}


def copy_with(where: Path, frames: int, variants: list[str]) -> Copy:
    copy = small(where, frames=frames, **OFTEN)
    copy.set("grids", "minatar", "variants", value=variants)
    copy.commit()
    return copy


def logs(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in LOGS.values()}


def made_alone(run: Run, where: Path) -> Path:
    """The same run, never interrupted, in this process."""
    return make_run(run.config, where / run.variant, progress=False)


def start(copy: Copy, *words: str, env: dict[str, str] | None = None) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "qe", "make", "minatar", *words], cwd=copy.path,
        env=env or copy.env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
        start_new_session=True,
    )  # fmt: skip


def wait_for(true, process: subprocess.Popen, seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def checkpoints(run: Run) -> int:
    """How many it has written."""
    records = checkpoint_of(run.out).glob("[01].json")
    try:
        return max((json.loads(record.read_text())["number"] for record in records), default=0)
    except FileNotFoundError:  # replaced meanwhile
        return 0


def test_a_failed_run_is_retried_and_reported_and_the_others_are_made(tmp_path):
    copy = copy_with(tmp_path / "repo", 600, ["ensemble_voting", "double_dqn"])
    path = copy.path / "notebooks" / "double_dqn.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.insert(2, nbformat.v4.new_code_cell("raise RuntimeError('no luck')"))
    nbformat.write(notebook, path)
    good, broken = copy.runs("minatar")
    process = start(copy)
    _, errors = process.communicate()
    assert process.returncode == 1
    assert f"{broken.name} failed: see {broken.log} and {broken.executed}." in errors
    assert (copy.path / broken.log).read_text().count("no luck") == 2
    assert (copy.path / broken.executed).exists()
    assert "1 of 2 finished, 0 running, 0 waiting, 1 failed." in errors
    assert logs(good.out) == logs(made_alone(good, tmp_path))
    refused = copy.call(sys.executable, "-m", "qe", "make", "minatr", ok=False)
    assert "experiment must be one of params.yaml (minatar), not 'minatr'." in refused


@pytest.mark.slow
def test_what_is_killed_in_mid_run_goes_on(tmp_path):
    copy = copy_with(tmp_path / "repo", FRAMES, ["ensemble_voting", "ucb"])
    done, killed = copy.runs("minatar")
    shutil.copytree(made_alone(done, tmp_path), done.out)
    made = (done.out / "run.json").stat().st_mtime_ns

    process = start(copy)
    wait_for(lambda: checkpoints(killed) > 0, process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (killed.out / "run.json").exists()

    process = start(copy)
    assert process.wait() == 0, process.communicate()
    assert json.loads((killed.out / "run.json").read_text())["resumed"] == 1
    assert logs(killed.out) == logs(made_alone(killed, tmp_path))
    assert (done.out / "run.json").stat().st_mtime_ns == made


def test_ctrl_c_and_sigterm_leave_checkpoints_that_the_same_command_goes_on_from(tmp_path):
    copy = copy_with(tmp_path / "repo", 1_000_000, ["ensemble_voting"])
    (run,) = copy.runs("minatar")
    written = 0
    for number in (signal.SIGINT, signal.SIGTERM):
        process = start(copy)
        wait_for(lambda: checkpoints(run) > written, process)  # noqa: B023
        process.send_signal(number)
        _, errors = process.communicate()
        assert process.returncode == 1 and "Traceback" not in errors
        assert "Stopped; unfinished runs keep their checkpoints: the same command" in errors
        assert checkpoints(run) > written and not run.finished()
        written = checkpoints(run)
    said = (copy.path / run.log).read_text()
    assert "Stopped by SIGTERM" in said  # which both are passed on as
    executed = (copy.path / run.executed).read_text()
    assert "Going on from frame" in executed


def test_an_experiment_is_made_by_one_process_at_a_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused = pytest.raises(ConfigError, match="Another process makes minatar already")
    with hold("minatar"), hold("atari"), refused:
        hold("minatar", patience=0)
    hold("minatar").close()


def test_a_run_that_someone_else_stops_goes_on_and_a_stop_of_our_own_is_the_end(
    tmp_path, monkeypatch
):
    copy = copy_with(tmp_path / "repo", 50_000, ["ucb"])
    monkeypatch.chdir(copy.path)
    monkeypatch.setenv("PYTHONPATH", str(copy.path))
    (run,) = copy.runs("minatar")
    place = Local(workers=1, retries=0)
    making = Making([run], place, Clock([run], workers=1))

    def process() -> subprocess.Popen | None:
        return next((process for _, process in place._processes.values()), None)

    while not checkpoints(run):
        making.step()
    first = process()
    first.terminate()
    assert first.wait() in STOPPED
    while process() in (first, None):
        making.step()
    assert not making.failed

    time.sleep(5)
    assert "the same command goes on" in place.stop()
    making.step()
    assert not place.running() and making.pending and not (run.out / "run.json").exists()


@pytest.mark.skipif(bool(missing()), reason=missing() or "-")
def test_slurm_gives_a_run_of_a_lost_node_to_another_which_goes_on(tmp_path):
    copy = copy_with(tmp_path / "repo", FRAMES, ["ensemble_voting", "ucb"])
    runs = copy.runs("minatar")
    with Cluster(tmp_path / "slurm") as cluster:
        env = cluster.env | {
            "PATH": f"{Path(sys.executable).parent}:{cluster.env['PATH']}",
            "PYTHONPATH": str(copy.path),
            "QE_MAKE": "--cluster slurm --memory 1 --hours 1",
        }
        process = start(copy, env=env)

        def states() -> dict[str, tuple[str, str]]:
            lines = cluster.call("squeue", "-h", "-r", "-o", "%i %T %N").splitlines()
            return {line.split()[0]: tuple(line.split()[1:]) for line in lines}

        wait_for(lambda: all(checkpoints(run) for run in runs), process)
        jobs = states()
        nodes = {state[1]: job for job, state in jobs.items()}
        assert set(nodes) == {"n1", "n2"}, jobs
        cluster.lose("n1")
        cluster.call("scancel", "--signal=USR2", nodes["n2"])  # what a preemption sends
        wait_for(lambda: all(s[0] == "PENDING" for s in states().values()), process)
        os.kill(process.pid, signal.SIGINT)  # the jobs go on without the caller
        _, errors = process.communicate()
        assert "the jobs go on, and the same command watches them again" in errors
        for job in jobs:  # Slurm waits for two minutes after a requeue
            cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now")

        process = start(copy, env=env)
        _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, errors + cluster.logs()
    for run in runs:
        assert json.loads((run.out / "run.json").read_text())["resumed"] == 1
        assert logs(run.out) == logs(made_alone(run, tmp_path))
    submitted = json.loads((copy.path / "results/executed/slurm/jobs.json").read_text())
    assert submitted.keys() == jobs.keys()  # none was submitted twice


def test_an_estimate_counts_what_is_declared(tmp_path, monkeypatch):
    copy = copy_with(tmp_path / "repo", 600, ["double_dqn", "ucb"])
    monkeypatch.chdir(copy.path)
    params = Path("params.yaml")
    said = estimate_all(params, 1, 2.0)
    assert "2 runs, 1 at once on this machine" in said and "At 2 an hour:" in said
    for arguments, sentence in (
        ((params, None, -1.0), "price must be at least 0, not -1"),
        ((params, 0, None), "workers must be at least 1, not 0"),
        ((Path("none.yaml"), None, None), "There is no none.yaml"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            estimate_all(*arguments)


def test_a_variants_name_says_what_it_is():
    name = "ucb-lam=1-prior_scale=3"
    assert parse_variant(name) == ("ucb", {"lam": 1, "prior_scale": 3})
    assert parse_variant("ucb_infogain-temperature=1.0e-3")[1] == {"temperature": 0.001}
    assert parse_variant("double_dqn") == ("double_dqn", {})
    assert variant_name("ucb", {"lam": 0.1}) == "ucb"  # the paper's
    assert variant_name("ucb", {"lam": 0.1234561}) == "ucb-lam=0.1234561"
    assert variant_name("ucb", {"lam": 0.5, "prior_scale": 3.0}) == "ucb-lam=0.5-prior_scale=3"


def test_what_is_declared_can_be_made():
    names = [run.name for run in declared(read_params(ROOT / "params.yaml"))]
    assert len(names) == len(set(names)) >= 1


GRID = "algorithms: {ucb: {}}\ngrids: {a: {suite: minatar, games: [Breakout]"
CONTROL = "algorithms: {}\ncontrols: {a: {suite: minatar, games: [Breakout]"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (GRID + ", variants: {ucb: {lam: 5.0}}}}", "variants of a grid must be a list"),
        (CONTROL + ", variants: {ucb-lam=1: {lam: 5.0}}}}", "ucb-lam=1 must be what its name says"),
        (
            CONTROL + ", variants: ['ucb-lam=[1']}}",
            "variants must be named <algorithm>-<parameter>",
        ),
        (CONTROL + ", variants: [ucb], seeds: [0, 0]}}", "results/runs/a/Breakout/ucb/0 twice"),
        (CONTROL + ", variants: [ucb], seeds: 0}}", "controls.a.seeds must be at least 1, not 0"),
        (CONTROL + ", variants: [ucb], settings: {algorithm: ucb}}}", "must not have algorithm"),
        (CONTROL + ", variants: [ucb-seed=3]}}", "ucb-seed=3 must not set algorithm, game, seed"),
        (CONTROL + "}}\ngrids: {a: {suite: minatar, games: all}}", "params.yaml has a twice"),
        (
            "algorithms: {}\ncontrols: {a: {suite: deepsea, games: all, variants: [ucb]}}",
            "games must be a list",
        ),
        ("", "params.yaml must have sections"),
        ("grids: [", "params.yaml is no YAML in line"),
        ("algorithms: {}\ngrid: {}", "grid"),
        ("algorithms: {}\ngrids: {a: {suite: minatar}}", "games"),
        ("algorithms: {}\ngrids: {a: {suite: minatar, games: [Pong], seeds: x}}", "seeds"),
        ("algorithms: {}\ngrids: {a: {suite: minatar, games: [Pong]}}", "algorithms has no"),
        (
            "algorithms: {}\ncontrols: {a: {suite: minatar, games: [Breakout], variants: [ucbb]}}",
            "algorithm must be double_dqn",
        ),
        (
            "algorithms: {}\ncontrols: {a: {suite: minatar, games: [Breakout], "
            "variants: [ucb-lam=1], settings: {lam: 2.0}}}",
            "settings must not have lam",
        ),
    ],
)
def test_a_wrong_params_yaml_is_refused_with_a_sentence(
    text, sentence, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(text)
    assert main(["make", "a"]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


def test_what_a_cluster_can_not_give_is_refused():
    with pytest.raises(ConfigError, match="per_job must be at least 1, not 0"):
        Options(None, 1.0, 1, 0, 0, 1.0, {}).check()
    with pytest.raises(ConfigError, match="sbatch must be name=value, not 'exclusive'"):
        parse_options(["account=me", "exclusive"])


def test_the_help_has_two_groups(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    said = capsys.readouterr().out
    users, pipeline = said.split("what the pipeline calls:")
    assert "what users call:" in users and "  run " in users and "  make " in pipeline
