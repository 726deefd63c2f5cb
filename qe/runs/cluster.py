"""Runs as jobs of a Slurm cluster, through submitit.

All unfinished runs of an experiment go into one job array. A job works on one run, or on several
packed on its GPU, with the same code that makes runs on one machine. Slurm starts it again after a
preemption, a time limit or a lost node, and each of its runs goes on from its checkpoint. The jobs
need this folder and its environment at the same path on every node, as on a shared file system.
"""

import getpass
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, NamedTuple

from qe.config import ConfigError, short
from qe.runs.checkpoint import write_atomically
from qe.runs.experiments import EXECUTED, Run
from qe.runs.make import POLL, STOPPED, Ended, Local

FOLDER = EXECUTED / "slurm"  # submitit's own files and the jobs' logs
GRACE = 90  # seconds before the time limit at which a job is told to stop
PATIENCE = 600  # seconds that a job whose runs were told to stop waits for its own end
ALWAYS = 100_000  # times that a job may reach its time limit and be started again


LEAST = {"hours": 0.05, "parallel": 1, "gpus": 0, "per_job": 1, "memory": 0.001}
MOST = 1_000_000


class Options(NamedTuple):
    """What to ask the cluster for."""

    partition: str | None  # None: the cluster's default
    hours: float  # time limit of a job, which is started again when it reaches it
    parallel: int  # jobs that run at once
    gpus: int  # of each job
    per_job: int  # runs packed into a job
    memory: float  # GB of each run
    more: dict[str, str]  # any other option of sbatch

    def check(self) -> None:
        for name, least in LEAST.items():
            value = getattr(self, name)
            if not least <= value < MOST:  # nor NaN
                limit = f"below {MOST:,}" if value > least else f"at least {least}"
                raise ConfigError(f"{name} must be {limit}, not {short(value)}.")


class Job:
    """What a job does: its runs, side by side. submitit sends it to the node."""

    def __init__(self, folder: str, runs: list[Run], retries: int) -> None:
        self.folder, self.runs, self.retries = folder, runs, retries
        self._place: Local | None = None

    def __call__(self) -> list[str]:
        """Returns the names that failed."""
        os.chdir(self.folder)
        self._place = Local(len(self.runs), self.retries)
        self._place.submit([run for run in self.runs if not run.finished()])
        failed: list[str] = []
        while self._place.busy():
            for ended in self._place.poll():
                if ended.code in STOPPED:  # by Slurm, which signals all processes of a job
                    time.sleep(PATIENCE)
                    self._place.submit([ended.run])
                elif ended.code:
                    failed.append(ended.run.name)
            time.sleep(POLL)
        return failed

    def checkpoint(self) -> Any:
        """Called by submitit when Slurm is about to take the node away."""
        from submitit.helpers import DelayedSubmission

        if self._place:
            self._place.stop()
            self._place = None
        return DelayedSubmission(self)


class Slurm:
    """The jobs of one call, and those that an earlier call of it left running."""

    def __init__(self, options: Options, retries: int) -> None:
        options.check()
        if shutil.which("sbatch") is None:
            raise ConfigError("There is no Slurm here: `sbatch` was not found.")
        self.options, self.retries = options, retries
        self._record = FOLDER / "jobs.json"
        self._jobs: dict[str, list[str]] = {}  # job: names; of this call and of earlier ones
        self._runs: dict[str, Run] = {}  # by name; not ended
        self._states: dict[str, str] = {}
        self._asked = 0.0

    def submit(self, runs: list[Run]) -> None:
        import submitit

        FOLDER.mkdir(parents=True, exist_ok=True)
        self._runs = {run.name: run for run in runs}
        self._states = queue()
        if self._record.exists():
            earlier = json.loads(self._record.read_text())
            self._jobs = {job: names for job, names in earlier.items() if job in self._states}
        under_way = {name for names in self._jobs.values() for name in names}
        new = [run for run in runs if run.name not in under_way]
        size = self.options.per_job
        packs = [new[i : i + size] for i in range(0, len(new), size)]
        if not packs:
            return
        o = self.options
        executor = submitit.SlurmExecutor(folder=str(FOLDER.resolve()), max_num_timeout=ALWAYS)
        executor.update_parameters(
            job_name="qe",
            time=max(1, round(60 * o.hours)),
            array_parallelism=o.parallel,
            cpus_per_task=size,
            mem=f"{max(1, round(1000 * o.memory * size))}M",
            signal_delay_s=GRACE,
            stderr_to_stdout=True,
            additional_parameters={"requeue": True, **o.more},
            **({"partition": o.partition} if o.partition else {}),
            **({"gpus_per_node": o.gpus} if o.gpus else {}),
        )
        with executor.batch():  # one array
            jobs = [executor.submit(Job(str(Path.cwd()), p, self.retries)) for p in packs]
        self._jobs |= {
            job.job_id: [run.name for run in pack] for job, pack in zip(jobs, packs, strict=True)
        }
        write_atomically(self._record, json.dumps(self._jobs, indent=1))
        self._states = queue()

    def poll(self) -> list[Ended]:
        if time.monotonic() < self._asked + 5:
            return []
        self._states, self._asked = queue(self._states), time.monotonic()
        gone = {s for job, names in self._jobs.items() if job not in self._states for s in names}
        ended = []
        for name, run in list(self._runs.items()):
            if run.finished() or name in gone:
                del self._runs[name]
                ended.append(Ended(run, 0 if run.finished() else 1))
        return ended

    def running(self) -> list[Run]:
        at_work = [job for job, state in self._states.items() if state == "RUNNING"]
        names = {name for job in at_work for name in self._jobs.get(job, ())}
        return [run for name, run in self._runs.items() if name in names]

    def stop(self) -> str:
        """Leaves the jobs to Slurm."""
        arrays = sorted({job.split("_")[0] for job in self._jobs if job in self._states})
        return (
            "the jobs go on, and the same command watches them again; to end them: "
            f"scancel {' '.join(arrays)}"
        )


def queue(otherwise: dict[str, str] | None = None) -> dict[str, str]:
    """This user's unfinished jobs and their states.

    `otherwise` is the answer while the controller can't be reached.
    """
    done = subprocess.run(
        ["squeue", "--noheader", "--array", "--user", getpass.getuser(), "--format", "%i %T"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode and otherwise is None:
        raise ConfigError(f"squeue failed: {done.stderr.strip()}")
    if done.returncode:
        return otherwise or {}
    return dict(line.split() for line in done.stdout.splitlines())
