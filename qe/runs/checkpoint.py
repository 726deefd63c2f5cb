"""Checkpoints: all that a run needs to go on as if it had never been stopped.

A run's checkpoint directory lies beside its logs, as `<run>.checkpoint`:

- `identity.json`: the configuration and code that the rest belongs to;
- `lock`: held while a process works on the run;
- `replay/`: the replay memory, written as the run goes on;
- `0.safetensors`, `0.json` and `1.safetensors`, `1.json`: two generations of everything else,
  tensors and numbers apart. The JSON is written last and has the checksum of both.

Nothing in it is pickled: reading a checkpoint executes no code.
"""

import fcntl
import hashlib
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from qe.config import ConfigError
from qe.replay import DamagedError
from qe.runs.status import directory_of, read_identity

State = dict[str, Any]
TENSOR = "tensor:"
UNREADABLE = (
    FileNotFoundError, ValueError, LookupError, TypeError, AttributeError, RecursionError,
    SafetensorError,
)  # fmt: skip
UNUSABLE = (DamagedError, ValueError, LookupError, TypeError, AttributeError, RuntimeError)
PATIENCE = 5.0  # seconds to wait for a lock: a killed notebook's kernel lives on for one or two


def split(state: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """`state` as JSON, its arrays and tensors moved into `tensors` under their paths."""
    if isinstance(state, dict):
        return {str(k): split(v, f"{path}/{k}", tensors) for k, v in state.items()}
    if isinstance(state, np.ndarray):
        state = torch.from_numpy(np.ascontiguousarray(state))
    if isinstance(state, Tensor):
        tensors[path] = state.detach().cpu().contiguous()
        return TENSOR + path
    return state


def join(tree: Any, tensors: dict[str, Tensor]) -> Any:
    """What `split` took apart."""
    if isinstance(tree, dict):
        return {k: join(v, tensors) for k, v in tree.items()}
    if isinstance(tree, str) and tree.startswith(TENSOR):
        return tensors[tree.removeprefix(TENSOR)]
    return tree


def check_types(saved: Any, pattern: Any, name: str = "it") -> None:
    """Refuse a state whose values are not of the kinds that those of another state are."""
    if isinstance(pattern, dict):
        fits = isinstance(saved, dict) and saved.keys() >= pattern.keys()
    elif isinstance(pattern, np.ndarray | Tensor):
        fits = isinstance(saved, Tensor) and saved.shape == pattern.shape
    elif isinstance(pattern, list):
        fits = isinstance(saved, list) and all(isinstance(value, int) for value in saved)
    elif isinstance(pattern, float):
        fits = type(saved) in (float, int)
    else:
        fits = type(saved) is type(pattern)
    if not fits:
        raise DamagedError(f"{name} is damaged")
    for key in pattern if isinstance(pattern, dict) else ():
        check_types(saved[key], pattern[key], key)


def _plain(value: Any) -> Any:
    """numpy's numbers, which JSON does not know."""
    return value.item()


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        error.filename = error.filename or str(path)  # a full disk does not say which file
        raise
    temporary.replace(path)
    sync(path.parent)  # the new name, too, outlives a power cut


def sync(path: Path) -> None:
    """Have a file, or the names in a directory, safely on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write a safetensors file; a full disk is an OSError, as with any other file."""
    try:
        save_file(tensors, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    mask = os.umask(0)  # the only way to read it
    os.umask(mask)
    path.chmod(0o666 & ~mask)  # not for its owner alone, as the library has it


def _digest(tensor_file: Path, tree: str) -> str:
    with tensor_file.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    digest.update(tree.encode())
    return digest.hexdigest()


class Store:
    """The checkpoint directory of one run. Entering it takes the lock; `claim` makes it its own."""

    def __init__(self, run: Path, identity: dict[str, str]) -> None:
        self.run = run
        self.directory = directory_of(run)
        self.identity = identity
        self.replay = self.directory / "replay"
        self.generation = 0  # the one to write next
        self._lock: IO[str] | None = None

    def __enter__(self) -> "Store":
        self._lock = lock = self._take_lock()
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        return self

    def claim(self) -> None:
        """From here on it is of this run; what it has of another one is removed."""
        if read_identity(self.run) != self.identity:
            self.clear()  # first, or a kill here would leave one run's state under another's name
            write_atomically(self.directory / "identity.json", json.dumps(self.identity))
            sync(self.directory.parent)  # logs that outlive a power cut are never without it

    def _take_lock(self) -> IO[str]:
        """Wait for the lock. Whoever had it may have removed its file: then there is a new one."""
        path, deadline = self.directory / "lock", time.monotonic() + PATIENCE
        while True:
            self.directory.mkdir(parents=True, exist_ok=True)
            with ExitStack() as stack:
                try:
                    lock = stack.enter_context(path.open("a+"))
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if os.fstat(lock.fileno()).st_ino == path.stat().st_ino:
                        stack.pop_all()
                        return lock
                except FileNotFoundError:
                    continue
                except BlockingIOError:
                    if time.monotonic() < deadline:
                        time.sleep(0.2)
                        continue
                    lock.seek(0)
                    owner = lock.read().strip() or "another process"
                    raise ConfigError(
                        f"{owner} is working on this run ({self.directory})."
                    ) from None

    def __exit__(self, *error: object) -> None:
        if self._lock:
            self._lock.close()

    def save(self, state: State) -> None:
        """Write a generation; the one before stays."""
        tensors: dict[str, Tensor] = {}
        tree = json.dumps(split(state, "", tensors), default=_plain)
        target = self.directory / f"{self.generation}.safetensors"
        record = self.directory / f"{self.generation}.json"
        temporary = target.with_name(target.name + ".tmp")
        save_tensors(tensors, temporary)
        sync(temporary)
        record.unlink(missing_ok=True)  # from here to the last line this generation is void
        temporary.replace(target)
        number = state["number"]
        checksum = _digest(target, tree)
        write_atomically(record, json.dumps({"number": number, "sha256": checksum, "tree": tree}))
        self.generation = 1 - self.generation

    def load(self, restore: Callable[[State], None]) -> bool:
        """Have the newest generation that is whole restored. Whether there was one.

        `restore` may find that other files are damaged, and raises a DamagedError then.
        """
        found: dict[int, tuple[int, State]] = {}  # by number
        broken = 0
        for generation in (0, 1):
            record = self.directory / f"{generation}.json"
            target = self.directory / f"{generation}.safetensors"
            if not record.exists():
                broken += target.exists()
                continue
            try:
                content = json.loads(record.read_text())
                if _digest(target, content["tree"]) != content["sha256"]:
                    raise ValueError("its checksum is wrong")
                state = join(json.loads(content["tree"]), load_file(target))
                check_types(state["number"], 0, "its number")
                found[state["number"]] = generation, state
            except UNREADABLE as error:
                broken += 1
                print(f"Checkpoint {record} can't be read ({error}).", file=sys.stderr)
        for number, (generation, state) in sorted(found.items(), reverse=True):
            try:
                restore(state)
            except UNUSABLE as error:
                broken += 1
                print(f"Checkpoint number {number} can't be used ({error}).", file=sys.stderr)
                continue
            if broken:
                print(f"Going on from the checkpoint before it, number {number}.", file=sys.stderr)
            self.generation = 1 - generation
            return True
        if broken:
            print("No checkpoint is whole: the run starts again.", file=sys.stderr)
        return False

    def clear(self) -> None:
        """Forget all generations, so that the run starts again."""
        for generation in (0, 1):
            (self.directory / f"{generation}.json").unlink(missing_ok=True)
            (self.directory / f"{generation}.safetensors").unlink(missing_ok=True)

    def discard(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)
