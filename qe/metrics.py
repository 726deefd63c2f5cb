"""What the logs say: means over 100 games, curves on a common grid.

Reads only the logs in a directory of runs, laid out as `<suite>/<game>/<algorithm>/<seed>`.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

WINDOW = 100  # games, as in the paper's tables
Floats = NDArray[np.float64]


def rolling_mean(returns: ArrayLike, window: int = WINDOW) -> Floats:
    """After each game, the mean of the last `window` games, or of all if there are fewer."""
    series = pd.Series(np.asarray(returns, dtype=float))
    return series.rolling(window, min_periods=1).mean().to_numpy()


def on_grid(frames: ArrayLike, values: ArrayLike, grid: ArrayLike) -> Floats:
    """The newest value at each point of the grid; NaN before the first."""
    at = np.searchsorted(np.asarray(frames), np.asarray(grid), side="right") - 1
    return np.where(at >= 0, np.asarray(values, dtype=float)[np.maximum(at, 0)], np.nan)


def read_log(directory: Path | str, name: str = "episodes") -> pd.DataFrame:
    """One of a run's logs."""
    return pd.read_csv(Path(directory) / f"{name}.csv")


def load_runs(root: Path | str, suite: str, name: str = "episodes") -> pd.DataFrame:
    """One log of all finished runs of a suite, with columns for game, algorithm and seed."""
    parts = []
    for done in sorted(Path(root, suite).glob("*/*/*/run.json")):
        game, algorithm, seed = done.parent.parts[-3:]
        log = read_log(done.parent, name)
        parts.append(log.assign(game=game, algorithm=algorithm, seed=int(seed)))
    columns: Sequence[str] = ["game", "algorithm", "seed", "frame", "return"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)
