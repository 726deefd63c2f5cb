"""Schedules at and between every knot of the paper's table."""

import pytest

from qe.config import configure
from qe.schedules import interpolate
from qe.train import Trainer


@pytest.mark.parametrize(
    ("step", "rate", "epsilon"),
    [
        (0, 1e-4, 1.0),
        (500_000, 1e-4, 0.55),
        (1_000_000, 1e-4, 0.1),
        (3_000_000, 7.5e-5, 0.055),
        (5_000_000, 5e-5, 0.01),
        (9_999_999, 5e-5, 0.01),
    ],
)
def test_the_papers_schedules(step, rate, epsilon):
    config = configure()
    assert interpolate(config.learning_rate, step) == pytest.approx(rate)
    assert interpolate(config.epsilon, step) == pytest.approx(epsilon)


def test_fractions_are_of_the_whole_run():
    config = configure("smoke", suite="minatar", game="Breakout", frames=1000, learning_starts=0)
    trainer = Trainer(config)
    seen = []
    for t in (0, 50, 100, 300, 500, 900):
        trainer.steps = t
        seen.append(trainer.epsilon)
    assert seen == pytest.approx([1.0, 0.55, 0.1, 0.055, 0.01, 0.01])


def test_epsilon_is_one_before_learning_starts_and_zero_after_a_warmup_only():
    config = configure("smoke", suite="deepsea", algorithm="ucb", ensemble_epsilon="warmup_only")
    trainer = Trainer(config)
    trainer.steps = config.learning_starts - 1
    assert trainer.epsilon == 1
    trainer.steps += 1
    assert trainer.epsilon == 0
