"""The pipeline, with the real DVC, in a small copy of the repository."""

import csv
import fcntl
import io
import json
import resource
import shutil
import subprocess
import sys
import time

import nbformat
import pytest
import yaml

from tests.copies import SETTINGS, Copy, small

RUNS = "grids@minatar"
SHOWN = {"tables@minatar", "curves@minatar", "statistics@minatar"}
ANALYSIS = {"paper", "posterior", "search", "deepsea", "claims", *SHOWN, "report"}
SHIPPED = {"coverage"}  # an analysis that is in git: it reads no run, and takes a minute


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Copy:
    """A small copy of the repository, all made and committed: one for the tests of all workers."""
    path = tmp_path_factory.getbasetemp().parent / "made"
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the other worker waits, and takes the same
        if (path / "done").exists():
            return Copy(path / "repo")
        copy = small(path / "repo")
        assert copy.repro() == {RUNS, *ANALYSIS, *SHIPPED}
        assert copy.stale() == set()
        copy.commit()
        (path / "done").touch()
    return copy


@pytest.fixture
def clone(made, tmp_path) -> Copy:
    """A fresh clone of it."""
    made.git("clone", "-q", str(made.path), str(tmp_path / "clone"))
    return Copy(tmp_path / "clone")


def test_a_fresh_clone_trains_nothing_and_rebuilds_the_rest_byte_for_byte(made, clone):
    assert RUNS not in clone.stale()
    assert clone.repro() == ANALYSIS
    assert clone.git("status", "--porcelain") == ""
    for path in (made.path / "results").rglob("*.*"):
        if path.suffix in (".svg", ".csv", ".html", ".md", ".tex"):
            twin = clone.path / path.relative_to(made.path)
            assert path.read_bytes() == twin.read_bytes(), path
    assert (clone.path / "results" / "report.html").read_text().count("<figure>") > 5
    assert clone.repro() == set()


def test_prose_comments_and_figures_train_nothing(clone):
    before = clone.times()
    notebook = clone.path / "notebooks" / "ucb.ipynb"
    saved = nbformat.read(notebook, 4)  # run by hand, and saved
    saved.cells[1].outputs = [nbformat.v4.new_output("stream", text="by hand")]
    nbformat.write(saved, notebook)
    for name in ("replay", "analysis/figures"):
        with (clone.path / "qe" / f"{name}.py").open("a") as file:
            file.write("# changed\n")
    assert clone.stale() == {RUNS, *ANALYSIS}
    assert clone.repro(RUNS) == {RUNS}
    assert clone.times() == before


def test_one_entry_of_params_is_an_experiment(clone):
    control = {
        "suite": "deepsea", "games": ["N4"], "variants": ["ucb-lam=2-prior_scale=3"],
        "settings": {"profile": "smoke"},
    }  # fmt: skip
    clone.set("controls", value={"sea": control})
    assert clone.repro("controls@sea") == {"controls@sea"}
    (run,) = clone.runs("sea")
    assert run.out.relative_to(clone.path).as_posix() == (
        "results/runs/sea/N4/ucb-lam=2-prior_scale=3/0"
    )
    config = json.loads((run.out / "run.json").read_text())["config"]
    assert (config["lam"], config["prior_scale"], config["game"]) == (2.0, 3.0, "N4")
    # lambda calls the grid alone.
    clone.set("algorithms", "ucb", "lam", value=0.5)
    assert clone.stale() & {RUNS, "controls@sea"} == {RUNS}


