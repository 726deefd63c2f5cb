"""The Q-ensemble: one shared trunk, K heads in stacked tensors, and its gradient written out.

All weights are one flat tensor, and each variable a view of it: Adam, the copy to the target and a
checkpoint are then one operation each. The gradient is thirty lines of matrix calculus instead of
an autograd graph, which for a network as small as MinAtar's costs as much as the arithmetic
(benchmarks/); the tests hold it to autograd's.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qe.config import Config

Weights = dict[str, Tensor]
# Kernel and stride of each convolution of a suite's trunk, none of them padded. Atari's are those
# of Mnih et al. (2015), with 3 136 features of an 84x84 picture; MinAtar's is that of Young and
# Tian (2019). A 1x1 convolution of a 1x1 picture is a fully connected layer.
TRUNKS = {"atari": ((8, 4), (4, 2), (3, 1)), "minatar": ((3, 1),), "deepsea": ((1, 1),)}


class Kept(NamedTuple):
    """What `backward` needs of a forward pass."""

    inputs: list[Tensor]  # of each convolution, [B, C, h, w]
    features: Tensor  # [B, F], after the trunk
    hidden: Tensor  # [B, K, H], after the heads' hidden layer

    def first(self, B: int) -> "Kept":
        """Of the first B pictures only."""
        return Kept([x[:B] for x in self.inputs], self.features[:B], self.hidden[:B])


class QEnsemble:
    """K Q-functions over one trunk (Osband et al., 2016). Double DQN is K = 1.

    Called with frames `[B, history, *frame_shape]`, it returns Q `[B, K, A]`. With a prior (Osband
    et al., 2018), the scaled values of a second, fixed ensemble are part of every Q.
    """

    def __init__(
        self,
        config: Config,
        frame_shape: Sequence[int],
        n_actions: int,
        generator: torch.Generator | None = None,
    ) -> None:
        c, K, layers = config, config.K, TRUNKS[config.suite]
        self.K = K
        self.strides = [stride for _, stride in layers]
        self.channels_last = c.suite == "atari"
        self.scale = 1 / 255 if c.suite == "atari" else 1.0  # the others' frames are 0 and 1
        depth, *size = (c.history * frame_shape[0], *frame_shape[1:])
        self.picture = (depth, *(size or (1, 1)))
        self.shapes: dict[str, tuple[int, ...]] = {}
        side = self.picture[1]
        for i, (width, (kernel, stride)) in enumerate(zip(c.channels, layers, strict=True)):
            self.shapes[f"trunk.{i}.weight"] = (width, depth, kernel, kernel)
            self.shapes[f"trunk.{i}.bias"] = (width,)
            depth, side = width, (side - kernel) // stride + 1
        self._side = (side, side)  # of the trunk's last picture
        self.shapes["hidden.weight"] = (K, c.hidden, depth * side * side)
        self.shapes["hidden.bias"] = (K, c.hidden)
        self.below = self.size  # weights below the heads' last layer
        self.shapes["out.weight"] = (K, n_actions, c.hidden)
        self.shapes["out.bias"] = (K, n_actions)
        self.flat = torch.zeros(self.size)
        self.weights = self.views(self.flat)
        initialize(self.weights, c.init, generator)
        self.prior_scale = c.prior_scale
        self.prior: QEnsemble | None = None
        if c.prior_scale:
            plain = c.model_copy(update={"prior_scale": 0.0})
            self.prior = QEnsemble(plain, frame_shape, n_actions, generator)

    @property
    def size(self) -> int:
        """How many weights it has, the prior's apart."""
        return sum(map(math.prod, self.shapes.values()))

    def views(self, flat: Tensor) -> Weights:
        """Each variable, as a view of `flat`, which may end before the heads' last layer."""
        found, start = {}, 0
        for name, shape in self.shapes.items():
            end = start + math.prod(shape)
            if end <= len(flat):
                found[name] = flat[start:end].view(shape)
            start = end
        return found

    def to(self, device: torch.device) -> "QEnsemble":
        self.flat = self.flat.to(device)
        self.weights = self.views(self.flat)
        if self.prior is not None:
            self.prior.to(device)
        return self

    def state_dict(self) -> Weights:
        """A copy of all weights by name, the prior's too."""
        return {name: value.clone() for name, value in self._all().items()}

    def load_state_dict(self, state: Weights) -> None:
        for name, value in self._all().items():
            value.copy_(state[name])

    def _all(self) -> Weights:
        prior = {} if self.prior is None else self.prior.weights
        return self.weights | {f"prior.{name}": value for name, value in prior.items()}

    def to_float(self, frames: Tensor) -> Tensor:
        """uint8 frames `[B, history, *frame_shape]` as the picture that the trunk reads."""
        x = frames.float().mul_(self.scale).view(-1, *self.picture)
        if self.channels_last and len(x) > 1:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def __call__(self, frames: Tensor) -> Tensor:
        x = self.to_float(frames)
        q, _ = self.forward(x, self.weights)
        return q if self.prior is None else q + self.prior_values(x)

    def prior_values(self, x: Tensor) -> Tensor:
        """What the prior adds to every Q of pictures `x`, `[B, K, A]`."""
        assert self.prior is not None
        return self.prior_scale * self.prior.forward(x, self.prior.weights)[0]

    def forward(self, x: Tensor, weights: Weights) -> tuple[Tensor, Kept]:
        """Q `[B, K, A]` of pictures `x`, without the prior, and what its gradient needs."""
        inputs = []
        for i, stride in enumerate(self.strides):
            inputs.append(x)
            x = torch.conv2d(x, weights[f"trunk.{i}.weight"], weights[f"trunk.{i}.bias"], stride)
            x = x.relu_()
        features = x.flatten(1)  # [B, F]
        bias = weights["hidden.bias"]  # [K, H]
        h = product(features, weights["hidden.weight"].flatten(0, 1), bias.flatten())  # [B, K * H]
        h = h.relu_().float().view(-1, *bias.shape)  # [B, K, H]
        out, bias = weights["out.weight"], weights["out.bias"].unsqueeze(1)  # [K, A, H], [K, 1, A]
        q = torch.baddbmm(bias, h.transpose(0, 1), out.transpose(1, 2))
        return q.transpose(0, 1), Kept(inputs, features, h)  # [B, K, A]

    def backward(self, dq: Tensor, kept: Kept, weights: Weights, grads: Weights) -> None:
        """Write into `grads` the gradient of a loss whose derivative by Q is `dq` `[B, K, A]`.

        The K heads' gradients into the trunk are added up and divided by K, here and nowhere else.
        """
        inputs, features, h = kept
        dq = dq.transpose(0, 1)  # [K, B, A]
        torch.bmm(dq.transpose(1, 2), h.transpose(0, 1), out=grads["out.weight"])
        torch.sum(dq, 1, out=grads["out.bias"])
        dh = torch.bmm(dq, weights["out.weight"]).transpose(0, 1)  # [B, K, H]
        dh = through_relu(dh, h).flatten(1).to(features.dtype)  # [B, K * H]
        torch.mm(dh.t(), features, out=grads["hidden.weight"].flatten(0, 1))
        torch.sum(dh, 0, out=grads["hidden.bias"].flatten())
        dx = product(dh, weights["hidden.weight"].flatten(0, 1).t()).div_(self.K)  # [B, F]
        dx, x = (t.view(len(t), -1, *self._side) for t in (dx, features))  # [B, C, h, w]
        for i, stride in reversed([*enumerate(self.strides)]):
            weight = weights[f"trunk.{i}.weight"]
            to_input, to_weight, to_bias = torch.ops.aten.convolution_backward(
                through_relu(dx, x), inputs[i], weight, [len(weight)], [stride, stride],
                [0, 0], [1, 1], False, [0, 0], 1, [i > 0, True, True],
            )  # fmt: skip
            grads[f"trunk.{i}.weight"].copy_(to_weight)
            grads[f"trunk.{i}.bias"].copy_(to_bias)
            dx, x = to_input, inputs[i]


