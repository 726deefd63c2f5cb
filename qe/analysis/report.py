"""All tables and figures on one self-contained page."""

import base64
import html
from pathlib import Path
from typing import NamedTuple

from qe.config import ConfigError
from qe.runs.provenance import day_of
from qe.runs.status import read_finished


class Item(NamedTuple):
    file: str  # below results/, .svg or .html
    caption: str


Sections = dict[str, dict[str, list[Item]]]  # title, subtitle, what stands there

# What is left out where it is not made; {} is a grid's name.
FIRST: Sections = {
    "The paper's claims": {
        "Verdicts": [
            Item("analysis/claims/verdicts.html", "What the runs say of each claim, by rules that "
                 "were fixed before them."),
        ],
    },
}  # fmt: skip
PER_GRID = {
    "Learning curves": [
        Item("analysis/curves/{}/fixed_scale.svg", "Normalized curves: 0 is random play, 1 is "
             "Double DQN on seeds of its own. Bands are 95 % intervals over games and seeds."),
        Item("analysis/curves/{}/normalized_4.svg", "The paper's scale, four algorithms: each game "
             "brought to [0, 1] by the lowest and highest value of these curves."),
        Item("analysis/curves/{}/normalized_5.svg", "The same with UCB + InfoGain."),
        Item("analysis/curves/{}/games.svg", "Game by game: the mean of all games that ended in a "
             "fortieth of the run, over seeds. The band is the range of the seeds, if several."),
    ],
    "Scores": [
        Item("analysis/tables/{}/last_quarter.html", "Mean return in the last quarter of a run."),
        Item("analysis/tables/{}/max_mean.html", "Highest mean return of 100 consecutive games."),
        Item("analysis/tables/{}/categories.html", "How often each is best, by category."),
        Item("analysis/statistics/{}/iqm.svg", "Interquartile mean of normalized scores."),
        Item("analysis/statistics/{}/profiles.svg", "Performance profiles."),
    ],
    "The paper's questions": [
        Item("analysis/statistics/{}/contrasts.svg", "Differences of mean normalized scores."),
        Item("analysis/statistics/{}/contrasts.html", "The same, with tests and sizes."),
    ],
    "Acting against learning": [
        Item("analysis/statistics/{}/frozen.svg", "Training return against games of the frozen "
             "network, played by majority vote."),
        Item("analysis/statistics/{}/contrasts_frozen.svg", "The questions, of frozen networks."),
        Item("analysis/statistics/{}/contrasts_frozen.html", "The same, with tests and sizes."),
    ],
    "What the runs took": [Item("analysis/tables/{}/cost.html", "Time, speed and memory.")],
}  # fmt: skip
COMMON: Sections = {
    "DeepSea: who explores where it must": {
        "Solved and found": [
            Item("analysis/deepsea/solved.svg", "The share of seeds that solve a sea of N x N "
                 "cells, with exact 95 % intervals."),
            Item("analysis/deepsea/solved.html", "The same in numbers."),
            Item("analysis/deepsea/found.html", "The game in which the treasure is first found."),
        ],
    },
    "Section 3, where it can be computed": {
        "The spread": [
            Item("analysis/posterior/spread.svg", "RiverSwim: the spread of ten tabular heads, and "
                 "of the exact posterior over Q*, by how often every state and action was tried."),
            Item("analysis/posterior/spread.html", "The same in numbers."),
            Item("analysis/posterior/unfinished.html", "Shared data: spread is unfinished "
                 "learning."),
        ],
        "Acting by it": [
            Item("analysis/posterior/regret.svg", "What acting by the bound of such heads loses."),
            Item("analysis/posterior/regret.html", "The same in numbers."),
        ],
    },
    "How the study was set up": {
        "Settings and scale": [
            Item("analysis/search/settings.html", "Double DQN's settings, by game."),
            Item("analysis/search/normalization.html", "What 0 and 1 are."),
            Item("analysis/search/prior.html", "DeepSea's prior."),
        ],
        "What the intervals cover": [
            Item("analysis/coverage/coverage.html", "Simulated scores, whose truth is known."),
        ],
    },
    "The paper's numbers": {
        "Its tables": [
            Item("analysis/paper/max_mean.html", "The paper's scores, by the same code."),
            Item("analysis/paper/a3c_plus.html", "The paper's comparison with A3C+."),
            Item("analysis/paper/categories.html", "The paper's scores by category."),
        ],
        "What they say": [
            Item("analysis/paper/iqm.svg", "IQM of the paper's scores, human-normalised."),
            Item("analysis/paper/improvement.svg", "How probably one is better than another."),
            Item("analysis/paper/profiles.svg", "Performance profiles of the same."),
        ],
    },
}  # fmt: skip

