"""Network, loss and gradients against an explicit loop over K separate networks."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qe import network
from qe.config import Config, ConfigError, configure
from qe.learner import Learner, clip_gradients, double_q_targets, ensemble_loss, find_device
from qe.network import TRUNKS, QEnsemble
from qe.replay import Batch

SHAPES = {"atari": (1, 84, 84), "minatar": (4, 10, 10), "deepsea": (9,)}
GAMES = {"atari": "Pong", "minatar": "Breakout", "deepsea": "N3"}
CHANNELS = {"atari": [4, 6, 5], "minatar": [6], "deepsea": [7]}
ACTIONS = 4


def config_of(suite: str, K: int = 3, **values) -> Config:
    algorithm = "double_dqn" if K == 1 else "ucb"
    values = {"channels": CHANNELS[suite], "hidden": 11} | values
    return configure(suite=suite, game=GAMES[suite], algorithm=algorithm, K=K, **values)


def learner_of(suite: str, K: int = 3, seed: int = 0, **values) -> Learner:
    """With a target network that is not the online one."""
    learner = Learner(config_of(suite, K, **values), SHAPES[suite], ACTIONS, seed)
    other = QEnsemble(learner.config, SHAPES[suite], ACTIONS, torch.Generator().manual_seed(9))
    learner.target.flat.copy_(3 * other.flat)
    learner.target.load()
    return learner


def by_hand(net: QEnsemble, flat: torch.Tensor) -> tuple[nn.Sequential, list[nn.Sequential]]:
    """The same trunk and heads as separate modules of plain torch, their weights copied."""
    weights = net.views(flat)
    layers: list[nn.Module] = []
    for i, stride in enumerate(net.strides):
        width, depth, kernel, _ = weights[f"trunk.{i}.weight"].shape
        layers += [nn.Conv2d(depth, width, kernel, stride), nn.ReLU()]
        layers[-2].weight.data = weights[f"trunk.{i}.weight"].clone()
        layers[-2].bias.data = weights[f"trunk.{i}.bias"].clone()
    heads = []
    for k in range(net.K):
        pair = []
        for name in ("hidden", "out"):
            weight, bias = weights[f"{name}.weight"][k], weights[f"{name}.bias"][k]
            pair.append(nn.Linear(weight.shape[1], weight.shape[0]))
            pair[-1].weight.data, pair[-1].bias.data = weight.clone(), bias.clone()
        heads.append(nn.Sequential(pair[0], nn.ReLU(), pair[1]))
    return nn.Sequential(*layers, nn.Flatten()), heads


def random_batch(config: Config, B: int, masked: bool = False) -> Batch:
    rng = np.random.default_rng(1)
    high = 256 if config.suite == "atari" else 2
    shape = (B, config.history + 1, *SHAPES[config.suite])
    return Batch(
        window=rng.integers(0, high, shape, np.uint8),
        action=rng.integers(0, ACTIONS, B),
        reward=(3 * rng.normal(size=B)).astype(np.float32),
        terminal=rng.random(B) < 0.4,
        mask=rng.random((B, config.K)) < 0.5 if masked else None,
    )


def as_picture(net: QEnsemble, frames: np.ndarray) -> torch.Tensor:
    return (torch.from_numpy(frames).float() * net.scale).reshape(-1, *net.picture)


@pytest.mark.parametrize("suite", SHAPES)
@pytest.mark.parametrize("K", [1, 3])
def test_forward_equals_a_loop_over_heads(suite, K):
    learner = learner_of(suite, K)
    net, batch = learner.net, random_batch(learner.config, 5)
    trunk, heads = by_hand(net, net.flat)
    features = trunk(as_picture(net, batch.obs))
    expected = torch.stack([head(features) for head in heads], dim=1).detach().numpy()
    for frames in (batch.obs, batch.obs[:1]):
        found = learner.q_values(frames)
        assert found.shape == (len(frames), K, ACTIONS)
        np.testing.assert_allclose(found, expected[: len(frames)], rtol=1e-4, atol=1e-5)


def test_the_papers_network_has_the_nature_trunk():
    net = Learner(configure(algorithm="ucb"), (1, 84, 84), 6, seed=0).net
    assert net.weights["hidden.weight"].shape == (10, 512, 3136)
    assert net.weights["out.weight"].shape == (10, 6, 512)
    assert [len(net.weights[f"trunk.{i}.bias"]) for i in range(3)] == [32, 64, 64]
    assert TRUNKS["atari"] == ((8, 4), (4, 2), (3, 1))


@pytest.mark.parametrize("suite", SHAPES)
def test_xavier_is_torchs_own_and_biases_are_zero(suite):
    net = learner_of(suite, K=20, hidden=64).net
    for name, weight in net.weights.items():
        if name.endswith("bias"):
            assert weight.abs().max() == 0
            continue
        for part in [weight] if name.startswith("trunk") else weight:  # each head by itself
            twin = nn.init.xavier_uniform_(torch.empty_like(part))
            bound = math.sqrt(6 / sum(nn.init._calculate_fan_in_and_fan_out(twin)))
            assert 0.9 * bound < part.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    weights = net.weights["hidden.weight"].flatten(1)
    assert torch.corrcoef(weights).fill_diagonal_(0).abs().max() < 0.2


@pytest.mark.parametrize("suite", SHAPES)
def test_the_other_initialisation_is_what_torchs_modules_draw_from(suite):
    net = learner_of(suite, K=20, hidden=64, init="torch").net
    for name, weight in net.weights.items():
        beside = net.weights[name.replace("bias", "weight")]
        fan_in = beside.shape[1:].numel() if name.startswith("trunk") else beside.shape[2]
        bound = 1 / math.sqrt(fan_in)
        assert weight.abs().max().item() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.35)


@pytest.mark.parametrize("prior_scale", [0.0, 3.0])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("suite", SHAPES)
def test_loss_and_gradients_equal_a_loop_over_heads(suite, masked, prior_scale):
    K, B = 3, 6
    learner = learner_of(suite, K, prior_scale=prior_scale, clip_norm=1e9, discount=0.9)
    net, batch = learner.net, random_batch(learner.config, B, masked)
    assert batch.terminal.any() and not batch.terminal.all()
    trunk, heads = by_hand(net, net.flat)
    target_trunk, target_heads = by_hand(net, learner.target.flat)
    fixed = by_hand(net, net.prior.flat) if net.prior else None

    def q_of(trunk, heads, k, frames):
        q = heads[k](trunk(as_picture(net, frames)))[0]
        if fixed:
            q = q + prior_scale * fixed[1][k](fixed[0](as_picture(net, frames)))[0].detach()
        return q

    # One head, one transition and one sum at a time.
    losses = []
    for k in range(K):
        loss = torch.zeros(())
        for b in range(B):
            obs, after = batch.obs[b : b + 1], batch.next_obs[b : b + 1]
            with torch.no_grad():
                best = int(q_of(trunk, heads, k, after).argmax())
                value = q_of(target_trunk, target_heads, k, after)[best]
                going_on = 0.0 if batch.terminal[b] else 0.9 * value
                y = batch.reward[b] + going_on
            if batch.mask is None or batch.mask[b, k]:
                error = (q_of(trunk, heads, k, obs)[batch.action[b]] - y).abs()
                loss = loss + (0.5 * error**2 if error <= 1 else error - 0.5) / B
        losses.append(loss)
    sum(losses).backward()

    found = learner.update(batch, 0.0)
    assert found == pytest.approx(sum(losses).item() / K, rel=1e-4)
    close = {"rtol": 1e-3, "atol": 1e-5}
    grads = learner.grads.full
    convolutions = [layer for layer in trunk if isinstance(layer, nn.Conv2d)]
    for i, layer in enumerate(convolutions):  # divided by K, once
        torch.testing.assert_close(grads[f"trunk.{i}.weight"], layer.weight.grad / K, **close)
        torch.testing.assert_close(grads[f"trunk.{i}.bias"], layer.bias.grad / K, **close)
    for k, head in enumerate(heads):
        for name, layer in (("hidden", head[0]), ("out", head[2])):
            weight = layer.weight.grad if layer.weight.grad is not None else 0 * layer.weight
            bias = layer.bias.grad if layer.bias.grad is not None else 0 * layer.bias
            torch.testing.assert_close(grads[f"{name}.weight"][k], weight.detach(), **close)
            torch.testing.assert_close(grads[f"{name}.bias"][k], bias.detach(), **close)


def test_the_derivative_of_the_loss_is_autograds():
    generator = torch.Generator().manual_seed(0)
    q = (3 * torch.randn(7, 3, 4, generator=generator)).requires_grad_()
    action = torch.randint(0, 4, (7,), generator=generator)
    target = torch.randn(7, 3, generator=generator)
    mask = torch.rand(7, 3, generator=generator) < 0.5
    for delta in (0.5, 2.0):
        q.grad = None
        losses, slope = ensemble_loss(q, action, target, mask, delta)
        losses.sum().backward()
        torch.testing.assert_close(slope, q.grad)
        by_head = F.huber_loss(
            q.detach()[range(7), :, action], target, reduction="none", delta=delta
        )
        torch.testing.assert_close(losses.detach(), (by_head * mask).sum(0) / 7)


def test_targets_take_each_heads_own_best_action():
    online = torch.tensor([[[0.0, 1.0], [1.0, 0.0]]] * 2)  # [2, 2, 2]
    target = torch.tensor([[[10.0, 20.0], [30.0, 40.0]]] * 2)
    y = double_q_targets(online, target, torch.tensor([1.0, 2.0]), torch.tensor([False, True]), 0.5)
    assert y.tolist() == [[11.0, 16.0], [2.0, 2.0]]


def test_a_head_that_is_masked_everywhere_gets_no_gradient():
    learner = learner_of("deepsea", K=2)
    batch = random_batch(learner.config, 4)._replace(mask=np.array([[True, False]] * 4))
    learner.update(batch, 0.0)
    assert learner.grads.full["out.weight"][0].abs().sum() > 0
    assert learner.grads.full["out.weight"][1].abs().sum() == 0


def test_clipping_is_per_variable_and_per_head():
    grads = {
        "trunk.0.weight": torch.tensor([[[[30.0]]], [[[40.0]]]]),
        "trunk.0.bias": torch.tensor([0.3, 0.4]),
        "hidden.weight": torch.stack([torch.full((2, 2), 50.0), torch.full((2, 2), 1.0)]),
    }
    clip_gradients(grads, 10.0)
    torch.testing.assert_close(grads["trunk.0.weight"].flatten(), torch.tensor([6.0, 8.0]))
    torch.testing.assert_close(grads["trunk.0.bias"], torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(grads["hidden.weight"][0], torch.full((2, 2), 5.0))
    torch.testing.assert_close(grads["hidden.weight"][1], torch.full((2, 2), 1.0))


@pytest.mark.parametrize("library", ["oneDNN", "torch's own"])
def test_the_product_is_x_times_y_transposed(library, monkeypatch):
    monkeypatch.setattr(network, "LARGE", 0)
    if library != "oneDNN":
        monkeypatch.setattr(network, "ONEDNN", None)
    x, y, bias = torch.randn(7, 30), torch.randn(11, 30), torch.randn(11)
    torch.testing.assert_close(network.product(x, y), x @ y.t())
    torch.testing.assert_close(network.product(x, y, bias), x @ y.t() + bias)
    torch.testing.assert_close(network.product(x.t(), y[:7].t()), x.t() @ y[:7])


def test_an_update_is_adam_on_the_clipped_gradient_and_copies_to_the_target_when_due():
    config = config_of("deepsea", K=2, target_every=3, clip_norm=0.1)
    learner = Learner(config, SHAPES["deepsea"], ACTIONS, seed=0)
    batch = random_batch(config, 4)._replace(reward=np.array([100.0, 0.0, -50.0, 1.0], np.float32))
    parameters = {name: w.clone().requires_grad_() for name, w in learner.net.weights.items()}
    adam = torch.optim.Adam(parameters.values(), lr=0.01, betas=(0.9, 0.99), eps=1e-4)
    clipped = 0
    for update in range(1, 4):
        learner.update(batch, 0.01)
        for name, p in parameters.items():
            p.grad = learner.grads.full[name].clone()
            for part in [p.grad] if name.startswith("trunk") else p.grad:
                assert part.norm() < 0.1 * (1 + 1e-5)
                clipped += bool(part.norm() > 0.1 * (1 - 1e-5))
        adam.step()
        for name, p in parameters.items():
            torch.testing.assert_close(learner.net.weights[name], p.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(learner.online.flat, learner.target.flat) == (update == 3)
    assert clipped


def test_the_prior_is_fixed_and_in_online_and_target_alike():
    config = config_of("minatar", prior_scale=2.0, target_every=1)
    learner = Learner(config, SHAPES["minatar"], ACTIONS, seed=0)
    net, batch = learner.net, random_batch(config, 8)
    assert not torch.equal(net.flat, net.prior.flat)
    before, frames = net.prior.flat.clone(), batch.obs
    bare, _ = net.forward(net.to_float(torch.from_numpy(frames)), net.weights)
    alone, _ = net.prior.forward(net.to_float(torch.from_numpy(frames)), net.prior.weights)
    np.testing.assert_allclose(learner.q_values(frames), bare + 2.0 * alone, rtol=1e-5, atol=1e-6)
    for _ in range(3):
        learner.update(batch, 0.01)
    assert torch.equal(net.prior.flat, before)
    again = Learner(config, SHAPES["minatar"], ACTIONS, seed=5)
    again.net.load_state_dict(net.state_dict())
    assert np.array_equal(again.q_values(frames), learner.q_values(frames))


def bfloat16() -> bool:
    try:
        return find_device(config_of("minatar", precision="bfloat16")).type == "cpu"
    except ConfigError:
        return False


@pytest.mark.skipif(not bfloat16(), reason="this processor does not compute in bfloat16")
@pytest.mark.parametrize("suite", SHAPES)
def test_bfloat16_rounds_the_gradient_and_nothing_else(suite):
    exact, low = (learner_of(suite, precision=p) for p in ("float32", "bfloat16"))
    batch = random_batch(exact.config, 32)
    assert np.array_equal(exact.q_values(batch.obs), low.q_values(batch.obs))
    losses = [learner.update(batch, 0.0) for learner in (exact, low)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    a, b = exact.grads.flat, low.grads.flat
    assert not torch.equal(a, b) and a.dtype == b.dtype == torch.float32
    assert torch.cosine_similarity(a, b, dim=0) > 0.995
    low.update(batch, 1e-4)
    state = {"online": low.online.flat, "target": low.target.flat}
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}


def test_what_the_machine_lacks_is_refused_with_a_sentence(monkeypatch):
    if not torch.cuda.is_available():
        with pytest.raises(
            ConfigError, match=r"device must be one that is here, .*cpu, not 'cuda'"
        ):
            find_device(config_of("minatar", device="cuda"))
    monkeypatch.setattr("qe.learner._bfloat16", lambda device: False)
    with pytest.raises(ConfigError, match="precision must be float32: this machine"):
        find_device(config_of("minatar", precision="bfloat16", device="cpu"))
