"""Every parameter of a run: one definition, one default (the paper's), one line on its source.

`configure` puts a configuration together: the defaults below, then what a profile says of the
suite, then what the user says. Whatever is wrong is refused with one sentence that names the
parameter.
"""

import difflib
import hashlib
import json
import re
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from qe.games import find_game

Algorithm = Literal["double_dqn", "bootstrapped_dqn", "ensemble_voting", "ucb", "ucb_infogain"]
ALGORITHMS: tuple[Algorithm, ...] = Algorithm.__args__  # type: ignore[attr-defined]
PROFILES = Path(__file__).parent / "profiles"
Knots = tuple[tuple[float, float], ...]

# Parameters that only some algorithms read. Setting one elsewhere would silently do nothing.
ONLY_FOR: dict[str, tuple[Algorithm, ...]] = {
    "lam": ("ucb", "ucb_infogain"),
    "rho": ("ucb_infogain",),
    "temperature": ("ucb_infogain",),
    "mask_probability": ("bootstrapped_dqn", "ensemble_voting", "ucb", "ucb_infogain"),
    "ensemble_epsilon": ("bootstrapped_dqn", "ensemble_voting", "ucb", "ucb_infogain"),
}
TRUNK_LAYERS = {"atari": 3, "minatar": 1, "chain": 1}
# Parameters that change how fast or where a run is made, not what it is.
MACHINE = ("device", "threads", "checkpoint_every", "keep_network")


PLAIN = {
    "a valid integer": "a whole number",
    "a valid ": "a ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "more than",
    "tuple": "list",
}


class ConfigError(ValueError):
    """What can't be done as asked, in one sentence."""

    def _render_traceback_(self) -> list[str]:  # what a notebook shows of it
        return [f"{type(self).__name__}: {self}"]


def param(default: Any, source: str, **limits: Any) -> Any:
    return Field(default, description=source, **limits)


