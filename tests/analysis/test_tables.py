"""Tables and figures. The published numbers are the ground truth."""

import numpy as np
import pandas as pd

from qe import RESULTS
from qe.analysis import figures, scores, tables
from qe.analysis.labels import label, ordered
from qe.games import categories

PAPER = RESULTS / "reference" / "paper"
SCORES = tables.paper_table(PAPER, "max_mean_reward")


# --- the paper -------------------------------------------------------------------------------


def test_times_best_is_what_the_paper_prints():
    expected = {"bootstrapped_dqn": 1, "double_dqn": 7, "ensemble_voting": 9, "ucb": 30}
    assert scores.times_best(SCORES).to_dict() == expected
    last = tables.with_times_best(SCORES).data.loc["Times best"]
    assert last.to_dict() == expected


def test_categories_are_what_the_paper_prints():
    printed = pd.read_csv(PAPER / "category_counts.csv", index_col=0)
    ours = scores.category_counts(SCORES, categories())
    assert printed.size == 20
    pd.testing.assert_frame_equal(
        ours.loc[printed.index, printed.columns], printed, check_names=False
    )


def test_a3c_plus_is_what_the_paper_prints_but_for_its_erratum():
    table = tables.a3c_table(PAPER)
    last = table.data.loc["Times best"]
    assert last.to_dict() == {"ensemble_voting": 11, "ucb": 28, "a3c_plus": 10}
    assert "Ensemble Voting 11 (10 printed)" in table.note
    assert "48 of 49" in table.note


def test_this_projects_atari_runs_stand_beside_a3c_plus():
    ours = pd.DataFrame({"ucb": [1.5]}, index=["Pong"])
    table = tables.a3c_table(PAPER, ours)
    assert table.data.loc["Pong", "this project: ucb"] == 1.5
    assert table.data["this project: ucb"].notna().sum() == 1
    assert table.bold.loc["Pong", "ensemble_voting"]


def test_ties_are_nobodys():
    assert not scores.best(SCORES).loc[["Pong", "Montezuma Revenge"]].any(axis=None)
    table = pd.DataFrame({"a": [1.0, 2.0, np.nan], "b": [1.0, 1.0, 5.0]})
    assert scores.times_best(table).to_dict() == {"a": 1, "b": 1}


def test_variants_have_one_order_and_one_label_everywhere():
    found = ordered(["ucb-lam=0.5", "own", "ucb", "double_dqn", "bootstrapped_dqn"])
    assert found == ["bootstrapped_dqn", "double_dqn", "ucb", "ucb-lam=0.5", "own"]
    assert label("ucb-lam=0.5 over double_dqn") == "UCB, lam = 0.5 over Double DQN"


# --- rendering -------------------------------------------------------------------------------


def test_renderings_mark_the_best_and_leave_what_is_missing_empty(tmp_path):
    data = pd.DataFrame(
        {"ucb": [2.5, np.nan], "double_dqn": [1.0, 3.0]}, index=["R&D <1>", "Freeway"]
    )
    table = tables.with_times_best(data, "A note.")
    tables.write(table, tmp_path, "t")
    markdown = (tmp_path / "t.md").read_text()
    assert "| R&D <1> | 1.00 | **2.50** |" in markdown
    assert "| Freeway | **3** |  |" in markdown
    assert "| Times best | 1 | 1 |" in markdown and markdown.endswith("A note.\n")
    assert r"R\&D <1> & 1.00 & \textbf{2.50} \\" in (tmp_path / "t.tex").read_text()
    page = (tmp_path / "t.html").read_text()
    assert "R&amp;D &lt;1&gt;" in page and "<b>2.50</b>" in page
    again = pd.read_csv(tmp_path / "t.csv", index_col=0)
    assert again.loc["R&D <1>", "ucb"] == 2.5


def test_the_same_figure_is_the_same_file(tmp_path):
    table = pd.DataFrame(
        {"variant": ["ucb", "ucb-lam=1"] * 2, "frame": [1, 1, 2, 2], "value": [0.0, 0.1, 0.5, 0.6]}
    ).assign(low=0.0, high=1.0)
    for name in ("a.svg", "b.svg"):
        figures.use_style()
        figures.save(figures.plot_normalized(table), tmp_path / name)
    first = (tmp_path / "a.svg").read_bytes()
    assert first == (tmp_path / "b.svg").read_bytes()
    assert b"<dc:date>" not in first
