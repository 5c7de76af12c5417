"""Off-policy algorithms against plain torch: torch.nn modules, torch.optim.Adam and explicit losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.distributions import Normal, TanhTransform, TransformedDistribution

from finrl_pod.random import MemberGenerators, generators
from finrl_pod.rl.algorithms.actor_critic import LOG_STD_BOUNDS, squashed
from finrl_pod.rl.algorithms.factory import make_algorithm
from finrl_pod.rl.algorithms.off_policy import Batch
from finrl_pod.rl.networks.inputs import ModelInput
from finrl_pod.rl.networks.layers import mlp, mlp_init
from finrl_pod.rl.networks.off_policy_networks import combine_values, draw_subsets, dueling_values
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from tests.rl.all_algorithms import small_learner

S, D, B = 3, 2, 10
DOUBLE = torch.float64
SEED = 11


class FlatEnv:
    """Environment stub with flat observations; provides sizes only."""

    def __init__(self, members: int = 1, actions: int = 0) -> None:
        self.members, self.envs, self.member_ids = members, 1, tuple(range(members))
        self.action_kind, self.action_size, self.actions = ("discrete", 1, actions) if actions else ("box", D, 0)
        self.observation_size, self.device = S, torch.device("cpu")


def make(name: str, env: FlatEnv | None = None, **settings: Any) -> Any:
    shared = {"policy": "mlp", "hidden": (8, 7), "batch_size": B, "scale_rewards": False, "learning_rate": 1e-2}
    record = ALGORITHMS[name].config_class
    discrete = ALGORITHMS[name].actions == "discrete"
    config = record(**{"algorithm": name, **shared, "tau": 0.1, **settings})
    return make_algorithm(config, env or FlatEnv(actions=4 if discrete else 0), dtype=DOUBLE)


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED + seed), dtype=DOUBLE)


def batch(actions: int = 0) -> Batch:
    action = torch.arange(B).view(1, B, 1) % actions if actions else torch.tanh(draw(1, B, 1, D, seed=1))
    not_done = (draw(1, B, 1, seed=2) > -1).double()
    assert 0 < not_done.sum() < B
    return Batch(
        ModelInput(draw(1, B, 1, S)), action, draw(1, B, 1, seed=3), not_done, ModelInput(draw(1, B, 1, S, seed=4))
    )


def torch_module(flat: dict[str, torch.Tensor]) -> torch.nn.Sequential:
    """torch.nn layers with the given weights: w0 [I, H], b0 [H], ..."""
    parts: list[torch.nn.Module] = []
    for i in range(len(flat) // 2):
        layer = torch.nn.Linear(*flat[f"w{i}"].shape, dtype=DOUBLE)
        layer.weight.data, layer.bias.data = flat[f"w{i}"].T.clone(), flat[f"b{i}"].clone()
        parts += [layer, torch.nn.ReLU()]
    return torch.nn.Sequential(*parts[:-1])


def torch_modules(algorithm: Any, part: str) -> list[torch.nn.Sequential]:
    views = algorithm.train_state.views(part)
    return [torch_module({k: x.detach()[r] for k, x in views.items()}) for r in range(views["w0"].shape[0])]


def assert_equal_nets(algorithm: Any, part: str, nets: list[torch.nn.Sequential]) -> None:
    for ours, theirs in zip(torch_modules(algorithm, part), nets, strict=True):
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def q(net: torch.nn.Module, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    return net(torch.cat([obs, action], -1))[:, 0]


def polyak(targets: list[torch.nn.Sequential], nets: list[torch.nn.Sequential], rate: float) -> None:
    for target, net in zip(targets, nets, strict=True):
        for a, b in zip(target.parameters(), net.parameters(), strict=True):
            a.data = (1 - rate) * a.data + rate * b.data


# ---------------------------------------------------------------- functions


def test_mlp_and_its_gradients_match_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = [mlp_init((S, 8, 7, 2), generator, DOUBLE) for _ in range(3)]
    params = {k: torch.stack([row[k] for row in rows]).requires_grad_() for k in rows[0]}
    x, weight = draw(3, B, S).requires_grad_(), draw(3, B, 2, seed=5)
    gradients = torch.autograd.grad((mlp(params, x, 3) * weight).sum(), [x, *params.values()])
    for r, row in enumerate(rows):
        net, own = torch_module(row), x.detach()[r].clone().requires_grad_()
        torch.testing.assert_close(mlp(params, x, 3)[r], net(own))
        (net(own) * weight[r]).sum().backward()
        torch.testing.assert_close(gradients[0][r], own.grad)
        plain = [p.grad for p in net.parameters()]
        for i, gradient in enumerate(gradients[1:]):
            torch.testing.assert_close(gradient[r].T if i % 2 == 0 else gradient[r], plain[i])


def test_squashed_gaussian_and_its_gradients_match_torch() -> None:
    mean, log_std, noise = draw(40, D), draw(40, D, seed=1) * 0.5, draw(40, D, seed=2)
    ours = [x.clone().requires_grad_() for x in (mean, log_std)]
    action, log_prob = squashed(*ours, noise)
    theirs = [x.clone().requires_grad_() for x in (mean, log_std)]
    base = Normal(theirs[0], theirs[1].exp())
    u = theirs[0] + theirs[1].exp() * noise
    transform = TanhTransform()
    other = TransformedDistribution(base, [transform])
    expected = (base.log_prob(u) - transform.log_abs_det_jacobian(u, torch.tanh(u))).sum(-1)
    torch.testing.assert_close(action, torch.tanh(u))
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(log_prob, other.log_prob(action.detach()).sum(-1), rtol=1e-6, atol=1e-6)
    weights = draw(40, D, seed=3), draw(40, seed=4)
    mine = torch.autograd.grad((action * weights[0]).sum() + (log_prob * weights[1]).sum(), ours)
    other_way = torch.autograd.grad((torch.tanh(u) * weights[0]).sum() + (expected * weights[1]).sum(), theirs)
    for a, b in zip(mine, other_way, strict=True):
        torch.testing.assert_close(a, b)


def test_squashed_log_prob_ignores_invalid_scores() -> None:
    valid = draw(40, D, seed=7) > -0.5
    assert not valid.all()
    inputs = [draw(40, D), draw(40, D, seed=1) * 0.5]
    noise, weights = draw(40, D, seed=2), draw(40, D, seed=3)
    ours, each = ([x.clone().requires_grad_() for x in inputs] for _ in range(2))
    action, density = squashed(*ours, noise, valid)
    # Log density of each score separately, and the sum over the valid ones.
    single, densities = squashed(*(x.unsqueeze(-1) for x in each), noise.unsqueeze(-1))
    expected = torch.where(valid, densities, 0.0).sum(-1)
    torch.testing.assert_close(density, expected)
    torch.testing.assert_close(action, single.squeeze(-1))
    mine = torch.autograd.grad((action * weights).sum() + density.square().sum(), ours)
    theirs = torch.autograd.grad((single.squeeze(-1) * weights).sum() + expected.square().sum(), each)
    for one, other in zip(mine, theirs, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["sac", "redq"])
def test_target_entropy_counts_tradable_scores(name: str) -> None:
    """The target entropy is the target per score times the mean number of tradable scores."""
    algorithm = small_learner(name).algorithm
    tradable = torch.ones(1, 4, 3, dtype=torch.bool)
    tradable[0, :2, :1] = False
    obs = ModelInput(torch.zeros(1, 4, 3, 4).double(), torch.zeros(1, 4, 3, 1).double(), tradable)
    assert float(algorithm._scores_per_action(obs)) == pytest.approx(4 - 0.5)  # type: ignore[attr-defined]
    assert algorithm._scores_per_action(obs._replace(tradable=None)) == 4  # type: ignore[attr-defined]


def test_squashed_log_prob_is_finite_for_extreme_means() -> None:
    mean, log_std = torch.tensor([[50.0, -50.0]]).double().requires_grad_(), torch.full((1, 2), 9.0).double()
    action, log_prob = squashed(mean, log_std, torch.ones(1, 2).double())
    assert torch.isfinite(log_prob).all()
    assert action.abs().max() <= 1
    assert torch.isfinite(torch.autograd.grad(log_prob.sum(), mean)[0]).all()
    wide = torch.full((1, 2), LOG_STD_BOUNDS[1] + 1).double().requires_grad_()
    _, log_prob = squashed(torch.zeros(1, 2).double(), wide, torch.ones(1, 2).double())
    assert not torch.autograd.grad(log_prob.sum(), wide)[0].any(), "no gradient beyond the bound of log_std"


def test_combine_values_min_mean_and_subset() -> None:
    values = draw(2, 5, 3, 2)
    assert torch.equal(combine_values(values, "min"), values.min(1).values)
    torch.testing.assert_close(combine_values(values, "mean"), values.mean(1))
    indices = torch.tensor([[4, 1], [0, 3]])
    expected = torch.stack([torch.minimum(values[p, a], values[p, b]) for p, (a, b) in enumerate(indices.tolist())])
    assert torch.equal(combine_values(values, "subset", indices), expected)


def test_critic_subsets_have_no_duplicates_and_are_uniform() -> None:
    source = MemberGenerators(generators(0, (0, 1), "x"))
    subsets = torch.stack([draw_subsets(source, 5, 2) for _ in range(3000)])
    assert (subsets[..., 0] != subsets[..., 1]).all()
    for member in (0, 1):
        counts = torch.bincount(subsets[:, member].flatten(), minlength=5)
        assert ((counts - 1200).abs() < 5 * math.sqrt(3000 * 0.4 * 0.6)).all()
    assert not torch.equal(subsets[:, 0], subsets[:, 1])


def test_dueling_values_are_value_plus_centred_advantages() -> None:
    value, advantages = draw(6, 1), draw(6, 4, seed=1)
    values = dueling_values(value, advantages)
    torch.testing.assert_close(values.mean(-1), value[:, 0])
    torch.testing.assert_close(values.diff(dim=-1), advantages.diff(dim=-1))


# ---------------------------------------------------------------- updates


def test_reward_scale_needs_more_than_one_reward() -> None:
    algorithm = make("ddpg", scale_rewards=True, batch_size=1)
    fields = {name: torch.zeros(1, 1, *x.shape[2:], dtype=x.dtype) for name, x in algorithm.replay.data.items()}
    algorithm.replay.add({**fields, "reward": torch.full((1, 1, 1), 50.0, dtype=DOUBLE)})
    algorithm.learn(1, 1.0)
    assert algorithm.reward_scale.tolist() == [0.0]
    algorithm.replay.add({**fields, "reward": torch.full((1, 1, 1), 150.0, dtype=DOUBLE)})
    algorithm.learn(1, 1.0)
    assert algorithm.reward_scale.tolist() == pytest.approx([1 / torch.tensor([50.0, 150.0]).std().item()])


def test_targets_are_updated_every_target_interval_actor_updates() -> None:
    algorithm = make("td3", target_interval=3)
    moved = []
    for update in range(1, 13):
        before = algorithm.train_state.targets["actor"].views["w0"].clone()
        algorithm.updates += 1
        algorithm._update(batch(), draw(1, B, 1, D, seed=update), 1.0)
        if not torch.equal(before, algorithm.train_state.targets["actor"].views["w0"]):
            moved.append(update)
    assert moved == [6, 12]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_ddpg_and_td3_updates_match_plain_torch(name: str) -> None:
    """Four updates with target smoothing, clipped double Q, Adam, policy delay and Polyak averaging."""
    settings = {"target_noise": 0.6, "noise_clip": 0.5} if name == "td3" else {}
    algorithm = make(name, gamma=0.9, max_grad_norm=1e9, **settings)
    (actor,), critics = torch_modules(algorithm, "actor"), torch_modules(algorithm, "critic")
    (actor_target,), critic_targets = torch_modules(algorithm, "actor"), torch_modules(algorithm, "critic")
    adam = (
        torch.optim.Adam(actor.parameters(), 1e-2),
        torch.optim.Adam([p for c in critics for p in c.parameters()], 1e-2),
    )
    delay, data = (2 if name == "td3" else 1), batch()
    obs, next_obs = data.obs.account[0, :, 0], data.next_obs.account[0, :, 0]
    action, reward, not_done = data.action[0, :, 0], data.reward[0, :, 0], data.not_done[0, :, 0]
    for update in range(1, 5):
        noise = draw(1, B, 1, D, seed=10 + update)
        algorithm.updates += 1
        algorithm._update(data, noise, 1.0)

        ahead = torch.tanh(actor_target(next_obs))
        if name == "td3":
            ahead = (ahead + (noise[0, :, 0] * 0.6).clamp(-0.5, 0.5)).clamp(-1, 1)
        lowest = torch.stack([q(net, next_obs, ahead) for net in critic_targets]).min(0).values
        target = (reward + 0.9 * not_done * lowest).detach()
        adam[1].zero_grad()
        sum(torch.nn.functional.mse_loss(q(net, obs, action), target) for net in critics).backward()  # type: ignore[union-attr]
        adam[1].step()
        if update % delay == 0:
            adam[0].zero_grad()
            (-q(critics[0], obs, torch.tanh(actor(obs))).mean()).backward()
            adam[0].step()
            polyak([actor_target, *critic_targets], [actor, *critics], 0.1)
        assert_equal_nets(algorithm, "actor", [actor])
        assert_equal_nets(algorithm, "critic", critics)
    moved = algorithm.train_state.targets["actor"].views["w0"][0].T
    torch.testing.assert_close(moved, actor_target[0].weight.data, rtol=1e-9, atol=1e-11)


def test_sac_updates_match_plain_torch() -> None:
    """Three updates with soft targets, clipped double Q for critics and actor, and the temperature loss."""
    algorithm = make("sac", gamma=0.9, temperature=0.3, max_grad_norm=1e9)
    (actor,), critics, targets = (
        torch_modules(algorithm, "actor"),
        torch_modules(algorithm, "critic"),
        torch_modules(algorithm, "critic"),
    )
    log_alpha = torch.tensor(math.log(0.3), dtype=DOUBLE, requires_grad=True)
    rates = {"lr": 1e-2}
    adam = [
        torch.optim.Adam(actor.parameters(), **rates),
        torch.optim.Adam([p for c in critics for p in c.parameters()], **rates),
        torch.optim.Adam([log_alpha], **rates),
    ]
    data = batch()
    obs, next_obs = data.obs.account[0, :, 0], data.next_obs.account[0, :, 0]
    action, reward, not_done = data.action[0, :, 0], data.reward[0, :, 0], data.not_done[0, :, 0]

    def sampled(x: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = actor(x).split(D, -1)
        base = Normal(mean, log_std.clamp(*LOG_STD_BOUNDS).exp())
        u = mean + base.scale * noise
        return torch.tanh(u), (base.log_prob(u) - TanhTransform().log_abs_det_jacobian(u, torch.tanh(u))).sum(-1)

    for update in range(3):
        noise = draw(1, 2, B, 1, D, seed=10 + update)
        algorithm.updates += 1
        algorithm._update(data, noise, 1.0)
        alpha = log_alpha.exp().detach()
        ahead, log_prob = sampled(next_obs, noise[0, 0, :, 0])
        lowest = torch.stack([q(net, next_obs, ahead) for net in targets]).min(0).values - alpha * log_prob
        target = (reward + 0.9 * not_done * lowest).detach()
        adam[1].zero_grad()
        sum(torch.nn.functional.mse_loss(q(net, obs, action), target) for net in critics).backward()  # type: ignore[union-attr]
        adam[1].step()
        new_action, log_prob = sampled(obs, noise[0, 1, :, 0])
        loss = (alpha * log_prob - torch.stack([q(net, obs, new_action) for net in critics]).min(0).values).mean()
        adam[0].zero_grad()
        loss.backward()
        adam[0].step()
        adam[2].zero_grad()
        (-(log_alpha * (log_prob.detach() - D)).mean()).backward()
        adam[2].step()
        polyak(targets, critics, 0.1)
        assert_equal_nets(algorithm, "actor", [actor])
        assert_equal_nets(algorithm, "critic", critics)
        torch.testing.assert_close(algorithm.temperature[0], log_alpha.exp().detach())


def test_temperature_moves_entropy_towards_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    for target_entropy, decreases in ((-50.0, True), (50.0, False)):
        monkeypatch.setattr("finrl_pod.rl.algorithms.actor_critic.TARGET_ENTROPY", target_entropy)
        algorithm = make("sac")
        algorithm._update(batch(), draw(1, 2, B, 1, D), 1.0)
        assert bool(algorithm.temperature[0] < 1) is decreases


def test_redq_targets_use_a_random_subset_and_the_delayed_actor_the_mean() -> None:
    algorithm = make("redq", critics=5, critic_subset=2, policy_delay=3)
    data, noise = batch(), draw(1, 2, B, 1, D)
    critic_values = algorithm.values(algorithm.train_state.targets["critic"].views, data.next_obs, data.action, 5)
    assert torch.equal(combine_values(critic_values, algorithm.actor_rule), critic_values.mean(1))
    generator = algorithm._update_noises.members[0]
    before = generator.get_state()
    next_values = algorithm.next_values(data.next_obs, data.action)
    generator.set_state(before)
    one, two = torch.randperm(5, generator=generator)[:2].tolist()
    assert torch.equal(next_values, torch.minimum(critic_values[:, one], critic_values[:, two]))
    moved = []
    for _ in range(6):
        weights = algorithm.train_state.parts["actor"].parameters.flat.clone()
        algorithm.updates += 1
        algorithm._update(data, noise, 1.0)
        moved.append(not torch.equal(weights, algorithm.train_state.parts["actor"].parameters.flat))
    assert moved == [False, False, True, False, False, True]


@pytest.mark.parametrize("name", ["dqn", "double_dqn", "dueling_dqn", "d3qn"])
def test_q_learning_updates_match_plain_torch(name: str) -> None:
    """Huber loss to the target network's best next value; double variants select the action with the online network."""
    actions = 4
    algorithm = make(name, gamma=0.9, max_grad_norm=1e9, tau=1.0, target_interval=3)
    (net,), (target,) = torch_modules(algorithm, "values"), torch_modules(algorithm, "values")
    adam, data = torch.optim.Adam(net.parameters(), 1e-2), batch(actions)
    obs, next_obs = data.obs.account[0, :, 0], data.next_obs.account[0, :, 0]
    action, reward, not_done = data.action[0, :, 0], data.reward[0, :, 0], data.not_done[0, :, 0]

    def values(network: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        out = network(x)
        return dueling_values(out[:, :1], out[:, 1:]) if name in ("dueling_dqn", "d3qn") else out

    for update in range(1, 8):
        algorithm.updates += 1
        algorithm._update(data, torch.zeros(1, 0), 1.0)
        ahead = values(target, next_obs)
        if name in ("double_dqn", "d3qn"):
            best = ahead.gather(1, values(net, next_obs).argmax(1, keepdim=True))[:, 0]
        else:
            best = ahead.max(1).values
        target_values = (reward + 0.9 * not_done * best).detach()
        adam.zero_grad()
        torch.nn.functional.smooth_l1_loss(
            values(net, obs).gather(1, action.view(-1, 1))[:, 0], target_values
        ).backward()
        adam.step()
        if update % 3 == 0:
            target.load_state_dict(net.state_dict())
        assert_equal_nets(algorithm, "values", [net])


def test_double_q_targets_are_lower_than_plain_targets() -> None:
    """Checks that the double and plain variants of the test above differ."""
    data = batch(4)
    algorithm = make("double_dqn")
    algorithm.train_state.targets["values"].flat += draw(*algorithm.train_state.targets["values"].flat.shape, seed=9)
    plain = algorithm.network.forward(algorithm.train_state.targets["values"].views, data.next_obs).amax(-1)
    assert (algorithm.next_values(data.next_obs) < plain - 1e-6).any()


def test_epsilon_decreases_linearly_to_its_final_value() -> None:
    algorithm = make("dqn", final_epsilon=0.1, exploration_samples=100)
    epsilons = []
    for samples in (0, 50, 100, 500):
        algorithm.set_age(0, samples)
        epsilons.append(float(algorithm.epsilon[0]))
    assert epsilons == pytest.approx([1.0, 0.55, 0.1, 0.1])


def test_gradients_are_clipped_for_each_member_and_critic() -> None:
    algorithm = make("ddpg", critics=2, max_grad_norm=1e-3)
    metrics = algorithm._update(batch(), torch.zeros(1, 0), 1.0)
    assert float(metrics[2][0]) > 1e-3, "the norm is reported before clipping"
    first = algorithm.train_state.parts["critic"].optimiser.first  # 0.1 * the clipped gradient
    torch.testing.assert_close(first.norm(dim=1), torch.full((2,), 1e-4, dtype=DOUBLE))
