"""Making the beginning of a finished run again, to see that its logs say what its code does."""

import os
import tempfile
from collections.abc import Callable
from itertools import zip_longest
from pathlib import Path

from qe.config import ConfigError, configure, short
from qe.runs.logs import Logs
from qe.runs.progress import progress_bar
from qe.runs.provenance import code_fingerprint, machine
from qe.runs.records import LOGS, Diary
from qe.runs.signals import import_games
from qe.runs.status import open_run
from qe.train import Trainer


def verify(
    run: Path, steps: int, algorithm: Callable[..., int] | None = None, progress: bool = True
) -> tuple[int, int]:
    """Train for the first `steps` steps of the run, and compare all logs byte for byte.

    A run of an algorithm of one's own needs its function. Returns how many steps, and how many
    finished games, were compared.
    """
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, not {steps}.")
    made, config = open_run(run)
    if algorithm:
        config = configure(**made["config"] | {"algorithm": algorithm})
    if config.source and not algorithm:
        raise ConfigError(
            f"{run} was made by {config.algorithm}, a function that is not in this package: call "
            f"qe.runs.verify.verify with it, as algorithm, where it is defined."
        )
    if config.fingerprint() != made["fingerprint"]:
        raise ConfigError(f"{run} was made by another {config.algorithm}.")
    import_games(config.suite)
    trainer = Trainer(config)
    diary = Diary(trainer)
    steps = min(steps, made["steps"])
    with tempfile.TemporaryDirectory(prefix=f"qe-{os.getpid()}-") as place:
        logs = Logs(Path(place))
        with progress_bar(
            progress, total=steps, desc=run.as_posix(), unit=" steps", unit_scale=True
        ) as bar:
            for rows in diary.keep():
                for row in rows:
                    logs.write(row)
                bar.update(trainer.steps - bar.n)
                if trainer.steps == steps < made["steps"]:
                    break
        logs.close()
        for name in LOGS.values():
            again, kept = (d.joinpath(name).read_bytes() for d in (Path(place), run))
            if not kept.startswith(again) or (steps == made["steps"] and kept != again):
                lines = zip_longest(again.splitlines(), kept.splitlines(), fillvalue=b"")
                pairs = enumerate(lines, 1)
                line, (here, there) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
                raise ConfigError(
                    f"{run / name} differs in line {line}: {_text(there)} there, "
                    f"{_text(here)} here.{_excuse(made)}"
                )
    return steps, diary.episodes


def _text(line: bytes) -> str:
    return short(line.decode(errors="replace"))


def _excuse(made: dict) -> str:
    """What else is different, and may be the reason."""
    here = machine()
    found = []
    if made["code"] != code_fingerprint():
        found.append("by other code (see its commit in run.json)")
    if made["machine"]["cpu"] != here["cpu"]:
        found.append(f"on another processor, {made['machine']['cpu']} (here {here['cpu']})")
    return f" It was made {' and '.join(found)}." if found else ""
