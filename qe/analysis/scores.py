"""From the returns of games to curves and scores: one number a run, and what it is of a scale.

Scores have the columns game, variant, seed and score. A *score table* has a row per game and a
column per variant.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from qe.games import atari_games

WINDOW = 100  # games, as in the paper's tables
POINTS = 40  # of a curve: windows of a fortieth of the run's frames
LAST = 0.75  # of a run's frames, after which its score is taken
KEY = ["game", "variant", "seed"]
Floats = NDArray[np.float64]


# --- curves ----------------------------------------------------------------------------------


def rolling_mean(returns: ArrayLike, window: int = WINDOW) -> Floats:
    """After each game, the mean of the last `window` games, or of all if there are fewer."""
    series = pd.Series(np.asarray(returns, dtype=float))
    return series.rolling(window, min_periods=1).mean().to_numpy()


def learning_curves(games: pd.DataFrame, frames: int, points: int = POINTS) -> pd.DataFrame:
    """The mean return of all games that ended in each window of frames, run by run.

    Columns: game, variant, seed, frame (the window's end), value. A window in which no game ended
    has none.
    """
    edges = np.linspace(0, frames, points + 1)
    window = np.clip(np.searchsorted(edges, games["frame"]) - 1, 0, points - 1)
    means = games.groupby([*KEY, edges[window + 1]])["return"].mean()
    means.index.names = [*KEY, "frame"]
    runs = pd.MultiIndex.from_frame(games[KEY].drop_duplicates())
    every = [(*run, edge) for run in runs for edge in edges[1:]]
    return means.reindex(pd.MultiIndex.from_tuples(every, names=means.index.names)).reset_index(
        name="value"
    )


class Scale(NamedTuple):
    """What 0 and 1 are, game by game."""

    low: pd.Series
    high: pd.Series
    words: str
    fixed: bool = True  # whatever the runs are that are put on it

    def apply(self, scores: pd.DataFrame, column: str = "score") -> pd.DataFrame:
        """Scores, or curves, on this scale. A game in which nothing differs counts as 0."""
        span = (self.high - self.low).where(lambda s: s != 0, np.inf)
        low, span = scores["game"].map(self.low), scores["game"].map(span)
        return scores.assign(**{column: (scores[column] - low) / span})


def papers_scale(curves: pd.DataFrame) -> Scale:
    """The paper's: the lowest and highest value that any mean curve of the game has at any time."""
    means = curves.groupby(["game", "variant", "frame"])["value"].mean().groupby("game")
    return Scale(means.min(), means.max(), "the lowest and highest of these curves", fixed=False)


def human_scale() -> Scale:
    """Random play and a human's score, by the names of parameters and of the paper alike."""
    games = {name: g for g in atari_games().values() for name in (g.key, g.name)}
    low = pd.Series({name: game.random_score for name, game in games.items()})
    high = pd.Series({name: game.human_score for name, game in games.items()})
    return Scale(low, high, "random play and a human's score")


# --- scores ----------------------------------------------------------------------------------


def max_mean(returns: ArrayLike, window: int = WINDOW) -> float:
    """The highest mean of `window` consecutive games; NaN if there were not that many."""
    values = np.asarray(returns, dtype=float)
    if len(values) < window:
        return float("nan")
    sums = np.convolve(values, np.ones(window), mode="valid")
    return float(sums.max() / window)


def max_means(games: pd.DataFrame) -> pd.DataFrame:
    """Each run's `max_mean`: the paper's number."""
    found = games.groupby(KEY)["return"].apply(max_mean)
    return found.rename("score").reset_index()


def last_quarter(games: pd.DataFrame, frames: int) -> pd.DataFrame:
    """Each run's mean return of all games that ended in the last quarter of its frames.

    Of training games or of frozen ones. A run without such a game is left out.
    """
    late = games[games["frame"] > LAST * frames]
    return late.groupby(KEY)["return"].mean().rename("score").reset_index()


def score_table(scores: pd.DataFrame, over_seeds: str = "mean") -> pd.DataFrame:
    """A score table: the mean over seeds, or another aggregate."""
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


def matrix(scores: pd.DataFrame, variant: str) -> pd.DataFrame:
    """One variant's scores, a row per game and a column per seed, without incomplete games.

    Two variants are compared by these names, never by position.
    """
    rows = scores[scores["variant"] == variant]
    return rows.pivot(index="game", columns="seed", values="score").dropna()


def matrices(scores: pd.DataFrame, variants: Sequence[str]) -> dict[str, pd.DataFrame]:
    """`matrix` of each variant that has one."""
    found = {variant: matrix(scores, variant) for variant in variants}
    return {variant: table for variant, table in found.items() if table.size}
