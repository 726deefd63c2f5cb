"""All tables and figures on one self-contained page."""

import base64
import html
from pathlib import Path
from typing import NamedTuple

from qe.config import ConfigError


class Item(NamedTuple):
    file: str  # below results/, .svg or .html
    caption: str


# Of each grid that is shown; {} is its name. What a grid does not have is left out.
PER_GRID = (
    Item(
        "analysis/curves/{}/normalized_4.svg",
        "Normalized learning curves of four algorithms: each game brought to [0, 1] by the "
        "lowest and highest value of these curves, then averaged over games. Bands are 95 % "
        "intervals over games and seeds.",
    ),
    Item("analysis/curves/{}/normalized_5.svg", "The same with UCB + InfoGain."),
    Item("analysis/curves/{}/fixed_scale.svg", "The same on a scale that no algorithm moves."),
    Item(
        "analysis/curves/{}/games.svg",
        "Game by game: the mean of all games that ended in a fortieth of the run, averaged over "
        "seeds. The band is the range of the seeds, where there are several.",
    ),
    Item("analysis/tables/{}/last_quarter.html", "Mean return in the last quarter of the runs."),
    Item("analysis/tables/{}/max_mean.html", "Highest mean return of 100 consecutive games."),
    Item("analysis/tables/{}/max_mean_sd.html", "The same: standard deviation over seeds."),
    Item("analysis/tables/{}/categories.html", "How often each is best, by category."),
    Item("analysis/statistics/{}/iqm.svg", "Interquartile mean of normalized scores."),
    Item("analysis/statistics/{}/profiles.svg", "Performance profiles."),
    Item("analysis/statistics/{}/contrasts.svg", "The paper's questions: differences."),
    Item("analysis/statistics/{}/contrasts.html", "The same, with tests and sizes."),
    Item(
        "analysis/statistics/{}/frozen.svg",
        "Training return against games of the frozen network, played by majority vote.",
    ),
    Item("analysis/statistics/{}/contrasts_frozen.svg", "The same questions, frozen."),
    Item("analysis/tables/{}/cost.html", "What the runs took."),
)
FIRST = {
    "The paper's claims": (
        Item(
            "analysis/claims/verdicts.html",
            "What the runs say of each claim, by rules that were fixed before them.",
        ),
    ),
}
COMMON = {
    "Section 3, where it can be computed": (
        Item(
            "analysis/posterior/spread.svg",
            "RiverSwim: the spread of ten tabular heads, and of the exact posterior over Q*, by "
            "how often every state and action was tried.",
        ),
        Item("analysis/posterior/spread.html", "The same in numbers."),
        Item("analysis/posterior/unfinished.html", "Shared data: spread is unfinished learning."),
        Item("analysis/posterior/regret.svg", "What acting by the bound of such heads loses."),
        Item("analysis/posterior/regret.html", "The same in numbers."),
    ),
    "What the intervals cover": (
        Item("analysis/coverage/coverage.html", "Simulated scores, of which the truth is known."),
    ),
    "The paper's numbers": (
        Item("analysis/paper/max_mean.html", "The paper's scores, by the same code."),
        Item("analysis/paper/a3c_plus.html", "The paper's comparison with A3C+."),
        Item("analysis/paper/categories.html", "The paper's scores by category."),
        Item("analysis/paper/iqm.svg", "IQM of the paper's scores, human-normalised."),
        Item(
            "analysis/paper/improvement.svg", "How probably one algorithm is better than another."
        ),
        Item("analysis/paper/profiles.svg", "Performance profiles of the same."),
    ),
}

CSS = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #ccc; --soft: #666 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #161616; --rule: #444; --soft: #999 }
  figure img { filter: invert(0.91) hue-rotate(180deg) }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 60rem; margin: 0 auto; padding: 1rem }
figure { margin: 1.5rem 0 2.5rem }
figure img { max-width: 100%; height: auto; display: block }
figcaption, .note { color: var(--soft); font-size: 0.9rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid var(--rule) }
th:first-child { text-align: left; font-weight: 500 }
td.text { text-align: left }
thead th { white-space: nowrap }
nav a { margin-right: 1rem }
@media print {
  :root { --ink: #000; --paper: #fff; --rule: #bbb; --soft: #444 }
  body { max-width: none; font-size: 10pt }
  nav { display: none }
  figure, tr { break-inside: avoid }
  figure img { filter: none }
}
"""


def embed(path: Path, caption: str) -> str:
    """A file's content as part of the page."""
    if not path.is_file():
        raise ConfigError(f"{path} is not made yet: `dvc repro` makes it.")
    if path.suffix == ".html":
        content = path.read_text()
    else:
        data = base64.b64encode(path.read_bytes()).decode()
        alt = html.escape(caption, quote=True)
        content = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{content}<figcaption>{html.escape(caption)}</figcaption></figure>"


def sections(results: Path) -> dict[str, tuple[Item, ...]]:
    """What the page has, by title: the claims, the grids that have tables, then the rest."""
    grids = sorted((results / "analysis" / "tables").glob("*/about.txt"), reverse=True)
    shown = {
        path.read_text().strip(): tuple(
            Item(file.format(path.parent.name), caption)
            for file, caption in PER_GRID
            if (results / file.format(path.parent.name)).exists()
        )
        for path in grids
    }
    return FIRST | shown | COMMON


def build(results: Path) -> str:
    """The page, from the files below `results`."""
    found = sections(results)
    parts = []
    for number, (title, items) in enumerate(found.items(), 1):
        body = "".join(embed(results / item.file, item.caption) for item in items)
        parts.append(f"<section id=s{number}><h2>{html.escape(title)}</h2>{body}</section>")
    links = "".join(f"<a href=#s{i}>{html.escape(t)}</a>" for i, t in enumerate(found, 1))
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>UCB Exploration via Q-Ensembles: results</title><style>{CSS}</style></head><body>"
        "<h1>UCB Exploration via Q-Ensembles: results</h1>"
        "<p>Made from the logs in <code>results/runs</code>. The last section has the numbers "
        "that the paper published; all others are this project's, but for what is called "
        "published.</p>"
        f"<nav>{links}</nav>{''.join(parts)}</body></html>\n"
    )
