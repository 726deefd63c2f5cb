"""What lies in the place of a run. Without torch, which takes a second to import."""

import json
from pathlib import Path
from typing import Any, Literal

from qe.config import Config
from qe.provenance import code_fingerprint


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


def directory_of(run: Path) -> Path:
    return run.with_name(run.name + ".checkpoint")


def read_identity(run: Path) -> dict[str, str] | None:
    """What the checkpoint beside `run` belongs to; None if there is none."""
    path = directory_of(run) / "identity.json"
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        return {}  # unreadable: nobody's


Status = Literal["new", "finished", "resumable", "other"]


def status(directory: Path, config: Config) -> Status:
    """What is in the place of this run; `other` is anything of another configuration or code."""
    finished = read_finished(directory)
    if finished:
        return "finished" if finished["fingerprint"] == config.fingerprint() else "other"
    found = read_identity(directory)
    if found is not None:
        return "resumable" if found == identity(config) else "other"
    return "other" if any(directory.glob("*.csv")) else "new"
