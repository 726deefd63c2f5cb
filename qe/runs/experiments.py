"""Every experiment as data: `params.yaml` says which runs there are, and this reads it.

An *experiment* is a plain product of games, variants and seeds. A *variant* is an algorithm, or an
algorithm and what differs: `ucb-lam=1-prior_scale=3`. There are two kinds of experiments. A grid
takes the values of its algorithms from the section `algorithms`, where a reader tweaks them; a
control says all that it is in its variants' names.
"""

import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qe.config import Config, ConfigError, configure, sentence, short
from qe.games import all_games
from qe.runs.status import is_finished, status
from qe.selectors import ALGORITHMS

PARAMS = Path("params.yaml")
OF_THE_PRODUCT = {"suite", "game", "seed", "algorithm"}  # what no variant or setting can be
# As dvc.yaml has them: below the folder that this is called from.
RUNS = Path("results", "runs")
EXECUTED = Path("results", "executed")  # for inspection; not kept in git


class Experiment(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    suite: str
    games: list[str] | Literal["all"]  # all: of the suite
    variants: list[str] | dict[str, dict[str, Any]] = Field(default_factory=lambda: [*ALGORITHMS])
    seeds: Annotated[int, Field(ge=1)] | list[int] = 1  # how many, from 0 on; or which
    settings: dict[str, Any] = {}  # parameters of every run

    @property
    def every_game(self) -> list[str]:
        if self.games != "all":
            return self.games
        if self.suite == "deepsea":
            raise ConfigError("games must be a list for the deepsea suite, such as [N6, N10].")
        return all_games(self.suite)

    @property
    def every_seed(self) -> list[int]:
        return list(range(self.seeds)) if isinstance(self.seeds, int) else self.seeds


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    algorithms: dict[str, dict[str, Any]]
    grids: dict[str, Experiment] = {}
    controls: dict[str, Experiment] = {}
    shown: list[str] = []  # the grids that are made into tables and figures


class Run(NamedTuple):
    """One run that is declared."""

    experiment: str
    variant: str
    config: Config
    values: dict[str, Any]  # that its notebook is given
    out: Path

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Experiment, game, variant and seed: where it is below results/runs."""
        return self.experiment, self.config.game, self.variant, str(self.config.seed)

    @property
    def name(self) -> str:
        return " ".join(self.key)

    @property
    def log(self) -> Path:
        """What its process printed."""
        return EXECUTED / f"{'-'.join(self.key)}.log"

    @property
    def executed(self) -> Path:
        """Its notebook, with outputs."""
        return self.log.with_suffix(".ipynb")

    @property
    def notebook(self) -> Path:
        return Path("notebooks", f"{self.config.algorithm}.ipynb")

    def finished(self) -> bool:
        return is_finished(self.out, self.config)

    def frame(self) -> int:
        """How far it has come: the last frame in its logs.

        Before it starts, its directory may hold another run's logs, which it will replace.
        """
        if not self.finished() and status(self.out, self.config) != "resumable":
            return 0
        return max(_last_frame(self.out / name) for name in ("episodes.csv", "diagnostics.csv"))


def _last_frame(log: Path) -> int:
    try:
        with log.open("rb") as file:
            column = file.readline().decode().split(",").index("frame")
            file.seek(max(file.tell(), log.stat().st_size - 1000))
            rows = [row.split(b",") for row in file.read().split(b"\n")[:-1]]
        return int(rows[-1][column])
    except (OSError, ValueError, IndexError):
        return 0  # no row yet


def read_params(path: Path = PARAMS) -> Params:
    if not path.is_file():
        raise ConfigError(f"There is no {path}: call this from the repository's folder.")
    try:
        found = yaml.safe_load(path.read_text())
        if not isinstance(found, dict):
            raise ConfigError(f"{path} must have sections: {', '.join(Params.model_fields)}.")
        return Params.model_validate(found)
    except (UnicodeDecodeError, RecursionError):
        raise ConfigError(f"{path} is no YAML.") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where else ""
        raise ConfigError(f"{path} is no YAML{line}.") from None
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, depth=3)}") from None


def split_variant(name: str) -> tuple[str, list[str]]:
    """`ucb-lam=1-K=5` as "ucb" and ["lam=1", "K=5"]."""
    algorithm, *parts = re.split(r"-(?=[A-Za-z]\w*=)", name)
    return algorithm, parts


def parse_variant(name: str) -> tuple[str, dict[str, Any]]:
    """`ucb-lam=1` as its algorithm and its values."""
    algorithm, parts = split_variant(name)
    try:
        return algorithm, {p.split("=")[0]: yaml.safe_load(p.split("=", 1)[1]) for p in parts}
    except yaml.YAMLError:
        raise ConfigError(
            f"variants must be named <algorithm>-<parameter>=<value>, not {name!r}."
        ) from None


def variant_name(algorithm: str, values: dict[str, Any]) -> str:
    """What a variant is called: its algorithm, and whichever of its values is not the paper's."""
    fields = Config.model_fields
    parts = [f"{name}={_number(value)}" for name, value in values.items()
             if name not in fields or value != fields[name].default]  # fmt: skip
    return "-".join([algorithm, *parts])


def _named(value: object) -> object:
    """What a variant's name says of a parameter: of a schedule, the value that it begins with."""
    if not isinstance(value, tuple):
        return value
    return value[0][1] if isinstance(value[0], tuple) else list(value)


def _number(value: object) -> str:
    """A value as short as it can be read back: 1 for 1.0."""
    short = f"{value:g}" if isinstance(value, float) else str(value)
    return short if not isinstance(value, float) or float(short) == value else repr(value)


def runs_of(name: str, params: Params) -> Iterator[Run]:
    """The runs of one experiment."""
    if params.grids.keys() & params.controls.keys() & {name}:
        raise ConfigError(f"params.yaml has {name} twice, in grids and in controls.")
    if not re.fullmatch(r"\w[\w-]*", name):
        raise ConfigError(f"experiment must be letters, digits, _ and -, not {short(name)}.")
    experiment = params.grids.get(name) or params.controls.get(name)
    if experiment is None:
        known = ", ".join([*params.grids, *params.controls]) or "none"
        raise ConfigError(f"experiment must be one of params.yaml ({known}), not {name!r}.")
    seen = set()
    for variant, values in _variants(name, experiment, params).items():
        algorithm, said = parse_variant(variant)
        if OF_THE_PRODUCT & values.keys():
            raise ConfigError(
                f"{name}: {variant} must not set {', '.join(sorted(OF_THE_PRODUCT))}."
            )
        for game, seed in product(experiment.every_game, experiment.every_seed):
            given: dict[str, Any] = {"suite": experiment.suite, "game": game, "seed": seed}
            clash = (values.keys() | OF_THE_PRODUCT) & experiment.settings.keys()
            if clash:
                raise ConfigError(f"{name}: settings must not have {clash.pop()}, as others do.")
            given |= experiment.settings | values
            config = configure(**given, algorithm=algorithm)
            if any(_named(getattr(config, key)) != value for key, value in said.items()):
                raise ConfigError(f"{name}: {variant} must be what its name says, not {values}.")
            out = RUNS / name / config.game / variant / str(seed)
            if out in seen:
                raise ConfigError(f"params.yaml declares {out} twice.")
            seen.add(out)
            yield Run(name, variant, config, given | {"frames": config.frames}, out)


def _variants(name: str, experiment: Experiment, params: Params) -> dict[str, dict[str, Any]]:
    """The names of the experiment's variants, and their values."""
    given = experiment.variants
    if name in params.grids:
        if isinstance(given, dict):
            raise ConfigError(
                f"{name}: variants of a grid must be a list of algorithms, whose values stand in "
                f"the section algorithms; a control can have values of its own."
            )
        for algorithm in given:
            if algorithm not in params.algorithms:
                raise ConfigError(f"{name}: algorithms has no {algorithm!r}.")
        return {variant_name(a, params.algorithms[a]): params.algorithms[a] for a in given}
    more = given if isinstance(given, dict) else {}
    return {variant: parse_variant(variant)[1] | more.get(variant, {}) for variant in given}


def find_run(experiment: str, game: str, variant: str, seed: str) -> Run:
    """The declared run at a place below results/runs."""
    for run in runs_of(experiment, read_params()):
        if run.key == (experiment, game, variant, seed):
            return run
    place = "/".join((experiment, game, variant, seed))
    raise ConfigError(f"params.yaml does not declare the run {place}.")


def declared(params: Params | None = None) -> list[Run]:
    """All runs of all experiments."""
    params = params or read_params()
    return [run for name in (*params.grids, *params.controls) for run in runs_of(name, params)]
