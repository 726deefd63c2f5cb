"""Notebooks run by machines: papermill, with what it only warns about made an error."""

import ctypes
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import yaml

from qe import TERMINAL
from qe.clean import clean
from qe.config import Config, ConfigError, configure
from qe.provenance import code_fingerprint
from qe.status import is_finished, status

# papermill and torch take three seconds to import: not before there is something to run.

RESULTS = Path("results")  # as dvc.yaml has it: below the folder that this is called from
EXECUTED = RESULTS / "executed"  # for inspection; not kept in git
# In the environment of a run's process:
PARENT = "QE_PARENT"  # the process that started it, without which it stops
RECORD = "QE_RECORD"  # the run was made before: find it, and don't make it


def die_with_parent(parent: int | None = None) -> None:
    """Have this process asked to stop when the one that started it is gone (Linux only).

    That one may be gone already, which is seen if it is known: given here, or in `PARENT`.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    known = parent or int(os.environ.pop(PARENT, os.getppid()))
    if known != os.getppid():
        raise ConfigError("What started this run is gone.")


class Stopped(KeyboardInterrupt):
    """Asked to stop from outside; the notebook's run has written a checkpoint."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(f"Stopped by {signal.Signals(number).name}; the same call goes on.")


@contextmanager
def passing_signals_on() -> Iterator[None]:
    """Have Ctrl-C and SIGTERM ask the kernel, which is a child, to write a checkpoint and stop."""
    asked: list[int] = []

    def ask(number: int, frame: object) -> None:
        asked.append(number)
        for child in psutil.Process().children():
            child.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except ConfigError:
        if asked:
            raise Stopped(asked[0]) from None
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def execute(notebook: Path, parameters: dict[str, Any], name: str) -> None:
    """Run a notebook with these parameters; the executed copy is kept even where it fails."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config as Traits

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
                config=Traits({"KernelManager": manager}),
            )
    except papermill.PapermillExecutionError as error:
        raise ConfigError(
            f"{notebook.name} failed with {error.ename}: {error.evalue}; see {output}."
        ) from None
    except DeadKernelError:
        raise ConfigError(f"The kernel of {notebook.name} died; see {output}.") from None


class Asked(NamedTuple):
    """A run, as a stage of `dvc.yaml` asks for it."""

    suite: str
    game: str
    algorithm: str
    seed: int
    sweep: tuple[str, Any] | None = None  # a parameter at another value than the algorithm's own
    group: str | None = None  # the section of params.yaml that has its settings, and its folder


class Planned(NamedTuple):
    """One run of the pipeline, as `params.yaml` says."""

    algorithm: str
    config: Config
    parameters: dict[str, Any]  # of its notebook
    out: Path

    @property
    def name(self) -> str:
        """Of its executed notebook and of its log."""
        return "-".join(self.out.relative_to(RESULTS).parts)


def read_params(path: Path = Path("params.yaml")) -> dict[str, Any]:
    """The grid and the algorithms' parameters."""
    if not path.is_file():
        raise ConfigError(f"There is no {path}: call this from the repository's folder.")
    return yaml.safe_load(path.read_text())


def plan(asked: Asked, sections: dict[str, Any] | None = None) -> Planned:
    """What `params.yaml` says of one run; `sections` is its content, if it was read before.

    One of a group has the algorithm's defaults, so that a change of lambda does not train it
    again.
    """
    suite, game, algorithm, seed, sweep, group = asked
    sections = sections or read_params()
    for key in (suite, algorithm):
        if key not in sections:
            raise ConfigError(f"params.yaml has no {key!r}.")
    if group and suite not in (sections.get(group) or {}):
        raise ConfigError(f"params.yaml has no group {group!r} with settings of {suite}.")
    own = {} if group else dict(sections[algorithm])
    settings = dict(sections[group][suite] if group else sections[suite]["settings"])
    out = RESULTS / (group or "runs") / suite / game / algorithm / str(seed)
    if sweep:
        name, value = sweep
        own[name] = value
        out = RESULTS / "sweeps" / name / suite / game / str(value) / str(seed)
    profile = settings.pop("profile", "default")
    own |= {"suite": suite, "game": game, "seed": seed}
    config = configure(profile, algorithm=algorithm, **own, **settings)
    parameters = own | {
        "frames": config.frames,
        "profile": profile,
        "more": {k: v for k, v in settings.items() if k != "frames"},
        "out": str(out.resolve()),
    }
    return Planned(algorithm, config, parameters, out)


def execute_run(asked: Asked) -> None:
    """One run of the pipeline. A finished one with the same code and configuration is kept."""
    die_with_parent()
    notebook = Path("notebooks", f"{asked.algorithm}.ipynb")

    def inputs() -> tuple[Planned, str, str]:
        return plan(asked), code_fingerprint(), clean(notebook)

    before = planned, _, _ = inputs()
    if is_finished(planned.out, planned.config):
        print(f"{planned.out}: finished before, kept.")
        return
    if os.environ.get(RECORD):
        raise ConfigError(
            f"{planned.out} does not hold the run that params.yaml and the code ask for now."
        )
    stale = status(planned.out, planned.config) in ("finished", "other")  # by DVC's word
    with passing_signals_on():
        execute(notebook, planned.parameters | {"overwrite": stale}, planned.name)
    if inputs() != before:
        raise ConfigError(
            "params.yaml, the notebook or the code changed while the run was made: "
            "its log is not what they say now; run it again."
        )
    if not is_finished(planned.out, planned.config):
        raise ConfigError(f"{notebook} did not make the run that params.yaml asks for.")
