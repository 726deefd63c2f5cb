"""What the study's settings and constants are made of, and what was found in DeepSea."""

import numpy as np
import pandas as pd
import pytest
import yaml

from qe import ROOT
from qe.analysis.load import CONSTANTS, discoveries, load_logs, made_runs
from qe.analysis.search import chosen, constants, declares, settings, smallest_prior
from qe.analysis.statistics import shares
from qe.config import ConfigError
from qe.runs.experiments import Run
from tests.conftest import GAMES, declared_in, sign, write_run

SETTINGS = {"frames": 8000}
SEARCH = {
    "suite": "minatar", "games": GAMES, "seeds": [100, 101], "settings": SETTINGS,
    "variants": {
        "double_dqn": {},
        "double_dqn-target_every=1000": {},
        "double_dqn-hidden=640": {},
    },
}  # fmt: skip
LEVELS = {"double_dqn": 4.0, "double_dqn-target_every=1000": 8.0, "double_dqn-hidden=640": 2.0}


def declare(root, **controls: dict) -> None:
    text = {"algorithms": {}, "grids": {}, "controls": controls}
    (root / "params.yaml").write_text(yaml.safe_dump(text, sort_keys=False))


def reference(variant: str) -> dict:
    return SEARCH | {"seeds": [102, 103, 104], "variants": [variant]}


@pytest.fixture
def searched(root):
    declare(root, search=SEARCH, reference=reference("double_dqn-target_every=1000"))
    for run in declared_in(root):
        write_run(run, LEVELS[run.variant])
    return root


def test_the_setting_with_the_highest_share_is_chosen_for_each_width(searched):
    table = settings(searched)
    assert chosen(searched, 64) == "double_dqn-target_every=1000"
    assert chosen(searched, 640) == "double_dqn-hidden=640"
    assert table.loc["double_dqn-target_every=1000", "share"] == pytest.approx(1.0)
    # Shares are of the best of the same width.
    assert table.loc["double_dqn-hidden=640", "share"] == pytest.approx(1.0)
    assert 0.4 < table.loc["double_dqn", "share"] < 0.6


def test_the_constants_are_random_play_and_five_seeds_at_the_chosen_setting(searched):
    table = constants(searched)
    assert table.index.tolist() == GAMES and (table["seeds"] == 5).all()
    random = pd.read_csv(searched / "results/reference/random/minatar.csv", index_col="game")
    assert table["random"].tolist() == random.loc[GAMES, "mean"].tolist()
    means = []
    for run in made_runs(searched, "search") + made_runs(searched, "reference"):
        if run.variant == "double_dqn-target_every=1000" and run.config.game == "Breakout":
            log = pd.read_csv(run.out / "episodes.csv")
            means.append(log["return"][log["frame"] > 6000].mean())
    assert table.loc["Breakout", "reference"] == pytest.approx(np.mean(means))


def test_a_reference_of_another_setting_is_refused(searched):
    declare(searched, search=SEARCH, reference=reference("double_dqn"))
    for run in declared_in(searched):
        write_run(run, LEVELS[run.variant])
    with pytest.raises(ConfigError, match="reference must have the setting that was chosen, "):
        constants(searched)


def sail(run: Run, treasures: list[int], games: int) -> None:
    """Logs of a run of DeepSea which had the treasure in some of its games."""
    n = int(run.config.game[1:])
    number = np.arange(1, games + 1)
    found = np.isin(number, treasures).astype(float)
    run.out.mkdir(parents=True, exist_ok=True)
    table = {"episode": number, "frame": number * n, "step": number * n, "return": found}
    pd.DataFrame(table).assign(length=n).to_csv(run.out / "episodes.csv", index=False)
    for name in ("evaluations", "diagnostics"):
        (run.out / f"{name}.csv").write_text("frame\n")
    sign(run)


def test_found_and_solved_are_the_protocols(root):
    declare(
        root,
        prior={
            "suite": "deepsea", "games": ["N10"], "seeds": [100, 101],
            "variants": ["bootstrapped_dqn-prior_scale=3", "bootstrapped_dqn-prior_scale=10"],
        },
    )  # fmt: skip
    for run in declared_in(root):
        if run.config.prior_scale == 10:
            sail(run, [7, *range(50, 60)], 59)  # the first by chance, in the warm-up
        elif run.config.seed == 100:
            sail(run, [*range(12, 22)], 21)
        else:
            sail(run, [*range(300, 309)], 2000)
    runs = made_runs(root, "prior")
    table = discoveries(load_logs(runs), runs).set_index(["variant", "seed"])
    ten, three = "bootstrapped_dqn-prior_scale=10", "bootstrapped_dqn-prior_scale=3"
    assert table.loc[(ten, 100), ["found", "solved", "games"]].tolist() == [50, True, 59]
    assert table.loc[(three, 100), "found"] == 12
    assert not table.loc[(three, 101), "solved"] and table.loc[(three, 101), "found"] == 300
    assert smallest_prior(table.reset_index()) == ten
    share = shares(table.reset_index(), "solved").set_index("variant").loc[three]
    assert share["value"] == 0.5 and 0 < share["low"] < 0.5 < share["high"] < 1


def test_the_protocol_has_the_constants_of_the_shipped_runs():
    if not (ROOT / CONSTANTS).exists():
        assert not declares(ROOT, "search", "reference")
        return
    made = constants(ROOT).round(4)
    shipped = pd.read_csv(ROOT / CONSTANTS, index_col="game")
    pd.testing.assert_frame_equal(made, shipped, check_names=False, check_dtype=False)
    page = (ROOT / "docs" / "protocol.md").read_text()
    for game, row in made.iterrows():
        assert f"| {game} | {row['random']:.4f} | {row['reference']:.4f} |" in page
