"""Notebooks through the real papermill."""

import json
from pathlib import Path

import nbformat
import papermill
import pytest

from qe import ROOT, notebooks
from qe.config import ALGORITHMS, ConfigError
from qe.report import build, sections

NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def smoke(algorithm: str, out: Path, **values) -> None:
    parameters = {
        "profile": "smoke", "suite": "chain", "game": "N5", "frames": 600, "out": str(out),
    }  # fmt: skip
    notebooks.execute(NOTEBOOKS / f"{algorithm}.ipynb", parameters | values, algorithm)


def figures_in(name: str) -> int:
    """How many the executed notebook has."""
    executed = nbformat.read(Path("results", "executed", f"{name}.ipynb"), 4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithms_notebook_runs(algorithm, tmp_path):
    smoke(algorithm, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["algorithm"] == algorithm
    assert figures_in(algorithm) == 3


@pytest.mark.parametrize(("suite", "game"), [("atari", "Pong"), ("minatar", "Freeway")])
def test_a_notebook_runs_any_suite(suite, game, tmp_path):
    values = {"lam": 0.5, "rho": 0.25, "temperature": 0.1, "K": 3, "more": {"discount": 0.9}}
    smoke("ucb_infogain", tmp_path / "run", suite=suite, game=game, **values)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    asked = {**values, **values["more"], "suite": suite, "game": game, "frames": 600}
    del asked["more"]
    assert {name: config[name] for name in asked} == asked


def test_a_parameter_that_the_notebook_lacks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"ucb.ipynb has no parameter 'lambda'; it has suite"):
        smoke("ucb", tmp_path / "run", **{"lambda": 0.1})
    assert not (tmp_path / "run").exists()


def test_a_parameter_that_no_run_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="There is no parameter 'discont'; did you mean discount"):
        smoke("ucb", tmp_path / "run", more={"discont": 0.9})
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "results" / "executed" / "ucb.ipynb").exists()  # for inspection


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_parameters_explain_themselves(algorithm):
    found = papermill.inspect_notebook(str(NOTEBOOKS / f"{algorithm}.ipynb"))
    assert {"suite", "game", "seed", "frames"} <= found.keys()
    assert ("K" in found) == (algorithm != "double_dqn")
    assert all(parameter["help"] for parameter in found.values())


def test_the_analysis_and_the_report_from_a_small_results_folder(results):
    where = {"results": str(results)}
    for name in ("paper", "sweeps", "scale", "forgetting", "exploration_chain"):
        notebooks.execute(NOTEBOOKS / f"{name}.ipynb", where, name)
    for suite in ("minatar", "atari"):
        for name in ("tables", "curves", "statistics"):
            notebooks.execute(NOTEBOOKS / f"{name}.ipynb", where | {"suite": suite}, name)
    page = build(results)
    items = [item for section in sections(results).values() for item in section]
    assert page.count("<figure>") == len(items) == page.count("<figcaption>")
    assert "http://" not in page and "https://" not in page  # nothing is fetched
    for suite, algorithm, best in (("paper", "ucb", 30), ("atari", "ucb_infogain", 2)):
        metrics = json.loads((results / "tables" / suite / "metrics.json").read_text())
        assert metrics["times_best"][algorithm] == best
    for drawn in (results / "figures" / "atari").rglob("*.svg"):
        assert "reduced profile" in drawn.read_text(), drawn  # never to be taken for the paper's
    assert "reduced profile" in (results / "tables" / "atari" / "max_mean.md").read_text()
    beside = (results / "tables" / "paper" / "a3c_plus.md").read_text()
    assert "this project" not in beside  # a reduced profile's scores are not comparable
    written = {p.relative_to(results).as_posix() for p in results.rglob("*") if p.is_file()}
    shown = {item.file for item in items}
    assert shown <= written
    every_figure = {name for name in written if name.startswith("figures") and name.endswith("svg")}
    assert every_figure <= shown  # nothing is made that the report leaves out


@pytest.mark.parametrize("ensemble", ["minatar SpaceInvaders ucb", "atari RoadRunner ucb"])
def test_the_explorer_makes_stills_of_the_shipped_ensembles(ensemble):
    path = NOTEBOOKS / "explore_ensemble.ipynb"
    notebooks.execute(path, {"ensemble": ensemble, "max_steps": 40}, "explore_ensemble")
    assert figures_in("explore_ensemble") == 4


def test_the_index_runs():
    notebooks.execute(NOTEBOOKS / "index.ipynb", {}, "index")
