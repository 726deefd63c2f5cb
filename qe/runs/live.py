"""The learning curve that grows below the bar while somebody trains in a notebook."""

import io
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from qe import TERMINAL

EVERY = 2.5  # seconds between two pictures, at least
SHARE = 0.015  # of the time may go into pictures
FOREVER = float("inf")
POINTS = 3000  # of games in a picture, at most

# matplotlib and pandas take a second to import: not before there is something to draw.


def watched() -> bool:
    """Is this a notebook with a person in front of it?"""
    if "ipykernel" not in sys.modules or os.environ.get(TERMINAL):
        return False
    from IPython.core.getipython import get_ipython

    return hasattr(get_ipython(), "kernel")


class Curve:
    """A figure that is made once: every game, the mean of 100, and the heads' agreement."""

    def __init__(self, directory: Path, frames: int) -> None:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from qe.analysis.figures import STYLE

        self.directory = directory
        with matplotlib.rc_context(STYLE | {"figure.constrained_layout.use": False}):
            figure = Figure(figsize=(7.5, 2.3), dpi=100)
            self.canvas = FigureCanvasAgg(figure)
            self.left, self.right = figure.subplots(1, 2, width_ratios=(2.4, 1))
            figure.subplots_adjust(left=0.06, right=0.985, bottom=0.13, top=0.89, wspace=0.15)
            (self.games,) = self.left.plot([], [], ".", ms=3, color="0.75")
            (self.mean,) = self.left.plot([], [], color="#0072B2")
            (self.agreement,) = self.right.plot([], [], color="#0072B2")
            self.left.set(title="return of each game, and mean of 100", xlim=(0, frames))
            self.right.set(title="votes for the winner", xlim=(0, frames), ylim=(0, 1))
            for axes in (self.left, self.right):
                axes.set_xticks([0, frames], ["0", f"{frames:,} frames"])
                axes.get_xticklabels()[1].set_horizontalalignment("right")

    def png(self) -> bytes:
        """The picture of what the logs have by now."""
        import numpy as np
        from PIL import Image

        from qe.analysis.load import read_log
        from qe.analysis.scores import rolling_mean

        games, heads = read_log(self.directory), read_log(self.directory, "diagnostics")
        if len(games):
            thin = slice(None, None, -(-len(games) // POINTS))
            self.games.set_data(games["frame"][thin], games["return"][thin])
            self.mean.set_data(games["frame"], rolling_mean(games["return"]))
            low, high = float(games["return"].min()), float(games["return"].max())
            margin = 0.05 * (high - low) or 1.0
            self.left.set_ylim(low - margin, high + margin)
        self.agreement.set_data(heads["frame"], heads["agreement"])
        self.canvas.draw()
        picture = io.BytesIO()
        Image.fromarray(np.asarray(self.canvas.buffer_rgba())).save(
            picture, "png", compress_level=1
        )
        return picture.getvalue()


@contextmanager
def growing(directory: Path, frames: int, shown: bool) -> Iterator[Callable[[], None]]:
    """What is to be called after each step: it draws when it is time to, and nowhere else."""
    if not (shown and watched()):
        yield lambda: None
        return

    from IPython.display import DisplayHandle, Image

    curve = Curve(directory, frames)
    handle, due = DisplayHandle(), 0.0

    def draw(at_once: bool = False) -> None:
        nonlocal due
        start = time.perf_counter()
        if start < due and not (at_once and due < FOREVER):
            return
        try:
            picture = Image(curve.png(), alt="the learning curve so far")
            (handle.update if due else handle.display)(picture)
        except Exception as error:  # no picture is worth a run
            due = FOREVER
            print(f"The learning curve could not be drawn: {error}.")
            return
        now = time.perf_counter()
        due = now + max(EVERY, (now - start) / SHARE)

    try:
        yield draw
    finally:
        draw(at_once=True)
