"""Small copies of the repository, to do things to."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from qe import ROOT
from qe.runs.experiments import Run, runs_of

SETTINGS = {"profile": "smoke", "frames": 1500}


class Copy:
    def __init__(self, path: Path) -> None:
        self.path = path
        scripts = Path(sys.executable).parent
        self.env = os.environ | {
            "PATH": f"{scripts}:{os.environ['PATH']}",
            "PYTHONPATH": str(path),
        }

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

    def repro(self, *targets: str) -> set[str]:
        """The stages that ran."""
        lines = self.call("dvc", "repro", *targets).splitlines()
        return {line.split("'")[1] for line in lines if line.startswith("Running stage")}

    def params(self) -> dict[str, Any]:
        return yaml.safe_load((self.path / "params.yaml").read_text())

    def set(self, *path: str, value: object) -> None:
        params = inner = self.params()
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    def runs(self, experiment: str) -> list[Run]:
        from qe.runs.experiments import read_params

        found = runs_of(experiment, read_params(self.path / "params.yaml"))
        return [run._replace(out=self.path / run.out) for run in found]

    def times(self) -> dict[str, int]:
        """When each run was finished, by its place."""
        found = (self.path / "results" / "runs").rglob("run.json")
        runs = self.path / "results" / "runs"
        return {p.parent.relative_to(runs).as_posix(): p.stat().st_mtime_ns for p in found}


def small(where: Path, **settings: Any) -> Copy:
    """The repository with one grid of one game and three algorithms, and runs of seconds."""
    for name in ("qe", "notebooks", "results/reference", ".dvc/config", ".dvc/plots", ".dvcignore",
                 ".gitignore", "claims.yaml", "dvc.yaml", "params.yaml"):  # fmt: skip
        source, target = ROOT / name, where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    coverage = where / "notebooks" / "coverage.ipynb"
    coverage.write_text(coverage.read_text().replace("trials: int = 1000", "trials: int = 10"))
    copy = Copy(where)
    grid = {
        "suite": "minatar", "games": ["Breakout"], "seeds": 1,
        "variants": ["double_dqn", "ensemble_voting", "ucb"], "settings": SETTINGS | settings,
    }  # fmt: skip
    copy.set("grids", value={"minatar": grid})
    copy.set("controls", value={})
    copy.git("init", "-q")
    return copy
