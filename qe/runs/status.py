"""Which run a directory holds, and whether it is whole: the one judge of a run.

Without torch, which takes a second to import.
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Literal

from qe.config import Config, ConfigError
from qe.runs.provenance import code_fingerprint

RUN = "run.json"
LOG_NAMES = {"episodes.csv", "evaluations.csv", "diagnostics.csv"}


def read_finished(directory: Path) -> dict[str, Any] | None:
    """The `run.json` of a finished run, or None."""
    path = directory / RUN
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:
        raise ConfigError(f"{path} can't be read: it is damaged.") from None
    kinds = {"fingerprint": str, "code": str, "config": dict, "files": dict}
    whole = isinstance(found, dict) and all(
        isinstance(found.get(name), kind) for name, kind in kinds.items()
    )
    if not whole or not found["files"].keys() >= LOG_NAMES:
        raise ConfigError(f"{path} is not of a finished run: it lacks {', '.join(kinds)}.")
    return found


def checksums(directory: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    """Length and SHA-256 of each of a run's files, for its `run.json`."""
    found = {}
    for name in names:
        content = (directory / name).read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        found[name] = {"bytes": len(content), "sha256": digest}
    return found


def check_files(directory: Path, made: dict[str, Any]) -> None:
    """Refuse a run whose files are not what its `run.json` says of them."""
    for name, said in made["files"].items():
        path = directory / name
        if not path.is_file():
            raise ConfigError(f"{path} is missing, which {RUN} beside it lists.")
        if checksums(directory, [name])[name] != said:
            raise ConfigError(f"{path} is not the file that {RUN} beside it lists: it was changed.")


def identity(config: Config) -> dict[str, str]:
    """What decides a run: configuration and learning code. Another one's is no use."""
    return {"fingerprint": config.fingerprint(), "code": code_fingerprint()}


def is_finished(directory: Path, config: Config) -> bool:
    """Whether the directory holds this run, whole, made by today's code."""
    try:
        return status(directory, config) == "finished"
    except ConfigError:
        return False


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
    """What the directory holds for this run; `other` is of another configuration or code.

    A finished run with a damaged file is resumable while it has a checkpoint (its end was cut off
    by a power cut, say), and refused otherwise.
    """
    wanted, checkpoint = identity(config), read_identity(directory)
    try:
        finished = read_finished(directory)
        if finished is not None:
            if not wanted.items() <= finished.items():
                return "other"
            check_files(directory, finished)
            return "finished"
    except ConfigError:
        if checkpoint != wanted:
            raise
    if checkpoint is not None:
        return "resumable" if checkpoint == wanted else "other"
    return "other" if any(directory.glob("*.csv")) else "new"
