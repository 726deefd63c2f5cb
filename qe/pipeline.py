"""What DVC says of the pipeline's runs, and telling it of those that were made elsewhere.

DVC alone says what is stale. It runs stages one after another, though, so a sweep asks it once,
makes the runs itself, and has DVC record each: `dvc repro` calls the run's own command, which finds
the run finished with the same configuration and code, and keeps it.
"""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from qe.config import Config, ConfigError
from qe.notebooks import EXECUTED, RECORD, plan, read_params
from qe.status import is_finished, status

UPSTREAM = ("code", "learning")  # the stages that runs depend on; they take seconds
COMMAND = ("python", "-m", "qe", "execute")  # how the command of a run starts


class Run(NamedTuple):
    stage: str
    command: tuple[str, ...]
    config: Config
    out: Path
    name: str

    @property
    def log(self) -> Path:
        """What its process printed."""
        return EXECUTED / f"{self.name}.log"

    @property
    def notebook(self) -> Path:
        return EXECUTED / f"{self.name}.ipynb"

    def finished(self) -> bool:
        return is_finished(self.out, self.config)

    def frame(self) -> int:
        """How far it has come: the last frame that one of its logs has.

        Until it is begun, the logs in its place may be another's, which it will replace.
        """
        if not self.finished() and status(self.out, self.config) != "resumable":
            return 0
        return max(_last_frame(self.out / name) for name in ("episodes.csv", "diagnostics.csv"))


def _last_frame(log: Path) -> int:
    try:
        with log.open("rb") as file:
            column = file.readline().decode().split(",").index("frame")
            file.seek(max(file.tell(), log.stat().st_size - 1000))
            rows = [row.split(b",") for row in file.read().split(b"\n")[:-1]]
        return int(rows[-1][column])
    except (OSError, ValueError, IndexError):
        return 0  # no row yet


def environment() -> dict[str, str]:
    """For commands that say `python`: this one."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def dvc(*words: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *words]


def call(*words: str) -> str:
    done = subprocess.run(
        dvc(*words), env=environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ConfigError(f"`dvc {' '.join(words)}` failed: {done.stderr.strip()}")
    return done.stdout


def runs() -> list[Run]:
    """Every run that dvc.yaml and params.yaml declare."""
    from dvc.repo import Repo

    from qe.__main__ import parse_execute

    found = []
    sections = read_params()
    with Repo() as repo:
        for stage in repo.index.stages:
            command = tuple(shlex.split(getattr(stage, "cmd", None) or ""))
            if command[: len(COMMAND)] == COMMAND:
                planned = plan(parse_execute(command[len(COMMAND) :]), sections)
                found.append(
                    Run(stage.addressing, command, planned.config, planned.out, planned.name)
                )
    return found


def stale(targets: list[str]) -> list[Run]:
    """The runs that DVC would make: all, or those of the named stages and groups of stages."""
    everything = runs()
    for target in targets:
        if not any(run.stage == target or run.stage.startswith(f"{target}@") for run in everything):
            groups = sorted({run.stage.split("@")[0] for run in everything})
            raise ConfigError(
                f"{target!r} is no run of dvc.yaml: name a stage, or one of {', '.join(groups)}."
            )
    call("--wait-for-lock", "repro", "--quiet", *UPSTREAM)
    status = json.loads(call("--wait-for-lock", "status", "--json"))
    return [
        run
        for run in everything
        if run.stage in status
        and (not targets or {run.stage, run.stage.split("@")[0]} & set(targets))
    ]


class Recorder:
    """Has DVC record finished runs, while others go on."""

    def __init__(self) -> None:
        self.waiting: list[Run] = []
        self.recorded: list[Run] = []
        self.refused: list[Run] = []
        self.log = EXECUTED / "record.log"
        self._batch: list[Run] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self._process)

    def add(self, run: Run) -> None:
        self.waiting.append(run)

    def poll(self) -> None:
        """To be called now and then; returns at once."""
        if self._process:
            code = self._process.poll()
            if code is None:
                return
            if code == 0:
                self.recorded += self._batch
            elif len(self._batch) == 1:
                self.refused += self._batch
            else:  # which of them?
                for run in self._batch:
                    self._record([run])
                    assert self._process
                    self._process.wait()
                    (self.refused if self._process.returncode else self.recorded).append(run)
            self._process = None
        if self.waiting:
            self._batch, self.waiting = self.waiting, []
            self._record(self._batch)

    def _record(self, batch: list[Run]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                dvc("--wait-for-lock", "repro", "--single-item", "--keep-going",
                    *(run.stage for run in batch)),
                env=environment() | {RECORD: "1"},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,  # Ctrl-C is not meant for it
            )  # fmt: skip
