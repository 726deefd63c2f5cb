"""How an ensemble chooses: pure functions of Q-values `q` with shape `[..., K, A]`.

Everything is computed in float64: it costs nothing at this size, and neither huge Q-values nor
tiny temperatures overflow.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def greedy_head(q: Tensor, head: int) -> Tensor:
    """argmax_a Q_head(s, a). Double DQN (its only head) and Bootstrapped DQN."""
    return q[..., head, :].argmax(-1)  # [...]


def vote_counts(q: Tensor) -> Tensor:
    """How many heads have each action as their greedy one: `[..., A]`."""
    greedy = q.argmax(-1, keepdim=True)  # [..., K, 1]
    return torch.zeros_like(q, dtype=torch.int64).scatter_(-1, greedy, 1).sum(-2)


def majority_vote(q: Tensor) -> Tensor:
    """Algorithm 1. A tie goes to the highest mean Q among the tied actions."""
    votes = vote_counts(q)  # [..., A]
    tied = votes == votes.amax(-1, keepdim=True)
    mean = q.double().mean(-2)
    return mean.masked_fill(~tied, -torch.inf).argmax(-1)  # [...]


def ucb(q: Tensor, lam: float) -> Tensor:
    """Algorithm 2: argmax_a mean + lam * std over heads, with the population's std."""
    std, mean = torch.std_mean(q.double(), dim=-2, correction=0)  # [..., A]
    return (mean + lam * std).argmax(-1)  # [...]


def infogain(q: Tensor, temperature: float) -> Tensor:
    """The bonus b_T(s) of Algorithm 3: mean over heads of KL(P_T,k || P_T,avg), in nats.

    Between 0 and ln min(K, A). Subtracting the maximum before dividing keeps tiny temperatures
    finite, and a probability that underflows to 0 adds 0 to the divergence.
    """
    q = q.double()
    p = ((q - q.amax(-1, keepdim=True)) / temperature).softmax(-1)  # [..., K, A]
    average = p.mean(-2, keepdim=True).clamp_min(torch.finfo(p.dtype).tiny)  # [..., 1, A]
    kl = torch.special.xlogy(p, p / average).sum(-1)  # [..., K]
    return kl.mean(-1).clamp_min(0)  # [...]


def epsilon_greedy(action: int, epsilon: float, n_actions: int, rng: np.random.Generator) -> int:
    """`action`, or with probability epsilon a uniformly random one."""
    return int(rng.integers(n_actions)) if rng.random() < epsilon else action


class Disagreement(NamedTuple):
    """How far the heads are apart in one state."""

    std: float  # of the chosen action's Q over heads
    agreement: float  # the share of heads that vote for the winner
    tie: float  # 1 if several actions have the most votes


def disagreement(q: Tensor, action: int) -> Disagreement:
    """Diagnostics of one state, `q` `[K, A]`."""
    votes = vote_counts(q).tolist()
    most = max(votes)
    return Disagreement(
        std=q[:, action].double().std(correction=0).item(),
        agreement=most / q.shape[0],
        tie=float(votes.count(most) > 1),
    )
