"""Which settings the study uses, and its constants: both are chosen before its runs, by rule.

The protocol has the rules. Runs of the experiments `search` and `reference` decide, whose seeds no
other run has, and no ensemble has a say.
"""

from pathlib import Path

import pandas as pd

from qe.analysis.load import frames_of, load_logs, made_runs
from qe.analysis.scores import last_quarter, score_table
from qe.config import ConfigError
from qe.runs.experiments import PARAMS, Run, read_params

SEARCH, REFERENCE, PRIOR = "search", "reference", "prior"


def declares(root: Path, *experiments: str) -> bool:
    """Whether params.yaml has all of these experiments."""
    params = read_params(root / PARAMS)
    return set(experiments) <= params.grids.keys() | params.controls.keys()


def settings(root: Path) -> pd.DataFrame:
    """A row per setting that was tried: its scores by game, and `share`, which decides.

    That is the mean over games of its score as a share of the game's best among all settings of
    the same width. `chosen` is the highest of each width.
    """
    runs = made_runs(root, SEARCH)
    scores = score_table(last_quarter(load_logs(runs), frames_of(runs)))  # [game, variant]
    widths = pd.Series({run.variant: run.config.hidden for run in runs})
    tables = []
    for width, variants in widths.groupby(widths).groups.items():
        table = scores[list(variants)]
        share = table.div(table.max(axis=1), axis=0).mean()
        tables.append(table.T.assign(hidden=width, share=share, chosen=share == share.max()))
    return pd.concat(tables).rename_axis("setting")


def chosen(root: Path, hidden: int) -> str:
    """The variant that the search chose among those of a width."""
    table = settings(root)
    (found,) = table.index[table["chosen"] & (table["hidden"] == hidden)]
    return found


def constants(root: Path) -> pd.DataFrame:
    """What 0 and 1 are, game by game: random play, and Double DQN at its chosen setting."""
    runs = reference_runs(root)
    scores = last_quarter(load_logs(runs), frames_of(runs))
    by_game = scores.groupby("game")["score"]
    random = pd.read_csv(
        root / "results" / "reference" / "random" / "minatar.csv", index_col="game"
    )
    return pd.DataFrame(
        {"random": random["mean"], "reference": by_game.mean(), "seeds": by_game.size()}
    ).loc[sorted(by_game.groups)]


def reference_runs(root: Path) -> list[Run]:
    """The reference's runs, and those of the search that have its setting."""
    runs = made_runs(root, REFERENCE)
    (variant,) = {run.variant for run in runs}
    best = chosen(root, runs[0].config.hidden)
    if variant != best:
        raise ConfigError(f"{REFERENCE} must have the setting that was chosen, {best}.")
    return [*(run for run in made_runs(root, SEARCH) if run.variant == best), *runs]


def smallest_prior(found: pd.DataFrame) -> str:
    """Of the discoveries of `prior`: the variant with the smallest scale that solved every seed."""
    solved = found.groupby("variant")["solved"].all()
    scales = {name: float(name.split("prior_scale=")[1]) for name in solved.index[solved]}
    if not scales:
        raise ConfigError("No prior_scale of the search solved DeepSea with every seed.")
    return min(scales, key=scales.__getitem__)
