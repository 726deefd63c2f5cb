"""The explorer of a recorded game, in a notebook: sliders around a `Scene`."""

import io
import os
from collections.abc import Callable
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from qe import TERMINAL
from qe.explore.recording import Recording
from qe.explore.scene import Knobs, Scene


class Explorer(widgets.VBox):
    """A slider through the game, one for each knob, and a button for each disputed state."""

    def __init__(self, recording: Recording) -> None:
        self.scene = Scene(recording)
        knobs, last = self.scene.knobs, len(self.scene) - 1
        wide = {"layout": widgets.Layout(width="96%"), "style": {"description_width": "5em"}}
        log = {"readout_format": ".3g", "style": {"description_width": "5em"}}
        self.step = widgets.IntSlider(0, 0, last, description="step", **wide)
        self.lam = widgets.FloatSlider(knobs.lam, min=0, max=5, step=0.01, description="λ", **log)
        self.temperature = widgets.FloatLogSlider(
            knobs.temperature, min=-3, max=2, step=0.05, description="T", **log
        )
        self.rho = widgets.FloatSlider(knobs.rho, min=0, max=5, step=0.05, description="ρ", **log)
        self.head = widgets.IntSlider(
            knobs.head, 0, recording.config.K - 1, description="head", style=log["style"]
        )
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        self.jumps = widgets.HBox()
        self.step.observe(self._move, "value")
        for knob in (self.lam, self.temperature, self.rho, self.head):
            knob.observe(self._turn, "value")
        self._draw()
        play = widgets.Play(interval=250, max=last, description="play")
        widgets.jslink((play, "value"), (self.step, "value"))
        where = widgets.HBox([play, self.step])
        how = widgets.HBox([self.lam, self.temperature], layout=widgets.Layout(flex_flow="wrap"))
        what = widgets.HBox([self.rho, self.head], layout=widgets.Layout(flex_flow="wrap"))
        super().__init__([where, self.jumps, self.picture, how, what])

    def _move(self, change: Any) -> None:
        self.scene.show(change["new"])
        self.picture.value = self.scene.png()

    def _turn(self, change: Any) -> None:
        self.scene.turn(
            Knobs(self.lam.value, self.temperature.value, self.rho.value, self.head.value)
        )
        self._draw()

    def _draw(self) -> None:
        """The picture, and buttons to the states where the algorithms disagree most now."""
        buttons: list[widgets.Widget] = [widgets.Label("disputed:")]
        for number, t in enumerate(self.scene.disputed, 1):
            button = widgets.Button(
                description=f"▼{number}  step {t}", layout=widgets.Layout(width="auto")
            )
            button.on_click(lambda _, t=t: setattr(self.step, "value", t))
            buttons.append(button)
        self.jumps.children = buttons
        self.picture.value = self.scene.png()


def explore(recording: Recording) -> Explorer | Scene:
    """The explorer; where a machine runs the notebook, a picture of a disputed state."""
    if not os.environ.get(TERMINAL):
        return Explorer(recording)
    scene = Scene(recording)
    scene.show(scene.disputed[0])
    return scene


def slide(
    draw: Callable[[float], Figure], value: float, low: float, high: float, name: str
) -> widgets.VBox | Figure:
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
    slider = widgets.FloatSlider(value, min=low, max=high, step=step, description=name)
    image = widgets.Image(value=png(value), format="png", layout={"max_width": "600px"})
    slider.observe(lambda change: setattr(image, "value", png(change["new"])), "value")
    return widgets.VBox([slider, image])
