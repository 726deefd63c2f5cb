"""Atari, MinAtar and DeepSea behind one small interface.

An environment counts every emulator frame, keeps the raw return of the game in progress, and
hands out finished games in `finished`. `reset` begins the next life of the game, or the next
game, whichever the last step calls for; a life's end is terminal for learning and does not
restart the game.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

import cv2
import numpy as np
from ale_py import ALEInterface, ALEState, LoggerMode
from ale_py.roms import get_rom_path
from numpy.typing import NDArray

from qe.config import Config
from qe.games import atari_games, deepsea_size

Frame = NDArray[np.uint8]
NOOP = 0
COUNTS = ("frames", "_return", "_length")  # of every game in progress


class Game(NamedTuple):
    """A finished full game."""

    return_: float  # raw, over all lives, no-ops and FIRE included
    length: int  # in frames
    end: int  # the frame in which it ended, counted over all games


class Step(NamedTuple):
    frame: Frame
    reward: float  # raw
    terminal: bool  # a life or the game ended: nothing to bootstrap from
    truncated: bool  # the game was cut off at its cap: it would have gone on


class Env(ABC):
    """What training needs of a game, and the frames and returns that every game counts alike."""

    frame_shape: tuple[int, ...]
    n_actions: int
    fields: tuple[str, ...] = ()  # what else the game in progress is

    def __init__(self, max_frames: int | None) -> None:
        self.max_frames = max_frames
        self.frames = 0  # so far, over all games
        self.finished: list[Game] = []  # emptied by whoever reads it
        self._return, self._length = 0.0, 0  # of the game in progress

    @abstractmethod
    def reset(self) -> Frame:
        """The first frame of the next life, or of the next game."""

    @abstractmethod
    def step(self, action: int) -> Step: ...

    def get_state(self) -> dict[str, Any]:
        """The game in progress, as numbers and arrays; the generator is its owner's to save."""
        return {name: getattr(self, name) for name in (*COUNTS, *self.fields)}

    def set_state(self, state: dict[str, Any]) -> None:
        vars(self).update({name: state[name] for name in (*COUNTS, *self.fields)}, finished=[])

    def _count(self, reward: float, over: bool) -> bool:
        """One emulator frame, the last of its game or not; whether it is cut off at its cap."""
        self.frames += 1
        self._return += reward
        self._length += 1
        cut = not over and self._length == self.max_frames
        if over or cut:
            self.finished.append(Game(self._return, self._length, self.frames))
            self._return, self._length = 0.0, 0
        return cut


class Preset(NamedTuple):
    """What differs between two generations of Atari preprocessing."""

    crop: bool  # resize to 84x110 and cut rows 18-102, or squash to 84x84
    noops_every_life: bool  # 1-30 no-ops before every life, or before every game
    max_frames: int


PRESETS = {
    "gym2017": Preset(crop=True, noops_every_life=True, max_frames=400_000),
    "modern": Preset(crop=False, noops_every_life=False, max_frames=108_000),
}
MAX_FRAMES_2017 = {"SpaceInvaders": 300_000}  # Gym gave it a frame skip of 3, and 100 000 steps
MAX_NOOPS = 30


