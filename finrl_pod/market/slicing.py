"""Slices of one order over a trading session, sized by the benchmark schedules of `finrl_pod.market.intraday`."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from finrl_pod.market.intraday import Schedule

ScheduleName = Literal["twap", "vwap", "participation", "almgren_chriss"]


@dataclass(frozen=True)
class SlicePlan:
    """How an order is spread over the slices of a window.

    profile: usual share of the window volume in each slice, adding up to 1. volume: usual shares traded in the
    window, 0 if unknown. participation: share of the volume to trade, 0 for that at which the order completes on a
    usual day; read by the participation schedule alone. urgency: decay rate kappa of Almgren and Chriss times the
    window.
    """

    schedule: ScheduleName
    profile: tuple[float, ...]
    volume: float = 0.0
    participation: float = 0.0
    urgency: float = 1.5

    @property
    def steps(self) -> int:
        """Number of slices."""
        return len(self.profile)

    def quantity(
        self, step: int, order: Decimal, left: Decimal, unit: Decimal, last_volume: float | None = None
    ) -> Decimal:
        """Shares of slice `step` (from 0), a multiple of `unit`, of the `left` shares of the `order`.

        last_volume: shares traded in the market during the slice before; None if unknown, then the usual ones. What a
        slice did not fill is spread over the later ones.
        """
        import torch

        from finrl_pod.market.intraday import IntradaySessions, SliceState

        usual_volume = self.volume or 1.0  # cancels out where no rate of participation is set
        zeros = torch.zeros(1, self.steps, dtype=torch.float64)
        profile = torch.tensor([self.profile]).double()
        sessions = IntradaySessions(
            price=zeros, volume=zeros, arrival=zeros[:, 0], profile=profile, daily_volume=_scalar(usual_volume),
            volatility=zeros[:, 0], dates=("",),
        )  # fmt: skip
        usual_last_volume = self.profile[step - 1] * usual_volume if step else 0.0
        state = SliceState(
            step, _scalar(order), _scalar(left), _scalar(usual_last_volume if last_volume is None else last_volume),
            _scalar(sum(self.profile[:step]) * usual_volume), sessions,
        )  # fmt: skip
        order_size = max(float(self._function()(state)), 0.0)
        shares = min((Decimal(repr(order_size)) / unit).quantize(Decimal(1), ROUND_HALF_UP) * unit, left)
        return left if left - shares < unit else shares

    def _function(self) -> Schedule:
        from finrl_pod.market.intraday import AlmgrenChriss, Participation, twap, vwap

        if self.schedule == "almgren_chriss":
            return AlmgrenChriss(self.urgency)
        if self.schedule == "participation":
            return Participation(self.participation if self.participation and self.volume else None)
        return vwap if self.schedule == "vwap" else twap


def even_profile(steps: int) -> tuple[float, ...]:
    """The same share of the volume in each of `steps` slices."""
    return (1 / steps,) * steps


def fill_on_path(
    first: float, last: float, session_share: float, limit: Decimal | None, *, buys: bool
) -> tuple[float, float] | None:
    """Part of a session (0 to 1, from `session_share` on) at which an order fills, and the price; None if it does not.

    The price moves on a straight line from `first` at the open to `last` at the close, the mean of a Brownian bridge
    between them. Prices are rounded to 6 decimals; a line that reaches the limit later fills at the limit.
    """
    price = round(first + (last - first) * session_share, 6)
    if limit is None or (Decimal(repr(price)) <= limit if buys else Decimal(repr(price)) >= limit):
        return session_share, price
    if first == last or not session_share <= (crossing := (float(limit) - first) / (last - first)) <= 1:
        return None
    return crossing, float(limit)


def _scalar(value: float | Decimal):  # type: ignore[no-untyped-def]  # torch is imported when a slice is sized
    import torch

    return torch.tensor([float(value)], dtype=torch.float64)
