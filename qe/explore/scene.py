"""The picture of one state of a recorded game: for the explorer, for videos, for the page."""

import io
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from qe.analysis.figures import STYLE
from qe.analysis.labels import COLORS, LABELS
from qe.config import ConfigError
from qe.explore.recording import PALETTE, Recording, choices, flips, most_disputed, strips
from qe.selectors import infogain, vote_counts

GREY, BLUE = "0.62", "#0072B2"


class Knobs(NamedTuple):
    """What the reader turns; the rest of the picture is the game's."""

    lam: float = 0.1
    temperature: float = 1.0
    rho: float = 1.0
    head: int = 0  # that Bootstrapped DQN would follow


class Heads:
    """The heads in one state: Q-values, mean, spread and bound, and beside them the votes."""

    def __init__(self, values: Axes, votes: Axes, K: int, actions: Sequence[str]) -> None:
        self.values, A = values, len(actions)
        offset = np.linspace(-0.22, 0.22, K) if K > 1 else np.zeros(1)
        self.where = (np.arange(A) + offset[:, None]).ravel()  # [K * A], head by head
        (self.heads,) = values.plot([], [], "o", ms=3, color=GREY, label="heads")
        (self.means,) = values.plot([], [], "o", ms=5, color=BLUE, label="mean ± std")
        self.bars = values.vlines(range(A), 0, 0, color=BLUE, linewidth=1.6)
        (self.bounds,) = values.plot(
            [], [], "_", ms=18 if A <= 6 else 8, mew=2.2, color=COLORS["ucb"], label="mean + λ std"
        )
        values.set_xlim(-0.6, A - 0.4)
        many = A > 6  # then actions are numbered, and the votes tell their names
        names = [f"{a} {name}" for a, name in enumerate(actions)] if many else actions
        values.set_xticks(range(A), [str(a) for a in range(A)] if many else names)
        values.set_ylabel("Q", rotation=0)
        values.yaxis.set_label_coords(-0.05, 1.03)
        values.grid(axis="x", visible=False)
        values.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, fontsize=8,
                      markerscale=0.6, handletextpad=0.3, columnspacing=1.2)  # fmt: skip
        # A veil over the names, which then need not be drawn again.
        alpha = 0.22 if many else 0.38
        self.votes = votes.barh(range(A), np.zeros(A), 0.7, color="k", alpha=alpha, linewidth=0)
        votes.set(xlim=(0, K), ylim=(A - 0.4, -0.6), xticks=() if many else (0, K))
        votes.set_title(f"votes of {K}" if many else "votes")
        votes.set_yticks(range(A), [""] * A)
        for a, name in enumerate(names):
            votes.text(0.04 * K, a, name, va="center", size=7.5)
        # What changes from state to state, from the back to the front.
        self.moving: list[Artist] = [values.yaxis, self.heads, self.bars, self.means, self.bounds]
        self.moving += self.votes

    def show(self, q: NDArray[np.float32], lam: float) -> None:
        """The state in which the heads say `q` `[K, A]`."""
        values = q.astype(np.float64)
        mean, std = values.mean(0), values.std(0)
        bound = mean + lam * std
        self.heads.set_data(self.where, values.ravel())
        self.means.set_data(range(len(mean)), mean)
        self.bars.set_segments(
            [[(a, m - s), (a, m + s)] for a, (m, s) in enumerate(zip(mean, std, strict=True))]
        )
        self.bounds.set_data(range(len(mean)), bound)
        low, high = min(values.min(), (mean - std).min()), max(values.max(), bound.max())
        margin = 0.08 * max(high - low, 1e-3)
        self.values.set_ylim(low - margin, high + margin)
        for bar, count in zip(self.votes, vote_counts(q).tolist(), strict=True):
            bar.set_width(count)


def plot_state(q: NDArray[np.float32], lam: float = 0.0, title: str = "") -> Figure:
    """The heads in one state, for a notebook; with `lam` 0 the bound is the mean."""
    K, A = q.shape
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.5, 2.8), width_ratios=(4, 1))
    Heads(left, right, K, [str(a) for a in range(A)]).show(q, lam)
    left.set_xlabel("action")
    figure.suptitle(title, size="medium")
    return figure


