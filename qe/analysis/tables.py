"""Tables, as CSV, Markdown, LaTeX and HTML, and the paper's own numbers."""

import html
import re
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from qe.analysis import scores
from qe.analysis.labels import LABELS, label, ordered

LINK = re.compile(r"\[([^]]+)\]\(([^)]+)\)")


class Table(NamedTuple):
    """Numbers, which of them are bold, and what to read below."""

    data: pd.DataFrame
    bold: pd.DataFrame
    note: str = ""
    deviation: pd.DataFrame | None = None  # what stands behind a ± beside each number


def plain(data: pd.DataFrame, note: str = "", deviation: pd.DataFrame | None = None) -> Table:
    """A table with nothing in bold."""
    bold = pd.DataFrame(False, index=data.index, columns=data.columns)
    return Table(data, bold, note, deviation)


def _numbers(values: pd.Series) -> list[str]:
    """One row's values: two decimals for all of them, or for none if all are whole."""
    numbers = [v for v in values if isinstance(v, float) and v == v]
    decimals = 0 if all(v == round(v) for v in numbers) else 2
    return [
        "" if v != v else f"{v:,.{decimals}f}" if isinstance(v, float) else str(v) for v in values
    ]


def _rows(table: Table, bold: str, escape: dict[str, str]) -> list[list[str]]:
    """Header and rows as text; `bold` is a pattern with {} for the number."""

    def text(value: object) -> str:
        found = str(value)
        for old, new in escape.items():
            found = found.replace(old, new)
        return found

    header = [table.data.index.name or "", *(label(c) for c in table.data.columns)]
    rows = [[text(h) for h in header]]
    for name, values in table.data.iterrows():
        marks = table.bold.loc[name]
        found = dict(zip(values.index, _numbers(values), strict=True))
        if table.deviation is not None and name in table.deviation.index:
            for column, sd in table.deviation.loc[name].dropna().items():
                found[column] += f" ± {sd:,.2f}" if found[column] else ""
        cells = [bold.format(text(v)) if marks[c] else text(v) for c, v in found.items()]
        rows.append([text(label(name)), *cells])
    return rows


def _is_text(table: Table) -> list[bool]:
    """Whether a column holds words, which stand to the left."""
    return [all(isinstance(v, str) and not v.isdigit() for v in c) for _, c in table.data.items()]


def to_markdown(table: Table) -> str:
    rows = _rows(table, "**{}**", {"|": "\\|"})
    rule = ["---", *("---" if text else "---:" for text in _is_text(table))]
    lines = [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]
    return "\n".join([*lines, *(["", table.note] if table.note else [])]) + "\n"


def to_latex(table: Table) -> str:
    escape = {"&": "\\&", "%": "\\%", "_": "\\_", "#": "\\#"}
    rows = [" & ".join(row) + " \\\\" for row in _rows(table, "\\textbf{{{}}}", escape)]
    columns = "l" + "r" * len(table.data.columns)
    lines = [
        f"\\begin{{tabular}}{{{columns}}}", "\\toprule", rows[0], "\\midrule",
        *rows[1:], "\\bottomrule", "\\end{tabular}",
    ]  # fmt: skip
    return "\n".join([*lines, *([f"% {table.note}"] if table.note else [])]) + "\n"


def to_html(table: Table) -> str:
    escape = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
    header, *rows = _rows(table, "<b>{}</b>", escape)
    rows = [[LINK.sub(r'<a href="\2">\1</a>', cell) for cell in row] for row in rows]
    kinds = [" class=text" if text else "" for text in _is_text(table)]
    head = "".join(
        f"<th scope=col{kind}>{cell}</th>" for kind, cell in zip(["", *kinds], header, strict=True)
    )
    cells = [f"<td{kind}>" for kind in kinds]
    body = "".join(
        f"<tr><th scope=row>{row[0]}</th>"
        + "".join(f"{open}{cell}</td>" for open, cell in zip(cells, row[1:], strict=True))
        + "</tr>"
        for row in rows
    )
    note = f"<p class=note>{html.escape(table.note)}</p>" if table.note else ""
    table_html = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f"<div class=scroll>{table_html}</div>{note}\n"


