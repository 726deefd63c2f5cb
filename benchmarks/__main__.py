"""Every part of the benchmark, or the named ones; tables and a figure in results/benchmarks."""

import argparse
import json
import sys
from collections.abc import Callable
from itertools import product
from multiprocessing import get_context

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import contenders
from benchmarks.measure import HUGE, SMALL, Worker, interleave
from qe import RESULTS, ROOT, envs
from qe.figures import save, use_style
from qe.network import QEnsemble
from qe.provenance import git_commit, machine

OUT = RESULTS / "benchmarks"
KS, BATCHES = (1, 2, 5, 10, 20, 50), (32, 64, 128, 256)


def row(name: str, values: np.ndarray, **more: object) -> dict[str, object]:
    low, high = np.percentile(values, [10, 90])
    return {"what": name, "ms": 1e3 * np.median(values), "p10": 1e3 * low, "p90": 1e3 * high} | more


def operations(suite: str, K: int, batch: int = 32) -> tuple[float, float]:
    """Floating-point operations of an update's products, and bytes of its passes over weights.

    Beside the products, each weight's gradient is read for its norm, and Adam reads gradient,
    weight and two moments and writes three of them: eight times four bytes.
    """
    with FlopCounterMode(display=False) as counter:
        contenders.update(suite, K, batch=batch).work()
    config = contenders.config_of(suite, K)
    env = envs.make(config, np.random.default_rng(0))
    with torch.device("meta"):
        network = QEnsemble.of(config, env.frame_shape, env.n_actions)
    return counter.get_total_flops(), 32 * sum(p.numel() for p in network.parameters())


def update(rounds: int) -> pd.DataFrame:
    """(a) One update: ours, the loop over head modules, and this machine's floor."""
    cases = list(product(("atari", "minatar"), (1, 10)))
    workers = {}
    for suite, K in cases:
        workers[f"{suite} K={K} ours"] = Worker("update", HUGE, suite=suite, K=K)
        workers[f"{suite} K={K} loop"] = Worker("update", SMALL, suite=suite, K=K, loop=True)
    workers["sgemm"] = Worker("sgemm", HUGE)
    workers["memory"] = Worker("memory", HUGE)
    found = interleave(workers, rounds, repeats=3)
    flops = 2 * 1536**3 / found["sgemm"]
    rate = 3 * 256e6 / found["memory"]
    rows = []
    for suite, K in cases:
        ops, size = operations(suite, K)
        name = f"{suite} K={K}"
        floor = ops / flops + size / rate
        mine, loop = found[f"{name} ours"], found[f"{name} loop"]
        rows += [
            row(f"{name} ours", mine),
            row(f"{name} loop over heads", loop, ratio=np.median(loop / mine)),
            row(f"{name} floor", floor, ratio=np.median(floor / mine),
                note=f"{ops / 1e9:.2f} GFLOP, {size / 1e6:.0f} MB"),
        ]  # fmt: skip
    rows.append({
        "what": "this machine", "ms": np.nan,
        "note": f"{np.median(flops) / 1e9:.0f} GFLOPS, {np.median(rate) / 1e9:.1f} GB/s",
    })  # fmt: skip
    return pd.DataFrame(rows)


def agent(rounds: int) -> pd.DataFrame:
    """(b) End to end: agent steps a second."""
    pong = {"suite": "atari", "learning_starts": 200, "steps": 100}
    minatar = {"learning_starts": 500, "steps": 1000}
    breakout = {"suite": "minatar", **minatar}
    workers = {
        "Pong, Stable-Baselines3 DQN": Worker("sb3", SMALL, **pong),
        "Pong, Double DQN": Worker("ours", HUGE, K=1, **pong),
        "Pong, UCB, K = 10": Worker("ours", HUGE, K=10, **pong),
        "MinAtar, Stable-Baselines3 DQN": Worker("sb3", SMALL, **breakout),
        "MinAtar, Double DQN": Worker("ours", HUGE, K=1, **breakout),
        "MinAtar, UCB, K = 10": Worker("ours", HUGE, K=10, **breakout),
        "MinAtar, straightforward loop, K = 10": Worker("straightforward", SMALL, K=10, **minatar),
    }
    for name, worker in workers.items():  # past the random steps, to where training settles
        worker(6 if name.startswith("MinAtar") else 3)
    found = interleave(workers, rounds, repeats=1)
    peers = {"Pong": "Pong, Stable-Baselines3 DQN", "MinAtar": "MinAtar, Stable-Baselines3 DQN"}
    loop = found["MinAtar, straightforward loop, K = 10"]
    rows = []
    for name, values in found.items():
        peer = found[peers[name.split(",")[0]]]
        rows.append(row(name, values, **{"steps/s": 1 / np.median(values),
                                         "x peer": np.median(peer / values)}))  # fmt: skip
        if name.startswith("MinAtar, UCB"):
            rows[-1]["x loop"] = np.median(loop / values)
    return pd.DataFrame(rows)


