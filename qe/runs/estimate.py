"""How long runs will take and what they need, from a few seconds of measuring."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
import pandas as pd
import psutil
import torch

from qe import envs
from qe.config import Config, ConfigError, short
from qe.learner import NotFiniteError
from qe.network import QEnsemble
from qe.replay import BYTES_BESIDE_FRAME, default_slack
from qe.runs.experiments import Run, declared, read_params
from qe.runs.provenance import machine
from qe.runs.signals import import_games
from qe.runs.status import read_finished
from qe.schedules import interpolate
from qe.train import Trainer

MOST = 10_000  # workers
MAY_HELP = "a lower learning_rate, or less extreme values of what else was set, may help"


class Speed(NamedTuple):
    """Of one machine with one network, in seconds per step."""

    random: float  # while actions are random and nothing is learned
    asking: float  # what asking the network for an action adds
    learning: float  # later on, the network asked on every step
    parameters: int


def shape(config: Config) -> tuple[object, ...]:
    """What decides the speed: runs with the same shape are measured once."""
    c = config
    network = (c.K, c.channels, c.hidden, c.history, c.batch_size)
    more = (c.update_every, c.preset, c.threads, c.precision, c.prior_scale > 0)
    return c.suite, c.algorithm, network, *more


def measure(config: Config, seconds: float = 2.0) -> Speed:
    """Train for some seconds with a small replay memory, and see; not longer than a short run."""
    import_games(config.suite)
    warmup = 200
    short = {
        "learning_starts": warmup,
        "replay_size": max(2_000, 2 * config.history),
        "epsilon": ((0, 0.0),),
        "eval_every": 0,
        "solved_return": None,
    }
    trainer = Trainer(config.model_copy(update=short))

    def timed(steps: int, at_least: float = 0.0) -> float:
        start, done = time.perf_counter(), 0
        while done < steps or time.perf_counter() - start < at_least:
            trainer.step()
            done += 1
        return (time.perf_counter() - start) / done

    random = timed(warmup)
    timed(min(2 * config.update_every, 2000))  # the first updates allocate
    few = min(4 * config.update_every, 2000)
    learning = timed(few, min(seconds, timed(few) * config.steps / 10))
    start = time.perf_counter()
    for _ in range(20):
        trainer.agent.think(trainer.view.frames[None])
    asking = (time.perf_counter() - start) / 20
    if config.rule.bonus:
        random -= asking  # the bonus asks on random steps, too
    return Speed(max(random, 0.0), asking, learning, trainer.learner.net.size)


def seconds_to(config: Config, speed: Speed, step: int) -> float:
    """Predicted seconds from the start of a run to a step, evaluations left out."""
    learning = max(0, step - config.learning_starts)
    random = (step - learning) * speed.random
    if config.rule.bonus:
        return random + (step - learning) * speed.asking + learning * speed.learning
    return random + learning * (speed.learning - _random_share(config) * speed.asking)


@cache
def _random_share(config: Config) -> float:
    """The share of the steps after the warm-up whose action is random."""
    if config.ensemble_epsilon == "warmup_only":
        return 0.0
    unit = 1 if config.schedule_unit == "fraction" else config.steps
    warmup = min(1.0, config.learning_starts / config.steps)
    times = np.linspace(warmup, 1, 1000)
    return float(np.mean([interpolate(config.epsilon, t * unit) for t in times]))


def needs(config: Config) -> tuple[int, int]:
    """Bytes of disk and of memory that a run takes when its replay is full."""
    import_games(config.suite)
    env = envs.make(config, np.random.default_rng(0))
    with torch.device("meta"):
        network = QEnsemble(config, env.frame_shape, env.n_actions)
    weights = 4 * network.size * (2 if config.prior_scale else 1)
    masks = config.K if config.mask_probability < 1 else 0
    per_frame = int(np.prod(env.frame_shape)) + BYTES_BESIDE_FRAME + masks
    replay = (config.replay_size + default_slack(config.replay_size)) * per_frame
    # Online, target and two moments are saved; memory has the gradient, what a batch leaves in the
    # heads (forward, backward, target) and torch itself besides.
    batch = 3 * 4 * config.batch_size * config.K * config.hidden
    return replay + 3 * 4 * weights, replay + 5 * weights + batch + 500_000_000


def memory_of(configs: Sequence[Config]) -> int:
    """Bytes that the largest of these runs needs."""
    sizes = {(shape(config), config.replay_size): config for config in configs}
    return max(needs(config)[1] for config in sizes.values())


def choose_workers(configs: Sequence[Config], asked: int | None = None) -> int:
    """How many of these runs to make at once: one a core, and what memory bears."""
    if asked is not None:
        if not 1 <= asked <= MOST:
            limit = "at least 1" if asked < 1 else f"at most {MOST}"
            raise ConfigError(f"workers must be {limit}, not {short(asked)}.")
        return asked
    linux = sys.platform == "linux"
    cores = len(os.sched_getaffinity(0)) if linux else os.cpu_count() or 1
    each = memory_of(configs)
    bearable = int(psutil.virtual_memory().available // each)
    if bearable < cores:
        size = f"{each / 1e9:.1f} GB"
        print(f"Memory bears {bearable} runs at once, of up to {size} each.", file=sys.stderr)
    return max(1, min(cores, bearable))


def duration(seconds: float) -> str:
    """`93784` seconds as "1 d 2 h"."""
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {below}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def predict(config: Config) -> tuple[Speed, float]:
    """The speed of a run here, and the seconds that it will take."""
    try:
        with np.errstate(all="ignore"):
            speed = measure(config)
    except NotFiniteError as error:
        raise ConfigError(f"Learning has run away: {error}; {MAY_HELP}.") from None
    except RuntimeError as error:  # torch's, of a value that float32 has no room for
        said = (str(error).strip() or "no reason").splitlines()[0]
        raise ConfigError(f"Learning fails: {said}; {MAY_HELP}.") from None
    return speed, seconds_to(config, speed, config.steps)


def describe(config: Config, speed: Speed, seconds: float) -> str:
    """What a run is and what it will take, in two lines."""
    return (
        f"{config.suite} {config.game}, {config.algorithm}, K = {config.K}, seed {config.seed}: "
        f"{config.frames:,} frames = {config.steps:,} steps; {speed.parameters:,} weights.\n"
        f"Predicted duration here: {duration(seconds)}, {config.steps / seconds:,.0f} steps/s "
        f"(a step {speed.random * 1e3:.2f} ms at first, {speed.learning * 1e3:.2f} ms when "
        f"learning, of which asking the network {speed.asking * 1e3:.2f} ms); "
        f"evaluations not counted."
    )


def measure_together(config: Config, workers: int) -> Speed:
    """The speed of one process while as many as there will be are at work: they share caches."""
    # Ctrl-C is for this process alone, which ends the others: they inherit that it is ignored.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    pool = multiprocessing.get_context("spawn").Pool(workers)
    signal.signal(signal.SIGINT, before)
    with pool:
        found = pool.map(measure, [config] * workers, chunksize=1)
    return Speed(*(median(values) for values in zip(*found, strict=True)))


def estimate_all(params: Path, asked: int | None, price: float | None) -> str:
    """A table of every experiment and variant, the whole, and a comparison with finished runs."""
    if price is not None and not price >= 0:
        raise ConfigError(f"price must be at least 0, not {price}.")
    runs = declared(read_params(params))
    if not runs:
        return f"{params} declares no runs."
    workers = choose_workers([run.config for run in runs], asked)
    speeds = {shape(run.config): run.config for run in runs}
    measured = {key: measure_together(config, workers) for key, config in speeds.items()}

    def predicted(run: Run) -> float:
        return seconds_to(run.config, measured[shape(run.config)], run.config.steps)

    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.experiment, run.variant), []).append(run)
    rows, taken = [], []
    for (experiment, variant), members in groups.items():
        first = members[0].config
        seconds = [predicted(run) for run in members]
        disk, memory = needs(first)
        rows.append({
            "experiment": experiment, "variant": variant, "runs": len(members),
            "steps/s": f"{first.steps / seconds[0]:,.0f}", "a run": duration(seconds[0]),
            "one after another": duration(sum(seconds)),
            "memory": f"{memory / 1e9:.1f} GB", "disk": f"{disk / 1e9:.1f} GB",
        })  # fmt: skip
        for run, guess in zip(members, seconds, strict=True):
            found = read_finished(run.out)
            if found and found["seconds"] and machine().items() <= found["machine"].items():
                rate = found["steps"] / found["seconds"] / (run.config.steps / guess)
                taken.append({"experiment": experiment, "variant": variant, "speed": rate})
    wall = max(sum(map(predicted, runs)) / workers, *map(predicted, runs))
    lines = [
        pd.DataFrame(rows).to_string(index=False),
        "Memory and disk are of one run; the disk holds its replay and checkpoints, and is free "
        "again when it is finished. Not counted: frozen evaluations.",
        f"{len(runs)} runs, {workers} at once on this machine: {duration(wall)}.",
    ]
    if price is not None:
        lines[-1] += f" At {price:g} an hour: {price * wall / 3600:,.2f}."
    if taken:
        groups_taken = pd.DataFrame(taken).groupby(["experiment", "variant"], sort=False)["speed"]
        lines.append(
            "Finished runs made on a machine like this: their speed, as a share of the one "
            f"predicted now\n{groups_taken.describe()[['count', 'min', '50%', 'max']].round(2)}"
        )
    return "\n\n".join(lines)
