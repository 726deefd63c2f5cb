"""Double Q-learning for K heads at once."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torch.linalg import vector_norm

from qe.config import Config, ConfigError
from qe.network import QEnsemble, Weights
from qe.replay import Batch


def double_q_targets(
    q_online: Tensor, q_target: Tensor, reward: Tensor, terminal: Tensor, discount: float
) -> Tensor:
    """y_k = r + discount * Q_k^-(s', argmax_a Q_k(s', a)), each head with its own argmax.

    `q_online` and `q_target` are Q-values of s', `[B, K, A]`; the targets are `[B, K]`.
    """
    best = q_online.argmax(-1, keepdim=True)  # [B, K, 1]
    value = q_target.gather(-1, best).squeeze(-1)  # [B, K]
    return reward[:, None] + discount * value * ~terminal[:, None]


def ensemble_loss(
    q: Tensor, action: Tensor, target: Tensor, mask: Tensor | None = None, delta: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Each head's mean Huber loss over the batch, `[K]`, and the derivative of their sum by `q`.

    `q` is `[B, K, A]`, `target` `[B, K]`. `mask` `[B, K]` takes transitions away from heads, and
    is applied before the mean, which is always over all B.
    """
    taken = action[:, None, None].expand(-1, q.shape[1], 1)  # [B, K, 1]
    error = q.gather(-1, taken).squeeze(-1) - target  # [B, K]
    loss = F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)
    slope = error.clamp(-delta, delta)
    if mask is not None:
        loss, slope = loss * mask, slope * mask
    dq = torch.zeros_like(q).scatter_(-1, taken, slope.unsqueeze(-1).div_(len(q)))
    return loss.mean(0), dq


def clip_gradients(grads: Weights, norm: float) -> None:
    """Shorten each variable's gradient to at most `norm`; in stacked tensors, each head's own."""
    rows = [
        g.flatten()[None] if name.startswith("trunk") else g.flatten(1) for name, g in grads.items()
    ]
    norms = [vector_norm(row, dim=1, keepdim=True) for row in rows]
    if torch.cat(norms).max() > norm:  # seldom: multiplying by 1 would be a pass over all weights
        for row, length in zip(rows, norms, strict=True):
            row.mul_(norm / length.clamp_min(norm))


def find_device(config: Config) -> torch.device:
    """Where to compute: what this machine does not have is refused with a sentence.

    `auto` is CUDA where it is there, and the CPU elsewhere: on a Mac the same seed then gives the
    same log, which Metal (`mps`) does not promise.
    """
    there = [*(f"cuda:{i}" for i in range(torch.cuda.device_count())), "cpu"]
    name = there[0] if config.device == "auto" else config.device
    there += ["mps"] * torch.backends.mps.is_available()
    if name not in (*there, *(["cuda"] if torch.cuda.is_available() else [])):
        raise ConfigError(f"device must be one that is here, {', '.join(there)}, not {name!r}.")
    if config.precision == "bfloat16" and not _bfloat16(name):
        raise ConfigError("precision must be float32: this machine does not compute in bfloat16.")
    return torch.device(name)


def _bfloat16(device: str) -> bool:
    """Whether the device multiplies matrices of bfloat16."""
    if device.startswith("cuda"):
        return torch.cuda.is_bf16_supported(including_emulation=False)
    there = device == "cpu" and torch.backends.mkldnn.is_available()
    return there and torch.ops.mkldnn._is_mkldnn_bf16_supported()


class NotFiniteError(ArithmeticError):
    """Learning has run away."""


class Working:
    """The weights, or gradients, that products are made with.

    In float32 they are `flat` itself. In bfloat16 they are a copy of it, all but the heads' last
    layer, that `load` and `store` hold to the original.
    """

    def __init__(self, net: QEnsemble, flat: Tensor, precision: str) -> None:
        self.flat = flat
        self.full = net.views(flat)
        self.weights = dict(self.full)
        self.low: Tensor | None = None
        if precision == "bfloat16":
            self.low = flat[: net.below].bfloat16()
            self.weights |= net.views(self.low)

    def load(self) -> None:
        if self.low is not None:
            self.low.copy_(self.flat[: len(self.low)])

    def store(self) -> None:
        if self.low is not None:
            self.flat[: len(self.low)].copy_(self.low)


