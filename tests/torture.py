"""Attacks on runs: whatever happens on the way, the result is that of a run that was left alone.

Every attack is on a forked process, so that a thousand take minutes. `make torture` makes all of
them; `tests/runs/test_resume.py` a short version.

- **kill**: SIGKILL right before a step that outlives the process, chosen by its name (the third
  `replace 0.json`, say), or at a random moment.
- **power cut**: the same, and whatever was not synced is lost: contents, or names and contents.
- **full disk**: from a step on, no file may grow.
- **damage**: after a kill, a file of the run or its checkpoint is flipped, cut, lengthened or gone.
- **crowd**: two or four processes at once, one of them killed.
- **overwrite**: a finished run of another seed is replaced, and that is killed.
"""

import argparse
import errno
import os
import random
import resource
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: what is forked has no threads

from qe.config import Config, ConfigError, configure
from qe.replay import Replay
from qe.runs import session
from qe.runs.session import NETWORK, Session, run
from qe.runs.status import directory_of
from qe.selectors import ALGORITHMS
from qe.train import Trainer

FILES = ("episodes.csv", "evaluations.csv", "diagnostics.csv", NETWORK)
EVERY = (
    50  # steps between two checkpoints, which are seldom otherwise: they may take 2 % of the time
)
# A part of a second each, with everything in it that a checkpoint has to hold: sticky actions
# (the emulator's generator), lives, masks, evaluations, a replay that wraps around.
SUITES: dict[str, dict[str, Any]] = {
    "minatar": {"game": "Seaquest", "frames": 500, "hidden": 16, "replay_size": 300},
    "atari": {
        "game": "Breakout", "frames": 900, "sticky": 0.25, "max_frames": 300, "hidden": 16,
        "replay_size": 150, "eval_max_frames": 60,
    },
    "deepsea": {"game": "N8", "frames": 500, "hidden": 16, "replay_size": 300},
}  # fmt: skip
# More than the algorithms' own state: a fixed prior, ties at random, heads drawn for every life.
MORE: dict[str, dict[str, Any]] = {
    "double_dqn": {},
    "bootstrapped_dqn": {"mask_probability": 0.5, "head_per": "life"},
    "ensemble_voting": {"mask_probability": 0.5, "tie_break": "random"},
    "ucb": {"prior_scale": 3.0},
    "ucb_infogain": {"mask_probability": 0.5},
}
# Of the module os: what outlives a process. The replay's `flush` is one more.
STEPS = ("fsync", "replace", "unlink", "mkdir", "rmdir", "posix_fallocate")
REFUSED = 2
FIRST = ("kills", "differences")  # of what is counted


def often(at_work: Session, due: Callable[[Session], bool] = Session.due) -> bool:
    return due(at_work) or at_work.trainer.steps - at_work._saved_steps >= EVERY


Session.due = often  # type: ignore[method-assign]
session.git_commit = lambda: None  # type: ignore[assignment]  # it takes longer than the run
MEMORY = Path("/dev/shm")  # where syncing costs nothing; what is lost, the shim decides


class Shim:
    """In a forked process: counts the steps by name, keeps what was synced, and strikes."""

    def __init__(self, strike: Callable[[str, int], None], disk: Path | None = None) -> None:
        self.strike, self.disk = strike, disk
        self.seen: Counter[str] = Counter()
        for name in STEPS:
            setattr(os, name, self._around(name, getattr(os, name)))
        flush = Replay.flush

        def flush_and_keep(replay: Replay) -> None:
            self._reach("flush replay")
            flush(replay)
            for array in replay._files if disk else ():
                keep(Path(str(array.filename)), disk)

        Replay.flush = flush_and_keep  # type: ignore[method-assign]

    def _reach(self, label: str) -> None:
        self.seen[label] += 1
        self.strike(label, self.seen[label])

    def _around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(path: Any, *others: Any, **more: Any) -> Any:
            # A synced file is known by its number; a renamed one by its new name.
            opened = isinstance(path, int)
            place = str(Path(f"/proc/self/fd/{path}").readlink()) if opened else str(path)
            self._reach(f"{name} {Path(str(others[0]) if name == 'replace' else place).name}")
            result = real(path, *others, **more)
            if name == "fsync" and self.disk:
                keep(Path(place), self.disk)
            return result

        return step


def keep(path: Path, disk: Path) -> None:
    """Note what is on the disk: files by inode, directories by their names."""
    found = disk / str(path.stat().st_ino)
    if path.is_dir():
        names = [f"{p.stat().st_ino} {p.name}" for p in path.iterdir()]
        found.with_suffix(".dir").write_text("\n".join(names))
    else:
        shutil.copyfile(path, found)


