"""rsl_rl's OnPolicyRunner trains on our market."""

from __future__ import annotations

import torch
from finrl_pod_envs.custom.contract import check_env
from finrl_pod_envs.custom.template import Drift
from finrl_pod_envs.simulators.adapters import RslRlEnv
from finrl_pod_envs.simulators.exports import ExportedRslRl
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict

from tests.simulators import leaked_market

NETWORK = {"class_name": "MLPModel", "hidden_dims": [32, 32], "activation": "tanh"}
CONFIG = {
    "num_steps_per_env": leaked_market.HORIZON,
    "save_interval": 1_000_000,
    "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
    "algorithm": {
        "class_name": "PPO", "learning_rate": 1e-3, "schedule": "fixed", "gamma": 0.95, "lam": 0.9,
        "entropy_coef": 0.0, "num_learning_epochs": 5, "num_mini_batches": 4,
    },
    "actor": {**NETWORK, "distribution_cfg": {"class_name": "GaussianDistribution", "init_std": 0.6}},
    "critic": NETWORK,
}  # fmt: skip


def test_runner_earns_what_our_ppo_does() -> None:
    torch.manual_seed(1)
    env = ExportedRslRl(leaked_market.Scaled(), seed=1)
    runner = OnPolicyRunner(env, CONFIG, log_dir=None, device="cpu")
    runner.learn(leaked_market.ITERATIONS)
    policy = runner.get_inference_policy(device="cpu")
    leaked_market.check(lambda rows: policy(TensorDict({"policy": rows}, batch_size=[len(rows)])))


def test_interface_is_that_of_rsl_rl() -> None:
    env = ExportedRslRl(Drift(envs=4), max_episode_length=64)
    assert set(VecEnv.__annotations__) <= set(dir(env))
    groups, reward, done, extras = env.step(torch.zeros(4, 1))
    assert isinstance(groups, TensorDict)
    assert (reward.shape, done.shape, extras["time_outs"].shape) == ((4,), (4,), (4,))


def test_exported_environment_can_be_taken_back() -> None:
    assert check_env(lambda envs, members: RslRlEnv(ExportedRslRl(Drift(envs=envs))), members=(0,)) == []
