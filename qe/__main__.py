"""The command line: `python -m qe run --suite minatar --game Breakout --algorithm ucb`."""

import os
import signal
import sys


def _stopped_early(*_: object) -> None:
    os.write(2, b"qe: Stopped.\n")
    os._exit(130)


SCRIPT = sys.argv[0].endswith("/qe")  # called as `qe`
# Ctrl-C gets its sentence from the first moment on, and whatever is being imported: some modules
# catch what is raised meanwhile. What has to be tidied up takes over, in `interruptible` or `Stop`.
ASKED = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not ignored, as by nohup
if ASKED and (SCRIPT or __name__ == "__main__"):
    signal.signal(signal.SIGINT, _stopped_early)

# ruff: noqa: E402
import argparse
import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, get_args

import shtab

from qe import RESULTS, TERMINAL
from qe.config import Config, ConfigError, configure, cut, short
from qe.selectors import ALGORITHMS

Arguments = argparse.Namespace
NAME = "qe" if SCRIPT else "python -m qe"
SUITES = get_args(Config.model_fields["suite"].annotation)
EXAMPLES = {"atari": "Pong", "minatar": "Breakout", "deepsea": "N10"}
LONG = 3600  # seconds, of a run that is not begun unasked
# torch takes a second to import, papermill two: each command imports what it needs, once its words
# are known to be right.


def parse_value(name: str, text: str) -> Any:
    """`text` as the value of the parameter `name`: names as they are, the rest as JSON."""
    field = Config.model_fields.get(name)
    if field is None or isinstance(field.default, str):
        return text
    try:
        value = json.loads(text.replace("_", "").lower())
    except (ValueError, RecursionError):  # no number, or one of thousands of digits or brackets
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
            raise ConfigError(f"Expected a parameter such as --game, not {short(word)}.")
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            following = next(rest, None)
            if following is None:
                raise ConfigError(f"{name} needs a value.")
            text = following
        values[name] = parse_value(name, text)
    return values


def parse_options(words: list[str]) -> dict[str, str]:
    """`name=value`, as sbatch has them."""
    for word in words:
        if "=" not in word:
            raise ConfigError(f"sbatch must be name=value, not {short(word)}.")
    return dict(word.split("=", 1) for word in words)


def interruptible() -> None:
    """From here on, Ctrl-C is an exception that something is tidied up after."""
    if signal.getsignal(signal.SIGINT) is _stopped_early:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def agreed(seconds: float) -> bool:
    """Whether to begin a run that takes so long: a person at a terminal is asked."""
    nobody = {TERMINAL, "DVC_ROOT"} & os.environ.keys() or not (sys.stdin and sys.stdin.isatty())
    if seconds < LONG or nobody:
        return True
    try:
        return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False


# --- what users call -------------------------------------------------------------------------


def command_run(args: Arguments) -> None:
    values = parse_parameters(args.rest)
    suite = values.get("suite", "atari")
    example = EXAMPLES.get(suite, "Pong")
    config = configure(args.profile, **{"game": example} | values)
    if "game" not in values:
        raise ConfigError(
            f"game must be given: --suite {suite} --game {example}, for example; "
            f"`{NAME} games` lists them."
        )
    from qe.runs.estimate import describe, predict
    from qe.runs.session import check_resources, directory_for, look, run

    directory = directory_for(config, args.out)
    found = "new" if args.overwrite else look(directory, config)
    if found != "finished":
        check_resources(config, directory)  # before the prediction, which takes some of them
        speed, seconds = predict(config)
        print(describe(config, speed, seconds), flush=True)
        if found == "new" and not args.yes and not agreed(seconds):
            raise ConfigError("Not begun.")
    print(run(config, directory, overwrite=args.overwrite))


def command_parameters(args: Arguments) -> None:
    game = {"game": "Breakout"} if args.suite == "minatar" else {}
    config = configure(args.profile, suite=args.suite, **game)
    for name, field in Config.model_fields.items():
        if name not in ("profile", "source"):
            print(f"--{name:<17} {getattr(config, name)!s:<34} {field.description}")


