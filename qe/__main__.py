"""The command line: `python -m qe run --suite minatar --game Breakout --algorithm ucb`."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qe import RESULTS
from qe.config import ALGORITHMS, Config, ConfigError, configure
from qe.notebooks import Asked


def parse_value(name: str, text: str) -> Any:
    """`text` as the value of the parameter `name`: names as they are, the rest as JSON."""
    field = Config.model_fields.get(name)
    if field is None or isinstance(field.default, str):
        return text
    try:
        value = json.loads(text.replace("_", "").lower())
    except json.JSONDecodeError:
        return text
    # 1e6 frames are meant as a whole number.
    whole = isinstance(field.default, int) and isinstance(value, float) and value.is_integer()
    return int(value) if whole else value


def parse_parameters(words: list[str]) -> dict[str, Any]:
    """`--name value` and `--name=value`, any parameter of a run."""
    values: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        if not word.startswith("--"):
            raise ConfigError(f"Expected a parameter such as --game, not {word!r}.")
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise ConfigError(f"{name} needs a value.")
            text = following
        values[name] = parse_value(name, text)
    return values


def print_parameters(profile: str, suite: str) -> None:
    config = configure(profile, suite=suite, **({"game": "Breakout"} if suite == "minatar" else {}))
    for name, field in Config.model_fields.items():
        if name != "profile":
            print(f"--{name:<17} {getattr(config, name)!s:<34} {field.description}")


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m qe", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="train one agent",
        description="Train one agent. Takes every parameter as --name value: "
        "`python -m qe parameters` lists them.",
    )
    run.add_argument("--out", help="directory (default: one of its own under results/scratch)")
    run.add_argument("--overwrite", action="store_true", help="make a finished run again")
    run.add_argument("--profile", default="default", help="parameters to start from")

    listing = commands.add_parser("parameters", help="list every parameter of a run")
    listing.add_argument("--suite", default="atari")
    listing.add_argument("--profile", default="default")

    execute = commands.add_parser("execute", help="one run of the pipeline, as params.yaml says")
    for name in ("suite", "game", "algorithm"):
        execute.add_argument(f"--{name}", required=True)
    execute.add_argument("--seed", type=int, required=True)
    execute.add_argument("--sweep", help="name=value of a parameter of the algorithm")
    execute.add_argument("--group", help="the section of params.yaml that has its settings")

    sweep = commands.add_parser(
        "sweep",
        help="make all stale runs, in parallel",
        description="Make the runs that DVC calls stale, in parallel, and have DVC record them. "
        "Stopped or killed, and called again, it goes on where it was.",
    )
    sweep.add_argument("targets", nargs="*", help="stages or groups of dvc.yaml (default: all)")
    sweep.add_argument("--workers", type=int, help="runs at once (default: one a core)")
    sweep.add_argument("--retries", type=int, default=1, help="of a run that fails (1)")
    sweep.add_argument("--dry", action="store_true", help="only say what would be run")
    sweep.add_argument("--cluster", choices=["slurm"], help="make them as jobs of a cluster")
    slurm = sweep.add_argument_group("with --cluster slurm")
    slurm.add_argument("--partition", help="(the cluster's default)")
    slurm.add_argument("--hours", type=float, default=24.0, help="time limit of a job (24)")
    slurm.add_argument("--parallel", type=int, default=64, help="jobs at once (64)")
    slurm.add_argument("--gpus", type=int, default=0, help="of each job (0)")
    slurm.add_argument("--per-job", type=int, default=1, help="runs packed into a job (1)")
    slurm.add_argument("--memory", type=float, help="GB of each run (what it needs)")
    slurm.add_argument("--sbatch", action="append", default=[], help="name=value, as sbatch has it")

    estimate = commands.add_parser(
        "estimate",
        help="what a grid of runs will take: time, memory, disk, money",
        description="Measure this machine for some seconds, and predict what a grid will take.",
    )
    estimate.add_argument("--params", type=Path, default=Path("params.yaml"), help="the grid")
    estimate.add_argument("--workers", type=int, help="runs at once (default: one a core)")
    estimate.add_argument("--price", type=float, help="of this machine for an hour")

    clean = commands.add_parser("clean", help="code as text, without what changes no result")
    clean.add_argument("source", help="a notebook, or `learning`: the modules that runs depend on")
    clean.add_argument("text", type=Path)

    analyse = commands.add_parser("analyse", help="one analysis notebook of the pipeline")
    analyse.add_argument("notebook", help="paper, tables, curves, statistics, sweeps, ...")
    analyse.add_argument("--suite", help="whose runs to read, where the notebook reads one's")

    verify = commands.add_parser(
        "verify", help="make the beginning of a finished run again, and compare"
    )
    verify.add_argument("run", type=Path, help="the run's directory")
    verify.add_argument("--steps", type=int, default=20_000, help="to make again (20 000)")

    watch = commands.add_parser(
        "watch", help="a video of a run's game, and of what its heads think"
    )
    watch.add_argument("run", type=Path, help="the directory of a run that kept its network")
    watch.add_argument("--out", type=Path, help="an .mp4 or a .gif (default: an .mp4 here)")
    watch.add_argument("--seed", type=int, default=0, help="of the game (0)")
    watch.add_argument("--steps", type=int, default=600, help="of the game, at most (600)")
    watch.add_argument("--fps", type=int, default=10, help="steps a second (10)")

    chain = commands.add_parser("chain", help="games until the chain's far end is found")
    chain.add_argument("algorithm", choices=ALGORITHMS)

    commands.add_parser("report", help="all tables and figures on one page")
    commands.add_parser("show", help="the main tables, and where the rest is")
    return parser


def command_run(args: argparse.Namespace, rest: list[str]) -> None:
    config = configure(args.profile, **parse_parameters(rest))
    from qe.estimate import describe  # torch takes a second: not before a typo is refused
    from qe.run import run

    print(describe(config), flush=True)
    print(run(config, args.out, overwrite=args.overwrite))


def parse_execute(words: Sequence[str]) -> Asked:
    """The words after `execute`."""
    args = build_parser().parse_args(["execute", *words])
    name, _, text = (args.sweep or "").partition("=")
    swept = (name, parse_value(name, text)) if name else None
    return Asked(args.suite, args.game, args.algorithm, args.seed, swept, args.group)


def command_execute(words: Sequence[str]) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's; meant for the job that runs this
    from qe.notebooks import execute_run

    execute_run(parse_execute(words))


def parse_options(words: list[str]) -> dict[str, str]:
    """`name=value`, as sbatch has them."""
    for word in words:
        if "=" not in word:
            raise ConfigError(f"sbatch must be name=value, not {word!r}.")
    return dict(word.split("=", 1) for word in words)


def command_sweep(args: argparse.Namespace) -> int:
    from qe.estimate import choose_workers, memory_of
    from qe.notebooks import read_params
    from qe.pipeline import stale
    from qe.sweep import Clock, Local, Place, hold, sweep

    read_params()  # refuses a wrong folder before the lock is made in it
    with hold():
        runs = stale(args.targets)
        configs = [run.config for run in runs]
        if args.dry or not runs:
            print("\n".join(run.stage for run in runs) or "No run is stale.")
            return 0
        place: Place
        if args.cluster:
            from qe.cluster import Options, Slurm

            options = Options(
                partition=args.partition,
                hours=args.hours,
                parallel=args.parallel,
                gpus=args.gpus,
                per_job=args.per_job,
                memory=memory_of(configs) / 1e9 if args.memory is None else args.memory,
                more=parse_options(args.sbatch),
            )
            place = Slurm(options, args.retries)
            workers = args.parallel * args.per_job
        else:
            workers = choose_workers(configs, args.workers)
            place = Local(workers, args.retries)
        print(f"{len(runs)} runs are stale; up to {workers} at once.", file=sys.stderr)
        return 1 if sweep(runs, place, Clock(runs, workers)) else 0


def command_clean(args: argparse.Namespace) -> None:
    from qe.clean import clean
    from qe.provenance import learning_code

    text = learning_code() if args.source == "learning" else clean(Path(args.source))
    args.text.parent.mkdir(parents=True, exist_ok=True)
    args.text.write_text(text)


def command_analyse(args: argparse.Namespace) -> None:
    from qe.notebooks import die_with_parent, execute

    die_with_parent()
    suite = {"suite": args.suite} if args.suite else {}
    name = "-".join([args.notebook, *suite.values()])
    execute(Path("notebooks", f"{args.notebook}.ipynb"), suite, name)


def command_verify(args: argparse.Namespace) -> None:
    from qe.verify import verify

    steps, games = verify(args.run, args.steps)
    print(f"{args.run}: the same, byte for byte, up to step {steps:,} ({games:,} games).")


def command_watch(args: argparse.Namespace) -> None:
    from qe.video import watch

    print(watch(args.run, args.out, seed=args.seed, max_steps=args.steps, fps=args.fps))


def command_chain(args: argparse.Namespace) -> None:
    from qe.chain import check, explore
    from qe.notebooks import die_with_parent, read_params

    die_with_parent()
    section = read_params().get("chain", {})
    check(section)
    explore(args.algorithm, **section, out=RESULTS / "chain" / f"{args.algorithm}.csv")


def command_report() -> None:
    from qe.report import build

    (RESULTS / "report.html").write_text(build(RESULTS))


def command_show() -> None:
    for table in sorted((RESULTS / "tables").glob("*/max_mean.md")):  # the paper's last
        print("\nHighest mean return of 100 consecutive games:\n")
        print(table.read_text())
    print("Tables in results/tables, figures in results/figures; all of them: results/report.html")


def main(words: list[str] | None = None) -> int:
    parser = build_parser()
    words = sys.argv[1:] if words is None else words
    args, rest = parser.parse_known_args(words)
    if rest and args.command != "run":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        match args.command:
            case "run":
                command_run(args, rest)
            case "parameters":
                print_parameters(args.profile, args.suite)
            case "execute":
                command_execute(words[1:])
            case "sweep":
                return command_sweep(args)
            case "estimate":
                from qe.grid import estimate_grid

                print(estimate_grid(args.params, args.workers, args.price))
            case "clean":
                command_clean(args)
            case "analyse":
                command_analyse(args)
            case "verify":
                command_verify(args)
            case "watch":
                command_watch(args)
            case "chain":
                command_chain(args)
            case "report":
                command_report()
            case "show":
                command_show()
    except ConfigError as error:
        print(f"qe: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"qe: {stopped or 'Stopped.'}", file=sys.stderr)
        return 128 + getattr(stopped, "number", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
