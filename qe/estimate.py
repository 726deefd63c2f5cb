"""How long a run will take and what it needs, from a few seconds of measuring."""

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from qe import envs
from qe.config import Config
from qe.learner import Learner
from qe.network import QEnsemble
from qe.replay import BYTES_BESIDE_FRAME, Batch, default_slack
from qe.schedules import interpolate


class Estimate(NamedTuple):
    env_seconds: float  # per step
    act_seconds: float  # per step that asks the network
    update_seconds: float
    seconds: float  # the whole run, evaluations left out
    parameters: int


def _time(work: Callable[[], object], repeats: int) -> float:
    work()
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def acting_share(config: Config) -> float:
    """The share of steps on which the network is asked: all but the random ones."""
    if config.algorithm == "ucb_infogain":
        return 1.0
    warmup = min(1.0, config.learning_starts / config.steps)
    if config.algorithm != "double_dqn" and config.ensemble_epsilon == "warmup_only":
        return 1 - warmup
    unit = 1 if config.schedule_unit == "fraction" else config.steps
    shares = np.linspace(0, 1, 1000)
    greedy = [1 - interpolate(config.epsilon, x * unit) for x in shares if x >= warmup]
    return sum(greedy) / len(shares)


def estimate(config: Config) -> Estimate:
    """Measures this machine with copies of the run's parts, for a few seconds."""
    torch.set_num_threads(config.threads)
    rng = np.random.default_rng(0)
    env = envs.make(config, rng)
    learner = Learner(config, env.frame_shape, env.n_actions, seed=0)
    shape = (config.batch_size, config.history + 1, *env.frame_shape)
    batch = Batch(
        window=np.zeros(shape, np.uint8),
        action=np.zeros(config.batch_size, np.int64),
        reward=np.zeros(config.batch_size, np.float32),
        terminal=np.zeros(config.batch_size, np.bool_),
        mask=None,
    )
    env.reset()

    def play() -> None:
        new = env.step(int(rng.integers(env.n_actions)))
        if new.terminal or new.truncated:
            env.reset()

    env_seconds = _time(play, 100)
    frames = torch.from_numpy(batch.obs[:1])
    act_seconds = _time(lambda: learner.q_values(frames), 10)
    update_seconds = _time(lambda: learner.update(batch, 0.0), 5)

    updates = max(0, config.steps - config.learning_starts) // config.update_every
    seconds = config.steps * (env_seconds + acting_share(config) * act_seconds)
    return Estimate(
        env_seconds,
        act_seconds,
        update_seconds,
        seconds + updates * update_seconds,
        parameters=sum(p.numel() for p in learner.online.parameters()),
    )


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


def duration(seconds: float) -> str:
    """`93784` seconds as "1 d 2 h"."""
    for unit, size, below, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit} {int(seconds % size // part)} {below}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def describe(config: Config) -> str:
    """What a run is and what it will take, in two lines."""
    e = estimate(config)
    return (
        f"{config.suite} {config.game}, {config.algorithm}, K = {config.K}, seed {config.seed}: "
        f"{config.frames:,} frames = {config.steps:,} steps; {e.parameters:,} weights.\n"
        f"Predicted duration here: {duration(e.seconds)}, {config.steps / e.seconds:,.0f} steps/s "
        f"(update {e.update_seconds * 1e3:.1f} ms, choosing {e.act_seconds * 1e3:.2f} ms, "
        f"emulator {e.env_seconds * 1e3:.2f} ms), evaluations not counted."
    )