CSS = """
:root { color-scheme: light dark; --ink: #1b1b1b; --paper: #fff; --rule: #ccc; --soft: #595959 }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #161616; --rule: #444; --soft: #a0a0a0 }
  figure img { filter: invert(0.91) hue-rotate(180deg) }
}
body { font: 16px/1.5 system-ui, sans-serif; margin: 0; color: var(--ink);
  background: var(--paper) }
main { max-width: 66rem; margin: 0 auto; padding: 1rem }
nav { position: sticky; top: 0; z-index: 2; display: flex; gap: 1.2rem; overflow-x: auto;
  padding: 0.5rem 1rem; white-space: nowrap; background: var(--paper);
  border-bottom: 1px solid var(--rule) }
a { color: inherit }
section, h3 { scroll-margin-top: 3rem }
figure { margin: 1rem 0 2.5rem }
figure img { width: 100%; min-width: 36rem; max-width: 60rem; height: auto; display: block }
figcaption { font-weight: 500; margin-bottom: 0.4rem }
.note { color: var(--soft); font-size: 0.9rem }
.scroll { overflow-x: auto }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums }
th, td { padding: 0.2rem 0.7rem; text-align: right; border-bottom: 1px solid var(--rule) }
th:first-child { text-align: left; font-weight: 500; position: sticky; left: 0;
  background: var(--paper); max-width: 20rem; min-width: 9rem }
th.text, td.text { text-align: left; min-width: 5rem; max-width: 24rem }
thead th:first-child { font-weight: bold }
@media (max-width: 40rem) { th:first-child { max-width: 8rem; min-width: 6rem } }
@media print {
  :root { --ink: #000; --paper: #fff; --rule: #bbb; --soft: #444 }
  body { font-size: 10pt }
  nav { display: none }
  figure, tr { break-inside: avoid }
  figure img { filter: none }
}
"""


def embed(path: Path, caption: str) -> str:
    """A file's content as part of the page, with its caption above."""
    if path.suffix == ".html":
        content = path.read_text()
    else:
        data = base64.b64encode(path.read_bytes()).decode()
        alt = html.escape(caption, quote=True)
        image = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
        content = f"<div class=scroll>{image}</div>"
    return f"<figure><figcaption>{html.escape(caption)}</figcaption>{content}</figure>"


def sections(results: Path) -> Sections:
    """What the page has: the claims, the grids that have tables, then the rest."""
    grids = sorted((results / "analysis" / "tables").glob("*/about.txt"), reverse=True)
    shown = {
        f"{path.parent.name}: {path.read_text().strip()}": {
            title: [Item(file.format(path.parent.name), caption) for file, caption in items]
            for title, items in PER_GRID.items()
        }
        for path in grids
    }
    made: Sections = {}
    for title, parts in (FIRST | shown | COMMON).items():
        there = {
            name: [item for item in items if (results / item.file).exists()]
            for name, items in parts.items()
        }
        made[title] = {name: items for name, items in there.items() if items}
    return {title: parts for title, parts in made.items() if parts}


def newest(results: Path) -> str:
    """The newest commit that made a run, and its day."""
    found = (read_finished(path.parent) for path in sorted(results.glob("runs/*/*/*/*/run.json")))
    commits = sorted({made["commit"] for made in found if made and made["commit"]})
    dated = [(day, commit) for commit in commits if (day := day_of(commit))]
    if not dated:
        return ""
    day, commit = max(dated)
    return f" The newest run was made by commit {commit[:12]} of {day}."


def build(results: Path) -> str:
    """The page, from the files below `results`."""
    if not (results / "analysis" / "claims" / "verdicts.html").is_file():
        raise ConfigError(f"{results} has no analysis yet: `dvc repro` makes it.")
    numbers = {".svg": 0, ".html": 0}
    body, links = [], []
    for number, (title, parts) in enumerate(sections(results).items(), 1):
        links.append(f"<a href=#s{number}>{html.escape(title.split(':')[0])}</a>")
        body.append(f"<section id=s{number}><h2>{html.escape(title)}</h2>")
        for name, items in parts.items():
            body.append(f"<h3>{html.escape(name)}</h3>")
            for item in items:
                path = results / item.file
                numbers[path.suffix] += 1
                kind = "Figure" if path.suffix == ".svg" else "Table"
                body.append(embed(path, f"{kind} {numbers[path.suffix]}. {item.caption}"))
        body.append("</section>")
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f"<title>UCB Exploration via Q-Ensembles: results</title><style>{CSS}</style></head><body>"
        f"<nav>{''.join(links)}</nav><main>"
        "<h1>UCB Exploration via Q-Ensembles: results</h1>"
        "<p>Made from the logs in <code>results/runs</code>. The last section has the numbers "
        "that the paper published; all others are this project's, but for what is called "
        f"published.{newest(results)}</p>"
        f"{''.join(body)}</main></body></html>\n"
    )
