"""What `qe.learner` is compared with: the same mathematics, written the straightforward way.

K head modules in a loop, plain Adam, `clip_grad_norm_` per variable, frames converted wherever they
are used, memory in 4 kB pages, denormal numbers as they come.
"""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qe import envs
from qe.config import Config
from qe.network import TRUNKS
from qe.replay import Batch, Replay


def trunk(config: Config, depth: int) -> nn.Sequential:
    """The suite's convolutions, as modules."""
    layers: list[nn.Module] = []
    for width, (kernel, stride) in zip(config.channels, TRUNKS[config.suite], strict=True):
        layers += [nn.Conv2d(depth, width, kernel, stride), nn.ReLU()]
        depth = width
    return nn.Sequential(*layers, nn.Flatten())


class LoopEnsemble(nn.Module):
    def __init__(self, config: Config, frame_shape: tuple[int, ...], n_actions: int) -> None:
        super().__init__()
        self.scale = 1 / 255 if config.suite == "atari" else 1.0
        channels = config.history * frame_shape[0]
        self.trunk = trunk(config, channels)
        features = self.trunk(torch.zeros(1, channels, *frame_shape[1:])).shape[1]
        self.heads = nn.ModuleList(
            nn.Sequential(
                nn.Linear(features, config.hidden),
                nn.ReLU(),
                nn.Linear(config.hidden, n_actions),
            )
            for _ in range(config.K)
        )

    def forward(self, frames: Tensor) -> Tensor:
        x = self.trunk(frames.flatten(1, 2).float() * self.scale)
        if x.requires_grad:
            x.register_hook(lambda grad: grad / len(self.heads))
        return torch.stack([head(x) for head in self.heads], dim=1)  # [B, K, A]


class LoopLearner:
    def __init__(self, config: Config, frame_shape: tuple[int, ...], n_actions: int) -> None:
        self.config = config
        self.online = LoopEnsemble(config, frame_shape, n_actions)
        self.target = copy.deepcopy(self.online)
        self.optimizer = torch.optim.Adam(
            self.online.parameters(),
            lr=1e-4,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
        )

    def q_values(self, frames: Tensor) -> Tensor:
        with torch.no_grad():
            return self.online(frames)

    def update(self, batch: Batch, learning_rate: float) -> float:
        action, reward = torch.as_tensor(batch.action), torch.as_tensor(batch.reward)
        with torch.no_grad():
            next_obs = torch.as_tensor(batch.next_obs)
            best = self.online(next_obs).argmax(-1, keepdim=True)
            value = self.target(next_obs).gather(-1, best).squeeze(-1)
            going_on = ~torch.as_tensor(batch.terminal)[:, None]
            y = reward[:, None] + self.config.discount * value * going_on
        q = self.online(torch.as_tensor(batch.obs))  # [B, K, A]
        index = action[:, None, None].expand(-1, q.shape[1], 1)
        loss = F.huber_loss(q.gather(-1, index).squeeze(-1), y, reduction="none").mean(0).sum()
        self.optimizer.zero_grad()
        loss.backward()
        for p in self.online.parameters():
            nn.utils.clip_grad_norm_([p], self.config.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.step()
        return loss.item()


class LoopAgent:
    """UCB with the learner above; one forward pass per action."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.rng = np.random.default_rng(config.seed)
        self.env = envs.make(config, self.rng)
        self.learner = LoopLearner(config, self.env.frame_shape, self.env.n_actions)
        self.replay = Replay(config.replay_size, self.env.frame_shape, config.history)
        self.obs = self.env.reset()
        self.steps = 0

    def step(self) -> None:
        c = self.config
        if self.steps < c.learning_starts or self.rng.random() < c.epsilon[0][1]:
            action = int(self.rng.integers(self.env.n_actions))
        else:
            q = self.learner.q_values(torch.as_tensor(self.obs)[None, None])[0]
            bound = q.mean(0) + c.lam * q.std(0, correction=0)
            action = int(bound.argmax())
        new = self.env.step(action)
        self.replay.add(self.obs, action, new.reward, new.terminal)
        over = new.terminal or new.truncated
        self.obs = self.env.reset() if over else new.frame
        self.env.finished.clear()
        self.steps += 1
        if self.steps > c.learning_starts and self.steps % c.update_every == 0:
            self.learner.update(self.replay.sample(c.batch_size, self.rng), 1e-3)
