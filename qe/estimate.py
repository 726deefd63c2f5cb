"""How long runs will take and what they need, from a few seconds of measuring."""

import os
import sys
import time
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import psutil
import torch

from qe import envs
from qe.config import Config, ConfigError
from qe.network import QEnsemble
from qe.replay import BYTES_BESIDE_FRAME, default_slack
from qe.schedules import interpolate
from qe.train import Trainer


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
    return c.suite, c.algorithm == "double_dqn", network, c.update_every, c.preset, c.threads


def measure(config: Config, seconds: float = 2.0) -> Speed:
    """Train for some seconds with a small replay memory, and see."""
    warmup = 200
    short = {
        "learning_starts": warmup,
        "replay_size": max(2_000, 2 * config.history),
        "epsilon": ((0, 0.0),),
        "eval_every": 0,
        "checkpoint_every": 0,
    }
    trainer = Trainer(config.model_copy(update=short))

    def timed(steps: int, at_least: float = 0.0) -> float:
        start, done = time.perf_counter(), 0
        while done < steps or time.perf_counter() - start < at_least:
            trainer.step()
            done += 1
        return (time.perf_counter() - start) / done

    random = timed(warmup)
    timed(2 * config.update_every)  # the first updates allocate
    learning = timed(4 * config.update_every, seconds)
    frames = torch.from_numpy(trainer.stack)[None]
    start = time.perf_counter()
    for _ in range(20):
        trainer.learner.q_values(frames)
    asking = (time.perf_counter() - start) / 20
    if config.algorithm == "ucb_infogain":
        random -= asking  # the bonus asks on random steps, too
    weights = sum(p.numel() for p in trainer.learner.online.parameters())
    return Speed(max(random, 0.0), asking, learning, weights)


def seconds_to(config: Config, speed: Speed, step: int) -> float:
    """Predicted seconds from the start of a run to a step, evaluations left out."""
    learning = max(0, step - config.learning_starts)
    random = (step - learning) * speed.random
    if config.algorithm == "ucb_infogain":
        return random + (step - learning) * speed.asking + learning * speed.learning
    return random + learning * (speed.learning - _random_share(config) * speed.asking)


@cache
def _random_share(config: Config) -> float:
    """Of the steps after the warm-up: those on which epsilon has its way."""
    if config.algorithm != "double_dqn" and config.ensemble_epsilon == "warmup_only":
        return 0.0
    unit = 1 if config.schedule_unit == "fraction" else config.steps
    warmup = min(1.0, config.learning_starts / config.steps)
    times = np.linspace(warmup, 1, 1000)
    return float(np.mean([interpolate(config.epsilon, t * unit) for t in times]))


def needs(config: Config) -> tuple[int, int]:
    """Bytes of disk and of memory that a run takes when its replay is full."""
    env = envs.make(config, np.random.default_rng(0))
    with torch.device("meta"):
        network = QEnsemble.of(config, env.frame_shape, env.n_actions)
    weights = 4 * sum(p.numel() for p in network.parameters())
    masks = config.K if config.mask_probability < 1 else 0
    per_frame = int(np.prod(env.frame_shape)) + BYTES_BESIDE_FRAME + masks
    replay = (config.replay_size + default_slack(config.replay_size)) * per_frame
    # Online, target and two moments are saved; memory has the gradient and torch itself besides.
    return replay + 3 * 4 * weights, replay + 5 * weights + 500_000_000


def memory_of(configs: Sequence[Config]) -> int:
    """Bytes that the largest of these runs needs."""
    sizes = {(shape(config), config.replay_size): config for config in configs}
    return max(needs(config)[1] for config in sizes.values())


def choose_workers(configs: Sequence[Config], asked: int | None = None) -> int:
    """How many of these runs to make at once: one a core, and what memory bears."""
    if asked is not None:
        if asked < 1:
            raise ConfigError(f"workers must be at least 1, not {asked}.")
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


def describe(config: Config) -> str:
    """What a run is and what it will take, in two lines."""
    speed = measure(config)
    seconds = seconds_to(config, speed, config.steps)
    return (
        f"{config.suite} {config.game}, {config.algorithm}, K = {config.K}, seed {config.seed}: "
        f"{config.frames:,} frames = {config.steps:,} steps; {speed.parameters:,} weights.\n"
        f"Predicted duration here: {duration(seconds)}, {config.steps / seconds:,.0f} steps/s "
        f"(a step {speed.random * 1e3:.2f} ms at first, {speed.learning * 1e3:.2f} ms when "
        f"learning, of which asking the network {speed.asking * 1e3:.2f} ms); "
        f"evaluations not counted."
    )
