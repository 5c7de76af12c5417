"""An environment that fills honestly and rewards the new holdings with the move before their fill."""

import dataclasses

import torch
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import EnvStep, Tensor
from tests.evaluate.audit import pipelines

EXPECTED = ("fills", "the environment's reward")


class HindsightReward(PortfolioEnv):
    def step(self, action: Tensor, out: Tensor | None = None) -> EnvStep:
        assert self.state is not None
        bar = self.state.bar
        outcome = super().step(action, out)
        move = self.market.close[bar + 1] / self.market.close[bar]  # [P, G, N]
        move = move.repeat_interleave(self.accounts, 1)
        held = outcome.final_observation.account
        weights = held[..., 1 : 1 + self.assets] / held[..., : 1 + self.assets].sum(-1, keepdim=True)
        return outcome._replace(reward=torch.log1p((weights * (move - 1)).sum(-1)).float())


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, make_env=pipelines.environment(HindsightReward))
