"""Baselines that a champion is compared with: rules, portfolio optimisation, their registry, and backtests of them.

Optimised portfolios are refitted monthly on trailing simple returns, long-only and fully invested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import ceil
from typing import cast

import numpy as np

from finrl_pod.data.tensor import Fill, build_market
from finrl_pod.errors import InputError
from finrl_pod.evaluate.backtest import backtest
from finrl_pod.market.costs import HalfSpread
from finrl_pod.market.execution import ExecutionRules, MarketPeriod
from finrl_pod.protocols import Strategy
from finrl_pod.random import key
from finrl_pod.types import BacktestResult, Bools, Floats, MarketTensor, Panel, Positions, Times, Window
from finrl_pod_strategies import check_strategy_name

YEAR = 252
MONTH = 21  # bars
MIN_PRICED = 0.9  # share of the bars of the window; an asset with fewer prices is skipped
NEWTON_STEPS, CONVERGED = 500, 1e-11
NO_VARIANCE = 1e-12  # constant returns make a covariance matrix singular

Weights = Callable[[Floats, Floats], Floats]  # of mean returns [K] and their covariance [K, K], the weights [K]


def holds_only_cash(positions: Positions) -> bool:
    """Whether the account has no holdings, as at the first bar of a backtest."""
    return not np.any(positions.weights)


def is_rebalance_bar(window: Window, positions: Positions) -> bool:
    """Whether a monthly strategy trades: at the first bar of a month (UTC), and while it holds only cash.

    Needs a window of two bars.
    """
    months = window.times[-2:].astype("datetime64[M]")
    return holds_only_cash(positions) or bool(months[0] != months[-1])


def month_starts(times: Times) -> Bools:
    """[T] bool: the first bar of each calendar month (UTC). The first bar of all is not known to be one."""
    months = times.astype("datetime64[M]")
    starts: Bools = np.zeros(len(times), dtype=bool)
    starts[1:] = months[1:] != months[:-1]
    return starts


class Monthly:
    """Trades at the first bar of each month (UTC), and while it holds only cash."""

    def decision_bars(self, times: Times) -> Bools:
        """[T] bool, bars at which an account with holdings may trade. The first bar of all may begin a month."""
        bars = month_starts(times)
        bars[:1] = True
        return bars


class BoughtOnce:
    """Trades while it holds only cash."""

    def decision_bars(self, times: Times) -> Bools:
        """[T] bool, bars at which an account with holdings may trade: none."""
        return np.zeros(len(times), dtype=bool)


def equal_weights(is_selected: np.ndarray) -> Floats:
    """Equal weights [N] of the selected assets [N] bool; all zero if none is selected."""
    return np.where(is_selected, 1.0 / max(int(is_selected.sum()), 1), 0.0)


@dataclass(frozen=True)
class EqualWeight(Monthly):
    """Equal weight of every asset with a price, rebalanced monthly, or bought once and held."""

    name: str = "equal_weight"
    rebalance: bool = True
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not (is_rebalance_bar(window, positions) if self.rebalance else holds_only_cash(positions)):
            return None
        return equal_weights(window.tradable[-1])

    def decision_bars(self, times: Times) -> Bools:
        return super().decision_bars(times) if self.rebalance else np.zeros(len(times), dtype=bool)


@dataclass(frozen=True)
class SavingsPlan(Monthly):
    """Buys equal parts of every asset with a price for the cash at the first bar of each month, and never sells."""

    name: str = "savings_plan"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not is_rebalance_bar(window, positions):
            return None
        return positions.weights + positions.cash * equal_weights(window.tradable[-1])


@dataclass(frozen=True)
class BuyAndHold(BoughtOnce):
    """One symbol, bought at the first bar on which it trades, and held."""

    name: str
    feature_names: tuple[str, ...] = ()
    lookback: int = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        place = window.symbols.index(self.name)
        if not holds_only_cash(positions) or not window.tradable[-1, place]:
            return None
        return np.where(np.arange(len(window.symbols)) == place, 1.0, 0.0)


@dataclass(frozen=True)
class Index(BoughtOnce):
    """The single asset of an index market (`baselines.index_market`), bought once and held."""

    name: str = "index"
    feature_names: tuple[str, ...] = ()
    lookback: int = 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.symbols) != 1:
            raise InputError(
                f"the index baseline needs a market of the index only, got {len(window.symbols)} symbols; "
                "build one with index_market"
            )
        return np.ones(1) if holds_only_cash(positions) and window.tradable[-1, 0] else None


@dataclass(frozen=True)
class Momentum(Monthly):
    """12-1 momentum: equal weight in the top third by return from 252 to 21 bars ago, rebalanced monthly.

    Assets without a price at either bar or at the decision are skipped; ties go to the earlier symbol. Jegadeesh and
    Titman (1993), skipping the last month.
    """

    name: str = "momentum_12_1"
    top: float = 1 / 3
    feature_names: tuple[str, ...] = ()
    lookback: int = YEAR + 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) <= YEAR or not is_rebalance_bar(window, positions):
            return None
        growth = window.close[-1 - MONTH] / window.close[-1 - YEAR]
        growth[~window.tradable[-1]] = np.nan
        priced_count = int(np.isfinite(growth).sum())
        if not priced_count:
            return None
        ranking = np.argsort(-growth, kind="stable")  # NaN sorts last
        is_selected = np.zeros(len(growth), dtype=bool)
        is_selected[ranking[: ceil(priced_count * self.top)]] = True
        return equal_weights(is_selected)


@dataclass(frozen=True)
class RandomWeights(Monthly):
    """Random long-only weights of the assets with a price (uniform Dirichlet), drawn again each month.

    The draw depends only on the seed and the date of the bar, not on where a backtest starts.
    """

    seed: int = 0
    name: str = "random_weights"
    feature_names: tuple[str, ...] = ()
    lookback: int = 2

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if not is_rebalance_bar(window, positions):
            return None
        day = int(window.times[-1].astype("datetime64[D]").astype(np.int64))
        sample = np.random.default_rng(key(self.seed, abs(day), "random weights")).exponential(size=len(window.symbols))
        sample[~window.tradable[-1]] = 0.0
        return np.asarray(sample / max(sample.sum(), 1e-12), dtype=np.float64)


# ---------------------------------------------------------------------- portfolio optimisation


@dataclass(frozen=True)
class Optimised(Monthly):
    """Weights from moments of the returns of the trailing `bars` bars, fitted at the first bar of each month.

    Assets need a price at the decision, at the first bar of the window, and on nine tenths of the bars between; gaps
    are filled forward. With as many assets as returns, or if shrinks, the sample covariance is shrunk as in Ledoit
    and Wolf (2004). The account stays in cash until the window is full, and with needs_gain while no asset has a
    positive mean return. Raises InputError with the date if a fit fails.
    """

    name: str
    model: Weights
    bars: int
    needs_gain: bool = False
    shrinks: bool = False
    feature_names: tuple[str, ...] = ()

    @property
    def lookback(self) -> int:
        """Bars of the window: one more price than returns."""
        return self.bars + 1

    def target_weights(self, window: Window, positions: Positions) -> Floats | None:
        if len(window.close) <= self.bars or not is_rebalance_bar(window, positions):
            return None
        returns, assets_fitted = trailing_returns(window, self.bars)
        weights = np.zeros(len(window.symbols))
        if self.needs_gain and not (returns.mean(0) > 0).any():
            return weights
        if len(assets_fitted) == 1:
            weights[assets_fitted] = 1.0
        elif len(assets_fitted):
            weights[assets_fitted] = self._fit(returns, str(window.times[-1].astype("datetime64[D]")))
        return weights

    def _fit(self, returns: Floats, date: str) -> Floats:
        is_singular = len(returns) <= returns.shape[1]
        covariance = shrunk_covariance(returns) if self.shrinks or is_singular else np.cov(returns.T)
        try:
            fit = self.model(returns.mean(0), covariance)
        except (ArithmeticError, RuntimeError, ValueError, np.linalg.LinAlgError) as error:
            raise InputError(f"{self.name} could not be fitted at {date}: {error}") from error
        return np.asarray(fit / fit.sum(), dtype=np.float64)


def trailing_returns(window: Window, bars: int) -> tuple[Floats, np.ndarray]:
    """Simple returns [bars, K] of the K assets with enough prices, and their indices [K] among the symbols."""
    close = window.close[-bars - 1 :]
    has_price = np.isfinite(close)
    enough = has_price[0] & has_price[-1] & window.tradable[-1] & (has_price.mean(0) >= MIN_PRICED)
    last_priced = np.maximum.accumulate(np.where(has_price, np.arange(len(close))[:, None], 0), axis=0)
    forward_filled = np.take_along_axis(close, last_priced, 0)[:, enough]
    returns = forward_filled[1:] / forward_filled[:-1] - 1.0
    moving = returns.std(0) > NO_VARIANCE
    return returns[:, moving], np.flatnonzero(enough)[moving]


def shrunk_covariance(returns: Floats) -> Floats:
    """Covariance [K, K] of returns [T, K], shrunk to a multiple of the identity (Ledoit and Wolf 2004, eq. 14)."""
    count, assets = returns.shape
    deviations = returns - returns.mean(0)
    sample = deviations.T @ deviations / count
    mean_variance = np.trace(sample) / assets
    spread = np.square(sample).sum() - assets * mean_variance**2
    noise = (np.square(np.square(deviations).sum(1)).sum() / count - np.square(sample).sum()) / count
    shrinkage = min(noise / spread, 1.0) if spread > 0 else 1.0
    shrunk: Floats = (1 - shrinkage) * sample + shrinkage * mean_variance * np.eye(assets)
    return shrunk


def _least_variance(covariance: Floats, gain: Floats) -> Floats:
    """Direction of the least variance w'Cw among w >= 0 with gain'w = 1.

    It is the direction of the non-negative least squares solution of |Lw|^2 + (gain'w - 1)^2 with C = L'L: along a
    direction of variance v at gain 1, that sum has its minimum v / (1 + v), increasing with v.
    """
    from scipy.optimize import nnls

    scale = np.sqrt(np.diag(covariance))  # variances of 1 and a gain of 1 on average condition the problem well
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))).T  # two assets may be equal: no Cholesky factor
    row = gain / scale
    solution, _ = nnls(np.vstack([root, row / np.abs(row).mean()]), np.append(np.zeros(len(gain)), 1.0))
    return np.asarray(solution / scale, dtype=np.float64)


def equal_risk_contribution(mean: Floats, covariance: Floats) -> Floats:  # noqa: ARG001
    """Positive weights whose contributions to the variance, w_i (Cw)_i, are equal.

    They minimise the self-concordant w'Cw / 2 - sum(log w), which the damped Newton method does from any start (Spinu
    2013). Raises ArithmeticError if it does not converge.
    """
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale)
    # The best of equal weights: from others, many assets that move together take hundreds of short steps.
    weights = np.full(len(scale), np.sqrt(len(scale) / max(correlation.sum(), 1.0)))
    for _ in range(NEWTON_STEPS):
        gradient = correlation @ weights - 1 / weights
        step = np.linalg.solve(correlation + np.diag(weights**-2), gradient)
        decrement = np.sqrt(max(float(gradient @ step), 0.0))
        weights = weights - step / (1 + decrement)
        if decrement < CONVERGED:
            return np.asarray(weights / scale, dtype=np.float64)
    raise ArithmeticError(f"equal contributions to risk were not reached in {NEWTON_STEPS} steps")


def _hierarchical_risk_parity(mean: Floats, covariance: Floats) -> Floats:
    """Recursive bisection of the assets in the order of the leaves of the dendrogram, by inverse variances."""
    from scipy.cluster.hierarchy import leaves_list, linkage
    from scipy.spatial.distance import squareform

    variance = np.diag(covariance)
    correlation = np.clip(covariance / np.sqrt(np.outer(variance, variance)), -1.0, 1.0)
    distance = np.sqrt(0.5 * (1 - correlation))
    np.fill_diagonal(distance, 0.0)
    weights = np.ones(len(mean))
    clusters = [leaves_list(linkage(squareform(distance, checks=False), "ward", optimal_ordering=True))]
    while clusters:
        whole = clusters.pop()
        if len(whole) < 2:
            continue
        halves = whole[: len(whole) // 2], whole[len(whole) // 2 :]
        left, right = (_inverse_variance_risk(covariance[np.ix_(half, half)]) for half in halves)
        weights[halves[0]] *= right / (left + right)
        weights[halves[1]] *= left / (left + right)
        clusters.extend(halves)
    return weights


def _inverse_variance_risk(covariance: Floats) -> float:
    """Variance of the portfolio whose weights are proportional to inverse variances."""
    weights = 1 / np.diag(covariance)
    weights /= weights.sum()
    return float(weights @ covariance @ weights)


OPTIMISED: tuple[Optimised, ...] = (
    Optimised("inverse_volatility", lambda _, covariance: np.asarray(1 / np.sqrt(np.diag(covariance))), bars=252),
    # Markowitz (1952).
    Optimised("minimum_variance", lambda mean, covariance: _least_variance(covariance, np.ones(len(mean))), bars=252),
    # The maximum Sharpe ratio over cash at zero; cash while no asset has a positive mean return.
    Optimised("mean_variance", lambda mean, covariance: _least_variance(covariance, mean), bars=504, needs_gain=True),
    # Lopez de Prado (2016), with Ward linkage.
    Optimised("hierarchical_risk_parity", _hierarchical_risk_parity, bars=252),
    Optimised("equal_risk_contribution", equal_risk_contribution, bars=252, shrinks=True),
)


# ---------------------------------------------------------------------- registry


_BUY_AND_HOLD = EqualWeight("equal_weight_buy_and_hold", rebalance=False)
_UNSEEDED: tuple[Strategy, ...] = (EqualWeight(), _BUY_AND_HOLD, Index(), *OPTIMISED, Momentum(), SavingsPlan())
BASELINES: dict[str, Strategy] = {strategy.name: strategy for strategy in _UNSEEDED}
# Random strategies show the results of chance; a champion is not compared with them.
SEEDED_BASELINES: dict[str, Callable[[int], Strategy]] = {"random_weights": RandomWeights}


def make_baseline(name: str, seed: int | None = None) -> Strategy:
    """The strategy of `BASELINES` or `SEEDED_BASELINES` with this name.

    Raises InputError for an unknown name, and for a seed if the strategy takes none.
    """
    if name in SEEDED_BASELINES:
        return SEEDED_BASELINES[name](seed or 0)
    if name not in BASELINES:
        check_strategy_name(name)
        raise InputError(f"strategy {name!r} is not a baseline; known are {', '.join((*BASELINES, *SEEDED_BASELINES))}")
    if seed is not None:
        raise InputError(f"strategy {name} uses no random numbers; leave out the seed")
    return BASELINES[name]


def run_baseline(name: str, panel: Panel, period: MarketPeriod) -> BacktestResult:
    """Backtest one baseline.

    The index runs on a separate market with the same bars and fill rule, without the costs that need a volume or a
    number of shares (`index_rules`).
    """
    strategy = make_baseline(name)
    if name == "index":
        panel, market = index_market(panel, period.market.fill_rule)
        period = replace(period, market=market, rules=index_rules(period.rules))
    return backtest(strategy, panel, period)


def run_baselines(panel: Panel, period: MarketPeriod, names: Iterable[str] | None = None) -> dict[str, BacktestResult]:
    """Backtest the named baselines, or all under one set of rules.

    The index is left out if the panel has none, and the savings plan always: without deposits it buys and holds.
    """
    if names is None:
        left_out = {SavingsPlan.name} | ({"index"} if panel.benchmark is None else set())
        names = [name for name in BASELINES if name not in left_out]
    return {name: run_baseline(name, panel, period) for name in names}


# ---------------------------------------------------------------------- the index as a market of one asset


def index_panel(panel: Panel) -> Panel:
    """A panel with the benchmark as its only symbol: same bars, closes only. Raises InputError without a benchmark."""
    benchmark = panel.benchmark
    if benchmark is None:
        raise InputError(f"panel {panel.name or panel.source or 'given'} has no index; leave out the index baseline")
    close = np.asarray(benchmark.close, dtype=np.float64)[:, None].copy()
    flaws = (f"{benchmark.name} is a price index: its dividends are left out",) if benchmark.price_only else ()
    return Panel(
        times=panel.times,
        symbols=(benchmark.name,),
        close=close,
        tradable=np.isfinite(close),
        adjusted=not benchmark.price_only,
        bar=panel.bar,
        name=benchmark.name,
        source=panel.source,
        flaws=flaws,
        cash_rates=panel.cash_rates,
    )


def index_market(panel: Panel, fill: str = "next") -> tuple[Panel, MarketTensor]:
    """Panel and market of the benchmark only, without features.

    An index has no opening price: with fill="next" it fills at the next close even if stocks fill at an open.
    """
    index = index_panel(panel)
    return index, build_market(index, (), (0, len(index.times) - 1), cast(Fill, fill))


def index_rules(rules: ExecutionRules) -> ExecutionRules:
    """The rules without costs that an index cannot pay.

    An index level has neither volume, quoted spread nor a number of shares: constant proportional costs, interest and
    delay remain.
    """
    rules = replace(rules, whole_shares=False)
    frictions = rules.frictions
    if frictions is None:
        return rules
    spreads = tuple(model for model in frictions.costs if isinstance(model, HalfSpread))
    return replace(rules, frictions=replace(frictions, costs=spreads, participation=0.0))
