"""A market in which M agents execute orders in the same assets and move their prices.

Shapes: P members, E markets each, M agents, N assets. The price of a step and its cost follow
`finrl_pod.market.optimal_execution`. That module also solves its games exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.optimal_execution import ExecutionGame, LinearImpact
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.multi_agent import ExecutionMarketConfig
from finrl_pod.types import JointObservation, JointStep, Tensor


class ExecutionMarket:
    """M agents with orders in N assets; an action is the deviation from even slices of what it has left.

    action 0 trades what is left in even slices, 1 and -1 buy and sell `max_rate` even slices of the largest order more.
    The last step trades all that is left. There may be a market maker who charges a spread and moves his quotes against
    his inventory (transient impact, as in Obizhaeva and Wang 2013).

    Observations: share of time left; remaining shares of the order per asset; with `observe_total` the sum over all
    agents together; with `observe_price` the change of each price. State: time left, shares left of every agent, change
    of prices, quote displacement. Shares are in units of the largest order, prices in volatility over the horizon.

    Rewards are in units of `reward_unit` (currency): minus cost and risk of the step, where the price noise is
    left out, as no action causes it: summed over an episode they are minus cost - risk_aversion x variance.
    """

    action_kind = "direct"
    actions = 0

    def __init__(
        self,
        config: ExecutionMarketConfig,
        *,
        envs: int = 64,
        members: Sequence[int] = (0,),
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """members: ids that key the random streams. Raises ConfigError for settings out of range."""
        check_settings("market.", config)
        self.config = config
        self.envs = envs
        self.member_ids = tuple(members)
        self.device = torch.device(device)
        self.dtype = dtype
        self.members = len(self.member_ids)
        self.agents = len(config.orders)
        self.assets = config.assets
        self.size = max(*map(abs, config.orders), config.order_std)
        if self.size == 0:
            raise ConfigError("market.orders are all 0 and market.order_std is 0: nothing is to be traded; set one")
        self.impact = LinearImpact(config.permanent, config.temporary, config.own, config.within_step)
        self.tau = config.horizon / config.steps
        self.price_unit = config.volatility * config.horizon**0.5 or 1.0
        slope = (config.temporary + config.own) / config.horizon or config.permanent
        self.reward_unit = self.size**2 * slope or 1.0
        n = self.assets
        self.observation_size = 1 + n * (1 + config.observe_total + config.observe_price)
        self.state_size = 1 + n * (self.agents + 2)
        self.action_size = n
        self._orders = torch.tensor(config.orders, dtype=dtype, device=self.device)

    def game(self) -> ExecutionGame:
        """The game without a market maker, for its exact solutions."""
        c = self.config
        return ExecutionGame(self.impact, c.horizon, c.steps, c.volatility, c.risk_aversion)

    # ------------------------------------------------------------------ episodes

    def reset(self, seed: int) -> JointObservation:
        self._noise = MemberGenerators(generators(seed, self.member_ids, "execution market", self.device))
        shape = (self.members, self.envs)
        self._step = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._left = torch.zeros(*shape, self.agents, self.assets, dtype=self.dtype, device=self.device)
        self._price = torch.zeros(*shape, self.assets, dtype=self.dtype, device=self.device)
        self._transient = torch.zeros_like(self._price)
        self._begin(torch.ones_like(self._step, dtype=torch.bool))
        return self._observation()

    @property
    def left(self) -> Tensor:
        """Shares that each agent has still to trade: [P, E, M, N]."""
        return self._left

    def _begin(self, mask: Tensor) -> None:
        """Start new episodes in the markets `mask` [P, E] bool."""
        config = self.config
        asset_mask = mask.unsqueeze(-1)
        orders = self._orders.view(1, 1, -1, 1).expand_as(self._left)
        if config.order_std:
            orders = orders + config.order_std * self._normal(self.agents, self.assets)
        self._left = torch.where(asset_mask.unsqueeze(-1), orders, self._left)
        self._step = self._step.masked_fill(mask, 0)
        self._price = self._price.masked_fill(asset_mask, 0.0)
        self._transient = self._transient.masked_fill(asset_mask, 0.0)

    def _normal(self, *shape: int) -> Tensor:
        """Standard normal numbers [P, E, *shape] from the stream of each member."""
        return self._noise.normal((self.envs, *shape), self.dtype)

    # ------------------------------------------------------------------ one step

    def step(self, action: Tensor) -> JointStep:
        """Trade by `action` [P, E, M, N] in [-1, 1]; values beyond are clipped, NaN acts as 0."""
        expected_shape = (self.members, self.envs, self.agents, self.action_size)
        if action.shape != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        config = self.config
        tau = self.tau
        trades = self._trades(action.to(self.dtype))
        flow = trades.sum(2)  # [P, E, N]

        # Fill price of the step over its start, and change of the price to the next step.
        quote_move = config.maker_skew * flow
        fill = (config.permanent * config.within_step + config.temporary / tau) * flow + quote_move / 2
        fill_move = fill.unsqueeze(2) + config.own / tau * trades  # [P, E, M, N]
        spread = config.maker_spread * trades.abs()
        transient = (self._transient + quote_move) * torch.exp(torch.tensor(-config.maker_recovery * tau))
        caused_move = config.permanent * flow + transient - self._transient
        surprise = config.volatility * tau**0.5 * self._normal(self.assets)

        self._left = self._left - trades
        self._price = self._price + config.permanent * flow + surprise
        self._transient = transient
        trading = trades * fill_move + spread
        waiting = self._left * caused_move.unsqueeze(2)
        risk = config.risk_aversion * config.volatility**2 * tau * self._left.square()
        objective = -(trading + waiting + risk).sum(-1) / self.reward_unit  # [P, E, M]
        profit = -(trading + self._left * (caused_move + surprise).unsqueeze(2)).sum(-1)
        reward = objective
        if config.cooperation:
            reward = objective * (1 - config.cooperation) + config.cooperation * objective.sum(-1, keepdim=True)

        self._step = self._step + 1
        final = self._observation()
        episode_ends = self._step >= config.steps
        if bool(episode_ends.any()):
            self._begin(episode_ends)
        terminated = episode_ends.unsqueeze(-1).expand_as(reward)
        return JointStep(self._observation(), reward, terminated, torch.zeros_like(terminated), final, profit)

    # ------------------------------------------------------------------ exact continuation

    def checkpoint(self) -> dict[str, Tensor]:
        """State of all episodes and of the random numbers: name -> tensor."""
        tensors = {"step": self._step, "left": self._left, "price": self._price, "transient": self._transient}
        return {**tensors, "noise": self._noise.state}

    def resume(self, state: Mapping[str, Tensor]) -> JointObservation:
        """Restore a `checkpoint` after `reset`; returns the current observation."""
        self._noise.state = state["noise"]
        self._step = state["step"].to(self.device)
        self._left = state["left"].to(self.device)
        self._price = state["price"].to(self.device)
        self._transient = state["transient"].to(self.device)
        return self._observation()

    def _trades(self, action: Tensor) -> Tensor:
        """Shares [P, E, M, N] that an action buys."""
        config = self.config
        action = torch.nan_to_num(action, nan=0.0).clamp(-1, 1)
        steps_left = (config.steps - self._step).view(self.members, self.envs, 1, 1)
        trades = self._left / steps_left + action * (config.max_rate * self.size / config.steps)
        return torch.where(steps_left <= 1, self._left, trades)

    def _observation(self) -> JointObservation:
        config = self.config
        time = ((config.steps - self._step) / config.steps).to(self.dtype).unsqueeze(-1)  # [P, E, 1]
        left = self._left / self.size
        price = (self._price + self._transient) / self.price_unit
        columns = [time.unsqueeze(2).expand(-1, -1, self.agents, 1), left]
        if config.observe_total:
            columns.append(left.sum(2, keepdim=True).expand_as(left))
        if config.observe_price:
            columns.append(price.unsqueeze(2).expand_as(left))
        state = torch.cat([time, left.flatten(2), price, self._transient / self.price_unit], -1)
        return JointObservation(torch.cat(columns, -1), state)
