"""How an ensemble chooses: pure functions of Q-values `q` with shape `[..., K, A]`.

Everything is computed in float64: it costs nothing at this size, and neither huge Q-values nor
tiny temperatures overflow.
"""

import ast
import builtins
import dis
import inspect
import textwrap
from collections.abc import Callable
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Actions = NDArray[np.int64]
Floats = NDArray[np.floating]


def greedy_head(q: Floats, head: int) -> Actions:
    """argmax_a Q_head(s, a). Double DQN (its only head) and Bootstrapped DQN."""
    return q[..., head, :].argmax(-1)  # [...]


def vote_counts(q: Floats) -> Actions:
    """How many heads have each action as their greedy one: `[..., A]`."""
    greedy = q.argmax(-1)[..., None]  # [..., K, 1]
    return (greedy == np.arange(q.shape[-1])).sum(-2)


def majority_vote(
    q: Floats, tie_break: str = "lowest", rng: np.random.Generator | None = None
) -> Actions:
    """Algorithm 1. A tie goes to the lowest index, the highest mean Q, or one of them at random."""
    votes = vote_counts(q)  # [..., A]
    if tie_break == "lowest":
        return votes.argmax(-1)  # [...]
    if tie_break == "mean":
        rank = q.astype(np.float64).mean(-2)  # [..., A]
    else:
        assert rng is not None
        rank = rng.random(votes.shape)
    tied = votes == votes.max(-1, keepdims=True)
    return np.where(tied, rank, -np.inf).argmax(-1)  # [...]


def ucb(q: Floats, lam: float) -> Actions:
    """Algorithm 2: argmax_a mean + lam * std over heads, with the population's std."""
    q = q.astype(np.float64)
    return (q.mean(-2) + lam * q.std(-2)).argmax(-1)  # [...]


def infogain(q: Floats, temperature: float) -> Floats:
    """The bonus b_T(s) of Algorithm 3: mean over heads of KL(P_T,k || P_T,avg), in nats.

    Between 0 and ln min(K, A). Subtracting the maximum before dividing keeps tiny temperatures
    finite, and a probability that underflows to 0 adds 0 to the divergence.
    """
    q = q.astype(np.float64)
    p = np.exp((q - q.max(-1, keepdims=True)) / temperature)
    p /= p.sum(-1, keepdims=True)  # [..., K, A]
    average = p.mean(-2, keepdims=True)  # [..., 1, A]
    ratio = np.divide(p, average, out=np.ones_like(p), where=(p > 0) & (average > 0))
    return np.maximum((p * np.log(ratio)).sum(-1).mean(-1), 0)  # [...]


class ActionError(ValueError):
    """A user's own algorithm did not return an action."""


class Given(NamedTuple):
    """What an algorithm may read beside the Q-values."""

    lam: float = 0.1
    head: int = 0  # the one that Bootstrapped DQN follows
    tie_break: str = "lowest"
    rng: np.random.Generator | None = None  # for ties at random, and for a user's own algorithm


class Algorithm(NamedTuple):
    """One row of the table below."""

    choose: Callable[[Floats, Given], Actions]  # of q [..., K, A]: [...]
    reads: tuple[str, ...] = ()  # which of the parameters that only some algorithms have
    bonus: bool = False  # whether InfoGain is added to the rewards that it learns from
    ensemble: bool = True  # False: K is 1


def _follow(q: Floats, given: Given) -> Actions:
    return greedy_head(q, given.head)


def _vote(q: Floats, given: Given) -> Actions:
    return majority_vote(q, given.tie_break, given.rng)


def _bound(q: Floats, given: Given) -> Actions:
    return ucb(q, given.lam)


# What every ensemble reads. Frozen evaluations are by vote, whichever algorithm was trained.
ENSEMBLE = ("mask_probability", "ensemble_epsilon", "prior_scale", "tie_break")
ALGORITHMS = {
    "double_dqn": Algorithm(_follow, ensemble=False),
    "bootstrapped_dqn": Algorithm(_follow, (*ENSEMBLE, "head_per")),
    "ensemble_voting": Algorithm(_vote, ENSEMBLE),
    "ucb": Algorithm(_bound, (*ENSEMBLE, "lam")),
    "ucb_infogain": Algorithm(_bound, (*ENSEMBLE, "lam", "rho", "temperature"), bonus=True),
}
VOTE = ALGORITHMS["ensemble_voting"]  # how frozen evaluations act


