"""Making the runs of an experiment: on every core of one machine, or as jobs of a cluster.

`make` is the loop around both. It hands the runs that are not finished to a place (`Local` here,
`Slurm` in `qe.runs.cluster`), asks it now and then what has ended, and shows a table. Nothing that
matters is in its memory: killed and called again, it finds finished runs finished, and every other
one goes on from its checkpoint.
"""

import fcntl
import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import ExitStack
from typing import IO, NamedTuple, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from qe.config import ConfigError
from qe.runs.estimate import duration, measure, seconds_to, shape
from qe.runs.experiments import EXECUTED, Run
from qe.runs.signals import PARENT, Stop

STAGGER = 1.0  # seconds between two starts: kernels that start together fail now and then
POLL = 0.2
LOOK = 2.0  # seconds between two looks at the runs' logs
ROWS = 30  # of the table, at most
AROUND = 10.0  # seconds that a notebook takes beside its run: imports, kernel, figures
STOPPED = (130, 143, -2, -15)  # exit codes of a process that was asked to stop


class Ended(NamedTuple):
    run: Run
    code: int


class Place(Protocol):
    """Where runs are made."""

    def submit(self, runs: list[Run]) -> None: ...
    def poll(self) -> list[Ended]:
        """What has ended since; returns at once."""
        ...

    def running(self) -> list[Run]: ...
    def stop(self) -> str:
        """Have everything stop that should, and say what happens to the rest."""
        ...


def gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name]
    import torch

    return [str(i) for i in range(torch.cuda.device_count())]


