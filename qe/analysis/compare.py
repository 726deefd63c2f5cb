"""Two or more runs in one figure: shipped ones, one's own, or both."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from qe import RESULTS
from qe.analysis.figures import plot_compared, save, use_style
from qe.analysis.labels import label, ordered
from qe.analysis.load import read_log
from qe.config import ConfigError
from qe.runs.status import open_run, read_finished

RUNS = RESULTS / "runs"
SAME = ("profile", "source", "device", "threads", "checkpoint_every", "keep_network")


def differing(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What each configuration has that not all of them have: `lam=0.5, seed=1`."""
    names = [
        name
        for name in sorted(configs[0], key="seed".__eq__)  # which comes last
        if name not in SAME and any(c.get(name) != configs[0][name] for c in configs)
    ]
    return [", ".join(f"{name}={c.get(name)}" for name in names) for c in configs]


def games_of(run: Path) -> pd.DataFrame:
    """The games of a run, from its log."""
    try:
        games = read_log(run)
        return games.astype({"frame": float, "return": float})
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{run / 'episodes.csv'} is no log of games.") from None


def plot_runs(directories: Sequence[Path | str]) -> Figure:
    """The learning curves of these runs, each called by what it does not share with the others."""
    paths = [Path(directory) for directory in directories]
    made = []
    for path in paths:
        _, config = open_run(path)
        made.append(config.model_dump(mode="json"))
    if len({(config["suite"], config["game"]) for config in made}) > 1:
        raise ConfigError("Runs of different games can't be compared in one figure.")
    labels = [said or str(path) for said, path in zip(differing(made), paths, strict=True)]
    return plot_compared(dict(zip(labels, map(games_of, paths), strict=True)), made[0]["game"])


def plot_beside(directory: Path | str, runs: Path = RUNS) -> Figure | None:
    """A run beside those in the repository that have its game and budget, one of each variant.

    Where there are none it says so.
    """
    _, made = open_run(Path(directory))
    config = made.model_dump(mode="json")
    same = ("suite", "game", "frames")
    found: dict[str, Path] = {}
    for path in sorted(runs.glob(f"*/{config['game']}/*/*")):
        shipped = read_finished(path)
        if shipped and all(shipped["config"].get(name) == config[name] for name in same):
            found.setdefault(path.parent.name, path)
    if not found:
        print(f"No run in {runs} has {config['game']} with {config['frames']:,} frames.")
        return None
    logs = {"this run": games_of(Path(directory))}
    logs |= {label(variant): games_of(found[variant]) for variant in ordered(found)}
    return plot_compared(logs, config["game"])


def compare(directories: Sequence[Path | str], out: Path) -> Path:
    if out.suffix not in (".svg", ".png", ".pdf"):
        raise ConfigError(f"out must end with .svg, .png or .pdf, not {out.name!r}.")
    use_style()
    save(plot_runs(directories), out)
    return out