class Atari(Env):
    """One of the 49 games on the Arcade Learning Environment."""

    frame_shape = (1, 84, 84)
    fields = ("_newest", "_lives", "_life_lost", "_over", "_last")

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        self.preset = PRESETS[config.preset]
        cap = self.preset.max_frames
        if config.preset == "gym2017":
            cap = MAX_FRAMES_2017.get(config.game, cap)
        super().__init__(config.max_frames or cap)
        self.action_repeat = config.action_repeat
        self.rng = rng
        ALEInterface.setLoggerMode(LoggerMode.Error)
        self.ale = ALEInterface()
        self.ale.setInt("random_seed", int(rng.integers(2**31)))
        # Sticky actions are made here: the emulator's state would not tell the last action.
        self.ale.setFloat("repeat_action_probability", 0.0)
        self.sticky, self._last = config.sticky, NOOP
        rom = get_rom_path(atari_games()[config.game].rom)
        assert rom is not None  # ale-py ships all 49
        self.ale.loadROM(rom)
        get = self.ale.getLegalActionSet if config.full_actions else self.ale.getMinimalActionSet
        self.actions = get()
        self.n_actions = len(self.actions)
        # Games that wait for FIRE have it second: NOOP, FIRE, ...
        self.needs_fire = self.actions[1].name == "FIRE"
        shape = (210, 160, 3) if self.preset.crop else (210, 160)
        self._screens = np.zeros((2, *shape), np.uint8)  # the last two frames
        self._newest = 0  # the one of them that is newer
        self._lives, self._life_lost = 0, False
        self._over = True  # the next reset begins a game

    def reset(self) -> Frame:
        while True:
            first = self._over
            if first:
                self.ale.reset_game()
                self._over, self._last = False, NOOP
                self._lives = self.ale.lives()
                self._grab()
            else:  # step out of the frame in which the life was lost
                self._frame(NOOP)
            if first or self.preset.noops_every_life:
                for _ in range(self.rng.integers(1, MAX_NOOPS + 1)):
                    if not self._over:
                        self._frame(NOOP)
            self._screens[1 - self._newest] = 0  # the life's first frame stands alone
            if self.needs_fire:
                for action in (1, 2):
                    self._repeat(action)
            if not self._over:
                return self._observe()

    def step(self, action: int) -> Step:
        reward = self._repeat(action)
        terminal = self._life_lost or self.ale.game_over(with_truncation=False)
        return Step(self._observe(), reward, terminal, self._over and not terminal)

    def _repeat(self, action: int) -> float:
        """The action for `action_repeat` frames, or until a life or the game ends."""
        reward = 0.0
        for _ in range(self.action_repeat):
            if self._over:
                break
            reward += self._frame(action)
            if self._life_lost:
                break
        return reward

    def _frame(self, action: int) -> float:
        if self.sticky and self.rng.random() < self.sticky:
            action = self._last
        self._last = action
        reward = float(self.ale.act(self.actions[action]))
        over = self.ale.game_over(with_truncation=False)
        self._over = self._count(reward, over) or over
        self._grab()
        lives = self.ale.lives()
        # Not at 0 lives: Q*bert stays there for some frames before its game is over.
        self._life_lost = 0 < lives < self._lives
        self._lives = lives
        return reward

    def _grab(self) -> None:
        self._newest = 1 - self._newest
        get = self.ale.getScreenRGB if self.preset.crop else self.ale.getScreenGrayscale
        get(self._screens[self._newest])

    def _observe(self) -> Frame:
        screen = self._screens.max(axis=0)
        if not self.preset.crop:
            return cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA)[None]
        rgb = screen.astype(np.float32)
        grey = rgb[..., 0] * 0.299 + rgb[..., 1] * 0.587 + rgb[..., 2] * 0.114
        tall = cv2.resize(grey, (84, 110), interpolation=cv2.INTER_LINEAR)
        return tall[18:102].astype(np.uint8)[None]

    def get_state(self) -> dict[str, Any]:
        emulator = np.frombuffer(self.ale.cloneState(include_rng=True).serialize(), np.uint8)
        return super().get_state() | {"screens": self._screens, "emulator": emulator.copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        self._screens[:] = state["screens"]
        self.ale.restoreState(ALEState(bytes(np.asarray(state["emulator"]))))


class MinAtar(Env):
    """One of the games of MinAtar (Young and Tian, 2019): one frame per action, no lives."""

    _CONSTANT = ("channels", "action_map", "random")  # of MinAtar's own game object

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        super().__init__(config.max_frames)
        name = "space_invaders" if config.game == "SpaceInvaders" else config.game.lower()
        self.env = import_module("minatar").Environment(name, sticky_action_prob=config.sticky)
        self.env.seed(int(rng.integers(2**32)))
        self.actions = list(range(6)) if config.full_actions else self.env.minimal_action_set()
        self.n_actions = len(self.actions)
        self.frame_shape = (self.env.n_channels, 10, 10)

    def reset(self) -> Frame:
        self.env.reset()
        return self._observe()

    def step(self, action: int) -> Step:
        reward, over = self.env.act(self.actions[action])
        return Step(self._observe(), float(reward), over, self._count(float(reward), over))

    def _observe(self) -> Frame:
        return self.env.state().transpose(2, 0, 1).astype(np.uint8)

    def get_state(self) -> dict[str, Any]:
        game = {k: v for k, v in vars(self.env.env).items() if k not in self._CONSTANT}
        random = self.env.random.get_state(legacy=False)
        random["state"]["key"] = random["state"]["key"].tolist()
        return super().get_state() | {"game": game, "random": random, "last": self.env.last_action}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        for name, value in state["game"].items():
            array = isinstance(getattr(self.env.env, name), np.ndarray)
            setattr(self.env.env, name, np.array(value) if array else value)
        random = state["random"]
        random["state"]["key"] = np.array(random["state"]["key"], np.uint32)
        self.env.random.set_state(random)
        self.env.last_action = state["last"]


class DeepSea(Env):
    """N x N cells (Osband et al., 2019; bsuite): a treasure that only one path leads to.

    Every game goes down a row a step, N steps in all, and left or right by what the action means
    in that cell: a map that is drawn from the run's seed and N alone, so that it is the same
    wherever the run's game is played. Each step right costs 0.01 / N; right in the last column
    finds the treasure, 1, which takes N steps right. A frame has one cell set, the agent's.
    """

    n_actions = 2
    fields = ("row", "column")

    def __init__(self, config: Config, rng: np.random.Generator) -> None:
        super().__init__(config.max_frames)
        self.n = deepsea_size(config.game)
        self.frame_shape = (self.n**2,)
        # The generator of bsuite, whose map for `mapping_seed` this is.
        mapping = np.random.RandomState(config.seed)
        self.right = mapping.binomial(1, 0.5, (self.n, self.n))  # the action that goes right
        self.row = self.column = 0

    def reset(self) -> Frame:
        self.row = self.column = 0
        return self._observe()

    def step(self, action: int) -> Step:
        right = action == self.right[self.row, self.column]
        found = right and self.column == self.n - 1
        reward = float(found) - (0.01 / self.n if right else 0.0)
        self.column = min(max(self.column + (1 if right else -1), 0), self.n - 1)
        self.row += 1
        over = self.row == self.n
        return Step(self._observe(), reward, over, self._count(reward, over))

    def _observe(self) -> Frame:
        here = self.row * self.n + self.column  # below the last row, no cell
        return (np.arange(self.n**2) == here).astype(np.uint8)


SUITES: dict[str, Callable[[Config, np.random.Generator], Env]] = {
    "atari": Atari,
    "minatar": MinAtar,
    "deepsea": DeepSea,
}


def make(config: Config, rng: np.random.Generator, max_frames: int | None = None) -> Env:
    """The environment of `config`, seeded from `rng`; its games are cut at `max_frames` too."""
    env = SUITES[config.suite](config, rng)
    env.max_frames = min(cap for cap in (env.max_frames, max_frames, sys.maxsize) if cap)
    return env
