"""Replay against a brute-force oracle under random operations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qe.replay import Replay, default_slack

SHAPE = (2, 3)


class Oracle:
    """Keeps every frame that was ever added, and answers slowly."""

    def __init__(self, capacity: int, history: int) -> None:
        self.capacity, self.history = capacity, history
        self.rows: list[dict] = []
        self.life = 0

    def add(self, **row) -> None:
        self.rows.append(row | {"life": self.life})
        if row["ends"]:
            self.life += 1

    def stack(self, i: int, life: int) -> np.ndarray:
        """The history up to frame i, zero before the life."""
        frames = []
        for j in range(i - self.history + 1, i + 1):
            ok = j >= 0 and self.rows[j]["life"] == life
            frames.append(self.rows[j]["frame"] if ok else np.zeros(SHAPE, np.uint8))
        return np.stack(frames)

    def transitions(self) -> dict[int, dict]:
        """By the number of its frame, every transition that can still be put together."""
        oldest = max(0, len(self.rows) - self.capacity)
        found = {}
        for i in range(oldest, len(self.rows) - 1):
            row = self.rows[i]
            reach = [
                j
                for j in range(i - self.history + 1, i + 1)
                if j >= 0 and self.rows[j]["life"] == row["life"]
            ]
            if not row["last"] and min(reach) >= oldest:
                found[i] = row
        return found


operations = st.lists(
    st.sampled_from(["step", "step", "step", "step", "life", "cut"]), min_size=2, max_size=120
)


def fill(
    capacity: int, history: int, ops: list[str], K: int = 0, slack: int = 0
) -> tuple[Replay, Oracle]:
    replay = Replay(capacity, SHAPE, history, K, slack=slack)
    oracle = Oracle(capacity, history)
    rng = np.random.default_rng(0)

    def new_frame() -> np.ndarray:
        # The frame's number in its first bytes, so that no two frames are alike.
        n = len(oracle.rows) + 1
        return np.array([n % 256, n // 256, 1, 2, 3, 4], np.uint8).reshape(SHAPE)

    for op in ops:
        frame, action, reward = new_frame(), int(rng.integers(5)), float(rng.normal())
        mask = rng.random(K) < 0.5 if K else None
        replay.add(frame, action, reward, op == "life", mask)
        oracle.add(
            frame=frame, action=action, reward=reward, mask=mask,
            terminal=op == "life", last=False, ends=op == "life",
        )  # fmt: skip
        if op == "cut":
            frame = new_frame()
            replay.add_last(frame)
            oracle.add(frame=frame, terminal=False, last=True, ends=True)
        assert len(replay) == min(len(oracle.rows), capacity)
    return replay, oracle


@settings(deadline=None, max_examples=150)
@given(
    operations, st.integers(6, 40), st.integers(1, 4), st.sampled_from([0, 3]), st.integers(0, 9)
)
def test_every_sample_is_a_transition_that_happened(ops, capacity, history, K, slack):
    replay, oracle = fill(capacity, history, ops, K, slack)
    possible = oracle.transitions()
    low, high = replay._bounds()
    ours = {i for i in range(low, high) if not replay.lasts[i % replay.slots]}
    # Of a full ring, the oldest frames are left out even where a life begins among them.
    assert ours <= set(possible)
    assert len(set(possible) - ours) <= (history - 1 if len(oracle.rows) > capacity else 0)
    if not ours:
        return
    batch = replay.sample(64, np.random.default_rng(1))
    for b in range(64):
        newest = batch.obs[b, -1].ravel()
        i = int(newest[0]) + 256 * int(newest[1]) - 1
        row = possible[i]
        assert np.array_equal(batch.obs[b], oracle.stack(i, row["life"]))
        assert batch.action[b] == row["action"]
        assert batch.reward[b] == np.float32(row["reward"])
        assert batch.terminal[b] == row["terminal"]
        if K:
            assert np.array_equal(batch.mask[b], row["mask"])
        if not row["terminal"]:
            assert np.array_equal(batch.next_obs[b], oracle.stack(i + 1, row["life"]))


@pytest.mark.parametrize("ops", [["step"] * 50, ["step", "cut", "life"] * 20])
def test_sampling_is_uniform(ops):
    replay, oracle = fill(30, 2, ops)
    batch = replay.sample(60_000, np.random.default_rng(0))
    numbers = batch.obs[:, -1, 0, 0].astype(int) - 1
    found, counts = np.unique(numbers, return_counts=True)
    assert set(found) <= set(oracle.transitions())
    assert counts.min() > 0.85 * counts.mean() and counts.max() < 1.15 * counts.mean()


def test_a_memory_in_files_is_there_for_the_next_process(tmp_path):
    first = Replay(50, SHAPE, 2, directory=tmp_path)
    for i in range(70):
        first.add(np.full(SHAPE, i, np.uint8), i % 5, float(i), terminal=i % 9 == 0)
    first.flush()
    second = Replay(50, SHAPE, 2, directory=tmp_path)
    second.set_state(first.get_state())
    batches = (r.sample(40, np.random.default_rng(0)) for r in (first, second))
    for ours, theirs in zip(*batches, strict=True):
        assert np.array_equal(ours, theirs)


def test_a_million_frames_fit_and_cost_nothing_before_they_are_filled():
    def resident() -> int:
        with open("/proc/self/statm") as file:  # noqa: PTH123
            return int(file.read().split()[1]) * 4096

    before = resident()
    replay = Replay(1_000_000, (1, 84, 84), 4)
    stored = sum(v.nbytes for v in vars(replay).values() if isinstance(v, np.ndarray))
    in_files = stored * (1_000_000 + default_slack(1_000_000)) / 1_000_000
    assert 7.056e9 < stored < in_files < 1.03 * 7.056e9
    frame = np.full((1, 84, 84), 7, np.uint8)
    for _ in range(100):
        replay.add(frame, 0, 0.0, False)
    assert (replay.sample(32, np.random.default_rng(0)).obs[:, -1] == 7).all()
    assert resident() - before < 100e6
