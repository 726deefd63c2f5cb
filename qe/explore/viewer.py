"""The explorer of a recorded game, in a notebook: sliders around a `Scene`."""

import base64
import html
import io
import os
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
from IPython.display import HTML, DisplayHandle, publish_display_data
from matplotlib.figure import Figure

from qe import TERMINAL
from qe.explore.recording import Recording
from qe.explore.scene import Knobs, Scene

# Where there is no kernel there are no widgets: then the last picture is seen, and no complaint.
STILL = """<style>
.jp-OutputArea:has(.qe-live) .qe-still,
body:not(:has(.jp-OutputArea)):has(.qe-live) .qe-still,
.jp-OutputArea:has(.qe-still):not(:has(.qe-live)) .jupyter-widgets {{ display: none }}
</style>
<figure class="qe-still" style="margin: 0"><img style="max-width: 100%" src="{src}" alt="{about}">
<figcaption>A still picture: run this notebook's cells to move the sliders.</figcaption></figure>"""


class Live(widgets.VBox):
    """A picture among its controls, which leaves a still for when there is no kernel."""

    def __init__(self, about: str, width: str) -> None:
        self.about = about
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width=width))
        self.handle: DisplayHandle | None = None
        super().__init__()
        self.add_class("qe-live")

    def show(self, png: bytes) -> None:
        self.picture.value = png
        if self.handle:
            self.handle.update(self.still())

    def still(self) -> HTML:
        data = base64.b64encode(self.picture.value).decode()
        about = html.escape(self.about, quote=True)
        return HTML(STILL.format(src=f"data:image/png;base64,{data}", about=about))

    def _ipython_display_(self) -> None:
        publish_display_data(self._repr_mimebundle_())
        self.handle = DisplayHandle()
        self.handle.display(self.still())


class Explorer(Live):
    """A slider through the game, one for each knob, and a button for each disputed state."""

    def __init__(self, recording: Recording) -> None:
        super().__init__(f"{recording.title}: the last picture of the explorer", width="100%")
        self.scene = Scene(recording)
        knobs, last = self.scene.knobs, len(self.scene) - 1
        wide = {"layout": widgets.Layout(width="96%"), "style": {"description_width": "5em"}}
        log = {"readout_format": ".3g", "style": {"description_width": "5em"}}
        self.step = widgets.IntSlider(
            0, 0, last, description="step", tooltip="step: where in the game", **wide
        )
        self.lam = widgets.FloatSlider(  # wide enough to be set to 0.1 by hand
            knobs.lam, min=0, max=5, step=0.01, description="λ", readout_format=".3g",
            tooltip="lambda: UCB's weight of the standard deviation", **wide,
        )  # fmt: skip
        self.temperature = widgets.FloatLogSlider(
            knobs.temperature, min=-3, max=2, step=0.05, description="T",
            tooltip="T: temperature of the InfoGain bonus", **log,
        )  # fmt: skip
        self.rho = widgets.FloatSlider(
            knobs.rho, min=0, max=5, step=0.05, description="ρ",
            tooltip="rho: weight of the bonus in the reward", **log,
        )  # fmt: skip
        self.head = widgets.IntSlider(
            knobs.head, 0, recording.config.K - 1, description="head",
            tooltip="head: the one that Bootstrapped DQN follows", style=log["style"],
        )  # fmt: skip
        self.jumps = widgets.HBox()
        self.offered: list[int] = []
        self.step.observe(self._move, "value")
        for knob in (self.lam, self.temperature, self.rho, self.head):
            knob.observe(self._turn, "value")
        self._draw()
        play = widgets.Play(interval=100, max=last, description="play")
        widgets.jslink((play, "value"), (self.step, "value"))
        where = widgets.HBox([play, self.step])
        wrap = widgets.Layout(flex_flow="wrap")
        others = widgets.HBox([self.temperature, self.rho, self.head], layout=wrap)
        self.children = [where, self.jumps, self.picture, self.lam, others]

    def _move(self, change: Any) -> None:
        self.scene.show(change["new"])
        self.show(self.scene.png())

    def _turn(self, change: Any) -> None:
        self.scene.turn(
            Knobs(self.lam.value, self.temperature.value, self.rho.value, self.head.value)
        )
        self._draw()

    def _draw(self) -> None:
        """The picture, and buttons to the states where the algorithms disagree most now."""
        if self.scene.disputed != self.offered:
            self._offer()
        self.show(self.scene.png())

    def _offer(self) -> None:
        self.offered = self.scene.disputed
        buttons: list[widgets.Widget] = [widgets.Label("disputed:")]
        for number, t in enumerate(self.scene.disputed, 1):
            button = widgets.Button(
                description=f"▼{number}  step {t}", layout=widgets.Layout(width="auto"),
                tooltip=f"go to step {t}, where the algorithms disagree",
            )  # fmt: skip
            button.on_click(lambda _, t=t: setattr(self.step, "value", t))
            buttons.append(button)
        self.jumps.children = buttons


def explore(recording: Recording) -> Explorer | Scene:
    """The explorer; where a machine runs the notebook, a picture of a disputed state."""
    if not os.environ.get(TERMINAL):
        return Explorer(recording)
    scene = Scene(recording)
    scene.show(scene.disputed[0])
    return scene


def slide(
    draw: Callable[[float], Figure], value: float, low: float, high: float, name: str
) -> Live | Figure:
    """A picture and a slider that draws it again; where a machine runs the notebook, the picture.

    The picture is an image of its own: `interact` waits forever for a browser that is not there.
    """

    def drawn(value: float) -> Figure:
        figure = draw(value)
        plt.close(figure)  # or the notebook shows it once more
        return figure

    def png(value: float) -> bytes:
        buffer = io.BytesIO()
        drawn(value).savefig(buffer, format="png", dpi=144)
        return buffer.getvalue()

    if os.environ.get(TERMINAL):
        return drawn(value)

    step = (high - low) / 100
    slider = widgets.FloatSlider(
        value, min=low, max=high, step=step, description=name, tooltip=name, readout_format=".3g"
    )
    live = Live(f"the picture at the last {name}", width="600px")
    live.show(png(value))
    slider.observe(lambda change: live.show(png(change["new"])), "value")
    live.children = [slider, live.picture]
    return live
