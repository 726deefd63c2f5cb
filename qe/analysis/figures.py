"""Figures, in one style: for a paper, for a notebook, and the same bytes every time."""

import sys
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

from qe.analysis.labels import COLORS, algorithm_of, label, mark, ordered, style
from qe.analysis.load import read_log
from qe.analysis.scores import WINDOW, rolling_mean

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
    if "ipykernel" in sys.modules:  # sharp on screens of high density, too
        from matplotlib_inline.backend_inline import set_matplotlib_formats

        set_matplotlib_formats("retina")


def save(figure: Figure, path: Path | str, note: str = "") -> None:
    """Write the figure, with a note below it, without a date: the same figure is the same file."""
    if note:
        figure.supxlabel(note, fontsize="small", color="0.4")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else {})
    plt.close(figure)


def _mark(axes: Axes, ylabel: str) -> None:
    axes.set(xlabel="frames", ylabel=ylabel)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlim(left=0)


def plot_run(directory: Path | str) -> Figure:
    """One run's learning curve: every game, their running mean, and the frozen vote."""
    games = read_log(directory)
    frozen = read_log(directory, "evaluations").groupby("frame")["return"].mean()
    color = COLORS.get(algorithm_of(Path(directory).parts[-2]), "#0072B2")
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


def plot_compared(logs: dict[str, pd.DataFrame], title: str) -> Figure:
    """The running means of some runs' games, by label."""
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for name, games in logs.items():
        axes.plot(games["frame"], rolling_mean(games["return"]), label=name)
    _mark(axes, f"mean of {WINDOW} games")
    axes.set_title(title)
    figure.legend(fontsize="small", loc="outside lower center")
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
    shown = [name for name in names if log[name].notna().any()] or ["loss"]  # none: a short run
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


def _band(axes: Axes, table: pd.DataFrame, x: str, step: bool = False) -> None:
    """A line for each variant, with the band of its interval."""
    for variant in ordered(table["variant"]):
        rows = table[table["variant"] == variant]
        line = style(variant)
        axes.plot(rows[x], rows["value"], drawstyle="steps-post" if step else "default", **line)
        axes.fill_between(
            rows[x], rows["low"], rows["high"], color=line["color"], alpha=0.12, linewidth=0,
            step="post" if step else None,
        )  # fmt: skip


def plot_normalized(table: pd.DataFrame) -> Figure:
    """Normalized learning curves by `statistics.over_frames`: a line per variant, and its band."""
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    _band(axes, table, "frame")
    _mark(axes, "normalized return")
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


def plot_games(curves: pd.DataFrame, styles: dict[str, dict[str, Any]], columns: int = 3) -> Figure:
    """Learning curves game by game: mean over seeds, and the range of the seeds as a band.

    `styles` gives every variant that is drawn its keywords for matplotlib, in the legend's order.
    """
    figure, grid, panels = _panels(sorted(curves["game"].unique()), columns)
    for axes, game in panels:
        for variant, line in styles.items():
            chosen = curves[(curves["game"] == game) & (curves["variant"] == variant)]
            if chosen.empty:
                continue
            seeds = chosen.groupby("frame")["value"].agg(["mean", "min", "max"])
            axes.plot(seeds.index, seeds["mean"], **line)
            if chosen["seed"].nunique() > 1:
                axes.fill_between(
                    seeds.index, seeds["min"], seeds["max"],
                    color=line["color"], alpha=0.15, linewidth=0,
                )  # fmt: skip
        axes.set_title(game)
        _mark(axes, "")
    for axes in grid[:, 0]:
        axes.set_ylabel("mean return")
    return _with_legend(figure, grid)


def variant_styles(variants: Sequence[str], reference: str = "") -> dict[str, dict[str, Any]]:
    """A sequence of colours for variants of an algorithm, and a black line to compare with."""
    shades = plt.get_cmap("viridis")(np.linspace(0.05, 0.85, len(variants)))
    styles: dict[str, dict[str, Any]] = {
        v: {"color": c, "label": label(v)} for v, c in zip(variants, shades, strict=True)
    }
    if reference:
        styles[reference] = {"color": "k", "linestyle": "--", "label": label(reference)}
    return styles


def plot_intervals(table: pd.DataFrame, xlabel: str, even: float | None = None) -> Figure:
    """A row per algorithm, or pair: `value`, with `low` and `high` where there is an interval.

    A line marks the value that means no difference, if there is one.
    """
    figure, axes = plt.subplots(figsize=(6.0, 0.35 * len(table) + 0.9), layout="constrained")
    for y, (variant, row) in enumerate(table.iterrows()):
        point = mark(str(variant))
        if np.isfinite(row["low"]):
            ends = [row["low"], row["high"]]
            axes.plot(ends, [y, y], color=point["color"], linewidth=5, alpha=0.4)
        axes.plot(row["value"], y, **point)
    if even is not None:
        axes.axvline(even, color="0.5", linestyle="--", linewidth=1)
    axes.set(yticks=range(len(table)), xlabel=xlabel)
    axes.set_yticklabels([label(v) for v in table.index])
    axes.invert_yaxis()
    return figure


def plot_shares(table: pd.DataFrame, xlabel: str) -> Figure:
    """Shares by `statistics.shares`: a panel per game, a row per variant, with its interval."""
    games = sorted(table["game"].unique(), key=lambda game: (len(game), game))  # N6 before N10
    variants = ordered(table["variant"])
    figure, grid = plt.subplots(
        1, len(games), figsize=(2.4 + 1.5 * len(games), 0.24 * len(variants) + 0.9),
        layout="constrained", sharey=True, squeeze=False,
    )  # fmt: skip
    for axes, game in zip(grid[0], games, strict=True):
        for _, row in table[table["game"] == game].iterrows():
            point, y = mark(row["variant"]), variants.index(row["variant"])
            axes.plot([row["low"], row["high"]], [y, y], color=point["color"], lw=4, alpha=0.3)
            axes.plot(row["value"], y, **point)
        axes.set(title=game, xlabel=xlabel, xlim=(-0.05, 1.05), xticks=[0, 0.5, 1])
    grid[0][0].set_yticks(range(len(variants)), [label(v) for v in variants])
    grid[0][0].invert_yaxis()
    return figure


def plot_profiles(table: pd.DataFrame, xlabel: str) -> Figure:
    """Performance profiles by `statistics.profiles`: the share of runs above each score."""
    figure, axes = plt.subplots(figsize=(7.5, 3.0), layout="constrained")
    _band(axes, table, "score", step=True)
    axes.set(xlabel=xlabel, ylabel="share of runs above it", ylim=(0, 1))
    figure.legend(fontsize="small", loc="outside right upper")
    return figure


def plot_frozen(table: pd.DataFrame) -> Figure:
    """Training return against the frozen vote's, a point per game and variant.

    `table` has columns game, variant, training and frozen.
    """
    figure, grid, panels = _panels(sorted(table["game"].unique()), columns=3)
    for axes, game in panels:
        rows = table[table["game"] == game]
        for variant in ordered(table["variant"]):
            row = rows[rows["variant"] == variant]
            point = mark(variant) | {"label": label(variant), "linestyle": ""}
            axes.plot(row["training"], row["frozen"], **point)
        ends = [rows[["training", "frozen"]].min().min(), rows[["training", "frozen"]].max().max()]
        axes.plot(ends, ends, color="0.7", linewidth=1, zorder=0)
        axes.set(title=game, xlabel="training")
    for axes in grid[:, 0]:
        axes.set_ylabel("frozen, by vote")
    return _with_legend(figure, grid)
