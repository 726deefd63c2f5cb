"""A run on disk, and the rule that nothing finished is lost."""

import csv
import json
import os
import resource
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from tqdm import tqdm

from qe import RESULTS
from qe.config import MACHINE, Config, ConfigError, configure, short
from qe.envs import COUNTS
from qe.learner import NotFiniteError, find_device
from qe.runs import checkpoint, live
from qe.runs.estimate import MAY_HELP, needs
from qe.runs.logs import HEALTH, Health, Logs, Mark, check_logs
from qe.runs.progress import progress_bar
from qe.runs.provenance import git_commit, machine, versions
from qe.runs.records import LOGS, Diary, Episode
from qe.runs.signals import Interrupted, Stop
from qe.runs.status import (
    LOG_NAMES,
    RUN,
    Status,
    checksums,
    directory_of,
    identity,
    read_identity,
    status,
)  # fmt: skip
from qe.selectors import ActionError
from qe.train import Trainer

SCRATCH = RESULTS / "scratch"  # not kept in git
MEAN_OF = 100  # games, as in the paper's tables
NETWORK = "network.safetensors"
LONGEST = 200  # characters of a directory's name: the checkpoint's, beside it, is longer


def default_directory(config: Config) -> Path:
    """The directory of a run that was given none: each configuration has its own.

    Its name says what is not the profile's, `lam=0.5-seed=0`, and ends with the fingerprint.
    """
    usual = configure(config.profile, suite=config.suite, game=config.game).model_dump()
    found = config.model_dump(exclude={"algorithm", "source", "K", "seed", *MACHINE})
    said = [f"{k}={v}" for k, v in found.items() if v != usual[k] and not isinstance(v, tuple)]
    name = "-".join([*said[:5], f"seed={config.seed}", config.fingerprint()])
    directory = SCRATCH / config.suite / config.game / config.algorithm / name
    return Path(os.path.relpath(directory))


def directory_for(config: Config, out: Path | str | None) -> Path:
    """Where the run goes. A place that can't be is refused."""
    if out is None or out == "":
        return default_directory(config)
    directory = Path(out)
    place = directory.resolve()
    own = place.name and not Path.cwd().is_relative_to(place)
    if not own or len(os.fsencode(place.name)) > LONGEST:
        raise ConfigError(
            f"out must be a directory of its own, with a name of at most {LONGEST} characters, "
            f"not {short(str(out))}."
        )
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        raise ConfigError(f"out must be a directory; {there}: Not a directory.")
    if there == place and not directory_of(place).exists() and any(place.iterdir()):
        names = {path.name for path in place.iterdir()}
        if not names & {RUN, NETWORK, HEALTH, *LOG_NAMES}:
            raise ConfigError(
                f"out must be new, empty, or a run's directory: {directory} holds other files, "
                f"{short(min(names))} for one."
            )
    return directory


def frames_bar(config: Config, shown: bool, frame: int) -> tqdm:
    """Frames, speed and time left."""
    return progress_bar(
        shown,
        total=config.frames,
        initial=min(frame, config.frames),
        unit=" frames",
        unit_scale=True,
        desc=f"{config.game} {config.algorithm} {config.seed}",
    )


def check_resources(config: Config, directory: Path) -> str:
    """What the run needs, in a sentence. It is refused if that can't be had."""
    disk, memory = needs(config)
    said = f"Needs up to {disk / 1e9:.2f} GB of disk and {memory / 1e9:.2f} GB of memory."
    there = directory_of(directory).rglob("*")  # a run that goes on has its replay on the disk
    disk -= sum(path.stat().st_size for path in there if path.is_file())
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
            f"free: lower replay_size, hidden or K."
        )
    return said


