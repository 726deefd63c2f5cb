"""All tables and figures on one self-contained page."""

import base64
import html
from pathlib import Path
from typing import NamedTuple


class Item(NamedTuple):
    file: str  # below results/, .svg or .html
    caption: str


# Of each suite that has runs; {} is its name.
PER_SUITE = (
    Item(
        "figures/{}/curves/normalized_4.svg",
        "Normalized learning curves of four algorithms: each game brought to [0, 1] by the "
        "lowest and highest mean of 100 games that any of them reaches, then averaged.",
    ),
    Item("figures/{}/curves/normalized_5.svg", "The same with UCB + InfoGain."),
    Item(
        "figures/{}/curves/games.svg",
        "Game by game: mean of the last 100 games, averaged over seeds; the band is the range "
        "of the seeds, where there are several.",
    ),
    Item("tables/{}/max_mean.html", "Highest mean return of 100 consecutive games."),
    Item("tables/{}/max_mean_best_seed.html", "The same, best seed instead of the mean."),
    Item("figures/{}/statistics/iqm.svg", "Interquartile mean of normalized scores."),
    Item(
        "figures/{}/statistics/improvement.svg",
        "How probably a run of one algorithm has a higher score than one of another.",
    ),
    Item("figures/{}/statistics/profiles.svg", "Performance profiles."),
    Item(
        "figures/{}/statistics/frozen.svg",
        "Training return against games of the frozen network, played by majority vote.",
    ),
    Item("figures/{}/statistics/improvement_frozen.svg", "The same questions, frozen."),
    Item("tables/{}/cost.html", "What the runs took."),
)
MORE = {"atari": (Item("tables/{}/categories.html", "How often each is best, by category."),)}
COMMON = {
    "Parameters": (
        Item("figures/sweeps/temperature.svg", "UCB + InfoGain at several temperatures, and UCB."),
        Item("figures/sweeps/temperature.html", "Highest mean of 100 games by temperature."),
        Item("figures/sweeps/lam.svg", "UCB at several lambdas, and Ensemble Voting."),
        Item("figures/sweeps/lam.html", "Highest mean of 100 games by lambda."),
        Item("figures/sweeps/search.html", "How the learning rate was chosen, on Double DQN."),
        Item("figures/sweeps/games.html", "Which Atari games show learning at a small scale."),
    ),
    "Longer, and larger": (
        Item("figures/scale/published.svg", "Double DQN beside MinAtar's published DQN (stars)."),
        Item("figures/scale/published.html", "The same at the end of the runs."),
        Item("figures/scale/hour.svg", "A run at the paper's size: speed, memory, checkpoints."),
        Item("figures/scale/hour.html", "What it took."),
        Item("figures/scale/everything.html", "What all runs of the pipeline took."),
    ),
    "Learned, and lost again": (
        Item("figures/forgetting/algorithms.svg", "Atari's Freeway, as means of ten games."),
        Item("figures/forgetting/kept.html", "For how long they score 15 or more, and what."),
        Item("figures/forgetting/causes.svg", "Double DQN there, with one thing changed."),
        Item("figures/forgetting/causes.html", "Mean return by tenths of the run."),
    ),
    "Exploration on a chain": (
        Item(
            "figures/chain/chain.svg",
            "Games until the far end of Osband's chain is found: median and quartiles over seeds.",
        ),
        Item("figures/chain/found.html", "Share of the searches that found it, by states."),
    ),
    "The paper's numbers": (
        Item("tables/paper/max_mean.html", "The paper's scores, by the same code."),
        Item("tables/paper/a3c_plus.html", "The paper's comparison with A3C+."),
        Item("tables/paper/categories.html", "The paper's scores by category."),
        Item("figures/paper/iqm.svg", "IQM of the paper's scores, human-normalised."),
        Item("figures/paper/improvement.svg", "How probably one algorithm is better than another."),
        Item("figures/paper/profiles.svg", "Performance profiles of the same."),
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
    if path.suffix == ".html":
        content = path.read_text()
    else:
        data = base64.b64encode(path.read_bytes()).decode()
        alt = html.escape(caption, quote=True)
        content = f'<img alt="{alt}" src="data:image/svg+xml;base64,{data}">'
    return f"<figure>{content}<figcaption>{html.escape(caption)}</figcaption></figure>"


def sections(results: Path) -> dict[str, tuple[Item, ...]]:
    """What the page has, by title: the suites that have tables, then the rest."""
    suites = sorted((results / "tables").glob("*/about.txt"), reverse=True)  # MinAtar first
    return {
        path.read_text().strip(): tuple(
            Item(file.format(path.parent.name), caption)
            for file, caption in (*PER_SUITE, *MORE.get(path.parent.name, ()))
        )
        for path in suites
    } | COMMON


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
        "<p>Made from the logs in <code>results</code>. The last section has the numbers "
        "that the paper published; all others are this project's, but for what is called "
        "published.</p>"
        f"<nav>{links}</nav>{''.join(parts)}</body></html>\n"
    )
