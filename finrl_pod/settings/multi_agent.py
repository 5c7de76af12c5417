"""Settings of markets in which several agents trade the same assets and their orders move the prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from finrl_pod.settings.algorithm_configs import ActorCriticConfig, DDPGConfig
from finrl_pod.settings.constraints import (
    FINITE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE_FINITE,
    Constraint,
    at_least,
    setting,
    setting_of,
)

ORDERS = Constraint("one or more finite numbers of shares", lambda x: len(x) >= 1 and all(map(FINITE.check, x)))


@dataclass(frozen=True)
class ExecutionMarketConfig:
    """A market in which each agent has an order to execute until the horizon.

    Impact, volatility, order and horizon follow the example of Almgren and Chriss (2000, table 1): a share of 50
    dollars with a bid-ask spread of 1/8, 5 million shares a day, 30% annual volatility; a tenth of the daily volume
    moves the price by one spread, permanent impact costs one spread at a tenth of the daily volume. The unit of time is
    a day.
    """

    orders: tuple[float, ...] = setting(
        (1_000_000.0,), "shares that each agent must buy in each asset (negative: sell); one number per agent", ORDERS
    )
    order_std: float = setting(0.0, "standard deviation of a random part of every order, in shares", NOT_NEGATIVE)
    assets: int = setting(1, "assets, alike and with independent prices", at_least(1))
    steps: int = setting(20, "steps of an episode; what is left fills in the last one", at_least(2))
    horizon: float = setting(5.0, "length of an episode, in units of time", POSITIVE_FINITE)
    permanent: float = setting(2.5e-7, "permanent impact, price per share", NOT_NEGATIVE)
    temporary: float = setting(
        2.5e-6, "temporary impact, price per share and unit of time, by all orders", NOT_NEGATIVE
    )
    own: float = setting(0.0, "temporary impact of the orders of one agent, paid by it alone", NOT_NEGATIVE)
    within_step: float = setting(0.5, "share of the permanent impact of a step that its own orders pay", FRACTION)
    volatility: float = setting(0.95, "standard deviation of a price over one unit of time", NOT_NEGATIVE)
    risk_aversion: float = setting(1e-6, "weight of the variance of cost, per currency", NOT_NEGATIVE)
    cooperation: float = setting(
        0.0, "weight of the other objectives in the objective of an agent: 0 competitors, 1 one desk", FRACTION
    )
    max_rate: float = setting(
        6.0, "largest deviation of an order from even slices of what is left, in even slices", POSITIVE_FINITE
    )
    observe_price: bool = setting(False, "whether agents observe the price; without it they play open-loop strategies")
    observe_total: bool = setting(False, "whether agents observe what is left of all orders together")
    maker_spread: float = setting(0.0, "market maker: half the quoted spread, currency per share", NOT_NEGATIVE)
    maker_skew: float = setting(0.0, "market maker: price change per share of its inventory", NOT_NEGATIVE)
    maker_recovery: float = setting(
        1.0, "market maker: rate at which it unwinds its inventory, per unit of time", NOT_NEGATIVE
    )


@dataclass(frozen=True)
class MakingMarketConfig:
    """A market in which each agent is a market maker that quotes both sides around a common mid-price.

    Intensity, decay and volatility are those that Avellaneda and Stoikov (2008, section 3.3) simulate. With several
    makers an order goes to one of them with a probability that falls with its quote (a multinomial logit of rate
    `decay`); a single maker gets all orders that reach its quote.
    """

    makers: int = setting(1, "market makers", at_least(1))
    steps: int = setting(1000, "steps of an episode", at_least(2))
    horizon: float = setting(1.0, "length of an episode, in units of time", POSITIVE_FINITE)
    intensity: float = setting(140.0, "noise traders: orders per side and unit of time at the mid-price", NOT_NEGATIVE)
    decay: float = setting(1.5, "noise traders: decay of their intensity with the distance of a quote", POSITIVE_FINITE)
    volatility: float = setting(2.0, "standard deviation of the mid-price over one unit of time", NOT_NEGATIVE)
    max_inventory: int = setting(5, "largest inventory; a maker that holds it quotes one side", at_least(1))
    running_penalty: float = setting(0.2, "cost of a squared share of inventory per unit of time", NOT_NEGATIVE)
    informed_intensity: float = setting(
        0.0, "informed traders: arrivals per unit of time, each before a jump of the mid-price", NOT_NEGATIVE
    )
    informed_jump: float = setting(
        0.5, "mean size of those jumps (exponential); they trade if the jump exceeds the quote", POSITIVE_FINITE
    )
    expected_rewards: bool = setting(
        True, "reward the expected revenue of the quotes, not the drawn fills: the same objective, less noise"
    )
    random_start: bool = setting(True, "start episodes at random inventories and times, to explore all states")


@dataclass(frozen=True)
class MADDPGConfig(ActorCriticConfig):
    """Multi-agent deep deterministic policy gradient (Lowe et al. 2017). Samples of a shared network are of agents."""

    algorithm: Literal["maddpg"] = "maddpg"
    policy: str = "mlp"
    gamma: float = 1.0
    gradient_steps: int = 4
    tau: float = 0.01
    critics: int = 1
    exploration_noise: float = setting_of(DDPGConfig, "exploration_noise", 0.1)


MarketConfig = ExecutionMarketConfig | MakingMarketConfig
