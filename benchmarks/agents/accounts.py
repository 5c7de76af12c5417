"""What the study of agents trains and measures: policies, and the returns of their accounts on a market."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from finrl_pod_envs.trading_envs import make_env

from finrl_pod.data.splits import REWARD_LAG
from finrl_pod.evaluate.backtest import Ledger
from finrl_pod.evaluate.metrics import simple_returns
from finrl_pod.rl.acting import Actor, MeanActor, run_members
from finrl_pod.rl.algorithms.closed_form import SCORE_SCALE, scaled, solved_weights
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig
from finrl_pod.types import Floats, MarketTensor, Tensor

SCORE_ROWS = 250  # bars on which the scale of policy scores is measured


class Problem(NamedTuple):
    """A market with its rules. train, test: first and last bar."""

    market: MarketTensor
    environment: EnvironmentConfig
    mandate: MandateConfig
    train: tuple[int, int]
    test: tuple[int, int]


class Agents(NamedTuple):
    """P agents of one kind. params: tensors [P, ...] by name."""

    actor: Actor
    params: Mapping[str, Tensor]


class Ensemble:
    """Actor of ensembles: mean relative tilt of M members each. Members are P M rows of the parameters."""

    def __init__(self, actor: Actor, members: int) -> None:
        self.actor = actor
        self.members = members
        self.spec = actor.spec

    def action(
        self, params: Mapping[str, Tensor], features: Tensor, account: Tensor, tradable: Tensor | None
    ) -> Tensor:
        """Scores [P, K, A, N]. params: [P M, ...]; a leading dimension of 1 of `account` counts as P M."""
        inputs = [None if x is None else x.repeat_interleave(self.members, 0) for x in (features, account, tradable)]
        scores = self.actor.action({k: x.flatten(0, 1) for k, x in params.items()}, *inputs)  # type: ignore[arg-type]
        tilts = torch.tanh(scores.double()).reshape(-1, self.members, *scores.shape[1:]).mean(1)
        return torch.atanh(tilts.clamp(-0.9999, 0.9999))


def ensembles(agents: Agents, members: int) -> Agents:
    """Each `members` agents in a row as one agent."""
    params = {name: x.reshape(-1, members, *x.shape[1:]) for name, x in agents.params.items()}
    return Agents(Ensemble(agents.actor, members), params)


def ledger(
    problem: Problem, agents: Agents, span: tuple[int, int] | None = None, environment: EnvironmentConfig | None = None
) -> Ledger:
    """Accounts of the agents on the test bars, or on others. environment: rules; None for the rules of the problem."""
    first, last = span or problem.test
    rules = environment or problem.environment
    return run_members(agents.actor, agents.params, problem.market, rules, first, last, problem.mandate)


def returns(
    problem: Problem, agents: Agents, span: tuple[int, int] | None = None, environment: EnvironmentConfig | None = None
) -> Floats:
    """Simple returns [P, T] of the agents' accounts; arguments as for `ledger`."""
    return np.asarray(simple_returns(ledger(problem, agents, span, environment).equity.numpy()).T)


def linear(problem: Problem, weights: Tensor) -> Agents:
    """Agents whose scores are linear in the features. weights: [P, F]."""
    _, assets, features = problem.market.shape
    spec = PolicySpec("linear", assets, features, assets, (), action="tilt")
    return Agents(MeanActor(spec), {"linear_w": weights.float()})


def closed_form_weights(problem: Problem) -> Tensor:
    first = max(problem.train[0], problem.market.first)
    last = problem.train[1] - REWARD_LAG
    return solved_weights(problem.market, problem.environment, problem.mandate, first, last)


def fixed_tilt(problem: Problem, feature: str, sign: float = 1.0) -> Tensor:
    """Weights [F] of scores that are one feature, at the scale of the solved policy."""
    unit = np.zeros(problem.market.shape[2])
    unit[problem.market.feature_names.index(feature)] = sign
    return scaled(unit, problem.market, max(problem.train[0], problem.market.first), problem.train[1])


def train_agents(problem: Problem, agent: AgentConfig, samples: int, members: int, seed: int, start: Tensor) -> Agents:
    """Agents trained on the training bars from a linear start [F]."""
    env = make_env(
        problem.market,
        problem.environment,
        members=range(members),
        first=problem.train[0],
        last=problem.train[1] - REWARD_LAG,
        mandate=problem.mandate,
    )
    learner = Learner(env, agent, seed=seed, start=start)
    learner.learn(samples)
    return Agents(learner.algorithm.actor, learner.algorithm.weights())


def at_score_scale(problem: Problem, agents: Agents) -> Agents:
    """Equivariant agents whose scores at the base have the same standard deviation as the solved policy in training."""
    spec = agents.actor.spec
    members = len(agents.params["linear_w"])
    rows = torch.linspace(max(problem.train[0], problem.market.first), problem.train[1], SCORE_ROWS).long()
    tradable = problem.market.tradable[rows]
    base = tradable / tradable.sum(-1, keepdim=True)
    account = torch.cat([torch.zeros(len(rows), 1), base], -1).expand(members, -1, -1).unsqueeze(2)
    features = problem.market.features[rows].expand(members, -1, -1, -1)
    mask = None if bool(tradable.all()) else tradable.expand(members, -1, -1)
    assert spec.kind == "equivariant"
    assert not spec.has_extras
    # Heads of an actor pass through a tanh, whose spread is reached in steps; scores of a policy are linear in them.
    heads = ("score_w", "linear_w") if "score_w" in agents.params else ("head_w", "head_b", "linear_w")
    params = dict(agents.params)
    for _ in range(20):
        with torch.no_grad():
            scores = agents.actor.action(params, features, account, mask)[:, :, 0]
        deviations = scores - (scores * tradable).sum(-1, keepdim=True) / tradable.sum(-1, keepdim=True)
        scale = SCORE_SCALE / deviations[:, tradable].std(1).clamp(min=1e-6)
        params |= {name: params[name] * scale.view(-1, *[1] * (params[name].dim() - 1)) for name in heads}
    return Agents(agents.actor, params)
