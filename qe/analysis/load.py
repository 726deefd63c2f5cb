"""From the runs that `params.yaml` declares to tables of their logs. No other run is read."""

from pathlib import Path
from typing import Any

import pandas as pd

from qe.analysis.scores import KEY, Scale, human_scale
from qe.config import MACHINE, ConfigError, configure
from qe.runs.experiments import PARAMS, Run, parse_variant, read_params, runs_of
from qe.runs.status import check_files, read_finished

SUITES = {"minatar": "MinAtar", "atari": "Atari", "deepsea": "DeepSea"}
CONSTANTS = Path("results", "analysis", "search", "constants.csv")  # 0 and 1 of MinAtar's scores
ENOUGH = 3  # seeds, below which nothing that they say is final


class NotMadeError(ConfigError):
    """A run that is declared, and not there yet."""


def read_log(directory: Path | str, name: str = "episodes") -> pd.DataFrame:
    """One of a run's logs."""
    return pd.read_csv(Path(directory) / f"{name}.csv")


def made_runs(root: Path, experiment: str) -> list[Run]:
    """The runs of an experiment below `root`, which has `params.yaml` and `results`.

    One that is missing, damaged, or not as declared is refused, and never averaged.
    """
    found = runs_of(experiment, read_params(root / PARAMS))
    runs = [run._replace(out=root / run.out) for run in found]
    codes = set()
    for run in runs:
        made = read_finished(run.out)
        if made is None:
            raise NotMadeError(f"{run.out} is not made yet: `dvc repro` makes it.")
        if made["fingerprint"] != run.config.fingerprint():
            raise ConfigError(
                f"{run.out} was made with {_difference(run, made)}: `dvc repro` makes it again."
            )
        check_files(run.out, made)
        codes.add(made["code"])
    if len(codes) > 1:
        raise ConfigError(
            f"The runs of {experiment} were made by different learning code: `dvc repro` makes "
            f"those of older code again."
        )
    return runs


def _difference(run: Run, made: dict[str, Any]) -> str:
    """What is not as params.yaml says."""
    for name, value in run.config.model_dump(mode="json").items():
        if name not in ("profile", "source") and made["config"].get(name) != value:
            return f"{name} {made['config'].get(name)}, and params.yaml says {value}"
    return "another configuration than params.yaml has"


def _row(run: Run) -> dict[str, Any]:
    return {"game": run.config.game, "variant": run.variant, "seed": run.config.seed}


def load_logs(runs: list[Run], name: str = "episodes") -> pd.DataFrame:
    """One log of all these runs, with columns for game, variant and seed."""
    parts = [read_log(run.out, name).assign(**_row(run)) for run in runs]
    if not parts:
        return pd.DataFrame(columns=[*KEY, "frame", "return"])
    return pd.concat(parts, ignore_index=True)


def discoveries(games: pd.DataFrame, runs: list[Run]) -> pd.DataFrame:
    """What each of these runs of DeepSea found: game, variant, seed, found, solved, games.

    *found* is the first game after the warm-up with the treasure, NaN if there is none; *solved*
    whether the run ended as its configuration asks for; *games* how many it played.
    """
    from qe.train import LAST  # with torch, which takes a second

    by_run = dict(iter(games.groupby(KEY)))
    rows = []
    for run in runs:
        played, config = by_run[tuple(_row(run).values())], run.config
        if config.solved_return is None:
            raise ConfigError(f"{run.out} has no solved_return: it can't find a treasure.")
        treasure = played["return"] >= config.solved_return
        late = treasure & (played["step"] > config.learning_starts)
        found = played["episode"][late].min()  # NaN of none
        solved = bool(treasure.tail(LAST).sum() >= config.solved_games)
        rows.append(_row(run) | {"found": found, "solved": solved, "games": len(played)})
    return pd.DataFrame(rows)


def load_costs(runs: list[Run]) -> pd.DataFrame:
    """What each of these runs took, from its `run.json`."""
    rows = []
    for run in runs:
        found = read_finished(run.out)
        assert found is not None
        commit = found["commit"] or "unknown"
        rows.append(
            _row(run)
            | {
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


def about(runs: list[Run]) -> str:
    """What these runs are, in words that belong below every figure of them."""

    def every(name: str) -> list:
        return sorted({getattr(run.config, name) for run in runs})

    reduced = [f"{p} profile" for p in every("profile") if p not in ("default", "paper")]
    frames = " or ".join(f"{n:,}" for n in every("frames"))
    seeds = len(every("seed"))
    parts = [*(SUITES[s] for s in every("suite")), *reduced, f"{frames} frames", *_settings(runs)]
    parts.append(f"{seeds} seed{'s' if seeds > 1 else ''}")
    return ", ".join(parts + ["provisional"] * (not enough(runs)))


def _settings(runs: list[Run]) -> list[str]:
    """What the experiment sets for all of its variants, the budget apart: `epsilon = ...`."""
    silent = {"suite", "game", "seed", "frames", "profile", *MACHINE}
    shared = list(runs[0].values.items())
    for run in runs:
        shared = [(k, v) for k, v in shared if run.values.get(k) == v]
    said = {name for run in runs for name in parse_variant(run.variant)[1]}
    return [f"{k} = {v}" for k, v in shared if k not in silent | said]


def enough(runs: list[Run]) -> bool:
    """Whether there are seeds enough for an aggregate."""
    return len({run.config.seed for run in runs}) >= ENOUGH


def frames_of(runs: list[Run]) -> int:
    """The budget that all of these runs have."""
    budgets = sorted({run.config.frames for run in runs})
    if len(budgets) != 1:
        raise ConfigError(
            f"These runs must have one budget to be in one table, not {len(budgets)} "
            f"({', '.join(f'{n:,}' for n in budgets)} frames)."
        )
    return budgets[0]


def scale_for(root: Path, runs: list[Run], scores: pd.DataFrame) -> Scale:
    """What 0 and 1 are for these runs.

    Atari has random play and a human's score. MinAtar has random play and the reference, Double
    DQN on seeds that no other run has. Without them it is the range of all runs.
    """
    if scores.empty:
        raise ConfigError("No game ended in the last quarter of these runs: they are too short.")
    if {run.config.suite for run in runs} == {"atari"}:
        return human_scale()
    path = root / CONSTANTS
    if path.exists():
        found = pd.read_csv(path, index_col="game")
        if not (found["reference"] > found["random"]).all():  # NaN is not, either
            raise ConfigError(f"{path} must have a reference above random play in every game.")
        if set(scores["game"]) <= set(found.index):
            return Scale(found["random"], found["reference"], "random play and Double DQN's mean")
    by_game = scores.groupby("game")["score"]
    return Scale(by_game.min(), by_game.max(), "the lowest and highest of these runs", fixed=False)


def at_the_papers_scale(root: Path) -> list[Run]:
    """All runs of grids that are the paper's: its network, preprocessing and budget."""
    grids = read_params(root / PARAMS).grids.items()
    names = [n for n, g in grids if g.suite == "atari" and g.settings.get("profile") == "paper"]
    return [run for name in names for run in made_runs(root, name) if _is_the_papers(run)]


def _is_the_papers(run: Run) -> bool:
    """Whether nothing differs from the paper but what the variant's name says."""
    algorithm, values = parse_variant(run.variant)
    wanted = configure(
        "paper", suite="atari", game=run.config.game, seed=run.config.seed, algorithm=algorithm,
        **values,
    )  # fmt: skip
    return wanted.fingerprint() == run.config.fingerprint()
