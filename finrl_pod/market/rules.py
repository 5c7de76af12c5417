"""Execution rules from an environment config."""

from __future__ import annotations

import itertools
from datetime import date

from finrl_pod.errors import ConfigError, InputError
from finrl_pod.market.costs import (
    CostModel,
    EraHalfSpread,
    Frictions,
    HalfSpread,
    PerShare,
    QuotedHalfSpread,
    SquareRootImpact,
)
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.market.rewards import check_reward
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig
from finrl_pod.user_files import custom_object, error_text, unpinned

NO_FRICTIONS = Frictions()
MAX_COST_BPS_BESIDE_SPREADS = 5_000


def rules_of(config: EnvironmentConfig) -> ExecutionRules:
    """Execution rules of environments with this config, and of backtests of agents trained in them.

    Raises ConfigError for settings out of range or in conflict.
    """
    _validate(config)
    costs: list[CostModel] = []
    if config.half_spread == "from data":
        costs.append(QuotedHalfSpread())
    elif config.half_spread == "by era":
        costs.append(EraHalfSpread())
    elif config.half_spread_bps:
        costs.append(HalfSpread(config.half_spread_bps / 1e4))
    if config.per_share or config.per_share_minimum:
        costs.append(PerShare(config.per_share, config.per_share_minimum))
    if config.impact:
        costs.append(SquareRootImpact(config.impact))
    if config.cost_model:
        costs.append(custom_cost(config.cost_model))
    frictions = Frictions(
        tuple(costs),
        config.participation,
        config.borrow_fee,
        tuple((date.fromisoformat(day).isoformat(), float(rate)) for day, rate in config.cash_rates),
        config.delisting_return,
        config.delay,
    )
    return ExecutionRules(
        cost_rate=config.cost_bps / 1e4,
        whole_shares=config.whole_shares,
        short=config.short,
        buy_allocation=config.buy_allocation,
        leverage=config.leverage,
        tax_short=config.tax_short,
        tax_long=config.tax_long,
        frictions=None if frictions == NO_FRICTIONS else frictions,
    )


def custom_cost(name: str) -> CostModel:
    """The custom cost of file.py:Class or package.module:Class, made without arguments.

    Raises ConfigError for an object that is no `CostModel`, InputError for a file that cannot be used.
    """
    custom_part = custom_object(name, f"the cost {name}")
    if custom_part is None:
        raise ConfigError(f"environment.cost_model must be file.py:Class of a cost, got {name!r}")
    try:
        model = custom_part() if isinstance(custom_part, type) else custom_part
    except Exception as error:
        raise InputError(f"the cost {unpinned(name)} could not be created: {error_text(error)}") from error
    if not isinstance(model, CostModel):
        raise ConfigError(
            f"the cost {unpinned(name)} must have name, needs_volume, cost(amount, prices, liquidity) and "
            "slope(amount, prices, liquidity), as the models in finrl_pod.market.costs"
        )
    return model


def _validate(config: EnvironmentConfig) -> None:
    check_settings("environment.", config)
    check_reward(config)
    if config.cost_bps + config.half_spread_bps >= 10_000:
        raise ConfigError("environment.cost_bps and half_spread_bps together must stay below 10000, the whole price")
    if config.half_spread != "constant" and config.half_spread_bps:
        raise ConfigError(
            f'environment.half_spread = "{config.half_spread}" charges no constant, and environment.half_spread_bps = '
            f'{config.half_spread_bps:g} is one; set half_spread_bps = 0, or half_spread = "constant"'
        )
    if config.half_spread == "from data" and config.cost_bps >= MAX_COST_BPS_BESIDE_SPREADS:
        raise ConfigError(
            f'environment.cost_bps must stay below {MAX_COST_BPS_BESIDE_SPREADS} with half_spread = "from data", got '
            f"{config.cost_bps:g}: half a spread can take up to half of the price"
        )
    if config.impact and not config.participation:
        raise ConfigError(
            "environment.impact needs environment.participation, a limit such as 0.1 of the bar volume: beyond it the "
            "square-root law is not validated"
        )
    if config.buy_allocation == "sequential" and (
        config.per_share or config.per_share_minimum or config.participation or config.cost_model
    ):
        raise ConfigError(
            'environment.buy_allocation = "sequential" supports proportional costs only; use "proportional" with '
            "per_share, per_share_minimum, participation, impact and cost_model"
        )
    if config.delay > 1 and config.fill == "same_close":
        raise ConfigError('environment.delay above 1 needs environment.fill = "next": the same close has no delay')
    if config.short and (config.tax_short or config.tax_long):
        raise ConfigError("environment.tax_short and tax_long tax long holdings; set environment.short = false")
    _validate_cash_rates(config.cash_rates)


def _validate_cash_rates(rates: tuple[tuple[str, float], ...]) -> None:
    rule = "environment.cash_rates"
    days = []
    for day, rate in rates:
        try:
            days.append(date.fromisoformat(day))
        except ValueError:
            raise ConfigError(f'{rule} holds pairs such as ["2019-01-01", 0.02], got the date {day!r}') from None
        if not -0.5 < rate < 1:
            raise ConfigError(f"{rule} are annual rates such as 0.02 for 2%, got {rate:g} from {day}")
    for first, second in itertools.pairwise(days):
        if second <= first:
            raise ConfigError(f"{rule} must be in order of their dates, got {second} after {first}: sort them")
