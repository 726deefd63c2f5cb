"""Notebooks through the real papermill."""

import errno
import json
from pathlib import Path
from typing import ClassVar

import nbformat
import papermill
import pytest
from jupyter_client.manager import start_new_kernel

from qe import ROOT
from qe.analysis.report import build, sections
from qe.config import ConfigError
from qe.runs import notebooks
from qe.runs.experiments import EXECUTED
from qe.selectors import ALGORITHMS

NOTEBOOKS = ROOT / "notebooks"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def smoke(algorithm: str, out: Path, **values) -> None:
    parameters = {
        "profile": "smoke", "suite": "deepsea", "game": "N5", "frames": 600, "out": str(out),
    }  # fmt: skip
    notebooks.execute(
        NOTEBOOKS / f"{algorithm}.ipynb", parameters | values, EXECUTED / f"{algorithm}.ipynb"
    )


def figures_in(name: str) -> int:
    """How many the executed notebook has."""
    executed = nbformat.read(EXECUTED / f"{name}.ipynb", 4)
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return sum("image/png" in output.get("data", {}) for output in outputs)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithms_notebook_runs(algorithm, tmp_path):
    smoke(algorithm, tmp_path / "run")
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["algorithm"] == algorithm
    assert figures_in(algorithm) == 3


def test_an_algorithm_of_ones_own_needs_no_change_of_the_package(tmp_path):
    smoke("your_own_algorithm", tmp_path / "run", suite="minatar", game="Breakout", K=3)
    made = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert made["algorithm"] == "thompson_per_step" and "rng.integers" in made["source"]
    assert figures_in("your_own_algorithm") == 3
    executed = nbformat.read(EXECUTED / "your_own_algorithm.ipynb", 4)
    assert "The same, byte for byte, up to step 600" in executed.cells[-1].outputs[0].text


@pytest.mark.parametrize(("suite", "game"), [("atari", "Pong"), ("minatar", "Freeway")])
def test_a_notebook_runs_any_suite(suite, game, tmp_path):
    values = {"lam": 0.5, "rho": 0.25, "temperature": 0.1, "K": 3, "more": {"discount": 0.9}}
    smoke("ucb_infogain", tmp_path / "run", suite=suite, game=game, **values)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    asked = {**values, **values["more"], "suite": suite, "game": game, "frames": 600}
    del asked["more"]
    assert {name: config[name] for name in asked} == asked


def test_a_parameter_that_the_notebook_lacks_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="There is no parameter 'lambda'"):
        smoke("ucb", tmp_path / "run", **{"lambda": 0.1})
    with pytest.raises(ConfigError, match=r"index.ipynb has no parameter 'lam'"):
        notebooks.execute(NOTEBOOKS / "index.ipynb", {"lam": 0.1}, EXECUTED / "index.ipynb")
    with pytest.raises(ConfigError, match=r"There is no notebook .*none.ipynb"):
        notebooks.execute(NOTEBOOKS / "none.ipynb", {}, EXECUTED / "none.ipynb")
    assert not (tmp_path / "run").exists()


def test_a_parameter_that_no_run_has_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="There is no parameter 'discont'; did you mean discount"):
        smoke("ucb", tmp_path / "run", more={"discont": 0.9})
    assert not (tmp_path / "run").exists()
    assert (tmp_path / "results" / "executed" / "ucb.ipynb").exists()  # for inspection


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "your_own_algorithm"])
def test_parameters_explain_themselves(algorithm):
    found = papermill.inspect_notebook(str(NOTEBOOKS / f"{algorithm}.ipynb"))
    assert {"suite", "game", "seed", "frames"} <= found.keys()
    assert ("K" in found) == (algorithm != "double_dqn")
    assert all(parameter["help"] for parameter in found.values())


