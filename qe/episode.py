"""One game of a trained ensemble, and what every head thought in each of its states.

Everything about the states is a pure function of the recorded Q-values, so lambda, T and the
followed head can be changed afterwards, and the whole game at once.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from torch import Tensor

from qe import RESULTS, envs
from qe.config import ALGORITHMS, Config, ConfigError, configure
from qe.network import QEnsemble
from qe.run import NETWORK
from qe.selectors import epsilon_greedy, greedy_head, infogain, majority_vote, ucb, vote_counts
from qe.tables import LABELS

ENSEMBLES = RESULTS / "ensembles"  # runs that are shipped with their networks
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
    q: Tensor  # [T, K, A]
    actions: NDArray[np.int64]  # [T], taken; a few of them at random
    rewards: NDArray[np.float64]  # [T], raw
    names: tuple[str, ...]  # of the actions

    @property
    def title(self) -> str:
        c = self.config
        scale = "" if c.profile in ("default", "paper") else f", {c.profile} profile"
        return f"{c.game}, {LABELS[c.algorithm]}, {c.frames:,} frames{scale}, K = {c.K}"


def load(directory: Path | str) -> tuple[Config, QEnsemble]:
    """The configuration and the network of a finished run that kept its network."""
    directory = Path(directory)
    path = directory / "run.json"
    if not path.is_file():
        raise ConfigError(f"There is no finished run in {directory}.")
    config = configure(**json.loads(path.read_text())["config"])
    if not (directory / NETWORK).is_file():
        raise ConfigError(
            f"{directory} has no {NETWORK}: train with --keep_network true, which keeps it."
        )
    env = envs.make(config, np.random.default_rng(0))
    network = QEnsemble.of(config, env.frame_shape, env.n_actions)
    network.load_state_dict(load_file(directory / NETWORK))
    return config, network


def shipped() -> dict[str, Path]:
    """The runs that are shipped with their networks, by a name to choose them by."""
    found = sorted(path.parent for path in ENSEMBLES.glob(f"*/*/*/*/{NETWORK}"))
    return {" ".join(path.relative_to(ENSEMBLES).parts[:3]): path for path in found}


def picture(env: envs.Env, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """What a person would look at: `[height, width, 3]`."""
    if isinstance(env, envs.Atari):
        return env.ale.getScreenRGB()
    planes = frame if frame.ndim == 3 else frame[None, None]  # the chain's is a row
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
    return ("left", "right")


def choices(q: Tensor, lam: float, head: int = 0) -> dict[str, Tensor]:
    """The action `[...]` that each algorithm takes where the heads say `q` `[..., K, A]`.

    Double DQN would have one head only: here it takes the action of the ensemble's first.
    """
    bound = ucb(q, lam)
    taken = (greedy_head(q, 0), greedy_head(q, head), majority_vote(q), bound, bound)
    return dict(zip(ALGORITHMS, taken, strict=True))


def play(config: Config, network: QEnsemble, seed: int = 0, max_steps: int = 1000) -> Recording:
    """One game by the run's own algorithm, with the epsilon of frozen evaluations."""
    streams = np.random.SeedSequence([config.seed, seed]).spawn(3)
    env_rng, rng, head_rng = (np.random.default_rng(s) for s in streams)
    env = envs.make(config, env_rng, max_frames=config.eval_max_frames)
    head = int(head_rng.integers(config.K))
    stack = np.zeros((config.history, *env.frame_shape), np.uint8)
    stack[-1] = env.reset()
    pictures: list[NDArray[np.uint8]] = []
    qs: list[Tensor] = []
    actions: list[int] = []
    rewards: list[float] = []
    while not env.finished and len(actions) < max_steps:
        with torch.inference_mode():
            q = network(torch.from_numpy(stack)[None])[0]  # [K, A]
        greedy = int(choices(q, config.lam, head)[config.algorithm])
        action = epsilon_greedy(greedy, config.eval_epsilon, env.n_actions, rng)
        pictures.append(picture(env, stack[-1]))
        new = env.step(action)
        qs.append(q)
        actions.append(action)
        rewards.append(new.reward)
        if new.terminal and not env.finished:  # the game's next life
            stack[:] = 0
            stack[-1] = env.reset()
        else:
            stack[:-1] = stack[1:]
            stack[-1] = new.frame
    return Recording(
        config=config,
        pictures=np.stack(pictures),
        q=torch.stack(qs),
        actions=np.array(actions),
        rewards=np.array(rewards),
        names=action_names(env),
    )


def record(run: Path | str, seed: int = 0, max_steps: int = 1000) -> Recording:
    """A game of the run in this directory."""
    return play(*load(run), seed, max_steps)


class Strips(NamedTuple):
    """How far the heads are apart, step by step, `[T]` each."""

    spread: NDArray[np.float64]  # std over heads of the taken action's Q
    agreement: NDArray[np.float64]  # share of heads that vote for the winner
    bonus: NDArray[np.float64]  # InfoGain, before rho
    opinions: NDArray[np.int64]  # how many different actions the five algorithms would take


def strips(recording: Recording, lam: float, temperature: float, head: int = 0) -> Strips:
    q = recording.q
    taken = torch.from_numpy(recording.actions)
    std = q.double().std(1, correction=0)  # [T, A]
    actions = torch.stack(list(choices(q, lam, head).values()))  # [5, T]
    named = torch.zeros(q.shape[0], q.shape[2]).scatter_(1, actions.t(), 1.0)  # [T, A]
    return Strips(
        spread=std.gather(1, taken[:, None])[:, 0].numpy(),
        agreement=(vote_counts(q).amax(-1) / q.shape[1]).numpy(),
        bonus=infogain(q, temperature).numpy(),
        opinions=named.sum(-1).long().numpy(),
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


def departures(q: Tensor, lams: Sequence[float]) -> pd.DataFrame:
    """In what share of the states `q` `[T, K, A]` UCB takes another action, a row per lambda.

    Another than the vote, and another than at lambda 0, where it takes the highest mean.
    """
    others = {"the vote": majority_vote(q), "the highest mean": ucb(q, 0.0)}
    rows = [[float((ucb(q, lam) != taken).float().mean()) for taken in others.values()]
            for lam in lams]  # fmt: skip
    index = pd.Index(lams, name="lambda")
    return pd.DataFrame(rows, index, columns=[f"other than {name}" for name in others])


def flips(q: Tensor, largest: float = 10.0) -> list[tuple[float, int]]:
    """Where UCB changes its mind: (lambda, the action from there on), beginning with lambda 0.

    mean + lambda std is a line for each action of `q` `[K, A]`; these are the corners of the
    lines' upper envelope.
    """
    std, mean = (x.numpy() for x in torch.std_mean(q.double(), dim=-2, correction=0))
    action = int(ucb(q, 0.0))
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
