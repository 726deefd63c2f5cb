"""The search for the chain's far end."""

import subprocess
import sys
import time

import psutil
import pytest

from qe import chain
from qe.config import ALGORITHMS, ConfigError


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_short_chains_end_is_found(algorithm):
    games, found = chain.search(chain.config_of(algorithm, n=3, seed=0, games=50))
    assert found and 1 <= games < 20


def test_a_long_chains_end_is_not_found_by_chance():
    config = chain.config_of("double_dqn", n=40, seed=0, games=30)
    assert chain.search(config) == (30, False)


def test_a_table_is_gone_on_with_and_stale_rows_are_made_again(tmp_path):
    out = tmp_path / "ucb.csv"
    asked = {"sizes": [3, 4], "seeds": 2, "games": 20, "out": out, "workers": 1}
    chain.explore("ucb", **asked)
    whole = out.read_bytes()
    rows = chain.read(out)
    assert [(row.n, row.seed) for row in rows] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    kept = rows[0]._replace(games=19)  # to be recognised by
    chain.write(out, [kept, rows[1]._replace(made_by="other code"), rows[3]])
    chain.explore("ucb", **asked)
    assert chain.read(out) == [kept, *rows[1:]]
    out.unlink()
    chain.explore("ucb", **asked)
    assert out.read_bytes() == whole


@pytest.mark.parametrize(
    ("section", "sentence"),
    [
        ({"sizes": [5], "seeds": 1}, "chain must have sizes, seeds, games and nothing else"),
        ({"sizes": [5], "seeds": 1, "games": 9, "size": 5}, "not sizes, seeds, games, size."),
        ({"sizes": 5, "seeds": 1, "games": 9}, "chain's sizes must be a list of lengths, not 5."),
        ({"sizes": [5], "seeds": 0, "games": 9}, "chain's seeds must be a whole number from 1"),
        ({"sizes": [5], "seeds": 1, "games": "9"}, "chain's games must be a whole number from 1"),
    ],
)
def test_what_is_no_search_is_refused(section, sentence):
    with pytest.raises(ConfigError, match=sentence):
        chain.check(section)


@pytest.mark.parametrize("wait", [0, 3])  # the workers are being started, or have begun
def test_a_killed_search_leaves_no_process(tmp_path, wait):
    code = (
        "from pathlib import Path; from qe.chain import explore\n"
        "if __name__ == '__main__':\n"
        "    explore('double_dqn', [40], 2, 100_000, Path('table.csv'), workers=2)"
    )
    (tmp_path / "search.py").write_text(code)
    process = subprocess.Popen([sys.executable, "search.py"], cwd=tmp_path)
    parent = psutil.Process(process.pid)

    def workers() -> list[psutil.Process]:
        return [p for p in parent.children() if "spawn_main" in " ".join(p.cmdline())]

    while len(found := workers()) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(wait)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(found, timeout=60)
    for orphan in alive:
        orphan.kill()
    assert not alive