def after_a_power_cut(path: Path, disk: Path, names_survive: bool) -> None:
    """Put `path` back to what was synced; where names survive, files are as short as they were."""
    listing = disk / f"{path.stat().st_ino}.dir"
    synced = listing.read_text().splitlines() if listing.exists() else []
    durable = {line.split(" ", 1)[1] for line in synced}
    for entry in list(path.iterdir()):
        if not names_survive and entry.name not in durable:
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        elif entry.is_dir():
            after_a_power_cut(entry, disk, names_survive)
        else:
            kept = disk / str(entry.stat().st_ino)
            entry.write_bytes(kept.read_bytes() if kept.exists() else b"")


def attempt(config: Config, out: Path, prepare: Callable[[], Any], overwrite: bool = False) -> int:
    """A process that makes the run, or goes on with it, under an attack; its process number."""
    pid = os.fork()
    if pid:
        return pid
    code = 3
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        prepare()
        run(config, out, overwrite=overwrite, progress=False)
        code = 0
    except ConfigError as error:
        code = REFUSED
        with suppress(OSError):  # the disk may be full
            out.with_suffix(".refused").write_text(str(error))
    finally:
        os._exit(code)


def end_of(pid: int) -> int:
    """The exit code of a process, or the negative number of the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def nothing(*_: object) -> None:
    pass


class Torture:
    def __init__(self, suite: str, algorithm: str, where: Path, rng: random.Random) -> None:
        values = SUITES[suite] | MORE[algorithm]
        self.config = configure(
            "smoke", suite=suite, algorithm=algorithm, checkpoint_every=0.02, keep_network=True,
            **values,
        )  # fmt: skip
        Trainer(self.config)  # has imported whatever it needs, once for all processes
        self.where, self.rng = where, rng
        self.done: Counter[str] = Counter()
        self.struck: set[str] = set()  # steps at which a process was killed
        self.number = 0
        self.whole = self.place()
        self.finish(self.whole)
        self.expected = {name: (self.whole / name).read_bytes() for name in FILES}
        self.names = self._names()

    def place(self) -> Path:
        self.number += 1
        out = self.where / str(self.number) / "place" / "run"  # steps have the same names in all
        out.parent.mkdir(parents=True)
        return out

    def _names(self) -> list[str]:
        """The steps of a whole run, by name."""
        found = self.where / "names"

        def strike(label: str, count: int) -> None:
            with found.open("a") as file:
                file.write(label + "\n")

        assert end_of(attempt(self.config, self.place(), partial(Shim, strike))) == 0
        return sorted(set(found.read_text().splitlines()))

    def finish(self, out: Path, overwrite: bool = False) -> None:
        """Undisturbed, to the end."""
        if end_of(attempt(self.config, out, nothing, overwrite)):
            run(self.config, out, overwrite=overwrite, progress=False)  # to see why

    def check(self, out: Path) -> None:
        """Finish the run, and compare it with the one that was left alone."""
        self.finish(out)
        for name, content in self.expected.items():
            if (out / name).read_bytes() != content:
                self.done["differences"] += 1
                print(f"{out}: {name} differs", file=sys.stderr)
        assert not directory_of(out).exists()
        shutil.rmtree(out.parent)

    def choose(self) -> str:
        """The name of a step, those first at which no process was ever killed."""
        return self.rng.choice([n for n in self.names if n not in self.struck] or self.names)

    def strike(self, name: str, act: Callable[[], None] = die) -> Callable[[str, int], None]:
        """Something that acts at a step, the first of its name or a later one."""
        at = self.rng.choice((1, 1, 1, 2, 3))
        return lambda label, count: act() if label == name and count == at else None

    def kill(self, out: Path, overwrite: bool = False) -> bool:
        """Whether it was killed, at a named step or at a random moment."""
        name, moment = self.choose(), self.rng.uniform(0.02, 0.6)
        strike = self.strike(name)
        by_name = self.rng.random() < 0.7

        def prepare() -> None:
            if by_name:
                Shim(strike)
            else:
                signal.setitimer(signal.ITIMER_REAL, moment)  # SIGALRM ends it on the spot

        code = end_of(attempt(self.config, out, prepare, overwrite))
        assert code in (0, -signal.SIGKILL, -signal.SIGALRM), code
        if code == -signal.SIGKILL:
            self.struck.add(name)
        self.done["kills"] += code != 0
        return code != 0

    def every_step(self) -> None:
        """A run for each step by name, killed when it first comes to it."""
        for name in self.names:
            out = self.place()
            strike = partial(self._die_at, name)
            if end_of(attempt(self.config, out, partial(Shim, strike))) == -signal.SIGKILL:
                self.struck.add(name)
                self.done["kills"] += 1
            self.check(out)

    @staticmethod
    def _die_at(name: str, label: str, count: int) -> None:
        if label == name:
            die()

    def kills(self) -> None:
        """One run, killed until it is finished."""
        out = self.place()
        while self.kill(out):
            pass
        self.check(out)

    def power_cuts(self) -> None:
        out = self.place()
        for _ in range(self.rng.randint(1, 3)):
            with TemporaryDirectory(dir=self.where) as folder:
                disk = Path(folder)
                for path in (out.parent, *out.parent.rglob("*")):
                    keep(path, disk)  # what was there before is on the disk
                name = self.choose()
                code = end_of(attempt(self.config, out, partial(Shim, self.strike(name), disk)))
                if code:
                    self.struck.add(name)
                assert code in (0, -signal.SIGKILL), code
                after_a_power_cut(out.parent, disk, names_survive=self.rng.random() < 0.5)
                self.done["power cuts"] += code != 0
        self.check(out)

    def full_disks(self) -> None:
        out = self.place()

        def fill() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

        for _ in range(2):
            strike = self.strike(self.choose(), fill)
            code = end_of(attempt(self.config, out, partial(Shim, strike)))
            assert code in (0, REFUSED), (code, errno.errorcode.get(code))
            self.done["full disks"] += code == REFUSED
        self.check(out)

    def damages(self) -> None:
        out = self.place()
        self.kill(out)
        checkpoint = directory_of(out)
        found = [p for p in (*out.glob("*"), *checkpoint.rglob("*")) if p.is_file()]
        if (out / "run.json").exists() or not found:
            return shutil.rmtree(out.parent)  # finished, or not begun: nothing to damage
        path = self.rng.choice(found)
        content = bytearray(path.read_bytes())
        match self.rng.choice(("flipped", "cut", "longer", "missing")):
            case "flipped" if content:
                content[self.rng.randrange(len(content))] ^= 1 << self.rng.randrange(8)
                path.write_bytes(content)
            case "cut":
                path.write_bytes(content[: len(content) // 2])
            case "longer":
                path.write_bytes(content + b"\0" * 100)
            case _:
                path.unlink()
        self.done["damages"] += 1
        code = end_of(attempt(self.config, out, nothing))
        # What is nobody's any more is refused, and made again by overwriting it.
        assert code in (0, REFUSED), code
        if code:
            self.finish(out, overwrite=True)
        self.check(out)

    def crowds(self) -> None:
        out, size = self.place(), self.rng.choice((2, 4))
        pids = [attempt(self.config, out, partial(Shim, self.strike(self.choose())))]
        pids += [attempt(self.config, out, nothing) for _ in range(size - 1)]
        codes = [end_of(pid) for pid in pids]
        assert set(codes) <= {0, REFUSED, -signal.SIGKILL}, codes
        self.done["crowds"] += 1
        self.check(out)

    def overwrites(self) -> None:
        out = self.place()
        other = self.config.model_copy(update={"seed": 1})
        assert end_of(attempt(other, out, nothing)) == 0
        while self.kill(out, overwrite=True) and self.rng.random() < 0.7:
            pass
        self.done["overwrites"] += 1
        code = end_of(attempt(self.config, out, nothing))
        if code:  # killed before anything was replaced: it is the other run still
            assert code == REFUSED
            self.finish(out, overwrite=True)
        self.check(out)


ATTACKS = (
    Torture.kills, Torture.power_cuts, Torture.full_disks, Torture.damages, Torture.crowds,
    Torture.overwrites,
)  # fmt: skip


def torture(suite: str, algorithm: str, kills: int, seed: int) -> Torture:
    """A kill at every step by name, and all attacks in turn until there were so many kills.

    Without kills, each attack once.
    """
    folder = MEMORY if MEMORY.is_dir() else None
    with TemporaryDirectory(prefix="qe-torture-", dir=folder) as where:
        made = Torture(suite, algorithm, Path(where), random.Random(seed))
        if kills:
            made.every_step()
        while True:
            for attack in ATTACKS:
                attack(made)
            if made.done["kills"] >= kills or not kills:
                return made


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=67, help="of each algorithm on each suite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--suites", nargs="*", choices=SUITES, default=list(SUITES))
    parser.add_argument("--algorithms", nargs="*", choices=ALGORITHMS, default=list(ALGORITHMS))
    args = parser.parse_args()
    suites: dict[str, Counter[str]] = {suite: Counter() for suite in args.suites}
    for suite in args.suites:
        for algorithm in args.algorithms:
            made = torture(suite, algorithm, args.kills, args.seed)
            suites[suite].update(made.done)
            struck = len(made.struck & set(made.names))
            print(
                f"{suite} {algorithm}: {said(made.done)}; "
                f"{struck} of {len(made.names)} steps struck by name",
                flush=True,
            )
    print("\nBy suite:")
    for suite, done in suites.items():
        print(f"{suite}: {said(done)}.")
    total = sum(suites.values(), Counter())
    print(f"In all: {said(total)}.")
    return 1 if total["differences"] else 0


def said(done: Counter[str]) -> str:
    others = [f"{count} {name}" for name, count in sorted(done.items()) if name not in FIRST]
    return ", ".join([*(f"{done[name]} {name}" for name in FIRST), *others])


if __name__ == "__main__":
    sys.exit(main())
