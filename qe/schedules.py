"""Piecewise-linear schedules."""

from collections.abc import Sequence

import numpy as np

Knots = Sequence[tuple[float, float]]


def interpolate(knots: Knots, t: float) -> float:
    """The value at `t` of the line through `knots` (t, value), constant outside them."""
    times, values = zip(*knots, strict=True)
    return float(np.interp(t, times, values))
