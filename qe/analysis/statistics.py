"""What scores say of a difference: tests, intervals, and how many seeds it would need.

Samples are tables of one variant's scores, a row per game and a column per seed, as
`scores.matrix` makes them. Two samples are compared on the games that both have, by name.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from qe.analysis.labels import algorithm_of
from qe.analysis.scores import matrix
from qe.config import ConfigError

# What the paper asks: is the first better than the second?
PAIRS = (
    ("ensemble_voting", "double_dqn"),
    ("ensemble_voting", "bootstrapped_dqn"),
    ("ucb", "double_dqn"),
    ("ucb", "bootstrapped_dqn"),
    ("ucb", "ensemble_voting"),
    ("ucb_infogain", "ucb"),
)
CONTRAST = ["difference", "low", "high", "p", "in sd", "chance", "chance, low", "chance, high",
            "seeds needed"]  # fmt: skip
PERMUTATIONS = 100_000
DRAWS = 10_000
Floats = NDArray[np.float64]
# `[..., games, seeds]` of one or two samples to `[...]`.
Statistic = Callable[..., Floats]


class Interval(NamedTuple):
    value: float
    low: float
    high: float


# --- statistics ------------------------------------------------------------------------------


def iqm(scores: Floats) -> Floats:
    """The mean of the middle half of all scores, as scipy and rliable cut it."""
    return stats.trim_mean(scores.reshape(*scores.shape[:-2], -1), 0.25, axis=-1)


def mean(scores: Floats) -> Floats:
    return scores.mean((-2, -1))


def difference(x: Floats, y: Floats) -> Floats:
    """The mean over games of the difference of the means over seeds."""
    return (x.mean(-1) - y.mean(-1)).mean(-1)


def improvement(x: Floats, y: Floats) -> Floats:
    """The chance that a run of X beats one of Y on a random game; ties count half."""
    wins = np.sign(x[..., :, None] - y[..., None, :])  # [..., games, seeds of x, seeds of y]
    return ((wins + 1) / 2).mean((-3, -2, -1))


def common_games(samples: Iterable[pd.DataFrame]) -> pd.Index:
    """The games that all of the samples have."""
    games = reduce(pd.Index.intersection, (sample.index for sample in samples))
    if not len(games):
        raise ConfigError("These variants have no game in common.")
    return games


def aligned(*samples: pd.DataFrame) -> list[Floats]:
    """The samples on the games that all of them have, in one order."""
    games = common_games(samples)
    return [sample.loc[games].to_numpy(dtype=float) for sample in samples]


# --- intervals -------------------------------------------------------------------------------


def resample(sample: Floats, rows: NDArray[np.int64], rng: np.random.Generator) -> Floats:
    """`[draws, games, seeds]`: the games of `rows` `[draws, games]`, seeds drawn within each."""
    seeds = rng.integers(sample.shape[1], size=(*rows.shape, sample.shape[1]))
    return sample[rows[:, :, None], seeds]


def draw(
    statistic: Statistic,
    *samples: Floats,
    draws: int = DRAWS,
    seed: int = 0,
    games: bool = True,
) -> Floats:
    """The statistic of samples that are drawn again, games and seeds together, or seeds alone."""
    rng = np.random.default_rng(seed)
    found = []
    n = len(samples[0])
    for start in range(0, draws, 1000):  # so many at once fit into the memory
        size = (min(1000, draws - start), n)
        rows = rng.integers(n, size=size) if games else np.broadcast_to(np.arange(n), size)
        found.append(statistic(*(resample(sample, rows, rng) for sample in samples)))
    return np.concatenate(found)


def interval(
    statistic: Statistic, *samples: pd.DataFrame, level: float = 0.95, draws: int = DRAWS
) -> Interval:
    """The statistic with a percentile interval over games and seeds; NaN for one run of one game.

    With a single seed it is over games alone, with a single game over seeds alone.
    """
    arrays = aligned(*samples)
    value = float(statistic(*arrays))
    if all(array.size == 1 for array in arrays):
        return Interval(value, float("nan"), float("nan"))
    cut = 50 * (1 - level)
    low, high = np.percentile(draw(statistic, *arrays, draws=draws), [cut, 100 - cut])
    return Interval(value, float(low), float(high))


def share(successes: int, trials: int) -> Interval:
    """A share with its exact (Clopper-Pearson) 95 % interval."""
    found = stats.binomtest(successes, trials).proportion_ci(method="exact")
    return Interval(successes / trials, float(found.low), float(found.high))


def shares(found: pd.DataFrame, column: str) -> pd.DataFrame:
    """In how many seeds `column` holds: game, variant, seeds; a share as value, low, high."""
    rows = [
        (*key, len(held), *share(int(held.sum()), len(held)))
        for key, held in found.groupby(["game", "variant"])[column]
    ]
    return pd.DataFrame(rows, columns=["game", "variant", "seeds", *Interval._fields])


def over_frames(curves: pd.DataFrame, variants: Sequence[str], draws: int = 1000) -> pd.DataFrame:
    """The mean over games and seeds of curves on one scale, with its interval at each frame.

    Columns: variant, frame, value, low, high. A game counts where all its runs have a value.
    """
    rows = []
    for variant in variants:
        chosen = curves[curves["variant"] == variant].rename(columns={"value": "score"})
        for frame, scores in chosen.groupby("frame"):
            sample = matrix(scores, variant)
            if sample.size:
                rows.append((variant, frame, *interval(mean, sample, draws=draws)))
    return pd.DataFrame(rows, columns=["variant", "frame", *Interval._fields])


def profiles(samples: dict[str, pd.DataFrame], thresholds: Floats) -> pd.DataFrame:
    """The share of runs above each threshold, with its interval: columns variant, score, ..."""
    rows = []
    for variant, sample in samples.items():
        for at in thresholds:
            above = sample.gt(at).astype(float)
            rows.append((variant, at, *interval(mean, above, draws=1000)))
    return pd.DataFrame(rows, columns=["variant", "score", *Interval._fields])


def intervals(statistic: Statistic, samples: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """A statistic of each variant with its interval, a row each."""
    rows = {variant: interval(statistic, sample) for variant, sample in samples.items()}
    return pd.DataFrame(rows, index=list(Interval._fields)).T


def contrasts(samples: dict[str, pd.DataFrame]) -> pd.DataFrame:
    """The paper's questions: is the first better than the second? A row for each that is there.

    The difference of mean scores with its interval and the test's p; its size in standard
    deviations; the chance that a run of the first beats one of the second, with its interval;
    and the seeds that a difference of this size needs.
    """
    by_algorithm = {algorithm_of(variant): variant for variant in samples}
    rows = {}
    for first, second in PAIRS:
        if not {first, second} <= by_algorithm.keys():
            continue
        a, b = by_algorithm[first], by_algorithm[second]
        x, y = samples[a], samples[b]
        seen, chance = interval(difference, x, y), interval(improvement, x, y)
        rows[f"{a} over {b}"] = {
            "difference": seen.value, "low": seen.low, "high": seen.high,
            "p": permutation_test(x, y), "in sd": seen.value / spread(x, y),
            "chance": chance.value, "chance, low": chance.low, "chance, high": chance.high,
            "seeds needed": str(seeds_needed(x, y) or ""),
        }  # fmt: skip
    return pd.DataFrame(rows, index=CONTRAST).T.infer_objects()


def on_common_games(samples: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The samples without the games that one of them lacks, so that aggregates are comparable."""
    games = common_games(samples.values())
    return {variant: sample.loc[games] for variant, sample in samples.items()}


