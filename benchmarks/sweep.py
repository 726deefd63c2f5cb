"""The same eight runs by `dvc repro`, one after another, and by a sweep over all cores."""

import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from qe.run import LOGS
from tests.copies import Copy, small

FRAMES = 20_000


def copy_with_eight_runs(where: Path) -> Copy:
    copy = small(where)
    settings = {"frames": FRAMES}
    copy.set("minatar", value={"games": [], "seeds": [0], "settings": settings})
    copy.set("sweeps", value={
        "games": ["Breakout", "SpaceInvaders"], "seeds": [0, 1], "temperature": [],
        "lam": [0.0, 1.0],
    })  # fmt: skip
    copy.call("dvc", "repro", "code", "learning")
    return copy


def logs(copy: Copy) -> dict[str, bytes]:
    root = copy.path / "results" / "sweeps"
    found = (p for name in LOGS.values() for p in root.rglob(name))
    return {str(p.relative_to(root)): p.read_bytes() for p in found}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        serial, parallel = (copy_with_eight_runs(Path(folder, name)) for name in ("a", "b"))
        seconds = {}
        for name, copy, words in (
            ("dvc repro", serial, ["dvc", "repro", "lam"]),
            ("sweep", parallel, [sys.executable, "-m", "qe", "sweep", "lam"]),
        ):
            start = time.perf_counter()
            subprocess.run(words, cwd=copy.path, env=copy.env, check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            seconds[name] = time.perf_counter() - start
        assert len(logs(serial)) == 24 and logs(serial) == logs(parallel)
        assert not any("lam@" in stage for stage in serial.stale() | parallel.stale())
        shutil.rmtree(folder, ignore_errors=True)
    ratio = seconds["sweep"] / seconds["dvc repro"]
    print(f"8 runs of {FRAMES:,} frames: dvc repro {seconds['dvc repro']:.0f} s, "
          f"sweep {seconds['sweep']:.0f} s, ratio {ratio:.2f}; the logs are the same.")  # fmt: skip


if __name__ == "__main__":
    main()
