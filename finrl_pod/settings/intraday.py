"""Settings of order execution within a session."""

from __future__ import annotations

from dataclasses import dataclass

from finrl_pod.settings.constraints import FRACTION, NOT_NEGATIVE, POSITIVE_FINITE, above_and_at_most, setting


@dataclass(frozen=True)
class IntradayExecutionConfig:
    """A parent order that is sliced over the bars of one session.

    Impact is that of Almgren, Thum, Hauptmann and Li (2005), estimated on 29,509 orders in US stocks: trading a share x
    of a bar's volume costs eta sigma x^(3/5), and the order's share of the daily volume moves the price by gamma sigma
    times it, sigma being the daily volatility.
    """

    order_share: float = setting(0.05, "size of the parent order over the usual daily volume", POSITIVE_FINITE)
    max_participation: float = setting(
        0.25, "largest share of a bar's volume; what is left at the end fills in the last bar", above_and_at_most(0, 1)
    )
    eta: float = setting(0.142, "coefficient of temporary impact", NOT_NEGATIVE)
    exponent: float = setting(0.6, "exponent of temporary impact", FRACTION)
    gamma: float = setting(0.314, "coefficient of permanent impact", NOT_NEGATIVE)
    half_spread_bps: float = setting(1.0, "half the bid-ask spread, in basis points", NOT_NEGATIVE)
    risk_aversion: float = setting(
        0.0, "cost of a squared share of the order held for a session, in basis points per squared 1% of volatility",
        NOT_NEGATIVE,
    )  # fmt: skip
