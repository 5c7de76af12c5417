"""An environment whose first fills are honest and whose later ones are at the observed close."""

import dataclasses
from typing import Any

import torch
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.types import EnvStep, MarketTensor, Tensor
from tests.evaluate.audit import pipelines

EXPECTED = ("fills", "the environment's fill price")
HONEST_STEPS = 10


class LaterSameClose(PortfolioEnv):
    steps_taken = 0

    def __init__(self, market: MarketTensor, config: EnvironmentConfig, **options: Any) -> None:
        super().__init__(market, config, **options)
        self._native = None

    def step(self, action: Tensor, out: Tensor | None = None) -> EnvStep:
        self.steps_taken += 1
        if self.steps_taken == HONEST_STEPS:
            self.fill = torch.as_tensor(self.close).clone()
        return super().step(action, out)


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, make_env=pipelines.environment(LaterSameClose))