class Session:
    """One process's work on a run: from its start or last checkpoint to its end or a stop."""

    def __init__(self, config: Config, directory: Path, store: checkpoint.Store) -> None:
        self.config, self.directory, self.store = config, directory, store
        self.commit = git_commit()
        self.seconds = 0.0  # worked on the run, up to the last checkpoint
        self.checkpoint_seconds = 0.0  # of these
        self.number = 0  # of checkpoints
        self.resumed = 0
        self._marks: dict[str, Mark] | None = None
        if store.load(self._restore):
            print(f"Going on from frame {self.trainer.frame:,}.", flush=True)
        else:
            self._begin()
            self._marks = None
            self._note(Health._fields, "w")
        self.logs = Logs(directory, self._marks)
        self._started = time.perf_counter()
        self._saved_at = time.perf_counter()
        self._saved_added = self.trainer.replay.added
        self._saved_steps = self.trainer.steps
        self._cost = 0.0

    def _begin(self) -> None:
        self.trainer = Trainer(self.config, self.store.replay)
        self.diary = Diary(self.trainer)

    def _restore(self, saved: checkpoint.State) -> None:
        self._begin()
        checkpoint.check_types(saved, self._pattern())
        check_logs(self.directory, saved["logs"])
        self.trainer.set_state(saved["trainer"])
        self.diary.set_state(saved["diary"])
        self._marks = saved["logs"]
        self.seconds, self.checkpoint_seconds = saved["seconds"], saved["checkpoint_seconds"]
        self.number, self.resumed = saved["number"], saved["resumed"] + 1

    def _pattern(self) -> checkpoint.State:
        """A state such as `save` saves, of the game only what all games have."""
        trainer = self.trainer.get_state()
        trainer["env"] = {name: trainer["env"][name] for name in COUNTS}
        mark = {"bytes": 0, "sha256": ""}
        return {
            "number": 0,
            "logs": dict.fromkeys(LOGS.values(), mark),
            "seconds": 0.0,
            "checkpoint_seconds": 0.0,
            "resumed": 0,
            "trainer": trainer,
            "diary": self.diary.get_state(),
        }

    def elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self._started

    def due(self) -> bool:
        """Time for a checkpoint: not more than 2 % of it, and before the replay's slack is used.

        Half the slack, since the checkpoint before the last one has to stay good as well.
        """
        waited = time.perf_counter() - self._saved_at
        added = self.trainer.replay.added - self._saved_added
        often = max(self.config.checkpoint_every, 50 * self._cost)
        return waited >= often or added >= self.trainer.replay.slack // 2 - 1

    def save(self) -> None:
        start = time.perf_counter()
        self.trainer.learner.check_finite()
        self.trainer.replay.flush()
        self.number += 1
        self.store.save(
            {
                "number": self.number,
                "logs": self.logs.marks(),
                "seconds": self.elapsed(),
                "checkpoint_seconds": self.checkpoint_seconds,
                "resumed": self.resumed,
                "trainer": self.trainer.get_state(),
                "diary": self.diary.get_state(),
            }
        )
        now = time.perf_counter()
        self._cost = now - start
        self.checkpoint_seconds += self._cost
        steps = self.trainer.steps
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

    def work(self, stop: Stop, bar: tqdm, draw: Callable[[], None]) -> None:
        """To the end of the run, or until told to stop."""
        returns: deque[float] = deque(maxlen=MEAN_OF)
        for rows in self.diary.keep():
            for row in rows:
                self.logs.write(row)
                if isinstance(row, Episode):
                    returns.append(row.return_)
                    mean = sum(returns) / len(returns)
                    bar.set_postfix_str(f"mean of {len(returns)} games {mean:.2f}", False)
            bar.update(min(self.trainer.frame, self.config.frames) - bar.n)
            draw()
            if stop.signal or self.due():
                self.save()
            if stop.signal:
                raise Interrupted(stop.signal, self.directory)

    def finish(self) -> None:
        """The files of a finished run, each safely on the disk before `run.json` speaks of it."""
        self.trainer.learner.check_finite()
        files = self.logs.marks()
        self.logs.close()
        if self.config.keep_network:
            path = self.directory / NETWORK
            temporary = path.with_name(path.name + ".tmp")
            checkpoint.save_tensors(self.trainer.learner.net.state_dict(), temporary)
            checkpoint.sync(temporary)
            temporary.replace(path)
            files |= checksums(self.directory, [NETWORK])
        for directory in (self.directory, self.directory.absolute().parent):
            checkpoint.sync(directory)
        text = json.dumps(self.summary() | {"files": files}, indent=1) + "\n"
        checkpoint.write_atomically(self.directory / RUN, text)
        self.store.discard()

    def summary(self) -> dict[str, Any]:
        """The content of `run.json`."""
        trainer, seconds = self.trainer, self.elapsed()
        return self.store.identity | {
            "config": self.config.model_dump(),
            "commit": self.commit,
            "versions": versions(),
            "machine": machine() | {"device": str(trainer.learner.device)},
            "frames": trainer.frame,
            "steps": trainer.steps,
            "updates": trainer.learner.updates,
            "episodes": self.diary.episodes,
            "seconds": round(seconds, 1),
            "steps_per_second": round(trainer.steps / seconds, 1),
            "memory_gb": round(peak_memory() / 1e9, 2),
            "checkpoints": self.number,
            "checkpoint_share": round(self.checkpoint_seconds / seconds, 4),
            "resumed": self.resumed,
        }


