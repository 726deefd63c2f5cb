"""Verdicts, by the rules of claims.yaml, on runs whose outcome is known."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import yaml

from qe.analysis.claims import Judge, decide
from qe.analysis.load import made_runs
from qe.analysis.statistics import Interval
from qe.analysis.tables import plain, write
from qe.config import ConfigError
from tests.conftest import write_run

REFERENCE = "game,random,reference\nBreakout,0,10\nSpaceInvaders,0,10\n"


def judge(root, claims: dict) -> pd.DataFrame:
    rules = {"alpha": 0.05, "margin": 0.05, "score": "last_quarter"}
    full = {name: {"claim": name, "paper": "Section 5"} | claim for name, claim in claims.items()}
    (root / "claims.yaml").write_text(yaml.safe_dump(rules | {"claims": full}, sort_keys=False))
    return Judge(root).verdicts()


def set_level(root, experiment: str, variant: str, **levels: float) -> None:
    for run in made_runs(root, experiment):
        if run.variant == variant:
            write_run(run, levels.get(run.config.game, levels.get("every", 5.0)))


@pytest.fixture
def known(root):
    """Voting learns far more than Double DQN; UCB is best in every game."""
    constants = root / "results" / "analysis" / "search" / "constants.csv"
    constants.parent.mkdir(parents=True)
    constants.write_text(REFERENCE)
    set_level(root, "minatar", "double_dqn", every=3.0)
    set_level(root, "minatar", "ensemble_voting", every=9.0)
    set_level(root, "minatar", "ucb", every=12.0)
    set_level(root, "minatar", "ucb_infogain", Breakout=20.0, SpaceInvaders=4.0)
    return root


def contrast(better: str, worse: str, **more) -> dict:
    return {"kind": "contrast", "better": f"minatar/{better}", "worse": f"minatar/{worse}"} | more


def test_contrasts(known):
    found = judge(
        known,
        {
            "right": contrast("ensemble_voting", "double_dqn"),
            "wrong": contrast("double_dqn", "ensemble_voting"),
            "same": contrast("ucb", "ucb"),
            "frozen": contrast("ucb", "double_dqn", score="frozen"),
        },
    )["verdict"].to_dict()
    assert found["right"] == "reproduced" and found["frozen"] == "reproduced"
    assert found["wrong"] == "contradicted"
    assert found["same"] in ("no relevant difference", "undecided")


def test_primary_contrasts_are_corrected_together(known):
    one, other = contrast("ensemble_voting", "double_dqn"), contrast("ucb", "ucb")
    alone = judge(known, {"a": one})["numbers"].iloc[0]
    both = judge(known, {"a": one | {"primary": True}, "b": other | {"primary": True}})
    assert both["verdict"].str.endswith("(primary)").all()
    p = [float(text.split("p = ")[1].split(";")[0]) for text in (alone, both["numbers"].iloc[0])]
    assert p[1] == pytest.approx(2 * p[0], rel=0.01)


def test_the_rules_of_a_contrast():
    wide, narrow = Interval(0.2, -0.1, 0.5), Interval(0.01, -0.02, 0.03)
    assert decide(wide, wide, 0.01, 0.05, 0.05, 9).verdict == "reproduced"
    assert decide(wide._replace(value=-0.2), wide, 0.01, 0.05, 0.05, 9).verdict == "contradicted"
    assert decide(narrow, narrow, 0.6, 0.05, 0.05, 9).verdict == "no relevant difference"
    undecided = decide(wide, wide, 0.2, 0.05, 0.05, 9)
    # Nothing varied: that says nothing of what could.
    none = Interval(0.0, 0.0, 0.0)
    assert decide(none, none, 1.0, 0.05, 0.05, 0).verdict == "undecided"
    assert undecided.verdict == "undecided" and "9 seeds would show" in undecided.numbers


def test_the_other_kinds(known):
    (known / "results" / "analysis" / "posterior").mkdir(parents=True)
    (known / "results" / "analysis" / "posterior" / "spread.csv").write_text(
        "heads,n = 1,n = 10\nexact posterior,1.0,0.5\nshared data,0.0,0.0\n"
    )
    random = known / "results" / "reference" / "random"
    random.mkdir(exist_ok=True)
    (random / "minatar.csv").write_text("game,games,mean,sd\nBreakout,1000,1.0,1.0\n")
    three = [f"minatar/{v}" for v in ("double_dqn", "ensemble_voting", "ucb_infogain")]
    found = judge(
        known,
        {
            "most": {"kind": "most_games", "variant": "minatar/ucb", "among": three[:2]},
            "least": {"kind": "most_games", "variant": "minatar/double_dqn", "among": three[1:]},
            "mixed": contrast("ucb_infogain", "ucb", kind="mixed"),
            "best": {"kind": "best_of", "games": ["Breakout", "SpaceInvaders"], "among": three},
            "posterior": {"kind": "posterior", "heads": "shared"},
            "learns": {"kind": "learns", "variant": "minatar/ucb", "above": 3.0},
            "rows": {"kind": "published", "table": "max_mean_reward", "counts": {"ucb": 30}},
            "erratum": {
                "kind": "published", "table": "a3c_plus", "counts": {"ensemble_voting": 10},
                "needs": "490 runs",
            },
            "shown": {"kind": "descriptive", "shown": "minatar/ucb"},
        },
    )["verdict"].to_dict()  # fmt: skip
    assert found == {
        "most": "reproduced", "least": "contradicted", "mixed": found["mixed"],
        "best": "reproduced", "posterior": "contradicted", "learns": "reproduced",
        "rows": "not testable at this scale", "erratum": "not testable at this scale",
        "shown": "descriptive",
    }  # fmt: skip
    # Three seeds each: no single game can have p < 0.05 after correction.
    assert found["mixed"] == "undecided"


def test_what_is_not_made_is_not_tested(root):
    found = judge(
        root,
        {
            "no reference": contrast("ucb", "double_dqn"),
            "no experiment": {"kind": "contrast", "better": "x/ucb", "worse": "x/ucb"},
            "few seeds": {
                "kind": "contrast", "better": "lambda/ucb-lam=0", "worse": "minatar/ucb",
            },
        },
    )  # fmt: skip
    assert set(found["verdict"]) == {"not tested yet"}
    assert found["numbers"].tolist() == [
        "the reference of normalized scores is not made.",
        "x is not made.",
        "lambda/ucb-lam=0 has 2 of at least 3 seeds.",
    ]
    with pytest.raises(ConfigError, match=r"claims.yaml: claims.a.kind must be 'contrast'"):
        judge(root, {"a": {"kind": "guess"}})


def test_an_experiment_that_is_made_in_part_is_not_tested_yet(known):
    (run, *_) = [r for r in made_runs(known, "minatar") if r.variant == "ucb"]
    (run.out / "run.json").unlink()
    found = judge(known, {"a": contrast("ucb", "double_dqn")})
    assert found.loc["a", "verdict"] == "not tested yet"
    assert found.loc["a", "numbers"] == "minatar is made in part."


def test_one_game_alone_is_no_mixture():
    """Helped, and with an interval below the margin: another game must not be."""
    few = np.linspace(-1, 1, 10)
    x = pd.DataFrame([0.03 + 0.002 * few, 0.2 + 0.5 * few], index=["A", "B"])
    y = pd.DataFrame([0.002 * few, 0 * few], index=["A", "B"])

    class Two(Judge):
        def __init__(self) -> None:
            self.rules = SimpleNamespace(alpha=0.05, margin=0.05)

        def pair(self, claim):
            return x, y

    assert Two().mixed(None).verdict == "undecided"


def test_a_verdict_links_to_what_decides_it(known):
    found = judge(known, {"a": contrast("ucb", "double_dqn", question=4)})
    assert found.loc["a", "from"] == "[minatar](runs/minatar)" and found.loc["a", "question"] == "4"
    write(plain(found), known / "results" / "analysis" / "claims", "verdicts")
    made = known / "results" / "analysis" / "claims"
    assert "[minatar](../../runs/minatar)" in (made / "verdicts.md").read_text()
    assert '<a href="runs/minatar">minatar</a>' in (made / "verdicts.html").read_text()
