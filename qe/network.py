"""The Q-ensemble: one shared trunk, K heads held as stacked tensors."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qe.config import Config


def nature_trunk(in_channels: int, channels: Sequence[int]) -> nn.Sequential:
    """The convolutions of Mnih et al. (2015), valid padding; 3 136 features for 84x84 input."""
    a, b, c = channels
    return nn.Sequential(
        nn.Conv2d(in_channels, a, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(a, b, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(b, c, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


def minatar_trunk(in_channels: int, channels: Sequence[int]) -> nn.Sequential:
    """The convolution of Young and Tian (2019) for 10x10 input."""
    (a,) = channels
    return nn.Sequential(nn.Conv2d(in_channels, a, kernel_size=3), nn.ReLU(), nn.Flatten())


def mlp_trunk(in_features: int, channels: Sequence[int]) -> nn.Sequential:
    """One fully connected layer, for the chain."""
    (a,) = channels
    return nn.Sequential(nn.Flatten(), nn.Linear(in_features, a), nn.ReLU())


TRUNKS = {"atari": nature_trunk, "minatar": minatar_trunk, "chain": mlp_trunk}


class StackedLinear(nn.Module):
    """K independent linear layers in one tensor: weight `[K, out, in]`, bias `[K, out]`."""

    def __init__(self, K: int, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(K, out_features, in_features))
        self.bias = nn.Parameter(torch.empty(K, out_features))
        bound = 1 / math.sqrt(in_features)  # what each nn.Linear would draw from
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)


class QEnsemble(nn.Module):
    """K Q-functions over one trunk (Osband et al., 2016). Double DQN is K = 1.

    `forward` takes frames `[B, history, *frame_shape]` and returns Q `[B, K, A]`. The gradient
    that the heads send into the trunk is divided by K, here and nowhere else.
    """

    def __init__(
        self,
        *,
        suite: str,
        channels: Sequence[int],
        frame_shape: Sequence[int],
        history: int,
        hidden: int,
        K: int,
        n_actions: int,
    ) -> None:
        super().__init__()
        self.K = K
        self.scale = 1 / 255 if suite == "atari" else 1.0  # the others' frames are 0 and 1
        self.trunk = TRUNKS[suite](history * frame_shape[0], channels)
        with torch.no_grad():
            features = self.trunk(torch.zeros(1, history * frame_shape[0], *frame_shape[1:]))
        self.hidden = StackedLinear(K, features.shape[1], hidden)
        self.out = StackedLinear(K, hidden, n_actions)

    @classmethod
    def of(cls, config: Config, frame_shape: tuple[int, ...], n_actions: int) -> "QEnsemble":
        """The network that `config` describes."""
        return cls(
            suite=config.suite,
            channels=config.channels,
            frame_shape=frame_shape,
            history=config.history,
            hidden=config.hidden,
            K=config.K,
            n_actions=n_actions,
        )

    def to_float(self, frames: Tensor) -> Tensor:
        """uint8 frames as the numbers that the network reads."""
        return frames.float().mul_(self.scale)

    def forward(self, frames: Tensor) -> Tensor:
        x = frames if frames.is_floating_point() else self.to_float(frames)
        x = self.trunk(x.flatten(1, 2))  # [B, F]
        if x.requires_grad:
            x.register_hook(lambda grad: grad / self.K)
        # All heads read the same features, so the hidden layer is one product of width K * H.
        h = F.linear(x, self.hidden.weight.flatten(0, 1), self.hidden.bias.flatten())  # [B, K*H]
        h = h.relu().unflatten(1, (self.K, -1)).transpose(0, 1)  # [K, B, H]
        q = torch.baddbmm(self.out.bias.unsqueeze(1), h, self.out.weight.transpose(1, 2))
        return q.transpose(0, 1)  # [B, K, A]
