"""What the logs say. Reads only run logs, laid out as `<suite>/<game>/<algorithm>/<seed>`.

A *score table* has a row per game and a column per algorithm.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from qe.games import AtariGame

SUITES = {"minatar": "MinAtar", "atari": "Atari", "chain": "Chain"}
WINDOW = 100  # games, as in the paper's tables
POINTS = 200  # of a curve's grid
# What the paper asks: is the first better than the second?
PAIRS = (
    ("ensemble_voting", "double_dqn"),
    ("ensemble_voting", "bootstrapped_dqn"),
    ("ucb", "double_dqn"),
    ("ucb", "bootstrapped_dqn"),
    ("ucb", "ensemble_voting"),
    ("ucb_infogain", "ucb"),
)
Floats = NDArray[np.float64]

# --- logs ------------------------------------------------------------------------------------


def read_log(directory: Path | str, name: str = "episodes") -> pd.DataFrame:
    """One of a run's logs."""
    return pd.read_csv(Path(directory) / f"{name}.csv")


def summaries(root: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every finished run below `root`: its directory and its `run.json`."""
    for done in sorted(root.glob("*/*/*/run.json")):
        yield done.parent, json.loads(done.read_text())


def load_runs(root: Path, name: str = "episodes", profile: str | None = None) -> pd.DataFrame:
    """One log of all finished runs below `root`, with columns for game, variant and seed.

    The variant is the algorithm or, in a sweep, the parameter's value. With a `profile`, only
    runs that were made with it.
    """
    parts = []
    for directory, found in summaries(root):
        if profile and found["config"]["profile"] != profile:
            continue
        game, variant, seed = directory.parts[-3:]
        log = read_log(directory, name)
        parts.append(log.assign(game=game, variant=variant, seed=int(seed)))
    if not parts:
        return pd.DataFrame(columns=["game", "variant", "seed", "frame", "return"])
    return pd.concat(parts, ignore_index=True)


def load_costs(root: Path) -> pd.DataFrame:
    """What every finished run below `root` took: a row for each, from its `run.json`."""
    rows = []
    for directory, found in summaries(root):
        game, variant, seed = directory.parts[-3:]
        commit = found["commit"] or "unknown"
        rows.append(
            {
                "game": game,
                "variant": variant,
                "seed": int(seed),
                "frames": found["frames"],
                "games": found["episodes"],
                "minutes": found["seconds"] / 60,
                "steps_per_second": found["steps_per_second"],
                "memory_gb": found["memory_gb"],
                "cpu": found["machine"]["cpu"],
                "commit": commit[:12] + commit[40:],  # with its + if the code was changed
            }
        )
    return pd.DataFrame(rows)


def about(root: Path) -> str:
    """What the finished runs below `root` are, in words that belong below every figure of them."""
    configs = [found["config"] for _, found in summaries(root)]

    def every(name: str) -> list:
        return sorted({config[name] for config in configs})

    reduced = [f"{p} profile" for p in every("profile") if p not in ("default", "paper")]
    frames = " or ".join(f"{n:,}" for n in every("frames"))
    seeds = len(every("seed"))
    parts = [*(SUITES[s] for s in every("suite")), *reduced, f"{frames} frames"]
    return ", ".join([*parts, f"{seeds} seed{'s' if seeds > 1 else ''}"])


def load_sweep(results: Path, suite: str, parameter: str, algorithm: str) -> pd.DataFrame:
    """A sweep of one parameter: its runs and the algorithm's own, by the parameter's value."""
    swept = load_runs(results / "sweeps" / parameter / suite)
    base = load_runs(results / "runs" / suite)
    base = base[(base["variant"] == algorithm) & base["game"].isin(swept["game"].unique())]
    base = base[base["seed"].isin(swept["seed"].unique())]
    parts = [swept]
    for (game, seed), run in base.groupby(["game", "seed"]):
        done = results / "runs" / suite / str(game) / algorithm / str(seed) / "run.json"
        value = json.loads(done.read_text())["config"][parameter]
        parts.append(run.assign(variant=str(value)))
    return pd.concat(parts, ignore_index=True)


def progress(runs: pd.DataFrame) -> pd.DataFrame:
    """How many games a run had, and their mean return in its first and in its last quarter.

    A row per game; columns games, first, last.
    """
    quarter = runs["frame"].max() / 4
    by_game = runs.groupby("game")["return"]
    early, late = runs["frame"] <= quarter, runs["frame"] > 3 * quarter
    return pd.DataFrame(
        {
            "games": by_game.size(),
            "first": runs[early].groupby("game")["return"].mean(),
            "last": runs[late].groupby("game")["return"].mean(),
        }
    )


def frozen_and_training(results: Path, suite: str) -> pd.DataFrame:
    """The mean of all training games, and of all frozen ones, in the last quarter of the runs.

    Columns: game, variant, seed, training, frozen.
    """
    means = {}
    for name, log in (("training", "episodes"), ("frozen", "evaluations")):
        games = load_runs(results / "runs" / suite, log)
        late = games[games["frame"] > 0.75 * games["frame"].max()]
        means[name] = late.groupby(["game", "variant", "seed"])["return"].mean()
    return pd.DataFrame(means).dropna().reset_index()


# --- curves ----------------------------------------------------------------------------------


def rolling_mean(returns: ArrayLike, window: int = WINDOW) -> Floats:
    """After each game, the mean of the last `window` games, or of all if there are fewer."""
    series = pd.Series(np.asarray(returns, dtype=float))
    return series.rolling(window, min_periods=1).mean().to_numpy()


def on_grid(frames: ArrayLike, values: ArrayLike, grid: ArrayLike) -> Floats:
    """The newest value at each point of the grid; NaN before the first."""
    at = np.searchsorted(np.asarray(frames), np.asarray(grid), side="right") - 1
    return np.where(at >= 0, np.asarray(values, dtype=float)[np.maximum(at, 0)], np.nan)


def learning_curves(runs: pd.DataFrame, points: int = POINTS, window: int = WINDOW) -> pd.DataFrame:
    """Every run's mean of `window` games on a grid of frames that all runs share.

    Columns: game, variant, seed, frame, value. Before a run's first game there is no value.
    """
    grid = np.linspace(0, runs["frame"].max(), points + 1)[1:]
    parts = [
        pd.DataFrame(
            {
                "game": game,
                "variant": variant,
                "seed": seed,
                "frame": grid,
                "value": on_grid(run["frame"], rolling_mean(run["return"], window), grid),
            }
        )
        for (game, variant, seed), run in runs.groupby(["game", "variant", "seed"])
    ]
    return pd.concat(parts, ignore_index=True)


def normalized_curves(curves: pd.DataFrame, algorithms: Sequence[str]) -> pd.DataFrame:
    """The paper's normalized learning curves: a row per frame, a column per algorithm.

    The mean over seeds, then each game brought to [0, 1] by the lowest and highest value that
    any of these algorithms has at any time, then the mean over games. Another set of algorithms
    gives other curves for all of them. A game in which nothing ever changed counts as 0.
    """
    chosen = curves[curves["variant"].isin(algorithms)]
    mean = chosen.groupby(["game", "variant", "frame"])["value"].mean()
    low, high = mean.groupby("game").min(), mean.groupby("game").max()
    span = (high - low).replace(0, np.nan)
    scaled = mean.sub(low, level="game").div(span, level="game")
    scaled = scaled.where(mean.isna() | scaled.notna(), 0.0)
    table = scaled.groupby(["frame", "variant"]).mean().unstack("variant")
    return table[[a for a in algorithms if a in table.columns]]


# --- scores ----------------------------------------------------------------------------------


def max_mean(returns: ArrayLike, window: int = WINDOW) -> float:
    """The highest mean of `window` consecutive games; NaN if there were not that many."""
    values = np.asarray(returns, dtype=float)
    if len(values) < window:
        return float("nan")
    sums = np.convolve(values, np.ones(window), mode="valid")
    return float(sums.max() / window)


def seed_scores(runs: pd.DataFrame) -> pd.DataFrame:
    """Each run's `max_mean`: columns game, variant, seed, score."""
    groups = runs.groupby(["game", "variant", "seed"])["return"]
    return groups.apply(max_mean).rename("score").reset_index()


def score_table(scores: pd.DataFrame, over_seeds: str = "mean") -> pd.DataFrame:
    """A score table: the mean (or the max) over seeds."""
    return scores.groupby(["game", "variant"])["score"].agg(over_seeds).unstack("variant")


def best(table: pd.DataFrame) -> pd.DataFrame:
    """True where a value is the only highest of its row; a tie is nobody's."""
    top = table.eq(table.max(axis=1), axis=0) & table.notna()
    return top.mul(top.sum(axis=1) == 1, axis=0).astype(bool)


def times_best(table: pd.DataFrame) -> pd.Series:
    """In how many games each algorithm has the only highest score."""
    return best(table).sum()


def category_counts(table: pd.DataFrame, categories: dict[str, str]) -> pd.DataFrame:
    """`times_best` by category; `total` counts its games that have one best algorithm."""
    winners = best(table)
    winners = winners[winners.any(axis=1)]
    labels = winners.index.map(lambda game: categories.get(game, ""))
    counts = winners.groupby(labels).sum()
    counts.insert(0, "total", winners.groupby(labels).size())
    order = [c for c in dict.fromkeys(categories.values()) if c and c in counts.index]
    return counts.loc[order].rename_axis("category")


def human_normalized(table: pd.DataFrame, random: pd.Series, human: pd.Series) -> pd.DataFrame:
    """(score - random) / (human - random), game by game."""
    return table.sub(random, axis=0).div(human - random, axis=0)


def human_normalized_scores(scores: pd.DataFrame, games: dict[str, AtariGame]) -> pd.DataFrame:
    """`seed_scores` of Atari games, 0 being random play and 1 a human's score."""
    low = scores["game"].map({name: game.random_score for name, game in games.items()})
    high = scores["game"].map({name: game.human_score for name, game in games.items()})
    return scores.assign(score=(scores["score"] - low) / (high - low))


def min_max_normalized(scores: pd.DataFrame) -> pd.DataFrame:
    """Scores brought to [0, 1] by the lowest and highest of each game, over all runs."""
    by_game = scores.groupby("game")["score"]
    low, high = by_game.transform("min"), by_game.transform("max")
    return scores.assign(score=(scores["score"] - low) / (high - low).replace(0, np.nan))


# --- aggregates (Agarwal et al., 2021) -------------------------------------------------------


class Interval(NamedTuple):
    value: float
    low: float
    high: float


def iqm(scores: ArrayLike) -> float:
    """The mean of the middle half of all scores, however many there are."""
    values = np.sort(np.asarray(scores, dtype=float).ravel())
    n = len(values)
    position = np.arange(n)
    weight = np.clip(np.minimum(position + 1, 0.75 * n) - np.maximum(position, 0.25 * n), 0, 1)
    return float((values * weight).sum() / weight.sum())


def improvement(x: ArrayLike, y: ArrayLike) -> float:
    """The chance that a run of X beats one of Y on a random game; `[games, seeds]` each."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    wins = np.sign(a[:, :, None] - b[:, None, :])  # [games, seeds of x, seeds of y]
    return float(((wins + 1) / 2).mean(axis=(1, 2)).mean())


def profile(scores: ArrayLike, thresholds: ArrayLike) -> Floats:
    """The share of runs with a score above each threshold."""
    values = np.asarray(scores, dtype=float).ravel()
    return (values[None, :] > np.asarray(thresholds)[:, None]).mean(1)


def bootstrap(
    statistic: Callable[..., float],
    *samples: Floats,
    over: str = "seeds",
    repeats: int = 2000,
    seed: int = 0,
) -> Interval:
    """The statistic of `[games, seeds]` samples with a 95 % percentile interval.

    `over` seeds is the stratified bootstrap: games are given, seeds are drawn again within each
    game, for each sample by itself. `over` games draws games again, the same for all samples:
    what if others had been chosen? With one seed, or one game, there is nothing to draw, and no
    interval.
    """
    rng = np.random.default_rng(seed)
    value = statistic(*samples)
    if max(s.shape[over == "seeds"] for s in samples) < 2:
        return Interval(value, float("nan"), float("nan"))

    def draw() -> list[Floats]:
        if over == "games":
            rows = rng.integers(len(samples[0]), size=len(samples[0]))
            return [s[rows] for s in samples]
        return [
            np.take_along_axis(s, rng.integers(s.shape[1], size=s.shape), axis=1) for s in samples
        ]

    values = [statistic(*draw()) for _ in range(repeats)]
    low, high = np.percentile(values, [2.5, 97.5])
    return Interval(value, float(low), float(high))


def matrix(scores: pd.DataFrame, variant: str) -> Floats:
    """One variant's scores as `[games, seeds]`; games that lack one are left out."""
    table = scores[scores["variant"] == variant].pivot(index="game", columns="seed", values="score")
    return table.dropna().to_numpy()


def intervals(samples: dict[str, Floats], over: str) -> pd.DataFrame:
    """IQM and its interval, a row per algorithm."""
    rows = {a: bootstrap(iqm, s, over=over) for a, s in samples.items()}
    return pd.DataFrame(rows, index=list(Interval._fields)).T


def improvements(samples: dict[str, Floats], over: str) -> pd.DataFrame:
    """The chance that one does better than the other, with its interval; a row for each pair."""
    rows = {
        f"{x} over {y}": bootstrap(improvement, samples[x], samples[y], over=over)
        for x, y in PAIRS
        if {x, y} <= samples.keys()
    }
    return pd.DataFrame(rows, index=list(Interval._fields)).T


def profiles(samples: dict[str, Floats], thresholds: Floats) -> pd.DataFrame:
    """The share of runs above each threshold, a column per algorithm."""
    return pd.DataFrame({a: profile(s, thresholds) for a, s in samples.items()}, index=thresholds)
