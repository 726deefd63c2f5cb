"""Environments on the real emulator and the real MinAtar."""

import ale_py
import cv2
import gymnasium
import numpy as np
import pytest
from bsuite.environments.deep_sea import DeepSea
from minatar import Environment

from qe import envs
from qe.config import configure
from qe.games import MINATAR, atari_games

gymnasium.register_envs(ale_py)


def make(generator: int = 0, **values) -> envs.Env:
    return envs.make(configure(**values), np.random.default_rng(generator))


def raw_atari(game: str, **kwargs) -> gymnasium.Env:
    return gymnasium.make(
        atari_games()[game].env_id,
        frameskip=1,
        repeat_action_probability=0.0,
        disable_env_checker=True,
        max_episode_steps=-1,
        **kwargs,
    )


class Gym2017:
    """The preprocessing of 2017, layer by layer, written from its description alone.

    From the inside out: lives end episodes; 1-30 no-ops; maximum of the last two of four frames;
    FIRE and the action after it; luminance, 84x110, rows 18-102; the sign is taken elsewhere.
    """

    def __init__(self, game: str, seed: int, cap: int = 400_000) -> None:
        self.raw = raw_atari(game, obs_type="rgb")
        self.ale = self.raw.unwrapped.ale
        self.rng = np.random.default_rng(seed)
        self.raw.reset(seed=int(self.rng.integers(2**31)))
        self.fire = "FIRE" in self.raw.unwrapped.get_action_meanings()
        self.cap = cap
        self.over, self.lives = True, 0
        self.score, self.length, self.games = 0.0, 0, []
        self.last_two: list[np.ndarray] = []

    # Lives
    def life_step(self, action):
        screen, reward, over, _, _ = self.raw.step(action)
        self.score += reward
        self.length += 1
        self.over = over or self.length >= self.cap
        if self.over:
            self.games.append((self.score, self.length))
            self.score, self.length = 0.0, 0
        lives = self.ale.lives()
        lost = lives < self.lives and lives > 0
        self.lives = lives
        return screen, reward, self.over or lost, over or lost

    def life_reset(self):
        if self.over:
            screen, _ = self.raw.reset()
            self.over = False
            self.lives = self.ale.lives()
        else:
            screen, _, _, _ = self.life_step(0)
        return screen

    # No-ops
    def noop_reset(self):
        screen = self.life_reset()
        for _ in range(self.rng.integers(1, 31)):
            if not self.over:
                screen, _, _, _ = self.life_step(0)
        return screen

    # Maximum and skip
    def skip_step(self, action):
        total = 0.0
        for _ in range(4):
            screen, reward, done, terminal = self.life_step(action)
            self.last_two = [*self.last_two, screen][-2:]
            total += reward
            if done:
                break
        return np.max(self.last_two, axis=0), total, done, terminal

    def skip_reset(self):
        screen = self.noop_reset()
        self.last_two = [screen]
        return screen

    # FIRE
    def reset(self):
        while True:
            screen = self.skip_reset()
            if self.fire and not self.over:
                screen, _, _, _ = self.skip_step(1)
                if not self.over:
                    screen, _, _, _ = self.skip_step(2)
            if not self.over:
                return self.picture(screen)

    def step(self, action):
        screen, reward, done, terminal = self.skip_step(action)
        return self.picture(screen), reward, done, terminal

    @staticmethod
    def picture(screen):
        grey = screen.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        return cv2.resize(grey, (84, 110), interpolation=cv2.INTER_LINEAR)[18:102]


