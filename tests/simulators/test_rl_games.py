"""rl_games' Runner trains on our market as a vectorised environment."""

from __future__ import annotations

import os
from typing import Any

import torch
from finrl_pod_envs.simulators.exports import ExportedVecTask, register_rl_games
from rl_games.torch_runner import Runner

from tests.simulators import leaked_market

NAME = "leaked_market"


def config(folder: str) -> dict[str, Any]:
    return {
        "params": {
            "seed": 1,
            "torch_threads": 1,
            "algo": {"name": "a2c_continuous"},
            "model": {"name": "continuous_a2c_logstd"},
            "network": {
                "name": "actor_critic",
                "separate": True,
                "space": {
                    "continuous": {
                        "mu_activation": "None",
                        "sigma_activation": "None",
                        "mu_init": {"name": "default"},
                        "sigma_init": {"name": "const_initializer", "val": -0.5},
                        "fixed_sigma": True,
                    }
                },
                "mlp": {"units": [32, 32], "activation": "tanh", "initializer": {"name": "default"}},
            },
            "config": {
                "name": NAME, "env_name": NAME, "env_config": {}, "device": "cpu", "device_name": "cpu",
                "train_dir": folder, "torch_compile": False, "ppo": True, "mixed_precision": False,
                "num_actors": leaked_market.ENVS, "horizon_length": leaked_market.HORIZON,
                "minibatch_size": leaked_market.ENVS * leaked_market.HORIZON // 4, "mini_epochs": 5,
                "max_epochs": leaked_market.ITERATIONS, "gamma": 0.95, "tau": 0.9, "learning_rate": 1e-3,
                "lr_schedule": "constant", "kl_threshold": 0.016, "e_clip": 0.2, "critic_coef": 1, "clip_value": False,
                "entropy_coef": 0.0, "truncate_grads": True, "grad_norm": 0.5, "bounds_loss_coef": 0.0,
                "normalize_input": False, "normalize_value": False, "normalize_advantage": True,
                "value_bootstrap": True, "reward_shaper": {"scale_value": 1.0}, "score_to_win": 1e9,
                "save_best_after": 10_000, "save_frequency": 0, "print_stats": False,
            },
        }
    }  # fmt: skip


def test_runner_earns_what_our_ppo_does(tmp_path: Any) -> None:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    register_rl_games(NAME, lambda: ExportedVecTask(leaked_market.Scaled(), seed=1))
    runner = Runner()
    runner.load(config(str(tmp_path)))
    trained: list[Any] = []
    make = runner.algo_factory.create
    runner.algo_factory.create = lambda *a, **k: trained.append(make(*a, **k)) or trained[-1]  # type: ignore[method-assign]
    runner.run({"train": True})
    model = trained[0].model.eval()

    def act(rows: torch.Tensor) -> torch.Tensor:
        found = model({"is_train": False, "prev_actions": None, "obs": rows, "rnn_states": None})
        mean: torch.Tensor = found["mus"]
        return mean

    leaked_market.check(act)
