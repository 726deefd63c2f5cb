"""Every parameter of a run: one definition, one default (the paper's), one line on its source.

`configure` takes the defaults below, then what a profile says of the suite, then what the user
says. Whatever is wrong is refused with one sentence that names the parameter.
"""

import difflib
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from qe.games import deepsea_size, find_game
from qe.selectors import ALGORITHMS, Algorithm, own, source_of

PROFILES = Path(__file__).parent / "profiles"
Knots = tuple[tuple[float, float], ...]
TRUNK_LAYERS = {"atari": 3, "minatar": 1, "deepsea": 1}
# Parameters that change how fast or where a run is made, not what it is.
MACHINE = ("device", "threads", "checkpoint_every", "keep_network")
# Parameters that came after the study's first runs: at their defaults no fingerprint has them.
LATER: tuple[str, ...] = ()
MANY = 10**12  # more than any run has of anything
PLAIN = {
    "a valid integer": "a whole number", "a valid ": "a ", "greater than or equal to": "at least",
    "less than or equal to": "at most", "greater than": "more than", "tuple": "list",
}  # fmt: skip


class ConfigError(ValueError):
    """What can't be done as asked, in one sentence."""

    def _render_traceback_(self) -> list[str]:  # what a notebook shows of it
        return [f"{type(self).__name__}: {self}"]


def param(default: Any, source: str, **limits: Any) -> Any:
    return Field(default, description=source, **limits)


def count(default: int | None, source: str, at_least: int = 1, at_most: int = MANY) -> Any:
    return param(default, source, ge=at_least, le=at_most)


