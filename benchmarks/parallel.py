"""The same eight runs by `dvc repro`, one at a time and on all cores."""

import subprocess
import tempfile
import time
from pathlib import Path

from qe.runs.records import LOGS
from tests.copies import Copy, small

FRAMES = 5_000


def copy_with_eight_runs(where: Path) -> Copy:
    copy = small(where)
    grid = {
        "suite": "minatar", "games": ["Breakout", "SpaceInvaders"], "seeds": 2,
        "variants": ["ensemble_voting", "ucb"], "settings": {"frames": FRAMES},
    }  # fmt: skip
    copy.set("grids", value={"minatar": grid})
    return copy


def logs(copy: Copy) -> dict[str, bytes]:
    root = copy.path / "results" / "runs"
    found = (p for name in LOGS.values() for p in root.rglob(name))
    return {str(p.relative_to(root)): p.read_bytes() for p in found}


def main() -> None:
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        copies = {}
        for name, words in (("one at a time", "--workers 1"), ("on all cores", "")):
            copy = copies[name] = copy_with_eight_runs(Path(folder, name.replace(" ", "_")))
            start = time.perf_counter()
            env = copy.env | {"QE_MAKE": words}
            subprocess.run(["dvc", "repro", "grids@minatar"], cwd=copy.path, check=True, env=env,
                           stdout=subprocess.DEVNULL)  # fmt: skip
            seconds[name] = time.perf_counter() - start
        first, second = map(logs, copies.values())
        assert len(first) == 24 and first == second
    one, all_cores = seconds.values()
    print(f"8 runs of {FRAMES:,} frames by dvc repro: {one:.0f} s one at a time, {all_cores:.0f} s "
          f"on all cores, ratio {all_cores / one:.2f}; the logs are the same.")  # fmt: skip


if __name__ == "__main__":
    main()
