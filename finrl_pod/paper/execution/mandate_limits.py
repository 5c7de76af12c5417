"""Risk limits that follow from the mandate of a strategy, and the check that a config leaves room for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from finrl_pod.errors import ConfigError
from finrl_pod.evaluate.backtest import lookback_of
from finrl_pod.market.mandate import active_mandate, largest_weight, limits_names, most_names
from finrl_pod.market.protocols import MandatedStrategy
from finrl_pod.paper.settings import PaperConfig, RiskSettings, allocations
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import MandateConfig

DRIFT_ALLOWANCE = 1.5  # a position may grow to this multiple of the largest desired weight under the mandate
UNBOUNDED = {"max_position": 0.4, "max_order": 0.5, "max_turnover": 2.0}  # without a mandate


def mandate_of(strategy: Strategy) -> MandateConfig | None:
    """Return the mandate that bounds a strategy, None without one."""
    return active_mandate(strategy.mandate) if isinstance(strategy, MandatedStrategy) else None


def risk_limits(config: PaperConfig, strategy: Strategy) -> RiskSettings:
    """Return the risk limits of a config, including the limits that it leaves to the mandate.

    Under a mandate the largest position and order are `DRIFT_ALLOWANCE` times the largest desired weight, at most
    `max_gross`; the turnover of a session is limited to buying the whole account, with few names to replacing it.
    Without one they are `UNBOUNDED`.
    Raises ConfigError if the limits contradict the mandate or admit no order at all, or the price window is too short
    for the strategy.
    """
    _check_window(config, strategy)
    risk = config.risk
    mandate = mandate_of(strategy)
    limits = dict(UNBOUNDED)
    if mandate is not None:
        largest = largest_weight(mandate, len(config.symbols))
        _check_mandate(config, mandate, largest, strategy.name)
        limits = dict.fromkeys(("max_position", "max_order"), DRIFT_ALLOWANCE * largest)
        limits["max_turnover"] = risk.max_gross * (2 if limits_names(mandate) else 1)
    for name in ("max_position", "max_order"):
        limits[name] = min(limits[name], risk.max_gross)
    limits_of_config = replace(risk, **{name: getattr(risk, name) or limit for name, limit in limits.items()})
    _check_admissible(config, limits_of_config)
    return limits_of_config


def recorded_limits(config: PaperConfig, strategies: Sequence[Strategy]) -> RiskSettings:
    """Return the limits that a single strategy trades under; the limits of the config if there are several."""
    return config.risk if config.strategies else risk_limits(config, strategies[0])


def check_strategies(config: PaperConfig, strategies: Sequence[Strategy]) -> None:
    """Raises ConfigError for limits that contradict the mandate of a strategy or admit no order (`risk_limits`)."""
    for allocation, strategy in zip(allocations(config), strategies, strict=True):
        risk_limits(allocation, strategy)


def _check_admissible(config: PaperConfig, limits: RiskSettings) -> None:
    """Raises ConfigError if a limit is below the smallest order, so that nothing could ever be bought."""
    smallest = config.orders.min_value / config.capital
    for name in ("max_position", "max_order", "max_turnover", "max_gross", "max_net"):
        if getattr(limits, name) < smallest:
            raise ConfigError(
                f"risk.{name} = {getattr(limits, name):g} of a capital of {config.capital:,.2f} is below "
                f"orders.min_value = {config.orders.min_value:g}, so nothing can be bought; raise it"
            )


def _check_window(config: PaperConfig, strategy: Strategy) -> None:
    lookback = lookback_of(strategy)
    window = config.data.window
    if window and lookback is not None and window < lookback:
        raise ConfigError(
            f"data.window must be at least {lookback} sessions for strategy {strategy.name}, got {window}; raise it, "
            "or set 0 for all"
        )


def _check_mandate(config: PaperConfig, mandate: MandateConfig, largest: float, name: str) -> None:
    """Raises ConfigError if a limit is so tight that the base, or a weight up to max_weight, cannot be held."""
    invested_share = 1 - config.orders.cash_buffer
    names = most_names(mandate, len(config.symbols))
    equal = 1 / names
    position = equal
    reason = f"1 / {names}, without which the base cannot be held"
    if mandate.max_weight < 1 and largest > equal:
        position = largest
        reason = f"the largest weight that mandate.max_weight = {mandate.max_weight:g} allows"
    if mandate.max_weight < equal - 1e-9:
        raise ConfigError(
            f"mandate.max_weight = {mandate.max_weight:g} of strategy {name} is below {equal:.4g}, 1 / "
            f"{names} of `symbols`: the base cannot be held; add symbols, or choose another run"
        )
    minimums = [("max_position", position, reason), ("max_order", equal, "what the base buys of each symbol at first")]
    if not mandate.volatility_target:
        full = "what the base invests, 1 less orders.cash_buffer"
        minimums += [("max_gross", 1.0, full), ("max_net", 1.0, full)]
    for limit, share, why in minimums:
        limit_of_config = getattr(config.risk, limit)
        if limit_of_config and limit_of_config < share * invested_share - 1e-9:
            raise ConfigError(
                f"risk.{limit} must be at least {share * invested_share:.4g} under the mandate of strategy {name} "
                f"({why}), got {limit_of_config:g}; raise it, or leave it out to follow the mandate"
            )
