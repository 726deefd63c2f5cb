import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from qe import RESULTS, chain
from qe.config import ALGORITHMS


def write_run(directory: Path, level: float, seed: int, config: dict) -> None:
    """Logs of a run that improves up to `level`; only for tests of what reads logs."""
    rng = np.random.default_rng(seed)
    n = 160
    frames = np.arange(1, n + 1) * 50
    returns = np.round(level * np.arange(n) / n + rng.normal(0, 1, n), 3)
    directory.mkdir(parents=True)
    pd.DataFrame(
        {"episode": range(1, n + 1), "frame": frames, "step": frames, "return": returns}
    ).assign(length=50).to_csv(directory / "episodes.csv", index=False)
    pd.DataFrame({"frame": [4000, 8000], "step": [4000, 8000], "game": 1, "return": level}).to_csv(
        directory / "evaluations.csv", index=False
    )
    pd.DataFrame({"frame": [4000, 8000], "agreement": 0.9}).to_csv(
        directory / "diagnostics.csv", index=False
    )
    pd.DataFrame({
        "seconds": [30.0, 60.0], "frame": [4000, 8000], "steps_per_second": 133.3,
        "memory_gb": 0.5, "checkpoint_seconds": 0.1,
    }).to_csv(directory / "health.csv", index=False)  # fmt: skip
    commit = "0123456789" * 4 + "+" if seed % 2 else None
    took = {
        "frames": 8000, "episodes": n, "seconds": 60.0, "steps_per_second": 133.3,
        "memory_gb": 0.5, "machine": {"cpu": "a processor"}, "commit": commit,
        "updates": 2000, "checkpoints": 2, "checkpoint_share": 0.01,
    }  # fmt: skip
    config = {"profile": "default", "frames": 8000, "seed": int(directory.name)} | config
    (directory / "run.json").write_text(json.dumps(took | {"config": config}))


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A small results folder: two suites, five algorithms, two seeds, sweeps and a search."""
    root = tmp_path / "results"
    for name in ("paper", "published"):
        shutil.copytree(RESULTS / name, root / name)
    config = {"suite": "minatar", "lam": 0.1, "temperature": 1.0}
    reduced = config | {"suite": "atari", "profile": "reduced"}
    for kind in (config, reduced):
        write_run(root / "ensembles" / kind["suite"] / "Breakout" / "ucb" / "0", 5.0, 7, kind)
    for game in ("Breakout", "SpaceInvaders"):
        for seed in (0, 1):
            for i, algorithm in enumerate(ALGORITHMS):
                for kind in (config, reduced):
                    directory = root / "runs" / kind["suite"] / game / algorithm / str(seed)
                    write_run(directory, 5.0 + i, seed + 10 * i, kind)
            for kind in (config, reduced):
                directory = root / "search" / kind["suite"] / game / "rate_3e-4" / str(seed)
                write_run(directory, 5.0, 7, kind)
            for parameter, values in (("temperature", (0.1, 10.0)), ("lam", (0.0, 1.0))):
                for value in values:
                    directory = root / "sweeps" / parameter / "minatar" / game / str(value)
                    write_run(directory / str(seed), 5.0 + value, seed, config)
        write_run(root / "long" / "minatar" / game / "double_dqn" / "0", 5.0, 7, config)
    write_run(root / "hour" / "atari" / "Pong" / "ucb" / "0", 5.0, 7, config | {"suite": "atari"})
    for group in ("freeway_epsilon", "freeway_replay"):
        write_run(root / group / "atari" / "Breakout" / "double_dqn" / "0", 5.0, 7, reduced)
    for i, algorithm in enumerate(ALGORITHMS):
        rows = [
            chain.Search(n, seed, n + seed + i, True, "test") for n in (4, 8) for seed in (0, 1)
        ]
        (root / "chain").mkdir(exist_ok=True)
        chain.write(root / "chain" / f"{algorithm}.csv", rows)
    return root


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first, so that the other worker has something to do meanwhile."""
    items.sort(key=lambda item: "test_the_pipeline" not in item.name)
