"""Figures, in one style: for a paper, for a notebook, and the same bytes every time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from qe.metrics import WINDOW, read_log, rolling_mean
from qe.tables import LABELS, label

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = {
    "double_dqn": "#000000",
    "bootstrapped_dqn": "#009E73",
    "ensemble_voting": "#0072B2",
    "ucb": "#D55E00",
    "ucb_infogain": "#CC79A7",
}
STYLE: dict[Any, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "figure.dpi": 110,
    "font.size": 9.0,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.5,
    "svg.hashsalt": "qe",
}


def use_style() -> None:
    matplotlib.rcParams.update(STYLE)


def save(figure: Figure, path: Path | str, note: str = "") -> None:
    """Write the figure, with a note below it, without a date: the same figure is the same file."""
    if note:
        figure.supxlabel(note, fontsize="small", color="0.4")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
    plt.close(figure)


def plot_state(q: ArrayLike, lam: float | None = None, title: str = "") -> Figure:
    """Every head's Q-values in one state, their mean and spread, and the heads' votes."""
    q = np.asarray(q, dtype=float)  # [K, A]
    K, A = q.shape
    mean, std = q.mean(0), q.std(0)
    votes = np.bincount(q.argmax(1), minlength=A)
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(7.5, 2.8), width_ratios=(3, 1), layout="constrained"
    )
    jitter = np.linspace(-0.18, 0.18, K) if K > 1 else np.zeros(1)
    for a in range(A):
        left.scatter(a + jitter, q[:, a], s=14, color="0.6", label="heads" if a == 0 else None)
    left.errorbar(range(A), mean, yerr=std, fmt="o", color="#0072B2", capsize=4, label="mean ± std")
    if lam is not None:
        label = f"mean + {lam:g} std"
        left.scatter(range(A), mean + lam * std, marker="_", s=260, color="#D55E00", label=label)
    left.set(xlabel="action", ylabel="Q", xticks=range(A), title=title)
    left.legend(fontsize="small")
    right.barh(range(A), votes, color="0.6")
    right.set(xlabel="votes", ylabel="action", yticks=range(A), xlim=(0, K), xticks=(0, K))
    right.invert_yaxis()
    return figure


def _mark(axes: Axes, ylabel: str) -> None:
    axes.set(xlabel="frames", ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


def plot_run(directory: Path | str) -> Figure:
    """One run's learning curve: every game, their running mean, and the frozen vote."""
    games = read_log(directory)
    frozen = read_log(directory, "evaluations").groupby("frame")["return"].mean()
    algorithm = Path(directory).parts[-2]
    color = COLORS.get(algorithm, "#0072B2")
    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    axes.scatter(
        games["frame"], games["return"], s=3, color="0.75", label="a game", rasterized=True
    )
    mean = rolling_mean(games["return"])
    axes.plot(games["frame"], mean, color=color, label=f"mean of {WINDOW} games")
    if len(frozen):
        axes.plot(frozen.index, frozen, "d", color="k", ms=4, label="frozen, by majority vote")
    _mark(axes, "return")
    axes.legend(fontsize="small")
    return figure


def plot_ensemble(directory: Path | str) -> Figure:
    """How the loss, the heads' spread, their agreement and the bonus moved in one run."""
    log = read_log(directory, "diagnostics")
    names = {
        "loss": "loss of a head",
        "std": "std of the chosen Q",
        "agreement": "share of votes",
        "bonus": "InfoGain bonus",
    }
    shown = [name for name in names if log[name].notna().any()]
    figure, grid = plt.subplots(
        1, len(shown), figsize=(2.5 * len(shown), 2.4), layout="constrained", squeeze=False
    )
    for axes, name in zip(grid[0], shown, strict=True):
        axes.plot(log["frame"], log[name], color="#0072B2", label="for the winner")
        if name == "agreement":
            axes.plot(log["frame"], log["tie_rate"], color="0.6", label="how often tied")
            axes.set_ylim(0, 1)
            axes.legend(fontsize="small")
        _mark(axes, names[name])
    return figure


def plot_health(health: pd.DataFrame) -> Figure:
    """A run's own account, by the minute: its speed, its memory, and what checkpoints took."""
    names = {
        "steps_per_second": "steps a second",
        "memory_gb": "memory, GB",
        "checkpoint_seconds": "seconds of a checkpoint",
    }
    figure, row = plt.subplots(1, len(names), figsize=(7.8, 2.4), layout="constrained")
    for axes, (name, ylabel) in zip(row, names.items(), strict=True):
        axes.plot(health["seconds"] / 60, health[name], ".-", color="#0072B2", ms=4)
        axes.set(xlabel="minutes", ylabel=ylabel)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
    row[0].set(yscale="log", ylim=(10, None))  # random actions at first are many times as fast
    return figure


def _line(variant: str) -> dict[str, Any]:
    return {"color": COLORS.get(variant), "label": LABELS.get(variant, variant)}


def plot_normalized(table: pd.DataFrame) -> Figure:
    """Normalized learning curves: a line per algorithm."""
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for variant in table.columns:
        axes.plot(table.index, table[variant], **_line(variant))
    _mark(axes, "normalized return")
    axes.set_ylim(0, 1)
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def _panels(games: list[str], columns: int) -> tuple[Figure, np.ndarray, list[tuple[Axes, str]]]:
    """A grid of axes, one for each game; what is left over of the last row is not shown."""
    columns = min(columns, len(games))
    rows = -(-len(games) // columns)
    size = (max(2.6 * columns, 5.2), 2.1 * rows + 0.4)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axes in list(grid.flat)[len(games) :]:
        axes.set_visible(False)
    return figure, grid, list(zip(grid.flat, games, strict=False))


def _with_legend(figure: Figure, grid: np.ndarray) -> Figure:
    """One legend for all panels, above them."""
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize="small")
    return figure


