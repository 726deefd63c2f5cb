"""Kill runs at random moments, go on, and compare with runs that were never interrupted.

`make torture` runs all of it; `tests/test_resume.py` a short version.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from qe.config import ALGORITHMS

FILES = ("episodes.csv", "evaluations.csv", "diagnostics.csv", "network.safetensors")
# Some seconds of training each, with everything in it that a checkpoint has to hold: sticky
# actions (the emulator's generator), lives, masks, evaluations, a replay that wraps around.
RUNS = {
    "minatar": "--suite minatar --game Seaquest --frames 8000 --hidden 32 --replay_size 3000",
    "atari": "--suite atari --game Breakout --frames 10000 --sticky 0.25 --max_frames 3000"
    " --hidden 64 --replay_size 1500",
}


def command(suite: str, algorithm: str, out: Path) -> list[str]:
    words = f"run --profile smoke {RUNS[suite]} --algorithm {algorithm} --out {out}"
    words += " --checkpoint_every 0.05 --keep_network true"
    if algorithm != "double_dqn":
        words += " --mask_probability 0.5"
    return [sys.executable, "-m", "qe", *words.split()]


def start(suite: str, algorithm: str, out: Path) -> subprocess.Popen:
    return subprocess.Popen(
        command(suite, algorithm, out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def writing(out: Path) -> bool:
    """Whether a checkpoint is being written at this moment."""
    return any(Path(f"{out}.checkpoint").glob("*.tmp"))


def kill_once(suite: str, algorithm: str, out: Path, during_checkpoint: bool, rng) -> bool:
    """Start or go on with the run and kill it; False if it finished before."""
    began = time.time()
    process = start(suite, algorithm, out)
    log = out / "episodes.csv"
    while process.poll() is None and not (log.exists() and log.stat().st_mtime > began):
        time.sleep(0.005)  # until it is at work
    deadline = time.monotonic() + rng.uniform(0.1, 2.5)
    while process.poll() is None:
        if writing(out) if during_checkpoint else time.monotonic() > deadline:
            process.send_signal(signal.SIGKILL)
            process.wait()
            return True
    assert process.returncode == 0, process.returncode
    return False


def torture(suite: str, algorithm: str, kills: int, where: Path, rng: random.Random) -> int:
    """How often the run was killed; raises if its files differ from the uninterrupted run's."""
    whole, broken = where / "whole", where / "broken"
    assert start(suite, algorithm, whole).wait() == 0
    killed = 0
    for i in range(kills):
        if not kill_once(suite, algorithm, broken, during_checkpoint=i % 2 == 1, rng=rng):
            break
        killed += 1
    assert start(suite, algorithm, broken).wait() == 0
    for name in FILES:
        same = (whole / name).read_bytes() == (broken / name).read_bytes()
        assert same, f"{suite} {algorithm}: {name} differs after {killed} kills"
    assert not Path(f"{broken}.checkpoint").exists()
    return killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=4, help="per run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suites", nargs="*", choices=RUNS, default=list(RUNS))
    args = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = random.Random(args.seed)
    total = 0
    for suite in args.suites:
        for algorithm in ALGORITHMS:
            with TemporaryDirectory() as where:
                killed = torture(suite, algorithm, args.kills, Path(where), rng)
            total += killed
            print(f"{suite:8} {algorithm:17} killed {killed} times: identical", flush=True)
    print(
        f"{total} kills, {len(args.suites) * len(ALGORITHMS)} runs: all logs and weights identical."
    )


if __name__ == "__main__":
    main()
