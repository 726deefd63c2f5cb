"""Notebooks run by machines: papermill, with what it only warns about made an error."""

import ctypes
import signal
import sys
from pathlib import Path
from typing import Any

import nbformat
import papermill
import yaml

from qe.config import ConfigError, configure
from qe.run import code_fingerprint, read_finished

EXECUTED = Path("results/executed")  # for inspection; not kept in git


def clean(notebook: Path) -> str:
    """The notebook's code cells and their tags as text: what a run depends on.

    Running a notebook by hand and saving it changes the file, but not this.
    """
    cells = nbformat.read(notebook, as_version=4).cells
    return "\n\n".join(
        f"# %% {cell.metadata.get('tags', [])}\n{cell.source}"
        for cell in cells
        if cell.cell_type == "code"
    )


def die_with_parent() -> None:
    """Have the kernel end this process when the one that started it is gone (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def execute(notebook: Path, parameters: dict[str, Any], name: str) -> None:
    """Run a notebook with these parameters; the executed copy is kept even where it fails."""
    known = papermill.inspect_notebook(str(notebook))
    for unknown in parameters.keys() - known.keys():
        raise ConfigError(
            f"{notebook.name} has no parameter {unknown!r}; it has {', '.join(known)}."
        )
    output = EXECUTED / f"{name}.ipynb"
    output.parent.mkdir(parents=True, exist_ok=True)
    papermill.execute_notebook(
        str(notebook), str(output), parameters, progress_bar=False, log_output=False
    )


def run_parameters(suite: str, game: str, algorithm: str, seed: int) -> dict[str, Any]:
    """What `params.yaml` says of one run, as parameters of its notebook."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    own = params[algorithm] or {}
    settings = dict(params[suite]["settings"])
    return {
        "suite": suite,
        "game": game,
        "seed": seed,
        "frames": settings.pop("frames"),
        "profile": settings.pop("profile", "default"),
        "more": settings,
        "out": str(Path("results/runs", suite, game, algorithm, str(seed)).resolve()),
        **own,
    }


def execute_run(suite: str, game: str, algorithm: str, seed: int) -> None:
    """One run of the pipeline. A finished one with the same code and configuration is kept."""
    die_with_parent()
    notebook = Path("notebooks", f"{algorithm}.ipynb")

    def inputs() -> tuple[Any, ...]:
        parameters = run_parameters(suite, game, algorithm, seed)
        return parameters, code_fingerprint(), clean(notebook)

    before = inputs()
    parameters = before[0]
    own = {k: v for k, v in parameters.items() if k not in ("more", "out")}
    config = configure(algorithm=algorithm, **own, **parameters["more"])
    done = read_finished(Path(parameters["out"]))
    if done and done["fingerprint"] == config.fingerprint() and done["code"] == code_fingerprint():
        print(f"{suite} {game} {algorithm} {seed}: finished before, kept.")
        return
    execute(notebook, parameters | {"overwrite": True}, f"{suite}-{game}-{algorithm}-{seed}")
    if inputs() != before:
        raise ConfigError(
            "params.yaml, the notebook or the code changed while the run was made: "
            "its log is not what they say now; run it again."
        )
