"""A verdict on each claim of `claims.yaml`, by its rules, from the runs of `params.yaml`.

The file says what each kind of claim needs to be reproduced or contradicted. A claim whose runs are
not there yet is not tested, and says what is missing.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from qe.analysis.labels import LABELS
from qe.analysis.load import (
    ENOUGH,
    NotMadeError,
    discoveries,
    frames_of,
    load_logs,
    made_runs,
    scale_for,
)
from qe.analysis.scores import category_counts, last_quarter, matrix, max_means, times_best
from qe.analysis.statistics import (
    Interval,
    aligned,
    difference,
    draw,
    holm,
    improvement,
    interval,
    permutation_test,
    seeds_needed,
    spread,
)
from qe.analysis.tables import paper_table
from qe.config import ConfigError, sentence
from qe.games import categories
from qe.runs.experiments import PARAMS, Run, read_params

FILE = Path("claims.yaml")
REPRODUCED, CONTRADICTED, UNDECIDED = "reproduced", "contradicted", "undecided"
NO_DIFFERENCE, NOT_YET, NONE = "no relevant difference", "not tested yet", "descriptive"
TOO_LARGE = "not testable at this scale"
SURE = 0.95  # of the draws
Score = Literal["last_quarter", "frozen", "max_mean", "solved"]


class Claim(BaseModel):
    model_config = ConfigDict(extra="forbid")

    claim: str
    paper: str
    kind: Literal["contrast", "most_games", "mixed", "best_of", "posterior", "learns", "published",
                  "descriptive"]  # fmt: skip
    question: int | None = None
    primary: bool = False
    score: Score | None = None
    better: str = ""  # experiment/variant
    worse: str = ""
    variant: str = ""
    among: list[str] = []
    games: list[str] = []
    shown: str = ""
    heads: str = ""
    above: float = 0.0
    table: str = ""
    counts: dict[str, int] = {}
    needs: str = ""

    def evidence(self, results: Path) -> list[str]:
        """Links to what decides it, as far as it is there, relative to `results`."""
        if self.kind == "posterior":
            return ["[posterior](../notebooks/posterior.ipynb)"]
        if self.kind == "published":
            return [f"[{self.table}](reference/paper/{self.table}.csv)"]
        places = [self.better, self.worse, self.variant, self.shown, *self.among]
        experiments = dict.fromkeys(place.split("/")[0] for place in places if place)
        there = {name for name in experiments if (results / "runs" / name).is_dir()}
        return [f"[{name}](runs/{name})" if name in there else name for name in experiments]


class Claims(BaseModel):
    model_config = ConfigDict(extra="forbid")

    alpha: float
    margin: float
    score: Score
    claims: dict[str, Claim]


class Verdict(NamedTuple):
    verdict: str
    numbers: str


class MissingError(Exception):
    """What a claim needs and the repository does not have yet."""


def read_claims(path: Path) -> Claims:
    try:
        return Claims.model_validate(yaml.safe_load(path.read_text()))
    except ValidationError as error:
        raise ConfigError(f"{path}: {sentence(error, depth=3)}") from None


def decide(
    seen: Interval, ninety: Interval, p: float, alpha: float, margin: float, seeds: int
) -> Verdict:
    """A contrast's verdict: `seen` with its 95 % interval, the 90 % one, and the corrected p.

    An interval without a length says that nothing varied in the runs, not that nothing could.
    """
    numbers = f"{seen.value:+.2f} [{seen.low:+.2f}, {seen.high:+.2f}], p = {p:.3g}"
    if p < alpha:
        return Verdict(REPRODUCED if seen.value > 0 else CONTRADICTED, numbers)
    if -margin < ninety.low < ninety.high < margin:
        return Verdict(NO_DIFFERENCE, numbers)
    more = f"; {seeds} seeds would show a difference of this size" if seeds else ""
    return Verdict(UNDECIDED, numbers + more)


def by_share(share: float) -> str:
    """The verdict where a claim holds in a share of the draws."""
    return REPRODUCED if share >= SURE else CONTRADICTED if share <= 1 - SURE else UNDECIDED


class Judge:
    """The runs below `root`, and what they say of the claims."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.rules = read_claims(root / FILE)
        self.params = read_params(root / PARAMS)
        self.made: dict[str, list[Run]] = {}  # by experiment: many claims are of the same one

    def runs(self, place: str) -> list[Run]:
        """The runs of `experiment/variant`."""
        experiment, variant = place.split("/")
        if experiment not in self.params.grids | self.params.controls:
            raise MissingError(f"{experiment} is not made")
        try:
            if experiment not in self.made:
                self.made[experiment] = made_runs(self.root, experiment)
        except NotMadeError:
            raise MissingError(f"{experiment} is made in part") from None
        found = [run for run in self.made[experiment] if run.variant == variant]
        if not found:
            raise MissingError(f"{place} is not made")
        return found

    def sample(self, place: str, score: Score) -> pd.DataFrame:
        """Scores of a variant, a row per game and a column per seed; on the fixed scale, if any."""
        runs = self.runs(place)
        seeds = len({run.config.seed for run in runs})
        if seeds < ENOUGH:
            raise MissingError(f"{place} has {seeds} of at least {ENOUGH} seeds")
        games = load_logs(runs, "evaluations" if score == "frozen" else "episodes")
        if score == "max_mean":
            return matrix(max_means(games), runs[0].variant)
        if score == "solved":
            solved = discoveries(games, runs).assign(score=lambda t: t["solved"].astype(float))
            return matrix(solved, runs[0].variant)
        scores = last_quarter(games, frames_of(runs))
        scale = scale_for(self.root, runs, scores)
        if not scale.fixed:
            raise MissingError("the reference of normalized scores is not made")
        return matrix(scale.apply(scores), runs[0].variant)

    def pair(self, claim: Claim) -> tuple[pd.DataFrame, pd.DataFrame]:
        score = claim.score or self.rules.score
        return self.sample(claim.better, score), self.sample(claim.worse, score)

    def contrast(self, claim: Claim, p: float | None = None) -> Verdict:
        x, y = self.pair(claim)
        p = permutation_test(x, y) if p is None else p
        primaries = sum(c.primary for c in self.rules.claims.values()) if claim.primary else 1
        found = decide(
            interval(difference, x, y), interval(difference, x, y, level=0.9), p, self.rules.alpha,
            self.rules.margin, seeds_needed(x, y, alpha=self.rules.alpha / primaries),
        )  # fmt: skip
        if claim.score != "solved":
            a, b = aligned(x, y)
            size, chance = float(difference(a, b)) / spread(x, y), float(improvement(a, b))
            return found._replace(
                numbers=f"{found.numbers}; {size:.1f} standard deviations of a run, a higher score "
                f"with a chance of {chance:.2f}"
            )
        return Verdict(found.verdict, f"{self._shares(x, y)}; p = {p:.3g}")

    def _shares(self, x: pd.DataFrame, y: pd.DataFrame) -> str:
        """How many runs solved each game, as "N10 3/10 against 0/10"."""
        return ", ".join(
            f"{game} {' against '.join(f'{t.loc[game].sum():.0f}/{t.shape[1]}' for t in (x, y))}"
            for game in x.index.intersection(y.index)
        )

    def mixed(self, claim: Claim) -> Verdict:
        x, y = self.pair(claim)
        games = list(x.index.intersection(y.index))
        corrected = holm({g: permutation_test(x.loc[[g]], y.loc[[g]]) for g in games})
        values = {g: float(x.loc[g].mean() - y.loc[g].mean()) for g in games}
        ninety = {g: interval(difference, x.loc[[g]], y.loc[[g]], level=0.9) for g in games}
        clear = {g for g in games if corrected[g] < self.rules.alpha}
        helped = {g for g in clear if values[g] > 0}
        not_helped = {g for g in games if values[g] < 0 or ninety[g].high < self.rules.margin}
        numbers = ", ".join(f"{g} {values[g]:+.2f} (p = {corrected[g]:.3g})" for g in games)
        if helped and not_helped - helped:
            return Verdict(REPRODUCED, numbers)
        one_sign = len({values[g] > 0 for g in games}) == 1
        return Verdict(CONTRADICTED if clear == set(games) and one_sign else UNDECIDED, numbers)

    def most_games(self, claim: Claim) -> Verdict:
        score = claim.score or self.rules.score
        mine, *others = aligned(*(self.sample(p, score) for p in (claim.variant, *claim.among)))

        def wins(x: Any, *rest: Any) -> Any:
            return np.all([x.mean(-1) > other.mean(-1) for other in rest], axis=0).sum(-1)

        share = float((draw(wins, mine, *others, games=False) > len(mine) / 2).mean())
        numbers = (
            f"best in {wins(mine, *others)} of {len(mine)} games; in most in {share:.0%} of draws"
        )
        return Verdict(by_share(share), numbers)

    def best_of(self, claim: Claim) -> Verdict:
        samples = [self.sample(p, claim.score or self.rules.score) for p in claim.among]
        lacking = set(claim.games) - set.intersection(*(set(s.index) for s in samples))
        if lacking:
            raise MissingError(f"{', '.join(sorted(lacking))} is not made")
        arrays = aligned(*(sample.loc[claim.games] for sample in samples))

        def differ(*every: Any) -> Any:
            best = np.argmax([x.mean(-1) for x in every], axis=0)
            return (best != best[..., :1]).any(-1)

        share = float(draw(differ, *arrays, games=False).mean())
        names = [claim.among[i].split("/")[1] for i in np.argmax([x.mean(1) for x in arrays], 0)]
        numbers = ", ".join(f"{g}: {n}" for g, n in zip(claim.games, names, strict=True))
        return Verdict(by_share(share), f"{numbers}; different in {share:.0%} of draws")

    def posterior(self, claim: Claim) -> Verdict:
        path = self.root / "results" / "analysis" / "posterior" / "spread.csv"
        if not path.exists():
            raise MissingError("posterior is not made")
        table = pd.read_csv(path, index_col=0)
        ratios = table.loc[f"{claim.heads} data"] / table.loc["exact posterior"]
        within = ratios.between(0.5, 2)
        numbers = "spread over the exact one's: " + ", ".join(f"{r:.2f}" for r in ratios)
        if within.all():
            return Verdict(REPRODUCED, numbers)
        return Verdict(UNDECIDED if within.any() else CONTRADICTED, numbers)

    def learns(self, claim: Claim) -> Verdict:
        runs = self.runs(claim.variant)
        game = runs[0].config.game
        path = self.root / "results" / "reference" / "random" / f"{runs[0].config.suite}.csv"
        if not path.exists() or game not in (found := pd.read_csv(path, index_col="game")).index:
            raise MissingError(f"random play of {game} is not measured")
        score = last_quarter(load_logs(runs), frames_of(runs))["score"].mean()
        gain = score - found.loc[game, "mean"]
        numbers = f"{score:.1f}, random play {found.loc[game, 'mean']:.1f}"
        if gain > claim.above:
            return Verdict(REPRODUCED, numbers)
        return Verdict(CONTRADICTED if gain < claim.above / 10 else UNDECIDED, numbers)

    def published(self, claim: Claim) -> Verdict:
        folder = self.root / "results" / "reference" / "paper"
        if claim.table == "category_counts":
            counts = category_counts(paper_table(folder, "max_mean_reward"), categories())
            found = times_best(counts.drop(columns="total"))
        else:
            found = times_best(paper_table(folder, claim.table))
        numbers = ", ".join(
            f"{LABELS[a]} {found[a]} ({n} printed)" for a, n in claim.counts.items()
        )
        return Verdict(TOO_LARGE, f"the paper's own rows have {numbers}; it takes {claim.needs}")

    def descriptive(self, claim: Claim) -> Verdict:
        runs = self.runs(claim.shown)
        ours = last_quarter(load_logs(runs), frames_of(runs)).groupby("game")["score"].mean()
        folder = self.root / "results" / "reference" / "published"
        theirs = pd.read_csv(folder / "minatar_dqn.csv", index_col="game")["score"]
        pairs = (f"{game} {ours[game]:.1f} ({theirs[game]:g} published)" for game in ours.index)
        return Verdict(NONE, ", ".join(pairs))

    def verdicts(self) -> pd.DataFrame:
        """A row for each claim; p of the primary ones is Holm's."""
        claims = self.rules.claims
        primary = {name: claim for name, claim in claims.items() if claim.primary}
        p: dict[str, float] = {}
        with suppress(MissingError):  # each of them says below what is missing
            p = holm({name: permutation_test(*self.pair(c)) for name, c in primary.items()})
        rows = []
        for name, claim in claims.items():
            judge: Callable[[Claim], Verdict] = getattr(self, claim.kind)
            try:
                if claim.primary and not p:
                    self.pair(claim)
                    raise MissingError("the other primary contrasts are not made")
                found = self.contrast(claim, p[name]) if claim.primary else judge(claim)
            except MissingError as error:
                found = Verdict(NOT_YET, f"{error}.")
            rows.append({
                "claim": claim.claim,
                "question": "" if claim.question is None else str(claim.question),
                "verdict": found.verdict + (" (primary)" if claim.primary else ""),
                "numbers": found.numbers,
                "in the paper": claim.paper,
                "from": ", ".join(claim.evidence(self.root / "results")),
            })  # fmt: skip
        return pd.DataFrame(rows).set_index("claim")
