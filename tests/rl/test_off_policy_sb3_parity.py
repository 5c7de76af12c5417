"""Updates of DQN, DDPG, TD3 and SAC equal Stable-Baselines3's, from equal weights and the same batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from finrl_pod.rl.algorithms.actor_critic import SAC
from finrl_pod.rl.algorithms.off_policy import Batch, OffPolicy
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import DDPGConfig, DQNConfig, OffPolicyConfig, SACConfig, TD3Config
from finrl_pod.types import Tensor

UPDATES, ENVS, RATE, WARMUP = 6, 4, 1e-2, 60
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
NO_LIMIT = 1e9
SHARED: dict[str, Any] = {
    "policy": "mlp", "hidden": (8, 6), "learning_rate": RATE, "gamma": 0.9, "scale_rewards": False,
    "learning_starts": WARMUP, "batch_size": 32, "buffer_size": 400, "tau": 0.1, "max_grad_norm": NO_LIMIT,
}  # fmt: skip
CASES = {
    "dqn": (CARTPOLE, DQNConfig(**{**SHARED, "max_grad_norm": 0.5}, target_interval=10_000)),
    "ddpg": (PENDULUM, DDPGConfig(**SHARED)),
    "td3": (PENDULUM, TD3Config(**SHARED, target_noise=0.0)),  # target noise is tested in test_off_policy
    "sac": (PENDULUM, SACConfig(**SHARED)),
}


def make_sb3_model(name: str, env: str, config: OffPolicyConfig) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import stable_baselines3
        from stable_baselines3.common.logger import Logger
    settings: dict[str, Any] = {
        "learning_rate": RATE, "gamma": 0.9, "tau": 0.1, "batch_size": 32, "device": "cpu", "seed": 0,
        "policy_kwargs": {"net_arch": [8, 6]}, "buffer_size": 10,
    }  # fmt: skip
    if isinstance(config, DQNConfig):
        settings["max_grad_norm"] = config.max_grad_norm
    if isinstance(config, TD3Config):
        settings["target_policy_noise"] = 0.0
    model = getattr(stable_baselines3, name.upper())("MlpPolicy", env, **settings)
    model.set_logger(Logger(None, []))
    model._current_progress_remaining = 1.0
    return model


def layers(state: dict[str, Tensor], *names: str) -> dict[str, Tensor]:
    """Stable-Baselines3's linear layers with this project's parameter names."""
    pairs = {}
    for i, name in enumerate(names):
        heads = name.split("+")  # heads are concatenated
        pairs[f"w{i}"] = torch.cat([state[f"{head}.weight"] for head in heads]).T
        pairs[f"b{i}"] = torch.cat([state[f"{head}.bias"] for head in heads])
    return pairs


def our_weights(name: str, model: Any) -> dict[str, list[dict[str, Tensor]]]:
    """Stable-Baselines3's weights by part: one dict per row of its parameters."""
    state = model.policy.state_dict()
    if name == "dqn":
        return {"values": [layers(state, *(f"q_net.q_net.{i}" for i in (0, 2, 4)))]}
    actor = [f"actor.mu.{i}" for i in (0, 2, 4)]
    if name == "sac":
        actor = ["actor.latent_pi.0", "actor.latent_pi.2", "actor.mu+actor.log_std"]
    critics = 1 if name == "ddpg" else 2
    return {
        "actor": [layers(state, *actor)],
        "critic": [layers(state, *(f"critic.qf{n}.{i}" for i in (0, 2, 4))) for n in range(critics)],
    }


def sb3_batch(batch: Batch, action_like: Any) -> Any:
    """Convert a batch to the type that Stable-Baselines3's replay buffer returns."""

    def rows(x: Tensor) -> Tensor:
        return x.reshape(32, -1)

    return SimpleNamespace(
        observations=rows(batch.obs.flat()),
        next_observations=rows(batch.next_obs.flat()),
        actions=rows(batch.action).to(action_like),
        rewards=rows(batch.reward),
        dones=1 - rows(batch.not_done),
        discounts=None,
    )


@pytest.fixture
def sb3_noise(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Queue of values that Stable-Baselines3's normal distributions return instead of sampling."""
    from torch.distributions import normal

    draws: list[Tensor] = []

    def next_noise(shape: Any, **_: Any) -> Tensor:
        return draws.pop(0).view(shape)

    monkeypatch.setattr(normal, "_standard_normal", next_noise)
    return draws


@pytest.mark.parametrize("name", list(CASES))
def test_updates_equal_stable_baselines3(name: str, sb3_noise: list[Tensor]) -> None:
    env, config = CASES[name]
    model = make_sb3_model(name, env, config)
    learner = Learner(GymnasiumVecEnv(f"gym:{env}", envs=ENVS), config, seed=2)
    learner.learn(WARMUP - ENVS)  # random actions fill the replay buffer; no updates yet
    ours = learner.algorithm
    assert isinstance(ours, OffPolicy)
    assert ours.updates == 0
    before = our_weights(name, model)
    for part, rows in before.items():
        for i, row in enumerate(rows):
            ours.train_state.parts[part].parameters.load(i, row)
    for target in ours.train_state.targets:
        for i, row in enumerate(ours.train_state.parts[target].parameters.flat):
            ours.train_state.targets[target].flat[i].copy_(row)
    ours._fix_reward_scale()
    batches = ours._batches(UPDATES)

    batch_iterator: Iterator[Batch] = (batch for batch, _ in batches)
    action_like = torch.zeros((), dtype=torch.int64 if name == "dqn" else torch.float32)
    model.replay_buffer.sample = lambda *_, **__: sb3_batch(next(batch_iterator), action_like)
    for _, noise in batches:
        if name == "sac":  # Stable-Baselines3 samples for the state first, finrl_pod for the next state
            sb3_noise += [noise[:, 1], noise[:, 0]]
    model.train(gradient_steps=UPDATES, batch_size=32)
    for batch, noise in batches:
        ours.updates += 1
        ours._update(batch, noise, 1.0)

    largest_change = 0.0
    for part, rows in our_weights(name, model).items():
        views = ours.train_state.detached(part)
        for i, row in enumerate(rows):
            for key, value in row.items():
                label = f"{part} {i} {key}"
                largest_change = max(largest_change, float((value - before[part][i][key]).abs().max()))
                assert torch.allclose(views[key][i], value, rtol=1e-4, atol=RATE * 1e-2), label
    assert largest_change > RATE
    if isinstance(ours, SAC):
        assert ours.temperature.log().item() == pytest.approx(model.log_ent_coef.item(), rel=1e-4)
