"""Training: the loop and nothing else. Evaluation, diagnostics and logging are around it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from qe import envs
from qe.agent import STREAMS, Agent, Move, View
from qe.config import Config
from qe.learner import Learner
from qe.replay import Replay
from qe.schedules import interpolate

LAST = 100  # games that decide whether the game is solved


class Happened(NamedTuple):
    """One step of the loop."""

    move: Move
    games: list[envs.Game]  # that came to an end with it
    loss: float | None  # of a head, where there was an update


class Trainer:
    """All the state of a run, advanced one step at a time."""

    def __init__(self, config: Config, replay: Path | None = None) -> None:
        """`replay` is a directory for the replay memory; without one it is not in files."""
        torch.set_num_threads(config.threads)
        self.config = config
        names = ("env", *STREAMS, "mask", "sample")
        *seeds, weights = np.random.SeedSequence(config.seed).spawn(len(names) + 1)
        self.rngs = dict(zip(names, map(np.random.default_rng, seeds), strict=True))
        self.env = envs.make(config, self.rngs["env"])
        shape, n_actions = self.env.frame_shape, self.env.n_actions
        self.learner = Learner(config, shape, n_actions, seed=int(weights.generate_state(1)[0]))
        masks = config.K if config.mask_probability < 1 else 0
        self.replay = Replay(config.replay_size, shape, config.history, masks, replay)
        self.agent = Agent(config, self.learner.q_values, n_actions, self.rngs)
        self.view = View(config, self.env)
        self.agent.begin(new_game=True)
        self.steps = 0
        self.solving: list[bool] = []  # of the last games, which had the return that solves it

    @property
    def frame(self) -> int:
        return self.env.frames

    @property
    def done(self) -> bool:
        return self.frame >= self.config.frames or sum(self.solving) >= self.config.solved_games

    def scheduled(self, name: str) -> float:
        """The value of `epsilon` or `learning_rate` now."""
        unit = self.config.steps if self.config.schedule_unit == "fraction" else 1
        return interpolate(getattr(self.config, name), self.steps / unit)

    @property
    def epsilon(self) -> float:
        if self.steps < self.config.learning_starts:
            return 1.0
        return 0.0 if self.config.ensemble_epsilon == "warmup_only" else self.scheduled("epsilon")

    def step(self) -> Happened:
        """One action and, where one is due, one update."""
        c = self.config
        (move,) = self.agent.act(self.view.frames[None], self.epsilon)
        new = self.env.step(move.action)
        reward = float(np.sign(new.reward)) if c.clip_rewards else new.reward
        bonus = c.rho * move.thought.bonus if move.thought else 0.0
        mask = None
        if c.mask_probability < 1:
            mask = self.rngs["mask"].random(c.K) < c.mask_probability
        self.replay.add(self.view.frames[-1], move.action, reward + bonus, new.terminal, mask)
        if new.truncated:
            self.replay.add_last(new.frame)
        begins = self.view.follow(new)
        games, self.env.finished = self.env.finished, []
        if begins:
            self.agent.begin(new_game=bool(games))
        if c.solved_return is not None:
            self.solving = [*self.solving, *(g.return_ >= c.solved_return for g in games)][-LAST:]
        self.steps += 1
        return Happened(move, games, self._learn())

    def _learn(self) -> float | None:
        c = self.config
        if self.steps <= c.learning_starts or self.steps % c.update_every:
            return None
        if not self.replay.can_sample():
            return None
        batch = self.replay.sample(c.batch_size, self.rngs["sample"])
        return self.learner.update(batch, self.scheduled("learning_rate"))

    def get_state(self) -> dict[str, Any]:
        """Everything but the replay memory's arrays: what `set_state` goes on from exactly."""
        return {
            "steps": self.steps,
            "solving": self.solving,
            "head": self.agent.head,
            "view": self.view.frames,
            "rngs": {name: rng.bit_generator.state for name, rng in self.rngs.items()},
            "env": self.env.get_state(),
            "learner": self.learner.get_state(),
            "replay": self.replay.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.steps, self.solving = state["steps"], state["solving"]
        self.agent.head = state["head"]
        self.view.frames[:] = state["view"]
        for name, rng in self.rngs.items():
            rng.bit_generator.state = state["rngs"][name]
        self.env.set_state(state["env"])
        self.learner.set_state(state["learner"])
        self.replay.set_state(state["replay"])


def train(trainer: Trainer) -> Iterator[Happened]:
    """The run, step by step, from where the trainer is to the end."""
    while not trainer.done:
        yield trainer.step()
