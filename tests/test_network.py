"""Network, loss and gradients against an explicit loop over K separate networks."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from qe import network
from qe.config import configure
from qe.learner import Learner, clip_gradients, double_q_targets, ensemble_loss
from qe.network import QEnsemble
from qe.replay import Batch

SHAPES = {"atari": (1, 84, 84), "minatar": (4, 10, 10), "chain": (9,)}
HISTORY = {"atari": 4, "minatar": 1, "chain": 1}
CHANNELS = {"atari": (4, 6, 5), "minatar": (6,), "chain": (7,)}


def ensemble(
    suite: str, K: int = 3, hidden: int = 11, n_actions: int = 4, seed: int = 0
) -> QEnsemble:
    torch.manual_seed(seed)
    return QEnsemble(
        suite=suite,
        channels=CHANNELS[suite],
        frame_shape=SHAPES[suite],
        history=HISTORY[suite],
        hidden=hidden,
        K=K,
        n_actions=n_actions,
    )


def heads_by_hand(net: QEnsemble) -> list[nn.Sequential]:
    """The same heads as K separate modules."""
    heads = []
    for k in range(net.K):
        layers = []
        for stacked in (net.hidden, net.out):
            _, out_features, in_features = stacked.weight.shape
            layer = nn.Linear(in_features, out_features)
            layer.weight.data = stacked.weight.data[k].clone()
            layer.bias.data = stacked.bias.data[k].clone()
            layers.append(layer)
        heads.append(nn.Sequential(layers[0], nn.ReLU(), layers[1]))
    return heads


def frames(suite: str, B: int) -> torch.Tensor:
    g = torch.Generator().manual_seed(1)
    high = 256 if suite == "atari" else 2
    shape = (B, HISTORY[suite] + 1, *SHAPES[suite])
    return torch.randint(0, high, shape, generator=g, dtype=torch.uint8)


@pytest.mark.parametrize("suite", SHAPES)
@pytest.mark.parametrize("K", [1, 3])
def test_forward_equals_a_loop_over_heads(suite, K):
    net = ensemble(suite, K)
    x = frames(suite, 5)[:, 1:]
    features = net.trunk((x.float() * net.scale).flatten(1, 2))
    expected = torch.stack([head(features) for head in heads_by_hand(net)], dim=1)
    assert net(x).shape == (5, K, 4)
    torch.testing.assert_close(net(x), expected)


def test_the_papers_network_has_the_nature_trunk():
    config = configure(algorithm="ucb")
    learner = Learner(config, (1, 84, 84), 6, seed=0)
    assert learner.online.hidden.weight.shape == (10, 512, 3136)
    assert learner.online.out.weight.shape == (10, 6, 512)
    assert [p.shape[0] for p in learner.shared] == [32, 32, 64, 64, 64, 64]


def test_heads_start_as_independent_linear_layers_would():
    net = ensemble("minatar", K=20, hidden=64)
    for stacked in (net.hidden, net.out):
        bound = 1 / math.sqrt(stacked.weight.shape[2])
        for tensor in (stacked.weight, stacked.bias):
            assert tensor.abs().max().item() <= bound
            assert tensor.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.15)
    weights = net.hidden.weight.detach().flatten(1)
    assert torch.corrcoef(weights).fill_diagonal_(0).abs().max() < 0.05


@pytest.mark.parametrize("suite", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_equal_a_loop_over_heads(suite, masked):
    K, B, discount = 3, 6, 0.9
    net, target_net = ensemble(suite, K), ensemble(suite, K, seed=9)
    nn.init.normal_(target_net.out.weight)
    window = frames(suite, B)
    obs, next_obs = window[:, :-1], window[:, 1:]
    g = torch.Generator().manual_seed(2)
    action = torch.randint(0, 4, (B,), generator=g)
    reward = 3 * torch.randn(B, generator=g)
    terminal = torch.rand(B, generator=g) < 0.4
    mask = (torch.rand(B, K, generator=g) < 0.5) if masked else None
    assert terminal.any() and not terminal.all()

    q, q_next = net.of_both(obs, next_obs)
    assert q.requires_grad and not q_next.requires_grad
    torch.testing.assert_close(q, net(obs))
    torch.testing.assert_close(q_next, net(next_obs))
    with torch.no_grad():
        y = double_q_targets(q_next, target_net(next_obs), reward, terminal, discount)
    losses = ensemble_loss(q, action, y, mask)
    losses.sum().backward()

    # The same, one head, one transition and one sum at a time, on a copy of the trunk.
    trunk = copy.deepcopy(net.trunk)
    trunk.zero_grad()
    heads = heads_by_hand(net)
    target_heads = heads_by_hand(target_net)

    def q_of(t, hs, k, x):
        return hs[k](t((x.float() * net.scale).flatten(1, 2)))

    total = torch.zeros(())
    for k in range(K):
        loss_k = torch.zeros(())
        for b in range(B):
            with torch.no_grad():
                best = int(q_of(trunk, heads, k, next_obs[b : b + 1])[0].argmax())
                value = q_of(target_net.trunk, target_heads, k, next_obs[b : b + 1])[0, best]
                y_kb = reward[b] if terminal[b] else reward[b] + discount * value
            if mask is not None and not mask[b, k]:
                continue
            q_kb = q_of(trunk, heads, k, obs[b : b + 1])[0, action[b]]
            error = (q_kb - y_kb).abs()
            loss_k = loss_k + (0.5 * error**2 if error <= 1 else error - 0.5) / B
        torch.testing.assert_close(losses[k], loss_k)
        total = total + loss_k
    total.backward()

    for ours, theirs in zip(net.trunk.parameters(), trunk.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad / K)  # divided by K, once
    for k, head in enumerate(heads):
        torch.testing.assert_close(net.hidden.weight.grad[k], head[0].weight.grad)
        torch.testing.assert_close(net.hidden.bias.grad[k], head[0].bias.grad)
        torch.testing.assert_close(net.out.weight.grad[k], head[2].weight.grad)
        torch.testing.assert_close(net.out.bias.grad[k], head[2].bias.grad)


def test_a_head_that_is_masked_everywhere_gets_no_gradient():
    net = ensemble("chain", K=2)
    q = net(frames("chain", 4)[:, 1:])
    mask = torch.tensor([[True, False]] * 4)
    ensemble_loss(q, torch.zeros(4, dtype=torch.int64), torch.ones(4, 2), mask).sum().backward()
    assert net.out.weight.grad[0].abs().sum() > 0
    assert net.out.weight.grad[1].abs().sum() == 0


def test_clipping_is_per_variable_and_per_head():
    shared = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(2))]
    stacked = [nn.Parameter(torch.zeros(2, 2, 2))]
    shared[0].grad = torch.tensor([30.0, 40.0, 0.0])
    shared[1].grad = torch.tensor([0.3, 0.4])
    stacked[0].grad = torch.stack([torch.full((2, 2), 50.0), torch.full((2, 2), 1.0)])
    clip_gradients(shared, stacked, 10.0)
    torch.testing.assert_close(shared[0].grad, torch.tensor([6.0, 8.0, 0.0]))
    torch.testing.assert_close(shared[1].grad, torch.tensor([0.3, 0.4]))
    torch.testing.assert_close(stacked[0].grad[0], torch.full((2, 2), 5.0))
    torch.testing.assert_close(stacked[0].grad[1], torch.full((2, 2), 1.0))


@pytest.mark.parametrize("norm", [0.001, 1e9])
def test_clipping_reaches_gradients_in_every_memory_order(norm):
    net = ensemble("atari")  # its convolutions' gradients have their channels last
    net(frames("atari", 4)[:, 1:]).square().sum().backward()
    before = [p.grad.clone() for p in net.parameters()]
    clip_gradients(net.trunk.parameters(), [*net.hidden.parameters(), *net.out.parameters()], norm)
    for (name, p), old in zip(net.named_parameters(), before, strict=True):
        parts = [(p.grad, old)] if name.startswith("trunk") else zip(p.grad, old, strict=True)
        for now, then in parts:
            torch.testing.assert_close(now, then * min(1.0, norm / float(then.norm())))


@pytest.mark.parametrize("library", ["oneDNN", "torch's own"])
def test_the_product_is_x_times_y_transposed(library, monkeypatch):
    if library != "oneDNN":
        monkeypatch.setattr(network, "ONEDNN", None)
    x, y = torch.randn(7, 30), torch.randn(11, 30)
    torch.testing.assert_close(network.product(x, y), x @ y.t())
    torch.testing.assert_close(network.product(x.t(), y[:7].t()), x.t() @ y[:7])


def test_an_update_is_adam_on_the_clipped_gradient_and_copies_to_the_target_when_due():
    config = configure("smoke", suite="chain", algorithm="ucb", K=2, target_every=3)
    learner = Learner(config, (9,), 2, seed=0)
    reference = copy.deepcopy(learner.online)
    adam = torch.optim.Adam(reference.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-4)
    batch = Batch(
        window=frames("chain", 4).numpy(),
        action=torch.tensor([0, 1, 1, 0]).numpy(),
        reward=torch.tensor([100.0, 0.0, -50.0, 1.0]).numpy(),
        terminal=torch.tensor([True, False, True, False]).numpy(),
        mask=None,
    )
    for update in range(1, 4):
        q_next = reference(torch.from_numpy(batch.next_obs)).detach()
        y = torch.from_numpy(batch.reward)[:, None] + config.discount * learner.target(
            torch.from_numpy(batch.next_obs)
        ).gather(-1, q_next.argmax(-1, keepdim=True)).squeeze(-1) * ~torch.from_numpy(
            batch.terminal
        ).unsqueeze(1)
        q = reference(torch.from_numpy(batch.obs))
        chosen = q[torch.arange(4), :, torch.from_numpy(batch.action)]
        adam.zero_grad()
        F.huber_loss(chosen, y, reduction="none").mean(0).sum().backward()
        for name, p in reference.named_parameters():
            slices = [p.grad] if name.startswith("trunk") else list(p.grad)
            for part in slices:
                part *= min(1.0, 10 / float(part.norm()))
        adam.step()
        learner.update(batch, 0.01)
        for a, b in zip(learner.online.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        same = torch.equal(learner.online.out.weight, learner.target.out.weight)
        assert same == (update == 3)
