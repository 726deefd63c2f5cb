"""Which run a directory holds, and whether it is whole: the one judge of a run.

Without torch, which takes a second to import.
"""

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qe.config import MANY, Config, ConfigError, sentence
from qe.runs.provenance import code_fingerprint

RUN = "run.json"
LOG_NAMES = {"episodes.csv", "evaluations.csv", "diagnostics.csv"}
Count = Annotated[int, Field(ge=0, le=MANY)]
Amount = Annotated[float, Field(ge=0)]
Listed = Literal["episodes.csv", "evaluations.csv", "diagnostics.csv", "network.safetensors"]


class File(BaseModel):
    model_config = ConfigDict(strict=True)

    bytes: Count
    sha256: str


class Machine(BaseModel):
    model_config = ConfigDict(strict=True)

    cpu: str


class Made(BaseModel):
    """What readers of a `run.json` rely on; there is more in it."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    fingerprint: str
    code: str
    config: dict[str, Any]
    commit: str | None
    machine: Machine
    frames: Count
    steps: Annotated[Count, Field(ge=1)]
    episodes: Count
    seconds: Amount
    steps_per_second: Amount
    memory_gb: Amount
    files: dict[Listed, File]


def read_finished(directory: Path) -> dict[str, Any] | None:
    """The `run.json` of a finished run, or None."""
    path = directory / RUN
    try:
        found = json.loads(path.read_text())
        Made.model_validate(found if isinstance(found, dict) else {})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}.") from None
    except ValidationError as error:  # which is a ValueError
        raise ConfigError(_unfinished(path, sentence(error, depth=3))) from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{path} can't be read: it is damaged.") from None
    if lacking := LOG_NAMES - found["files"].keys():
        raise ConfigError(_unfinished(path, f"files lacks {min(lacking)}."))
    return found


def _unfinished(path: Path, why: str) -> str:
    return f"{path} is not of a finished run: {why}"


def config_of(directory: Path, made: dict[str, Any]) -> Config:
    """The configuration in a `run.json`, which has to be the one of its fingerprint."""
    path = directory / RUN
    try:
        config = Config.model_validate_json(json.dumps(made["config"]))
    except ValidationError as error:
        raise ConfigError(_unfinished(path, sentence(error))) from None
    except RecursionError:
        raise ConfigError(_unfinished(path, "its config is damaged.")) from None
    if config.fingerprint() != made["fingerprint"]:
        raise ConfigError(_unfinished(path, "its config does not have its fingerprint."))
    return config


def open_run(directory: Path) -> tuple[dict[str, Any], Config]:
    """The `run.json` and the configuration of a run that has to be finished and whole."""
    made = read_finished(directory)
    if made is None:
        raise ConfigError(f"There is no finished run in {directory}.")
    config = config_of(directory, made)
    check_files(directory, made)
    return made, config


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
    except (ValueError, RecursionError):
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
            config_of(directory, finished)
            check_files(directory, finished)
            return "finished"
    except ConfigError:
        if checkpoint != wanted:
            raise
    if checkpoint is not None:
        return "resumable" if checkpoint == wanted else "other"
    return "other" if any(directory.glob("*.csv")) else "new"