def replay(rounds: int) -> pd.DataFrame:
    """(c) Replay: memory and time, against Stable-Baselines3's buffer."""
    rows = []
    for name, frames, sb3 in (("ours", 1_000_000, False), ("Stable-Baselines3", 20_000, True)):
        with get_context("spawn").Pool(1) as pool:  # a process of its own, for its memory
            found = pool.apply(contenders.replay_memory, (frames, sb3))
        rows.append({"what": name, "frames": frames, **found})
    return pd.DataFrame(rows)


def growth(rounds: int) -> pd.DataFrame:
    """(d) How an update's cost grows with the heads, and with the batch."""
    rows = []
    for K in KS:
        found = interleave({"x": Worker("update", HUGE, suite="atari", K=K)}, rounds, 1)
        rows.append(row(f"K = {K}", found["x"], K=K, batch=32))
    for batch in BATCHES[1:]:
        found = interleave(
            {"x": Worker("update", HUGE, suite="atari", K=10, batch=batch)}, rounds, 1
        )
        rows.append(row(f"K = 10, batch {batch}", found["x"], K=10, batch=batch))
    return pd.DataFrame(rows)


def processes(rounds: int) -> pd.DataFrame:
    """(e) One process of two threads, and two of one: updates a second in all."""
    one = Worker("update", HUGE, suite="atari", K=10, threads=2)
    two = [Worker("update", HUGE, suite="atari", K=10) for _ in range(2)]
    for worker in (one, *two):
        worker(2)
    together, apart = [], []
    for _ in range(rounds):
        together.append(one(3))
        for worker in two:
            worker.ask(3)
        apart.append(np.mean([worker.answer() for worker in two]) / 2)
    for worker in (one, *two):
        worker.close()
    return pd.DataFrame([
        row("1 process of 2 threads", np.array(together)),
        row("2 processes of 1 thread", np.array(apart),
            ratio=np.median(np.array(together) / np.array(apart))),
    ])  # fmt: skip


def figure() -> None:
    """The main comparisons, from the tables."""
    use_style()
    fig, axes = plt.subplots(1, 3, figsize=(9, 2.8), constrained_layout=True)
    table = pd.read_csv(OUT / "update.csv", index_col="what")
    for K, offset in ((1, 0.0), (10, 4.0)):
        names = [f"atari K={K} {w}" for w in ("loop over heads", "ours", "floor")]
        for i, name in enumerate(names):
            axes[0].bar(
                offset + i,
                table["ms"][name],
                color=f"C{i}",
                label=["loop over heads", "this project", "floor"][i] if K == 1 else None,
            )
    axes[0].set_xticks([1, 5], ["K = 1", "K = 10"])
    axes[0].set_ylabel("ms per update, one thread")
    axes[0].legend()
    table = pd.read_csv(OUT / "agent.csv", index_col="what")
    names = ["Pong, Stable-Baselines3 DQN", "Pong, Double DQN", "Pong, UCB, K = 10"]
    for i, speed in enumerate(table["steps/s"][names]):
        axes[1].bar(i, speed, color="C0" if i == 0 else "C1")
        axes[1].text(i, speed, f"{speed:.0f}", ha="center", va="bottom")
    axes[1].set_xticks(range(3), ["SB3\nDQN", "Double\nDQN", "UCB\nK = 10"])
    axes[1].set_ylabel("agent steps per second, Pong")
    table = pd.read_csv(OUT / "growth.csv")
    heads = table[table["batch"] == 32]
    axes[2].plot(heads["K"], heads["ms"], marker="o", color="C1")
    axes[2].set_xlabel("heads K")
    axes[2].set_ylabel("ms per update")
    axes[2].set_ylim(0)
    save(fig, OUT / "speed.svg")


PARTS: dict[str, Callable[[int], pd.DataFrame]] = {
    "update": update, "agent": agent, "replay": replay, "growth": growth, "processes": processes,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=15, help="of interleaved measurements (15)")
    args = parser.parse_args()
    for part in args.parts:
        if part not in PARTS:
            parser.error(f"parts must be of {', '.join(PARTS)}, not {part!r}")
    sys.path.append(str(ROOT / ".bench"))
    OUT.mkdir(parents=True, exist_ok=True)
    for part in args.parts or PARTS:
        title = PARTS[part].__doc__ or ""
        table = PARTS[part](args.rounds)
        table.to_csv(OUT / f"{part}.csv", index=False, float_format="%.4g", lineterminator="\n")
        text = table.to_string(index=False, float_format="{:.4g}".format, na_rep="")
        print(f"\n{title}\n{text}")
    if not args.parts:
        figure()
    about = {"commit": git_commit(), "machine": machine(), "torch": torch.__version__,
             "rounds": args.rounds}  # fmt: skip
    (OUT / "about.json").write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
