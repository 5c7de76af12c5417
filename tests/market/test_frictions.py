"""Every cost model and their mixtures: against a plain loop, and what must hold whatever is charged."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.market.costs import BarLiquidity, CostModel, Frictions, HalfSpread, PerShare, SquareRootImpact
from finrl_pod.market.execution import ExecutionRules, Fills, equity, execute
from finrl_pod.market.frictions import all_cost_models, costs_by_model, execute_with_frictions
from tests.market.reference_frictions import PlainCosts, plain_settle

BATCH, ASSETS = 8, 4
plain_costs = st.builds(
    PlainCosts,
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


def models(costs: PlainCosts) -> tuple[CostModel, ...]:
    made: list[CostModel] = []
    if costs.spread:
        made.append(HalfSpread(costs.spread))
    if costs.per_share or costs.minimum:
        made.append(PerShare(costs.per_share, costs.minimum))
    if costs.impact:
        made.append(SquareRootImpact(costs.impact))
    return tuple(made)


def draw(seed: int, rules: ExecutionRules) -> dict[str, np.ndarray]:
    """Accounts from penniless to rich, trades from dust to far beyond the cash, volumes from none to plenty."""
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
    given = {name: torch.from_numpy(values).to(dtype) for name, values in case.items()}
    liquidity = BarLiquidity(given.pop("volumes"), given.pop("volatility"))
    return execute_with_frictions(**given, rules=rules, frictions=frictions, liquidity=liquidity)


def rules_with(rules: ExecutionRules, costs: PlainCosts) -> ExecutionRules:
    return ExecutionRules(costs.rate, rules.whole_shares, rules.short, "proportional", rules.leverage)


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=plain_costs, participation=participations)
def test_every_mixture_agrees_with_a_plain_loop(
    seed: int, rules: ExecutionRules, costs: PlainCosts, participation: float
) -> None:
    rules = rules_with(rules, costs)
    case = draw(seed, rules)
    got = run(case, rules, Frictions(models(costs), participation), torch.float64)
    for b in range(BATCH):
        row = {name: values[b].tolist() for name, values in case.items()}
        want = plain_settle(
            *(row[name] for name in ("cash", "shares", "trades", "prices")),
            costs,
            row["volumes"],
            row["volatility"],
            participation=participation,
            whole=rules.whole_shares,
            short=rules.short,
            borrow=rules.borrow,
        )
        size = abs(row["cash"]) + (np.abs(case["shares"][b]) * case["prices"][b]).sum() + want.traded + 1
        off = np.abs(got.shares[b].numpy() - want.shares) * case["prices"][b]
        # Where buys were scaled and then cut to whole shares, the last digit of the factor may decide over one share.
        slack = case["prices"][b].max() if rules.whole_shares and want.limited else 1e-7 * size
        assert off.max() <= slack
        assert abs(got.cash[b].item() - want.cash) <= slack * (ASSETS if rules.whole_shares and want.limited else 1)
        if not (rules.whole_shares and want.limited):
            assert abs(got.cost[b].item() - want.cost) <= 1e-7 * size
            assert abs(got.traded[b].item() - want.traded) <= 1e-7 * size


@settings(max_examples=80, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=plain_costs, participation=participations, double=st.booleans())
def test_what_holds_for_every_model(
    seed: int, rules: ExecutionRules, costs: PlainCosts, participation: float, double: bool
) -> None:
    dtype, eps = (torch.float64, 1e-12) if double else (torch.float32, 2e-6)
    rules = rules_with(rules, costs)
    case = draw(seed, rules)
    got = Fills(*(x.double() for x in run(case, rules, Frictions(models(costs), participation), dtype)))
    cash, shares, trades, prices, volumes = (
        torch.from_numpy(case[k]).to(dtype).double() for k in ("cash", "shares", "trades", "prices", "volumes")
    )
    size = cash.abs() + (shares.abs() * prices).sum(-1) + got.traded
    before, after = equity(cash, shares, prices), equity(got.cash, got.shares, prices)
    assert torch.all((before - after - got.cost).abs() <= eps * size)  # value is conserved up to costs
    assert torch.all(got.cost >= 0)
    assert torch.all(
        got.cost >= (rules.cost_rate + costs.spread) * got.traded * (1 - 1e-5) - eps * size - case_cut(got)
    )
    # Below what may be borrowed the cash falls only by what closes shorts.
    floor = -rules.borrow * before.clamp(min=0) - ((10 * eps * size) if rules.borrow or rules.short else 0.0)
    opened = (got.shares.clamp(min=0) > shares.clamp(min=0)).any(-1)
    assert torch.all((got.cash >= floor) | ~opened if rules.short else got.cash >= floor)
    if not rules.short:
        assert torch.all(got.shares >= 0)
    change = got.shares - shares
    near = eps * size.unsqueeze(-1) / prices
    assert torch.all((change * trades >= 0) | (change.abs() <= near))  # nothing trades against its order
    assert torch.all(change.abs() <= trades.abs() * (1 + eps) + near)
    assert torch.all(change.abs() <= participation * volumes * (1 + eps) + near)  # no more than the market had
    if rules.whole_shares:
        assert torch.equal(got.shares, got.shares.round())


def case_cut(got: Fills) -> torch.Tensor:
    """A sale's costs are cut to its proceeds: at most all that was traded."""
    return torch.where(got.cost >= 0.999 * got.traded, got.traded, torch.zeros_like(got.traded))