class Config(BaseModel):
    """One run. "Table" is the paper's hyperparameter table (appendix A)."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True
    )

    # What to run
    suite: Literal["atari", "minatar", "deepsea"] = param("atari", "the paper's is atari")
    game: str = param("Pong", "one of the suite's games; N10 is a deep sea of 10 x 10")
    algorithm: str = param("ucb", "section 3 to 5 and appendix C; or a function of your own")
    source: str = param("", "the code of an algorithm of your own; no parameter to set")
    seed: int = count(0, "the paper ran 2 trials", 0, 2**32 - 1)
    frames: int = count(40_000_000, "emulator frames in all: Table")
    profile: str = param("default", "the file of parameters that this one started from")

    # The ensemble
    K: int = count(10, "heads: section 5; double_dqn has 1", at_most=1000)
    lam: float = param(0.1, "UCB's weight of the standard deviation: section 5", ge=0)
    rho: float = param(1.0, "weight of the InfoGain bonus: appendix C", ge=0)
    temperature: float = param(1.0, "T of the InfoGain bonus: appendix C", gt=0)
    mask_probability: float = param(
        1.0, "chance that a head learns from a transition: section 2.4, all ones", gt=0, le=1
    )
    ensemble_epsilon: Literal["schedule", "warmup_only"] = param(
        "schedule", "epsilon-greedy in the ensembles too: the table is common to all algorithms"
    )
    tie_break: Literal["lowest", "mean", "random"] = param(
        "lowest", "which action wins a tied vote: what an argmax over the counts takes"
    )
    head_per: Literal["game", "life"] = param(
        "game", "how long Bootstrapped DQN follows a head: an episode of the paper's tables"
    )
    prior_scale: float = param(
        0.0, "weight of a fixed random prior in every Q: Osband et al. 2018, not the paper", ge=0
    )

    # The game
    preset: Literal["gym2017", "modern"] = param("gym2017", "Atari preprocessing: Gym of 2017")
    action_repeat: int = count(4, "frames per action on Atari: Table", at_most=1000)
    history: int = count(4, "frames the network sees: Table", at_most=100)
    sticky: float = param(0.0, "chance that the last action is repeated: Gym of 2017", ge=0, le=1)
    full_actions: bool = param(False, "all actions, or the game's minimal set: Gym of 2017")
    max_frames: int | None = count(None, "cap on a game; none: the preset's")
    clip_rewards: bool = param(True, "learn from the sign of the reward: Mnih et al. 2015")

    # The network
    channels: tuple[int, ...] = param((32, 64, 64), "widths of the trunk: Mnih et al. 2015")
    hidden: int = count(512, "units in each head's hidden layer: Mnih et al. 2015", at_most=65_536)
    init: Literal["xavier", "torch"] = param(
        "xavier", "of the weights: TensorFlow's default in the code of 2017"
    )
    precision: Literal["float32", "bfloat16"] = param(
        "float32", "of the products in an update; weights and choices are float32 always"
    )

    # Learning
    batch_size: int = count(32, "Table", at_most=65_536)
    replay_size: int = count(1_000_000, "frames: Table", 2)
    learning_starts: int = count(50_000, "random steps before learning: Table", 0)
    update_every: int = count(4, "steps per update: Table")
    target_every: int = count(10_000, "updates between copies to the target: Table")
    discount: float = param(0.99, "Table", ge=0, le=1)
    schedule_unit: Literal["steps", "fraction"] = param(
        "steps", "of the schedules' knots: steps, or shares of the whole run"
    )
    learning_rate: Knots = param(((0, 1e-4), (1e6, 1e-4), (5e6, 5e-5)), "knots: Table")
    epsilon: Knots = param(((0, 1.0), (1e6, 0.1), (5e6, 0.01)), "knots: Table")
    adam_beta1: float = param(0.9, "Table", ge=0, lt=1)
    adam_beta2: float = param(0.99, "Table", ge=0, lt=1)
    adam_eps: float = param(1e-4, "Table", gt=0)
    huber_delta: float = param(1.0, "not in the paper: Berkeley's course code of 2017", gt=0)
    clip_norm: float = param(
        10.0, "per variable and head; not in the paper: Berkeley's course code of 2017", ge=1e-30
    )
    solved_return: float | None = param(
        None, "a return that solves the game; the run ends when enough games have it; none: never"
    )
    solved_games: int = count(10, "of the last 100, that are enough: bsuite's, about", at_most=100)

    # Looking at it
    log_every: int = count(10_000, "steps between rows of diagnostics.csv")
    eval_every: int = count(1_000_000, "frames between frozen evaluations; 0: none", 0)
    eval_games: int = count(10, "games per frozen evaluation", at_most=1000)
    eval_epsilon: float = param(0.01, "random actions in evaluations: the table's last", ge=0, le=1)
    eval_max_frames: int = count(108_000, "cap on an evaluation's game: 30 minutes")

    # The machine
    device: str = param("auto", "auto: CUDA, else CPU; or mps")
    threads: int = count(1, "torch's threads on the CPU", at_most=1024)
    checkpoint_every: float = param(60.0, "seconds between checkpoints, at least", ge=0)
    keep_network: bool = param(False, "keep the final network, as network.safetensors")

    _function: Callable[..., int] | None = PrivateAttr(None)  # the user's own algorithm

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.source) == (self.algorithm in ALGORITHMS) or not self.algorithm.isidentifier():
            names = ", ".join(ALGORITHMS)
            raise ValueError(
                f"algorithm must be {names}, or a function f(q, rng), not {self.algorithm!r}"
            )
        self._check_what_only_some_read()
        for name in ("learning_rate", "epsilon"):
            knots = getattr(self, name)
            times = [t for t, _ in knots]
            if not knots or times != sorted(set(times)) or times[0] < 0:
                raise ValueError(f"{name} must be knots [t, value] with growing t >= 0")
            if any(v < 0 for _, v in knots):
                raise ValueError(f"{name} must not be negative at any knot")
        if any(v > 1 for _, v in self.epsilon):
            raise ValueError("epsilon must be at most 1 at every knot")
        layers = TRUNK_LAYERS[self.suite]
        if len(self.channels) != layers or not all(1 <= width <= 4096 for width in self.channels):
            raise ValueError(
                f"channels must be {layers} whole number(s) from 1 to 4096 for the {self.suite} "
                f"suite, not {list(self.channels)}"
            )
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, not {self.device!r}")
        if self.replay_size < self.history + 2:
            raise ValueError(
                f"replay_size must be at least history + 2 ({self.history + 2}), "
                f"not {self.replay_size}"
            )
        begun = 40 + 2 * self.action_repeat  # frames, in which any game of Atari has begun
        for name in ("max_frames", "eval_max_frames"):
            if self.suite == "atari" and (getattr(self, name) or begun) < begun:
                raise ValueError(
                    f"{name} must be at least {begun} on Atari, whose games begin with up to 30 "
                    f"no-ops and FIRE, not {getattr(self, name)}"
                )
        if self.steps < 1:
            raise ValueError(
                f"frames must be at least action_repeat ({self.action_repeat}), not {self.frames}"
            )
        return self

    def _check_what_only_some_read(self) -> None:
        """Setting a parameter that the algorithm does not read would silently do nothing."""
        rule = own(lambda q, rng: 0) if self.source else ALGORITHMS[self.algorithm]
        if not rule.ensemble and self.K != 1:
            raise ValueError(f"K must be 1 for {self.algorithm}, not {self.K}")
        for name in sorted({name for other in ALGORITHMS.values() for name in other.reads}):
            default = type(self).model_fields[name].default
            if name not in rule.reads and getattr(self, name) != default:
                readers = [a for a, other in ALGORITHMS.items() if name in other.reads]
                raise ValueError(
                    f"{name} has no effect on {self.algorithm}; only on {', '.join(readers)}"
                )
        if self.prior_scale and self.K == 1:
            raise ValueError("prior_scale must be 0 for K = 1: one head has nobody to differ from")

    @property
    def steps(self) -> int:
        """Agent steps in the whole run, which the schedules' shares refer to."""
        return self.frames // (self.action_repeat if self.suite == "atari" else 1)

    @property
    def rule(self) -> Algorithm:
        """What the algorithm does. One of the user's own needs its function."""
        if not self.source:
            return ALGORITHMS[self.algorithm]
        if self._function is None:
            raise ConfigError(f"{self.algorithm} is not of this package: give its function, too.")
        return own(self._function)

    def fingerprint(self) -> str:
        """Twelve hex digits that two configurations share only if they give the same run."""
        values = self.model_dump(exclude={*MACHINE, "profile"})
        fields = type(self).model_fields
        values = {k: v for k, v in values.items() if k not in LATER or v != fields[k].default}
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]