class Config(BaseModel):
    """One run. "Table" is the paper's hyperparameter table (appendix A)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    # What to run
    suite: Literal["atari", "minatar", "chain"] = param("atari", "the paper's is atari")
    game: str = param("Pong", "one of the suite's games; N10 is a chain of 10 states")
    algorithm: Algorithm = param("ucb", "section 3 to 5 and appendix C")
    seed: int = param(0, "the paper ran 2 trials", ge=0, lt=2**32)
    frames: int = param(40_000_000, "emulator frames in all: Table", ge=1)
    profile: str = param("default", "the file of parameters that this one started from")

    # The ensemble
    K: int = param(10, "heads: section 5; double_dqn has 1", ge=1, le=1000)
    lam: float = param(0.1, "UCB's weight of the standard deviation: section 5", ge=0)
    rho: float = param(1.0, "weight of the InfoGain bonus: appendix C", ge=0)
    temperature: float = param(1.0, "T of the InfoGain bonus: appendix C", gt=0)
    mask_probability: float = param(
        1.0, "chance that a head learns from a transition: section 2.4, all ones", gt=0, le=1
    )
    ensemble_epsilon: Literal["schedule", "warmup_only"] = param(
        "schedule", "epsilon-greedy in the ensembles too: the table is common to all algorithms"
    )

    # The game
    preset: Literal["gym2017", "modern"] = param("gym2017", "Atari preprocessing: Gym of 2017")
    action_repeat: int = param(4, "frames per action on Atari: Table", ge=1)
    history: int = param(4, "frames the network sees: Table", ge=1, le=100)
    sticky: float = param(0.0, "chance that the last action is repeated: Gym of 2017", ge=0, le=1)
    full_actions: bool = param(False, "all actions, or the game's minimal set: Gym of 2017")
    max_frames: int | None = param(None, "cap on a game; none: the preset's", ge=1)
    clip_rewards: bool = param(True, "learn from the sign of the reward: Mnih et al. 2015")

    # The network
    channels: tuple[int, ...] = param((32, 64, 64), "widths of the trunk: Mnih et al. 2015")
    hidden: int = param(512, "units in each head's hidden layer: Mnih et al. 2015", ge=1)

    # Learning
    batch_size: int = param(32, "Table", ge=1)
    replay_size: int = param(1_000_000, "frames: Table", ge=2)
    learning_starts: int = param(50_000, "random steps before learning: Table", ge=0)
    update_every: int = param(4, "steps per update: Table", ge=1)
    target_every: int = param(10_000, "updates between copies to the target: Table", ge=1)
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
        10.0, "per variable and head; not in the paper: Berkeley's course code of 2017", gt=0
    )

    # Looking at it
    log_every: int = param(10_000, "steps between rows of diagnostics.csv", ge=1)
    eval_every: int = param(1_000_000, "frames between frozen evaluations; 0: none", ge=0)
    eval_games: int = param(10, "games per frozen evaluation", ge=1)
    eval_epsilon: float = param(0.01, "random actions in evaluations: the table's last", ge=0, le=1)
    eval_max_frames: int = param(108_000, "cap on an evaluation's game: 30 minutes", ge=1)

    # The machine
    device: str = param("auto", "auto: CUDA, else MPS, else CPU")
    threads: int = param(1, "torch's threads on the CPU", ge=1)
    checkpoint_every: float = param(60.0, "seconds between checkpoints, at least", ge=0)
    keep_network: bool = param(False, "keep the final network, as network.safetensors")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.algorithm == "double_dqn" and self.K != 1:
            raise ValueError(f"K must be 1 for double_dqn, not {self.K}")
        for name, algorithms in ONLY_FOR.items():
            default = type(self).model_fields[name].default
            if self.algorithm not in algorithms and getattr(self, name) != default:
                raise ValueError(
                    f"{name} has no effect on {self.algorithm}; only on {', '.join(algorithms)}"
                )
        for name in ("learning_rate", "epsilon"):
            knots = getattr(self, name)
            times = [t for t, _ in knots]
            if not knots or times != sorted(set(times)) or times[0] < 0:
                raise ValueError(f"{name} must be knots [t, value] with growing t >= 0")
            if any(v < 0 for _, v in knots):
                raise ValueError(f"{name} must not be negative at any knot")
        if any(v > 1 for _, v in self.epsilon):
            raise ValueError("epsilon must be at most 1 at every knot")
        count = TRUNK_LAYERS[self.suite]
        if len(self.channels) != count or min(self.channels) < 1:
            raise ValueError(
                f"channels must be {count} positive whole number(s) for the {self.suite} suite, "
                f"not {list(self.channels)}"
            )
        if not re.fullmatch(r"auto|cpu|mps|cuda(:\d+)?", self.device):
            raise ValueError(f"device must be auto, cpu, cuda, cuda:N or mps, not {self.device!r}")
        if self.replay_size <= self.history:
            raise ValueError(
                f"replay_size must be more than history ({self.history}), not {self.replay_size}"
            )
        return self

    @property
    def steps(self) -> int:
        """Agent steps in the whole run, which the schedules' shares refer to."""
        return self.frames // (self.action_repeat if self.suite == "atari" else 1)

    def fingerprint(self) -> str:
        """Twelve hex digits that two configurations share only if they give the same run."""
        text = json.dumps(self.model_dump(exclude={*MACHINE, "profile"}), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def configure(profile: str = "default", **values: Any) -> Config:
    """A configuration from the paper's defaults, a profile and the user's own values."""
    profiles = sorted(path.name for path in PROFILES.iterdir())
    if profile not in profiles:
        raise ConfigError(f"profile must be one of {', '.join(profiles)}, not {profile!r}.")
    for name in values:
        if name not in Config.model_fields:
            near = difflib.get_close_matches(name, Config.model_fields, n=1)
            hint = f"did you mean {near[0]}?" if near else "see python -m qe parameters."
            raise ConfigError(f"There is no parameter {name!r}; {hint}")
    suite = values.get("suite", Config.model_fields["suite"].default)
    merged: dict[str, Any] = {"profile": profile}
    for source in dict.fromkeys(("default", profile)):
        path = PROFILES / source / f"{suite}.yaml"
        merged |= yaml.safe_load(path.read_text()) if path.exists() else {}
    if values.get("algorithm") == "double_dqn":
        merged["K"] = 1
    merged |= values
    try:
        config = Config.model_validate(_tuples(merged))
        return config.model_copy(update={"game": find_game(config.suite, config.game)})
    except ValidationError as error:
        raise ConfigError(_sentence(error)) from None
    except ValueError as error:
        raise ConfigError(f"game {error}.") from None


def _tuples(value: Any) -> Any:
    """Lists, which is what YAML and JSON have, as the tuples that a frozen Config holds."""
    if isinstance(value, dict):
        return {k: _tuples(v) for k, v in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value


def _sentence(error: ValidationError) -> str:
    """pydantic's first complaint, as one sentence."""
    first = error.errors()[0]
    if first["type"] == "value_error":
        return f"{first['ctx']['error']}."
    name = str(first["loc"][0])
    rule = first["msg"].removeprefix("Input should be ")
    for theirs, ours in PLAIN.items():
        rule = rule.replace(theirs, ours)
    return f"{name} must be {rule}, not {first['input']!r}."
