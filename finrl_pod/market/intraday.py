"""Execution of a parent order over the bars of a session: data, accounting, benchmark schedules and their shortfall.

Shapes: S sessions, B bars of a session. Tensors are float64. Implementation shortfall (Perold 1988) is what an order
costs over its arrival price, in basis points of its value at that price. Only what was known before a bar decides its
slice; price and volume of the bar decide how it fills.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from finrl_pod.errors import ConfigError
from finrl_pod.market.optimal_execution import almgren_chriss_holdings
from finrl_pod.settings.multi_agent import IntradayExecutionConfig
from finrl_pod.types import Panel, Tensor

HISTORY = 20  # sessions of which volumes and volatility are averaged
BASIS_POINT = 1e-4
RISK_UNIT = 0.01  # volatility at which `risk_aversion` is stated


@dataclass(frozen=True, eq=False)
class IntradaySessions:
    """Sessions of one symbol with equally many bars.

    price, volume: [S, B], average price and traded shares of the bars. arrival: [S], open of the first bar. profile:
    [S, B], usual share of the daily volume in each bar; daily_volume, volatility: [S], usual shares a day and standard
    deviation of a daily return: of the HISTORY sessions before. dates: [S].
    """

    price: Tensor
    volume: Tensor
    arrival: Tensor
    profile: Tensor
    daily_volume: Tensor
    volatility: Tensor
    dates: tuple[str, ...]

    @property
    def bars(self) -> int:
        """B."""
        return int(self.price.shape[1])

    def __len__(self) -> int:
        return len(self.dates)

    def part(self, first: int, last: int) -> IntradaySessions:
        """Sessions first <= s < last."""
        rows = slice(first, last)
        return IntradaySessions(
            self.price[rows], self.volume[rows], self.arrival[rows], self.profile[rows],
            self.daily_volume[rows], self.volatility[rows], self.dates[rows],
        )  # fmt: skip


def sessions_of(panel: Panel, symbol: str, history: int = HISTORY) -> IntradaySessions:
    """Sessions of a symbol of an intraday panel; shortened ones and the first `history` are left out.

    The average price of a bar is (high + low + close) / 3, or its close. Raises ConfigError for an unknown symbol, a
    panel without volumes or opens, daily bars, and too few sessions.
    """
    if symbol not in panel.symbols:
        raise ConfigError(f"the panel has no symbol {symbol!r}; it has {', '.join(panel.symbols[:10])}")
    if panel.volume is None or panel.open is None:
        raise ConfigError("execution within a session needs a panel with open and volume")
    n = panel.symbols.index(symbol)
    days = panel.times.astype("datetime64[D]")
    dates, counts = np.unique(days[panel.tradable[:, n]], return_counts=True)
    usual_bars = int(np.bincount(counts).argmax()) if len(counts) else 0
    if usual_bars < 2:
        raise ConfigError(
            f"execution within a session needs several bars a day, {symbol} has {usual_bars}; import minutes"
        )
    full_sessions = dates[counts == usual_bars]
    if len(full_sessions) <= history:
        raise ConfigError(f"{symbol} has {len(full_sessions)} whole sessions, more than {history} are needed")
    rows = np.isin(days, full_sessions) & panel.tradable[:, n]

    def column(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values[rows, n], np.float64)).view(-1, usual_bars)

    close = column(panel.close)
    volume = column(panel.volume)
    first = column(panel.open)[:, 0]
    price = close
    if panel.high is not None and panel.low is not None:
        price = (column(panel.high) + column(panel.low) + close) / 3
    if bool((volume.sum(1) <= 0).any()):
        raise ConfigError(f"{symbol} has sessions without volume; leave them out of the panel")
    return _with_history(price, volume, first, close[:, -1], tuple(map(str, full_sessions)), history)


def _with_history(
    price: Tensor, volume: Tensor, first: Tensor, last: Tensor, dates: tuple[str, ...], history: int
) -> IntradaySessions:
    """Sessions from `history` on, with trailing means of the sessions before each."""

    def trailing(x: Tensor) -> Tensor:
        total = torch.cat([torch.zeros_like(x[:1]), x.cumsum(0)])
        return (total[history:-1] - total[: -history - 1]) / history

    moves = (last / first).log()
    return IntradaySessions(
        price[history:], volume[history:], first[history:],
        trailing(volume) / trailing(volume).sum(1, keepdim=True),
        trailing(volume.sum(1)), trailing(moves.square()).sqrt(), dates[history:],
    )  # fmt: skip


def simulated_sessions(count: int, bars: int = 26, seed: int = 0) -> IntradaySessions:
    """Sessions of a random walk whose volume is U-shaped over the day and persistent within it.

    26 bars are the 15-minute bars of a US session. Daily volatility 2%; the logarithm of the session volume has a
    standard deviation of 0.3, of the bar volume 0.4 with a correlation of 0.7 from bar to bar.
    """
    rng = np.random.default_rng(seed)
    total = count + HISTORY
    time = (np.arange(bars) + 0.5) / bars
    noise = np.empty((total, bars))
    state = rng.standard_normal(total)
    for b in range(bars):
        noise[:, b] = state
        state = 0.7 * state + np.sqrt(1 - 0.7**2) * rng.standard_normal(total)
    shape = 0.6 + 4 * (time - 0.5) ** 2
    volume = 1e6 / bars * shape / shape.mean() * np.exp(0.4 * noise + 0.3 * rng.standard_normal((total, 1)))
    path = 0.02 / np.sqrt(bars) * np.cumsum(rng.standard_normal((total, bars)), 1)
    close = 50 * np.exp(path)
    start = np.full((total, 1), 50.0)
    average = (np.concatenate([start, close[:, :-1]], 1) + close) / 2
    dates = tuple(f"session {i}" for i in range(total))
    price, shares, first, last = (torch.from_numpy(x) for x in (average, volume, start[:, 0], close[:, -1]))
    return _with_history(price, shares, first, last, dates, HISTORY)


# ---------------------------------------------------------------------- accounting


class Slice(NamedTuple):
    """What one slice filled: shares and cost over the arrival price (currency), and the lasting price move, [...]."""

    filled: Tensor
    cost: Tensor
    price_move: Tensor


class Bar(NamedTuple):
    """A bar as its slice meets it, [...] each. price_move: fraction by which earlier slices moved the price."""

    price: Tensor
    volume: Tensor
    arrival: Tensor
    daily_volume: Tensor
    volatility: Tensor
    price_move: Tensor


def fill_slice(order_size: Tensor, left: Tensor, bar: Bar, last: bool, config: IntradayExecutionConfig) -> Slice:
    """Fill a buy slice of `order_size` shares [...] of the `left` ones; the last bar fills all that is left.

    Selling is the mirror image: pass prices reflected at the arrival price.
    """
    limited_size = torch.minimum(order_size.clamp(min=0), config.max_participation * bar.volume)
    filled = left if last else torch.minimum(limited_size, left)
    share = filled / bar.volume.clamp(min=1.0)
    own_impact = config.gamma * bar.volatility * filled / bar.daily_volume
    temporary = config.eta * bar.volatility * share**config.exponent + config.half_spread_bps * BASIS_POINT
    # A slice pays half of the permanent impact that it causes.
    price_paid = bar.price + bar.arrival * (bar.price_move + own_impact / 2 + torch.where(filled > 0, temporary, 0.0))
    return Slice(filled, filled * (price_paid - bar.arrival), bar.price_move + own_impact)


class SliceState(NamedTuple):
    """What a schedule knows before bar `step`, [S] each: shares of the order, still left, volume of the last bar.

    session_volume: volume of the session so far; sessions: their profile, daily_volume and
    volatility are known in advance.
    """

    step: int
    order: Tensor
    left: Tensor
    last_volume: Tensor
    session_volume: Tensor
    sessions: IntradaySessions


Schedule = Callable[[SliceState], Tensor]  # shares wanted in the next bar: [S]


@dataclass(frozen=True, eq=False)
class ExecutionResult:
    """Result of a schedule in each of S sessions. shortfall: [S], basis points; slices: [S, B], shares filled."""

    shortfall: Tensor
    slices: Tensor


def execute(
    sessions: IntradaySessions, schedule: Schedule, config: IntradayExecutionConfig, *, side: int = 1
) -> ExecutionResult:
    """Execute the parent order by a schedule in every session. side: 1 buys, -1 sells."""
    price = sessions.price if side == 1 else 2 * sessions.arrival.unsqueeze(1) - sessions.price
    order = config.order_share * sessions.daily_volume
    left = order.clone()
    cost = torch.zeros_like(order)
    price_move = torch.zeros_like(order)
    volume = torch.zeros_like(order)
    session_volume = torch.zeros_like(order)
    slices = []
    for b in range(sessions.bars):
        order_size = schedule(SliceState(b, order, left, volume, session_volume, sessions))
        volume = sessions.volume[:, b]
        bar = Bar(price[:, b], volume, sessions.arrival, sessions.daily_volume, sessions.volatility, price_move)
        out = fill_slice(order_size, left, bar, b == sessions.bars - 1, config)
        left = left - out.filled
        cost = cost + out.cost
        price_move = out.price_move
        session_volume = session_volume + volume
        slices.append(out.filled)
    return ExecutionResult(cost / (order * sessions.arrival) / BASIS_POINT, torch.stack(slices, 1))


# ---------------------------------------------------------------------- benchmark schedules


def twap(state: SliceState) -> Tensor:
    """Even slices of what is left over the bars that are left."""
    return state.left / (state.sessions.bars - state.step)


def vwap(state: SliceState) -> Tensor:
    """What is left, in proportion to the usual volume of the bars that are left."""
    remaining_profile = state.sessions.profile[:, state.step :]
    return state.left * remaining_profile[:, 0] / remaining_profile.sum(1)


@dataclass(frozen=True)
class Participation:
    """A fixed share of the volume expected in each bar, from the last bar and the usual profile.

    rate: share of the volume; None for the rate at which the order completes on a usual day.
    """

    rate: float | None = None

    def __call__(self, state: SliceState) -> Tensor:
        profile = state.sessions.profile
        step = state.step
        usual_bars = profile[:, step] * state.sessions.daily_volume
        surprise = torch.ones_like(usual_bars)
        if step:
            surprise = state.last_volume / (profile[:, step - 1] * state.sessions.daily_volume)
        rate = state.order / state.sessions.daily_volume if self.rate is None else self.rate
        return rate * usual_bars * surprise


@dataclass(frozen=True)
class AlmgrenChriss:
    """The schedule of Almgren and Chriss (2000) in volume time. urgency: decay rate kappa times the horizon."""

    urgency: float = 1.5

    def __call__(self, state: SliceState) -> Tensor:
        # Holdings as a function of the finished share of the usual daily volume, interpolated on a fine grid.
        fine = 1000
        grid = torch.from_numpy(almgren_chriss_holdings(1.0, 1.0, fine, self.urgency))
        time = state.sessions.profile[:, : state.step + 1].sum(1).clamp(0, 1) * fine
        low = time.long().clamp(max=fine - 1)
        target = grid[low] + (grid[low + 1] - grid[low]) * (time - low)
        return state.left - target * state.order


SCHEDULES: dict[str, Schedule] = {
    "twap": twap,
    "vwap": vwap,
    "participation": Participation(),
    "almgren_chriss": AlmgrenChriss(),
}
