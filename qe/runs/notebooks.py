"""Notebooks run by machines: papermill, with what it only warns about made an error."""

import ast
import difflib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from qe import TERMINAL
from qe.config import Config, ConfigError
from qe.runs.experiments import Run
from qe.runs.provenance import code_fingerprint
from qe.runs.signals import die_with_parent, passing_signals_on
from qe.runs.status import status

BESIDE = ("more", "out", "overwrite", "steps")  # what notebooks have beside a run's parameters
LONGEST = 60  # characters of a folder for sockets: the system allows about 100 in all

# papermill and torch take three seconds to import: not before there is something to run.


def execute(notebook: Path, parameters: dict[str, Any], output: Path) -> None:
    """Run a notebook with these parameters; the executed copy is kept even where it fails.

    Parameters that the notebook does not name go into its `more`, if it has one.
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from traitlets.config import Config as Traits

    if not notebook.is_file():
        raise ConfigError(f"There is no notebook {notebook}.")
    known = papermill.inspect_notebook(str(notebook))
    others = {k: v for k, v in parameters.items() if k not in known}
    if others and "more" not in known:
        raise ConfigError(
            f"{notebook.name} has no parameter {next(iter(others))!r}; it has {', '.join(known)}."
        )
    if others:
        parameters = {k: v for k, v in parameters.items() if k in known}
        parameters["more"] = parameters.get("more", {}) | others
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f"{output.stem}.tmp.ipynb")
    os.environ[TERMINAL] = "1"
    try:
        with keeping(temporary, output), sockets() as folder:
            manager = {"transport": "ipc", "ip": f"{folder}/kernel"}
            papermill.execute_notebook(
                str(notebook),
                str(temporary),
                parameters,
                progress_bar=False,
                config=Traits({"KernelManager": manager}),
                # A kernel is interrupted before it ends, and would call that an error.
                extra_arguments=["--IPKernelApp.log_level=50"],
            )
    except papermill.PapermillExecutionError as error:
        raise ConfigError(
            f"{notebook.name} failed with {error.ename}: {error.evalue}; see {output}."
        ) from None
    except DeadKernelError:
        raise ConfigError(f"The kernel of {notebook.name} died; see {output}.") from None


@contextmanager
def keeping(temporary: Path, output: Path) -> Iterator[None]:
    """Has `output` replaced when all is written, a failed notebook too; but not by a torn one."""
    try:
        yield
    except OSError as error:  # a full disk, which does not say which file
        temporary.unlink(missing_ok=True)
        error.filename = error.filename or str(output)
        raise
    except BaseException:
        if temporary.exists():
            temporary.replace(output)
        raise
    temporary.replace(output)


def check_cell() -> None:
    """Refuse a misspelt name in the cell of parameters, as it was run last in a live notebook.

    Without it the name's old value would be used, and the new one never seen.
    """
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is None:
        return
    cells = [_assigned(shell.transform_cell(cell)) for cell in shell.user_ns.get("In", [])]
    known = {*Config.model_fields, *BESIDE}
    most = max((len(cell & known) for cell in cells), default=0)
    for cell in reversed(cells):
        if len(cell & known) < max(most / 2, 2):
            continue
        for name in sorted(cell - known):
            near = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else "."
            raise ConfigError(f"There is no parameter {name!r}{hint}")
        return


def _assigned(code: str) -> set[str]:
    """The names that a cell assigns at its top level; none if it is no Python."""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return set()
    targets = [
        target
        for node in tree.body
        for target in getattr(node, "targets", [getattr(node, "target", None)])
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    ]
    return {
        inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)
    }


def sockets() -> tempfile.TemporaryDirectory[str]:
    """A folder for a kernel's sockets, which is short enough for their names.

    Kernels that start together compete for ports; sockets of their own they do not share. What
    killed processes left behind is removed.
    """
    folder = Path(tempfile.gettempdir())
    if len(str(folder)) > LONGEST:
        folder = Path("/tmp")
    for left in folder.glob("qe-*-*"):
        process = left.name.split("-")[1]
        if process.isdigit() and not psutil.pid_exists(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    return tempfile.TemporaryDirectory(prefix=f"qe-{os.getpid()}-", dir=folder)


def execute_run(find: Callable[[], Run]) -> None:
    """One declared run, through its algorithm's notebook. A finished one is kept.

    `find` reads `params.yaml`; it is called again at the end, since the file may be edited
    meanwhile, and DVC would take the run for what the file says then.
    """
    die_with_parent()
    run = find()
    before = run.config, code_fingerprint()
    if run.finished():
        print(f"{run.out}: finished before, kept.")
        return
    stale = status(run.out, run.config) in ("finished", "other")
    with passing_signals_on():
        values = run.values | {"out": str(run.out.resolve()), "overwrite": stale}
        execute(run.notebook, values, run.executed)
    if (find().config, code_fingerprint()) != before:
        raise ConfigError(
            "params.yaml or the code changed while the run was made: "
            "its log is not what they say now; run it again."
        )
    if not run.finished():
        raise ConfigError(f"{run.notebook} did not make the run that params.yaml asks for.")
