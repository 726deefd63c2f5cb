"""Notebooks run by machines: papermill, with what it only warns about made an error."""

import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import papermill
import yaml
from nbclient.exceptions import DeadKernelError
from traitlets.config import Config

from qe.clean import clean
from qe.config import ConfigError, configure
from qe.provenance import code_fingerprint
from qe.run import TERMINAL, read_finished, status

RUNS, SWEEPS = Path("results/runs"), Path("results/sweeps")
EXECUTED = Path("results/executed")  # for inspection; not kept in git


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
    os.environ[TERMINAL] = "1"
    try:
        # Sockets of its own instead of ports, which kernels that start together compete for.
        with tempfile.TemporaryDirectory(prefix="qe-") as sockets:
            manager = {"transport": "ipc", "ip": f"{sockets}/kernel"}
            papermill.execute_notebook(
                str(notebook),
                str(output),
                parameters,
                progress_bar=False,
                config=Config({"KernelManager": manager}),
            )
    except papermill.PapermillExecutionError as error:
        raise ConfigError(
            f"{notebook.name} failed with {error.ename}: {error.evalue}; see {output}."
        ) from None
    except DeadKernelError:
        raise ConfigError(f"The kernel of {notebook.name} died; see {output}.") from None


def run_parameters(
    suite: str, game: str, algorithm: str, seed: int, sweep: tuple[str, float] | None = None
) -> dict[str, Any]:
    """What `params.yaml` says of one run, as parameters of its notebook."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    for key in (suite, algorithm):
        if key not in params:
            raise ConfigError(f"params.yaml has no {key!r}.")
    own = dict(params[algorithm])
    out = RUNS / suite / game / algorithm / str(seed)
    if sweep:
        name, value = sweep
        own[name] = value
        out = SWEEPS / name / suite / game / str(value) / str(seed)
    settings = dict(params[suite]["settings"])
    return {
        "suite": suite,
        "game": game,
        "seed": seed,
        "frames": settings.pop("frames", None),
        "profile": settings.pop("profile", "default"),
        "more": settings,
        "out": str(out.resolve()),
        **own,
    }


def execute_run(
    suite: str, game: str, algorithm: str, seed: int, sweep: tuple[str, float] | None = None
) -> None:
    """One run of the pipeline. A finished one with the same code and configuration is kept."""
    die_with_parent()
    notebook = Path("notebooks", f"{algorithm}.ipynb")

    def inputs() -> tuple[dict[str, Any], str, str]:
        parameters = run_parameters(suite, game, algorithm, seed, sweep)
        return parameters, code_fingerprint(), clean(notebook)

    before = parameters, code, _ = inputs()
    own = {k: v for k, v in parameters.items() if k not in ("more", "out")}
    config = configure(algorithm=algorithm, **own, **parameters["more"])
    out = Path(parameters["out"])
    found = status(out, config)
    done = read_finished(out)
    if done and found == "finished" and done["code"] == code:
        print(f"{os.path.relpath(out)}: finished before, kept.")
        return
    name = "-".join(out.relative_to(Path("results").resolve()).parts[1:])
    stale = found in ("finished", "other")  # by DVC's word
    execute(notebook, parameters | {"overwrite": stale}, name)
    if inputs() != before:
        raise ConfigError(
            "params.yaml, the notebook or the code changed while the run was made: "
            "its log is not what they say now; run it again."
        )
