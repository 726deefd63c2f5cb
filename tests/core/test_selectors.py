"""Selectors and bonus against a direct transcription of the paper's equations."""

import math
import random

import numpy as np
import numpy.random as chance
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from numpy.random import default_rng

from qe import selectors
from qe.selectors import ALGORITHMS, Given

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
def test_a_tied_vote_goes_to_the_lowest_index(q):
    assert int(selectors.majority_vote(q)) == votes_by_hand(q)[0]


@given(ensembles)
def test_a_tied_vote_goes_to_the_highest_mean(q):
    chosen, tied = int(selectors.majority_vote(q, "mean")), votes_by_hand(q)
    assert chosen in tied
    sums = [math.fsum(map(float, q[:, a])) for a in tied]
    rounding = 1e-14 * float(np.abs(q.astype(np.float64)).sum())  # 3e38 + 1 - 3e38 may be 0
    assert sums[tied.index(chosen)] >= max(sums) - rounding


@given(ensembles, st.integers(0, 1000))
def test_a_tied_vote_goes_to_one_of_the_tied_at_random(q, seed):
    rngs = [np.random.default_rng(seed) for _ in range(2)]
    first, second = (int(selectors.majority_vote(q, "random", rng)) for rng in rngs)
    assert first == second and first in votes_by_hand(q)


def test_ties_at_random_are_broken_evenly():
    rng = np.random.default_rng(0)
    q = np.zeros((30_000, 3, 4))
    q[:, [0, 1, 2], [1, 2, 3]] = 1.0  # one vote each, none for the first action
    counts = np.bincount(selectors.majority_vote(q, "random", rng), minlength=4)
    assert counts[0] == 0 and np.abs(counts[1:] / 10_000 - 1).max() < 0.05


@given(ensembles, st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_ucb_takes_an_action_with_the_highest_bound(q, lam):
    q64 = q.astype(np.float64)
    bound = q64.mean(0) + lam * q64.std(0)
    chosen = int(selectors.ucb(q, lam))
    assert np.isfinite(bound).all()
    assert bound[chosen] >= bound.max() - 1e-12 * max(1.0, abs(bound.max()))


@given(ensembles, st.data())
def test_greedy_head(q, data):
    head = data.draw(st.integers(0, len(q) - 1))
    assert selectors.greedy_head(q, head) == np.argmax(q[head])


@given(ensembles, temperatures)
def test_infogain(q, temperature):
    with np.errstate(over="ignore"):
        b = float(selectors.infogain(q, temperature))
    K, A = q.shape
    assert 0 <= b <= math.log(min(K, A)) + 1e-12
    assert b == pytest.approx(bonus_by_hand(q, temperature), rel=1e-6, abs=1e-12)


def test_a_probability_that_underflows_adds_nothing():
    q = np.array([[0.0, -744.5]] + [[0.0, -1e6]] * 9)
    assert float(selectors.infogain(q, 1.0)) == 0
    assert np.isfinite(selectors.infogain(q / 1000, 1e-3))


@given(ensembles)
def test_batches_are_rows(q):
    two = np.stack([q, -q])  # [2, K, A]
    given = Given(head=len(q) - 1)
    for rule in ALGORITHMS.values():
        both = [int(rule.choose(one, given)) for one in (q, -q)]
        assert rule.choose(two, given).tolist() == both
    bonuses = [float(selectors.infogain(one, 1.0)) for one in (q, -q)]
    assert selectors.infogain(two, 1.0).tolist() == pytest.approx(bonuses, rel=1e-12)


def test_known_values():
    # Heads 0 and 1 vote for action 0, head 2 for action 1 by a wide margin.
    q = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 9.0]])
    assert selectors.majority_vote(q) == 0  # two votes to one
    assert selectors.ucb(q, 0.0) == 1  # the mean says otherwise
    # A tie, 1 : 1.
    tied = np.array([[1.0, 0.0], [0.0, 9.0]])
    assert selectors.majority_vote(tied) == 0
    assert selectors.majority_vote(tied, "mean") == 1
    # The population's deviation of (0, 2) is 1, the sample's would be sqrt 2.
    q = np.array([[0.0, 1.9], [2.0, 1.9]])
    assert selectors.ucb(q, 0.89) == 1
    assert selectors.ucb(q, 0.91) == 0


def test_the_bonus_reaches_its_bound_when_every_head_is_sure_of_another_action():
    q = np.eye(4)
    assert float(selectors.infogain(q, 1e-9)) == pytest.approx(math.log(4))
    assert float(selectors.infogain(q, 1e9)) == pytest.approx(0, abs=1e-15)
    assert float(selectors.infogain(np.eye(1), 1.0)) == 0


def test_the_table_says_what_each_algorithm_does():
    q = np.array([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0], [2.0, 0.0, 1.9]])
    chosen = {a: int(rule.choose(q, Given(lam=5.0, head=1))) for a, rule in ALGORITHMS.items()}
    assert chosen == {
        "double_dqn": 0, "bootstrapped_dqn": 0, "ensemble_voting": 0, "ucb": 1, "ucb_infogain": 1,
    }  # fmt: skip
    assert [a for a, rule in ALGORITHMS.items() if rule.bonus] == ["ucb_infogain"]
    assert [a for a, rule in ALGORITHMS.items() if not rule.ensemble] == ["double_dqn"]


