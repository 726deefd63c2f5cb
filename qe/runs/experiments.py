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
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from qe.config import Config, ConfigError, configure, sentence
from qe.runs.status import is_finished, status
from qe.selectors import ALGORITHMS

PARAMS = Path("params.yaml")
# As dvc.yaml has them: below the folder that this is called from.
RUNS = Path("results", "runs")
EXECUTED = Path("results", "executed")  # for inspection; not kept in git


class Experiment(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    suite: str
    games: list[str]
    variants: list[str] | dict[str, dict[str, Any]] = Field(default_factory=lambda: [*ALGORITHMS])
    seeds: int | list[int] = 1  # how many, from 0 on; or which
    settings: dict[str, Any] = {}  # parameters of every run

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
        """How far it has come: the last frame that one of its logs has.

        Until it is begun, the logs in its place may be another's, which it will replace.
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


def parse_variant(name: str) -> tuple[str, dict[str, Any]]:
    """`ucb-lam=1` as the algorithm and its values."""
    algorithm, *parts = re.split(r"-(?=[A-Za-z]\w*=)", name)
    return algorithm, {p.split("=")[0]: yaml.safe_load(p.split("=", 1)[1]) for p in parts}


def variant_name(algorithm: str, values: dict[str, Any]) -> str:
    """What a variant is called: its algorithm, and whichever of its values is not the paper's."""
    fields = Config.model_fields
    parts = [f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}"
             for k, v in values.items() if k not in fields or v != fields[k].default]  # fmt: skip
    return "-".join([algorithm, *parts])


def runs_of(name: str, params: Params) -> Iterator[Run]:
    """The runs of one experiment."""
    experiment = params.grids.get(name) or params.controls.get(name)
    if experiment is None:
        known = ", ".join([*params.grids, *params.controls]) or "none"
        raise ConfigError(f"experiment must be one of params.yaml ({known}), not {name!r}.")
    for variant, values in _variants(name, experiment, params).items():
        algorithm = parse_variant(variant)[0]
        for game, seed in product(experiment.games, experiment.every_seed):
            given: dict[str, Any] = {"suite": experiment.suite, "game": game, "seed": seed}
            clash = (values.keys() | given.keys()) & experiment.settings.keys()
            if clash:
                raise ConfigError(f"{name}: settings must not have {clash.pop()}, as others do.")
            given |= experiment.settings | values
            config = configure(**given, algorithm=algorithm)
            out = RUNS / name / config.game / variant / str(seed)
            yield Run(name, variant, config, given | {"frames": config.frames}, out)


def _variants(name: str, experiment: Experiment, params: Params) -> dict[str, dict[str, Any]]:
    """The names of the experiment's variants, and their values."""
    if name in params.grids:
        for algorithm in experiment.variants:
            if algorithm not in params.algorithms:
                raise ConfigError(f"{name}: algorithms has no {algorithm!r}.")
        own = {algorithm: params.algorithms[algorithm] for algorithm in experiment.variants}
        return {variant_name(algorithm, values): values for algorithm, values in own.items()}
    if isinstance(experiment.variants, dict):
        return {v: parse_variant(v)[1] | more for v, more in experiment.variants.items()}
    return {v: parse_variant(v)[1] for v in experiment.variants}


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
