"""Timing: contenders in processes of their own, asked in turn."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from tqdm import tqdm

from qe import ROOT

# What importing qe sets for memory; what is compared has none of it, as its users run it.
HUGE, SMALL = (
    dict.fromkeys(("THP_MEM_ALLOC_ENABLE", "QE_KEEP_MEMORY"), value) for value in ("1", "0")
)


def median_of(work: Callable[[], object], repeats: int) -> float:
    """The median of many calls, in seconds."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


class Worker:
    """A process that makes one contender and times it when asked."""

    def __init__(self, contender: str, env: dict[str, str], **arguments: Any) -> None:
        path = os.pathsep.join([str(ROOT), str(ROOT / ".bench")])
        threads = str(arguments.get("threads", 1))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.measure", contender, json.dumps(arguments)],
            env=os.environ | env | {"PYTHONPATH": path, "OMP_NUM_THREADS": threads},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, repeats: int) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{repeats}\n")
        self.process.stdin.flush()

    def answer(self) -> float:
        assert self.process.stdout
        for line in self.process.stdout:  # what libraries print is not the answer
            if line.startswith("seconds "):
                return float(line.split()[1])
        raise RuntimeError(f"a benchmark's process ended: {self.process.args}")

    def __call__(self, repeats: int) -> float:
        self.ask(repeats)
        return self.answer()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def interleave(workers: dict[str, Worker], rounds: int, repeats: int) -> dict[str, np.ndarray]:
    """Seconds per unit of each, round by round, one process at work at a time."""
    found: dict[str, list[float]] = {name: [] for name in workers}
    for worker in tqdm(workers.values(), desc="warming up", leave=False):
        worker(1)
    for _ in tqdm(range(rounds), desc="rounds", leave=False):
        for name, worker in workers.items():
            found[name].append(worker(repeats))
    for worker in workers.values():
        worker.close()
    return {name: np.array(values) for name, values in found.items()}


def serve() -> None:
    """The other side of `Worker`."""
    from benchmarks import contenders

    made = getattr(contenders, sys.argv[1])(**json.loads(sys.argv[2]))
    for line in sys.stdin:
        repeats = int(line)
        made.work()  # caches belong to whoever was asked before
        start = time.perf_counter()
        for _ in range(repeats):
            made.work()
        seconds = (time.perf_counter() - start) / repeats / made.units
        print(f"seconds {seconds!r}", flush=True)


if __name__ == "__main__":
    serve()
