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
from qe.analysis.figures import save, use_style
from qe.network import QEnsemble
from qe.runs.provenance import git_commit, machine

OUT = RESULTS / "benchmarks"
KS, BATCHES = (1, 2, 5, 10, 20, 50), (32, 64, 128, 256)


def row(name: str, values: np.ndarray, **more: object) -> dict[str, object]:
    low, high = np.percentile(values, [10, 90])
    return {"what": name, "ms": 1e3 * np.median(values), "p10": 1e3 * low, "p90": 1e3 * high} | more


def rates(found: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Floating-point operations and bytes a second, round by round."""
    return 2 * 1536**3 / found["sgemm"], 3 * 256e6 / found["memory"]


def floor(suite: str, K: int, found: dict[str, np.ndarray]) -> np.ndarray:
    """Seconds that an update's products and passes take at this machine's own rates."""
    flops, rate = rates(found)
    ops, size = operations(suite, K)
    return ops / flops + size / rate


def operations(suite: str, K: int, batch: int = 32) -> tuple[float, float]:
    """Floating-point operations of an update's products, and bytes of its passes over weights.

    Beside the products, each weight's gradient is read for its norm, and Adam reads gradient,
    weight and two moments and writes three of them: eight times four bytes.
    """
    with FlopCounterMode(display=False) as counter:
        contenders.update(suite, K, loop=True, batch=batch).work()  # it knows plain torch's only
    config = contenders.config_of(suite, K)
    env = envs.make(config, np.random.default_rng(0))
    with torch.device("meta"):
        network = QEnsemble(config, env.frame_shape, env.n_actions)
    return counter.get_total_flops(), 32 * network.size


def update(rounds: int) -> pd.DataFrame:
    """(a) One update: ours, the loop over head modules, and this machine's floor."""
    cases = list(product(("atari", "minatar"), (1, 10)))
    workers = {name: Worker(name, HUGE) for name in ("sgemm", "memory")}
    for suite, K in cases:
        workers[f"{suite} K={K} ours"] = Worker("update", HUGE, suite=suite, K=K)
        workers[f"{suite} K={K} loop"] = Worker("update", SMALL, suite=suite, K=K, loop=True)
    found = interleave(workers, rounds, repeats=3)
    rows = []
    for suite, K in cases:
        name = f"{suite} K={K}"
        ops, size = operations(suite, K)
        mine, loop, least = found[f"{name} ours"], found[f"{name} loop"], floor(suite, K, found)
        one = found[f"{suite} K=1 ours"]
        rows += [
            row(f"{name} ours", mine, **{"x floor": np.median(mine / least),
                                         "x K=1": np.median(mine / one)}),
            row(f"{name} loop over heads", loop, **{"x ours": np.median(loop / mine)}),
            row(f"{name} floor", least, note=f"{ops / 1e9:.2f} GFLOP, {size / 1e6:.0f} MB",
                **{"x K=1": np.median(least / floor(suite, 1, found))}),
        ]  # fmt: skip
    flops, rate = (np.median(values) / 1e9 for values in rates(found))
    rows.append({"what": "this machine", "note": f"{flops:.0f} GFLOPS, {rate:.1f} GB/s"})
    return pd.DataFrame(rows)


KINDS = {
    **dict.fromkeys(
        ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "aten::baddbmm", "aten::bmm"),
        "the heads' products",
    ),
    "aten::mkldnn_convolution": "convolutions",
    "aten::convolution_backward": "convolutions",
    "aten::_fused_adam_": "Adam",
    "aten::linalg_vector_norm": "norms for clipping",
    "aten::copy_": "copies",
}


def profile(rounds: int) -> pd.DataFrame:
    """(f) Where an update's time goes, and at what rate its products run."""
    rows = []
    for suite, K in product(("atari", "minatar"), (1, 10)):
        work = contenders.update(suite, K).work
        for _ in range(5):
            work()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for _ in range(rounds):
                work()
        spent = dict.fromkeys([*KINDS.values(), "everything else"], 0.0)
        for event in profiler.key_averages():
            spent[KINDS.get(event.key, "everything else")] += event.self_cpu_time_total / 1e3
        whole = sum(spent.values())
        for kind, ms in spent.items():
            rows.append({"what": f"{suite} K={K}", "part": kind, "ms": ms / rounds,
                         "share": ms / whole})  # fmt: skip
    return pd.DataFrame(rows)