# --- tests -----------------------------------------------------------------------------------


def permutation_test(
    x: pd.DataFrame, y: pd.DataFrame, draws: int = PERMUTATIONS, seed: int = 0
) -> float:
    """The two-sided p of `difference`: labels permuted within games, seeds unpaired.

    NaN where nothing can be permuted into anything else: one run of each on one game.
    """
    a, b = aligned(x, y)
    if a.shape[1] + b.shape[1] < 3 and len(a) == 1:
        return float("nan")
    rng = np.random.default_rng(seed)
    seen = abs(float(difference(a, b)))
    total = np.zeros(draws)
    for mine, theirs in zip(a, b, strict=True):
        pool = np.concatenate([mine, theirs])
        order = rng.random((draws, len(pool))).argpartition(len(mine) - 1, axis=1)
        first = pool[order[:, : len(mine)]].sum(1)
        total += first / len(mine) - (pool.sum() - first) / len(theirs)
    as_large = np.abs(total) / len(a) >= seen * (1 - 1e-9)  # sums differ by their order
    return float((as_large.sum() + 1) / (draws + 1))


def holm(p: dict[str, float]) -> dict[str, float]:
    """Holm's correction of some p, by name."""
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
        corrected[name] = highest
    return {name: corrected[name] for name in p}


def spread(x: pd.DataFrame, y: pd.DataFrame) -> float:
    """The standard deviation within a game and variant, over all; NaN where nothing varies."""
    a, b = aligned(x, y)
    if min(a.shape[1], b.shape[1]) < 2:
        return float("nan")
    return float(np.sqrt(np.mean([a.var(1, ddof=1), b.var(1, ddof=1)]))) or float("nan")


def seeds_needed(x: pd.DataFrame, y: pd.DataFrame, power: float = 0.8, alpha: float = 0.05) -> int:
    """How many seeds would show a difference of the size seen; 0 where that can't be said."""
    a, b = aligned(x, y)
    size, sd = abs(float(difference(a, b))), spread(x, y)
    if not size or not np.isfinite(sd):
        return 0
    z = stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)
    return max(2, int(np.ceil(2 * (z * sd / size) ** 2 / len(a))))


# --- what the intervals cover ----------------------------------------------------------------


def coverage(
    games: int, seeds: int, heavy: bool, between: float, trials: int = 1000, seed: int = 0
) -> dict[str, float]:
    """How often the 95 % interval of a difference covers the truth, by simulation.

    Scores are normal, or heavy-tailed (Student's t with 3 degrees of freedom), with a standard
    deviation of 1 within a game; differences vary between games with the deviation `between`.
    The truth is the mean over all games that might have been, or over those that were played.
    """
    rng = np.random.default_rng(seed)
    hits = {"all games": 0, "these games": 0}
    for trial in range(trials):
        effects = 0.5 + between * rng.normal(size=(games, 1))
        size = (2, games, seeds)
        noise = rng.standard_t(3, size) / np.sqrt(3) if heavy else rng.normal(size=size)
        values = draw(difference, noise[0] + effects, noise[1], draws=1000, seed=trial)
        low, high = np.percentile(values, [2.5, 97.5])
        hits["all games"] += low <= 0.5 <= high
        hits["these games"] += low <= effects.mean() <= high
    return {name: count / trials for name, count in hits.items()}