def peak_memory() -> int:
    """The most bytes that this process had resident, pages of the replay's files included."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _kept(config: Config, directory: Path) -> Path:
    lacks = config.keep_network and not (directory / NETWORK).exists()
    without = ", without its network" if lacks else ""
    print(f"{directory} holds this run already{without}; overwrite makes it again.", flush=True)
    return directory


def look(directory: Path, config: Config, store: checkpoint.Store | None = None) -> Status:
    """What the directory holds for this run; another run is refused.

    With the lock of its `store`, which is not left beside a run that needs none.
    """
    found = status(directory, config)
    if found == "other":
        if store and read_identity(directory) is None:
            store.discard()
        raise ConfigError(
            f"{directory} holds a run of another configuration or code: "
            f"choose another directory, or overwrite it."
        )
    return found


def run(
    config: Config, out: Path | str | None = None, *, overwrite: bool = False, progress: bool = True
) -> Path:
    """Train, log into the directory `out`, and return it.

    A finished run is kept, and an unfinished one goes on from its checkpoint, unless `overwrite`.
    """
    directory = directory_for(config, out)
    found = "new" if overwrite else look(directory, config)
    if found == "finished" and not directory_of(directory).exists():
        return _kept(config, directory)
    find_device(config)  # what can't be run here is refused before anything is touched,
    _ = config.rule  # an algorithm of one's own without its function too
    try:
        if found != "finished":
            print(check_resources(config, directory))
        directory.mkdir(parents=True, exist_ok=True)
        with checkpoint.Store(directory, identity(config)) as store:
            # Whoever had the lock before may have left another run here, or finished this one; or
            # it was killed at its end.
            if not overwrite and look(directory, config, store) == "finished":
                store.discard()
                return _kept(config, directory)
            store.claim()
            (directory / RUN).unlink(missing_ok=True)  # from here on not finished
            if overwrite:
                store.clear()
                for name in (*LOGS.values(), NETWORK, HEALTH):
                    (directory / name).unlink(missing_ok=True)
            session = Session(config, directory, store)
            bar = frames_bar(config, progress, session.trainer.frame)
            curve = live.growing(directory, config.frames, progress)
            with Stop() as stop, bar, curve as draw:
                session.work(stop, bar, draw)
            session.finish()
    except NotFiniteError as error:
        raise ConfigError(
            f"Learning has run away: {error}. The last good checkpoint of {directory} is kept; "
            f"{MAY_HELP}."
        ) from None
    except ActionError as error:
        raise ConfigError(f"{error} The last checkpoint of {directory} is kept.") from None
    except OSError as error:
        raise ConfigError(
            f"Writing to {directory} failed: {error.strerror or error}. What was written before "
            f"is kept; once it is mended, the same call goes on."
        ) from None
    return directory
