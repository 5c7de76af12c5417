"""A2C's update against the policy gradient computed with torch.distributions and torch.optim.Adam."""

from __future__ import annotations

import pytest
import torch
from torch.distributions import Normal

from finrl_pod.errors import ConfigError
from finrl_pod.rl.algorithms.a2c import A2C
from finrl_pod.rl.experience import RolloutCollector
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig
from tests.markets import random_market
from tests.rl.reference_gae import Trajectory, reference_gae
from tests.rl.small_learners import small_env

RATE, LIMIT = 1e-2, 0.05
SETTINGS = {"gamma": 0.9, "gae_lambda": 0.8, "entropy_coefficient": 0.02, "value_coefficient": 0.7}


@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("baseline", [False, True])
def test_update_is_one_step_of_the_policy_gradient(policy: str, baseline: bool) -> None:
    env = small_env(market=random_market(2, gaps=0.1, starts={1: 12}))
    shape = {"policy": policy, "hidden": (6, 5), "horizon": 8, "group_baseline": baseline}
    config = A2CConfig(**{**shape, **SETTINGS, "learning_rate": RATE, "max_grad_norm": LIMIT})
    learner = Learner(env, config, seed=3, dtype=torch.float64)
    a2c = learner.algorithm
    assert isinstance(a2c, A2C)
    rollout = RolloutCollector(env, 0).collect(a2c.explore, a2c.noise((env.groups, env.accounts, env.action_size)))
    assert rollout.truncated.any()

    weights = {name: x.unsqueeze(0).requires_grad_() for name, x in a2c.parameters.member(0).items()}
    before = [x.detach().clone() for x in weights.values()]
    values, next_values = a2c._values(rollout)  # tested in test_rollout
    scaled = rollout.reward / rollout.reward.std()
    parts = (scaled, values, next_values, rollout.terminated, rollout.truncated)
    trajectory = Trajectory(*(x.flatten(2) for x in parts))
    advantages = [reference_gae(trajectory, 0, e, 0.9, 0.8) for e in range(env.envs)]
    advantage = torch.tensor(advantages, dtype=torch.float64).T.reshape(rollout.reward.shape)
    target = advantage + values
    if baseline:
        advantage = advantage - advantage.mean(-1, keepdim=True)
    features, tradable = a2c.inputs.of_actor({}, rollout.bar.reshape(1, -1))
    account = rollout.account.reshape(1, 8 * env.groups, env.accounts, -1)
    out = a2c.policy.forward(weights, features, account, tradable)
    mean = out.mean.view(rollout.action.shape)
    normal = Normal(mean, weights["log_std"][0].exp().expand_as(mean))
    valid = torch.ones(mean.shape, dtype=torch.bool)
    valid[..., 1:] = tradable.view(8, 1, env.groups, 1, -1)  # the score of cash is always valid
    log_prob, entropy = ((x * valid).sum(-1) for x in (normal.log_prob(rollout.action), normal.entropy()))
    loss = -(log_prob * advantage).mean()
    loss = loss + 0.7 * ((out.value.view(target.shape) - target) ** 2).mean() - 0.02 * entropy.mean()

    optimiser = torch.optim.Adam(list(weights.values()), lr=RATE)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(list(weights.values()), LIMIT)
    assert norm > LIMIT
    optimiser.step()
    metrics = a2c.update(rollout)
    assert float(metrics["grad_norm"][0]) == pytest.approx(float(norm), rel=1e-9)
    for (name, expected), old in zip(weights.items(), before, strict=True):
        torch.testing.assert_close(a2c.parameters.views[name], expected, rtol=1e-7, atol=1e-8)
        assert name == "log_std" or not torch.equal(expected, old)


def test_settings_of_ppo_are_rejected() -> None:
    with pytest.raises(ConfigError, match="a2c has no hyperparameter 'clip_range'"):
        Learner(small_env(), A2CConfig(horizon=4), hyperparameters=[{"clip_range": 0.1}])
    with pytest.raises(ConfigError, match=r"agent.horizon must be at most the window of 8 bars, got 9"):
        Learner(small_env(), A2CConfig(horizon=9))
