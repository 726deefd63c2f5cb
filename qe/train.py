"""Training: the run loop, as an iterator of what happens in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from qe import envs
from qe.config import Config
from qe.learner import Learner
from qe.replay import Replay
from qe.schedules import interpolate
from qe.selectors import disagreement, epsilon_greedy, greedy_head, infogain, majority_vote, ucb


class Episode(NamedTuple):
    """A finished full game of the training run."""

    episode: int
    frame: int  # when it ended
    step: int
    score: float  # the raw return
    length: int  # in frames


class Evaluation(NamedTuple):
    """One game of a frozen evaluation by majority vote."""

    frame: int  # of the training run
    step: int
    game: int
    score: float
    length: int


class Diagnostics(NamedTuple):
    """Means over the last `log_every` steps; NaN where nothing was measured."""

    frame: int
    step: int
    updates: int
    epsilon: float
    learning_rate: float
    loss: float  # of a head
    std: float  # over heads, of the chosen action's Q
    agreement: float  # share of the heads that vote for the winner
    tie_rate: float  # how often the vote was tied
    bonus: float  # InfoGain, before rho


COUNTERS = ("step_count", "episodes", "evaluations", "head")  # of a Trainer
Record = Episode | Evaluation | Diagnostics


class Means:
    """Running means by name."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value
        self.counts[name] = self.counts.get(name, 0) + 1

    def __getitem__(self, name: str) -> float:
        return self.sums[name] / self.counts[name] if name in self.sums else float("nan")


def choose(config: Config, q: Tensor, head: int) -> int:
    """The action that the algorithm takes where the heads' Q-values are `q` `[K, A]`."""
    match config.algorithm:
        case "double_dqn" | "bootstrapped_dqn":
            return int(greedy_head(q, head))
        case "ensemble_voting":
            return int(majority_vote(q))
        case "ucb" | "ucb_infogain":
            return int(ucb(q, config.lam))


