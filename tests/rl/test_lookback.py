"""Look-back encoders: against torch's own layers, causal, once a distinct bar, and in every algorithm."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from finrl_pod.errors import ConfigError
from finrl_pod.native.device import as_on_device
from finrl_pod.rl.algorithms.factory import make_actor
from finrl_pod.rl.networks.inputs import FeatureTable, LookbackEncoder, PastRows, distinct
from finrl_pod.rl.networks.policies import PolicySpec
from tests.rl.all_algorithms import small_learner, training_state

T, N, F, L, C, P = 20, 4, 3, 8, 8, 2
DOUBLE = torch.float64
SMALL: dict[str, Any] = {"lookback": 5, "encoder_size": 4}


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def encoder_of(lookback: int = L) -> LookbackEncoder:
    return LookbackEncoder(PolicySpec("equivariant", N, F, N + 1, (8, 8), "softmax", "tanh", "gru", lookback, C))


def parameters(encoder: LookbackEncoder, members: int = P) -> dict[str, torch.Tensor]:
    each = [encoder.init(torch.Generator().manual_seed(p), DOUBLE) for p in range(members)]
    stacked = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    return {name: x + 0.2 * draw(*x.shape, seed=i) for i, (name, x) in enumerate(stacked.items())}


def mask() -> torch.Tensor:
    tradable = draw(T, N, seed=9) > -1
    tradable[:6, 1] = False  # listed late
    return tradable


def codes(encoder: LookbackEncoder, table: torch.Tensor, tradable: torch.Tensor, bar: torch.Tensor) -> torch.Tensor:
    past = FeatureTable(table, tradable, encoder.spec.lookback).past(bar)
    return past.of_items(encoder.codes(parameters(encoder), past))


ALL_DAYS = torch.arange(T).expand(P, T)


@pytest.mark.parametrize("lookback", [2, 5, 8])
def test_the_future_of_the_table_changes_no_code(lookback: int) -> None:
    encoder, table, tradable = encoder_of(lookback), draw(T, N, F), mask()
    before = codes(encoder, table, tradable, ALL_DAYS)
    for t in (0, 3, 11):
        changed, changed_mask = table.clone(), tradable.clone()
        changed[t + 1 :], changed_mask[t + 1 :] = draw(T - t - 1, N, F, seed=5), ~tradable[t + 1 :]
        after = codes(encoder, changed, changed_mask, ALL_DAYS)
        assert torch.equal(before[:, : t + 1], after[:, : t + 1])
        assert not torch.equal(before[:, t + 1 :], after[:, t + 1 :])


@pytest.mark.parametrize("lookback", [2, 5, 8])
def test_a_code_depends_on_each_row_of_its_window_and_on_no_other(lookback: int) -> None:
    encoder, everything_trades = encoder_of(lookback), torch.ones(T, N, dtype=torch.bool)
    table = draw(T, N, F).requires_grad_()
    bar = torch.full((P, 1), 12)
    (gradient,) = torch.autograd.grad(codes(encoder, table, everything_trades, bar)[:, :, 2].sum(), table)
    rows = gradient.abs().sum((1, 2)) > 0
    assert rows.tolist() == [12 - lookback < t <= 12 for t in range(T)]
    assert not gradient[:, [0, 1, 3]].any(), "each asset by itself"


def test_rows_before_the_first_bar_are_rows_at_which_nothing_trades() -> None:
    encoder, table, tradable = encoder_of(), draw(T, N, F), mask()
    before, absent = draw(L, N, F, seed=3), torch.zeros(L, N, dtype=torch.bool)
    longer = codes(encoder, torch.cat([before, table]), torch.cat([absent, tradable]), ALL_DAYS + L)
    torch.testing.assert_close(codes(encoder, table, tradable, ALL_DAYS), longer)


def test_codes_of_assets_that_cannot_be_traded_are_zero() -> None:
    tradable = mask()
    found = codes(encoder_of(), draw(T, N, F), tradable, ALL_DAYS)
    assert torch.isfinite(found).all()
    assert torch.equal((found != 0).any(-1), tradable.expand(P, T, N))


def test_the_order_of_assets_does_not_matter() -> None:
    encoder, table, tradable, order = encoder_of(), draw(T, N, F), mask(), [2, 0, 3, 1]
    one, other = (
        codes(encoder, table[:, columns], tradable[:, columns], ALL_DAYS) for columns in (list(range(N)), order)
    )
    torch.testing.assert_close(one[:, :, order], other)


def test_the_recurrence_is_torchs_gru() -> None:
    encoder = encoder_of()
    params = encoder.init(torch.Generator().manual_seed(1), DOUBLE)
    windows = draw(1, 6, L, N, F + 1)
    windows[..., -1] = 1.0
    gru = torch.nn.GRU(F + 1, C, batch_first=True, dtype=DOUBLE)
    with torch.no_grad():
        for name, ours in (("weight_ih_l0", "input_w"), ("weight_hh_l0", "state_w")):
            getattr(gru, name).copy_(params[f"lookback_{ours}"].T)
        for name, ours in (("bias_ih_l0", "input_b"), ("bias_hh_l0", "state_b")):
            getattr(gru, name).copy_(params[f"lookback_{ours}"])
        expected = gru(windows[0].transpose(1, 2).reshape(6 * N, L, F + 1))[0][:, -1].view(1, 6, N, C)
    found = encoder.encode({name: x.unsqueeze(0) for name, x in params.items()}, windows)
    torch.testing.assert_close(found, expected)


def test_distinct_days_and_where_they_are() -> None:
    bar = torch.tensor([[5, 2, 5, 2, 9], [1, 1, 1, 1, 1], [3, 1, 3, 3, 2]])
    values, position = distinct(bar)
    assert position is not None
    assert values.shape == (3, 3)
    assert torch.equal(values.gather(1, position), bar)
    alone = torch.tensor([[4, 1], [0, 7]])
    assert distinct(alone)[1] is None


def test_a_bar_is_encoded_once_however_many_accounts_decide_on_it() -> None:
    encoder, table, tradable = encoder_of(), draw(T, N, F), mask()
    bar = torch.tensor([[5, 5, 7, 5, 7, 7, 5], [8, 9, 8, 9, 9, 9, 9]])
    past = FeatureTable(table, tradable, L).past(bar)
    assert past.starts.shape == (2, 2)
    found = past.of_items(encoder.codes(parameters(encoder), past))
    direct = PastRows(past.table, bar, None, L)
    torch.testing.assert_close(found, encoder.codes(parameters(encoder), direct))


@pytest.mark.parametrize(("items", "windows"), [(5, 5), (3 * T, T)], ids=["few items", "many items"])
def test_windows_on_a_gpu_do_not_depend_on_the_number_of_distinct_bars(items: int, windows: int) -> None:
    encoder, table, tradable = encoder_of(), draw(T, N, F), mask()
    bar = torch.randint(T, (2, items), generator=torch.Generator().manual_seed(3))
    with as_on_device():
        past = FeatureTable(table, tradable, L).past(bar)
    assert past.starts.shape == (2, windows)
    params = parameters(encoder)
    direct = PastRows(past.table, bar, None, L)
    torch.testing.assert_close(past.of_items(encoder.codes(params, past)), encoder.codes(params, direct))


def test_long_tables_are_encoded_in_pieces_where_no_gradient_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, table, tradable = encoder_of(), draw(T, N, F), mask()
    whole = codes(encoder, table, tradable, ALL_DAYS)
    monkeypatch.setattr("finrl_pod.rl.networks.inputs.CHUNK_NUMBERS", 3 * P * L * N * (F + 1))
    with torch.no_grad():
        torch.testing.assert_close(codes(encoder, table, tradable, ALL_DAYS), whole)


# ---------------------------------------------------------------------- in algorithms

NAMES = ("ppo", "a2c", "sac", "td3", "dqn", "analytic", "shac")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_members_with_encoders_are_single_runs(name: str) -> None:
    settings = {"encoder": "gru", "weight_decay": 0.1, **SMALL}
    batch = small_learner(name, (0, 1), seed=4, **settings)
    batch.learn(4 * batch.iteration_samples)
    for p in (0, 1):
        alone = small_learner(name, (p,), seed=4, **settings)
        before = training_state(alone)
        alone.learn(4 * alone.iteration_samples)
        after = training_state(alone)
        for key, x in training_state(batch, p).items():
            torch.testing.assert_close(x, after[key], rtol=1e-9, atol=1e-9)
        assert any("lookback_" in key and not torch.equal(before[key], after[key]) for key in after)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["equivariant", "linear", "mlp"])
@pytest.mark.parametrize("name", NAMES)
def test_a_saved_agent_acts_on_windows_as_the_learner_does(name: str, policy: str) -> None:
    if policy == "linear" and name == "dqn":
        pytest.skip("makes no choices")
    learner = small_learner(name, (0, 1), policy=policy, encoder="gru", **SMALL)
    learner.learn(2 * learner.iteration_samples)
    snapshot = learner.snapshot(1)
    spec = PolicySpec(**{f: snapshot.spec[f] for f in PolicySpec.__dataclass_fields__})
    actor = make_actor(name, spec)
    market, (bar, account) = learner.env.market, learner.collector.observation  # type: ignore[attr-defined]
    greedy = learner.act(learner.collector.observation)
    for g in range(bar.shape[1]):
        t = int(bar[1, g])
        rows = slice(max(0, t - SMALL["lookback"] + 1), t + 1)
        weights = {key: x.unsqueeze(0) for key, x in snapshot.weights.items()}
        own = account.view(2, bar.shape[1], -1, account.shape[-1])[1:, g : g + 1].double()
        action = actor.action(
            weights, market.features[rows].double()[None, None], own, market.tradable[rows][None, None]
        )
        expected = greedy.view(2, bar.shape[1], -1, greedy.shape[-1])[1:, g : g + 1]
        torch.testing.assert_close(action.to(expected.dtype), expected)


def test_resuming_continues_exactly_with_an_encoder() -> None:
    settings = {"encoder": "gru", **SMALL}
    whole = small_learner("ppo", seed=7, learning_rate_schedule="constant", **settings)
    whole.learn(2 * whole.iteration_samples)
    saved = whole.checkpoint()
    whole.learn(2 * whole.iteration_samples)
    other = small_learner("ppo", seed=7, learning_rate_schedule="constant", **settings)
    other.resume(saved)
    other.learn(2 * other.iteration_samples)
    one, two = training_state(whole), training_state(other)
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.slow
def test_it_learns_what_a_past_row_alone_shows() -> None:
    encoder, features = encoder_of(4), draw(200, N, F)
    table = FeatureTable(features, torch.ones(200, N, dtype=torch.bool), 4)
    leaves = {name: x.requires_grad_() for name, x in parameters(encoder, 1).items()}
    head = torch.zeros(C, dtype=DOUBLE, requires_grad=True)
    bar, wanted = torch.arange(3, 200).unsqueeze(0), features[:197, :, 0]  # of three bars before
    optimiser = torch.optim.Adam([*leaves.values(), head], lr=0.02)
    for _ in range(300):
        loss = (encoder.codes(leaves, table.past(bar))[0] @ head - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert float(loss.detach()) < 0.3 * float(wanted.var())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "gru", "lookback": 59}, r"agent.lookback is longer than the data: 59 bars, .* has 58"),
        ({"encoder": "gru", "lookback": 1}, r"agent.lookback is out of its range, got 1: it must be 2 to 256"),
        ({"weight_decay": -0.1}, r"agent.weight_decay is out of its range"),
        ({"encoder": "gru", "encoder_size": 0}, r"agent.encoder_size is out of its range"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_learner("ppo", **settings)
