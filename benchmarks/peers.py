"""Stable-Baselines3's DQN with our settings. Installed apart, by `make bench`."""

import ale_py
import gymnasium
import numpy as np
import torch
from minatar.gym import register_envs
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecTransposeImage
from torch import Tensor, nn

from benchmarks.loop import trunk
from qe.config import Config


class MinAtarFeatures(BaseFeaturesExtractor):
    """MinAtar's convolution and a hidden layer: what our network has below its last layer."""

    def __init__(self, space: gymnasium.Space, config: Config) -> None:
        super().__init__(space, config.hidden)
        shape = space.shape
        assert shape is not None
        below = trunk(config, shape[0])
        features = below(torch.zeros(1, *shape)).shape[1]
        self.net = nn.Sequential(below, nn.Linear(features, config.hidden), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Planes(gymnasium.ObservationWrapper):
    """MinAtar's boolean planes, as the floats of a channels-first image."""

    def __init__(self, env: gymnasium.Env) -> None:
        super().__init__(env)
        h, w, c = env.observation_space.shape  # type: ignore[misc]
        self.observation_space = gymnasium.spaces.Box(0, 1, (c, h, w), np.float32)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return observation.transpose(2, 0, 1).astype(np.float32)


def sb3_model(config: Config) -> DQN:
    if config.suite == "atari":
        gymnasium.register_envs(ale_py)
        frames = make_atari_env("PongNoFrameskip-v4", n_envs=1, seed=0)
        env: VecEnv = VecTransposeImage(VecFrameStack(frames, config.history))
        policy, kwargs = "CnnPolicy", {"net_arch": []}  # Mnih et al.'s, 512 units
    else:
        register_envs()
        env = DummyVecEnv([lambda: Planes(gymnasium.make("MinAtar/Breakout-v1"))])
        policy = "MlpPolicy"
        kwargs = {
            "net_arch": [],
            "features_extractor_class": MinAtarFeatures,
            "features_extractor_kwargs": {"config": config},
        }
    return DQN(
        policy,
        env,
        learning_rate=1e-4,
        buffer_size=20_000,
        learning_starts=config.learning_starts,
        batch_size=config.batch_size,
        gamma=config.discount,
        train_freq=config.update_every,
        gradient_steps=1,
        target_update_interval=config.target_every * config.update_every,
        exploration_initial_eps=0.1,
        exploration_final_eps=0.1,
        policy_kwargs=kwargs,
        device="cpu",
        seed=0,
    )


def sb3_replay(size: int) -> ReplayBuffer:
    """Its buffer for stacks of four frames, as it is by default."""
    space = gymnasium.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    return ReplayBuffer(size, space, gymnasium.spaces.Discrete(6), device="cpu")
