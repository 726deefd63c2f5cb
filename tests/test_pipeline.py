"""The pipeline, with the real DVC, in a small copy of the repository."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
import yaml

from qe import ROOT

RUN, SWEEPS = "minatar@Breakout-", ("temperature@Breakout-0.1-0", "lam@Breakout-1.0-0")
DOWNSTREAM = {"tables", "curves", "sweeps", "statistics", "report"}


class Copy:
    def __init__(self, path: Path) -> None:
        self.path = path
        scripts = Path(sys.executable).parent
        self.env = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}

    def call(self, *words: str, ok: bool = True) -> str:
        done = subprocess.run(
            words, cwd=self.path, env=self.env, capture_output=True, text=True, check=False
        )
        assert (done.returncode == 0) == ok, done.stdout + done.stderr
        return done.stdout + done.stderr

    def git(self, *words: str) -> str:
        return self.call("git", "-c", "user.name=t", "-c", "user.email=t@example.org", *words)

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "state")

    def stale(self) -> set[str]:
        return set(json.loads(self.call("dvc", "status", "--json")))

    def repro(self) -> set[str]:
        """The stages that ran."""
        lines = self.call("dvc", "repro").splitlines()
        return {line.split("'")[1] for line in lines if line.startswith("Running stage")}

    def set(self, *path: str, value: object) -> None:
        params = yaml.safe_load((self.path / "params.yaml").read_text())
        inner = params
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(params))


def small(where: Path) -> Copy:
    """The repository with one game and runs of seconds."""
    for name in ("qe", "notebooks", "results/paper", ".dvc/config", ".dvcignore", ".gitignore",
                 "dvc.yaml", "params.yaml"):  # fmt: skip
        source, target = ROOT / name, where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    copy = Copy(where)
    copy.set("minatar", value={
        "games": ["Breakout"], "seeds": [0], "settings": {"profile": "smoke", "frames": 1500},
    })  # fmt: skip
    copy.set("sweeps", value={
        "games": ["Breakout"], "seeds": [0], "temperature": [0.1], "lam": [1.0],
    })  # fmt: skip
    copy.git("init", "-q")
    return copy


def test_the_pipeline(tmp_path):
    copy = small(tmp_path / "repo")
    runs = {f"{RUN}{a}-0" for a in ("double_dqn", "bootstrapped_dqn", "ensemble_voting", "ucb",
                                    "ucb_infogain")}  # fmt: skip
    ran = copy.repro()
    assert {s for s in ran if not s.startswith("code@")} == {*runs, *SWEEPS, *DOWNSTREAM}
    page = (copy.path / "results" / "report.html").read_text()
    assert page.count("<figure>") > 10
    assert copy.stale() == set()
    assert "ucb" in copy.call("dvc", "metrics", "show")
    copy.commit()

    # A fresh clone trains nothing, rebuilds the rest byte for byte, and is clean afterwards.
    copy.git("clone", "-q", ".", str(tmp_path / "clone"))
    clone = Copy(tmp_path / "clone")
    ran = clone.repro()
    assert ran >= DOWNSTREAM and not any("@Breakout" in s for s in ran)
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
    assert copy.stale() == {"curves", "sweeps", "statistics"}
    copy.git("checkout", "-q", "qe")
    shutil.rmtree(copy.path / "results" / "figures" / "sweeps")
    assert copy.repro() == {"sweeps"}

    # lambda touches UCB's runs and what is downstream of them, nothing else.
    before = {p: p.read_bytes() for p in (copy.path / "results" / "runs").rglob("episodes.csv")}
    figure = copy.path / "results" / "figures" / "sweeps" / "lam.svg"
    old_figure = figure.read_bytes()
    copy.set("ucb", "lam", value=0.5)
    assert copy.stale() == {f"{RUN}ucb-0"}
    assert copy.repro() == {f"{RUN}ucb-0", *DOWNSTREAM}
    run = copy.path / "results" / "runs" / "minatar" / "Breakout" / "ucb" / "0"
    assert json.loads((run / "run.json").read_text())["config"]["lam"] == 0.5
    changed = {p.parent.parent.name for p, old in before.items() if p.read_bytes() != old}
    assert changed <= {"ucb"}
    assert figure.read_bytes() != old_figure
    assert "0.5" in copy.call("dvc", "params", "diff")

    # An experiment's value reaches its run, which is refused if it can't be.
    failed = copy.call("dvc", "exp", "run", "-S", "ucb_infogain.temperature=0", ok=False)
    assert "temperature must be more than 0" in failed


def test_a_failed_run_leaves_its_notebook_and_says_so(tmp_path):
    copy = small(tmp_path / "repo")
    copy.set("minatar", "settings", value={"profile": "smoke", "frames": 600, "discont": 0.9})
    failed = copy.call("dvc", "repro", "minatar@Breakout-ucb-0", ok=False)
    assert "There is no parameter 'discont'; did you mean discount?" in failed
    assert not (copy.path / "results" / "runs").exists()


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
            file.write("# changed\n")
    _, errors = process.communicate()
    assert process.returncode == 2
    assert "changed while the run was made" in errors
