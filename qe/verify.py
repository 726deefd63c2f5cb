"""Making the beginning of a finished run again, to see that its logs say what its code does."""

import tempfile
from itertools import zip_longest
from pathlib import Path

from tqdm.auto import tqdm

from qe.config import ConfigError, configure
from qe.provenance import code_fingerprint, machine
from qe.run import LOGS, Logs
from qe.status import read_finished
from qe.train import Trainer


def verify(run: Path, steps: int) -> tuple[int, int]:
    """Train for the first `steps` steps of the run, and compare all logs byte for byte.

    Returns how many steps, and how many finished games, were compared.
    """
    if steps < 1:
        raise ConfigError(f"steps must be at least 1, not {steps}.")
    made = read_finished(run)
    if made is None:
        raise ConfigError(f"There is no finished run in {run}.")
    trainer = Trainer(configure(**made["config"]))
    steps = min(steps, made["steps"])
    with tempfile.TemporaryDirectory() as place:
        logs = Logs(Path(place))
        for _ in tqdm(range(steps), desc=run.as_posix(), unit=" steps", unit_scale=True):
            for record in trainer.step():
                logs.write(record)
        logs.close()
        for name in LOGS.values():
            again, kept = (d.joinpath(name).read_bytes() for d in (Path(place), run))
            if not kept.startswith(again):
                lines = zip_longest(again.splitlines(), kept.splitlines(), fillvalue=b"")
                pairs = enumerate(lines, 1)
                line, (here, there) = next((i, pair) for i, pair in pairs if pair[0] != pair[1])
                raise ConfigError(
                    f"{run / name} differs in line {line}: {there.decode()!r} there, "
                    f"{here.decode()!r} here.{_excuse(made)}"
                )
    return steps, trainer.episodes


def _excuse(made: dict) -> str:
    """What else is different, and may be the reason."""
    here = machine()
    found = []
    if made["code"] != code_fingerprint():
        found.append("by other code (see its commit in run.json)")
    if made["machine"]["cpu"] != here["cpu"]:
        found.append(f"on another processor, {made['machine']['cpu']} (here {here['cpu']})")
    return f" It was made {' and '.join(found)}." if found else ""
