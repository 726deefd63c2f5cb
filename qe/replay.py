"""A replay memory that stores each frame once."""

import math
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

BYTES_BESIDE_FRAME = 8  # action, reward, terminal, last and age
BLOCK = 1024  # frames that have a checksum together


def default_slack(capacity: int) -> int:
    """Spare slots of a memory in files: under 3 % of a large one."""
    return max(20_000, capacity * 28 // 1000)


class DamagedError(ValueError):
    """What is on the disk is not what was written there."""


class Batch(NamedTuple):
    """B sampled transitions. Row b holds the history of s_t and, one frame on, that of s_t+1."""

    window: NDArray[np.uint8]  # [B, history + 1, *frame_shape]
    action: NDArray[np.int64]  # [B]
    reward: NDArray[np.float32]  # [B]
    terminal: NDArray[np.bool_]  # [B], the value after s_t+1 is zero
    mask: NDArray[np.bool_] | None  # [B, K], which heads learn from it; None: all

    @property
    def obs(self) -> NDArray[np.uint8]:
        """s_t, `[B, history, *frame_shape]`."""
        return self.window[:, :-1]

    @property
    def next_obs(self) -> NDArray[np.uint8]:
        """s_t+1; meaningless where `terminal`."""
        return self.window[:, 1:]


class Replay:
    """A ring of the last `capacity` frames, each with the action that followed it.

    Frames are numbered by when they were added; frame i lives in slot i % slots. A stack of
    `history` frames is put together when sampled: frames from before the life's first are zero.
    A life that is cut off (not ended) is closed with `add_last`, so that its last transition
    has a next frame to bootstrap from.
    """

    def __init__(
        self,
        capacity: int,
        frame_shape: tuple[int, ...],
        history: int,
        K: int = 0,
        directory: Path | None = None,
        slack: int | None = None,
    ) -> None:
        """`K` > 0 stores a mask over K heads with each transition.

        With a directory, the memory is in files there, and has `slack` slots more than it
        needs, and a block: so many frames can be added after a checkpoint before the first of
        those that the checkpoint refers to is overwritten.
        """
        self.capacity, self.history = capacity, history
        self.slack = slack if slack is not None else default_slack(capacity) if directory else 0
        self.slots = slots = capacity + self.slack + (BLOCK if self.slack else 0)
        self.directory = directory
        self._files: list[np.memmap] = []
        self.frames = self._array("frames", (slots, *frame_shape), np.uint8)
        self.actions = self._array("actions", (slots,), np.uint8)
        self.rewards = self._array("rewards", (slots,), np.float32)
        self.terminals = self._array("terminals", (slots,), np.bool_)
        self.lasts = self._array("lasts", (slots,), np.bool_)  # no transition starts here
        self.ages = self._array("ages", (slots,), np.uint8)  # frames of its life before, capped
        self.masks = self._array("masks", (slots, K), np.bool_) if K else None
        self.added = 0  # frames ever added
        self._age = 0  # of the next frame
        self._sums: dict[int, int] = {}  # the checksum of each block, as far as it was filled
        self._summed = 0  # frames that these were made of

    def _array(self, name: str, shape: tuple[int, ...], dtype: type) -> np.ndarray:
        """Zeros that take no memory until they are written to: 7 GB cost nothing at the start."""
        if self.directory is None:
            return np.zeros(shape, dtype)
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self.directory / name
        size = math.prod(shape) * np.dtype(dtype).itemsize
        with path.open("ab") as file:
            if file.tell() != size:
                file.truncate(0)
                if hasattr(os, "posix_fallocate"):
                    # A full disk is found now, and not by a crash when the page is written.
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
        array = np.memmap(path, dtype, "r+", shape=shape)
        self._files.append(array)
        return array

    def flush(self) -> None:
        """Bring the files up to date on the disk."""
        for array in self._files:
            array.flush()

    def get_state(self) -> dict[str, Any]:
        """All but the arrays, which are in their files; and checksums of these."""
        first = max(0, self.added - self.capacity) // BLOCK
        if self._files:
            for block in range(max(first, self._summed // BLOCK), -(-self.added // BLOCK)):
                self._sums[block] = self._checksum(block)
            self._summed = self.added
        self._sums = {block: value for block, value in self._sums.items() if block >= first}
        return {
            "added": self.added,
            "age": self._age,
            "first": first,
            "sums": [*self._sums.values()],
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state; what is in the files must be what was in them then."""
        self.added, self._age = state["added"], state["age"]
        self._summed = self.added
        self._sums = dict(enumerate(state["sums"], state["first"]))
        if any(self._checksum(block) != value for block, value in self._sums.items()):
            raise DamagedError("the replay memory is damaged")

    def _checksum(self, block: int) -> int:
        """Of all that the files hold of the block's frames, as far as they are added."""
        value = 0
        start, end = block * BLOCK, min((block + 1) * BLOCK, self.added)
        while start < end:  # the ring's end may lie in between
            slot = start % self.slots
            length = min(end - start, self.slots - slot)
            for array in self._files:
                value = zlib.crc32(array[slot : slot + length].data, value)
            start += length
        return value

    def __len__(self) -> int:
        return min(self.added, self.capacity)

    def add(
        self,
        frame: NDArray[np.uint8],
        action: int,
        reward: float,
        terminal: bool,
        mask: NDArray[np.bool_] | None = None,
    ) -> None:
        """One transition: the newest frame of s_t, the action taken there, and what came of it."""
        slot = self._write(frame, last=False)
        self.actions[slot] = action
        self.rewards[slot] = reward
        self.terminals[slot] = terminal
        if self.masks is not None:
            self.masks[slot] = mask
        if terminal:
            self._age = 0

    def add_last(self, frame: NDArray[np.uint8]) -> None:
        """The frame after a transition that was cut off without being terminal."""
        self._write(frame, last=True)
        self._age = 0

    def _write(self, frame: NDArray[np.uint8], last: bool) -> int:
        slot = self.added % self.slots
        self.frames[slot] = frame
        self.lasts[slot] = last
        self.ages[slot] = self._age
        self.added += 1
        self._age = min(self._age + 1, self.history - 1)
        return slot

    def _bounds(self) -> tuple[int, int]:
        """The transitions whose frames are all there: from the first to before the second."""
        oldest = max(0, self.added - self.capacity)
        return oldest + (self.history - 1 if oldest else 0), self.added - 1

    def can_sample(self) -> bool:
        low, high = self._bounds()
        return high > low

    def sample(self, n: int, rng: np.random.Generator) -> Batch:
        """`n` transitions, uniformly and with replacement."""
        low, high = self._bounds()
        index = rng.integers(low, high, n)
        while (last := self.lasts[index % self.slots]).any():
            index[last] = rng.integers(low, high, int(last.sum()))
        slot = index % self.slots

        offset = np.arange(1 - self.history, 2)  # [history + 1], from the oldest to s_t+1's
        window = self.frames[(index[:, None] + offset) % self.slots]
        window[-offset > self.ages[slot][:, None].astype(np.int64)] = 0  # from before the life
        return Batch(
            window=window,
            action=self.actions[slot].astype(np.int64),
            reward=self.rewards[slot],
            terminal=self.terminals[slot],
            mask=None if self.masks is None else self.masks[slot],
        )
