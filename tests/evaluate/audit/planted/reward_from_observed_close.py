"""An environment that fills honestly and rewards the account's change from the observed close."""

import dataclasses

import torch
from finrl_pod_envs.trading_envs import PortfolioEnv

from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.types import EnvStep, Observation, Tensor
from tests.evaluate.audit import pipelines

EXPECTED = ("fills", "the environment's reward")


class EarlyReward(PortfolioEnv):
    def reset(self, seed: int, *, stagger: bool = True) -> Observation:
        self.before = torch.full((self.members, self.envs), self.config.cash)
        return super().reset(seed, stagger=stagger)

    def step(self, action: Tensor, out: Tensor | None = None) -> EnvStep:
        outcome = super().step(action, out)
        reward = torch.log(outcome.equity / self.before)
        done = outcome.terminated | outcome.truncated
        self.before = torch.where(done, self.config.cash, outcome.equity)
        return outcome._replace(reward=reward)


def plant(sound: Pipeline) -> Pipeline:
    return dataclasses.replace(sound, make_env=pipelines.environment(EarlyReward))
