"""The agent: the only place where Q-values become actions.

Training, frozen evaluations, the explorer and videos all act through it.
"""

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from qe import envs
from qe.config import Config
from qe.selectors import VOTE, Actions, Algorithm, Floats, Given, infogain

Frames = NDArray[np.uint8]
QValues = Callable[[Frames], NDArray[np.float32]]  # [B, history, *frame_shape] to [B, K, A]
STREAMS = ("action", "head", "choice")  # the generators of an agent


class Thought(NamedTuple):
    """What the heads say of a state, and what the algorithm makes of it."""

    q: Floats  # [K, A]
    choice: int
    bonus: float  # InfoGain, before rho; 0 for an algorithm without


class Move(NamedTuple):
    action: int  # the choice, or a random one
    thought: Thought | None  # None where the network was not asked


class Agent:
    """A network, a configuration and generators become actions."""

    def __init__(
        self,
        config: Config,
        q_values: QValues,
        n_actions: int,
        rngs: dict[str, np.random.Generator],
        rule: Algorithm | None = None,
    ) -> None:
        """`rngs` has the streams above; `rule` is another algorithm than the configuration's."""
        self.config, self.q_values, self.n_actions = config, q_values, n_actions
        self.rngs = rngs
        self.rule = rule or config.rule
        self.head = 0  # that Bootstrapped DQN follows

    def begin(self, new_game: bool) -> None:
        """Call when a life begins; `new_game` says whether a game begins, too."""
        if new_game or self.config.head_per == "life":
            self.head = int(self.rngs["head"].integers(self.config.K))

    def act(self, states: Frames, epsilon: float) -> list[Move]:
        """A move in each of the states `[B, history, *frame_shape]`.

        With probability epsilon it is uniformly random; the network is then asked only for the
        bonus.
        """
        rng = self.rngs["action"]
        actions = [
            int(rng.integers(self.n_actions)) if rng.random() < epsilon else None for _ in states
        ]
        asked = [i for i, action in enumerate(actions) if action is None or self.rule.bonus]
        thoughts: dict[int, Thought] = {}
        if asked:
            every = len(asked) == len(states)
            thoughts = dict(zip(asked, self.think(states if every else states[asked]), strict=True))
        return [
            Move(thoughts[i].choice if action is None else action, thoughts.get(i))
            for i, action in enumerate(actions)
        ]

    def think(self, states: Frames) -> list[Thought]:
        """Ask the network about states, and choose in each."""
        q = self.q_values(states)  # [B, K, A]
        bonus = infogain(q, self.config.temperature) if self.rule.bonus else np.zeros(len(q))
        return list(map(Thought, q, self.choose(q).tolist(), bonus.tolist()))

    def choose(self, q: Floats) -> Actions:
        """The actions that the algorithm takes where the heads say `q` `[..., K, A]`."""
        c = self.config
        return self.rule.choose(q, Given(c.lam, self.head, c.tie_break, self.rngs["choice"]))


class View:
    """A game in progress as the network sees it: the last `history` frames of the life."""

    def __init__(self, config: Config, env: envs.Env) -> None:
        self.env = env
        self.frames = np.zeros((config.history, *env.frame_shape), np.uint8)
        self._begin()

    def _begin(self) -> None:
        self.frames[:-1] = 0
        self.frames[-1] = self.env.reset()

    def follow(self, step: envs.Step) -> bool:
        """Advance past a step; returns whether a new life, or game, has begun."""
        over = step.terminal or step.truncated
        if over:
            self._begin()
        else:
            self.frames[:-1] = self.frames[1:]
            self.frames[-1] = step.frame
        return over


def streams(seed: Sequence[int]) -> dict[str, np.random.Generator]:
    """The generators of an agent that plays without learning, and of its environment."""
    names = ("env", *STREAMS)
    # The last word keeps them apart from the training run's: missing words count as zeros.
    children = np.random.SeedSequence([*seed, 1]).spawn(len(names))
    return dict(zip(names, map(np.random.default_rng, children), strict=True))


def evaluate(
    config: Config, q_values: QValues, index: int
) -> Generator[None, None, list[envs.Game]]:
    """The `index`-th frozen evaluation: `eval_games` games played by majority vote.

    Its environments and generators are its own, made from the seed and the index alone. The games
    are played side by side, so that each step is one forward pass. It is a generator, since it may
    take minutes: after each step its caller may stop, and begin the evaluation again later.
    """
    rngs = streams([config.seed, index])
    players = [
        envs.make(config, rng, max_frames=config.eval_max_frames)
        for rng in rngs["env"].spawn(config.eval_games)
    ]
    agent = Agent(config, q_values, players[0].n_actions, rngs, VOTE)
    views = [View(config, env) for env in players]
    while playing := [view for view in views if not view.env.finished]:
        states = np.stack([view.frames for view in playing])
        for view, move in zip(playing, agent.act(states, config.eval_epsilon), strict=True):
            step = view.env.step(move.action)
            if not view.env.finished:
                view.follow(step)
        yield
    return [env.finished[0] for env in players]
