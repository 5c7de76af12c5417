"""Composable trading-cost models and the friction settings of a market.

Each model is convex in the number of shares and separable by asset. `finrl_pod.market.venue` charges them in
environments and backtests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from finrl_pod.types import Tensor


class BarLiquidity(NamedTuple):
    """Liquidity of the bar in which a trade fills, [..., N] each, or None if unknown.

    volume: shares traded, inf where a delisted ticker is paid out. volatility: standard deviation of the log return of
    a bar, as known at the decision. half_spread: half the quoted spread as a fraction of the price.
    """

    volume: Tensor | None = None
    volatility: Tensor | None = None
    half_spread: Tensor | None = None


@runtime_checkable
class CostModel(Protocol):
    """A trading cost, convex in the number of shares."""

    @property
    def name(self) -> str:
        """Name in the attribution of costs."""

    @property
    def needs_volume(self) -> bool:
        """Whether it needs volume and volatility of the bar."""

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """Cost in currency [..., N] of filling `amount` >= 0 shares [..., N]; 0 at 0 and convex."""

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """Derivative [..., N] of `cost` by `amount`; at 0 the right derivative."""


@dataclass(frozen=True)
class HalfSpread:
    """Half the quoted spread, as a fraction of the price (10 basis points = 0.001)."""

    share: float
    name: str = "spread"
    needs_volume: bool = False

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return self.share * amount * prices

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return (self.share * prices).expand_as(amount)


@dataclass(frozen=True)
class QuotedHalfSpread:
    """Half the quoted spread of each asset in the bar of the fill, from the data."""

    name: str = "spread"
    needs_volume: bool = False

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return self._rate(liquidity) * amount * prices

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return (self._rate(liquidity) * prices).expand_as(amount)

    def _rate(self, liquidity: BarLiquidity) -> Tensor:
        assert liquidity.half_spread is not None
        return liquidity.half_spread


@dataclass(frozen=True)
class EraHalfSpread(QuotedHalfSpread):
    """Spread and commission of a side in the decade of the bar, in basis points of the price; 0 from 2001 on.

    The figures are assumptions of the size of these costs for large US stocks.
    """


# (first day after the era, basis points)
ERA_COSTS_BPS = (("1980-01-01", 70.0), ("1990-01-01", 40.0), ("2001-01-01", 20.0))


@dataclass(frozen=True)
class PerShare:
    """Commission of `rate` currency per share, at least `minimum` per order."""

    rate: float
    minimum: float = 0.0
    name: str = "per share"
    needs_volume: bool = False

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return torch.where(amount > 0, (self.rate * amount).clamp(min=self.minimum), torch.zeros_like(amount))

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return self.rate * (self.rate * amount > self.minimum).to(amount)


@dataclass(frozen=True)
class SquareRootImpact:
    """The square-root law: filling Q shares in a bar of volume V moves the price by coefficient * volatility *
    sqrt(Q/V).

    Volatility is per bar; the whole order pays the moved price. Coefficients near 1 fit stocks and futures over
    many decades of size (Toth et al. 2011; Almgren et al. 2005 fit a power of 3/5).
    """

    coefficient: float
    name: str = "impact"
    needs_volume: bool = True

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return self._rate(prices, liquidity) * amount**1.5

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return self._rate(prices, liquidity) * 1.5 * amount**0.5

    def _rate(self, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """Cost divided by amount ** 1.5. Unused at zero volume, where the volume limit prevents any fill."""
        assert liquidity.volume is not None
        assert liquidity.volatility is not None
        volume = liquidity.volume.clamp(min=torch.finfo(prices.dtype).tiny)
        return self.coefficient * liquidity.volatility * prices / volume**0.5


@dataclass(frozen=True)
class Frictions:
    """Frictions beyond a proportional cost.

    costs: models charged on every fill, on top of the proportional rate.
    participation: maximum fill as a fraction of the bar volume, the rest of the order is cancelled; 0: no limit.
    borrow_fee: annual fee on the value of short positions, charged overnight (actual/365).
    cash_rates: (date, annual rate), sorted by date: interest on cash, and on borrowed cash, from each date on; 0
        before the first.
    delisting_return: return from the last close of a delisted ticker to what it pays out: 0 pays the last close, -0.3
        thirty percent less.
    delay: bars from a decision to its fill. If above 1, the target is sized at the close before the fill.
    """

    costs: tuple[CostModel, ...] = ()
    participation: float = 0.0
    borrow_fee: float = 0.0
    cash_rates: tuple[tuple[str, float], ...] = ()
    delisting_return: float = 0.0
    delay: int = 1

    @property
    def needs_volume(self) -> bool:
        """Whether the market must have volumes."""
        return self.participation > 0 or any(model.needs_volume for model in self.costs)

    @property
    def needs_spread(self) -> bool:
        """Whether the market must have spreads."""
        return any(isinstance(model, QuotedHalfSpread) for model in self.costs)
