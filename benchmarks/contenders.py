"""What is timed. A contender is made once, and then asked again and again for a piece of work."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

from qe.config import Config, configure
from qe.replay import Batch


class Contender(NamedTuple):
    work: Callable[[], object]
    units: int = 1  # updates or steps in one piece of work


def config_of(suite: str, K: int, **values: Any) -> Config:
    algorithm = "double_dqn" if K == 1 else "ucb"
    game = {"atari": "Pong", "minatar": "Breakout"}[suite]
    return configure(suite=suite, game=game, algorithm=algorithm, K=K, **values)


def random_batch(config: Config, frame_shape: tuple[int, ...], n_actions: int) -> Batch:
    rng = np.random.default_rng(0)
    n = config.batch_size
    high = 256 if config.suite == "atari" else 2
    return Batch(
        window=rng.integers(0, high, (n, config.history + 1, *frame_shape), np.uint8),
        action=rng.integers(0, n_actions, n),
        reward=rng.normal(size=n).astype(np.float32),
        terminal=rng.random(n) < 0.01,
        mask=None,
    )


def update(suite: str, K: int, loop: bool = False, threads: int = 1, batch: int = 32) -> Contender:
    """One learning update."""
    from benchmarks.loop import LoopLearner
    from qe import envs
    from qe.learner import Learner

    torch.set_num_threads(threads)
    config = config_of(suite, K, batch_size=batch)
    env = envs.make(config, np.random.default_rng(0))
    shape, n_actions = env.frame_shape, env.n_actions
    learner = LoopLearner(config, shape, n_actions) if loop else None
    learner = learner or Learner(config, shape, n_actions, seed=0)
    data = random_batch(config, shape, n_actions)
    return Contender(lambda: learner.update(data, 1e-4))


def sgemm(n: int = 1536, threads: int = 1) -> Contender:
    """2 n^3 floating-point operations, as fast as this machine does them."""
    torch.set_num_threads(threads)
    a, b, c = (torch.randn(n, n) for _ in range(3))
    return Contender(lambda: torch.mm(a, b, out=c))


def memory(megabytes: int = 256) -> Contender:
    """One pass over two arrays of this size, as Adam makes them: both read, one written."""
    torch.set_num_threads(1)
    a, b = (torch.ones(megabytes * 250_000) for _ in range(2))
    return Contender(lambda: a.add_(b))


SHORT = {"eval_every": 0, "replay_size": 50_000, "epsilon": [[0, 0.1]], "log_every": 1_000}


def ours(
    suite: str, K: int, learning_starts: int, steps: int, precision: str = "float32"
) -> Contender:
    """The agent of this project, at its settings, all but always asking its network."""
    from qe.runs.records import Diary
    from qe.train import Trainer

    values = {"learning_starts": learning_starts, "precision": precision, **SHORT}
    rows = Diary(Trainer(config_of(suite, K, **values))).keep()
    return Contender(lambda: [next(rows) for _ in range(steps)], steps)


def choosing(suite: str, K: int, alone: bool) -> Contender:
    """An action without learning: all that it takes, or asking the network alone."""
    from qe.train import Trainer

    trainer = Trainer(config_of(suite, K, **SHORT))
    state, agent, ask = trainer.view.frames[None], trainer.agent, trainer.learner.q_values
    return Contender(lambda: [ask(state) if alone else agent.act(state, 0.0) for _ in range(100)],
                     100)  # fmt: skip


def straightforward(K: int, learning_starts: int, steps: int) -> Contender:
    """The loop over head modules, on MinAtar."""
    from benchmarks.loop import LoopAgent

    torch.set_num_threads(1)
    agent = LoopAgent(config_of("minatar", K, learning_starts=learning_starts, **SHORT))
    return Contender(lambda: [agent.step() for _ in range(steps)], steps)


def sb3(suite: str, learning_starts: int, steps: int) -> Contender:
    """Stable-Baselines3's DQN with the network and the settings of our Double DQN."""
    from benchmarks.peers import sb3_model

    torch.set_num_threads(1)
    model = sb3_model(config_of(suite, 1, learning_starts=learning_starts, **SHORT))
    return Contender(lambda: model.learn(steps, reset_num_timesteps=False), steps)


def replay_memory(frames: int, sb3: bool) -> dict[str, float]:
    """Fill a replay memory with Pong-sized frames; bytes, and seconds to add and to sample."""
    from benchmarks.measure import median_of
    from qe.replay import Replay

    rng = np.random.default_rng(0)
    process = psutil.Process(os.getpid())
    before = process.memory_info().rss
    frame = rng.integers(0, 256, (1, 84, 84), np.uint8)
    stack = rng.integers(0, 256, (1, 4, 84, 84), np.uint8)
    if sb3:
        from benchmarks.peers import sb3_replay

        theirs = sb3_replay(frames)
        action, zero = np.zeros((1, 1), np.int64), np.zeros(1, np.float32)

        def add() -> None:
            theirs.add(stack, stack, action, zero, zero, [{}])

        def sample() -> None:
            theirs.sample(32)
    else:
        mine = Replay(frames, (1, 84, 84), 4)

        def add() -> None:
            mine.add(frame, 0, 0.0, False)

        def sample() -> None:
            mine.sample(32, rng)

    seconds = {}
    for i in range(1, frames + 1):
        add()
        if i in (frames // 100, frames // 2, frames):
            seconds[f"sample at {100 * i // frames} %"] = median_of(sample, 200)
    rss = process.memory_info().rss - before
    return {"bytes per transition": rss / frames, "add": median_of(add, 2000), **seconds}
