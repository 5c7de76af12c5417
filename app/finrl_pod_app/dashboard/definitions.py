"""What each statistic is, in one or two sentences: the tooltips of the pages."""

from __future__ import annotations

DEFINITIONS = {
    "cumulative_return": "Last equity over the first, less one. Costs are paid.",
    "annual_return": "The yearly growth that would have given the same end: compounded; daily bars of an exchange "
    "are 252 a year.",
    "annual_volatility": "Standard deviation of the bars' returns, times the square root of the bars of a year: 252 "
    "for daily ones.",
    "sharpe": "Mean of the bars' returns in excess of the cash rate over their standard deviation, times the square "
    "root of the bars of a year: 252 for daily ones. Above 1 is rare over many years.",
    "sortino": "As the Sharpe ratio, but over the deviation of the losing days alone.",
    "calmar": "Return a year over the largest drawdown.",
    "max_drawdown": "The largest fall of the equity from a peak it had reached before.",
    "turnover": "Half of the value bought and sold in a year, over the equity: 1 replaces the whole account once.",
    "costs_paid": "Fees, spread and slippage that were paid in the whole period.",
    "tracking_difference": "Return of the real account less the return of the replayed backtest over the same days.",
    "slippage": "How much worse than the reference price an order was filled, in basis points (1 bp = 0.01%).",
    "validation_score": "Sharpe ratio on the validation years, from which the tournament picks its champion. Test "
    "years are not looked at.",
    "samples_per_second": "Steps of all environments of all agents a second, learning included.",
    "trials": "How many different strategies were ever scored on this data. The more, the better the best looks by "
    "luck; the deflated Sharpe ratio takes that away.",
    "differ": "Trials whose returns are nearly the same count as one here.",
    "looks": "How often somebody saw results of the test years. Each further look makes a lucky one likelier, so the "
    "rules grow stricter with it.",
    "psr": "Probabilistic Sharpe ratio: how likely the true Sharpe ratio is above zero, given length, skew and "
    "tails (Bailey and López de Prado 2012).",
    "dsr": "Deflated Sharpe ratio: the same against the best of as many lucky trials as were counted (Bailey and "
    "López de Prado 2014).",
    "pbo": "Probability of backtest overfitting: how often the best in one half of the days is below the median in the "
    "other (Bailey et al. 2017).",
    "interval": "Where the statistic lies in 95% of stationary bootstrap samples of the same days (Politis and Romano "
    "1994).",
}


def definition(key: str) -> str:
    """The tooltip of a statistic. Raises KeyError for one that has none: every statistic that is shown has one."""
    return DEFINITIONS[key]
