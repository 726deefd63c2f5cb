"""A notebook's code without the rest. Reads plain JSON: nbformat alone takes a second to import."""

import json
from pathlib import Path


def clean(notebook: Path) -> str:
    """The notebook's code cells and their tags as text: what a run depends on.

    Running a notebook by hand and saving it changes the file, but not this.
    """
    cells = json.loads(notebook.read_text())["cells"]
    return "\n\n".join(
        f"# %% {cell['metadata'].get('tags', [])}\n{''.join(cell['source'])}"
        for cell in cells
        if cell["cell_type"] == "code"
    )