class Learner:
    """An ensemble, its target network and its optimiser."""

    def __init__(
        self, config: Config, frame_shape: tuple[int, ...], n_actions: int, seed: int
    ) -> None:
        self.config = config
        self.device = find_device(config)
        generator = torch.Generator().manual_seed(seed)
        self.net = QEnsemble(config, frame_shape, n_actions, generator).to(self.device)
        flat = self.net.flat
        flat.grad = torch.zeros_like(flat)
        self.online, self.target, self.grads = (
            Working(self.net, part, config.precision)
            for part in (flat, torch.empty_like(flat), flat.grad)
        )
        self.optimizer = torch.optim.Adam(
            [flat],
            lr=0.0,  # set before every update
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            fused=True,
        )
        self.updates = 0
        self.copy_to_target()

    def copy_to_target(self) -> None:
        self.target.flat.copy_(self.online.flat)
        self.target.load()

    @torch.inference_mode()
    def q_values(self, frames: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Q `[B, K, A]` of the online network, for frames `[B, history, *frame_shape]`."""
        return self.net(torch.from_numpy(frames).to(self.device)).cpu().numpy()

    @torch.inference_mode()  # which takes an eighth off a small update: the gradient is our own
    def update(self, batch: Batch, learning_rate: float) -> float:
        """One gradient step; returns the mean of the heads' losses."""
        c, net, to = self.config, self.net, self.device
        B = len(batch.action)
        window = torch.from_numpy(batch.window).to(to)
        action = torch.from_numpy(batch.action).to(to)
        reward = torch.from_numpy(batch.reward).to(to)
        terminal = torch.from_numpy(batch.terminal).to(to)
        mask = None if batch.mask is None else torch.from_numpy(batch.mask).to(to)

        # States and next states in one pass: reading the weights takes as long as multiplying.
        pictures = net.to_float(torch.cat([window[:, :-1], window[:, 1:]]))  # [2B, ...]
        self.online.load()
        x = pictures.to(self.online.weights["hidden.weight"].dtype)
        q, kept = net.forward(x, self.online.weights)  # [2B, K, A]
        q_target, _ = net.forward(x[B:], self.target.weights)  # [B, K, A]
        if net.prior is not None:
            prior = net.prior_values(pictures)  # [2B, K, A]
            q, q_target = q + prior, q_target + prior[B:]
        y = double_q_targets(q[B:], q_target, reward, terminal, c.discount)  # [B, K]
        losses, dq = ensemble_loss(q[:B], action, y, mask, c.huber_delta)  # [K], [B, K, A]

        net.backward(dq, kept.first(B), self.online.weights, self.grads.weights)
        self.grads.store()
        clip_gradients(self.grads.full, c.clip_norm)
        self.optimizer.param_groups[0]["lr"] = learning_rate
        # The moments of units that no longer fire fade to denormal numbers, 1e-38 and less, on
        # which processors are slow: as zeros they make a MinAtar step 1.6 times as fast.
        torch.set_flush_denormal(True)
        self.optimizer.step()
        torch.set_flush_denormal(False)

        loss = losses.mean().item()
        if not math.isfinite(loss):
            raise NotFiniteError(f"the loss is {loss} at update {self.updates + 1}")
        self.updates += 1
        if self.updates % c.target_every == 0:
            self.copy_to_target()
        return loss

    def check_finite(self) -> None:
        """A network that is not made of numbers must not replace one that is."""
        if not math.isfinite(self.net.flat.abs().max().item()):
            raise NotFiniteError(f"a weight is not a number after update {self.updates}")

    def get_state(self) -> dict[str, Any]:
        prior = {} if self.net.prior is None else {"prior": self.net.prior.flat}
        return {
            "online": self.online.flat,
            "target": self.target.flat,
            "adam": dict(self.optimizer.state[self.net.flat]),
            "updates": self.updates,
            **prior,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.online.flat.copy_(state["online"])
        self.target.flat.copy_(state["target"])
        self.target.load()
        if self.net.prior is not None:
            self.net.prior.flat.copy_(state["prior"])
        self.optimizer.state[self.net.flat] = {
            name: value.to(self.device) for name, value in state["adam"].items()
        }
        self.updates = state["updates"]
