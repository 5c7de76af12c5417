"""Updates of PPO and A2C equal Stable-Baselines3's, from equal weights and the same rollout."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from finrl_pod_envs.gymnasium_pool.env import GymnasiumVecEnv

from finrl_pod.rl.algorithms.ppo import PPO, flatten
from finrl_pod.rl.experience import to_items
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import A2CConfig, PPOConfig

ENVS, HORIZON, RATE = 4, 16, 1e-2
PENDULUM, CARTPOLE = "Pendulum-v1", "CartPole-v1"
SHARED: dict[str, Any] = {
    "policy": "mlp", "hidden": (8, 6), "horizon": HORIZON, "learning_rate": RATE, "gamma": 0.9, "gae_lambda": 0.8,
    "group_baseline": False, "scale_rewards": False, "entropy_coefficient": 0.01,
    "value_coefficient": 0.4, "max_grad_norm": 0.3, "optimiser_epsilon": 1e-5,
}  # fmt: skip
EPOCHS: dict[str, Any] = {"epochs": 3, "minibatches": 1, "target_kl": 1e9, "clip_range": 0.05}
GSDE: dict[str, Any] = {"use_sde": True, "log_std_init": -2.0, "orthogonal_init": False}


def make_sb3_model(env: str, config: PPOConfig | A2CConfig) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import stable_baselines3
        from stable_baselines3.common.env_util import make_vec_env
        from stable_baselines3.common.logger import Logger
    settings: dict[str, Any] = {
        "n_steps": HORIZON, "learning_rate": RATE, "gamma": 0.9, "gae_lambda": 0.8, "ent_coef": 0.01, "vf_coef": 0.4,
        "max_grad_norm": 0.3, "use_sde": config.use_sde, "device": "cpu", "seed": 0,
        "policy_kwargs": {
            "net_arch": [8, 6], "log_std_init": config.log_std_init, "ortho_init": config.orthogonal_init,
            "activation_fn": {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[config.activation],
        },
    }  # fmt: skip
    make: Any = stable_baselines3.A2C
    if isinstance(config, PPOConfig):
        make = stable_baselines3.PPO
        settings |= {"n_epochs": config.epochs, "batch_size": HORIZON * ENVS, "clip_range": config.clip_range}
    model = make("MlpPolicy", make_vec_env(env, n_envs=ENVS), **settings)
    model.set_logger(Logger(None, []))
    return model


def our_weights(policy: Any) -> dict[str, torch.Tensor]:
    """Stable-Baselines3's weights with this project's parameter names."""
    state = policy.state_dict()
    weights = {"log_std": state["log_std"]} if "log_std" in state else {}
    for tower, nets, last in (("actor", "policy_net", "action_net"), ("critic", "value_net", "value_net")):
        layers = [f"mlp_extractor.{nets}.0", f"mlp_extractor.{nets}.2", last]
        for i, layer in enumerate(layers):
            weights[f"{tower}_{f'w{i}' if i else 'own_w'}"] = state[f"{layer}.weight"].T
            weights[f"{tower}_b{i}"] = state[f"{layer}.bias"]
        weights[f"{tower}_table_w"] = torch.zeros(0, 8)
    return {name: x.clone() for name, x in weights.items()}


@pytest.mark.parametrize(
    ("env", "config"),
    [
        (PENDULUM, PPOConfig(**SHARED, **EPOCHS)),
        (PENDULUM, PPOConfig(**SHARED, **EPOCHS, **GSDE, activation="relu")),
        (CARTPOLE, PPOConfig(**SHARED, **EPOCHS)),
        (PENDULUM, A2CConfig(**SHARED, **GSDE, optimiser="rmsprop")),
        (CARTPOLE, A2CConfig(**SHARED, optimiser="rmsprop")),
    ],
    ids=["ppo", "ppo-gsde-relu", "ppo-discrete", "a2c-gsde", "a2c-discrete"],
)
def test_update_equals_stable_baselines3(env: str, config: PPOConfig | A2CConfig) -> None:
    model = make_sb3_model(env, config)
    learner = Learner(GymnasiumVecEnv(f"gym:{env}", envs=ENVS), config, seed=2)
    algorithm = learner.algorithm
    assert isinstance(algorithm, PPO)
    before = our_weights(model.policy)
    algorithm.load_member(0, before, algorithm.member(0)[1])
    noise = algorithm.noise((ENVS, 1, algorithm.spec.action_size))
    rollout = learner.collector.collect(algorithm.explore, noise, algorithm.running)
    values, advantage, target = algorithm._advantages(rollout)
    _, account, action, log_prob, advantage, target = flatten(rollout, advantage, target)
    values = to_items(values)

    def per_env(x: torch.Tensor) -> np.ndarray:
        """[1, H * E, 1, ...] -> [H, E, ...]"""
        return x[0, :, 0].reshape(HORIZON, ENVS, *x.shape[3:]).numpy()

    buffer = model.rollout_buffer
    buffer.observations, buffer.actions = per_env(account), per_env(action).astype(np.float32)
    buffer.values, buffer.log_probs = per_env(values), per_env(log_prob)
    buffer.advantages, buffer.returns = per_env(advantage), per_env(target)
    buffer.full, buffer.generator_ready = True, False
    model._current_progress_remaining = 1.0
    model.train()
    algorithm.update(rollout)
    expected, updated = our_weights(model.policy), algorithm.member(0)[0]
    changes = [float((expected[name] - before[name]).abs().max()) for name in expected if before[name].numel()]
    assert max(changes) > RATE / 2
    for name, value in expected.items():
        torch.testing.assert_close(
            updated[name], value, rtol=1e-4, atol=RATE * 1e-2, msg=lambda m, name=name: f"{name}: {m}"
        )
