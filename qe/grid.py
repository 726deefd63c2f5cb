"""What a whole grid of runs will take, before anyone commits to it."""

import multiprocessing
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from statistics import median

import pandas as pd

from qe.config import ALGORITHMS, Config, ConfigError
from qe.estimate import Speed, choose_workers, duration, measure, needs, seconds_to, shape
from qe.notebooks import Asked, Planned, plan, read_params
from qe.provenance import machine
from qe.status import read_finished

SUITES = ("minatar", "atari")
SWEPT = {"temperature": "ucb_infogain", "lam": "ucb"}


def grid(params: Path) -> Iterator[Planned]:
    """The runs that dvc.yaml makes of a parameter file."""
    sections = read_params(params)
    for suite in SUITES:
        section = sections[suite]
        for game, algorithm, seed in product(section["games"], ALGORITHMS, section["seeds"]):
            yield plan(Asked(suite, game, algorithm, seed), sections)
    section = sections["sweeps"]
    for name, sweeper in SWEPT.items():
        for game, value, seed in product(section["games"], section[name], section["seeds"]):
            yield plan(Asked("minatar", game, sweeper, seed, (name, value)), sections)


def measure_together(config: Config, workers: int) -> Speed:
    """The speed of one process while as many as there will be are at work: they share caches."""
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        found = pool.map(measure, [config] * workers, chunksize=1)
    return Speed(*(median(values) for values in zip(*found, strict=True)))


def estimate_grid(params: Path, asked: int | None, price: float | None) -> str:
    """A table of every suite and algorithm, the whole, and a comparison with finished runs."""
    if price is not None and price < 0:
        raise ConfigError(f"price must be at least 0, not {price}.")
    runs = list(grid(params))
    if not runs:
        return f"{params} declares no runs."
    workers = choose_workers([run.config for run in runs], asked)
    speeds = {shape(run.config): run.config for run in runs}
    measured = {key: measure_together(config, workers) for key, config in speeds.items()}

    def predicted(run: Planned) -> float:
        return seconds_to(run.config, measured[shape(run.config)], run.config.steps)

    groups: dict[tuple[str, str], list[Planned]] = {}
    for run in runs:
        groups.setdefault((run.config.suite, run.algorithm), []).append(run)
    rows, taken = [], []
    for (suite, algorithm), members in groups.items():
        first = members[0].config
        seconds = [predicted(run) for run in members]
        disk, memory = needs(first)
        rows.append({
            "suite": suite, "algorithm": algorithm, "runs": len(members),
            "steps/s": f"{first.steps / seconds[0]:,.0f}", "a run": duration(seconds[0]),
            "one after another": duration(sum(seconds)),
            "memory": f"{memory / 1e9:.1f} GB", "disk": f"{disk / 1e9:.1f} GB",
        })  # fmt: skip
        for run, guess in zip(members, seconds, strict=True):
            found = read_finished(run.out)
            if found and machine().items() <= found["machine"].items():
                rate = found["steps"] / found["seconds"] / (run.config.steps / guess)
                taken.append({"suite": suite, "algorithm": algorithm, "speed": rate})
    wall = max(sum(map(predicted, runs)) / workers, *map(predicted, runs))
    lines = [
        pd.DataFrame(rows).to_string(index=False),
        "Memory and disk are of one run; the disk holds its replay and checkpoints, and is free "
        "again when it is finished. Not counted: frozen evaluations, and whatever else than "
        "the suites' grids and the sweeps params.yaml has.",
        f"{len(runs)} runs, {workers} at once on this machine: {duration(wall)}.",
    ]
    if price is not None:
        lines[-1] += f" At {price:g} an hour: {price * wall / 3600:,.2f}."
    if taken:
        groups_taken = pd.DataFrame(taken).groupby(["suite", "algorithm"], sort=False)["speed"]
        lines.append(
            "Finished runs made on a machine like this: their speed, as a share of the one "
            f"predicted now\n{groups_taken.describe()[['count', 'min', '50%', 'max']].round(2)}"
        )
    return "\n\n".join(lines)
