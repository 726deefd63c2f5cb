"""How many games until the chain's far end is found: a row for each length, algorithm and seed.

An epsilon-greedy agent walks there by chance, and its cost doubles with every state. An ensemble
whose heads disagree about what was never tried may go there on purpose.
"""

import multiprocessing
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from tqdm import tqdm

from qe.checkpoint import write_atomically
from qe.config import Config, ConfigError, configure
from qe.notebooks import die_with_parent
from qe.provenance import code_fingerprint


class Search(NamedTuple):
    """One agent's search; `found` is the game in which it first acted in the last state."""

    n: int
    seed: int
    games: int  # played: up to that one, or all that it was given
    found: bool
    made_by: str  # a fingerprint of the code and the configuration


def check(section: dict[str, Any]) -> None:
    """Refuse a `chain` section of params.yaml that is none, before anything is searched."""
    names = ("sizes", "seeds", "games")
    if set(section) != set(names):
        raise ConfigError(
            f"chain must have {', '.join(names)} and nothing else, not {', '.join(section)}."
        )
    sizes, *counts = (section[name] for name in names)
    if not isinstance(sizes, list) or not sizes:
        raise ConfigError(f"chain's sizes must be a list of lengths, not {sizes!r}.")
    for name, count in zip(names[1:], counts, strict=True):
        if type(count) is not int or count < 1:
            raise ConfigError(f"chain's {name} must be a whole number from 1, not {count!r}.")


def config_of(algorithm: str, n: int, seed: int, games: int) -> Config:
    """The chain's own profile; random actions are Double DQN's way to explore, and its alone."""
    values: dict[str, Any] = {"epsilon": [[0, 0.1]], "eval_every": 0}
    if algorithm != "double_dqn":
        values["ensemble_epsilon"] = "warmup_only"
    return configure(
        suite="chain",
        game=f"N{n}",
        algorithm=algorithm,
        seed=seed,
        frames=games * (n + 9),
        **values,
    )


def search(config: Config) -> tuple[int, bool]:
    """Games until the far end is found, and whether it was."""
    from qe.train import train  # torch: in the processes that need it

    games = 0
    for game in train(config):
        games = game.episode
        if game.score >= 1:  # only the last state pays that much
            return games, True
    return games, False


def made_by(config: Config) -> str:
    return f"{config.fingerprint()}-{code_fingerprint()}"


def _search(algorithm: str, n: int, seed: int, games: int) -> Search:
    config = config_of(algorithm, n, seed, games)
    by = made_by(config)  # of the code as it is now: it may be edited meanwhile
    return Search(n, seed, *search(config), by)


def read(path: Path) -> list[Search]:
    """The rows of an earlier call, finished or not."""
    if not path.exists():
        return []
    table = pd.read_csv(path)
    return [Search(*row) for row in table.itertuples(index=False)]


def explore(
    algorithm: str,
    sizes: Iterable[int],
    seeds: int,
    games: int,
    out: Path,
    workers: int | None = None,
) -> None:
    """Fill the table at `out`. Killed and called again, it goes on with the rows that lack."""
    wanted = [(n, seed) for n in sizes for seed in range(seeds)]
    asked = {made_by(config_of(algorithm, n, seed, games)) for n, seed in wanted}
    rows = [row for row in read(out) if row.made_by in asked]
    missing = [w for w in wanted if w not in {(row.n, row.seed) for row in rows}]
    out.parent.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    parent = (os.getpid(),)
    with ProcessPoolExecutor(workers or os.cpu_count(), context, die_with_parent, parent) as pool:
        tasks = [pool.submit(_search, algorithm, n, seed, games) for n, seed in reversed(missing)]
        for task in tqdm(as_completed(tasks), total=len(tasks), desc=algorithm, unit=" agents"):
            rows.append(task.result())
            write(out, rows)
    write(out, rows)


def write(path: Path, rows: list[Search]) -> None:
    lines = [",".join(Search._fields), *(",".join(map(str, row)) for row in sorted(rows))]
    write_atomically(path, "\n".join(lines) + "\n")