class Local:
    """Processes on this machine, each with one run."""

    def __init__(self, workers: int, retries: int) -> None:
        self.retries = retries
        self._queue: deque[Run] = deque()
        self._free = list(range(workers))[::-1]
        self._processes: dict[int, tuple[Run, subprocess.Popen[bytes]]] = {}
        self._tries: dict[str, int] = {}
        self._last_start = 0.0
        self._gpus = gpus()

    def submit(self, runs: list[Run]) -> None:
        self._queue.extend(runs)

    def poll(self) -> list[Ended]:
        ended = []
        for slot, (run, process) in list(self._processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self._processes[slot]
            self._free.append(slot)
            again = self._tries[run.name] <= self.retries and code not in (0, *STOPPED)
            if again:
                self._queue.append(run)
            else:
                ended.append(Ended(run, code))
        if self._queue and self._free and time.monotonic() >= self._last_start + STAGGER:
            self._start(self._queue.popleft(), self._free.pop())
        return ended

    def _start(self, run: Run, slot: int) -> None:
        self._last_start = time.monotonic()
        self._tries[run.name] = self._tries.get(run.name, 0) + 1
        env = os.environ | {PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1"}
        if self._gpus:
            env["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "qe", "execute", *run.key],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which passes it on
            )  # fmt: skip
        self._processes[slot] = run, process

    def busy(self) -> bool:
        return bool(self._queue or self._processes)

    def running(self) -> list[Run]:
        return [run for run, _ in self._processes.values()]

    def stop(self) -> str:
        """Ask all processes to write a checkpoint, and wait for them."""
        self._queue.clear()
        for _, process in self._processes.values():
            process.terminate()
        for _, process in self._processes.values():
            process.wait()
        return "unfinished runs keep their checkpoints: the same command goes on with them"


class Seen(NamedTuple):
    """A run when it was last looked at."""

    frame: int
    moment: float
    rest: float  # predicted seconds to its end
    speed: float  # frames a second


class Clock:
    """How far the runs are and what is left: predictions, corrected by what is seen."""

    def __init__(self, runs: list[Run], workers: int) -> None:
        self.workers = workers
        shapes = {shape(run.config): run.config for run in runs}
        self._speeds = {key: measure(config, seconds=1.0) for key, config in shapes.items()}
        self._predicted = self._taken = 0.0  # seconds of work that was seen
        self.seen = {run.name: self._look(run) for run in runs}

    def _look(self, run: Run) -> Seen:
        config, speed = run.config, self._speeds[shape(run.config)]
        frame = min(run.frame(), config.frames)
        total = seconds_to(config, speed, config.steps)
        done = seconds_to(config, speed, frame * config.steps // config.frames)
        return Seen(frame, time.monotonic(), total - done, 0.0)

    def look(self, run: Run) -> None:
        """Take note of how far a run has come."""
        before, now = self.seen[run.name], self._look(run)
        if now.frame > before.frame and before.frame:  # its first frames came with its start
            self._predicted += before.rest - now.rest
            self._taken += now.moment - before.moment
            speed = (now.frame - before.frame) / (now.moment - before.moment)
            now = now._replace(speed=speed)
        elif before.frame:
            return  # no news
        self.seen[run.name] = now

    def left(self, run: Run) -> float:
        """Seconds to the end of a run."""
        factor = self._taken / self._predicted if self._predicted > 1 else 1.0
        seen = self.seen[run.name]
        return factor * seen.rest + (0 if seen.frame else AROUND)

    def left_of_all(self, runs: Iterable[Run]) -> float:
        rest = [self.left(run) for run in runs]
        return max([sum(rest) / self.workers, *rest], default=0.0)


class Making:
    """How far the runs are, as the table shows it."""

    def __init__(self, runs: list[Run], place: Place, clock: Clock) -> None:
        self.runs, self.place, self.clock = runs, place, clock
        self.pending = {run.name: run for run in runs}  # neither finished nor given up
        self.failed: list[Run] = []
        self._looked = 0.0
        place.submit(sorted(runs, key=self._order))

    def _order(self, run: Run) -> tuple[bool, int, float]:
        """What was begun before the rest; then seed by seed, in each the longest first."""
        begun = self.clock.seen[run.name].frame > 0
        return not begun, run.config.seed, -self.clock.left(run)

    def step(self) -> None:
        for run, code in self.place.poll():
            if code in STOPPED:  # by someone else: it goes on. After our own stop nothing starts.
                self.place.submit([run])
                continue
            del self.pending[run.name]
            if code or not run.finished():
                self.failed.append(run)
        if time.monotonic() >= self._looked + LOOK:
            self._looked = time.monotonic()
            for run in self.place.running():
                self.clock.look(run)

    def line(self) -> str:
        running = len(self.place.running())
        finished = len(self.runs) - len(self.pending) - len(self.failed)
        return (
            f"{finished} of {len(self.runs)} finished, "
            f"{running} running, {len(self.pending) - running} waiting, "
            f"{len(self.failed)} failed; "
            f"{duration(self.clock.left_of_all(self.pending.values()))} left"
        )

    def table(self) -> Group:
        table = Table(box=None, pad_edge=False)
        for title in ("run", "", "frames", "frames/s", "left"):
            table.add_column(title, justify="left" if title in ("run", "") else "right")
        for run in sorted(self.place.running(), key=lambda run: run.name)[:ROWS]:
            seen, total = self.clock.seen[run.name], run.config.frames
            table.add_row(
                run.name,
                ProgressBar(total, seen.frame, width=20),
                f"{seen.frame:,} of {total:,}",
                f"{seen.speed:,.0f}" if seen.speed else "",
                duration(self.clock.left(run)),
            )
        failed = [Text(f"{run.name} failed: {run.log}", style="red") for run in self.failed]
        return Group(table, *failed, Text(self.line()))


def hold(experiment: str, patience: float = 60.0) -> IO[str]:
    """The lock that one maker of an experiment has; released with the process, whatever ends it.

    A maker whose `dvc repro` was killed is still writing its checkpoints: that is waited for.
    """
    path = EXECUTED / f"{experiment}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    held = f"Another process makes {experiment} already (it holds {path})."
    deadline = time.monotonic() + patience
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise ConfigError(held) from None
        if not told:
            told = True
            print(
                f"{held} Waiting up to {patience:.0f} s for its end.", file=sys.stderr, flush=True
            )
        time.sleep(POLL)


def make(runs: list[Run], place: Place, clock: Clock) -> int:
    """Makes the runs, and returns how many of them it could not."""
    console = Console(stderr=True)
    live = console.is_terminal
    state = Making(runs, place, clock)
    told = 0.0
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        shown = stack.enter_context(Live(console=console, auto_refresh=False)) if live else None
        while state.pending and not stop.signal:
            state.step()
            if shown and time.monotonic() >= told + 1:
                told = time.monotonic()
                shown.update(state.table(), refresh=True)
            elif not shown and time.monotonic() >= told + 60:
                told = time.monotonic()
                print(state.line(), file=sys.stderr, flush=True)
            time.sleep(POLL)
        word = ""
        if stop.signal:
            print("Stopping.", file=sys.stderr)
            word = f"Stopped; {place.stop()}. "
            state.step()
    print(word + state.line().rsplit(";")[0] + ".", file=sys.stderr)
    for run in state.failed:
        print(f"{run.name} failed: see {run.log} and {run.executed}.", file=sys.stderr)
    return len(state.failed) + len(state.pending)
