"""skrl's SequentialTrainer trains on our market through its Isaac Lab wrapper."""

from __future__ import annotations

from typing import Any

import torch
from finrl_pod_envs.simulators.exports import ExportedIsaacLab
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn

from tests.simulators import leaked_market


def network(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, outputs))


class Policy(GaussianMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.full((self.num_actions,), -0.5))

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: Any, role: str = "") -> Any:
        return self.net(inputs["observations"]), {}


def test_trainer_earns_what_our_ppo_does(tmp_path: Any) -> None:
    torch.manual_seed(1)
    env = wrap_env(ExportedIsaacLab(leaked_market.Scaled(), seed=1), wrapper="isaaclab-single-agent")
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space, "device": "cpu"}
    models = {"policy": Policy(**spaces), "value": Value(**spaces)}
    cfg = PPO_CFG(
        rollouts=leaked_market.HORIZON, learning_epochs=5, mini_batches=4, discount_factor=0.95, gae_lambda=0.9,
        learning_rate=1e-3, value_loss_scale=1.0,
    )  # fmt: skip
    cfg.experiment.directory, cfg.experiment.write_interval, cfg.experiment.checkpoint_interval = str(tmp_path), 0, 0
    memory = RandomMemory(memory_size=leaked_market.HORIZON, num_envs=env.num_envs, device="cpu")
    agent = PPO(models=models, memory=memory, cfg=cfg, **spaces)
    timesteps = leaked_market.HORIZON * leaked_market.ITERATIONS
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": timesteps, "disable_progressbar": True, "headless": True}
    ).train()
    leaked_market.check(models["policy"].net)