@pytest.mark.parametrize(
    ("game", "steps", "cap"),
    [
        ("Breakout", 900, None),
        ("Pong", 400, None),
        ("Qbert", 900, None),
        ("SpaceInvaders", 900, None),
        ("Asterix", 600, None),
        ("Pong", 300, 333),  # cut off in mid-game, in mid-skip
    ],
)
def test_gym2017_equals_an_independent_transcription(game, steps, cap):
    ours = make(3, game=game, max_frames=cap)
    theirs = Gym2017(game, seed=3, cap=cap or 400_000)
    rng = np.random.default_rng(1)
    frame, expected = ours.reset(), theirs.reset()
    lives_lost = games = 0
    for _ in range(steps):
        # A float sum of products may be rounded otherwise: at most one grey level.
        assert np.abs(frame[0].astype(float) - np.floor(expected)).max() <= 1
        assert (frame[0] == expected.astype(np.uint8)).mean() > 0.99
        action = int(rng.integers(ours.n_actions))
        new = ours.step(action)
        expected, reward, done, terminal = theirs.step(action)
        frame = new.frame
        assert new.reward == reward
        assert (new.terminal, new.terminal or new.truncated) == (terminal, done)
        if done:
            lives_lost += not theirs.over
            frame, expected = ours.reset(), theirs.reset()
        assert [game[:2] for game in ours.finished] == theirs.games
        # Not when the next game begins, some no-ops later.
        ends = np.cumsum([game.length for game in ours.finished])
        assert [game.end for game in ours.finished] == ends.tolist()
        games = len(theirs.games)
    if cap:
        assert games >= 3 and all(length == cap for _, length in theirs.games)
    elif game not in ("Pong", "Asterix"):
        assert lives_lost >= 2 and games >= 1


@pytest.mark.parametrize("game", ["Breakout", "Pong", "MsPacman"])
def test_modern_equals_gymnasiums_wrappers(game):
    ours = make(5, game=game, preset="modern")
    rng = np.random.default_rng(5)
    raw = raw_atari(game)
    theirs = gymnasium.wrappers.AtariPreprocessing(raw, noop_max=0, frame_skip=4, screen_size=84)
    theirs.reset(seed=int(rng.integers(2**31)))
    for _ in range(rng.integers(1, 31)):
        raw.step(0)
    frame = ours.reset()
    if ours.needs_fire:
        for action in (1, 2):
            expected, *_ = theirs.step(action)
        assert np.array_equal(frame[0], expected)
    choices = np.random.default_rng(1)
    lives = raw.unwrapped.ale.lives()
    for compared in range(1, 300):  # noqa: B007
        action = int(choices.integers(ours.n_actions))
        new = ours.step(action)
        if new.terminal:  # the frame is not learned from, and Gymnasium's goes on to the fourth
            break
        expected, reward, *_ = theirs.step(action)
        assert np.array_equal(new.frame[0], expected)
        assert new.reward == reward
    assert compared > 20
    assert lives == 0 or raw.unwrapped.ale.lives() == lives


def test_no_ops_before_every_life_or_before_every_game():
    def frames_at_life_starts(preset: str) -> list[int]:
        env = make(0, game="Breakout", preset=preset)
        env.reset()
        starts = []
        while len(starts) < 8:
            if env.step(0).terminal and not env.finished:
                before = env.frames
                env.reset()
                starts.append(env.frames - before)
            elif env.finished:
                env.finished.clear()
                env.reset()
        return starts

    assert set(frames_at_life_starts("modern")) == {9}  # one to get out, FIRE and its successor
    many = frames_at_life_starts("gym2017")
    assert len(set(many)) > 3 and min(many) >= 10 and max(many) <= 39


def test_caps():
    assert make(game="Pong").max_frames == 400_000
    assert make(game="SpaceInvaders").max_frames == 300_000
    assert make(game="SpaceInvaders", preset="modern").max_frames == 108_000
    env = make(game="Pong", max_frames=90)
    env.reset()
    while not (new := env.step(0)).truncated:
        assert not new.terminal
    assert [game.length for game in env.finished] == [90]


