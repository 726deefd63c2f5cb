"""Small copies of the repository, to do things to."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from qe import ROOT
from qe.config import ALGORITHMS

SOME = ("double_dqn", "ensemble_voting", "ucb", "ucb_infogain")


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

    def repro(self, *targets: str) -> set[str]:
        """The stages that ran."""
        lines = self.call("dvc", "repro", *targets).splitlines()
        return {line.split("'")[1] for line in lines if line.startswith("Running stage")}

    def set(self, *path: str, value: object) -> None:
        params = yaml.safe_load((self.path / "params.yaml").read_text())
        inner = params
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value
        (self.path / "params.yaml").write_text(yaml.safe_dump(params))


def small(where: Path, algorithms: Sequence[str] = SOME) -> Copy:
    """The repository with one game, some algorithms and runs of seconds."""
    shipped = (
        "chain", "ensembles", "freeway_epsilon", "freeway_replay", "hour", "long", "paper",
        "published", "runs/atari/Freeway/double_dqn", "search",
    )  # fmt: skip
    for name in ("qe", "notebooks", *(f"results/{name}" for name in shipped),
                 ".dvc/config", ".dvcignore", ".gitignore", "dvc.yaml", "params.yaml"):  # fmt: skip
        source, target = ROOT / name, where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    copy = Copy(where)
    pipeline = where / "dvc.yaml"
    every, some = (f"algorithms: [{', '.join(names)}]" for names in (ALGORITHMS, algorithms))
    assert every in pipeline.read_text()
    stages = yaml.safe_load(pipeline.read_text().replace(every, some))
    for slow in ("ensembles", "hour", "long", "freeway", "chain"):
        del stages["stages"][slow]  # their figures are made from the shipped
    stages["metrics"] = [path for path in stages["metrics"] if "atari" not in path]
    pipeline.write_text(yaml.safe_dump(stages, sort_keys=False))
    copy.set("minatar", value={
        "games": ["Breakout"], "seeds": [0], "settings": {"profile": "smoke", "frames": 1500},
    })  # fmt: skip
    copy.set("atari", "games", value=[])
    copy.set("suites", value=["minatar"])
    copy.set("sweeps", value={
        "games": ["Breakout"], "seeds": [0], "temperature": [0.1], "lam": [1.0],
    })  # fmt: skip
    copy.git("init", "-q")
    return copy
