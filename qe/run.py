"""A run on disk: its logs, its progress bar, and the rule that nothing finished is lost."""

import csv
import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
from tqdm import tqdm
from tqdm.auto import tqdm as tqdm_auto

from qe import RESULTS, TERMINAL, checkpoint
from qe.config import Config, ConfigError
from qe.estimate import needs
from qe.learner import NotFiniteError
from qe.provenance import git_commit, machine, versions
from qe.status import identity, status
from qe.train import Diagnostics, Episode, Evaluation, Record, Trainer

SCRATCH = RESULTS / "scratch"  # not kept in git
LOGS: dict[type, str] = {
    Episode: "episodes.csv",
    Evaluation: "evaluations.csv",
    Diagnostics: "diagnostics.csv",
}
MEAN_OF = 100  # games, as in the paper's tables
NETWORK = "network.safetensors"
HEALTH = "health.csv"


def columns(kind: type) -> list[str]:
    """The header of a record's log; `return`, which Python reserves, is called score in code."""
    return ["return" if name == "score" else name for name in kind._fields]  # type: ignore[attr-defined]


class Health(NamedTuple):
    """How the process fares, noted at each checkpoint: no two runs have the same."""

    seconds: float  # worked on the run
    frame: int
    steps_per_second: float  # since the last checkpoint
    memory_gb: float  # resident now, pages of the replay's files included
    checkpoint_seconds: float  # that this one took


class Logs:
    """One CSV per kind of record, fixed columns, flushed with every row."""

    def __init__(self, directory: Path, positions: dict[str, int] | None = None) -> None:
        """New logs, or with `positions` the old ones, cut to those lengths."""
        self.files: dict[type, IO[str]] = {}
        for kind, name in LOGS.items():
            path = directory / name
            if positions is not None and path.stat().st_size < positions[name]:
                raise ConfigError(f"{path} is shorter than its checkpoint says: it was changed.")
            self.files[kind] = path.open("w" if positions is None else "r+", newline="")
            if positions is None:
                self._row(kind, columns(kind))
            else:
                self.files[kind].truncate(positions[name])
                self.files[kind].seek(0, os.SEEK_END)

    def write(self, record: Record) -> None:
        self._row(type(record), record)

    def _row(self, kind: type, row: Any) -> None:
        csv.writer(self.files[kind], lineterminator="\n").writerow(row)
        self.files[kind].flush()

    def positions(self) -> dict[str, int]:
        """The logs' lengths in bytes, safely on the disk."""
        for file in self.files.values():
            os.fsync(file.fileno())
        return {LOGS[kind]: os.fstat(file.fileno()).st_size for kind, file in self.files.items()}

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def default_directory(config: Config) -> Path:
    """Where a run goes that was not told where: never in the place of another configuration."""
    name = f"{config.seed}-{config.fingerprint()}"
    directory = SCRATCH / config.suite / config.game / config.algorithm / name
    return Path(os.path.relpath(directory))


def progress_bar(config: Config, shown: bool, frame: int) -> tqdm:
    """Frames, speed and time left: in the notebook, in the terminal, or seldom in a log file."""
    terminal = bool(os.environ.get(TERMINAL))
    tty = sys.__stderr__ is not None and sys.__stderr__.isatty()
    live = tty or ("ipykernel" in sys.modules and not terminal)
    return (tqdm if terminal else tqdm_auto)(
        total=config.frames,
        initial=min(frame, config.frames),
        unit=" frames",
        unit_scale=True,
        desc=f"{config.game} {config.algorithm} {config.seed}",
        disable=not shown,
        mininterval=0.5 if live else 30,
        file=sys.__stderr__ if terminal else None,
    )