class Trainer:
    """All the state of a run, advanced one step at a time."""

    def __init__(self, config: Config, replay: Path | None = None) -> None:
        """`replay` is a directory for the replay memory; without one it is not in files."""
        torch.set_num_threads(config.threads)
        self.config = config
        streams = np.random.SeedSequence(config.seed).spawn(6)
        env, action, head, mask, sample = (np.random.default_rng(s) for s in streams[:5])
        self.action_rng, self.head_rng, self.mask_rng, self.sample_rng = action, head, mask, sample
        self.rngs = {"env": env, "action": action, "head": head, "mask": mask, "sample": sample}
        self.env = envs.make(config, env)
        self.n_actions = self.env.n_actions
        self.learner = Learner(
            config, self.env.frame_shape, self.n_actions, seed=int(streams[5].generate_state(1)[0])
        )
        self.replay = Replay(
            config.replay_size,
            self.env.frame_shape,
            config.history,
            K=config.K if config.mask_probability < 1 else 0,
            directory=replay,
        )
        self.step_count = 0
        self.episodes = 0
        self.evaluations = 0
        self.means = Means()
        self.head = 0
        self.stack = np.zeros((config.history, *self.env.frame_shape), np.uint8)
        self._new_game()
        self._new_life(self.env.reset())

    def get_state(self) -> dict[str, Any]:
        """Everything but the replay memory's arrays: what `set_state` goes on from exactly."""
        return {
            "counters": {name: getattr(self, name) for name in COUNTERS},
            "means": {"sums": self.means.sums, "counts": self.means.counts},
            "stack": self.stack,
            "rngs": {name: rng.bit_generator.state for name, rng in self.rngs.items()},
            "env": self.env.get_state(),
            "learner": self.learner.get_state(),
            "replay": self.replay.get_state(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        for name in COUNTERS:
            setattr(self, name, state["counters"][name])
        self.means = Means()
        self.means.sums, self.means.counts = state["means"]["sums"], state["means"]["counts"]
        self.stack[:] = state["stack"]
        for name, rng in self.rngs.items():
            rng.bit_generator.state = state["rngs"][name]
        self.env.set_state(state["env"])
        self.learner.set_state(state["learner"])
        self.replay.set_state(state["replay"])

    @property
    def frame(self) -> int:
        return self.env.frames

    @property
    def done(self) -> bool:
        return self.frame >= self.config.frames

    def _new_game(self) -> None:
        """Bootstrapped DQN follows one head through a whole game."""
        self.head = int(self.head_rng.integers(self.config.K))

    def _new_life(self, frame: NDArray[np.uint8]) -> None:
        self.stack[:-1] = 0
        self.stack[-1] = frame

    def _schedule(self, name: str) -> float:
        t = self.step_count
        unit = self.config.steps if self.config.schedule_unit == "fraction" else 1
        return interpolate(getattr(self.config, name), t / unit)

    def _epsilon(self) -> float:
        if self.step_count < self.config.learning_starts:
            return 1.0
        if self.config.algorithm != "double_dqn" and self.config.ensemble_epsilon == "warmup_only":
            return 0.0
        return self._schedule("epsilon")

    def _act(self) -> tuple[int, float]:
        """An action, and the bonus that is added to what it earns."""
        c = self.config
        action = epsilon_greedy(-1, self._epsilon(), self.n_actions, self.action_rng)
        with_bonus = c.algorithm == "ucb_infogain"
        bonus = 0.0
        if action < 0 or with_bonus:
            q = self.learner.q_values(torch.from_numpy(self.stack)[None])[0]  # [K, A]
            if action < 0:
                action = choose(c, q, self.head)
            if c.K > 1:
                apart = disagreement(q, action)
                self.means.add("std", apart.std)
                self.means.add("agreement", apart.agreement)
                self.means.add("tie", apart.tie)
            if with_bonus:
                b = infogain(q, c.temperature).item()
                self.means.add("bonus", b)
                bonus = c.rho * b
        return action, bonus

    def _learn(self) -> None:
        c = self.config
        t = self.step_count
        if t <= c.learning_starts or t % c.update_every or not self.replay.can_sample():
            return
        batch = self.replay.sample(c.batch_size, self.sample_rng)
        self.means.add("loss", self.learner.update(batch, self._schedule("learning_rate")))

    def step(self) -> list[Record]:
        """One action and, where one is due, one update. Returns what came to an end with it."""
        c = self.config
        action, bonus = self._act()
        mask = None
        if c.mask_probability < 1:
            mask = self.mask_rng.random(c.K) < c.mask_probability
        new = self.env.step(action)
        reward = float(np.sign(new.reward)) if c.clip_rewards else new.reward
        self.replay.add(self.stack[-1], action, reward + bonus, new.terminal, mask)
        self.step_count += 1
        if new.terminal or new.truncated:
            if new.truncated:
                self.replay.add_last(new.frame)
            self._new_life(self.env.reset())
        else:
            self.stack[:-1] = self.stack[1:]
            self.stack[-1] = new.frame
        self._learn()
        return [*self._games(), *self._diagnostics(), *self._evaluations()]

    def _games(self) -> Iterator[Record]:
        for game in self.env.finished:
            self.episodes += 1
            yield Episode(self.episodes, self.frame, self.step_count, game.score, game.frames)
            self._new_game()
        self.env.finished.clear()

    def _diagnostics(self) -> Iterator[Record]:
        if self.step_count % self.config.log_every:
            return
        m = self.means
        yield Diagnostics(
            frame=self.frame,
            step=self.step_count,
            updates=self.learner.updates,
            epsilon=self._epsilon(),
            learning_rate=self._schedule("learning_rate"),
            loss=m["loss"],
            std=m["std"],
            agreement=m["agreement"],
            tie_rate=m["tie"],
            bonus=m["bonus"],
        )
        self.means = Means()

    def _evaluations(self) -> Iterator[Record]:
        every = self.config.eval_every
        if not every or self.frame < (self.evaluations + 1) * every:
            return
        self.evaluations = self.frame // every
        for i, game in enumerate(evaluate(self.learner, self.config, self.evaluations), 1):
            yield Evaluation(self.frame, self.step_count, i, game.score, game.frames)


def evaluate(learner: Learner, config: Config, index: int) -> list[envs.Game]:
    """The `index`-th frozen evaluation: `eval_games` games played by majority vote.

    Its environments and generators are its own, made from the seed and the index alone. The
    games are played side by side, so that each step is one forward pass.
    """
    seeds = np.random.SeedSequence([config.seed, index]).spawn(config.eval_games + 1)
    rng = np.random.default_rng(seeds.pop())
    cap = config.eval_max_frames
    players = [envs.make(config, np.random.default_rng(s), max_frames=cap) for s in seeds]
    stacks = np.zeros((len(players), config.history, *players[0].frame_shape), np.uint8)
    stacks[:, -1] = [env.reset() for env in players]
    playing = [i for i, env in enumerate(players) if not env.finished]
    while playing:
        actions = majority_vote(learner.q_values(torch.from_numpy(stacks[playing])))  # [B]
        for i, action in zip(playing, actions.tolist(), strict=True):
            env = players[i]
            action = epsilon_greedy(action, config.eval_epsilon, env.n_actions, rng)
            new = env.step(action)
            if new.terminal and not env.finished:
                stacks[i] = 0
                stacks[i, -1] = env.reset()
            else:
                stacks[i, :-1] = stacks[i, 1:]
                stacks[i, -1] = new.frame
        playing = [i for i in playing if not players[i].finished]
    return [env.finished[0] for env in players]


def peek(config: Config, steps: int = 400) -> Tensor:
    """The heads' Q-values `[K, A]` in the state that a short run of `steps` steps leads to."""
    short = {"learning_starts": steps // 4, "eval_every": 0}
    trainer = Trainer(config.model_copy(update=short))
    for _ in range(steps):
        trainer.step()
    return trainer.learner.q_values(torch.from_numpy(trainer.stack)[None])[0]


def train(config: Config) -> Iterator[Episode]:
    """The finished games of a run, one after another."""
    trainer = Trainer(config)
    while not trainer.done:
        for record in trainer.step():
            if isinstance(record, Episode):
                yield record