def test_the_analysis_and_the_report_from_a_small_folder(root):
    results = root / "results"

    def execute(name: str, **values) -> None:
        path = EXECUTED / f"{name}.ipynb"
        notebooks.execute(NOTEBOOKS / f"{name}.ipynb", {"root": str(root), **values}, path)

    execute("paper")
    execute("posterior", lams=[1.0])
    execute("coverage", trials=10)
    execute("search")
    execute("deepsea")
    execute("claims")
    for experiment in ("minatar", "atari"):
        for name in ("tables", "curves", "statistics"):
            execute(name, experiment=experiment)
    page = build(results)
    found = sections(results).values()
    items = [item for parts in found for items in parts.values() for item in items]
    assert page.count("<figure>") == len(items) == page.count("<figcaption>")
    assert "http://" not in page and "https://" not in page  # nothing is fetched
    analysis = results / "analysis"
    for place, algorithm, best in (("paper", "ucb", 30), ("tables/minatar", "ucb_infogain", 2)):
        metrics = json.loads((analysis / place / "metrics.json").read_text())
        assert metrics["times_best"][algorithm] == best
    for drawn in analysis.glob("*/atari/*.svg"):
        assert "reduced profile" in drawn.read_text(), drawn  # never to be taken for the paper's
    few = (analysis / "tables" / "atari" / "max_mean.md").read_text()
    assert "reduced profile" in few and "A demonstration: it ranks nothing." in few
    assert not (analysis / "statistics" / "atari" / "iqm.csv").exists()  # two seeds are too few
    assert (analysis / "statistics" / "minatar" / "contrasts.md").exists()
    beside = (analysis / "paper" / "a3c_plus.md").read_text()
    assert "this project" not in beside  # a reduced profile's scores are not comparable
    written = {p.relative_to(results).as_posix() for p in analysis.rglob("*") if p.is_file()}
    shown = {item.file for item in items}
    assert shown <= written
    every_figure = {name for name in written if name.endswith("svg")}
    assert every_figure <= shown  # nothing is made that the report leaves out

    execute("variants", experiments=["minatar", "lambda"])
    table = (analysis / "variants" / "ucb-minatar-lambda" / "last_quarter.md").read_text()
    assert "| UCB | UCB, lam = 0 | UCB, lam = 1 | Ensemble Voting |" in table


@pytest.mark.parametrize(
    "ensemble", ["explorer_minatar SpaceInvaders ucb", "explorer_atari RoadRunner ucb"]
)
def test_the_explorer_makes_stills_of_the_shipped_ensembles(ensemble):
    path = NOTEBOOKS / "explore_ensemble.ipynb"
    output = EXECUTED / "explore_ensemble.ipynb"
    notebooks.execute(path, {"ensemble": ensemble, "max_steps": 40}, output)
    assert figures_in("explore_ensemble") == 4


def test_the_index_runs():
    notebooks.execute(NOTEBOOKS / "index.ipynb", {}, EXECUTED / "index.ipynb")


def test_the_walkthrough_runs():
    path = EXECUTED / "walkthrough.ipynb"
    notebooks.execute(NOTEBOOKS / "walkthrough.ipynb", {"steps": 2200}, path)
    assert figures_in("walkthrough") == 7


def test_a_misspelt_parameter_in_a_live_notebook_is_refused():
    cells = [c.source for c in nbformat.read(NOTEBOOKS / "ucb.ipynb", 4).cells[:3]]
    parameters, setup = cells[1], cells[2]
    manager, client = start_new_kernel(cwd=str(ROOT))
    try:

        def run(code: str) -> str:
            reply = client.execute_interactive(code, timeout=120, output_hook=lambda _: None)
            return reply["content"].get("evalue", "")

        assert run(parameters) == "" and run(setup) == ""
        for right, wrong, said in (
            ("lam: float = 0.1", "lamda: float = 1.0", "'lamda'; did you mean lam?"),
            ("seed: int = 0", "sede = 7", "'sede'; did you mean seed?"),
            ("game: str =", "gmae =", "'gmae'; did you mean game?"),
            ("lam: float = 0.1", "lamda, K = 1.0, 3", "'lamda'; did you mean lam?"),
        ):
            assert right in parameters and run(parameters.replace(right, wrong)) == ""
            assert run(setup) == f"There is no parameter {said}"
        run("seed: int =")  # no Python; whoever repairs it goes on
        assert run(parameters) == "" and run(setup) == ""
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def test_a_full_disk_leaves_the_executed_notebook_of_before(tmp_path, monkeypatch):
    output = EXECUTED / "index.ipynb"
    output.parent.mkdir(parents=True)
    output.write_text("before")

    def tear(notebook, output, *others, **more):
        Path(output).write_text("{")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(papermill, "execute_notebook", tear)
    with pytest.raises(OSError, match="No space") as error:
        notebooks.execute(NOTEBOOKS / "index.ipynb", {}, output)
    assert error.value.filename == str(output)
    assert [path.read_text() for path in output.parent.iterdir()] == ["before"]


def test_the_walkthroughs_parameters_are_checked_too(monkeypatch):
    cells = [c.source for c in nbformat.read(NOTEBOOKS / "walkthrough.ipynb", 4).cells]
    parameters = next(cell for cell in cells if cell.startswith("game: str"))

    class Shell:
        user_ns: ClassVar = {"In": ["", parameters, "lam = 0.3", "x = 3"]}

        def transform_cell(self, cell: str) -> str:
            return cell

    monkeypatch.setattr("IPython.core.getipython.get_ipython", Shell)
    notebooks.check_cell()
    Shell.user_ns["In"].append(parameters.replace("rho: float", "roh: float"))
    with pytest.raises(ConfigError, match="There is no parameter 'roh'; did you mean rho"):
        notebooks.check_cell()
