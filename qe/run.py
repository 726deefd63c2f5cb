"""A run on disk: its logs, its progress bar, and the rule that nothing finished is lost."""

import csv
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections import deque
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any

from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_auto

from qe import RESULTS
from qe.config import Config, ConfigError
from qe.train import Diagnostics, Episode, Evaluation, Record, Trainer

SCRATCH = RESULTS / "scratch"  # not kept in git
LOGS: dict[type, str] = {
    Episode: "episodes.csv",
    Evaluation: "evaluations.csv",
    Diagnostics: "diagnostics.csv",
}
TERMINAL = "QE_TERMINAL"  # in the environment: show the bar there, not in the notebook
MEAN_OF = 100  # games, as in the paper's tables


# The modules that decide what a run's log says. dvc.yaml depends on the same ones.
LEARNING = (
    "config", "envs", "learner", "network", "replay", "schedules", "selectors", "train",
)  # fmt: skip


def columns(kind: type) -> list[str]:
    """The header of a record's log; `return`, which Python reserves, is called score in code."""
    return ["return" if name == "score" else name for name in kind._fields]  # type: ignore[attr-defined]


class Logs:
    """One CSV per kind of record, fixed columns, flushed with every row."""

    def __init__(self, directory: Path) -> None:
        self.files: dict[type, IO[str]] = {}
        for kind, name in LOGS.items():
            self.files[kind] = (directory / name).open("w", newline="")
            self._row(kind, columns(kind))

    def write(self, record: Record) -> None:
        self._row(type(record), record)

    def _row(self, kind: type, row: Any) -> None:
        csv.writer(self.files[kind], lineterminator="\n").writerow(row)
        self.files[kind].flush()

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def code_fingerprint() -> str:
    """Twelve hex digits that change with any of the learning modules."""
    digest = hashlib.sha256()
    for name in LEARNING:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()[:12]


def git_commit() -> str | None:
    """The commit that this code is at, with `+` where the package differs from it."""
    package = Path(__file__).parent

    def git(*args: str) -> str:
        return subprocess.run(
            ["git", *args], cwd=package, capture_output=True, text=True, check=True
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


def default_directory(config: Config) -> Path:
    """Where a run goes that was not told where: never in the place of another configuration."""
    name = f"{config.seed}-{config.fingerprint()}"
    directory = SCRATCH / config.suite / config.game / config.algorithm / name
    return Path(os.path.relpath(directory))


def read_finished(directory: Path) -> dict[str, Any] | None:
    """The `run.json` of a finished run, or None."""
    path = directory / "run.json"
    return json.loads(path.read_text()) if path.exists() else None


def progress_bar(config: Config, shown: bool) -> tqdm:
    """Frames, speed and time left: in the notebook, in the terminal, or seldom in a log file."""
    terminal = bool(os.environ.get(TERMINAL))
    tty = sys.__stderr__ is not None and sys.__stderr__.isatty()
    live = tty or ("ipykernel" in sys.modules and not terminal)
    return (tqdm if terminal else tqdm_auto)(
        total=config.frames,
        unit=" frames",
        unit_scale=True,
        desc=f"{config.game} {config.algorithm} {config.seed}",
        disable=not shown,
        mininterval=0.5 if live else 30,
        file=sys.__stderr__ if terminal else None,
    )


def run(
    config: Config, out: Path | str | None = None, *, overwrite: bool = False, progress: bool = True
) -> Path:
    """Train, log into the directory `out`, and return it. A finished run is not made again."""
    directory = Path(out) if out else default_directory(config)
    finished = None if overwrite else read_finished(directory)
    if finished and finished["fingerprint"] == config.fingerprint():
        print(f"{directory} holds this run already; overwrite makes it again.", file=sys.stderr)
        return directory
    if finished:
        raise ConfigError(
            f"{directory} holds a finished run with another configuration: "
            f"choose another directory, or overwrite it."
        )
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "run.json").unlink(missing_ok=True)  # from here on it is not finished

    logs = Logs(directory)
    scores: deque[float] = deque(maxlen=MEAN_OF)
    start = time.perf_counter()
    trainer = Trainer(config)
    bar = progress_bar(config, progress)
    with bar:
        while not trainer.done:
            for record in trainer.step():
                logs.write(record)
                if isinstance(record, Episode):
                    scores.append(record.score)
                    bar.set_postfix_str(f"mean of {len(scores)} games {_mean(scores):.2f}", False)
            bar.update(min(trainer.frame, config.frames) - bar.n)
    logs.close()

    seconds = time.perf_counter() - start
    summary = {
        "fingerprint": config.fingerprint(),
        "code": code_fingerprint(),
        "config": config.model_dump(),
        "commit": git_commit(),
        "versions": {p: version(p) for p in ("qe", "torch", "numpy", "ale-py", "MinAtar")}
        | {"python": platform.python_version()},
        "machine": machine() | {"device": str(trainer.learner.device)},
        "frames": trainer.frame,
        "steps": trainer.step_count,
        "updates": trainer.learner.updates,
        "episodes": trainer.episodes,
        "seconds": round(seconds, 1),
        "steps_per_second": round(trainer.step_count / seconds, 1),
    }
    temporary = directory / "run.json.tmp"
    temporary.write_text(json.dumps(summary, indent=1) + "\n")
    temporary.replace(directory / "run.json")
    return directory


def _mean(scores: deque[float]) -> float:
    return sum(scores) / len(scores)
