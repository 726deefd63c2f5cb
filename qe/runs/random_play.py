"""What random play scores: the zero of normalized scores, `results/reference/random`."""

import csv
import statistics
from pathlib import Path

import numpy as np

from qe import envs
from qe.config import Config, ConfigError, configure
from qe.runs.checkpoint import write_atomically
from qe.runs.progress import progress_bar
from qe.runs.signals import import_games

FIELDS = ("game", "games", "mean", "sd")


def random_returns(config: Config, games: int) -> list[float]:
    """The returns of that many full games, every action uniformly random."""
    played, acted = np.random.SeedSequence(config.seed).spawn(2)
    env, rng = envs.make(config, np.random.default_rng(played)), np.random.default_rng(acted)
    env.reset()
    with progress_bar(total=games, desc=config.game, unit=" games") as bar:
        while len(env.finished) < games:
            before = len(env.finished)
            step = env.step(int(rng.integers(env.n_actions)))
            bar.update(len(env.finished) - before)
            if step.terminal or step.truncated:
                env.reset()
    return [game.return_ for game in env.finished[:games]]


def _read(path: Path) -> dict[str, tuple[str, ...]]:
    """The rows that were measured before, by game."""
    try:
        with path.open(newline="") as file:
            rows = [tuple(row[name] for name in FIELDS) for row in csv.DictReader(file)]
    except (ValueError, KeyError, csv.Error):
        rows = [("",)]
    if not all(all(row) for row in rows):  # an empty value, or a row that is too short
        raise ConfigError(f"{path} is no table of random play: move it away, or choose another.")
    return {row[0]: row for row in rows}


def measure(suite: str, names: list[str], games: int, out: Path) -> Path:
    """Plays the games, and writes a row for each into `out`; rows of other games stay."""
    if games < 2:
        raise ConfigError(f"games must be at least 2, not {games}.")
    configs = [configure(suite=suite, game=name) for name in names]
    path = out / f"{suite}.csv"
    rows = _read(path) if path.exists() else {}
    import_games(suite)
    for config in configs:
        returns = random_returns(config, games)
        mean, sd = statistics.fmean(returns), statistics.stdev(returns)
        rows[config.game] = (config.game, str(games), f"{mean:.4f}", f"{sd:.4f}")
        lines = [FIELDS, *(rows[name] for name in sorted(rows))]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(",".join(line) + "\n" for line in lines))
    return path
