"""Recipes: a market, an algorithm and settings that reach its optimum in seconds to minutes on one core."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from finrl_pod_envs.multi_agent.execution import ExecutionMarket

from finrl_pod.market.optimal_execution import risk_aversion_of
from finrl_pod.rl.multi_agent.training import MultiAgentAlgorithm, default_ppo
from finrl_pod.settings.algorithm_configs import PPOConfig
from finrl_pod.settings.multi_agent import ExecutionMarketConfig, MADDPGConfig, MakingMarketConfig, MarketConfig

RATIO = 3.0  # permanent over temporary impact times the horizon: equal slices are 16% of the order from equilibrium


@dataclass(frozen=True)
class Recipe:
    """What to train. samples: market steps per member. shared: one network for all agents."""

    market: MarketConfig
    agent: PPOConfig | MADDPGConfig
    envs: int
    samples: int
    algorithm: MultiAgentAlgorithm = "ippo"
    shared: bool = False


def execution(kappa_horizon: float = 3.0) -> Recipe:
    """One order in the market of Almgren and Chriss. kappa_horizon: urgency, decay rate times horizon."""
    config = ExecutionMarketConfig(within_step=0.0)
    market = ExecutionMarket(config, envs=1)
    risk = risk_aversion_of(market.impact, config.volatility, kappa_horizon / config.horizon, market.tau)
    return Recipe(dataclasses.replace(config, risk_aversion=risk), default_ppo(), 256, 300_000)


def competition(traders: int = 2) -> Recipe:
    """One trader has to buy; the others have no order and may trade ahead (Carlin, Lobo and Viswanathan 2007)."""
    config = ExecutionMarketConfig(
        orders=(1.0, *[0.0] * (traders - 1)), permanent=RATIO, temporary=1.0, horizon=1.0, volatility=1.0,
        risk_aversion=0.0, max_rate=2.0,
    )  # fmt: skip
    return Recipe(config, default_ppo(gae_lambda=1.0), 512, 500_000)


def desk(algorithm: MultiAgentAlgorithm = "mappo") -> Recipe:
    """Five agents of one desk with random orders to buy and sell, who share cost and risk and one network."""
    config = ExecutionMarketConfig(
        orders=(200_000.0,) * 5, order_std=400_000.0, steps=10, own=2.5e-6, cooperation=1.0, observe_total=True,
        max_rate=3.0,
    )  # fmt: skip
    agent: PPOConfig | MADDPGConfig = default_ppo(hidden=(64, 64), horizon=10, minibatches=4, learning_rate=2e-3)
    if algorithm == "maddpg":
        agent = MADDPGConfig(
            hidden=(64, 64),
            learning_starts=0,
            gradient_steps=8,
            exploration_noise=0.2,
            learning_rate=1e-3,
            batch_size=1280,
        )
    return Recipe(config, agent, 128, 64_000, algorithm, shared=True)


def making(informed: float = 0.0) -> Recipe:
    """One market maker among noise traders. informed: arrivals of informed traders per unit of time."""
    config = MakingMarketConfig(steps=400, horizon=0.5, informed_intensity=informed)
    agent = PPOConfig(
        policy="mlp", hidden=(32, 32), horizon=64, gamma=0.999, gae_lambda=0.5, log_std_init=-1.5, learning_rate=4e-3,
        entropy_coefficient=0.01, epochs=6, target_kl=0.1, max_grad_norm=1.0,
    )  # fmt: skip
    return Recipe(config, agent, 128, 4_000_000)


RECIPES: Mapping[str, Recipe] = {
    "execution": execution(),
    "competition": competition(),
    "making": making(),
    "desk": desk(),
}
