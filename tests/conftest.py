import json
import re
import shutil
import signal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from qe import RESULTS, ROOT
from qe.runs.experiments import Run, declared, read_params
from qe.runs.records import LOGS
from qe.runs.status import checksums
from qe.selectors import ALGORITHMS

# A shell that starts the tests in the background has Ctrl-C ignored, and processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


def sign(run: Run) -> None:
    """A `run.json` of the run that lists its logs; only for tests of what reads logs."""
    seed = run.config.seed
    took = {
        "frames": 8000, "episodes": 160, "seconds": 60.0, "steps_per_second": 133.3,
        "memory_gb": 0.5, "machine": {"cpu": "a processor"}, "steps": 8000,
        "commit": "0123456789" * 4 + "+" if seed % 2 else None,
        "fingerprint": run.config.fingerprint(), "code": "",
        "config": run.config.model_dump(mode="json"),
        "files": checksums(run.out, list(LOGS.values())),
    }  # fmt: skip
    (run.out / "run.json").write_text(json.dumps(took))


def write_run(run: Run, level: float) -> None:
    """Logs of a run that improves up to `level`."""
    rng = np.random.default_rng(run.config.seed)
    n = 160
    frames = np.arange(1, n + 1) * 50
    returns = np.round(level * np.arange(n) / n + rng.normal(0, 1, n), 3)
    run.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(
        {"episode": range(1, n + 1), "frame": frames, "step": frames, "return": returns}
    ).assign(length=50).to_csv(run.out / "episodes.csv", index=False)
    pd.DataFrame(
        {"frame": [4000, 8000], "step": [4000, 8000], "number": 1, "return": level}
    ).to_csv(run.out / "evaluations.csv", index=False)
    pd.DataFrame({"frame": [4000, 8000], "agreement": 0.9}).to_csv(
        run.out / "diagnostics.csv", index=False
    )
    sign(run)


GAMES = ["Breakout", "SpaceInvaders"]
EXPERIMENTS = {
    "algorithms": {algorithm: {} for algorithm in ALGORITHMS},
    "grids": {
        "minatar": {
            "suite": "minatar", "games": GAMES, "seeds": 3, "settings": {"frames": 8000},
        },
        "atari": {
            "suite": "atari", "games": GAMES, "seeds": 2,
            "settings": {"frames": 8000, "profile": "reduced"},
        },
    },
    "controls": {
        "lambda": {
            "suite": "minatar", "games": GAMES, "seeds": 2, "settings": {"frames": 8000},
            "variants": ["ucb-lam=0", "ucb-lam=1"],
        },
    },
    "shown": ["minatar", "atari"],
}  # fmt: skip


def declared_in(root: Path) -> list[Run]:
    return [run._replace(out=root / run.out) for run in declared(read_params(root / "params.yaml"))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with a small params.yaml and runs of all that it declares."""
    shutil.copytree(RESULTS / "reference", tmp_path / "results" / "reference")
    shutil.copy(ROOT / "claims.yaml", tmp_path)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(EXPERIMENTS, sort_keys=False))
    for run in declared_in(tmp_path):
        write_run(run, 5.0 + list(ALGORITHMS).index(run.config.algorithm))
    return tmp_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first, so that the other workers have something to do meanwhile."""
    items.sort(key=lambda item: not re.search("test_pipeline|test_slurm|small_folder", item.nodeid))
