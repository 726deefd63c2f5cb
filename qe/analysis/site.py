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
from qe.analysis import report
from qe.runs.notebooks import execute
from qe.selectors import ALGORITHMS

TRAINING = (*ALGORITHMS, "your_own_algorithm")
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r'<a href="(?!\w+:|#)([^"#]+)([^"]*)">(.*?)</a>', re.DOTALL)
BODY = re.compile("<body[^>]*>")
NAVIGATION = "<nav style='padding: 1em 0 0 6em; font-family: sans-serif'>{}</nav>".format(
    " · ".join(
        f"<a href='{page}.html'>{name}</a>"
        for page, name in (
            ("README", "the project"), ("index", "notebooks"), ("report", "all results"),
            *((path.stem, path.stem) for path in DOCUMENTS[2:]),
        )
    )
)  # fmt: skip


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

    html = BODY.sub(lambda body: body[0] + NAVIGATION, LINK.sub(follow, html), count=1)
    (out / f"{path.stem}.html").write_text(html)


def build(out: Path, without: Collection[str] = TRAINING) -> None:
    """The site in the folder `out`. The notebooks `without` outputs are not executed.

    The report has what they made.
    """
    out.mkdir(parents=True, exist_ok=True)
    for path in sorted(NOTEBOOKS, key=lambda path: path.stem == "claims"):  # it reads the others'
        made = path
        if path.stem not in without:
            print(f"Executing {path.name}.", flush=True)
            made = out / "notebooks" / path.name
            execute(path, {}, made)
        write(path, made, out)
    for path in DOCUMENTS:
        write(path, path, out)
    if without == TRAINING:
        (out / "report.html").write_text(report.build(RESULTS))
    print(f"The first page is {out / 'index.html'}; README.html says what the project is.")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
