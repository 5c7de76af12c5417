"""Few names and groups: the exact rule, its relaxation, and the weights of many decisions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from finrl_pod.errors import ConfigError
from finrl_pod.market import mandate, weight_limits
from finrl_pod.market.mandate_checks import validate_mandate
from finrl_pod.market.weight_limits import GroupLimits, NameLimits
from finrl_pod.settings.run import EnvironmentConfig, GroupConfig, MandateConfig, parse

YEAR = 252.0
SYMBOLS = tuple("ABCDEFGHIJ")
GROUPS = (GroupConfig("first", ("A", "B", "C", "D")), GroupConfig("second", ("E", "F")))


def group_limits(room, assets, sizes):
    members = torch.zeros(len(sizes) + 1, assets, dtype=torch.float64)
    for row, columns in enumerate(torch.arange(assets).split([*sizes, assets - sum(sizes)])):
        members[row, columns] = 1
    return GroupLimits(members, torch.tensor([*room, weight_limits.NO_LIMIT], dtype=torch.float64))


@given(st.integers(0, 2**31), st.sampled_from([1.0, 0.3]), st.floats(0.2, 1.0))
def test_weights_within_the_limits_of_groups_keep_their_sum_and_order(seed, largest, total):
    rng = np.random.default_rng(seed)
    weights = torch.from_numpy(rng.dirichlet(np.ones(10), 3) * total)
    groups = group_limits([0.2, 0.35], 10, (4, 2))
    actual = weight_limits.limit_weights(weights, largest, groups)
    assert bool(((actual @ groups.members.T)[:, :2] <= groups.room[:2] + 1e-12).all())
    assert float(actual.max()) <= max(largest, float(weights.max())) + 1e-12 or largest == 1
    np.testing.assert_allclose(actual.sum(-1), np.full(3, total))
    for columns in torch.arange(10).split([4, 2, 4]):
        assert torch.equal(weights[:, columns].argsort(-1), actual[:, columns].argsort(-1)) or largest < 1


@st.composite
def cases(draw):
    """Weights of several accounts, what they hold, and limits that they can meet."""
    rng = np.random.default_rng(draw(st.integers(0, 2**31)))
    assets = draw(st.integers(6, 14))
    most = draw(st.integers(2, 6))
    smallest = draw(st.sampled_from([0.0, 0.05, 1 / most]))
    largest = draw(st.sampled_from([1.0, max(1.2 / most, smallest)]))
    cap = draw(st.sampled_from([None, 0.3, 0.5]))
    groups = None if cap is None else group_limits([max(cap, smallest)] * 2, assets, (3, 2))
    weights = rng.dirichlet(np.full(assets, draw(st.sampled_from([0.3, 3.0]))), 7)
    weights[rng.random(weights.shape) < 0.1] = 0.0
    held = np.where(rng.random(weights.shape) < 0.3, 0.1, 0.0)
    limits = NameLimits(torch.full((7, 1), float(most), dtype=torch.float64), smallest, largest, groups)
    return torch.from_numpy(weights), torch.from_numpy(held), limits


@settings(max_examples=60)
@given(cases())
def test_few_names_keep_all_limits(case):
    weights, held, limits = case
    names = weight_limits.few_names(weights, held, limits)
    holds = names > 0
    assert bool((holds.sum(-1, keepdim=True) <= limits.max_names).all())
    assert float(names[holds].min()) >= limits.smallest * (1 - 1e-6)
    assert float(names.max()) <= limits.largest + 1e-12
    assert bool((weights[holds] > 0).all())
    assert bool((names.sum(-1) <= weights.sum(-1) + 1e-12).all())
    if limits.groups is None:
        if limits.largest == 1:
            total = weights.sum(-1)
            np.testing.assert_allclose(names.sum(-1), torch.where(total > limits.smallest, total, 0.0), rtol=1e-5)
    else:
        assert bool(((names @ limits.groups.members.T) <= limits.groups.room + 1e-12).all())


@settings(max_examples=60)
@given(cases())
def test_relaxation_becomes_the_exact_rule_as_the_temperature_falls(case):
    weights, held, limits = case
    exact = weight_limits.few_names(weights, held, limits)
    names = weight_limits.chosen_names(weights, held, limits)
    far = [(weight_limits.relaxed_names(weights, held, limits, names, t) - exact).abs().max() for t in (0.3, 1e-5)]
    assert float(far[1]) <= max(1e-6, float(far[0]))
    np.testing.assert_allclose(far[1], 0, atol=1e-3)


def test_relaxation_has_exact_gradients_and_the_rule_has_those_of_its_relaxation():
    weights = torch.tensor([0.22, 0.21, 0.2, 0.19, 0.1, 0.08], dtype=torch.float64, requires_grad=True)
    held = torch.zeros(6, dtype=torch.float64)
    limits = NameLimits(torch.tensor([3.0]).double(), 0.05, 1.0, group_limits([0.5], 6, (3,)))
    names = weight_limits.chosen_names(weights.detach(), held, limits)
    assert names.is_held.tolist() == [True, False, False, True, True, False]
    assert torch.autograd.gradcheck(lambda x: weight_limits.relaxed_names(x, held, limits, names), weights)
    outcome = weight_limits.few_names(weights, held, limits)
    relaxed = weight_limits.relaxed_names(weights, held, limits, names)
    chance = torch.arange(6).double()
    gradients = [torch.autograd.grad(x @ chance, weights)[0] for x in (outcome, relaxed)]
    torch.testing.assert_close(*gradients)
    assert float(gradients[0].abs().min()) > 0  # assets that are not held have a gradient too


def test_gradients_of_the_relaxation_lead_the_exact_rule_to_the_best_names():
    config = MandateConfig(max_holdings=3, trade_speed=1.0, tilt=2.0)
    tradable = torch.ones(10, dtype=torch.bool)
    bar = mandate.MandateBar(mandate.equal_base(tradable), tradable, torch.tensor([True]))
    returns = torch.from_numpy(np.random.default_rng(3).normal(size=10))
    held = torch.zeros(10, dtype=torch.float64)
    scores = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    for _ in range(40):
        target = mandate.desired_weights(scores, bar, held, config, 1.0, YEAR)
        weights = mandate.decide(target, bar, held, held, None, config, 1.0, YEAR).weights
        (gradient,) = torch.autograd.grad(weights @ returns, scores)
        scores = (scores + gradient).detach().requires_grad_()
    assert set(torch.nonzero(weights)[:, 0].tolist()) == set(returns.topk(3).indices.tolist())


def test_names_are_the_largest_weights_in_proportion_and_stay_while_they_are_close():
    weights = torch.tensor([0.1, 0.3, 0.28, 0.2, 0.12], dtype=torch.float64)
    limits = NameLimits(torch.tensor([2.0]).double(), 0.0, 1.0, None)
    none_held = torch.zeros(5, dtype=torch.float64)
    np.testing.assert_allclose(weight_limits.few_names(weights, none_held, limits), [0, 0.3 / 0.58, 0.28 / 0.58, 0, 0])
    held = torch.tensor([0.0, 0, 0, 0.5, 0]).double()
    assert weight_limits.few_names(weights, held, limits)[3] == 0  # 1.2 * 0.2 is less than 0.28
    weights[3] = 0.25
    assert weight_limits.few_names(weights, held, limits)[3] > 0


# ---------------------------------------------------------------------- decisions

FEW = MandateConfig(max_holdings=4, min_position=0.1, max_group_weight=0.3, groups=GROUPS, tilt=1.5, trade_speed=0.2)


@settings(max_examples=10)
@given(
    st.integers(0, 2**31),
    st.sampled_from(
        [
            FEW,
            replace(FEW, max_holdings=0, min_position=0.0),
            replace(FEW, min_position=0.15, max_weight=0.25, max_group_weight=0.25),
            replace(FEW, volatility_target=0.2),
            replace(FEW, max_holdings=0, group_neutral=True, decide_every="week"),
        ]
    ),
)
def test_decisions_of_many_members_hold_few_names_in_all_limits(seed, config):
    rng = np.random.default_rng(seed)
    members = 8
    held = torch.zeros(members, 10, dtype=torch.float64)
    virtual = held
    groups = mandate.group_members(config, SYMBOLS)
    most = mandate.most_names(config, 10)
    for t in range(8):
        tradable = torch.from_numpy(rng.random(10) < 0.9)
        tradable[-1] = True
        returns = torch.from_numpy(rng.normal(0, 0.02, (20, 10)))
        bar = mandate.MandateBar(
            mandate.equal_base(tradable),
            tradable,
            torch.tensor([config.decide_every == 1 or t % 5 == 0]),
            returns,
            groups,
        )
        scores = torch.from_numpy(rng.normal(size=(members, 10)))
        target = mandate.desired_weights(scores, bar, held, config, 1.0, YEAR)
        decision = mandate.decide(target, bar, held, virtual, None, config, 1.0, YEAR)
        weights = torch.where(decision.trades, decision.weights, held)
        blocked = torch.where(tradable, 0.0, held)
        for member in torch.nonzero(decision.trades[:, 0])[:, 0]:
            names = weights[member] > 1e-9
            can_choose = names & tradable
            assert int(names.sum()) <= max(most, int((blocked[member] > 0).sum()))
            assert float(weights[member].sum()) <= 1 + 1e-12
            assert bool((weights[member][can_choose] >= config.min_position - 1e-12).all())
            sums = weights[member] @ groups[:2].T
            assert bool(
                (sums <= torch.clamp(blocked[member] @ groups[:2].T, min=config.max_group_weight) + 1e-12).all()
            )
        price_relatives = torch.from_numpy(np.where(tradable, rng.uniform(0.9, 1.1, 10), 1.0))
        held = mandate.drift(weights, price_relatives)
        virtual = mandate.drift(decision.virtual, price_relatives)


def test_a_group_whose_limit_is_below_its_base_weight_keeps_its_best_name():
    config = MandateConfig(max_holdings=5, max_group_weight=0.3, groups=GROUPS, trade_speed=1.0)
    groups = mandate.group_members(config, SYMBOLS)
    tradable = torch.ones(10, dtype=torch.bool)
    bar = mandate.MandateBar(mandate.equal_base(tradable), tradable, torch.tensor([True]), groups=groups)
    scores = torch.tensor([0.9, 1, 0, 0, 0, 0, 0.1, 0.1, 0.1, 0.1]).double()
    held = torch.zeros(10, dtype=torch.float64)
    target = mandate.desired_weights(scores, bar, held, config, 1.0, YEAR)
    weights = mandate.decide(target, bar, held, held, None, config, 1.0, YEAR).weights
    assert [SYMBOLS[i] for i in torch.nonzero(weights)[:, 0]] == ["B", "G", "H", "I", "J"]
    assert float(weights[1]) == pytest.approx(float(weights.max()))


def test_a_name_that_is_not_held_and_stops_trading_causes_no_trade_between_decisions():
    config = MandateConfig(max_holdings=1)
    tradable = torch.tensor([True, True, False])
    bar = mandate.MandateBar(mandate.equal_base(tradable), tradable, torch.tensor([False]))
    virtual, held = torch.tensor([[0.4, 0.3, 0.3], [1.0, 0, 0]]).double()
    assert not bool(mandate.decide(virtual, bar, held, virtual, None, config, 1.0, YEAR).trades)


def test_neutral_tilts_keep_the_weight_of_every_group():
    config = MandateConfig(tilt=2.0, group_neutral=True, groups=GROUPS)
    bar = mandate.MandateBar(
        torch.full((10,), 0.1).double(),
        torch.ones(10, dtype=torch.bool),
        torch.tensor([True]),
        groups=mandate.group_members(config, SYMBOLS),
    )
    scores = torch.from_numpy(np.random.default_rng(0).normal(size=10))
    weights = mandate.desired_weights(scores, bar, torch.zeros(10).double(), config, 1.0, YEAR)
    np.testing.assert_allclose([weights[:4].sum(), weights[4:6].sum(), weights[6:].sum()], [0.4, 0.2, 0.4])
    assert float(weights[:4].max() - weights[:4].min()) > 0.02


# ---------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings_of", "text"),
    [
        ({"max_holdings": 5, "max_weight": 0.15}, r"max_holdings = 5, max_weight = 0.15 leave room for 0.75 of"),
        ({"max_holdings": 5, "min_position": 0.25}, r"min_position may be at most 0.2 .*got 0.25"),
        ({"max_group_weight": 0.3}, r"need groups; add a section \[groups\]"),
        (
            {"max_group_weight": 0.3, "groups": (GroupConfig("x", SYMBOLS),)},
            "max_group_weight = 0.3 leave room for 0.3",
        ),
        ({"groups": (GroupConfig("x", ("A", "a")),)}, "groups.x names 'a', a symbol without prices; did you mean A?"),
        ({"groups": (*GROUPS, GroupConfig("x", ("J", "D")))}, r"D is twice in \[groups\], in first and x"),
        ({"groups": (GroupConfig("x", ("J", "J")),)}, r"J is twice in \[groups\], in x; "),
        ({"max_holdings": 5, "max_turnover": 2.0}, "max_turnover = 2 does not work with few names"),
        ({"min_position": 0.4, "max_weight": 0.3}, "min_position = 0.4, max_weight = 0.3 leave room for 0.6 of"),
        ({"min_position": 0.4, "max_group_weight": 0.3, "groups": GROUPS}, "0.4 is above max_group_weight = 0.3"),
        ({"base": "none", "max_holdings": 5}, "need a base"),
        ({"max_holdings": -1}, "max_holdings"),
    ],
)
def test_limits_that_cannot_hold_are_refused(settings_of, text):
    with pytest.raises(ConfigError, match=text):
        validate_mandate(MandateConfig(**settings_of), EnvironmentConfig(), SYMBOLS)


def test_groups_are_read_from_a_section_of_their_own():
    text = {"mandate": {"max_group_weight": 0.3}, "groups": {"first": ["A", "B"]}}
    assert parse(text).mandate.groups == (GroupConfig("first", ("A", "B")),)
    for wrong in ({"first": "A"}, {"first": [1]}, ["A"]):
        with pytest.raises(ConfigError, match="groups"):
            parse({"groups": wrong})
