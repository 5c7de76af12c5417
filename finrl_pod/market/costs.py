"""What a trade costs beyond its proportional rate, and what a position costs overnight: models that compose.

Each cost model is convex in the number of shares and looks at one asset alone. `finrl_pod.market.venue` charges them in
the environments as in the backtest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch

from finrl_pod.types import Tensor


class BarLiquidity(NamedTuple):
    """What is known of the bar that a trade fills in, [..., N] each.

    volume: shares traded in it, infinite where a delisted ticker is paid out. volatility: standard deviation of a
    bar's log return, as it was known at the decision.
    """

    volume: Tensor | None = None
    volatility: Tensor | None = None


@runtime_checkable
class CostModel(Protocol):
    """One kind of cost."""

    @property
    def name(self) -> str:
        """Names it in the attribution of costs."""
        ...

    @property
    def needs_volume(self) -> bool:
        """Whether it reads the liquidity."""
        ...

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """Currency [..., N] for filling `amount` >= 0 shares [..., N]: zero at zero, convex above."""
        ...

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """The derivative [..., N] of `cost` by `amount`, on the right of zero at zero."""
        ...


@dataclass(frozen=True)
class HalfSpread:
    """Half of the quoted spread as a share of the price (10 basis points = 0.001): every fill is so much worse."""

    share: float
    name: str = "spread"
    needs_volume: bool = False

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return self.share * amount * prices

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:  # noqa: ARG002
        return (self.share * prices).expand_as(amount)


@dataclass(frozen=True)
class PerShare:
    """A broker's commission: `rate` currency a share, at least `minimum` currency an order."""

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

    Volatility is of one bar. The whole order pays the moved price. With coefficients near 1 the law holds for stocks
    and futures over many decades of size (Toth et al. 2011; Almgren et al. 2005 fit the power 3/5).
    """

    coefficient: float
    name: str = "impact"
    needs_volume: bool = True

    def cost(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return self._rate(prices, liquidity) * amount**1.5

    def slope(self, amount: Tensor, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        return self._rate(prices, liquidity) * 1.5 * amount**0.5

    def _rate(self, prices: Tensor, liquidity: BarLiquidity) -> Tensor:
        """Cost over amount ** 1.5. Where nothing was traded the cap lets nothing fill, and the rate is not used."""
        if liquidity.volume is None or liquidity.volatility is None:
            raise ValueError("square-root impact reads the volume and the volatility of the bar")
        traded = liquidity.volume.clamp(min=torch.finfo(prices.dtype).tiny)
        return self.coefficient * liquidity.volatility * prices / traded**0.5


@dataclass(frozen=True)
class Frictions:
    """Everything beyond a proportional cost.

    costs: charged on every fill, on top of the proportional rate.
    participation: a fill is at most this share of its bar's volume, the rest of the order lapses; 0: no limit.
    borrow_fee: a year, as a share of the value of short positions, charged overnight (actual days over 365).
    cash_rates: (date, annual rate) in order of date: what cash earns, and borrowed cash pays, from each date on;
        nothing before the first.
    delisting_return: return from the last close of a delisted ticker to what it pays out: 0 pays the last close, -0.3
        thirty percent less.
    delay: bars from a decision to its fill. With more than one, the target is sized on the close before the fill.
    """

    costs: tuple[CostModel, ...] = ()
    participation: float = 0.0
    borrow_fee: float = 0.0
    cash_rates: tuple[tuple[str, float], ...] = ()
    delisting_return: float = 0.0
    delay: int = 1

    @property
    def needs_volume(self) -> bool:
        """Whether a market without volumes must be refused."""
        return self.participation > 0 or any(model.needs_volume for model in self.costs)
