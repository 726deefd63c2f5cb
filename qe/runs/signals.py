"""Stopping in good order: on Ctrl-C, on SIGTERM, and when the parent process has ended."""

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import psutil

from qe.config import ConfigError, short

# In the environment of a run's process:
PARENT = "QE_PARENT"  # the process that started it; when that ends, the run stops


def die_with_parent(parent: int | None = None) -> None:
    """Have this process asked to stop when its parent ends (Linux only).

    The parent may have ended already: that is noticed if its number is given, here or in `PARENT`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    said = os.environ.pop(PARENT, str(os.getppid()))
    if not said.isdecimal() or len(said) > 20:
        raise ConfigError(f"{PARENT} must be a process number, not {short(said)}.")
    known = parent or int(said)
    if known != os.getppid():
        raise ConfigError("The process that started this run has ended.")


class Stopped(KeyboardInterrupt):
    """Asked to stop from outside; the notebook's run has written a checkpoint."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"Stopped by {signal.Signals(number).name}; the same call goes on.")


@contextmanager
def passing_signals_on() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM ask the kernel, which is a child, to write a checkpoint and stop."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        for child in psutil.Process().children():
            child.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except ConfigError:
        if asked:
            raise Stopped(asked[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


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


def import_games(suite: str) -> None:
    """Import what the suite's games need; Ctrl-C and SIGTERM wait for its end.

    MinAtar imports seaborn, which takes a second, and catches whatever is raised meanwhile.
    """
    if suite != "minatar" or "minatar" in sys.modules:
        return
    with Stop() as stop:
        import_module("minatar")
    if stop.signal:
        signal.raise_signal(stop.signal)


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
