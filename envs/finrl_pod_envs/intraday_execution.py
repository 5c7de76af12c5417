"""An environment that slices a parent order over the bars of a session, on recorded or simulated intraday bars.

Fills and costs follow `finrl_pod.market.intraday`, where benchmark schedules run on the same sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.intraday import (
    BASIS_POINT,
    RISK_UNIT,
    Bar,
    IntradaySessions,
    SliceState,
    execute,
    fill_slice,
    twap,
)
from finrl_pod.random import MemberGenerators, generators
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.multi_agent import IntradayExecutionConfig
from finrl_pod.types import EnvStep, Tensor

LARGEST_FACTOR = 4.0  # of a usual slice, at action 1; a quarter of it at -1
MAX_SURPRISE = 3.0  # bound of the observed logarithm of volume over the usual


class IntradayExecutionEnv:
    """A VecEnv [P, E]: an episode is one session, its action how much of the usual volume-weighted slice to trade.

    action 0 trades what is left in proportion to the usual volume (VWAP); 1 and -1 trade 4 times and a quarter of that.
    Each episode draws a session.

    Observations, 5 numbers: share of bars left, share of the order left, share of the usual volume ahead, logarithm of
    the volume of the last bar and of the session so far over the usual.
    Rewards (basis points): what even slices in the same session cost by impact and spread, less what these slices
    cost, less a risk penalty. The price path is left out: observations do not hold it, and it costs a purchase what it
    earns a sale.
    """

    action_kind = "direct"
    actions = 0
    observation_size = 5
    action_size = 1

    def __init__(
        self,
        sessions: IntradaySessions,
        config: IntradayExecutionConfig | None = None,
        *,
        envs: int = 64,
        members: Sequence[int] = (0,),
        device: torch.device | str = "cpu",
    ) -> None:
        """Raises ConfigError for settings out of range and a lack of sessions."""
        self.config = config or IntradayExecutionConfig()
        check_settings("intraday.", self.config)
        if len(sessions) == 0:
            raise ConfigError("an environment of intraday execution needs at least one session")
        self.sessions = sessions
        self.envs = envs
        self.member_ids = tuple(members)
        self.members = len(self.member_ids)
        self.device = torch.device(device)
        self._even = execute(sessions, twap, self.config).slices  # [S, B]

    def reset(self, seed: int) -> Tensor:
        """First observations [P, E, 5]. All episodes start together: sessions have equally many bars."""
        self._noise = MemberGenerators(generators(seed, self.member_ids, "intraday sessions", self.device))
        self._begin()
        return self._observation()

    def _begin(self) -> None:
        self._session = self._noise.integers(len(self.sessions), (self.envs,))
        self._step = 0
        self._order = self.config.order_share * self._session_values(self.sessions.daily_volume)
        self._left = self._order.clone()
        self._even_left = self._order.clone()
        self._price_move = torch.zeros_like(self._order)
        self._even_price_move = torch.zeros_like(self._order)
        self._volume = torch.zeros_like(self._order)
        self._session_volume = torch.zeros_like(self._order)

    def _session_values(self, values: Tensor) -> Tensor:
        """Values [S, ...] of the drawn sessions: [P, E, ...]."""
        return values.to(self.device)[self._session]

    def step(self, action: Tensor) -> EnvStep:
        """Trade by `action` [P, E, 1] in [-1, 1]; values beyond are clipped, NaN acts as 0."""
        expected_shape = (self.members, self.envs, 1)
        if action.shape != expected_shape:
            raise InputError(f"an action must have shape {expected_shape}, got {tuple(action.shape)}")
        sessions = self.sessions
        config = self.config
        b = self._step
        last = b == sessions.bars - 1
        order_size = self._left * self._usual_share() * self.factor(action[..., 0])
        arrival = self._session_values(sessions.arrival)
        price = self._session_values(sessions.price[:, b])
        self._volume = self._session_values(sessions.volume[:, b])
        bar = Bar(
            price,
            self._volume,
            arrival,
            self._session_values(sessions.daily_volume),
            self._session_values(sessions.volatility),
            self._price_move,
        )
        out = fill_slice(order_size, self._left, bar, last, config)
        even_wanted = self._session_values(self._even[:, b])
        even = fill_slice(even_wanted, self._even_left, bar._replace(price_move=self._even_price_move), last, config)
        # Less what the slices cost by the price path alone.
        value = self._order * arrival * BASIS_POINT
        reward = (even.cost - out.cost + (out.filled - even.filled) * (price - arrival)) / value
        self._left = self._left - out.filled
        self._even_left = self._even_left - even.filled
        risk = config.risk_aversion * (self._session_values(sessions.volatility) / RISK_UNIT).square() / sessions.bars
        reward = reward - risk * (self._left / self._order).square()
        self._price_move = out.price_move
        self._even_price_move = even.price_move
        self._session_volume = self._session_volume + self._volume
        self._step = b + 1
        final = self._observation()
        episode_ends = torch.full((self.members, self.envs), last, device=self.device)
        if last:
            self._begin()
        return EnvStep(self._observation(), reward.float(), episode_ends, torch.zeros_like(episode_ends), final)

    def factor(self, action: Tensor) -> Tensor:
        """Multiple of the usual slice that an action [...] in [-1, 1] trades."""
        return torch.exp(math.log(LARGEST_FACTOR) * torch.nan_to_num(action, nan=0.0).clamp(-1, 1).double())

    def _usual_share(self) -> Tensor:
        remaining_profile = self._session_values(self.sessions.profile)[..., self._step :]
        return remaining_profile[..., 0] / remaining_profile.sum(-1)

    def _observation(self) -> Tensor:
        sessions = self.sessions
        profile = self._session_values(sessions.profile)
        daily = self._session_values(sessions.daily_volume)
        left = self._left / self._order
        return observe(self._step, sessions.bars, left, profile, self._volume / daily, self._session_volume / daily)


def observe(step: int, bars: int, left: Tensor, profile: Tensor, last: Tensor, done: Tensor) -> Tensor:
    """Observations [..., 5]: left [...], share of the order; profile [..., B]; relative volumes [...]."""
    remaining_profile = profile[..., step:].sum(-1)
    surprises = [torch.zeros_like(left), torch.zeros_like(left)]
    if step:
        usual_volumes = (profile[..., step - 1], profile[..., :step].sum(-1))
        surprises = [
            (x / y).clamp(min=1e-12).log().clamp(-MAX_SURPRISE, MAX_SURPRISE)
            for x, y in zip((last, done), usual_volumes, strict=True)
        ]
    return torch.stack([torch.full_like(left, 1 - step / bars), left, remaining_profile, *surprises], -1).float()


class AgentSchedule:
    """A trained agent as a schedule for `execute`. act: observations [1, S, 5] -> actions [1, S, 1]."""

    def __init__(self, env: IntradayExecutionEnv, act: Callable[[Tensor], Tensor]) -> None:
        self.env = env
        self._act = act

    def __call__(self, state: SliceState) -> Tensor:
        sessions = state.sessions
        row = observe(
            state.step, sessions.bars, state.left / state.order, sessions.profile,
            state.last_volume / sessions.daily_volume, state.session_volume / sessions.daily_volume,
        )  # fmt: skip
        action = self._act(row.unsqueeze(0))[0, :, 0]
        remaining_profile = sessions.profile[:, state.step :]
        return state.left * remaining_profile[:, 0] / remaining_profile.sum(1) * self.env.factor(action)
