"""The learning curve below the bar, in a real kernel."""

import base64
import io
import os

import nbformat
import numpy as np
from nbclient import NotebookClient
from PIL import Image

from qe import TERMINAL

CODE = """
from qe.config import configure
from qe.runs import live
from qe.runs.session import run
live.EVERY = 0.3
live.SHARE = 1
config = configure(suite="minatar", game="Breakout", algorithm="ucb", frames=3000, K=3,
                   learning_starts=500, replay_size=3000, hidden=16)
run(config, "run");
"""


class Watched(NotebookClient):
    """Keeps every picture, as a person sees it."""

    def __init__(self, *words, **values) -> None:
        super().__init__(*words, **values)
        self.pictures: list[np.ndarray] = []

    def process_message(self, msg, cell, cell_index):
        if "image/png" in msg["content"].get("data", {}):
            png = base64.b64decode(msg["content"]["data"]["image/png"])
            self.pictures.append(np.asarray(Image.open(io.BytesIO(png))))
        return super().process_message(msg, cell, cell_index)


def train(folder, **variables) -> tuple[list[np.ndarray], list]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CODE)])
    client = Watched(notebook, resources={"metadata": {"path": str(folder)}})
    client.execute(env={k: v for k, v in os.environ.items() if k != TERMINAL} | variables)
    return client.pictures, notebook.cells[0].outputs


def drawn(picture: np.ndarray) -> int:
    """How much of the picture is not white."""
    return int((picture[..., :3] < 250).any(-1).sum())


def test_the_curve_grows_while_a_notebook_trains(tmp_path):
    pictures, outputs = train(tmp_path)
    assert len(pictures) >= 3
    ink = [drawn(picture) for picture in pictures]
    assert ink[0] < ink[len(ink) // 2] < ink[-1]
    kept = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(kept) == 1  # one picture, updated


def test_machines_get_no_curve(tmp_path):
    pictures, outputs = train(tmp_path, **{TERMINAL: "1"})
    assert not pictures and outputs
    assert (tmp_path / "run" / "run.json").exists()
