"""Checks of a mandate: settings out of range, in conflict, or that leave no room for the base portfolio."""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod.errors import ConfigError, closest_name, listed
from finrl_pod.market.mandate import active_mandate, limits_names, most_names, uses_groups
from finrl_pod.settings.constraints import check_settings
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig


def validate_mandate(config: MandateConfig, environment: EnvironmentConfig, symbols: Sequence[str]) -> None:
    """Raises ConfigError for settings out of range, in conflict with each other, the environment or the symbols."""
    check_settings("mandate.", config)
    _check_groups(config, symbols)
    if active_mandate(config) is None:
        if limits_names(config) or uses_groups(config):
            raise ConfigError(
                "mandate.max_holdings, min_position, max_group_weight and group_neutral need a base such as "
                '"equal_weight"; mandate.base = "none" lifts all bounds'
            )
        return
    if environment.short:
        raise ConfigError(
            f'environment.short needs mandate.base = "none", got {config.base!r}: a tilt of a base is long-only'
        )
    if environment.kind == "stock_trading":
        raise ConfigError(
            f'environment.kind "stock_trading" trades numbers of shares and cannot be bounded by mandate.base = '
            f'{config.base!r}; set mandate.base = "none", or environment.kind = "portfolio"'
        )
    _check_name_limits(config, environment, symbols)


def _check_groups(config: MandateConfig, symbols: Sequence[str]) -> None:
    if uses_groups(config) and not config.groups:
        raise ConfigError(
            "mandate.max_group_weight and mandate.group_neutral need groups; add a section [groups] with lines such as "
            'technology = ["AAPL", "MSFT"]'
        )
    group_of: dict[str, str] = {}
    for group in config.groups:
        for symbol in group.symbols:
            if symbol not in symbols:
                close = closest_name(symbol, symbols)
                hint = f"did you mean {close}?" if close else f"the prices have {listed(list(symbols))}"
                raise ConfigError(f"groups.{group.name} names {symbol!r:.80}, a symbol without prices; {hint}")
            if symbol in group_of:
                group_names = dict.fromkeys((group_of[symbol], group.name))
                raise ConfigError(f"{symbol} is twice in [groups], in {' and '.join(group_names)}; name it once")
            group_of[symbol] = group.name


def _check_name_limits(config: MandateConfig, environment: EnvironmentConfig, symbols: Sequence[str]) -> None:
    """Raises ConfigError for limits on names and groups that leave no room for the base."""
    min_position = config.min_position
    cap = config.max_group_weight
    if limits_names(config) and config.max_turnover:
        raise ConfigError(
            f"mandate.max_turnover = {config.max_turnover:g} does not work with few names: they enter and leave "
            "at once; set it to 0 and lower trade_speed, or leave out max_holdings and min_position"
        )
    if config.max_holdings and min_position * config.max_holdings > environment.leverage + 1e-9:
        raise ConfigError(
            f"mandate.min_position may be at most {environment.leverage / config.max_holdings:.4g} for max_holdings = "
            f"{config.max_holdings} (1 / max_holdings), got {min_position:g}; lower one of them"
        )
    if min_position > cap:
        raise ConfigError(f"mandate.min_position = {min_position:g} is above max_group_weight = {cap:g}; lower it")
    # What each further name of a group, or of none, may add to the weight of the account.
    sizes = [len(group.symbols) for group in config.groups] if cap < 1 else []
    additions = [config.max_weight] * (len(symbols) - sum(sizes))
    for size in sizes:
        names = range(size if not min_position else min(size, int(cap / min_position + 1e-6)))
        additions += [min(config.max_weight, max(0.0, cap - i * config.max_weight)) for i in names]
    names_held = most_names(config, len(symbols))
    room = sum(sorted(additions, reverse=True)[:names_held])
    if room < environment.leverage - 1e-9:
        values = (
            (name, getattr(config, name)) for name in ("max_holdings", "min_position", "max_weight", "max_group_weight")
        )
        limits = [f"{name} = {value:g}" for name, value in values if value != getattr(MandateConfig, name)]
        raise ConfigError(
            f"mandate: {', '.join(limits)} leave room for {room:.4g} of the account in {names_held} of {len(symbols)} "
            f"assets, and the base needs {environment.leverage:g}; raise a limit"
        )