def own(function: Callable[[Floats, np.random.Generator], int]) -> Algorithm:
    """The row of a user's own algorithm, `f(q, rng) -> action` with `q` `[K, A]`."""

    def choose(q: Floats, given: Given) -> Actions:
        actions = []
        for state in q.reshape(-1, *q.shape[-2:]):
            action = function(state.copy(), given.rng)  # type: ignore[arg-type]
            if not isinstance(action, int | np.integer) or not 0 <= action < q.shape[-1]:
                raise ActionError(
                    f"{function.__name__} must return an action, a whole number from 0 to "
                    f"{q.shape[-1] - 1}, not {action!r}."
                )
            actions.append(action)
        return np.array(actions, np.int64).reshape(q.shape[:-2])

    return Algorithm(choose, ENSEMBLE)


KNOWN = ("builtins", "math", "numpy", "qe")  # whose versions a run notes
# What reaches beyond the function, or differs between two processes.
UNSURE = ("eval", "exec", "getattr", "globals", "hash", "id", "input", "locals", "open", "vars",
          "__import__")  # fmt: skip


def source_of(function: Any) -> str:
    """The code of a user's own algorithm: all that its actions depend on, so part of the run."""
    name = getattr(function, "__name__", repr(function))
    plain = inspect.isfunction(function) and not function.__code__.co_flags & inspect.CO_GENERATOR
    if not plain or not name.isidentifier() or inspect.iscoroutinefunction(function):
        raise ValueError("algorithm must be a name, or a function made with `def`")
    if name in ALGORITHMS:
        raise ValueError(f"{name} is an algorithm of the paper: give yours another name")
    parameters = inspect.signature(function).parameters.values()
    kinds = [(p.kind, p.default) for p in parameters]
    if kinds != [(inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty)] * 2:
        raise ValueError(f"{name} must have two parameters, q and rng, and no defaults")
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        raise ValueError(f"The code of {name} can't be read: define it in a cell") from None
    homes = {word: _home(word, function.__globals__) for word in _globals_of(function.__code__)}
    outside = {word for word, home in homes.items() if not _known(home)}
    outside |= set(function.__code__.co_freevars) | _chance(tree, homes)
    if outside:
        raise ValueError(
            f"{name} uses {', '.join(sorted(outside))} from outside: what it needs must be written "
            f"in it, but for math, numpy and qe, and its only chance is its second parameter"
        )
    used = [f"# {word}: {home}" for word, home in homes.items() if word in function.__globals__]
    return "\n".join([ast.unparse(tree), *used])


def _known(home: str) -> bool:
    """Whether what is from there is the same in every run; numpy.random, for one, is not."""
    return home.split(".")[0] in KNOWN and not f"{home}.".startswith("numpy.random.")


def _chance(tree: ast.Module, homes: dict[str, str]) -> set[str]:
    """What the code itself imports or takes out of a module that is not known."""
    (function,) = tree.body
    found, modules = set(), set(homes)
    assert isinstance(function, ast.FunctionDef)
    nodes = [node for line in function.body for node in ast.walk(line)]  # not the annotations
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if not _known(alias.name)}
            modules |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name for name in names if node.level or not _known(name)}
        elif isinstance(node, ast.Global):
            found |= set(node.names)
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr == "random":
            owner = ast.unparse(node.value)
            found |= {f"{owner}.random"} if owner.split(".")[0] in modules else set()
    return found


def _globals_of(code: CodeType) -> list[str]:
    """The global names that a function reads, also in functions within it."""
    found = {i.argval for i in dis.get_instructions(code) if i.opname.endswith("_GLOBAL")}
    for constant in code.co_consts:
        found |= set(_globals_of(constant)) if isinstance(constant, CodeType) else set()
    return sorted(found)


def _home(word: str, names: dict[str, Any]) -> str:
    """Where a module, function or class is from; nothing for a value, which may be anything."""
    if word not in names:
        return f"builtins.{word}" if hasattr(builtins, word) and word not in UNSURE else ""
    value = names[word]
    if isinstance(value, ModuleType):
        return value.__name__
    if not isinstance(value, type | np.ufunc) and not inspect.isroutine(value):
        return ""
    module = "numpy" if isinstance(value, np.ufunc) else getattr(value, "__module__", None)
    return f"{module}.{value.__name__}" if module else ""