def agent(rounds: int) -> pd.DataFrame:
    """(b) End to end: agent steps a second, and the bound if an update took its floor alone."""
    pong = {"suite": "atari", "learning_starts": 200, "steps": 100}
    minatar = {"learning_starts": 500, "steps": 1000}
    breakout = {"suite": "minatar", **minatar}
    sb3, loop = "Stable-Baselines3 DQN", "MinAtar, straightforward loop, K = 10"
    agents = {
        f"Pong, {sb3}": Worker("sb3", SMALL, **pong),
        "Pong, Double DQN": Worker("ours", HUGE, K=1, **pong),
        "Pong, Double DQN, bfloat16": Worker("ours", HUGE, K=1, precision="bfloat16", **pong),
        "Pong, UCB, K = 10, bfloat16": Worker("ours", HUGE, K=10, precision="bfloat16", **pong),
        "Pong, UCB, K = 10": Worker("ours", HUGE, K=10, **pong),
        f"MinAtar, {sb3}": Worker("sb3", SMALL, **breakout),
        "MinAtar, Double DQN": Worker("ours", HUGE, K=1, **breakout),
        "MinAtar, UCB, K = 10": Worker("ours", HUGE, K=10, **breakout),
        loop: Worker("straightforward", SMALL, K=10, **minatar),
    }
    for name, worker in agents.items():  # past the random steps, to where training settles
        worker(6 if name.startswith("MinAtar") else 3)
    machine = {name: Worker(name, HUGE) for name in ("sgemm", "memory")}
    found = interleave(agents | machine, rounds, repeats=1)
    rows = []
    for name in agents:
        seconds, game = found[name], name.split(",")[0]
        peer = found[f"{game}, {sb3}"]
        more = {"steps/s": 1 / np.median(seconds), "x peer": np.median(peer / seconds)}
        if name.endswith("bfloat16"):
            exact = found[name.removesuffix(", bfloat16")]
            more["x float32"] = np.median(exact / seconds)
        elif "DQN" in name.replace(sb3, "") or "UCB" in name:
            suite, K = "atari" if game == "Pong" else "minatar", 10 if "UCB" in name else 1
            least = floor(suite, K, found) / contenders.config_of(suite, K).update_every
            more["bound x peer"] = np.median(peer / least)
        if name == "MinAtar, UCB, K = 10":
            more["x loop"] = np.median(found[loop] / seconds)
        rows.append(row(name, seconds, **more))
    return pd.DataFrame(rows)


def choosing(rounds: int) -> pd.DataFrame:
    """(g) Choosing an action: asking the network, and all of it."""
    rows = []
    for suite, K in product(("minatar", "atari"), (1, 10)):
        workers = {
            part: Worker("choosing", HUGE, suite=suite, K=K, alone=part == "network")
            for part in ("network", "all")
        }
        found = interleave(workers, rounds, repeats=5)
        rows += [
            row(f"{suite} K={K} {part}", values, us=1e6 * np.median(values))
            for part, values in found.items()
        ]
    return pd.DataFrame(rows)


def replay(rounds: int) -> pd.DataFrame:
    """(c) Replay: memory and time, against Stable-Baselines3's buffer; and a share of an update."""
    worker = Worker("update", HUGE, suite="atari", K=1)
    least = np.median([worker(3) for _ in range(5)])  # the shortest update of the paper's network
    worker.close()
    rows = []
    for name, frames, sb3 in (("ours", 1_000_000, False), ("Stable-Baselines3", 20_000, True)):
        with get_context("spawn").Pool(1) as pool:  # a process of its own, for its memory
            found = pool.apply(contenders.replay_memory, (frames, sb3))
        share = max(v for k, v in found.items() if k.startswith("sample")) / least
        rows.append({"what": name, "frames": frames, **found, "share of an update": share})
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
    axes[0].legend(loc="upper left")
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
    "profile": profile, "choosing": choosing,
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