class Scene:
    """A figure that is made once and then moved through the game."""

    def __init__(self, recording: Recording, knobs: Knobs | None = None) -> None:
        self.recording = recording
        c = recording.config
        self.knobs = knobs or Knobs(c.lam, c.temperature, c.rho, head=min(1, c.K - 1))
        self.t = 0
        self.moving: list[Artist] = []
        self.ground: Any = None  # all that neither state nor knobs move, drawn
        self.turned: Any = None  # and what the knobs move
        with matplotlib.rc_context(STYLE | {"figure.constrained_layout.use": False}):
            self.figure = Figure(figsize=(9.6, 5.4), dpi=100)
            self.canvas = FigureCanvasAgg(self.figure)
            self._build()
        self.turn(self.knobs)

    def __len__(self) -> int:
        return len(self.recording.actions)

    def _build(self) -> None:
        r, place = self.recording, self.figure.add_axes
        K = r.q.shape[1]
        self.figure.text(0.02, 0.955, r.title, size=11, weight="bold")
        self.caption = self.figure.text(0.98, 0.955, "", size=9, ha="right", color="0.25")

        screen = place((0.02, 0.50, 0.24, 0.42) if r.things else (0.02, 0.44, 0.24, 0.48))
        screen.set_axis_off()
        self.screen = screen.imshow(r.pictures[0], interpolation="nearest")
        rows = -(-len(r.things) // 2)
        for i, (thing, color) in enumerate(zip(r.things, PALETTE / 255, strict=False)):
            x, y = 0.032 + 0.115 * (i // rows), 0.475 - 0.0255 * (i % rows)
            square = Rectangle((x, y - 0.008), 0.009, 0.016, color=color, ec="0.5", lw=0.4)
            self.figure.add_artist(square)
            self.figure.text(x + 0.014, y, thing, size=7.5, va="center_baseline")

        # Many actions have their names among the votes, which need the room.
        votes = (0.71, 0.50, 0.09, 0.36) if len(r.names) <= 6 else (0.70, 0.44, 0.11, 0.42)
        self.panel = Heads(place((0.325, 0.50, 0.36, 0.36)), place(votes), K, r.names)

        acts = place((0.83, 0.50, 0.16, 0.36))
        acts.set_axis_off()
        acts.set_title("would take", loc="left")
        self.takes = {}
        for i, algorithm in enumerate(COLORS):
            y = 0.93 - 0.2 * i
            acts.text(0.0, y, LABELS[algorithm], color=COLORS[algorithm], size=8, va="center")
            self.takes[algorithm] = acts.text(0.05, y - 0.085, "", size=9, va="center")
        self.notes = self.figure.text(0.325, 0.402, "", size=8.5, va="center", color="0.15")

        self.strips: list[Axes] = []
        self.lines: list[Line2D] = []
        self.cursors: list[Line2D] = []
        self.numbers: list[Text] = []
        bottoms = (0.265, 0.165, 0.065)
        for bottom, label in zip(bottoms, ("spread", "agreement", "ρ bonus"), strict=True):
            axes = place((0.115, bottom, 0.865, 0.082))
            (line,) = axes.plot([], [], color=BLUE, linewidth=1)
            axes.set(xlim=(0, max(len(self) - 1, 1)))
            axes.set_ylabel(label, rotation=0, ha="right", va="center", size=8)
            axes.tick_params(labelsize=7, labelbottom=bottom == bottoms[-1])
            axes.yaxis.set_major_locator(MaxNLocator(2))
            axes.yaxis.set_major_formatter("{x:.2g}")
            self.cursors.append(axes.axvline(0, color="k", linewidth=1))
            self.lines.append(line)
            self.strips.append(axes)
        self.figure.text(0.5475, 0.012, "step", size=8, ha="center")

        self.moving = [self.screen, *self.panel.moving, *self.takes.values(), *self.cursors]
        self.moving += [self.caption, self.notes]
        for artist in (*self.moving, *self.lines, *(axes.yaxis for axes in self.strips)):
            artist.set_animated(True)

    def turn(self, knobs: Knobs) -> None:
        """The same state under other knobs."""
        K = self.recording.q.shape[1]
        if not 0 <= knobs.head < K:
            raise ConfigError(f"head must be from 0 to {K - 1}, not {knobs.head}.")
        self.knobs, self.turned = knobs, None
        self.found = found = strips(self.recording, knobs.lam, knobs.temperature, knobs.head)
        self.disputed = most_disputed(found)
        steps = np.arange(len(self))
        for number in self.numbers:
            number.remove()
        self.numbers = [
            self.strips[0].annotate(f"▼{i}", (t, 1.0), (0, 2), xycoords=("data", "axes fraction"),
                                    textcoords="offset points", size=7.5, ha="center",
                                    color=COLORS["ucb"], animated=True)
            for i, t in enumerate(self.disputed, 1)
        ]  # fmt: skip
        shown = (found.spread, found.agreement, knobs.rho * found.bonus)
        for axes, line, data in zip(self.strips, self.lines, shown, strict=True):
            line.set_data(steps, data)
            top = 1.0 if data is found.agreement else max(float(data.max()), 1e-6)
            axes.set_ylim(0, 1.08 * top)
        self.show(self.t)

    def show(self, t: int) -> None:
        """The state before step `t`."""
        if not 0 <= t < len(self):
            raise ConfigError(f"step must be from 0 to {len(self) - 1}, not {t}.")
        self.t, r, k = t, self.recording, self.knobs
        q = r.q[t]  # [K, A]
        self.panel.show(q, k.lam)
        self.screen.set_data(r.pictures[t])
        taken = {a: int(action) for a, action in choices(q, k.lam, k.head).items()}
        usual = max(taken.values(), key=list(taken.values()).count)
        for algorithm, text in self.takes.items():
            name = r.names[taken[algorithm]]
            note = f"  (head {k.head})" if algorithm == "bootstrapped_dqn" else ""
            note = "  (head 0)" if algorithm == "double_dqn" and len(q) > 1 else note
            text.set(text=name + note, weight="normal" if taken[algorithm] == usual else "bold")
        b = float(self.found.bonus[t])
        minds = [f"{r.names[a]} from {lam:.2g}" if lam else r.names[a] for lam, a in flips(q)]
        self.notes.set_text(
            f"UCB over λ: {', '.join(minds)}\n"
            f"InfoGain at T = {k.temperature:g}: b = {b:.3g};  ρ b = {k.rho * b:.3g} is added to "
            f"the reward {r.rewards[t]:g}"
        )
        so_far = r.rewards[: t + 1].sum()
        self.caption.set_text(
            f"step {t}   took {r.names[r.actions[t]]}   return {so_far:g}   "
            f"λ = {k.lam:g}   T = {k.temperature:g}   ρ = {k.rho:g}"
        )
        for cursor in self.cursors:
            cursor.set_xdata([t, t])

    def image(self) -> NDArray[np.uint8]:
        """The picture, `[height, width, 3]`."""
        if self.ground is None:
            self.canvas.draw()
            self.ground = self.canvas.copy_from_bbox(self.figure.bbox)
        if self.turned is None:
            self.canvas.restore_region(self.ground)
            for artist in (*(axes.yaxis for axes in self.strips), *self.lines, *self.numbers):
                self.figure.draw_artist(artist)
            self.turned = self.canvas.copy_from_bbox(self.figure.bbox)
        self.canvas.restore_region(self.turned)
        for artist in self.moving:
            self.figure.draw_artist(artist)
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def png(self) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(self.image()).save(buffer, "png", compress_level=1)
        return buffer.getvalue()

    _repr_png_ = png  # what a notebook shows of it


def plot_flips(recording: Recording, steps: Sequence[int], largest: float = 5.0) -> Figure:
    """Which action UCB takes in some states, from lambda 0 to `largest`."""
    figure, axes = plt.subplots(figsize=(7.5, 0.42 * len(steps) + 0.9), layout="constrained")
    shades = plt.get_cmap("Pastel1").colors  # type: ignore[attr-defined]
    for y, t in enumerate(steps):
        corners = flips(recording.q[t], largest)
        ends = [lam for lam, _ in corners[1:]] + [largest]
        for (start, action), end in zip(corners, ends, strict=True):
            axes.barh(y, end - start, left=start, height=0.75, color=shades[action % len(shades)])
            if end - start > 0.06 * largest:
                name = recording.names[action]
                axes.text((start + end) / 2, y, name, ha="center", va="center", size=8)
    axes.set(xlim=(0, largest), xlabel="λ", yticks=range(len(steps)))
    axes.set_yticklabels([f"step {t}" for t in steps])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def plot_temperatures(recording: Recording, steps: Sequence[int]) -> Figure:
    """The InfoGain bonus in some states over T, and the most that it can be."""
    figure, axes = plt.subplots(figsize=(7.5, 2.8), layout="constrained")
    temperatures = np.logspace(-3, 2, 101)
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.85, len(steps)))
    for t, color in zip(steps, shades, strict=True):
        bonus = [float(infogain(recording.q[t], float(T))) for T in temperatures]
        axes.plot(temperatures, bonus, color=color, label=f"step {t}")
    bound = math.log(min(recording.q.shape[1:]))
    axes.axhline(bound, color="0.5", linestyle="--", linewidth=1, label="ln min(K, A)")
    axes.set(xscale="log", xlabel="T", ylabel="bonus b (nats)")
    figure.legend(fontsize="small", loc="outside right upper")
    return figure
