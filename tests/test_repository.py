"""The repository around the package: what its files promise each other."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from qe import RESULTS, metrics, provenance, tables
from qe.config import Config
from qe.provenance import LEARNING

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def pins() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {*project["dependencies"], *project["optional-dependencies"]["dev"]}


def test_conda_users_get_the_same_versions():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pip = next(d["pip"] for d in environment["dependencies"] if isinstance(d, dict))
    assert set(pip) - {"--editable ."} == pins()
    assert "torch==2.13.0" in pins()


def test_every_dependency_is_pinned_and_agrees_with_the_constraints():
    constraints = {
        line.split("==")[0].lower().replace("_", "-"): line.split("==")[1]
        for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    for pin in pins():
        name, version = pin.split("==")
        assert constraints[name.lower().replace("_", "-")] == version


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


@pytest.mark.parametrize(
    "page", ["README.md", "docs/faithfulness.md", "docs/scaling.md", "docs/speed.md"]
)
def test_what_a_page_names_exists(page):
    path = ROOT / page
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in link:
            assert (path.parent / link).exists(), link
    targets = re.findall(r"^([a-z]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"`make ([a-z]+)`", text):
        assert target in targets, target


def test_the_page_on_faithfulness_names_parameters_that_exist_with_their_defaults():
    text = (ROOT / "docs" / "faithfulness.md").read_text()
    stated = re.findall(r"\| `(\w+)` \| `([^`]+)` \|", text)  # in the table
    stated += re.findall(r"`(\w+)` = `([^`]+)`", text)  # in prose
    assert len(stated) >= 15
    for name, value in stated:
        default = Config.model_fields[name].default
        assert default == (value if isinstance(default, str) else json.loads(value)), name


def test_the_pipeline_depends_on_the_learning_modules():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert {Path(d).stem for d in stages["learning"]["deps"]} == set(LEARNING)
    for name in ("minatar", "atari", "temperature", "lam", "long", "hour", "freeway", "chain"):
        assert "results/code/learning.txt" in stages[name]["deps"], name


def test_comments_docstrings_and_layout_make_no_run_stale(tmp_path, monkeypatch):
    package = tmp_path / "qe"
    shutil.copytree(ROOT / "qe", package)
    monkeypatch.setattr(provenance, "PACKAGE", package)
    before = provenance.code_fingerprint()
    module = package / "schedules.py"
    text = module.read_text()
    module.write_text(f'"""Other words."""\n# and more\n\n{text.partition(chr(10))[2]}')
    assert provenance.code_fingerprint() == before
    module.write_text(f"{text}\nSOMETHING = 1\n")
    assert provenance.code_fingerprint() != before


def git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.skipif(
    git("rev-parse", "--is-shallow-repository").stdout.strip() != "false",
    reason="needs the whole history",
)
def test_every_shipped_run_names_a_commit_of_this_history_that_has_its_code(tmp_path, monkeypatch):
    shipped = git("ls-files", "results/**/run.json").stdout.split()
    assert shipped
    runs = [json.loads((ROOT / path).read_text()) for path in shipped]
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    for commit, code in {(run["commit"], run["code"]) for run in runs}:
        assert git("merge-base", "--is-ancestor", commit, "HEAD").returncode == 0, commit
        for name in LEARNING:
            then = git("show", f"{commit}:qe/{name}.py").stdout
            (tmp_path / f"{name}.py").write_text(then)
        assert provenance.code_fingerprint() == code, commit


@pytest.mark.parametrize("suite", ["minatar", "atari"])
def test_the_readmes_tables_are_what_the_runs_say(suite):
    text = (ROOT / "README.md").read_text()
    shown = text.split(f"<!-- results/tables/{suite}/max_mean.md -->\n")[1].split("<!-- end -->")[0]
    scores = metrics.score_table(metrics.seed_scores(metrics.load_runs(RESULTS / "runs" / suite)))
    assert shown.strip() == tables.to_markdown(tables.with_times_best(scores)).strip()
