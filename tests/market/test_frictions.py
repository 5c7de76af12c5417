"""All cost models and combinations of them against a reference implementation, and invariants of the fills."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.market.costs import BarLiquidity, CostModel, Frictions, HalfSpread, PerShare, SquareRootImpact
from finrl_pod.market.execution import ExecutionRules, Fills, account_equity, execute
from finrl_pod.market.venue import all_cost_models, costs_by_model, execute_with_frictions
from tests.market.reference_frictions import ReferenceCosts, reference_execute_with_frictions

BATCH, ASSETS = 8, 4
cost_settings = st.builds(
    ReferenceCosts,
    rate=st.sampled_from([0.0, 0.001, 0.02]),
    spread=st.sampled_from([0.0, 0.0005]),
    per_share=st.sampled_from([0.0, 0.005, 0.5]),
    minimum=st.sampled_from([0.0, 1.0, 50.0]),
    impact=st.sampled_from([0.0, 1.0, 3.0]),
)
rule_sets = st.builds(
    ExecutionRules, whole_shares=st.booleans(), short=st.booleans(), leverage=st.sampled_from([1.0, 1.5])
)
participations = st.sampled_from([0.05, 1.0])
seeds = st.integers(0, 2**32 - 1)


def models(costs: ReferenceCosts) -> tuple[CostModel, ...]:
    cost_models: list[CostModel] = []
    if costs.spread:
        cost_models.append(HalfSpread(costs.spread))
    if costs.per_share or costs.minimum:
        cost_models.append(PerShare(costs.per_share, costs.minimum))
    if costs.impact:
        cost_models.append(SquareRootImpact(costs.impact))
    return tuple(cost_models)


def random_case(seed: int, rules: ExecutionRules) -> dict[str, np.ndarray]:
    """Accounts with and without cash, trades from tiny to far beyond the cash, volumes from zero to unlimited."""
    rng = np.random.default_rng(seed)
    prices = np.exp(rng.uniform(np.log(0.5), np.log(2000), (BATCH, ASSETS)))
    shares = rng.uniform(0, 2e5, prices.shape) / prices * (rng.random(prices.shape) < 0.7)
    if rules.short:
        shares *= rng.choice([1.0, -0.2], shares.shape)
    if rules.whole_shares:
        shares = np.trunc(shares)
    cash = rng.uniform(0, 1e6, BATCH) * rng.choice([0.0, 1e-4, 1.0], BATCH)
    trades = rng.normal(0, 1, shares.shape) * rng.choice([1.0, 1e3, 1e5, 1e6], (BATCH, 1)) / prices
    trades *= rng.random(shares.shape) < 0.8
    volumes = np.exp(rng.uniform(0, 14, prices.shape)) * (rng.random(prices.shape) < 0.9)
    volumes[rng.random(prices.shape) < 0.1] = np.inf
    volatility = rng.uniform(0.001, 0.08, prices.shape)
    return {
        "cash": cash,
        "shares": shares,
        "trades": trades,
        "prices": prices,
        "volumes": volumes,
        "volatility": volatility,
    }


def run(case: dict[str, np.ndarray], rules: ExecutionRules, frictions: Frictions, dtype: torch.dtype) -> Fills:
    tensors = {name: torch.from_numpy(values).to(dtype) for name, values in case.items()}
    liquidity = BarLiquidity(tensors.pop("volumes"), tensors.pop("volatility"))
    return execute_with_frictions(**tensors, rules=rules, frictions=frictions, liquidity=liquidity)


def rules_with(rules: ExecutionRules, costs: ReferenceCosts) -> ExecutionRules:
    return ExecutionRules(costs.rate, rules.whole_shares, rules.short, "proportional", rules.leverage)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=cost_settings, participation=participations)
def test_combined_costs_match_the_reference(
    seed: int, rules: ExecutionRules, costs: ReferenceCosts, participation: float
) -> None:
    rules = rules_with(rules, costs)
    case = random_case(seed, rules)
    fills = run(case, rules, Frictions(models(costs), participation), torch.float64)
    for b in range(BATCH):
        row = {name: values[b].tolist() for name, values in case.items()}
        expected = reference_execute_with_frictions(
            *(row[name] for name in ("cash", "shares", "trades", "prices")),
            costs,
            row["volumes"],
            row["volatility"],
            participation=participation,
            whole=rules.whole_shares,
            short=rules.short,
            borrow=rules.borrow,
        )
        scale = abs(row["cash"]) + (np.abs(case["shares"][b]) * case["prices"][b]).sum() + expected.traded + 1
        value_difference = np.abs(fills.shares[b].numpy() - expected.shares) * case["prices"][b]
        # If buys were scaled and then truncated to whole shares, rounding of the factor may change one share.
        slack = case["prices"][b].max() if rules.whole_shares and expected.limited else 1e-7 * scale
        assert value_difference.max() <= slack
        assert abs(fills.cash[b].item() - expected.cash) <= slack * (
            ASSETS if rules.whole_shares and expected.limited else 1
        )
        if not (rules.whole_shares and expected.limited):
            assert abs(fills.cost[b].item() - expected.cost) <= 1e-7 * scale
            assert abs(fills.traded[b].item() - expected.traded) <= 1e-7 * scale


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=cost_settings, participation=participations, double=st.booleans())
def test_invariants_hold_for_every_cost_model(
    seed: int, rules: ExecutionRules, costs: ReferenceCosts, participation: float, double: bool
) -> None:
    dtype, eps = (torch.float64, 1e-12) if double else (torch.float32, 2e-6)
    rules = rules_with(rules, costs)
    case = random_case(seed, rules)
    fills = Fills(*(x.double() for x in run(case, rules, Frictions(models(costs), participation), dtype)))
    cash, shares, trades, prices, volumes = (
        torch.from_numpy(case[k]).to(dtype).double() for k in ("cash", "shares", "trades", "prices", "volumes")
    )
    scale = cash.abs() + (shares.abs() * prices).sum(-1) + fills.traded
    before, after = account_equity(cash, shares, prices), account_equity(fills.cash, fills.shares, prices)
    assert torch.all((before - after - fills.cost).abs() <= eps * scale)  # value is conserved up to costs
    assert torch.all(fills.cost >= 0)
    assert torch.all(
        fills.cost >= (rules.cost_rate + costs.spread) * fills.traded * (1 - 1e-5) - eps * scale - capped_costs(fills)
    )
    # Only covering shorts may take the cash below the borrowing limit.
    floor = -rules.borrow * before.clamp(min=0) - ((10 * eps * scale) if rules.borrow or rules.short else 0.0)
    opened = (fills.shares.clamp(min=0) > shares.clamp(min=0)).any(-1)
    assert torch.all((fills.cash >= floor) | ~opened if rules.short else fills.cash >= floor)
    if not rules.short:
        assert torch.all(fills.shares >= 0)
    change = fills.shares - shares
    tolerance = eps * scale.unsqueeze(-1) / prices
    assert torch.all((change * trades >= 0) | (change.abs() <= tolerance))  # no trade opposes its order
    assert torch.all(change.abs() <= trades.abs() * (1 + eps) + tolerance)
    assert torch.all(change.abs() <= participation * volumes * (1 + eps) + tolerance)  # volume limit
    if rules.whole_shares:
        assert torch.equal(fills.shares, fills.shares.round())


def capped_costs(fills: Fills) -> torch.Tensor:
    """Allowance for sales whose costs are capped at their proceeds."""
    return torch.where(fills.cost >= 0.999 * fills.traded, fills.traded, torch.zeros_like(fills.traded))


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=rule_sets, rate=st.sampled_from([0.0, 0.001, 0.02]))
def test_proportional_costs_only_equal_execute(seed: int, rules: ExecutionRules, rate: float) -> None:
    rules = rules_with(rules, ReferenceCosts(rate=rate))
    case = {name: torch.from_numpy(values) for name, values in random_case(seed, rules).items()}
    del case["volumes"], case["volatility"]
    fills = execute_with_frictions(**case, rules=rules, frictions=Frictions(), liquidity=BarLiquidity())
    expected = execute(**case, rules=rules)
    scale = case["cash"].abs() + (case["shares"].abs() * case["prices"]).sum(-1) + expected.traded
    difference = (fills.shares - expected.shares).abs() * case["prices"]
    slack = case["prices"].max(-1).values if rules.whole_shares else 1e-9 * scale
    assert torch.all(difference <= slack.unsqueeze(-1))
    if not rules.whole_shares:
        assert torch.all((fills.cash - expected.cash).abs() <= 1e-9 * scale)
        assert torch.all((fills.cost - expected.cost).abs() <= 1e-9 * scale)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=cost_settings)
def test_costs_by_model_sum_to_the_total_costs(seed: int, rules: ExecutionRules, costs: ReferenceCosts) -> None:
    rules = rules_with(rules, costs)
    case = random_case(seed, rules)
    fills = run(case, rules, Frictions(models(costs), 1.0), torch.float64)
    tensors = {name: torch.from_numpy(values) for name, values in case.items()}
    liquidity = BarLiquidity(tensors["volumes"], tensors["volatility"])
    parts = costs_by_model(
        fills.shares - tensors["shares"], tensors["prices"], all_cost_models(rules.cost_rate, models(costs)), liquidity
    )
    assert set(parts) == {"commission", *(model.name for model in models(costs))}
    scale = tensors["cash"].abs() + (tensors["shares"].abs() * tensors["prices"]).sum(-1) + fills.traded
    # Rounding differences of the holdings are not orders and must not add minimum fees.
    assert torch.all((sum(parts.values()) - fills.cost).abs() <= 1e-7 * scale + 1e-9)


def test_costs_of_two_orders_computed_by_hand() -> None:
    """10 bp commission, 5 bp half spread, $0.005 per share with a minimum of $1, and impact coefficient 1."""
    volume, volatility = torch.tensor([10_000.0, 10_000.0]), torch.tensor([0.02, 0.02])
    frictions = Frictions((HalfSpread(0.0005), PerShare(0.005, 1.0), SquareRootImpact(1.0)), participation=1.0)
    fills = execute_with_frictions(
        *(torch.tensor(100_000.0), torch.zeros(2), torch.tensor([100.0, 400.0]), torch.tensor([50.0, 20.0])),
        *(ExecutionRules(0.001), frictions, BarLiquidity(volume, volatility)),
    )
    first = 5000 * 0.0015 + 1.0 + 0.02 * 0.1 * 5000
    second = 8000 * 0.0015 + 2.0 + 0.02 * 0.2 * 8000
    assert fills.cost.item() == pytest.approx(first + second, rel=1e-5)
    assert fills.cash.item() == pytest.approx(100_000 - 13_000 - first - second, rel=1e-6)


def test_order_above_the_volume_limit_fills_partially() -> None:
    liquidity = BarLiquidity(torch.tensor([1000.0]), torch.tensor([0.02]))
    fills = execute_with_frictions(
        *(torch.tensor(1e6), torch.zeros(1), torch.tensor([500.0]), torch.tensor([10.0])),
        *(ExecutionRules(0.0), Frictions(participation=0.1), liquidity),
    )
    assert fills.shares.tolist() == [100.0]


def test_minimum_fees_prevent_small_buys_and_never_exceed_sale_proceeds() -> None:
    frictions = Frictions((PerShare(0.0, 10.0),))
    too_little_cash = execute_with_frictions(
        *(torch.tensor(15.0), torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0])),
        *(ExecutionRules(0.0), frictions, BarLiquidity()),
    )
    assert (too_little_cash.cash.item(), too_little_cash.shares.tolist()) == (15.0, [0.0, 0.0])
    sold = execute_with_frictions(
        *(torch.tensor(0.0), torch.tensor([2.0]), torch.tensor([-2.0]), torch.tensor([3.0])),
        *(ExecutionRules(0.0), frictions, BarLiquidity()),
    )
    assert (sold.cash.item(), sold.cost.item(), sold.shares.tolist()) == (0.0, 6.0, [0.0])


def test_rounding_differences_of_targets_pay_no_minimum_fee() -> None:
    fills = execute_with_frictions(
        *(torch.tensor(100.0), torch.tensor([1e4]), torch.tensor([1e-4]), torch.tensor([10.0])),
        *(ExecutionRules(0.0), Frictions((PerShare(0.0, 1.0),)), BarLiquidity()),
    )
    assert fills.cost.item() == 0.0


@pytest.mark.slow
def test_gradients_match_finite_differences() -> None:
    frictions = Frictions((HalfSpread(0.001), PerShare(0.01, 0.0), SquareRootImpact(1.0)), participation=1.0)
    for seed in range(6):
        rng = np.random.default_rng(seed)
        inputs = [
            torch.tensor(x, requires_grad=True)
            for x in (rng.uniform(10, 1000, 3), rng.uniform(1, 9, (3, 4)), rng.normal(0, 6, (3, 4)))
        ]
        prices = torch.tensor(rng.uniform(20, 80, (3, 4)), requires_grad=True)
        liquidity = BarLiquidity(torch.full((3, 4), 100.0).double(), torch.full((3, 4), 0.02).double())
        assert torch.autograd.gradcheck(
            lambda c, s, t, p, liquidity=liquidity: tuple(
                execute_with_frictions(c, s, t, p, ExecutionRules(0.003), frictions, liquidity)
            ),
            (*inputs, prices),
            eps=1e-6,
            atol=1e-4,
        )