def write(table: Table, directory: Path, name: str) -> None:
    """`name` as .csv, .md, .tex and .html in `directory`, a folder of results/analysis.

    Links in cells, `[text](path)`, are relative to results/, where the report is.
    """
    directory.mkdir(parents=True, exist_ok=True)
    table.data.to_csv(directory / f"{name}.csv", lineterminator="\n")
    markdown = LINK.sub(r"[\1](../../\2)", to_markdown(table))
    latex = LINK.sub(r"\1", to_latex(table))
    for suffix, text in (("md", markdown), ("tex", latex), ("html", to_html(table))):
        (directory / f"{name}.{suffix}").write_text(text)


# --- the families ----------------------------------------------------------------------------


def with_times_best(
    data: pd.DataFrame, note: str = "", deviation: pd.DataFrame | None = None
) -> Table:
    """A score table with the best of each row in bold and the paper's last row."""
    data = data[ordered(data.columns)]
    last = scores.times_best(data).rename("Times best").to_frame().T
    bold = scores.best(data)
    none = pd.DataFrame(False, index=last.index, columns=last.columns)
    return Table(
        pd.concat([data, last.astype(float)]).rename_axis("game"), pd.concat([bold, none]), note,
        deviation,
    )  # fmt: skip


def categories_table(data: pd.DataFrame, categories: dict[str, str], note: str = "") -> Table:
    """How often each algorithm is best, by category, with totals below."""
    counts = scores.category_counts(data[ordered(data.columns)], categories)
    total = counts.sum().rename("All categories").to_frame().T
    both = pd.concat([counts, total]).rename_axis("category")
    winners = scores.best(both.drop(columns="total"))
    winners.insert(0, "total", False)
    return Table(both, winners, note)


def cost_table(costs: pd.DataFrame, note: str = "") -> Table:
    """What the runs of each algorithm took, and all of them together; `costs` by `load_costs`."""
    groups = costs.groupby("variant")
    data = pd.DataFrame(
        {
            "runs": groups.size().astype(str),
            "minutes a run": groups["minutes"].mean(),
            "steps/s": groups["steps_per_second"].mean(),
            "memory, GB": groups["memory_gb"].max(),
            "hours in all": groups["minutes"].sum() / 60,
        }
    )
    data = data.loc[ordered(data.index)]
    data.loc["All"] = {"runs": str(len(costs)), "hours in all": costs["minutes"].sum() / 60}
    return plain(data.rename_axis("algorithm"), note)


def paper_table(paper: Path, name: str) -> pd.DataFrame:
    """One of the published tables, by game."""
    return pd.read_csv(paper / f"{name}.csv", index_col=0)


def a3c_table(paper: Path, ours: pd.DataFrame | None = None) -> Table:
    """The comparison with A3C+, with this project's runs beside it where there are any."""
    data = paper_table(paper, "a3c_plus")
    count = scores.times_best(data)
    printed = {"ensemble_voting": 10, "ucb": 28, "a3c_plus": 10}
    wrong = [f"{LABELS[a]} {count[a]} ({n} printed)" for a, n in printed.items() if count[a] != n]
    note = (
        "Erratum: counted from these rows, times best is "
        f"{', '.join(wrong)}; the printed counts add up to {sum(printed.values())} of "
        f"{len(data)} games."
    )
    table = with_times_best(data, note)
    if ours is None or ours.empty:
        return table
    beside = ours.add_prefix("this project: ").reindex(table.data.index)
    both = table.data.join(beside).rename_axis("game")
    return Table(both, table.bold.reindex(columns=both.columns, fill_value=False), note)
