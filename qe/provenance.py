"""What made a run: its code, its versions, its machine."""

import hashlib
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).parent
# The modules that decide what a run's log says. dvc.yaml depends on the same ones.
LEARNING = (
    "config", "envs", "learner", "network", "replay", "schedules", "selectors", "train",
)  # fmt: skip


def code_fingerprint() -> str:
    """Twelve hex digits that change with any of the learning modules."""
    digest = hashlib.sha256()
    for name in LEARNING:
        digest.update((PACKAGE / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


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
