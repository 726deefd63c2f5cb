"""The pipeline, with the real DVC, in a small copy of the repository."""

import json
import shutil
import subprocess
import sys

import nbformat
import pytest

from tests.copies import SOME, Copy, small

RUN, SWEEPS = "minatar@Breakout-", ("temperature@Breakout-0.1-0", "lam@Breakout-1.0-0")
FIGURES = {"curves@minatar", "statistics@minatar", "sweeps", "scale"}
DOWNSTREAM = {*FIGURES, "paper", "tables@minatar", "report"}
APART = {"exploration_chain", "forgetting"}  # figures of runs that the copy does not make


def test_the_pipeline(tmp_path):
    copy = small(tmp_path / "repo")
    runs = {f"{RUN}{a}-0" for a in SOME}
    ran = copy.repro()
    assert {s for s in ran if not s.startswith("code@")} == {
        "learning",
        *runs,
        *SWEEPS,
        *DOWNSTREAM,
        *APART,
    }
    page = (copy.path / "results" / "report.html").read_text()
    assert page.count("<figure>") > 10
    assert copy.stale() == set()
    assert "ucb" in copy.call("dvc", "metrics", "show")
    copy.commit()

    # A fresh clone trains nothing, rebuilds the rest byte for byte, and is clean afterwards.
    copy.git("clone", "-q", ".", str(tmp_path / "clone"))
    clone = Copy(tmp_path / "clone")
    ran = clone.repro()
    assert ran >= DOWNSTREAM | APART and not any("@Breakout" in s for s in ran)
    assert clone.git("status", "--porcelain") == ""
    for path in (copy.path / "results").rglob("*.*"):
        if path.suffix in (".svg", ".csv", ".html", ".md", ".tex"):
            twin = clone.path / path.relative_to(copy.path)
            assert path.read_bytes() == twin.read_bytes(), path
    assert clone.repro() == set()

    # Running a notebook by hand and saving it makes no run stale.
    notebook = copy.path / "notebooks" / "ucb.ipynb"
    saved = nbformat.read(notebook, 4)
    saved.cells[1].outputs = [nbformat.v4.new_output("stream", text="by hand")]
    nbformat.write(saved, notebook)
    assert copy.stale() == {"code@ucb"}
    assert copy.repro() == {"code@ucb"}
    copy.git("checkout", "-q", "notebooks")
    copy.repro()

    # A changed figure makes no run stale; a lost one is built again, and it alone.
    with (copy.path / "qe" / "figures.py").open("a") as file:
        file.write("# changed\n")
    assert copy.stale() == {*FIGURES, *APART, "paper"}
    copy.git("checkout", "-q", "qe")
    shutil.rmtree(copy.path / "results" / "figures" / "sweeps")
    assert copy.repro() == {"sweeps"}

    # lambda touches UCB's runs and what is downstream of them, nothing else.
    before = {p: p.read_bytes() for p in (copy.path / "results" / "runs").rglob("episodes.csv")}
    figure = copy.path / "results" / "figures" / "sweeps" / "lam.svg"
    old_figure = figure.read_bytes()
    copy.set("ucb", "lam", value=0.5)
    assert copy.stale() == {f"{RUN}ucb-0"}
    assert copy.repro("sweeps") == {f"{RUN}ucb-0", "sweeps"}
    assert copy.stale() == DOWNSTREAM - {"sweeps"}
    run = copy.path / "results" / "runs" / "minatar" / "Breakout" / "ucb" / "0"
    assert json.loads((run / "run.json").read_text())["config"]["lam"] == 0.5
    changed = {p.parent.parent.name for p, old in before.items() if p.read_bytes() != old}
    assert changed <= {"ucb"}
    assert figure.read_bytes() != old_figure
    assert "0.5" in copy.call("dvc", "params", "diff")

    # An experiment's value reaches its run, which is refused if it can't be.
    wrong = ("-S", "ucb_infogain.temperature=0", f"{RUN}ucb_infogain-0")
    failed = copy.call("dvc", "exp", "run", *wrong, ok=False)
    assert "temperature must be more than 0" in failed


def test_a_failed_run_leaves_its_notebook_and_says_so(tmp_path):
    copy = small(tmp_path / "repo")
    copy.set("minatar", "settings", value={"profile": "smoke", "frames": 600, "discont": 0.9})
    failed = copy.call("dvc", "repro", "minatar@Breakout-ucb-0", ok=False)
    assert "There is no parameter 'discont'; did you mean discount?" in failed
    assert not (copy.path / "results" / "runs" / "minatar").exists()


@pytest.mark.parametrize("change", ["params", "code"])
def test_a_run_whose_inputs_change_meanwhile_is_not_recorded(tmp_path, change):
    copy = small(tmp_path / "repo")
    copy.set("minatar", "settings", value={"profile": "smoke", "frames": 4000})
    process = subprocess.Popen(
        [sys.executable, "-m", "qe", "execute", "--suite", "minatar", "--game", "Breakout",
         "--algorithm", "ucb", "--seed", "0"],
        cwd=copy.path, env=copy.env, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    log = copy.path / "results/runs/minatar/Breakout/ucb/0/episodes.csv"
    while not log.exists():
        assert process.poll() is None
    if change == "params":
        copy.set("ucb", "lam", value=0.7)
    else:
        with (copy.path / "qe" / "replay.py").open("a") as file:
            file.write("CHANGED = True\n")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "changed while the run was made" in errors