@settings(max_examples=60, deadline=None)
@given(seed=seeds, rules=rule_sets, rate=st.sampled_from([0.0, 0.001, 0.02]))
def test_with_proportional_costs_alone_it_is_execute(seed: int, rules: ExecutionRules, rate: float) -> None:
    rules = rules_with(rules, PlainCosts(rate=rate))
    case = {name: torch.from_numpy(values) for name, values in draw(seed, rules).items()}
    del case["volumes"], case["volatility"]
    got = execute_with_frictions(**case, rules=rules, frictions=Frictions(), liquidity=BarLiquidity())
    want = execute(**case, rules=rules)
    size = case["cash"].abs() + (case["shares"].abs() * case["prices"]).sum(-1) + want.traded
    close = (got.shares - want.shares).abs() * case["prices"]
    slack = case["prices"].max(-1).values if rules.whole_shares else 1e-9 * size
    assert torch.all(close <= slack.unsqueeze(-1))
    if not rules.whole_shares:
        assert torch.all((got.cash - want.cash).abs() <= 1e-9 * size)
        assert torch.all((got.cost - want.cost).abs() <= 1e-9 * size)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, rules=rule_sets, costs=plain_costs)
def test_the_parts_of_the_costs_add_up(seed: int, rules: ExecutionRules, costs: PlainCosts) -> None:
    rules = rules_with(rules, costs)
    case = draw(seed, rules)
    got = run(case, rules, Frictions(models(costs), 1.0), torch.float64)
    tensors = {name: torch.from_numpy(values) for name, values in case.items()}
    liquidity = BarLiquidity(tensors["volumes"], tensors["volatility"])
    parts = costs_by_model(
        got.shares - tensors["shares"], tensors["prices"], all_cost_models(rules.cost_rate, models(costs)), liquidity
    )
    assert set(parts) == {"commission", *(model.name for model in models(costs))}
    size = tensors["cash"].abs() + (tensors["shares"].abs() * tensors["prices"]).sum(-1) + got.traded
    # A rounding of the holdings below a millionth of a share counts as no order; its minimum fee is the tolerance.
    assert torch.all((sum(parts.values()) - got.cost).abs() <= 1e-7 * size + 1e-9)


def test_known_bills() -> None:
    """Ten bp, five of spread, half a cent a share with a dollar at least, impact of one: by hand."""
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


def test_a_large_order_fills_in_part_and_the_rest_is_cancelled() -> None:
    liquidity = BarLiquidity(torch.tensor([1000.0]), torch.tensor([0.02]))
    fills = execute_with_frictions(
        *(torch.tensor(1e6), torch.zeros(1), torch.tensor([500.0]), torch.tensor([10.0])),
        *(ExecutionRules(0.0), Frictions(participation=0.1), liquidity),
    )
    assert fills.shares.tolist() == [100.0]


def test_nothing_is_bought_below_the_minimum_fees_and_sales_cost_at_most_their_proceeds() -> None:
    frictions = Frictions((PerShare(0.0, 10.0),))
    poor = execute_with_frictions(
        *(torch.tensor(15.0), torch.zeros(2), torch.tensor([1.0, 1.0]), torch.tensor([3.0, 3.0])),
        *(ExecutionRules(0.0), frictions, BarLiquidity()),
    )
    assert (poor.cash.item(), poor.shares.tolist()) == (15.0, [0.0, 0.0])
    sold = execute_with_frictions(
        *(torch.tensor(0.0), torch.tensor([2.0]), torch.tensor([-2.0]), torch.tensor([3.0])),
        *(ExecutionRules(0.0), frictions, BarLiquidity()),
    )
    assert (sold.cash.item(), sold.cost.item(), sold.shares.tolist()) == (0.0, 6.0, [0.0])


def test_the_rounding_of_targets_pays_no_minimum_fee() -> None:
    fills = execute_with_frictions(
        *(torch.tensor(100.0), torch.tensor([1e4]), torch.tensor([1e-4]), torch.tensor([10.0])),
        *(ExecutionRules(0.0), Frictions((PerShare(0.0, 1.0),)), BarLiquidity()),
    )
    assert fills.cost.item() == 0.0


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
