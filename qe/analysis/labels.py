"""What algorithms are called, in which order they stand, and their colours: the same everywhere."""

from collections.abc import Iterable
from typing import Any

from qe.runs.experiments import split_variant

PAPER_ORDER = ("bootstrapped_dqn", "double_dqn", "ensemble_voting", "ucb", "ucb_infogain")
LABELS = {
    "double_dqn": "Double DQN",
    "bootstrapped_dqn": "Bootstrapped DQN",
    "ensemble_voting": "Ensemble Voting",
    "ucb": "UCB",
    "ucb_infogain": "UCB + InfoGain",
    "a3c_plus": "A3C+",
}


def label(variant: object) -> str:
    """A variant, or one over another, as a reader knows them: `ucb-lam=1` is "UCB, lam = 1"."""

    def one(name: str) -> str:
        algorithm, values = split_variant(name)
        words = [LABELS.get(algorithm, algorithm), *(v.replace("=", " = ") for v in values)]
        return ", ".join(words)

    return " over ".join(map(one, str(variant).split(" over ")))


def ordered(variants: Iterable[str]) -> list[str]:
    """Variants in the order in which they always stand: the paper's, then by name."""
    known = {name: i for i, name in enumerate((*PAPER_ORDER, "a3c_plus"))}

    def key(variant: str) -> tuple[int, str]:
        return known.get(algorithm_of(variant), len(known)), variant

    return sorted(set(variants), key=key)


def algorithm_of(variant: str) -> str:
    return split_variant(variant)[0]


# Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = {
    "double_dqn": "#000000",
    "bootstrapped_dqn": "#009E73",
    "ensemble_voting": "#0072B2",
    "ucb": "#D55E00",
    "ucb_infogain": "#CC79A7",
}
DASHES = {
    "double_dqn": (3, 1, 1, 1),
    "bootstrapped_dqn": (4, 1.5),
    "ensemble_voting": (1.5, 1),
    "ucb_infogain": (6, 1, 1, 1),
}
MARKS = {
    "double_dqn": "s", "bootstrapped_dqn": "v", "ensemble_voting": "D", "ucb": "o",
    "ucb_infogain": "P",
}  # fmt: skip


def style(variant: str) -> dict[str, Any]:
    """A variant's line for matplotlib: its algorithm's colour and dashes, and its label."""
    algorithm = algorithm_of(variant)
    dashes = DASHES.get(algorithm)
    return {
        "color": COLORS.get(algorithm, "0.3"),
        "linestyle": (0, dashes) if dashes else "-",
        "label": label(variant),
    }


def mark(variant: str) -> dict[str, Any]:
    """A variant's point for matplotlib."""
    algorithm = algorithm_of(variant)
    return {"color": COLORS.get(algorithm, "0.3"), "marker": MARKS.get(algorithm, "o")}
