"""A real Slurm on this machine: one controller, two nodes of one core, all on loopback."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel")
CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdTimeout=3
SlurmctldTimeout=30
KillWait=5
ReturnToService=2
JobRequeue=1
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={port1} CPUs=1 RealMemory=4000
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={port2} CPUs=1 RealMemory=4000
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why there can be no Slurm here; empty if there can."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    absent = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge)"
    return "" if os.geteuid() == 0 else "the daemons of a test cluster need root"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": os.environ["PATH"] + ":/usr/sbin:/sbin",
        }
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        munge = self.folder / "munge"
        for name in ("munge", "state", "spool-n1", "spool-n2"):
            (self.folder / name).mkdir(parents=True)
        munge.chmod(0o755)
        key = munge / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{name}-file={munge / name}" for name in ("pid", "log", "seed")]
        self._start("munged", "--foreground", "--force", f"--key-file={key}",
                    f"--socket={munge / 'socket'}", *files)  # fmt: skip
        controller, port1, port2 = _free_ports(3)
        config = CONFIG.format(
            folder=self.folder, host=socket.gethostname(),
            controller_port=controller, port1=port1, port2=port2,
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(config)
        self._wait(lambda: (munge / "socket").exists())
        self._start("slurmctld", "-D")
        for node in ("n1", "n2"):
            self.start_node(node)
        self._wait(lambda: self.call("sinfo", "-h", "-o", "%T %D") == "idle 2")
        return self

    def __exit__(self, *error: object) -> None:
        for daemon in self.daemons.values():
            daemon.kill()
            daemon.wait()
        for process in self.job_processes("n1") + self.job_processes("n2"):
            process.kill()

    def _start(self, name: str, *words: str, key: str = "") -> None:
        program = shutil.which(name, path=self.env["PATH"])
        assert program
        with (self.folder / f"{key or name}.out").open("ab") as out:
            self.daemons[key or name] = subprocess.Popen(
                [program, *words], env=self.env, stdout=out, stderr=out
            )

    def start_node(self, node: str) -> None:
        self._start("slurmd", "-D", "-N", node, key=node)

    def call(self, *words: str) -> str:
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, check=False)
        return done.stdout.strip()

    def _wait(self, true, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        return "\n".join(f"{p}\n{p.read_text()[-2000:]}" for p in self.folder.glob("*.*"))

    def job_processes(self, node: str) -> list[psutil.Process]:
        """Everything that jobs started on this node, and the daemons that watch over it."""
        found: dict[int, psutil.Process] = {}
        for process in psutil.process_iter():
            try:
                env = process.environ()
                ours = env.get("SLURM_CONF") == self.env["SLURM_CONF"]
                if ours and env.get("SLURMD_NODENAME") == node:
                    steps = [p for p in process.parents() if p.name() == "slurmstepd"]
                    found |= {p.pid: p for p in [*steps, process]}
            except psutil.Error:
                continue  # gone meanwhile
        return list(found.values())

    def lose(self, node: str) -> None:
        """The node's daemon and all that its jobs started, gone at once."""
        daemon = self.daemons.pop(node)
        daemon.kill()
        daemon.wait()
        for process in self.job_processes(node):
            process.kill()