def through_relu(grad: Tensor, y: Tensor) -> Tensor:
    """The gradient by the input of a ReLU whose output is `y`."""
    return torch.ops.aten.threshold_backward(grad, y, 0)


ONEDNN = (
    getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    if torch.backends.mkldnn.is_available()
    else None
)
LARGE = 500_000  # numbers in a matrix, from which on oneDNN's product is faster


def product(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """x y^T + bias.

    For a batch and ten heads oneDNN takes an eighth less time than MKL, which is torch's usual. It
    is called by an operator that torch does not document, and only where it pays.
    """
    if ONEDNN is not None and x.device.type == "cpu" and y.numel() >= LARGE and len(x) > 1:
        return ONEDNN(x, y, bias, "none", [], "")
    return x @ y.t() if bias is None else torch.addmm(bias, x, y.t())


def initialize(weights: Weights, init: str, generator: torch.Generator | None) -> None:
    """Draw all weights, head by head as if each stood alone.

    `xavier`: uniform within sqrt(6 / (fan in + fan out)), biases zero, TensorFlow's default in the
    code of 2017. `torch`: weights and biases uniform within 1 / sqrt(fan in), PyTorch's default.
    """
    for name, weight in weights.items():
        if name.endswith("bias"):
            continue
        stacked = not name.startswith("trunk")  # [K, out, in], else [out, in, kernel, kernel]
        fan_out, fan_in, *kernel = weight.shape[1:] if stacked else weight.shape
        area = math.prod(kernel)
        if init == "xavier":
            bound = math.sqrt(6 / (area * (fan_in + fan_out)))
        else:
            bound = 1 / math.sqrt(area * fan_in)
            bias = weights[name.replace("weight", "bias")]
            bias.uniform_(-bound, bound, generator=generator)
        weight.uniform_(-bound, bound, generator=generator)