@pytest.mark.parametrize("preset", envs.PRESETS)
@pytest.mark.parametrize("game", sorted(atari_games()))
def test_all_49_games_start_and_step(game, preset):
    env = make(game=game, preset=preset)
    rng = np.random.default_rng(0)
    frame = env.reset()
    for _ in range(30):
        assert frame.shape == (1, 84, 84) and frame.dtype == np.uint8
        new = env.step(int(rng.integers(env.n_actions)))
        frame = env.reset() if new.terminal or new.truncated else new.frame
    assert env.frames >= 100
    assert frame.max() > 0


@pytest.mark.parametrize("game", MINATAR)
def test_minatar_is_minatar(game):
    ours = make(7, suite="minatar", game=game)
    name = {"SpaceInvaders": "space_invaders"}.get(game, game.lower())
    theirs = Environment(name, sticky_action_prob=0.1)
    theirs.seed(int(np.random.default_rng(7).integers(2**32)))
    theirs.reset()
    rng = np.random.default_rng(0)
    frame, score = ours.reset(), 0.0
    for _ in range(3000):
        assert np.array_equal(frame, np.moveaxis(theirs.state(), 2, 0))
        action = int(rng.integers(ours.n_actions))
        new = ours.step(action)
        reward, over = theirs.act(theirs.minimal_action_set()[action])
        score += reward
        assert (new.reward, new.terminal, new.truncated) == (reward, over, False)
        frame = new.frame
        if over:
            assert ours.finished.pop().return_ == score
            theirs.reset()
            frame, score = ours.reset(), 0.0
    assert ours.frames == 3000


@pytest.mark.parametrize("n", [2, 5, 10, 17])
@pytest.mark.parametrize("seed", [0, 3])
def test_deepsea_is_bsuites(n, seed):
    ours = make(99, suite="deepsea", game=f"N{n}", seed=seed)
    theirs = DeepSea(n, deterministic=True, randomize_actions=True, mapping_seed=seed)
    rng = np.random.default_rng(1)
    for game in range(12):
        frame, expected = ours.reset(), theirs.reset()
        total = 0.0
        for t in range(n):
            assert np.array_equal(frame.reshape(n, n), expected.observation)
            right = int(theirs._action_mapping[t, theirs._column])
            action = right if game % 3 == 0 else int(rng.integers(2))  # to the treasure, or not
            new, expected = ours.step(action), theirs.step(action)
            frame, total = new.frame, total + expected.reward
            assert new.reward == pytest.approx(expected.reward, abs=1e-12)
            assert (new.terminal, new.truncated) == (expected.last(), False)
        assert new.terminal and not frame.any()
        returned, length, _ = ours.finished.pop()
        assert (returned, length) == (pytest.approx(total), n)
        if game % 3 == 0:
            assert returned == pytest.approx(0.99)  # the treasure, less N steps right
    assert ours.frames == 12 * n


def test_deepseas_map_depends_on_the_runs_seed_and_size_alone():
    def right(n: int, seed: int, generator: int) -> list:
        config = configure(suite="deepsea", game=f"N{n}", seed=seed)
        return envs.make(config, np.random.default_rng(generator)).right.tolist()

    assert right(8, 1, 0) == right(8, 1, 5)  # training, evaluation, explorer and video
    assert right(8, 1, 0) != right(8, 2, 0)
    assert 0.3 < np.mean(right(30, 0, 0)) < 0.7


@pytest.mark.parametrize("values", [{"game": "Breakout"}, {"suite": "minatar", "game": "Seaquest"}])
def test_same_seed_same_game(values):
    def play(seed: int) -> list[tuple]:
        env = make(seed, sticky=0.25, **values)
        rng = np.random.default_rng(0)
        env.reset()
        seen = []
        for _ in range(300):
            new = env.step(int(rng.integers(env.n_actions)))
            seen.append((new.frame.tobytes(), new.reward, new.terminal))
            if new.terminal or new.truncated:
                env.reset()
        return seen

    assert play(1) == play(1)
    assert play(1) != play(2)
