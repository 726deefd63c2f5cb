"""The posterior over Q*, in a world small enough to know it."""

import numpy as np
import pytest

from qe.analysis.posterior import (
    ACTIONS,
    BELIEFS,
    DISCOUNT,
    RIGHT,
    STATES,
    dirichlet,
    exact,
    expected_return,
    masked,
    masked_with_prior,
    regret,
    river,
    shared,
    solve,
    spread,
    support,
    unfinished,
)


def test_the_river_is_solved():
    transitions, rewards = river()
    assert transitions.sum(-1) == pytest.approx(1)
    assert (transitions[support() == 0] == 0).all()
    q = solve(transitions, rewards)
    # Bellman's equation, and the policy that it asks for: to the right everywhere.
    target = rewards + DISCOUNT * transitions @ q.max(-1)
    assert q == pytest.approx(target, abs=1e-3)
    assert (q.argmax(-1) == RIGHT).all()
    right, left = np.ones(STATES, int), np.zeros(STATES, int)
    assert expected_return(right) > 10 * expected_return(left)
    assert expected_return(left) == pytest.approx(0.005 * 20)


def test_draws_have_the_distribution_of_a_dirichlet():
    rng = np.random.default_rng(0)
    draws = dirichlet(np.broadcast_to([1.0, 3.0, 0.0], (20_000, 3)), rng)
    assert draws.mean(0) == pytest.approx([0.25, 0.75, 0], abs=0.01)
    assert draws[:, 0].std() == pytest.approx(np.sqrt(0.25 * 0.75 / 5), abs=0.01)


def test_the_posterior_narrows_onto_the_truth():
    transitions, rewards = river()
    rng = np.random.default_rng(0)
    many = exact(100_000 * transitions, 50, rng)
    assert many.shape == (50, STATES, ACTIONS)
    assert many.mean(0) == pytest.approx(solve(transitions, rewards), rel=0.02)
    assert spread(exact, 1) > spread(exact, 10) > spread(exact, 100) > 0


def test_shared_data_leave_no_spread_and_masks_with_a_prior_that_of_the_posterior():
    for n in (1, 10, 100):
        assert spread(shared, n) == pytest.approx(0, abs=1e-12)
        assert spread(masked_with_prior, n) == pytest.approx(spread(exact, n), rel=0.25)
    assert spread(masked, 100) == pytest.approx(spread(exact, 100), rel=0.25)


def test_what_spread_shared_data_leave_is_unfinished_learning():
    for n in (1, 100):
        early, late = unfinished(n, 20), unfinished(n, 40)
        assert late / early == pytest.approx(DISCOUNT**20, rel=0.35)


def test_acting_by_the_posterior_loses_less_than_by_shared_data():
    lost = {
        name: regret(belief, 1.0, episodes=60, repeats=8)[:, -1].mean()
        for name, belief in BELIEFS.items()
    }
    assert lost["exact posterior"] < 0.7 * lost["shared data"]
    assert lost["masks and a prior"] < 0.7 * lost["shared data"]