def check_resources(config: Config, directory: Path) -> None:
    """Say what the run needs, and stop if it can't be had."""
    disk, memory = needs(config)
    print(f"Needs up to {disk / 1e9:.2f} GB of disk and {memory / 1e9:.2f} GB of memory.")
    place = next(p for p in (directory, *directory.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    if disk > free:
        raise ConfigError(
            f"The run needs {disk / 1e9:.2f} GB of disk and {place} has {free / 1e9:.2f} GB: "
            f"lower replay_size, or choose another directory with out."
        )
    available = psutil.virtual_memory().available
    if memory > available:
        raise ConfigError(
            f"The run needs {memory / 1e9:.2f} GB of memory and {available / 1e9:.2f} GB are "
            f"free: lower replay_size."
        )


class Stop:
    """While entered, Ctrl-C and SIGTERM ask the work to stop at its next step.

    Another one more than a second later stops it at once. (Slurm signals every process of a job,
    and each passes the signal on: that is one request.)
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self._asked = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Stop":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self.signal and now > self._asked + 1:
            raise KeyboardInterrupt
        self.signal, self._asked = number, now

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)


class Session:
    """One process's work on a run: from its start or last checkpoint to its end or a stop."""

    def __init__(self, config: Config, directory: Path, store: checkpoint.Store) -> None:
        self.config, self.directory, self.store = config, directory, store
        self.commit = git_commit()
        saved = store.load()
        self.trainer = Trainer(config, store.replay)
        self.logs = Logs(directory, saved["logs"] if saved else None)
        self.seconds = 0.0  # worked on the run, up to the last checkpoint
        self.checkpoint_seconds = 0.0  # of these
        self.number = 0  # of checkpoints
        self.resumed = 0
        if saved:
            self.trainer.set_state(saved["trainer"])
            self.seconds, self.checkpoint_seconds = saved["seconds"], saved["checkpoint_seconds"]
            self.number, self.resumed = saved["number"], saved["resumed"] + 1
            print(f"Going on from frame {self.trainer.frame:,}.", file=sys.stderr)
        else:
            self._note(Health._fields, "w")
        self._started = time.perf_counter()
        self._saved_at = time.perf_counter()
        self._saved_added = self.trainer.replay.added
        self._saved_steps = self.trainer.step_count
        self._cost = 0.0

    def elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._started

    def due(self) -> bool:
        """Time for a checkpoint: not more than 2 % of it, and before the replay's slack is used.

        Half the slack, since the checkpoint before the last one has to stay good as well.
        """
        waited = time.perf_counter() - self._saved_at
        added = self.trainer.replay.added - self._saved_added
        often = max(self.config.checkpoint_every, 50 * self._cost)
        return waited >= often or added >= self.trainer.replay.slack // 2

    def save(self) -> None:
        start = time.perf_counter()
        if not checkpoint.check_finite(self.trainer.learner.online.state_dict()):
            raise NotFiniteError("a weight is not a number")
        self.trainer.replay.flush()
        self.number += 1
        self.store.save(
            {
                "number": self.number,
                "logs": self.logs.positions(),
                "seconds": self.elapsed(),
                "checkpoint_seconds": self.checkpoint_seconds,
                "resumed": self.resumed,
                "trainer": self.trainer.get_state(),
            }
        )
        now = time.perf_counter()
        self._cost = now - start
        self.checkpoint_seconds += self._cost
        steps = self.trainer.step_count
        health = Health(
            seconds=round(self.elapsed(), 1),
            frame=self.trainer.frame,
            steps_per_second=round((steps - self._saved_steps) / (now - self._saved_at), 1),
            memory_gb=round(psutil.Process().memory_info().rss / 1e9, 3),
            checkpoint_seconds=round(self._cost, 3),
        )
        self._note(health, "a")
        self._saved_at, self._saved_steps = now, steps
        self._saved_added = self.trainer.replay.added

    def _note(self, row: Sequence[object], mode: str) -> None:
        with (self.directory / HEALTH).open(mode, newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(row)

    def work(self, stop: Stop, bar: tqdm) -> None:
        """To the end of the run, or until told to stop."""
        scores: deque[float] = deque(maxlen=MEAN_OF)
        while not self.trainer.done:
            for record in self.trainer.step():
                self.logs.write(record)
                if isinstance(record, Episode):
                    scores.append(record.score)
                    mean = sum(scores) / len(scores)
                    bar.set_postfix_str(f"mean of {len(scores)} games {mean:.2f}", False)
            bar.update(min(self.trainer.frame, self.config.frames) - bar.n)
            if stop.signal or self.due():
                self.save()
            if stop.signal:
                raise Interrupted(stop.signal, self.directory)
        self.logs.close()

    def summary(self) -> dict[str, Any]:
        """The content of `run.json`."""
        trainer, seconds = self.trainer, self.elapsed()
        return self.store.identity | {
            "config": self.config.model_dump(),
            "commit": self.commit,
            "versions": versions(),
            "machine": machine() | {"device": str(trainer.learner.device)},
            "frames": trainer.frame,
            "steps": trainer.step_count,
            "updates": trainer.learner.updates,
            "episodes": trainer.episodes,
            "seconds": round(seconds, 1),
            "steps_per_second": round(trainer.step_count / seconds, 1),
            "memory_gb": round(peak_memory() / 1e9, 2),
            "checkpoints": self.number,
            "checkpoint_share": round(self.checkpoint_seconds / seconds, 4),
            "resumed": self.resumed,
        }


def peak_memory() -> int:
    """The most bytes that this process had resident, pages of the replay's files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop, and has."""

    def __init__(self, number: int, directory: Path) -> None:
        self.number = number
        super().__init__(
            f"Stopped by {signal.Signals(number).name} at a checkpoint; the same call goes on "
            f"with {directory}."
        )

    def _render_traceback_(self) -> list[str]:  # what a notebook shows of it
        return [str(self)]


def run(
    config: Config, out: Path | str | None = None, *, overwrite: bool = False, progress: bool = True
) -> Path:
    """Train, log into the directory `out`, and return it.

    A finished run is not made again, and an unfinished one is gone on with, unless `overwrite`.
    """
    directory = Path(out) if out else default_directory(config)
    found = "new" if overwrite else status(directory, config)
    if found == "finished":
        print(f"{directory} holds this run already; overwrite makes it again.", file=sys.stderr)
        checkpoint.Store(directory, identity(config)).discard()  # if it was killed at the end
        return directory
    if found == "other":
        raise ConfigError(
            f"{directory} holds a run of another configuration or code: "
            f"choose another directory, or overwrite it."
        )
    try:
        check_resources(config, directory)
        directory.mkdir(parents=True, exist_ok=True)
        with checkpoint.Store(directory, identity(config)) as store:
            if overwrite:
                store.clear()
                (directory / "run.json").unlink(missing_ok=True)  # from here on not finished
            session = Session(config, directory, store)
            with Stop() as stop, progress_bar(config, progress, session.trainer.frame) as bar:
                session.work(stop, bar)
            if config.keep_network:
                weights = session.trainer.learner.online.state_dict()
                checkpoint.save_tensors(weights, directory / NETWORK)
            text = json.dumps(session.summary(), indent=1) + "\n"
            checkpoint.write_atomically(directory / "run.json", text)
            store.discard()
    except NotFiniteError as error:
        raise ConfigError(
            f"Learning has run away: {error}. The last good checkpoint of {directory} is kept; "
            f"a lower learning_rate may help."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"Writing to {directory} failed: {error.strerror or error}. What was written before "
            f"is kept; once it is mended, the same call goes on."
        ) from None
    return directory