def plot_games(
    curves: pd.DataFrame,
    styles: dict[str, dict[str, Any]],
    columns: int = 3,
    window: int = WINDOW,
) -> Figure:
    """Learning curves game by game: mean over seeds, and the range of the seeds as a band.

    `styles` gives every variant that is drawn its keywords for matplotlib, in the legend's order;
    `window` says how many games the curves are means of.
    """
    figure, grid, panels = _panels(sorted(curves["game"].unique()), columns)
    for axes, game in panels:
        for variant, style in styles.items():
            chosen = curves[(curves["game"] == game) & (curves["variant"] == variant)]
            if chosen.empty:
                continue
            seeds = chosen.groupby("frame")["value"].agg(["mean", "min", "max"])
            (line,) = axes.plot(seeds.index, seeds["mean"], **style)
            if chosen["seed"].nunique() > 1:
                axes.fill_between(
                    seeds.index, seeds["min"], seeds["max"],
                    color=line.get_color(), alpha=0.15, linewidth=0,
                )  # fmt: skip
        axes.set_title(game)
        _mark(axes, "")
    for axes in grid[:, 0]:
        axes.set_ylabel(f"mean of {window} games")
    return _with_legend(figure, grid)


def algorithm_styles() -> dict[str, dict[str, Any]]:
    return {a: {"color": COLORS[a], "label": LABELS[a]} for a in COLORS}


def sweep_styles(symbol: str, values: Sequence[str], reference: str) -> dict[str, dict[str, Any]]:
    """A sequence of colours for a parameter's values, and a black line to compare with."""
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.85, len(values)))
    styles: dict[str, dict[str, Any]] = {
        v: {"color": c, "label": f"{symbol} = {v}"} for v, c in zip(values, shades, strict=True)
    }
    return styles | {
        reference: {"color": "k", "linestyle": "--", "label": LABELS.get(reference, reference)}
    }


def plot_intervals(table: pd.DataFrame, xlabel: str, even: float | None = None) -> Figure:
    """A row per algorithm, or pair: `value`, with `low` and `high` where there is an interval.

    A line marks the value that means no difference, if there is one.
    """
    figure, axes = plt.subplots(figsize=(5.0, 0.35 * len(table) + 0.8), layout="constrained")
    for y, (variant, row) in enumerate(table.iterrows()):
        color = COLORS.get(str(variant), "0.3")
        if np.isfinite(row["low"]):
            axes.plot([row["low"], row["high"]], [y, y], color=color, linewidth=5, alpha=0.4)
        axes.plot(row["value"], y, "o", color=color)
    if even is not None:
        axes.axvline(even, color="0.5", linestyle="--", linewidth=1)
    axes.set(yticks=range(len(table)), xlabel=xlabel)
    axes.set_yticklabels([label(v) for v in table.index])
    axes.invert_yaxis()
    return figure


def plot_profiles(profiles: pd.DataFrame, xlabel: str) -> Figure:
    """Performance profiles: the share of runs above each score, a line per algorithm."""
    figure, axes = plt.subplots(figsize=(5.0, 3.0), layout="constrained")
    for variant in profiles.columns:
        axes.step(profiles.index, profiles[variant], where="post", **_line(variant))
    axes.set(xlabel=xlabel, ylabel="share of runs above it", ylim=(0, 1))
    axes.legend(fontsize="small")
    return figure


def plot_frozen(table: pd.DataFrame) -> Figure:
    """Training return against the frozen vote's, a point per game and algorithm.

    `table` has columns game, variant, training and frozen.
    """
    figure, grid, panels = _panels(sorted(table["game"].unique()), columns=3)
    for axes, game in panels:
        rows = table[table["game"] == game]
        for variant, color in COLORS.items():
            row = rows[rows["variant"] == variant]
            axes.plot(row["training"], row["frozen"], "o", color=color, label=LABELS[variant])
        ends = [rows[["training", "frozen"]].min().min(), rows[["training", "frozen"]].max().max()]
        axes.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
        axes.set(title=game, xlabel="training")
    for axes in grid[:, 0]:
        axes.set_ylabel("frozen, by vote")
    return _with_legend(figure, grid)


def plot_chain(table: pd.DataFrame, most: int) -> Figure:
    """Games until the chain's far end is found: median and quartiles over seeds.

    `table` has columns variant, n, games and found; a search that found nothing took `most`.
    """
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    sizes = sorted(table["n"].unique())
    for i, variant in enumerate(v for v in COLORS if v in set(table["variant"])):
        games = table[table["variant"] == variant].groupby("n")["games"]
        low, middle, high = (games.quantile(x) for x in (0.25, 0.5, 0.75))
        x = middle.index.to_numpy() * (1 + 0.012 * (i - 2))  # side by side
        spread = np.stack([middle - low, high - middle])
        axes.errorbar(x, middle, yerr=spread, marker="o", ms=4, capsize=2, **_line(variant))
    axes.axhline(most, color="0.5", linestyle="--", linewidth=1)
    axes.text(sizes[0], most, f" not within {most:,} games", va="bottom", color="0.4", size=8)
    axes.set(xscale="log", yscale="log", xlabel="states N", ylabel="games until found")
    axes.set_xticks(sizes, [str(n) for n in sizes], minor=False)
    axes.set_xticks([], minor=True)
    axes.set_ylim(top=2 * most)
    figure.legend(fontsize="small", loc="outside right upper")
    return figure
