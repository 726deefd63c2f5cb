"""Section 3 in a world that can be solved: the posterior over Q*, and what ten heads make of it.

RiverSwim: six states in a row, a current to the left. Swimming right works now and then and pays at
the right end; drifting left always works and pays next to nothing. Rewards are known, transitions
are not: their prior is a flat Dirichlet over the neighbours of a state.

Heads are tabular and learned to the end: a head's Q is the fixed point of Q-learning on its data.
Arrays are `[..., S, A]` and `[..., S, A, S]`; whatever stands before is a batch.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STATES, ACTIONS = 6, 2  # left and right
DISCOUNT = 0.9
WORLDS = 1000  # drawn from the posterior, to know its standard deviation
HORIZON = 20  # steps of an episode, from the left end
LEFT, RIGHT = 0, 1


def river() -> tuple[Floats, Floats]:
    """Transitions `[S, A, S]` and rewards `[S, A]`."""
    transitions = np.zeros((STATES, ACTIONS, STATES))
    for s in range(STATES):
        transitions[s, LEFT, max(s - 1, 0)] = 1
        back, stay, on = (0.05, 0.60, 0.35)
        transitions[s, RIGHT, max(s - 1, 0)] += back
        transitions[s, RIGHT, s] += stay
        transitions[s, RIGHT, min(s + 1, STATES - 1)] += on
    rewards = np.zeros((STATES, ACTIONS))
    rewards[0, LEFT], rewards[-1, RIGHT] = 0.005, 1.0
    return transitions, rewards


def support() -> Floats:
    """1 where a transition is possible, else 0: the Dirichlet prior's weights. `[S, A, S]`."""
    near = np.abs(np.arange(STATES)[:, None] - np.arange(STATES)) <= 1
    return np.repeat(near[:, None, :].astype(float), ACTIONS, axis=1)


def solve(
    transitions: Floats, rewards: Floats, sweeps: int = 80, start: Floats | None = None
) -> Floats:
    """Q* of each of a batch of worlds, by value iteration; with few sweeps, how far it has come."""
    q = np.zeros(transitions.shape[:-1]) if start is None else start
    for _ in range(sweeps):
        q = rewards + DISCOUNT * (transitions @ q.max(-1)[..., None, :, None])[..., 0]
    return q


def dirichlet(weights: Floats, rng: np.random.Generator) -> Floats:
    """A draw from each Dirichlet distribution; a weight of 0 is a chance of 0."""
    draws = rng.standard_gamma(weights)
    return draws / draws.sum(-1, keepdims=True)


def frequencies(counts: Floats, untried: Floats) -> Floats:
    """What a head's data say; where it has none, `untried`."""
    total = counts.sum(-1, keepdims=True)
    return np.where(total > 0, counts / np.maximum(total, 1), untried)


# From the counts `[..., S, A, S]` of what was seen to the Q of `K` heads `[..., K, S, A]`.
Belief = Callable[[Floats, int, np.random.Generator], Floats]


def exact(counts: Floats, K: int, rng: np.random.Generator) -> Floats:
    """The posterior over Q*: worlds drawn from the posterior over transitions, and solved."""
    weights = np.repeat((counts + support())[..., None, :, :, :], K, axis=-4)
    return solve(dirichlet(weights, rng), river()[1])


def shared(counts: Floats, K: int, rng: np.random.Generator) -> Floats:
    """Heads that learn from the same data, as the paper trains them: one fixed point for all."""
    return _heads(counts, K, rng, mask=1.0, prior=0.0)


def masked(counts: Floats, K: int, rng: np.random.Generator) -> Floats:
    """Heads of which each sees every transition with probability one half."""
    return _heads(counts, K, rng, mask=0.5, prior=0.0)


def masked_with_prior(counts: Floats, K: int, rng: np.random.Generator) -> Floats:
    """The same, and each head has made up a world of its own, with the prior's weight."""
    return _heads(counts, K, rng, mask=0.5, prior=1.0)


def _heads(counts: Floats, K: int, rng: np.random.Generator, mask: float, prior: float) -> Floats:
    every = np.repeat(counts[..., None, :, :, :], K, axis=-4)
    seen = rng.binomial(every.astype(int), mask) / mask if mask < 1 else every
    flat = support()
    own = dirichlet(np.broadcast_to(flat, every.shape), rng)
    weight = prior * flat.sum(-1, keepdims=True)
    # A pair that nobody tried leads nowhere in particular: the same for all heads without a prior.
    untried = np.broadcast_to(flat / flat.sum(-1, keepdims=True), every.shape)
    return solve(frequencies(seen + weight * own, untried), river()[1])


BELIEFS: dict[str, Belief] = {
    "exact posterior": exact,
    "shared data": shared,
    "masks": masked,
    "masks and a prior": masked_with_prior,
}


def spread(belief: Belief, n: int, repeats: int = 30, K: int = 10, seed: int = 0) -> float:
    """The standard deviation over heads after `n` transitions from every state and action.

    The mean over states, actions and `repeats` sets of data. The posterior's own is of a thousand
    worlds, whatever K is.
    """
    K = WORLDS if belief is exact else K
    rng = np.random.default_rng([seed, n])
    transitions, _ = river()
    counts = rng.multinomial(n, np.broadcast_to(transitions, (repeats, *transitions.shape)))
    return float(belief(counts.astype(float), K, rng).std(-3, ddof=1).mean())


def unfinished(n: int, sweeps: int, repeats: int = 30, K: int = 10, seed: int = 0) -> float:
    """The spread of heads that share `n` transitions and differ in where they began."""
    rng = np.random.default_rng([seed, n])
    transitions, rewards = river()
    counts = rng.multinomial(n, np.broadcast_to(transitions, (repeats, *transitions.shape)))
    seen = np.repeat((counts / n)[:, None], K, axis=1)
    start = rng.normal(size=seen.shape[:-1])
    return float(solve(seen, rewards, sweeps, start).std(-3, ddof=1).mean())


def expected_return(policy: NDArray[np.int64]) -> Floats:
    """Of an episode under each of a batch of policies `[..., S]`, in the true river."""
    transitions, rewards = river()
    states = np.arange(STATES)
    step, pay = transitions[states, policy], rewards[states, policy]
    value = np.zeros(policy.shape)
    for _ in range(HORIZON):
        value = pay + (step @ value[..., None])[..., 0]
    return value[..., 0]


def regret(
    belief: Belief, lam: float, episodes: int = 150, repeats: int = 20, K: int = 10, seed: int = 0
) -> Floats:
    """What acting by `mean + lam * std` has lost so far: `[repeats, episodes]`.

    The heads learn between episodes. Expected returns, so that luck within an episode is no noise.
    """
    rng = np.random.default_rng(seed)
    transitions, rewards = river()
    best = expected_return(solve(transitions, rewards).argmax(-1))
    counts = np.zeros((repeats, *transitions.shape))
    cumulative = transitions.cumsum(-1)
    lost = np.empty((repeats, episodes))
    each = np.arange(repeats)
    for episode in range(episodes):
        q = belief(counts, K, rng)
        bound = q.mean(-3) + lam * q.std(-3)
        bound += 1e-9 * rng.random(bound.shape)  # ties at random
        policy = bound.argmax(-1)
        lost[:, episode] = best - expected_return(policy)
        state = np.zeros(repeats, int)
        for _ in range(HORIZON):
            action = policy[each, state]
            chance = cumulative[state, action]
            following = (rng.random((repeats, 1)) > chance).sum(-1)
            np.add.at(counts, (each, state, action, following), 1)
            state = following
    return lost.cumsum(1)
