"""The repository around the package: what its files promise each other."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import nbformat
import pytest
import yaml

from qe.config import Config, configure
from qe.runs import provenance
from qe.runs.experiments import declared, read_params, runs_of
from qe.runs.provenance import LEARNING
from qe.runs.random_play import random_returns

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


PYTHONS = ["3.11", "3.12", "3.13"]


def test_every_file_speaks_of_the_same_pythons():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
    job = workflow["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == PYTHONS
    assert job["steps"][-1]["run"].startswith("make test ")
    makefile = (ROOT / "Makefile").read_text()
    assert " ".join(f"python{python}" for python in reversed(PYTHONS)) in makefile
    container = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    runtime = (ROOT / ".binder" / "runtime.txt").read_text().strip()
    assert (
        container["image"].split(":")[-1] in PYTHONS and runtime.removeprefix("python-") in PYTHONS
    )


@pytest.mark.parametrize(
    ("working", "words", "taken"),
    [
        (["3.11", "3.12"], [], "python3.12"),  # a shim may be there for a Python that is not
        (["3.11"], [], "python3.11"),
        (["3.11", "3.13"], ["PYTHON=python3.11"], "python3.11"),
        ([], [], None),
    ],
)
def test_make_takes_the_newest_python_that_works(working, words, taken, tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for python in PYTHONS:
        stub = tmp_path / f"python{python}"
        stub.write_text(f"#!/bin/sh\nexit {0 if python in working else 127}\n")
        stub.chmod(0o755)
    done = subprocess.run(
        ["make", "setup", *words, *(["-n"] if taken else [])], cwd=tmp_path, capture_output=True,
        text=True, check=False, env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )  # fmt: skip
    if taken:
        assert f"\n{taken} -m venv" in done.stdout
    else:
        assert "Install Python 3.11, 3.12 or 3.13" in done.stdout and done.returncode == 2


DVC = """#!/bin/sh
echo "Stage 'paper' didn't change, skipping"
echo "Running stage 'tables':"
exit $CODE
"""


@pytest.mark.parametrize("code", [0, 3])
def test_make_repro_tells_what_it_ran_and_whether_it_could(code, tmp_path):
    bin_ = tmp_path / ".venv" / "bin"
    bin_.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (bin_ / "dvc").write_text(DVC)
    (bin_ / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    for path in bin_.iterdir():
        path.chmod(0o755)
    alone = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # as if by hand
    done = subprocess.run(
        ["make", "-o", ".venv/.installed", "repro"], cwd=tmp_path, capture_output=True, text=True,
        check=False, env=alone | {"CODE": str(code), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[0] == "Running stage 'tables':" and "skipping" not in done.stdout
    assert (done.returncode == 0) == (code == 0)
    if not code:
        assert [line.split(":")[0] for line in lines[1:]] == [
            "Runs",
            "Claims",
            "Tables and figures",
        ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebooks_are_committed_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert not cell.outputs and cell.execution_count is None


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(
            f"docs/{name}.md"
            for name in ("faithfulness", "protocol", "results", "running", "scaling", "speed")
        ),
    ],
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
    assert {"init", "tie_break", "head_per", "prior_scale", "precision"} <= dict(stated).keys()
    for name, value in stated:
        default = Config.model_fields[name].default
        assert default == (value if isinstance(default, str) else json.loads(value)), name


def test_the_pipeline_depends_on_the_learning_modules():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name in ("grids", "controls"):
        assert {f"qe/{module}.py" for module in LEARNING} <= set(stages[name]["do"]["deps"])


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
            (tmp_path / f"{name}.py").parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.py").write_text(then)
        assert provenance.code_fingerprint() == code, commit


def test_the_study_and_its_claims_speak_of_the_same_experiments():
    study = read_params(ROOT / "docs" / "study.yaml")
    places = {f"{run.experiment}/{run.variant}" for run in declared(study)}
    claims = yaml.safe_load((ROOT / "claims.yaml").read_text())["claims"]
    named = set()
    for claim in claims.values():
        named |= {claim[key] for key in ("better", "worse", "variant", "shown") if key in claim}
        named |= set(claim.get("among", []))
    assert named and named <= places
    # What is made of it is declared as the study declares it.
    made = read_params(ROOT / "params.yaml")
    for name in (study.grids.keys() | study.controls.keys()) & (made.grids | made.controls).keys():
        wanted = {run.key: run.config.fingerprint() for run in runs_of(name, study)}
        found = {run.key: run.config.fingerprint() for run in runs_of(name, made)}
        common = found.keys() & wanted.keys()
        assert common and all(found[key] == wanted[key] for key in common), name


def test_the_protocols_constants_are_those_that_were_measured():
    page = (ROOT / "docs" / "protocol.md").read_text()
    with (ROOT / "results" / "reference" / "random" / "minatar.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 5
    for row in rows:
        assert row["games"] == "1000" and f"| {row['game']} | {row['mean']} |" in page


def test_random_play_is_what_was_measured():
    returns = random_returns(configure(suite="minatar", game="Seaquest"), 1000)
    table = (ROOT / "results" / "reference" / "random" / "minatar.csv").read_text()
    assert f"Seaquest,1000,{sum(returns) / 1000:.4f}," in table


@pytest.mark.parametrize(
    "name", ["params.yaml", "docs/study.yaml", "qe/profiles/paper/params.yaml"]
)
def test_experiments_have_no_aliases(name):
    """`dvc exp run -S` would change the anchor, and an alias put the old value back, in silence."""
    tokens = yaml.scan((ROOT / name).read_text())
    assert not any(isinstance(token, yaml.AliasToken | yaml.AnchorToken) for token in tokens)
