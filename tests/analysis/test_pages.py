"""The pages that tell of results say what the built files say."""

import re

from qe import RESULTS, ROOT
from qe.analysis.claims import FILE, read_claims

ANALYSIS = RESULTS / "analysis"


def built() -> str:
    """All tables that are in the repository."""
    return "\n".join(path.read_text() for path in sorted(ANALYSIS.rglob("*.md")))


def test_every_number_of_the_story_is_in_a_table():
    page = (ROOT / "docs" / "results.md").read_text()
    numbers = set(re.findall(r"(?<![\w.])\d+\.\d+", page)) - {"0.1"}  # the paper's lambda
    tables = built()
    assert len(numbers) > 10
    assert {n for n in numbers if not re.search(rf"(?<![\d.]){re.escape(n)}", tables)} == set()


def test_the_readme_has_the_verdicts_of_the_primary_claims():
    rules = read_claims(ROOT / FILE)
    verdicts = (ANALYSIS / "claims" / "verdicts.md").read_text()
    readme = (ROOT / "README.md").read_text()
    for claim in rules.claims.values():
        (row,) = [line for line in verdicts.splitlines() if line.startswith(f"| {claim.claim} |")]
        if claim.primary:
            verdict = row.split(" | ")[2].removesuffix(" (primary)")
            assert f"| {claim.claim} | {verdict} |" in readme
    assert len(readme.split()) <= 800