def command_games(args: Arguments) -> None:
    from qe.games import DEEPSEA, MINATAR, atari_games

    print(f"minatar: {', '.join(MINATAR)}")
    print(f"deepsea: N{DEEPSEA[0]} to N{DEEPSEA[1]}, so many rows and columns")
    print(f"atari: {', '.join(atari_games())}")


def command_estimate(args: Arguments) -> None:
    from qe.runs.estimate import estimate_all

    interruptible()
    print(estimate_all(args.params, args.workers, args.price))


def command_verify(args: Arguments) -> None:
    from qe.runs.verify import verify

    interruptible()
    steps, games = verify(args.run, args.steps)
    print(f"{args.run}: the same, byte for byte, up to step {steps:,} ({games:,} games).")


def command_compare(args: Arguments) -> None:
    from qe.analysis.compare import compare

    print(compare(args.runs, args.out))


def command_watch(args: Arguments) -> None:
    from qe.explore.video import watch

    interruptible()
    print(watch(args.run, args.out, seed=args.seed, max_steps=args.steps, fps=args.fps))


def command_random(args: Arguments) -> None:
    from qe.games import MINATAR
    from qe.runs.random_play import measure

    games = args.game or ([*MINATAR] if args.suite == "minatar" else [])
    if not games:
        raise ConfigError("game must be given: --game Pong --game Qbert.")
    interruptible()
    print(measure(args.suite, games, args.games, args.out))


# --- what the pipeline calls -----------------------------------------------------------------


def command_make(args: Arguments) -> int:
    from qe.runs.estimate import choose_workers, memory_of
    from qe.runs.experiments import read_params, runs_of
    from qe.runs.make import Clock, Local, Place, hold, make
    from qe.runs.signals import die_with_parent

    interruptible()
    die_with_parent()
    declared = list(runs_of(args.experiment, read_params()))
    with hold(args.experiment):
        runs = [run for run in declared if not run.finished()]
        print(f"{args.experiment}: {len(declared)} runs, {len(runs)} of them to be made.")
        if args.dry or not runs:
            print("\n".join(run.name for run in runs))
            return 0
        configs = [run.config for run in runs]
        place: Place
        if args.cluster:
            from qe.runs.cluster import Options, Slurm

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
        print(f"Up to {workers} at once.", flush=True)
        return 1 if make(runs, place, Clock(runs, workers)) else 0


def command_execute(args: Arguments) -> None:
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's; meant for the job that runs this
    from qe.runs.experiments import find_run
    from qe.runs.notebooks import execute_run

    interruptible()
    execute_run(lambda: find_run(args.experiment, args.game, args.variant, args.seed))


def command_analyse(args: Arguments) -> None:
    from qe.runs.experiments import EXECUTED
    from qe.runs.notebooks import execute
    from qe.runs.signals import die_with_parent

    interruptible()
    die_with_parent()
    values = {"experiment": args.experiment} if args.experiment else {}
    name = "-".join([args.notebook, *values.values()])
    execute(Path("notebooks", f"{args.notebook}.ipynb"), values, EXECUTED / f"{name}.ipynb")


def command_report(args: Arguments) -> None:
    from qe.analysis.report import build
    from qe.runs.checkpoint import write_atomically

    write_atomically(RESULTS / "report.html", build(RESULTS))


def command_show(args: Arguments) -> None:
    made = Counter(path.parts[-5] for path in sorted((RESULTS / "runs").glob("*/*/*/*/run.json")))
    verdicts = RESULTS / "analysis" / "claims" / "verdicts.md"
    table = verdicts.read_text().split("\n\n")[0] if verdicts.exists() else "verdict"
    header, *rows = [line.split(" | ") for line in table.splitlines()]
    found = Counter(row[header.index("verdict")] for row in rows[1:])

    def listed(counts: Counter[str]) -> str:
        return ", ".join(f"{number} {name}" for name, number in counts.items()) or "none"

    print(f"Runs:    {listed(made)}")
    print(f"Claims:  {listed(found)}; why: results/analysis/claims/verdicts.md")
    print("Tables and figures: results/analysis; all on one page: results/report.html")