def test_another_lambda_beside_the_one_before(clone):
    """In place and by `dvc exp run`; then the way back, which trains nothing."""
    before = clone.times()
    shown = ("tables@minatar", "curves@minatar")
    clone.set("algorithms", "ucb", "lam", value=0.5)
    assert clone.repro(*shown) == {RUNS, "search", *shown}
    changed = {run for run, time in clone.times().items() if before.get(run) != time}
    assert changed == {"minatar/Breakout/ucb-lam=0.5/0"}
    analysis = clone.path / "results" / "analysis"
    table = (analysis / "tables" / "minatar" / "last_quarter.md").read_text()
    assert "UCB, lam = 0.5" in table
    assert "UCB, lam = 0.5" in (analysis / "curves" / "minatar" / "normalized_5.svg").read_text()
    assert "0.5" in clone.call("dvc", "params", "diff")
    differing = json.loads(clone.call("dvc", "metrics", "diff", "--json"))
    scores = differing["results/analysis/tables/minatar/metrics.json"]
    assert scores["scores.Breakout.ucb"].keys() >= {"old", "new", "diff"}
    assert "iqm.ucb" in scores or "iqm.ensemble_voting" in scores
    clone.call("dvc", "plots", "diff", "--out", "plots")
    page = (clone.path / "plots" / "index.html").read_text()
    assert '"rev": "workspace"' in page and '"rev": "HEAD"' in page and '"algorithm"' in page

    # The way back is one command, and `dvc repro`.
    clone.git("checkout", "-q", "params.yaml", "dvc.lock")
    assert clone.repro(*shown) == {RUNS, "search", *shown}
    assert all(clone.times()[run] == time for run, time in before.items())

    # As an experiment of DVC's: the run is there already.
    clone.git("checkout", "-q", ".")
    clone.git("config", "user.name", "t")
    clone.git("config", "user.email", "t@example.org")
    clone.call("dvc", "exp", "run", "-n", "braver", "-S", "algorithms.ucb.lam=0.5", *shown)
    assert clone.times().keys() == before.keys() | changed
    table = clone.call("dvc", "exp", "show", "--csv", "--drop", ".*notebooks.*|.*qe.*|.*results.*")
    rows = list(csv.DictReader(io.StringIO(table)))
    braver = next(row for row in rows if row["Experiment"] == "braver")
    assert braver["algorithms.ucb.lam"] == "0.5" and float(braver["scores.Breakout.ucb"]) >= 0


def test_what_is_not_as_declared_is_refused(clone):
    clone.set("grids", "minatar", "settings", value=SETTINGS | {"frames": 600})
    clone.call("dvc", "repro", "--single-item", "search")
    refused = clone.call("dvc", "repro", "--single-item", "tables@minatar", ok=False)
    assert "was made with frames 1500, and params.yaml says 600: `dvc repro` makes it" in refused
    clone.set("grids", "minatar", "settings", value=SETTINGS | {"discont": 0.9})
    failed = clone.call("dvc", "repro", RUNS, ok=False)
    assert "There is no parameter 'discont'; did you mean discount?" in failed


@pytest.mark.parametrize("change", ["params", "code"])
def test_a_run_whose_inputs_change_meanwhile_is_not_recorded(tmp_path, change):
    copy = small(tmp_path / "repo", frames=4000)
    process = subprocess.Popen(
        [sys.executable, "-m", "qe", "execute", "minatar", "Breakout", "ucb", "0"],
        cwd=copy.path, env=copy.env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = copy.path / "results/runs/minatar/Breakout/ucb/0/episodes.csv"
    while not log.exists():
        assert process.poll() is None
    if change == "params":
        copy.set("grids", "minatar", "settings", value=SETTINGS | {"frames": 4000, "batch_size": 8})
    else:
        with (copy.path / "qe" / "replay.py").open("a") as file:
            file.write("CHANGED = True\n")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "changed while the run was made" in errors


def test_dvc_repro_on_a_full_disk_twice_at_once_and_killed_goes_on(tmp_path):
    copy = small(tmp_path / "repo", frames=4000, checkpoint_every=0.3)
    runs = copy.runs("minatar")
    full = subprocess.run(
        [sys.executable, "-m", "qe", "make", "minatar", "--retries", "0"], cwd=copy.path,
        # Python takes a .pyc that a full disk has cut for a whole one: that is not tested here.
        env=copy.env | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512)),
    )  # fmt: skip
    assert full.returncode == 1 and "Traceback" not in full.stderr
    assert full.stderr.count("failed: see") == len(runs)

    process = subprocess.Popen(
        ["dvc", "repro", RUNS], cwd=copy.path, env=copy.env, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not any(copy.path.rglob("*.checkpoint/[01].json")):
        assert process.poll() is None
        time.sleep(0.01)
    second = copy.call("dvc", "repro", RUNS, ok=False)
    assert "is busy" in second or "lock" in second  # DVC's own word
    process.kill()
    process.wait()
    copy.call("dvc", "--wait-for-lock", "repro", RUNS)
    assert all(run.finished() for run in runs)
    assert copy.stale() & {RUNS} == set()
    # Killed between the end of the last run and DVC's record of it: nothing is made twice.
    before = copy.times()
    (copy.path / "dvc.lock").unlink()
    assert copy.repro(RUNS) == {RUNS}
    assert copy.times() == before


def test_the_papers_grid_is_490_runs(tmp_path):
    copy = small(tmp_path / "repo")
    paper = copy.path / "qe" / "profiles" / "paper" / "params.yaml"
    shutil.copy(paper, copy.path / "params.yaml")
    runs = copy.runs("atari")
    assert len({run.out for run in runs}) == 490
    assert {run.config.frames for run in runs} == {40_000_000}
    assert {run.variant for run in runs} == set(yaml.safe_load(paper.read_text())["algorithms"])
