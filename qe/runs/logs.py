"""A run's logs on the disk: one CSV per kind of record, each with its checksum."""

import csv
import hashlib
import io
import os
from pathlib import Path
from typing import IO, Any, NamedTuple

from qe.replay import DamagedError
from qe.runs.records import LOGS, Record, columns

HEALTH = "health.csv"


Mark = dict[str, Any]  # the length and the checksum of a file


class Health(NamedTuple):
    """How the process fares, noted at each checkpoint: no two runs have the same."""

    seconds: float  # worked on the run
    frame: int
    steps_per_second: float  # since the last checkpoint
    memory_gb: float  # resident now, pages of the replay's files included
    checkpoint_seconds: float  # that this one took


class Logs:
    """One CSV per kind of record, fixed columns, flushed with every row."""

    def __init__(self, directory: Path, marks: dict[str, Mark] | None = None) -> None:
        """New logs, or with the `marks` of a checkpoint the old ones, cut to where they were."""
        self.files: dict[type, IO[str]] = {}
        self._digests = {kind: hashlib.sha256() for kind in LOGS}
        for kind, name in LOGS.items():
            path = directory / name
            if marks is None:
                self.files[kind] = path.open("w", newline="")
                self._row(kind, columns(kind))
                continue
            self.files[kind] = path.open("r+", newline="")
            length = marks[name]["bytes"]
            self._digests[kind].update(path.read_bytes()[:length])
            self.files[kind].truncate(length)
            self.files[kind].seek(0, os.SEEK_END)

    def write(self, record: Record) -> None:
        self._row(type(record), record)

    def _row(self, kind: type, row: Any) -> None:
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerow(row)
        self._digests[kind].update(text.getvalue().encode())
        self.files[kind].write(text.getvalue())
        self.files[kind].flush()

    def marks(self) -> dict[str, Mark]:
        """Length and checksum of what was written, safely on the disk."""
        found = {}
        for kind, file in self.files.items():
            os.fsync(file.fileno())
            size = os.fstat(file.fileno()).st_size
            found[LOGS[kind]] = {"bytes": size, "sha256": self._digests[kind].hexdigest()}
        return found

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def check_logs(directory: Path, marks: dict[str, Mark]) -> None:
    """Refuse logs that do not begin as they did when a checkpoint was taken."""
    for name, mark in marks.items():
        path = directory / name
        content = path.read_bytes()[: mark["bytes"]] if path.is_file() else b""
        if hashlib.sha256(content).hexdigest() != mark["sha256"]:
            raise DamagedError(f"{path} is not what it was then")