# --- the words -------------------------------------------------------------------------------

Command = tuple[Callable[[Arguments], int | None], str]
USERS: dict[str, Command] = {
    "run": (command_run, "train one agent"),
    "parameters": (command_parameters, "list every parameter of a run"),
    "games": (command_games, "list the games of the three suites"),
    "estimate": (command_estimate, "what the runs of params.yaml will take: time, memory, money"),
    "verify": (command_verify, "make the beginning of a finished run again, and compare"),
    "compare": (command_compare, "draw two or more runs into one figure"),
    "random": (command_random, "what random play scores, the zero of normalized scores"),
    "watch": (command_watch, "a video of a run's game, and of what its heads think"),
}
PIPELINE: dict[str, Command] = {
    "make": (command_make, "the runs of an experiment, on all cores or on a cluster"),
    "execute": (command_execute, "one run of an experiment, through its notebook"),
    "analyse": (command_analyse, "one analysis notebook"),
    "report": (command_report, "all tables and figures on one page"),
    "show": (command_show, "what was made, the verdicts, and where the report is"),
}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(cut(" ".join(message.split())))


def build_parser() -> argparse.ArgumentParser:
    def listed(title: str, commands: dict[str, Command]) -> str:
        lines = [f"  {name:<12}{about}" for name, (_, about) in commands.items()]
        return "\n".join([f"{title}:", *lines])

    parser = Parser(
        prog=NAME,
        usage=f"{NAME} COMMAND ...",
        description=f"{__doc__}\n\n{listed('what users call', USERS)}\n\n"
        f"{listed('what the pipeline calls', PIPELINE)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    shtab.add_argument_to(parser)  # --print-completion bash, or zsh
    commands = parser.add_subparsers(
        dest="command", required=True, metavar="COMMAND", help=argparse.SUPPRESS
    )
    made = {
        name: commands.add_parser(name, description=about.capitalize() + ".")
        for name, (_, about) in (USERS | PIPELINE).items()
    }
    run = made["run"]
    run.usage = f"{NAME} run --suite SUITE --game GAME [--algorithm NAME] [--name value ...]"
    run.description = (
        f"Train one agent. SUITE: {', '.join(SUITES)}; GAME: `python -m qe games` lists them; "
        f"NAME: {', '.join(ALGORITHMS)}. Takes every parameter of a run, --frames 100000, --seed "
        "1, --lam 0.5, --K 10: `python -m qe parameters` lists all."
    )
    run.add_argument("--out", help="directory (default: one of its own under results/scratch)")
    run.add_argument("--overwrite", action="store_true", help="make a finished run again")
    run.add_argument("--profile", default="default", help="parameters to start from")
    run.add_argument("--yes", action="store_true", help="begin even what takes hours, unasked")

    made["parameters"].add_argument("--suite", default="atari")
    made["parameters"].add_argument("--profile", default="default")

    estimate = made["estimate"]
    estimate.add_argument("--params", type=Path, default=Path("params.yaml"), help="the runs")
    estimate.add_argument("--workers", type=int, help="runs at once (default: one a core)")
    estimate.add_argument("--price", type=float, help="of this machine for an hour")

    made["verify"].add_argument("run", type=Path, help="the run's directory")
    made["verify"].add_argument("--steps", type=int, default=20_000, help="to make again (20 000)")

    made["compare"].add_argument("runs", type=Path, nargs="+", metavar="RUN", help="directories")
    made["compare"].add_argument("--out", type=Path, default=Path("compare.svg"), help="figure")

    random = made["random"]
    random.add_argument("--suite", default="minatar")
    random.add_argument("--game", action="append", help="once for each (minatar: all five)")
    random.add_argument("--games", type=int, default=1000, help="games to play of each (1000)")
    random.add_argument("--out", type=Path, default=RESULTS / "reference" / "random", help="folder")

    watch = made["watch"]
    watch.add_argument("run", type=Path, help="the directory of a run that kept its network")
    watch.add_argument("--out", type=Path, help="an .mp4 or a .gif (default: an .mp4 here)")
    watch.add_argument("--seed", type=int, default=0, help="of the game (0)")
    watch.add_argument("--steps", type=int, default=600, help="of the game, at most (600)")
    watch.add_argument("--fps", type=int, default=10, help="steps a second (10)")

    make = made["make"]
    make.description = (
        "Make the runs of an experiment that are not finished. Stopped or killed, and called "
        "again, it goes on where it was. The variable QE_MAKE holds more words for it, such as "
        "--cluster slurm."
    )
    make.add_argument("experiment", help="of params.yaml")
    make.add_argument("--workers", type=int, help="runs at once (default: one a core)")
    make.add_argument("--retries", type=int, default=1, help="of a run that fails (1)")
    make.add_argument("--dry", action="store_true", help="only say what would be made")
    make.add_argument("--cluster", choices=["slurm"], help="make them as jobs of a cluster")
    slurm = make.add_argument_group("with --cluster slurm")
    slurm.add_argument("--partition", help="(the cluster's default)")
    slurm.add_argument("--hours", type=float, default=24.0, help="time limit of a job (24)")
    slurm.add_argument("--parallel", type=int, default=64, help="jobs at once (64)")
    slurm.add_argument("--gpus", type=int, default=0, help="of each job (0)")
    slurm.add_argument("--per-job", type=int, default=1, help="runs packed into a job (1)")
    slurm.add_argument("--memory", type=float, help="GB of each run (what it needs)")
    slurm.add_argument("--sbatch", action="append", default=[], help="name=value, as sbatch has it")

    for name in ("experiment", "game", "variant", "seed"):
        made["execute"].add_argument(name)
    made["analyse"].add_argument("notebook", help="paper, tables, curves, statistics, ...")
    made["analyse"].add_argument("--experiment", help="whose runs to read, where it reads one's")
    return parser


def more_words() -> list[str]:
    """What the variable QE_MAKE adds to `make`."""
    try:
        return shlex.split(os.environ.get("QE_MAKE", ""))
    except ValueError as error:
        raise ConfigError(f"QE_MAKE must be words as a shell has them: {error}.") from None


def check_text(words: list[str]) -> None:
    """Refuse bytes that are no characters: nothing could print them."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{short(word)} is no text in UTF-8.") from None


def say(sentence: str) -> None:
    print(f"qe: {cut(' '.join(sentence.split()))}", file=sys.stderr)


def forget_output() -> None:
    """What can't be printed is not tried again at the end, which would be another error."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def main(words: list[str] | None = None) -> int:
    words = sys.argv[1:] if words is None else words
    try:
        if words[:1] == ["make"]:
            words = [*words, *more_words()]
        check_text(words)
        parser = build_parser()
        args, rest = parser.parse_known_args(words)
        if rest and args.command != "run":
            parser.error(f"unrecognized arguments: {' '.join(rest)}")
        args.rest = rest
        code = (USERS | PIPELINE)[args.command][0](args) or 0
        sys.stdout.flush()
        return code
    except ConfigError as error:
        say(str(error))
        return 2
    except BrokenPipeError:  # `| head` has read enough
        forget_output()
        return 141
    except OSError as error:  # a full disk, a folder that may not be written to
        say(f"{error.strerror or error}: {error.filename or 'the standard output'}.")
        forget_output()
        return 2
    except KeyboardInterrupt as stopped:
        say(str(stopped) or "Stopped.")
        return 128 + getattr(stopped, "number", 2)


if __name__ == "__main__":
    sys.exit(main())
