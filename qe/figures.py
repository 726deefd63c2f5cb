"""Figures, in one style: for a paper, for a notebook, and the same bytes every time."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from numpy.typing import ArrayLike

from qe.metrics import WINDOW, on_grid, read_log, rolling_mean

# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = {
    "double_dqn": "#000000",
    "bootstrapped_dqn": "#009E73",
    "ensemble_voting": "#0072B2",
    "ucb": "#D55E00",
    "ucb_infogain": "#CC79A7",
}
LABELS = {
    "double_dqn": "Double DQN",
    "bootstrapped_dqn": "Bootstrapped DQN",
    "ensemble_voting": "Ensemble Voting",
    "ucb": "UCB",
    "ucb_infogain": "UCB + InfoGain",
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
    "svg.fonttype": "none",
    "svg.hashsalt": "qe",
}


def use_style() -> None:
    matplotlib.rcParams.update(STYLE)


def save(figure: Figure, path: Path | str) -> None:
    """Write the figure without a date, so that the same figure is the same file."""
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
    """How the heads' spread, their agreement and the bonus moved in one run."""
    log = read_log(directory, "diagnostics")
    names = {"std": "std of the chosen Q", "agreement": "share of votes", "bonus": "InfoGain bonus"}
    shown = [name for name in names if log[name].notna().any()]
    if not shown:
        figure = plt.figure(figsize=(7.5, 0.6))
        figure.text(0.5, 0.5, "One head: nothing to disagree about.", ha="center")
        return figure
    figure, grid = plt.subplots(
        1, len(shown), figsize=(7.5, 2.4), layout="constrained", squeeze=False
    )
    for axes, name in zip(grid[0], shown, strict=True):
        axes.plot(log["frame"], log[name], color="#0072B2", label="for the winner")
        if name == "agreement":
            axes.plot(log["frame"], log["tie_rate"], color="0.6", label="how often tied")
            axes.set_ylim(0, 1)
            axes.legend(fontsize="small")
        _mark(axes, names[name])
    return figure


def plot_algorithms(directories: Iterable[Path], title: str = "", points: int = 200) -> Figure:
    """Learning curves of several algorithms in one game; a line per algorithm, mean over seeds."""
    by_algorithm: dict[str, list[Path]] = {}
    for directory in directories:
        by_algorithm.setdefault(directory.parts[-2], []).append(directory)
    figure, axes = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    for algorithm in (a for a in COLORS if a in by_algorithm):
        logs = [read_log(d) for d in by_algorithm[algorithm]]
        grid = np.linspace(0, max(log["frame"].max() for log in logs), points)
        curves = [on_grid(log["frame"], rolling_mean(log["return"]), grid) for log in logs]
        axes.plot(grid, np.mean(curves, 0), color=COLORS[algorithm], label=LABELS[algorithm])
    axes.set_title(title)
    _mark(axes, f"return, mean of {WINDOW} games")
    axes.legend(fontsize="small")
    return figure
