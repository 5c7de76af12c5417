"""Off-policy algorithms: invalid settings, network inputs, equivariance, reward scale and warm-up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.errors import ConfigError
from finrl_pod.market.actions import scores_to_weights
from finrl_pod.rl.networks.inputs import SCORE_SCALE, MarketAdapter, ModelInput, spec_of
from finrl_pod.rl.networks.off_policy_networks import EquivariantActor, EquivariantCritic, EquivariantQ
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import SACConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from finrl_pod.settings.run import EnvironmentConfig
from tests.markets import random_market
from tests.rl.all_algorithms import NAMES, small_config, small_learner
from tests.rl.test_off_policy import FlatEnv

INVALID_SETTINGS: dict[str, tuple[str, dict[str, Any], str]] = {
    "batch_size": (
        "sac",
        {"batch_size": 90},
        "agent.batch_size must be at most agent.buffer_size, got 90 and 60",
    ),
    "group": ("td3", {"batch_size": 10}, "agent.batch_size must be a multiple of environment.group, got 10 and 3"),
    "buffer_size": (
        "ddpg",
        {"batch_size": 3, "buffer_size": 3},
        "agent.buffer_size must hold a step of all 6 environments, got 3",
    ),
    "gradient_steps": ("sac", {"gradient_steps": 0}, "agent.gradient_steps is out of its range, got 0"),
    "too many updates": ("sac", {"gradient_steps": 10**20}, f"agent.gradient_steps is out of its range, got {10**20}"),
    "learning_starts": ("sac", {"learning_starts": -1}, "agent.learning_starts is out of its range, got -1"),
    "critics": ("sac", {"critics": 0}, "agent.critics is out of its range, got 0"),
    "critic_subset": (
        "redq",
        {"critic_subset": 9},
        "agent.critic_subset must be between 1 and agent.critics = 4, got 9",
    ),
    "delay": ("td3", {"policy_delay": 0}, "agent.policy_delay is out of its range, got 0"),
    "temperature": ("sac", {"temperature": 0.0}, "agent.temperature is out of its range, got 0.0"),
    "rate": ("sac", {"tau": 0.0}, "agent.tau is out of its range, got 0.0"),
    "exploration_noise": ("ddpg", {"exploration_noise": -0.1}, "agent.exploration_noise is out of its range, got -0.1"),
    "final_epsilon": ("dqn", {"final_epsilon": 1.5}, "agent.final_epsilon is out of its range, got 1.5"),
    "interval": ("dqn", {"target_interval": 0}, "agent.target_interval is out of its range, got 0"),
}


@pytest.mark.parametrize("case", INVALID_SETTINGS)
def test_invalid_settings_are_rejected(case: str) -> None:
    name, settings, message = INVALID_SETTINGS[case]
    with pytest.raises(ConfigError) as caught:
        small_learner(name, **settings)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].actions != "both"])
def test_unsupported_action_spaces_are_rejected(name: str) -> None:
    own = ALGORITHMS[name].actions
    kind, other = ("portfolio", "continuous") if own == "discrete" else ("discrete", "discrete")
    env = make_env(random_market(), EnvironmentConfig(kind=kind, window=8, envs=6, group=3))  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        Learner(env, small_config(name))
    text = str(caught.value)
    assert text.startswith(f"agent.algorithm {name} drives {own} actions and this environment takes {other} ones")
    assert all(supported in text for supported, info in ALGORITHMS.items() if info.actions == other)


def test_market_only_settings_are_rejected_for_other_environments() -> None:
    with pytest.raises(ConfigError, match=r'agent.policy "equivariant" reads the assets of a market'):
        Learner(FlatEnv(), small_config("sac"))
    with pytest.raises(ConfigError, match=r"learns on markets alone; choose one of ppo, a2c, ddpg, td3, sac, redq$"):
        Learner(FlatEnv(), small_config("analytic", policy="mlp"))
    with pytest.raises(ConfigError, match=r"choose one of ppo, a2c, ddpg, td3, sac, redq, or another environment$"):
        Learner(FlatEnv(), small_config("dqn", policy="mlp"))


@pytest.mark.parametrize("short", [False, True])
def test_critics_receive_the_weights_of_scores(short: bool) -> None:
    market = random_market(5, bars=60, gaps=0.2)
    env = make_env(market, EnvironmentConfig(window=8, envs=6, group=3, leverage=1.5, short=short))
    inputs = MarketAdapter(env, spec_of(env, SACConfig(policy="mlp", hidden=(4,))), torch.float64)
    decoded = inputs.decode(inputs.encode(env.reset(1)))
    action = torch.rand(1, 2, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 2 - 1
    assert decoded.tradable is not None
    scores = action if short else action * SCORE_SCALE
    expected = scores_to_weights(scores, decoded.tradable.unsqueeze(2), short=short, leverage=1.5)
    torch.testing.assert_close(inputs.effect(action, decoded), expected)


K, A, N, F = 2, 3, 4, 2


@pytest.mark.parametrize("masked", [False, True])
def test_equivariant_networks_are_permutation_equivariant(masked: bool) -> None:
    generator = torch.Generator().manual_seed(2)

    def draw(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    order = torch.tensor([2, 0, 3, 1])
    with_cash = torch.cat([torch.zeros(1, dtype=torch.int64), 1 + order])
    tradable = torch.tensor([[True, False, True, True]]).expand(K, N).unsqueeze(0) if masked else None
    decoded = ModelInput(draw(1, K, A, N + 1), draw(1, K, N, F), tradable)
    assert decoded.features is not None
    permuted = ModelInput(
        decoded.account[..., with_cash],
        decoded.features[:, :, order],
        None if tradable is None else tradable[..., order],
    )

    def params(network: Any) -> dict[str, torch.Tensor]:
        tensors = network.init(generator, torch.float64)
        return {name: (x + 0.3 * draw(*x.shape)).unsqueeze(0) for name, x in tensors.items()}

    spec = PolicySpec("equivariant", N, F, N + 1, (5, 6))
    actor = EquivariantActor(spec, 2)
    weights = params(actor)
    for one, two in zip(actor.forward(weights, decoded), actor.forward(weights, permuted), strict=True):
        torch.testing.assert_close(one[..., with_cash], two)
    critic, effect = EquivariantCritic(spec), draw(1, K, A, N)
    weights = params(critic)
    torch.testing.assert_close(
        critic.forward(weights, decoded, effect), critic.forward(weights, permuted, effect[..., order])
    )
    permuted_actions = torch.cat([with_cash, 1 + N + order])
    for dueling in (False, True):
        values = EquivariantQ(PolicySpec("equivariant", N, F, 2 * N + 1, (5, 6), "discrete"), dueling=dueling)
        weights = params(values)
        torch.testing.assert_close(
            values.forward(weights, decoded)[..., permuted_actions], values.forward(weights, permuted)
        )


def test_reward_scale_is_set_once_from_the_buffer() -> None:
    learner = small_learner("sac", (0, 1), learning_starts=30)
    learner.learn(4 * learner.iteration_samples)
    assert not learner.algorithm.reward_scale.any()
    learner.learn(learner.iteration_samples)
    rewards = learner.algorithm.replay.data["reward"][:, : learner.algorithm.replay.count].flatten(1)
    scale = learner.algorithm.reward_scale.clone()
    torch.testing.assert_close(scale, 1 / rewards.std(1))
    learner.learn(3 * learner.iteration_samples)
    assert torch.equal(learner.algorithm.reward_scale, scale)
    plain = small_learner("sac", learning_starts=6, scale_rewards=False)
    plain.learn(2 * plain.iteration_samples)
    assert plain.algorithm.reward_scale.tolist() == [1.0]


def test_actions_are_random_without_updates_until_learning_starts() -> None:
    learner = small_learner("td3", learning_starts=60)
    start = small_learner("td3").algorithm.member(0)[0]
    metrics = learner.learn(9 * learner.iteration_samples)
    assert learner.algorithm.updates == 0
    assert torch.isnan(metrics["critic_loss"]).all()
    assert all(torch.equal(x, start[name]) for name, x in learner.algorithm.member(0)[0].items())
    actions = learner.algorithm.replay.data["action"][:, :18]
    assert abs(float(actions.mean())) < 0.15
    assert abs(float(actions.std()) - 3**-0.5) < 0.1