# --- an algorithm of one's own ------------------------------------------------------------------


def thompson(q, rng):
    """A head drawn for each step."""
    return q[rng.integers(len(q))].argmax()


def test_a_function_of_ones_own_is_asked_state_by_state():
    rule = selectors.own(thompson)
    q = np.random.default_rng(0).normal(size=(50, 4, 3))
    chosen = rule.choose(q, Given(rng=np.random.default_rng(1)))
    rng = np.random.default_rng(1)
    assert chosen.tolist() == [int(thompson(state, rng)) for state in q]
    assert rule.ensemble and not rule.bonus and "lam" not in rule.reads


def test_its_source_is_read_without_comments_and_layout():
    source = selectors.source_of(thompson)
    assert source.startswith("def thompson(q, rng):") and "rng.integers(len(q))" in source

    def uses_a_module(q, rng):
        return int(np.argmax(q.mean(0)))  # numpy is a module

    assert "np.argmax" in selectors.source_of(uses_a_module)
    assert selectors.source_of(uses_a_module).endswith("# np: numpy")

    def uses_the_package(q, rng):
        return selectors.majority_vote(q.mean(0, keepdims=True))

    assert selectors.source_of(uses_the_package).endswith("# selectors: qe.selectors")

    def uses_a_function(q, rng):
        q, mean = q[:, :2], q.mean(0)  # names that the module has as well
        return int(pick(mean))

    assert selectors.source_of(uses_a_function).endswith("# pick: qe.selectors.majority_vote")

    def as_people_write_it(q: np.ndarray, generator: np.random.Generator) -> int:
        import math

        return math.floor(generator.random() * q.shape[1])

    assert "import math" in selectors.source_of(as_people_write_it)


SCALE = 3.0
mean = 2.0  # not the one of an array
pick = selectors.majority_vote
shuffled = random.random


def test_what_the_source_does_not_tell_is_refused():
    weight = 2.0

    def closure(q, rng):
        return (q.mean(0) + weight * q.std(0)).argmax()

    def outside(q, rng):
        return (SCALE * q.mean(0)).argmax()

    def helped(q, rng):
        return thompson(q, rng)

    def ucb(q, rng):
        return 0

    def three(q, rng, more):
        return 0

    def tuned(q, rng, weight=2.0):
        return 0

    def starred(*q, **rng):
        return 0

    def lazy(q, rng):
        yield 0

    def imports(q, rng):
        import random

        return random.randrange(2)

    def chances(q, rng):
        return np.random.randint(2)  # noqa: NPY002

    def undefined(q, rng):
        return nowhere + 1  # noqa: F821

    def sneaky(q, rng):
        return globals()["SCALE"]

    def bound(q, rng):
        return int(shuffled() * 2)  # a method, which says nothing of where it is from

    def drawn(q, rng):
        return default_rng().integers(2)

    def renamed(q, rng):
        return chance.randint(2)  # noqa: NPY002

    def within(q, rng):
        import numpy

        return numpy.random.randint(2)  # noqa: NPY002

    def hashed(q, rng):
        return hash(str(q)) % 2

    def nested(q, rng):
        return max(range(q.shape[1]), key=lambda a: SCALE * q[0, a])

    for function, sentence in (
        (closure, "closure uses weight from outside"),
        (outside, "outside uses SCALE from outside"),
        (helped, "helped uses thompson from outside"),
        (imports, "imports uses random from outside"),
        (chances, "chances uses np.random from outside"),
        (undefined, "undefined uses nowhere from outside"),
        (sneaky, "sneaky uses globals from outside"),
        (bound, "bound uses shuffled from outside"),
        (drawn, "drawn uses default_rng from outside"),
        (renamed, "renamed uses chance from outside"),
        (within, "within uses numpy.random from outside"),
        (hashed, "hashed uses hash from outside"),
        (nested, "nested uses SCALE from outside"),
        (ucb, "ucb is an algorithm of the paper: give yours another name"),
        (three, "three must have two parameters, q and rng, and no defaults"),
        (tuned, "tuned must have two parameters"),
        (starred, "starred must have two parameters"),
        (lazy, "algorithm must be a name, or a function made with `def`"),
        (lambda q, rng: 0, "algorithm must be a name, or a function made with `def`"),
        (np.argmax, "algorithm must be a name, or a function made with `def`"),
        (3, "algorithm must be a name, or a function made with `def`"),
    ):
        with pytest.raises(ValueError, match=sentence):
            selectors.source_of(function)
    made: dict = {}
    exec("def from_nowhere(q, rng):\n    return 0", made)
    with pytest.raises(ValueError, match="The code of from_nowhere can't be read"):
        selectors.source_of(made["from_nowhere"])


def test_what_is_no_action_is_refused_and_q_is_a_copy():
    q = np.zeros((2, 3))

    def far(q, rng):
        q += 5
        return 3

    for function in (far, lambda q, rng: -1, lambda q, rng: None, lambda q, rng: 1.0):
        with pytest.raises(ValueError, match="must return an action, a whole number from 0 to 2"):
            selectors.own(function).choose(q, Given())
    assert not q.any()
