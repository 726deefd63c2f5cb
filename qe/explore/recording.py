"""One game of a trained ensemble, and what every head thought in each of its states.

Everything about the states is a pure function of the recorded Q-values, so lambda, T and the
followed head can be changed afterwards, and the whole game at once.
"""

import difflib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from tqdm import tqdm

from qe import RESULTS, envs
from qe.agent import Agent, View, streams
from qe.analysis.labels import LABELS
from qe.config import Config, ConfigError, configure
from qe.network import QEnsemble
from qe.runs.live import watched
from qe.runs.session import NETWORK
from qe.runs.status import check_files, read_finished
from qe.selectors import ALGORITHMS, Actions, Floats, Given, infogain, vote_counts
from qe.train import Trainer

RUNS = RESULTS / "runs"
MINATAR_ACTIONS = ("no-op", "left", "up", "right", "down", "fire")
# Okabe and Ito's colours for MinAtar's channels, on a dark ground.
PALETTE = np.array(
    [(230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (213, 94, 0), (204, 121, 167),
     (0, 114, 178), (255, 255, 255), (150, 150, 150), (255, 179, 179)], np.uint8,
)  # fmt: skip
GROUND = np.array((24, 24, 28), np.uint8)


class Recording(NamedTuple):
    """A game of T steps, or the first T steps of it."""

    config: Config
    pictures: NDArray[np.uint8]  # [T, height, width, 3], the states as a person sees them
    q: NDArray[np.float32]  # [T, K, A]
    actions: NDArray[np.int64]  # [T], taken; a few of them at random
    rewards: NDArray[np.float64]  # [T], raw
    names: tuple[str, ...]  # of the actions
    things: tuple[str, ...] = ()  # that MinAtar draws, in the order of `PALETTE`

    @property
    def title(self) -> str:
        c = self.config
        scale = "" if c.profile in ("default", "paper") else f", {c.profile} profile"
        name = LABELS.get(c.algorithm, c.algorithm)
        return f"{c.game}, {name}, {c.frames:,} frames{scale}, K = {c.K}"


def load(directory: Path | str) -> tuple[Config, QEnsemble]:
    """The configuration and the network of a finished run that kept its network."""
    directory = Path(directory)
    made = read_finished(directory)
    if made is None:
        raise ConfigError(f"There is no finished run in {directory}.")
    if NETWORK not in made["files"]:
        raise ConfigError(
            f"{directory} has no {NETWORK}: train with --keep_network true, which keeps it."
        )
    check_files(directory, made)
    config = configure(**made["config"])
    env = envs.make(config, np.random.default_rng(0))
    network = QEnsemble(config, env.frame_shape, env.n_actions)
    network.load_state_dict(load_file(directory / NETWORK))
    return config, network


def shipped() -> dict[str, Path]:
    """The runs that are shipped with their networks, by a name to choose them by."""
    found = sorted(path.parent for path in RUNS.glob(f"*/*/*/*/{NETWORK}"))
    return {" ".join(path.relative_to(RUNS).parts[:3]): path for path in found}


def find(name: str) -> Path:
    """The shipped run of this name, as in `shipped`."""
    runs = shipped()
    if name not in runs:
        near = difflib.get_close_matches(name, runs, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise ConfigError(
            f"There is no shipped ensemble {name!r}; there is {' and '.join(map(repr, runs))}{hint}"
        )
    return runs[name]


def picture(env: envs.Env, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What a person would look at: `[height, width, 3]`."""
    if isinstance(env, envs.Atari):
        return env.ale.getScreenRGB()
    planes = frame.reshape(1, env.n, env.n) if isinstance(env, envs.DeepSea) else frame
    image = np.broadcast_to(GROUND, (*planes.shape[1:], 3)).copy()
    for plane, color in zip(planes, PALETTE, strict=False):
        image[plane > 0] = color
    return image


def action_names(env: envs.Env) -> tuple[str, ...]:
    match env:
        case envs.Atari():
            return tuple(a.name.lower().replace("noop", "no-op") for a in env.actions)
        case envs.MinAtar():
            return tuple(MINATAR_ACTIONS[a] for a in env.actions)
    return ("0", "1")  # left or right, as the cell has it


def thing_names(env: envs.Env) -> tuple[str, ...]:
    """What each plane of a MinAtar game is."""
    if not isinstance(env, envs.MinAtar):
        return ()
    planes: dict[str, int] = env.env.env.channels
    words = (name.replace("_", " ").replace("guage", "gauge") for name in planes)
    return tuple(words)


def choices(q: Floats, lam: float, head: int = 0) -> dict[str, Actions]:
    """The action `[...]` that each algorithm takes where the heads say `q` `[..., K, A]`.

    Double DQN would have one head only: here it takes the action of the ensemble's first.
    """
    return {
        name: rule.choose(q, Given(lam, head if rule.ensemble else 0))
        for name, rule in ALGORITHMS.items()
    }


def play(config: Config, network: QEnsemble, seed: int = 0, max_steps: int = 1000) -> Recording:
    """One game by the run's own algorithm, with the epsilon of frozen evaluations."""

    def q_values(frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        return network(torch.from_numpy(frames)).numpy()

    rngs = streams([config.seed, seed])
    env = envs.make(config, rngs["env"], max_frames=config.eval_max_frames)
    agent, view = Agent(config, q_values, env.n_actions, rngs), View(config, env)
    agent.begin(new_game=True)
    pictures: list[NDArray[np.uint8]] = []
    qs: list[Floats] = []
    actions: list[int] = []
    rewards: list[float] = []
    bar = tqdm(
        total=max_steps, desc="Playing", unit=" steps", ncols=80, file=sys.stdout, leave=False,
        disable=not watched(),
    )  # fmt: skip
    while not env.finished and len(actions) < max_steps:
        (move,) = agent.act(view.frames[None], config.eval_epsilon)
        (thought,) = [move.thought] if move.thought else agent.think(view.frames[None])
        pictures.append(picture(env, view.frames[-1]))
        new = env.step(move.action)
        qs.append(thought.q)
        actions.append(move.action)
        rewards.append(new.reward)
        bar.update()
        if not env.finished and view.follow(new):  # the game's next life
            agent.begin(new_game=False)
    bar.close()
    return Recording(
        config=config,
        pictures=np.stack(pictures),
        q=np.stack(qs),
        actions=np.array(actions),
        rewards=np.array(rewards),
        names=action_names(env),
        things=thing_names(env),
    )


def record(run: Path | str, seed: int = 0, max_steps: int = 1000) -> Recording:
    """A game of the run in this directory."""
    return play(*load(run), seed, max_steps)


def peek(config: Config, steps: int = 400) -> Floats:
    """The heads' Q-values `[K, A]` in the state that a short run of `steps` steps leads to."""
    trainer = Trainer(config.model_copy(update={"learning_starts": steps // 4}))
    for _ in range(steps):
        trainer.step()
    return trainer.learner.q_values(trainer.view.frames[None])[0]


class Strips(NamedTuple):
    """How far the heads are apart, step by step, `[T]` each."""

    spread: NDArray[np.float64]  # std over heads of the taken action's Q
    agreement: NDArray[np.float64]  # share of heads that vote for the winner
    bonus: Floats  # InfoGain, before rho
    opinions: NDArray[np.int64]  # how many different actions the five algorithms would take


def strips(recording: Recording, lam: float, temperature: float, head: int = 0) -> Strips:
    q = recording.q
    T, K, A = q.shape
    actions = np.stack(list(choices(q, lam, head).values()), -1)  # [T, 5]
    named = (actions[..., None] == np.arange(A)).any(1)  # [T, A]
    return Strips(
        spread=q.astype(np.float64).std(1)[range(T), recording.actions],
        agreement=vote_counts(q).max(-1) / K,
        bonus=infogain(q, temperature),
        opinions=named.sum(-1),
    )


def most_disputed(strip: Strips, count: int = 6, apart: int = 10) -> list[int]:
    """States where the algorithms disagree most, the least agreed vote first, in order of time.

    They are at least `apart` steps from each other.
    """
    order = np.lexsort((strip.agreement, -strip.opinions))
    chosen: list[int] = []
    for t in order:
        if len(chosen) < count and all(abs(t - other) >= apart for other in chosen):
            chosen.append(int(t))
    return sorted(chosen)


def departures(q: Floats, lams: Sequence[float]) -> pd.DataFrame:
    """In what share of the states `q` `[T, K, A]` UCB takes another action, a row per lambda.

    Another than the vote, and another than at lambda 0, where it takes the highest mean.
    """
    highest = choices(q, 0.0)
    others = {"the vote": highest["ensemble_voting"], "the highest mean": highest["ucb"]}
    rows = [
        [float((choices(q, lam)["ucb"] != taken).mean()) for taken in others.values()]
        for lam in lams
    ]
    index = pd.Index(lams, name="lambda")
    return pd.DataFrame(rows, index, columns=[f"other than {name}" for name in others])


def flips(q: Floats, largest: float = 10.0) -> list[tuple[float, int]]:
    """Where UCB changes its mind: (lambda, the action from there on), beginning with lambda 0.

    mean + lambda std is a line for each action of `q` `[K, A]`; these are the corners of the
    lines' upper envelope.
    """
    q = q.astype(np.float64)
    mean, std = q.mean(-2), q.std(-2)
    action = int(mean.argmax())
    found, lam = [(0.0, action)], 0.0
    while True:
        steeper = std > std[action]
        with np.errstate(divide="ignore", invalid="ignore"):
            meets = np.where(steeper, (mean[action] - mean) / (std - std[action]), np.inf)
        meets = np.where(meets >= lam, meets, np.inf)
        if not np.isfinite(meets).any() or meets.min() > largest:
            return found
        lam = float(meets.min())
        tied = np.flatnonzero(meets == meets.min())
        action = int(tied[std[tied].argmax()])
        found.append((lam, action))
