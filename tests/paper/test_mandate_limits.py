"""Risk limits follow from the mandate, and a config that contradicts it is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from finrl_pod_strategies.baselines import make_baseline
from finrl_pod_strategies.mandate_account import BasePortfolio

from finrl_pod.errors import ConfigError
from finrl_pod.market.mandate import MandateBar, largest_weight, tilted
from finrl_pod.paper.execution.mandate_limits import risk_limits
from finrl_pod.paper.settings import DataSettings, OrderSettings, PaperConfig, RiskSettings
from finrl_pod.settings.run import MandateConfig

SYMBOLS = tuple(f"S{n}" for n in range(20))


def config(window: int = 600, **risk: float) -> PaperConfig:
    return PaperConfig(
        strategy="equal_weight", symbols=SYMBOLS, risk=RiskSettings(**risk), data=DataSettings(window=window),
        orders=OrderSettings(cash_buffer=0.02),
    )  # fmt: skip


def portfolio(**mandate: Any) -> BasePortfolio:
    return BasePortfolio(MandateConfig(**mandate))


@pytest.mark.parametrize("tilt", [0.0, 0.5, 3.0])
def test_largest_weight_is_reached_by_the_extreme_scores(tilt: float) -> None:
    mandate = MandateConfig(tilt=tilt)
    bar = MandateBar(torch.full((20,), 0.05, dtype=torch.float64), torch.ones(20).bool(), torch.ones(1).bool())
    scores = torch.full((20,), -50.0).double()
    scores[3] = 50.0
    weights = tilted(scores, bar, torch.zeros(20).double(), mandate, 1.0)
    assert float(weights.max()) == pytest.approx(largest_weight(mandate, 20), rel=1e-12)
    assert largest_weight(replace(mandate, max_weight=0.05), 20) == 0.05
    assert largest_weight(replace(mandate, base="minimum_variance"), 20) == 1.0


def test_limits_follow_the_mandate_unless_set() -> None:
    loose = risk_limits(config(), make_baseline("equal_weight"))
    assert (loose.max_position, loose.max_order, loose.max_turnover, loose.max_gross) == (0.4, 0.5, 2.0, 1.0)
    followed = risk_limits(config(), portfolio(max_weight=0.1))
    assert (followed.max_position, followed.max_turnover, followed.max_gross) == (pytest.approx(0.15), 1.0, 1.0)
    bounded = risk_limits(config(), portfolio())
    assert bounded.max_position == bounded.max_order == pytest.approx(1.5 * 2.718281828 / (2.718281828 + 19))
    assert risk_limits(config(), portfolio(base="inverse_volatility")).max_position == 1.0
    few = risk_limits(config(), portfolio(max_holdings=5))
    assert (few.max_order, few.max_turnover) == (pytest.approx(1.5 / (1 + 4 / 2.718281828)), 2.0)
    own = risk_limits(config(max_position=0.12, max_turnover=0.3, daily_loss=0.02), portfolio(max_weight=0.1))
    assert (own.max_position, own.max_turnover, own.daily_loss) == (0.12, 0.3, 0.02)
    assert own.max_order == followed.max_order


@pytest.mark.parametrize(
    ("risk", "mandate", "message"),
    [
        ({"max_position": 0.04}, {}, r"risk.max_position must be at least 0.049 .*cannot be held\), got 0.04"),
        ({"max_position": 0.1}, {"max_holdings": 5}, "risk.max_position must be at least 0.196 .*1 / 5, without which"),
        ({"max_position": 0.08}, {"max_weight": 0.1}, r"risk.max_position must be at least 0.098 .*max_weight = 0.1"),
        ({"max_order": 0.01}, {}, "risk.max_order must be at least 0.049 .*buys of each symbol"),
        ({"max_gross": 0.9, "max_net": 0.9}, {}, "risk.max_gross must be at least 0.98 "),
        ({"max_net": 0.5}, {}, "risk.max_net must be at least 0.98 "),
        ({}, {"max_weight": 0.04}, r"mandate.max_weight = 0.04 .* is below 0.05, 1 / 20"),
    ],
)
def test_limits_that_contradict_the_mandate_are_refused(
    risk: dict[str, float], mandate: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        risk_limits(config(**risk), portfolio(**mandate))


def test_limits_between_base_and_largest_weight_only_tighten() -> None:
    assert risk_limits(config(max_position=0.06), portfolio()).max_position == 0.06
    reduced = {"max_gross": 0.6, "max_net": 0.6}
    assert risk_limits(config(**reduced), portfolio(volatility_target=0.1)).max_gross == 0.6


def test_price_window_must_cover_the_strategy() -> None:
    slow = portfolio(base="minimum_variance")
    assert slow.lookback == 277
    with pytest.raises(ConfigError, match=r"data.window must be at least 277 sessions for strategy .*, got 276"):
        risk_limits(config(window=276), slow)
    risk_limits(config(window=277), slow)
    risk_limits(config(window=0), slow)


@pytest.mark.parametrize("name", ["max_position", "max_order", "max_turnover", "max_gross", "max_net"])
def test_limit_below_the_smallest_order_is_refused(name: str) -> None:
    limits = {"max_position": 1e-7, "max_gross": 1e-6, "max_net": 1e-6} if name == "max_gross" else {name: 1e-7}
    with pytest.raises(ConfigError, match=r"so nothing can be bought; raise it"):
        risk_limits(config(**limits), make_baseline("equal_weight"))
