"""Double Q-learning for K heads at once."""

import math
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.linalg import vector_norm

from qe.config import Config
from qe.network import QEnsemble
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
) -> Tensor:
    """Each head's mean Huber loss over the batch, `[K]`; training minimises their sum.

    `q` is `[B, K, A]`, `target` `[B, K]`. `mask` `[B, K]` takes transitions away from heads, and
    is applied before the mean, which is always over all B.
    """
    chosen = q.gather(-1, action[:, None, None].expand(-1, q.shape[1], 1)).squeeze(-1)  # [B, K]
    loss = F.huber_loss(chosen, target, reduction="none", delta=delta)
    if mask is not None:
        loss = loss * mask
    return loss.mean(0)


@torch.no_grad()
def clip_gradients(
    shared: Iterable[nn.Parameter], stacked: Iterable[nn.Parameter], norm: float
) -> None:
    """Shorten each variable's gradient to at most `norm`; in stacked tensors, each head's own."""
    for p in shared:
        if p.grad is not None:
            _shorten(p.grad, vector_norm(p.grad), norm)
    for p in stacked:
        if p.grad is not None:
            grad = p.grad.flatten(1)  # [K, n]
            _shorten(grad, vector_norm(grad, dim=1, keepdim=True), norm)


def _shorten(grad: Tensor, norms: Tensor, norm: float) -> None:
    if (norms > norm).any():  # seldom: else, multiplying by 1 would be a pass over all weights
        grad.mul_(norm / norms.clamp_min(norm))


def find_device(name: str) -> torch.device:
    """The device called `name`; `auto` takes the first of CUDA, MPS and CPU that there is."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


class NotFiniteError(ArithmeticError):
    """Learning has run away."""


class Learner:
    """An ensemble, its target network and its optimiser."""

    def __init__(
        self, config: Config, frame_shape: tuple[int, ...], n_actions: int, seed: int
    ) -> None:
        self.config = config
        self.device = find_device(config.device)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.online = QEnsemble.of(config, frame_shape, n_actions).to(self.device)
            self.target = QEnsemble.of(config, frame_shape, n_actions).to(self.device)
        self.target.requires_grad_(False)
        self.shared = list(self.online.trunk.parameters())
        self.stacked = [*self.online.hidden.parameters(), *self.online.out.parameters()]
        self.optimizer = torch.optim.Adam(
            self.online.parameters(),
            lr=0.0,  # set before every update
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            fused=True,
        )
        self.updates = 0
        self.copy_to_target()

    def copy_to_target(self) -> None:
        self.target.load_state_dict(self.online.state_dict())

    @torch.inference_mode()
    def q_values(self, frames: Tensor) -> Tensor:
        """Q of the online network on the CPU, for frames `[B, history, *frame_shape]`."""
        return self.online(frames.to(self.device)).cpu()

    def update(self, batch: Batch, learning_rate: float) -> float:
        """One gradient step; returns the mean of the heads' losses."""
        c = self.config
        to = self.device
        window = self.online.to_float(torch.from_numpy(batch.window).to(to))
        action = torch.from_numpy(batch.action).to(to)
        reward = torch.from_numpy(batch.reward).to(to)
        terminal = torch.from_numpy(batch.terminal).to(to)
        mask = None if batch.mask is None else torch.from_numpy(batch.mask).to(to)
        obs, next_obs = window[:, :-1], window[:, 1:]

        q, q_next = self.online.of_both(obs, next_obs)  # [B, K, A] each
        with torch.no_grad():
            y = double_q_targets(q_next, self.target(next_obs), reward, terminal, c.discount)
        losses = ensemble_loss(q, action, y, mask, c.huber_delta)  # [K]

        self.optimizer.zero_grad()
        losses.sum().backward()
        clip_gradients(self.shared, self.stacked, c.clip_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
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

    def get_state(self) -> dict[str, Any]:
        adam = {
            str(i): dict(self.optimizer.state[p]) for i, p in enumerate(self.online.parameters())
        }
        return {
            "online": self.online.state_dict(),
            "target": self.target.state_dict(),
            "adam": adam,
            "updates": self.updates,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["target"])
        for i, p in enumerate(self.online.parameters()):
            self.optimizer.state[p] = {
                name: value.to(self.device) for name, value in state["adam"][str(i)].items()
            }
        self.updates = state["updates"]