def configure(profile: str = "default", **values: Any) -> Config:
    """A configuration from the paper's defaults, a profile and the user's own values."""
    profiles = sorted(path.name for path in PROFILES.iterdir())
    if profile not in profiles:
        raise ConfigError(f"profile must be one of {', '.join(profiles)}, not {short(profile)}.")
    for name in values:
        if name not in Config.model_fields:
            near = difflib.get_close_matches(name, Config.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else "see python -m qe parameters."
            raise ConfigError(f"There is no parameter {short(name)}; {hint}")
    function = values.get("algorithm")
    try:
        if callable(function):
            values |= {"source": source_of(function), "algorithm": function.__name__}
        config = Config.model_validate(_tuples(_from_profile(profile, values) | values))
        config = config.model_copy(update={"game": find_game(config.suite, config.game)})
    except ValidationError as error:
        raise ConfigError(sentence(error)) from None
    except ValueError as error:
        raise ConfigError(cut(f"{error}.")) from None
    if callable(function):
        config._function = function
    return config


def _from_profile(profile: str, values: dict[str, Any]) -> dict[str, Any]:
    """What the profile says of the suite, as far as the algorithm reads it."""
    fields = Config.model_fields
    suite, algorithm = (values.get(n, fields[n].default) for n in ("suite", "algorithm"))
    merged: dict[str, Any] = {}
    for source in dict.fromkeys(("default", profile)):
        path = PROFILES / source / f"{suite}.yaml"
        known = str(suite) in TRUNK_LAYERS and path.exists()
        merged |= yaml.safe_load(path.read_text()) if known else {}
    rule = ALGORITHMS.get(algorithm) if isinstance(algorithm, str) else None
    if rule is not None and not rule.ensemble:
        merged = {k: v for k, v in merged.items() if k not in ALGORITHMS["ucb"].reads} | {"K": 1}
    if suite == "deepsea":  # the larger, the longer: 2 000 games, the first N of them at random
        n = deepsea_size(str(values.get("game", merged["game"])))
        merged = {"frames": 2000 * n, "learning_starts": n * n} | merged
    return merged | {"profile": profile}


def _tuples(value: Any) -> Any:
    """Lists, which is what YAML and JSON have, as the tuples that a frozen Config holds."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def sentence(error: ValidationError, depth: int = 1) -> str:
    """pydantic's first complaint, as one sentence; names are `depth` deep."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return cut(f"{first['ctx']['error']}.")
    name = short(".".join(map(str, first["loc"][:depth])) or "it", quoted=False)
    if first["type"] == "extra_forbidden":
        return f"There is no {name}."
    if first["type"] == "missing":  # all of it, or a part of a list in a list
        part = f"has too few values in {short(first['input'])}"
        return f"{name} {'is missing' if len(first['loc']) <= depth else part}."
    rule = first["msg"].removeprefix("Input should be ")
    for theirs, ours in PLAIN.items():
        rule = rule.replace(theirs, ours)
    return f"{name} must be {rule}, not {short(first['input'])}."


def short(value: object, quoted: bool = True) -> str:
    """A value in a sentence, which a hundred characters are enough for."""
    text = repr(value) if quoted else str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def cut(text: str) -> str:
    """A sentence whose longest words, which nobody reads, are cut short."""
    return re.sub(r"\S{300,}", lambda word: f"{word[0][:100]}...", text)
