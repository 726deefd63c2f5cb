"""What made a run: its code, its versions, its machine."""

import ast
import hashlib
import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

from qe.config import Config

PACKAGE = Path(__file__).parent
# The modules that decide what a run's log says. dvc.yaml depends on the same ones.
LEARNING = (
    "config", "envs", "learner", "network", "replay", "schedules", "selectors", "train",
)  # fmt: skip


def learning_code() -> str:
    """The learning modules without comments, docstrings and layout, which change no run."""

    def bare(name: str) -> str:
        tree = ast.parse((PACKAGE / f"{name}.py").read_text())
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
        return f"# {name}\n{ast.unparse(tree)}\n"

    return "\n".join(map(bare, LEARNING))


def code_fingerprint() -> str:
    """Twelve hex digits that change with any of the learning modules."""
    return hashlib.sha256(learning_code().encode()).hexdigest()[:12]


def read_finished(directory: Path) -> dict[str, Any] | None:
    """The `run.json` of a finished run, or None."""
    path = directory / "run.json"
    return json.loads(path.read_text()) if path.exists() else None


def identity(config: Config) -> dict[str, str]:
    """What has to be the same for a run to be gone on with, or kept."""
    return {"fingerprint": config.fingerprint(), "code": code_fingerprint()}


def is_finished(directory: Path, config: Config) -> bool:
    """Whether the directory holds this run, whole, made by today's code."""
    found = read_finished(directory)
    return found is not None and identity(config).items() <= found.items()


def git_commit() -> str | None:
    """The commit that this code is at, with `+` where the package differs from it."""

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=PACKAGE, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--", ".")
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """What the run was made on."""
    try:
        info = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":", 1)[1].strip() for line in info if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor() or platform.machine()
    return {"cpu": cpu, "cores": os.cpu_count(), "system": platform.system()}


def versions() -> dict[str, str]:
    """Of everything that a run's numbers may depend on."""
    packages = ("qe", "torch", "numpy", "ale-py", "MinAtar", "opencv-python-headless")
    return {p: version(p) for p in packages} | {"python": platform.python_version()}
