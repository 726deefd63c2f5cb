"""What a run writes down: the rows of its logs, around the loop that makes them."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from qe.agent import Thought, evaluate
from qe.selectors import vote_counts
from qe.train import Trainer


class Episode(NamedTuple):
    """A finished full game of the training run."""

    episode: int
    frame: int  # when it ended
    step: int
    return_: float  # raw
    length: int  # in frames


class Evaluation(NamedTuple):
    """One game of a frozen evaluation by majority vote."""

    frame: int  # of the training run
    step: int
    number: int  # of the game in this evaluation
    return_: float
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
    own_std: float  # the same without what a head thinks of all actions alike
    agreement: float  # share of the heads that vote for the winner
    tie_rate: float  # how often the vote is tied
    off_mean: float  # how often the choice is not the action of the highest mean
    bonus: float  # InfoGain, before rho


Record = Episode | Evaluation | Diagnostics
LOGS: dict[type, str] = {
    Episode: "episodes.csv",
    Evaluation: "evaluations.csv",
    Diagnostics: "diagnostics.csv",
}


def columns(kind: type) -> list[str]:
    """The header of a record's log: `return`, which Python reserves, has no underscore there."""
    return [name.rstrip("_") for name in kind._fields]  # type: ignore[attr-defined]


class Disagreement:
    """Means over the states in which the heads were asked: how far they are apart.

    Q-values are collected and looked at some hundred states at a time: looking at each state by
    itself would cost as much as choosing.
    """

    SIZE = 256
    NAMES = ("std", "own_std", "agreement", "tie_rate", "off_mean")

    def __init__(self, K: int, n_actions: int) -> None:
        self.q = np.zeros((self.SIZE, K, n_actions), np.float32)
        self.choices = np.zeros(self.SIZE, np.int64)
        self.waiting = 0  # states that were collected, and not looked at yet
        self.states = 0  # that were looked at
        self.sums = np.zeros(len(self.NAMES))

    def add(self, thought: Thought) -> None:
        self.q[self.waiting] = thought.q
        self.choices[self.waiting] = thought.choice
        self.waiting += 1
        if self.waiting == self.SIZE:
            self._look()

    def _look(self) -> None:
        n, K = self.waiting, self.q.shape[1]
        q, choices = self.q[:n].astype(np.float64), self.choices[:n]  # [n, K, A], [n]
        votes = vote_counts(q)  # [n, A]
        most = votes.max(-1, keepdims=True)
        own = q - q.mean(-1, keepdims=True)
        self.sums += [
            q.std(1)[range(n), choices].sum(),
            own.std(1)[range(n), choices].sum(),
            most.sum() / K,
            ((votes == most).sum(-1) > 1).sum(),
            (q.mean(1).argmax(-1) != choices).sum(),
        ]
        self.states += n
        self.waiting = 0

    def means(self) -> dict[str, float]:
        """Since the last call; NaN where there were none."""
        self._look()
        means = self.sums / self.states if self.states else np.full(len(self.NAMES), np.nan)
        self.sums, self.states = np.zeros(len(self.NAMES)), 0
        return dict(zip(self.NAMES, means.tolist(), strict=True))


class Diary:
    """What there is to write down of a run, and what it has to remember for that."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.episodes = self.evaluations = 0
        self.apart = Disagreement(trainer.config.K, trainer.env.n_actions)
        self._forget()

    def _forget(self) -> None:
        self.loss = self.bonus = 0.0  # sums since the last row of diagnostics
        self.losses = self.bonuses = 0  # how many of them

    def keep(self) -> Iterator[list[Record]]:
        """The run to its end: after each step, of the loop or of an evaluation, the new rows.

        A checkpoint may be taken after each. An evaluation that was stopped begins again.
        """
        trainer, every = self.trainer, self.trainer.config.eval_every
        while True:
            if every and trainer.frame >= (self.evaluations + 1) * every:
                yield from self._evaluate(trainer.frame // every)
            if trainer.done:
                return
            yield self._step()

    def _evaluate(self, index: int) -> Iterator[list[Record]]:
        trainer = self.trainer
        evaluation = evaluate(trainer.config, trainer.learner.q_values, index)
        while True:
            try:
                next(evaluation)
            except StopIteration as end:
                games = end.value
                break
            yield []
        self.evaluations = index
        yield [
            Evaluation(trainer.frame, trainer.steps, i, game.return_, game.length)
            for i, game in enumerate(games, 1)
        ]

    def _step(self) -> list[Record]:
        trainer = self.trainer
        (_, thought), games, loss = trainer.step()
        if thought is not None:
            if trainer.config.K > 1:
                self.apart.add(thought)
            if trainer.agent.rule.bonus:
                self.bonus += thought.bonus
                self.bonuses += 1
        if loss is not None:
            self.loss += loss
            self.losses += 1
        rows: list[Record] = []
        for game in games:
            self.episodes += 1
            rows.append(Episode(self.episodes, game.end, trainer.steps, game.return_, game.length))
        if trainer.steps % trainer.config.log_every == 0:
            rows.append(self._diagnostics())
        return rows

    def _diagnostics(self) -> Diagnostics:
        trainer, nan = self.trainer, float("nan")
        means = {
            "epsilon": trainer.epsilon,
            "learning_rate": trainer.scheduled("learning_rate"),
            "loss": self.loss / self.losses if self.losses else nan,
            **self.apart.means(),
            "bonus": self.bonus / self.bonuses if self.bonuses else nan,
        }
        self._forget()
        rounded = {name: float(f"{value:.6g}") for name, value in means.items()}
        return Diagnostics(trainer.frame, trainer.steps, trainer.learner.updates, **rounded)

    _NUMBERS = ("episodes", "evaluations", "loss", "losses", "bonus", "bonuses")
    _APART = ("q", "choices", "waiting", "states", "sums")

    def get_state(self) -> dict[str, Any]:
        apart = {name: getattr(self.apart, name) for name in self._APART}
        return {name: getattr(self, name) for name in self._NUMBERS} | {"apart": apart}

    def set_state(self, state: dict[str, Any]) -> None:
        for name in self._NUMBERS:
            setattr(self, name, state[name])
        for name in self._APART:
            value = state["apart"][name]
            setattr(self.apart, name, value if isinstance(value, int) else np.array(value))
