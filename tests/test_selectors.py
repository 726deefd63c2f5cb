"""Selectors and bonus against a direct numpy transcription of the paper's equations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from qe import selectors

# Small whole numbers make ties likely; huge ones would overflow a careless sum of squares.
values = st.one_of(
    st.integers(-3, 3).map(float),
    st.floats(-1e3, 1e3, width=32),
    st.sampled_from([3e38, -3e38, 1e30]),
)
ensembles = array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=7).flatmap(
    lambda shape: arrays(np.float32, shape, elements=values)
)
temperatures = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1e-300, 1e-30, 1e30]))


def votes_by_hand(q: np.ndarray) -> list[int]:
    """The actions with the most votes."""
    votes = [0] * q.shape[1]
    for head in q:
        votes[int(np.argmax(head))] += 1
    return [a for a, v in enumerate(votes) if v == max(votes)]


def bonus_by_hand(q: np.ndarray, temperature: float) -> float:
    K = len(q)
    p = []
    for head in q.astype(np.float64):
        with np.errstate(over="ignore"):
            e = np.exp((head - head.max()) / temperature)
        p.append(e / e.sum())
    average = sum(p) / K
    return sum(
        pk[a] * math.log(pk[a] / average[a]) / K for pk in p for a in range(len(pk)) if pk[a] > 0
    )


@given(ensembles)
def test_vote(q):
    chosen, tied = int(selectors.majority_vote(torch.from_numpy(q))), votes_by_hand(q)
    assert chosen in tied
    sums = [math.fsum(map(float, q[:, a])) for a in tied]
    rounding = 1e-14 * float(np.abs(q.astype(np.float64)).sum())  # 3e38 + 1 - 3e38 may be 0
    assert sums[tied.index(chosen)] >= max(sums) - rounding


@given(ensembles, st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_ucb_takes_an_action_with_the_highest_bound(q, lam):
    q64 = q.astype(np.float64)
    bound = q64.mean(0) + lam * q64.std(0)
    chosen = int(selectors.ucb(torch.from_numpy(q), lam))
    assert np.isfinite(bound).all()
    assert bound[chosen] >= bound.max() - 1e-12 * max(1.0, abs(bound.max()))


@given(ensembles, st.data())
def test_greedy_head(q, data):
    head = data.draw(st.integers(0, len(q) - 1))
    assert selectors.greedy_head(torch.from_numpy(q), head) == np.argmax(q[head])


@given(ensembles, temperatures)
def test_infogain(q, temperature):
    b = float(selectors.infogain(torch.from_numpy(q), temperature))
    K, A = q.shape
    assert 0 <= b <= math.log(min(K, A)) + 1e-12
    assert b == pytest.approx(bonus_by_hand(q, temperature), rel=1e-6, abs=1e-12)


@given(ensembles)
def test_batches_are_rows(q):
    one = torch.from_numpy(q)
    two = torch.stack([one, -one])  # [2, K, A]
    for choose in (
        selectors.majority_vote,
        lambda x: selectors.ucb(x, 0.1),
        lambda x: selectors.infogain(x, 1.0),
    ):
        assert torch.equal(choose(two), torch.stack([choose(one), choose(-one)]))


def test_known_values():
    # Heads 0 and 1 vote for action 0, head 2 for action 1 by a wide margin.
    q = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 9.0]])
    assert selectors.majority_vote(q) == 0  # two votes to one
    assert selectors.ucb(q, 0.0) == 1  # the mean says otherwise
    # A tie, 1 : 1, goes to the higher mean, not to the lower index.
    assert selectors.majority_vote(torch.tensor([[1.0, 0.0], [0.0, 9.0]])) == 1
    # The population's deviation of (0, 2) is 1, the sample's would be sqrt 2.
    q = torch.tensor([[0.0, 1.9], [2.0, 1.9]])
    assert selectors.ucb(q, 0.89) == 1
    assert selectors.ucb(q, 0.91) == 0


def test_the_bonus_reaches_its_bound_when_every_head_is_sure_of_another_action():
    q = torch.eye(4)
    assert float(selectors.infogain(q, 1e-9)) == pytest.approx(math.log(4))
    assert float(selectors.infogain(q, 1e9)) == pytest.approx(0, abs=1e-15)
    assert float(selectors.infogain(torch.eye(1), 1.0)) == 0


def test_epsilon_greedy_is_as_random_as_it_says():
    rng = np.random.default_rng(0)
    actions = [selectors.epsilon_greedy(2, 0.4, 4, rng) for _ in range(20_000)]
    assert np.mean(np.array(actions) == 2) == pytest.approx(0.6 + 0.4 / 4, abs=0.02)
    assert {selectors.epsilon_greedy(2, 0.0, 4, rng) for _ in range(100)} == {2}


def test_disagreement():
    q = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 0.0, 5.0]])
    d = selectors.disagreement(q, 2)
    assert d.std == pytest.approx(np.std([0, 0, 3, 5]))
    assert (d.agreement, d.tie) == (0.5, 1.0)
