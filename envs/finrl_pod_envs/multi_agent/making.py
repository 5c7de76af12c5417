"""A market in which M market makers quote both sides of one asset around a common mid-price.

Noise traders reach a quote at distance delta with intensity A exp(-k delta), as in Avellaneda and Stoikov (2008);
informed traders know the next jump of the mid-price. `finrl_pod.market.optimal_quotes` solves the problem of one maker
among noise traders exactly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from finrl_pod.errors import InputError
from finrl_pod.market.optimal_quotes import MakerProblem
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.multi_agent import MakingMarketConfig
from finrl_pod.types import JointObservation, JointStep, Tensor

MID = 1.0
HALF_RANGE = 1.5  # an action in [-1, 1] quotes (MID + HALF_RANGE * action) / decay from the mid-price
SIDES = 2  # bid, ask


class MakingMarket:
    """M makers; an action is the distance of bid and ask from the mid-price, [P, E, M, 2] in [-1, 1].

    0 quotes 1 / decay, at which a maker without inventory earns most; -1 and 1 quote 1.5 / decay less and more.
    Each side of a maker fills once a step at most, by one share; a maker at the largest inventory does not buy, at the
    smallest does not sell.

    Observations: share of time left, inventory / max_inventory and the inventory as one of 2 Q + 1 indicators. State:
    share of time left and the inventories of all makers.
    Rewards (currency): quoted distance of fills, less the jump that an informed trader knew, less running_penalty x
    inventory^2. Noise that no action causes is left out: noise of the mid-price on the inventory and, with
    `expected_rewards`, noise of the drawn fills (they still decide the next inventory). `JointStep.profit`
    has both. Rewards are relative to `benchmark`, the most that the noise traders of a step pay to each maker: they
    measure what inventory, competition and informed traders cost.
    """

    action_kind = "direct"
    actions = 0
    action_size = SIDES
    reward_unit = 1.0

    def __init__(
        self,
        config: MakingMarketConfig,
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
        self.agents = config.makers
        self.observation_size = 2 + 2 * config.max_inventory + 1
        self.state_size = 1 + self.agents
        self.dt = config.horizon / config.steps
        self.benchmark = SIDES * config.intensity / (math.e * config.decay) * self.dt / self.agents

    def problem(self) -> MakerProblem:
        """The problem of one maker among noise traders, for its exact solution."""
        c = self.config
        return MakerProblem(c.intensity, c.decay, c.horizon, c.max_inventory, c.running_penalty)

    # ------------------------------------------------------------------ episodes

    def reset(self, seed: int) -> JointObservation:
        self._noise = MemberGenerators(generators(seed, self.member_ids, "making market", self.device))
        shape = (self.members, self.envs)
        self._step = torch.zeros(shape, dtype=torch.int64, device=self.device)
        self._inventory = torch.zeros(*shape, self.agents, dtype=self.dtype, device=self.device)
        self._begin(torch.ones(shape, dtype=torch.bool, device=self.device), stagger=self.config.random_start)
        return self._observation()

    def _begin(self, mask: Tensor, *, stagger: bool = False) -> None:
        """Start new episodes in the markets `mask` [P, E] bool; with `stagger` at random times."""
        config = self.config
        start = torch.zeros_like(self._inventory)
        if config.random_start:
            start = ((self._uniform(self.agents) * 2 - 1) * (config.max_inventory + 0.5)).round()
            start = start.clamp(-config.max_inventory, config.max_inventory)
        self._inventory = torch.where(mask.unsqueeze(-1), start, self._inventory)
        first = torch.zeros_like(self._step)
        if stagger:
            first = (self._uniform() * config.steps).long().clamp(max=config.steps - 1)
        self._step = torch.where(mask, first, self._step)

    def _uniform(self, *shape: int) -> Tensor:
        """Uniform numbers [P, E, *shape] in [0, 1) from the stream of each member."""
        return self._noise.uniform((self.envs, *shape), self.dtype)

    # ------------------------------------------------------------------ one step

    def distances(self, action: Tensor) -> Tensor:
        """Quoted distances from the mid-price of actions [..., 2], in currency."""
        return (MID + HALF_RANGE * torch.nan_to_num(action, nan=0.0).clamp(-1, 1)) / self.config.decay

    def step(self, action: Tensor) -> JointStep:
        """Quote by `action` [P, E, M, 2]; values beyond [-1, 1] are clipped, NaN acts as 0."""
        expected_shape = (self.members, self.envs, self.agents, SIDES)
        if action.shape != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        config = self.config
        quotes = self.distances(action.to(self.dtype))
        limit = config.max_inventory
        able = torch.stack([self._inventory < limit, self._inventory > -limit], -1)  # [P, E, M, 2]

        draws = self._uniform(self.agents + 3, SIDES)  # one of each maker, and three of the market
        chance = self._fill_probability(quotes, able)
        filled = draws[:, :, : self.agents] < chance
        informed_fills, jump, loss = self._informed_trades(quotes, able & ~filled, draws[:, :, self.agents :])
        if config.expected_rewards:
            revenue = (quotes * chance + (1 - chance) * self._informed_revenue(quotes, able)).sum(-1)  # [P, E, M]
        else:
            revenue = (quotes * filled + (quotes - loss) * informed_fills).sum(-1)
        fill_counts = filled.to(self.dtype) + informed_fills.to(self.dtype)
        self._inventory = (self._inventory + fill_counts[..., 0] - fill_counts[..., 1]).clamp(-limit, limit)
        reward = revenue - self.benchmark - config.running_penalty * self.dt * self._inventory.square()
        noise = config.volatility * self.dt**0.5 * self._noise.normal((self.envs,), self.dtype)
        profit = (quotes * fill_counts).sum(-1) + self._inventory * (noise + jump).unsqueeze(-1)

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
        return {"step": self._step, "inventory": self._inventory, "noise": self._noise.state}

    def resume(self, state: Mapping[str, Tensor]) -> JointObservation:
        """Restore a `checkpoint` after `reset`; returns the current observation."""
        self._noise.state = state["noise"]
        self._step = state["step"].to(self.device)
        self._inventory = state["inventory"].to(self.device)
        return self._observation()

    def _fill_probability(self, quotes: Tensor, able: Tensor) -> Tensor:
        """Probability [P, E, M, 2] that a noise trader takes each quote in a step."""
        config = self.config
        rate = torch.exp(-config.decay * quotes) * able
        share = rate / rate.sum(2, keepdim=True).clamp(min=torch.finfo(self.dtype).tiny)
        return -torch.expm1(-config.intensity * rate * share * self.dt)

    def _informed_trades(self, quotes: Tensor, able: Tensor, draws: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Which quotes [P, E, M, 2] informed traders hit, the jump of the mid-price [P, E], and its loss [P, E, 1, 1].

        At most one arrives in a step. It trades at the best quote if the jump exceeds its distance.
        """
        config = self.config
        if not config.informed_intensity:
            nothing = torch.zeros_like(quotes[:, :, 0, 0])
            return torch.zeros_like(able), nothing, nothing.view(*nothing.shape, 1, 1)
        arrives = draws[:, :, 0, 0] < self._informed_probability
        falls = draws[:, :, 0, 1] < 0.5  # before a fall they sell to the bid
        size = -config.informed_jump * torch.log1p(-draws[:, :, 1, 0])  # [P, E]
        side = torch.stack([falls, ~falls], -1).unsqueeze(2)  # [P, E, 1, 2]
        jump_size = size.view(*size.shape, 1, 1)
        hit = _nearest(quotes, able) & side & arrives.view(*size.shape, 1, 1) & (jump_size > quotes)
        jump = torch.where(arrives, torch.where(falls, -size, size), 0.0)
        return hit, jump, jump_size

    @property
    def _informed_probability(self) -> float:
        """Probability that an informed trader arrives in a step."""
        return -math.expm1(-self.config.informed_intensity * self.dt)

    def _informed_revenue(self, quotes: Tensor, able: Tensor) -> Tensor:
        """Expected revenue [P, E, M, 2] of the informed trades of a step: a loss.

        Its excess over the quote has mean m.
        """
        if not self.config.informed_intensity:
            return torch.zeros_like(quotes)
        m = self.config.informed_jump
        loss = torch.where(quotes > 0, m * torch.exp(-quotes / m), m - quotes)
        return -self._informed_probability / 2 * loss * _nearest(quotes, able)

    def _observation(self) -> JointObservation:
        config = self.config
        time = ((config.steps - self._step) / config.steps).to(self.dtype).unsqueeze(-1)  # [P, E, 1]
        inventory = self._inventory / config.max_inventory
        levels = torch.arange(-config.max_inventory, config.max_inventory + 1, device=self.device)
        level = (self._inventory.unsqueeze(-1) == levels).to(self.dtype)
        observations = torch.cat([time.expand_as(inventory).unsqueeze(-1), inventory.unsqueeze(-1), level], -1)
        return JointObservation(observations, torch.cat([time, inventory], -1))


def _nearest(quotes: Tensor, able: Tensor) -> Tensor:
    """Best quote of each side: [P, E, M, 2] bool, one maker of those `able`, or none."""
    offers = torch.where(able, quotes, torch.inf)
    return torch.zeros_like(able).scatter(2, offers.argmin(2, keepdim=True), True) & able
