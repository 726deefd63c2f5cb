"""What made a run: its code, its versions, its machine."""

import ast
import hashlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent.parent
# The modules that decide what a run's log says. What `qe.config` decides is in the
# configuration's own fingerprint.
LEARNING = (
    "agent", "envs", "learner", "network", "replay", "runs/records", "schedules", "selectors",
    "train",
)  # fmt: skip


def _shape(node: object) -> str:
    """A syntax tree as text that no version of Python writes otherwise (`ast.unparse` would)."""
    if isinstance(node, list):
        return f"[{','.join(map(_shape, node))}]"
    if not isinstance(node, ast.AST):
        return ascii(node)
    parts = [f"{name}={_shape(value)}" for name, value in ast.iter_fields(node)
             if value is not None and value != []]  # fmt: skip
    return f"{type(node).__name__}({','.join(parts)})"


@cache
def _bare(source: str) -> str:
    """Code without comments, docstrings and layout, which change no run."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            continue
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return _shape(tree)


def learning_code() -> str:
    """What decides a run's log, as text."""
    return "\n".join(f"{name}: {_bare((PACKAGE / f'{name}.py').read_text())}" for name in LEARNING)


def code_fingerprint() -> str:
    """Twelve hex digits that change with any of the learning modules."""
    return hashlib.sha256(learning_code().encode()).hexdigest()[:12]


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


def day_of(commit: str) -> str:
    """When a commit was made, as `2026-11-18`; nothing where git does not know it."""
    words = ["git", "show", "-s", "--format=%cs", commit.rstrip("+")]
    try:
        done = subprocess.run(words, cwd=PACKAGE, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


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
