"""A static site by nbconvert: notebooks, documentation and report as pages that link to each other.

Notebooks that train nothing are executed first; the others have no outputs.
"""

import re
import shutil
import sys
from collections.abc import Collection
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter

from qe import RESULTS, ROOT
from qe.runs.notebooks import execute
from qe.selectors import ALGORITHMS

TRAINING = (*ALGORITHMS, "your_own_algorithm")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r'<a href="(?!\w+:|#)([^"#]+)([^"]*)">(.*?)</a>', re.DOTALL)


def write(path: Path, made: Path, out: Path) -> None:
    """The page of a notebook, executed as `made`, or of a document."""
    if path in DOCUMENTS:
        page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(made.read_text())])
    else:
        page = nbformat.read(made, 4)
    resources = {"metadata": {"name": path.stem, "path": str(path.parent)}}
    html, _ = HTMLExporter(embed_images=True).from_notebook_node(page, resources)

    def follow(link: re.Match[str]) -> str:
        to, anchor, text = link.groups()
        target = (path.parent / to).resolve()
        if target in NOTEBOOKS + DOCUMENTS:
            return f'<a href="{target.stem}.html{anchor}">{text}</a>'
        if not target.is_file():
            return text
        copy = target.relative_to(ROOT)
        (out / copy).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, out / copy)
        return f'<a href="{copy.as_posix()}">{text}</a>'

    (out / f"{path.stem}.html").write_text(LINK.sub(follow, html))


def build(out: Path, without: Collection[str] = TRAINING) -> None:
    """The site in the folder `out`. The notebooks `without` outputs are not executed."""
    out.mkdir(parents=True, exist_ok=True)
    for path in NOTEBOOKS:
        made = path
        if path.stem not in without:
            print(f"Executing {path.name}.", flush=True)
            made = out / "notebooks" / path.name
            execute(path, {}, made)
        write(path, made, out)
    for path in DOCUMENTS:
        write(path, path, out)
    report = RESULTS / "report.html"
    if report.exists():
        shutil.copy(report, out)
    print(f"The first page is {out / 'index.html'}; README.html says what the project is.")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
