"""Many runs at once: every core of one machine, or the jobs of a cluster.

`sweep` is the loop around both: it hands the stale runs to a place (`Local` here, `Slurm` in
`qe.cluster`), asks it now and then what has ended, has DVC record what is finished, and shows a
table. Nothing that matters is in its memory: killed and called again, it asks DVC, finds finished
runs finished, and every other one goes on from its checkpoint.
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

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from qe.config import ConfigError
from qe.estimate import Speed, duration, measure, seconds_to, shape
from qe.notebooks import EXECUTED, PARENT
from qe.pipeline import Recorder, Run, environment
from qe.run import Stop

STAGGER = 1.0  # seconds between two starts: kernels that start together fail now and then
POLL = 0.2
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
    """Processes on this machine, each with one run: its command in dvc.yaml, as it stands."""

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
            again = self._tries[run.stage] <= self.retries and code not in (0, *STOPPED)
            if again:
                self._queue.append(run)
            else:
                ended.append(Ended(run, code))
        if self._queue and self._free and time.monotonic() >= self._last_start + STAGGER:
            self._start(self._queue.popleft(), self._free.pop())
        return ended

    def _start(self, run: Run, slot: int) -> None:
        self._last_start = time.monotonic()
        self._tries[run.stage] = self._tries.get(run.stage, 0) + 1
        env = environment() | {PARENT: str(os.getpid()), "OMP_NUM_THREADS": "1"}
        if self._gpus:
            env["CUDA_VISIBLE_DEVICES"] = self._gpus[slot % len(self._gpus)]
        run.log.parent.mkdir(parents=True, exist_ok=True)
        with run.log.open("ab") as log:
            process = subprocess.Popen(
                run.command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is for the sweep, which passes it on
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


class Clock:
    """Predictions, corrected by what the sweep has seen itself."""

    def __init__(self, runs: Iterable[Run], workers: int) -> None:
        self.workers = workers
        self.speeds: dict[object, Speed] = {}
        for run in runs:
            if shape(run.config) not in self.speeds:
                self.speeds[shape(run.config)] = measure(run.config, seconds=1.0)
        self._predicted = 0.0  # of the work done since the start
        self._taken = 0.0
        self._seen: dict[str, tuple[float, float, int]] = {}  # predicted, time, frame

    def predicted(self, run: Run, frame: int | None = None) -> float:
        """Seconds to the frame, or to the end."""
        config = run.config
        steps = config.steps if frame is None else frame * config.steps // config.frames
        return seconds_to(config, self.speeds[shape(config)], min(steps, config.steps))

    def see(self, run: Run) -> float:
        """Takes note of how far a run is, and returns its speed in frames a second."""
        now, frame = time.monotonic(), run.frame()
        done = self.predicted(run, frame)
        before, since, old = self._seen.get(run.stage, (done, now, frame))
        if frame > old and now > since:
            self._predicted += done - before
            self._taken += now - since
            self._seen[run.stage] = done, now, frame
            return (frame - old) / (now - since)
        self._seen.setdefault(run.stage, (done, now, frame))
        return 0.0

    @property
    def factor(self) -> float:
        """How much slower than predicted it goes."""
        return self._taken / self._predicted if self._predicted > 1 else 1.0

    def left(self, run: Run) -> float:
        frame = run.frame()
        rest = self.factor * (self.predicted(run) - self.predicted(run, frame))
        return rest if frame else rest + AROUND

    def left_of_all(self, running: list[Run], waiting: list[Run]) -> float:
        rest = [self.left(run) for run in [*running, *waiting]]
        return max([sum(rest) / self.workers, *rest], default=0.0)


class Sweep:
    """The state of a sweep, as its table shows it."""

    def __init__(self, runs: list[Run], place: Place, clock: Clock) -> None:
        self.runs, self.place, self.clock = runs, place, clock
        self.recorder = Recorder()
        self.pending = {run.stage: run for run in runs}  # neither finished nor given up
        self.failed: list[Run] = []
        self.speeds: dict[str, float] = {}
        self._looked = 0.0

    def step(self) -> None:
        for ended in self.place.poll():
            run = ended.run
            if ended.code in STOPPED:
                continue
            del self.pending[run.stage]
            if ended.code == 0 and run.finished():
                self.recorder.add(run)
            else:
                self.failed.append(run)
        self.recorder.poll()
        if time.monotonic() >= self._looked + 2:
            self._looked = time.monotonic()
            for run in self.place.running():
                seen = self.clock.see(run)
                self.speeds[run.stage] = seen or self.speeds.get(run.stage, 0.0)

    @property
    def done(self) -> bool:
        return not self.pending and not self.recorder.busy

    def line(self) -> str:
        running = self.place.running()
        names = {run.stage for run in running}
        waiting = [run for run in self.pending.values() if run.stage not in names]
        left = duration(self.clock.left_of_all(running, waiting))
        finished = len(self.runs) - len(self.pending) - len(self.failed)
        return (
            f"{finished} of {len(self.runs)} finished, {len(self.recorder.recorded)} recorded, "
            f"{len(running)} running, {len(waiting)} waiting, {len(self.failed)} failed; "
            f"{left} left"
        )

    def table(self) -> Table:
        table = Table(box=None, pad_edge=False, caption=self.line(), caption_justify="left")
        for title in ("run", "", "frames", "frames/s", "left"):
            table.add_column(title, justify="left" if title in ("run", "") else "right")
        for run in sorted(self.place.running(), key=lambda run: run.stage)[:40]:
            frame, total = run.frame(), run.config.frames
            speed = self.speeds.get(run.stage, 0.0)
            table.add_row(
                run.stage,
                ProgressBar(total, min(frame, total), width=20),
                f"{frame:,} of {total:,}",
                f"{speed:,.0f}" if speed else "",
                duration(self.clock.left(run)),
            )
        for run in self.failed:
            table.add_row(Text(f"{run.stage} failed", style="red"), "", str(run.log), "", "")
        return table


def hold() -> IO[str]:
    """The lock that only one sweep has; released with the process, whatever ends it."""
    path = EXECUTED / "sweep.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(f"Another sweep is at work in this folder (it holds {path}).") from None
    return lock


def sweep(runs: list[Run], place: Place, clock: Clock) -> int:
    """Makes the runs, and returns how many of them it could not."""
    console = Console(stderr=True)
    live = console.is_terminal
    state = Sweep(runs, place, clock)
    longest_first = sorted(runs, key=clock.predicted, reverse=True)
    place.submit([run for run in longest_first if not run.finished()])
    for run in runs:
        if run.finished():  # made before, but not recorded
            del state.pending[run.stage]
            state.recorder.add(run)
    told = 0.0
    with ExitStack() as stack:
        stop = stack.enter_context(Stop())
        shown = stack.enter_context(Live(console=console, auto_refresh=False)) if live else None
        while not state.done and not stop.signal:
            state.step()
            if shown and time.monotonic() >= told + 0.5:
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
        while state.recorder.busy:
            state.recorder.poll()
            time.sleep(POLL)
    return report(state, word)


def report(state: Sweep, word: str) -> int:
    print(word + state.line().rsplit(";")[0] + ".", file=sys.stderr)
    for run in state.failed:
        print(f"{run.stage} failed: see {run.log} and {run.notebook}.", file=sys.stderr)
    for run in state.recorder.refused:
        print(f"{run.stage} was not recorded: see {state.recorder.log}.", file=sys.stderr)
    if not state.pending and not state.failed and not state.recorder.refused:
        print("`dvc repro` (or `make repro`) now rebuilds the tables and figures.", file=sys.stderr)
    return len(state.failed) + len(state.recorder.refused) + len(state.pending)
