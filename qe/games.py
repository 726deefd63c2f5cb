"""The games: names, categories and reference scores, in one table with its sources.

`games.csv` lists the 49 Atari games of the paper. Categories follow the taxonomy that the paper
cites (Bellemare et al. 2016, Table 1; Ostrovski et al. 2017, Table 1); random and human scores
are the usual constants of human normalisation (no-op starts).
"""

import csv
import difflib
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

MINATAR = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
DEEPSEA = (2, 100)  # the smallest and the largest


class AtariGame(NamedTuple):
    name: str  # as the paper prints it, "Space Invaders"
    env_id: str  # in Gymnasium
    category: str  # "" where the taxonomy has none
    random_score: float
    human_score: float

    @property
    def key(self) -> str:
        """The name in parameters and paths, "SpaceInvaders"."""
        return self.name.replace(" ", "")

    @property
    def rom(self) -> str:
        """The name of the ROM in ale-py, "space_invaders"."""
        camel = self.env_id.removeprefix("ALE/").removesuffix("-v5")
        return re.sub(r"(?<!^)(?=[A-Z])", "_", camel).lower()


@cache
def atari_games() -> dict[str, AtariGame]:
    """The 49 games by key."""
    with (Path(__file__).parent / "games.csv").open(newline="") as file:
        games = [
            AtariGame(r["game"], r["env_id"], r["category"], *map(float, list(r.values())[3:]))
            for r in csv.DictReader(file)
        ]
    return {game.key: game for game in games}


def categories() -> dict[str, str]:
    """The category of each of the 49 games, by the name that the paper prints."""
    return {game.name: game.category for game in atari_games().values()}


def deepsea_size(name: str) -> int:
    """N of `name`, "N10": a deep sea of N x N cells."""
    low, high = DEEPSEA
    match = re.fullmatch(r"[Nn](\d{1,9})", name)
    if match is None or not low <= int(match[1]) <= high:
        raise ValueError(f"game must be N{low} to N{high}, a sea of so many rows, not {name!r}")
    return int(match[1])


def all_games(suite: str) -> list[str]:
    """The keys of all games of `atari` or `minatar`; a deep sea can have any size."""
    return list(atari_games()) if suite == "atari" else list(MINATAR)


def find_game(suite: str, name: str) -> str:
    """The key of the game that `name` means, whatever its spaces and capitals."""
    if suite == "deepsea":
        return f"N{deepsea_size(name)}"
    keys = all_games(suite)
    plain = {key.lower(): key for key in keys}
    wanted = re.sub(r"[\s_-]", "", name).lower()
    if wanted in plain:
        return plain[wanted]
    near = [plain[n] for n in difflib.get_close_matches(wanted, plain, n=3, cutoff=0.5)]
    raise ValueError(
        f"game must be one of the {len(keys)} games of the {suite} suite, not {name!r}; "
        f"the nearest: {', '.join(near or keys[:5])}"
    )
