"""The Q-ensemble: one shared trunk, K heads held as stacked tensors."""

import math
from collections.abc import Sequence
from typing import Any

import torch
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


ONEDNN = (
    torch.ops.mkldnn._linear_pointwise.default if torch.backends.mkldnn.is_available() else None
)


def product(x: Tensor, y: Tensor) -> Tensor:
    """x y^T. For a batch times wide heads oneDNN's is a tenth faster than MKL's, torch's usual."""
    if ONEDNN is not None and x.device.type == "cpu":
        return ONEDNN(x, y, None, "none", [], "")
    return x @ y.t()


def all_heads(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What K linear layers make of the same `x` `[B, F]`: `[B, K * H]`, without a gradient."""
    return product(x, weight.flatten(0, 1)).add_(bias.flatten())


class HeadsLinear(torch.autograd.Function):
    """What all heads make of features `x` `[B, F]`, and of others `[C, F]` that want no gradient.

    It is one product, since reading the weights takes about as long as multiplying with them.
    The gradient that K heads send into the trunk is divided by K, here and nowhere else.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, others: Tensor, weight: Tensor, bias: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, weight)
        h = all_heads(torch.cat([x, others]), weight, bias)
        wanted, free = h[: len(x)], h[len(x) :]  # [B, K * H], [C, K * H]
        ctx.mark_non_differentiable(free)
        return wanted, free

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors  # [B, F], [K, H, F]
        to_x = product(grad, weight.flatten(0, 1).t()).div_(len(weight))
        to_weight = product(grad.t(), x.t()).view_as(weight)
        return to_x, None, to_weight, grad.sum(0).view(weight.shape[:2])


class QEnsemble(nn.Module):
    """K Q-functions over one trunk (Osband et al., 2016). Double DQN is K = 1.

    `forward` takes frames `[B, history, *frame_shape]` and returns Q `[B, K, A]`.
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
        self.channels_last = suite == "atari"
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

    def features(self, frames: Tensor) -> Tensor:
        """What the trunk sees in frames, uint8 or from `to_float`: `[B, F]`."""
        x = frames if frames.is_floating_point() else self.to_float(frames)
        x = x.flatten(1, 2)
        if self.channels_last and torch.is_grad_enabled():
            # The first convolution's gradient takes a third of the time in this order.
            x = x.contiguous(memory_format=torch.channels_last)
        return self.trunk(x)

    def forward(self, frames: Tensor) -> Tensor:
        x = self.features(frames)
        if torch.is_grad_enabled():
            h, _ = HeadsLinear.apply(x, x[:0], self.hidden.weight, self.hidden.bias)
        else:
            h = all_heads(x, self.hidden.weight, self.hidden.bias)
        return self._out(h)

    def of_both(self, frames: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        """Q of `frames`, and without a gradient of `others`: faster than one after the other."""
        x = self.features(frames)  # [B, F]
        with torch.no_grad():
            z = self.features(others)  # [C, F]
        h, h_others = HeadsLinear.apply(x, z, self.hidden.weight, self.hidden.bias)
        with torch.no_grad():
            q_others = self._out(h_others)
        return self._out(h), q_others

    def _out(self, h: Tensor) -> Tensor:
        h = h.relu().unflatten(1, (self.K, -1)).transpose(0, 1)  # [K, B, H]
        q = torch.baddbmm(self.out.bias.unsqueeze(1), h, self.out.weight.transpose(1, 2))
        return q.transpose(0, 1)  # [B, K, A]
