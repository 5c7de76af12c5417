"""The learner as a notebook holds it: learn, act, repeat, save and go on, and what it refuses."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.rl.algorithms.ppo import DIAGNOSTICS
from finrl_pod.rl.buffers.rollout import Rollout
from finrl_pod.rl.training.learner import Learner, Metrics
from finrl_pod.rl.training.worker import Worker
from finrl_pod.types import Observation
from tests.markets import random_market
from tests.rl import all_algorithms
from tests.rl.learners import iteration, same, small_env, small_learner

POLICIES = pytest.mark.parametrize("policy", ["equivariant", "mlp"])
UPDATES = 3


def trained(**settings: Any) -> Learner:
    learner = small_learner(**settings)
    learner.learn(UPDATES * iteration(learner))
    return learner


# ---------------------------------------------------------------- learn


def test_learning_counts_whole_iterations_and_reports_every_member() -> None:
    learner = small_learner((0, 1))
    metrics = learner.learn(iteration(learner) + 1)
    assert learner.samples == [2 * iteration(learner)] * 2
    assert set(metrics) == set(DIAGNOSTICS)
    for name, column in metrics.items():
        assert column.shape == (2,), name
        assert torch.isfinite(column).all(), name
    learner.learn(1)
    assert learner.samples == [3 * iteration(learner)] * 2


def test_the_callback_sees_every_iteration_and_stops_by_returning_false() -> None:
    learner, seen = small_learner(), []

    def watch(agent: Learner, metrics: Metrics) -> bool | None:
        seen.append((agent.samples[0], float(metrics["reward"][0])))
        return False if len(seen) == 4 else None

    metrics = learner.learn(100 * iteration(learner), callback=watch)
    assert [samples for samples, _ in seen] == [i * iteration(learner) for i in (1, 2, 3, 4)]
    assert float(metrics["reward"][0]) == seen[-1][1]
    assert learner.samples == [4 * iteration(learner)]


@pytest.mark.parametrize(
    ("schedule", "given", "expected"),
    [
        ("linear", None, [0.01, 0.0075, 0.005, 0.0025]),
        ("constant", None, [0.01] * 4),
        ("linear", lambda done: 1 / (1 + done), [0.01, 0.01 / 37, 0.01 / 73, 0.01 / 109]),
    ],
)
def test_the_learning_rate_follows_its_schedule(
    schedule: Any, given: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = small_learner(learning_rate=0.01, learning_rate_schedule=schedule, epochs=1, minibatches=1)
    assert iteration(learner) == 36
    rates: list[float] = []
    step = learner.algorithm.optimiser.step

    def watch(flat: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor, moves: torch.Tensor) -> None:
        rates.append(float(rate[0]))
        step(flat, gradient, rate, moves)

    monkeypatch.setattr(learner.algorithm.optimiser, "step", watch)
    learner.learn(4 * iteration(learner), schedule=given)
    assert rates == pytest.approx(expected)


@POLICIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_seed_gives_the_same_weights_bit_for_bit(policy: str, dtype: torch.dtype) -> None:
    one, again, other = (trained(policy=policy, dtype=dtype, seed=seed) for seed in (5, 5, 6))
    assert same(one.snapshot(), again.snapshot())
    assert all(value.dtype == dtype for value in one.snapshot().weights.values())
    for name, value in one.snapshot().weights.items():
        assert not torch.equal(value, other.snapshot().weights[name]), name


def test_learning_in_pieces_is_learning_in_one_go() -> None:
    """The environments go on where they were; only a schedule is over one call."""
    whole = small_learner(learning_rate_schedule="constant")
    whole.learn(4 * iteration(whole))
    pieces = small_learner(learning_rate_schedule="constant")
    for n in (1, 2, 1):
        pieces.learn(n * iteration(pieces))
    assert same(whole.snapshot(), pieces.snapshot())


@POLICIES
def test_an_environment_in_another_precision_is_understood(policy: str) -> None:
    """Accounts kept in float64 for a learner in float32, and the other way round."""
    for ours, theirs in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        learner = small_learner(env=small_env(dtype=theirs), dtype=ours, policy=policy)
        learner.learn(2 * iteration(learner))
        assert learner.alive == [True]
        assert learner.act(learner.env.reset(0)).dtype == ours


@POLICIES
def test_acting_is_the_policys_mean_without_noise(policy: str) -> None:
    env = small_env((0, 1))
    learner = trained(members=(0, 1), env=env, policy=policy)
    observation = env.reset(3)
    action = learner.act(observation)
    assert action.shape == (2, env.envs, env.action_size)
    assert torch.equal(action, learner.act(observation))
    assert not action.requires_grad
    by_group = learner.algorithm.act(observation.day, observation.account.view(2, env.groups, env.accounts, -1))[0]
    assert torch.equal(action.view(by_group.shape), by_group)
    env.step(action)


def test_threads_are_a_setting() -> None:
    before = torch.get_num_threads()
    try:
        small_learner_with_threads(2)
        assert torch.get_num_threads() == 2
        small_learner_with_threads(0)
        assert torch.get_num_threads() == 2, "0 leaves the number alone"
        small_learner_with_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def small_learner_with_threads(threads: int) -> Learner:
    return Learner(small_env(dtype=torch.float32, window=32), threads=threads)


# ---------------------------------------------------------------- save and go on


@POLICIES
def test_a_snapshot_records_its_origin(policy: str) -> None:
    learner = trained(policy=policy, members=(0, 3), hyperparameters=[{}, {"clip_range": 0.3}])
    snapshot = learner.snapshot(1, id="g01s03", parent="g00s01", data_sha256="abc")
    assert (snapshot.id, snapshot.parent, snapshot.data_sha256) == ("g01s03", "g00s01", "abc")
    assert snapshot.samples == UPDATES * iteration(learner)
    assert snapshot.hyperparameters["clip_range"] == 0.3
    assert snapshot.hyperparameters["gamma"] == learner.config.gamma
    assert snapshot.spec["kind"] == policy
    assert snapshot.spec["environment"]["window"] == 8
    assert snapshot.normaliser == learner.env.market.normaliser


def test_a_snapshot_does_not_change_with_further_training() -> None:
    learner = trained()
    snapshot, again = learner.snapshot(), learner.snapshot()
    learner.learn(iteration(learner))
    assert same(snapshot, again)
    assert not same(snapshot, learner.snapshot())


@POLICIES
def test_a_restored_member_continues_exactly(policy: str) -> None:
    """From the same rollout, the learner that was saved and one in another slot take the same steps."""
    settings: dict[str, Any] = {"policy": policy, "epochs": 1, "minibatches": 1}
    learner = trained(**settings)
    heir = small_learner((7, 8), seed=99, **settings)
    neighbour = heir.snapshot(0)
    heir.restore(learner.snapshot(), 1)
    assert same(heir.snapshot(1), learner.snapshot())
    assert same(heir.snapshot(0), neighbour)
    assert heir.samples == [0, UPDATES * iteration(learner)]

    env = learner.env
    noise = learner.algorithm.noise((env.groups, env.accounts, env.action_size))
    rollout = Worker(env, 12).collect(learner.algorithm.explore, noise)
    learner.algorithm.update(rollout)
    heir.algorithm.update(doubled(rollout))
    one, other = learner.snapshot(), heir.snapshot(1)
    for name, value in {**one.weights, **one.optimiser}.items():
        torch.testing.assert_close({**other.weights, **other.optimiser}[name], value, rtol=1e-10, atol=1e-12)
    assert other.optimiser["steps"] == UPDATES + 1


def doubled(rollout: Rollout) -> Rollout:
    """The same for two members."""
    parts: dict[str, Any] = {}
    for name, value in rollout._asdict().items():
        if name == "last":
            parts[name] = twice(value)
        elif name == "ends":
            parts[name] = tuple(map(twice, value))
        else:
            parts[name] = value.repeat(1, 2, *[1] * (value.dim() - 2))
    return Rollout(**parts)


def twice(observation: Observation) -> Observation:
    return Observation(*(part.repeat(2, *[1] * (part.dim() - 1)) for part in observation))


def test_an_agent_is_restored_with_another_number_of_assets_where_its_policy_allows() -> None:
    learner = trained()
    wider = small_learner(env=small_env(market=random_market(8, assets=7)))
    wider.restore(learner.snapshot())
    wider.learn(iteration(wider))
    assert wider.alive == [True]


MISFITS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "another size": ({}, {"hidden": (9, 5)}),
    "another policy": ({"policy": "mlp"}, {}),
    "more features": ({}, {"env": lambda: small_env(market=random_market(3, features=4))}),
    "an mlp of other assets": (
        {"policy": "mlp"},
        {"policy": "mlp", "env": lambda: small_env(market=random_market(assets=5))},
    ),
}


@pytest.mark.parametrize("name", MISFITS)
def test_a_snapshot_that_does_not_fit_is_refused_and_nothing_is_lost(name: str) -> None:
    theirs, ours = MISFITS[name]
    snapshot = dataclasses.replace(small_learner(**theirs).snapshot(), id="g02s05")
    ours = {key: value() if callable(value) else value for key, value in ours.items()}
    learner = small_learner(**ours)
    before = learner.snapshot()
    with pytest.raises(
        RunError, match=r"^snapshot g02s05 does not fit this agent: \w+ has shape .*, expected .*; use the"
    ):
        learner.restore(snapshot)
    assert same(learner.snapshot(), before)


@pytest.mark.parametrize(
    ("theirs", "ours", "odd"),
    [
        ({"policy": "mlp", "activation": "relu"}, {"policy": "mlp"}, "its activation is 'relu', expected 'tanh'"),
        ({"optimiser": "rmsprop"}, {}, "only one of them has the training state "),
    ],
)
def test_a_snapshot_of_other_settings_is_refused_and_nothing_is_lost(
    theirs: dict[str, Any], ours: dict[str, Any], odd: str
) -> None:
    learner = small_learner(**ours)
    before = learner.snapshot()
    with pytest.raises(RunError, match=f"^snapshot agent does not fit this agent: {odd}"):
        learner.restore(small_learner(**theirs).snapshot())
    assert same(learner.snapshot(), before)


def test_a_snapshot_of_a_market_with_shorts_is_refused_where_scores_pass_a_softmax() -> None:
    one, other = (all_algorithms.small_learner("sac", policy="mlp", rules={"short": short}) for short in (True, False))
    with pytest.raises(RunError, match="its action is 'direct', expected 'softmax'"):
        other.restore(one.snapshot())


def test_a_fixed_temperature_belongs_to_the_slot() -> None:
    one, other = (all_algorithms.small_learner("sac", auto_entropy=False, temperature=t) for t in (0.3, 0.05))
    other.restore(one.snapshot())
    assert other.algorithm.temperature.tolist() == pytest.approx([0.05])


def test_a_snapshot_of_other_features_is_refused_though_their_number_fits() -> None:
    learner = small_learner()
    old = learner.env.market.normaliser
    other = dataclasses.replace(learner.snapshot(), normaliser=dataclasses.replace(old, feature_names=("rsi", "macd")))
    with pytest.raises(
        RunError, match=r"snapshot agent was trained on the features rsi, macd, .* has feature_0, feature_1"
    ):
        learner.restore(other)


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize("samples", [0, -5])
def test_fewer_samples_than_one_are_refused(samples: int) -> None:
    with pytest.raises(ConfigError, match=f"samples must be at least 1, got {samples}"):
        small_learner().learn(samples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 9}, "agent.horizon must be at most the episode's window of 8 bars, got 9; shorten"),
        ({"minibatches": 5}, "agent.minibatches must divide horizon x groups = 6 x 2 = 12, got 5"),
        ({"hidden": ()}, r"agent.hidden is out of its range, got \(\)"),
        ({"hidden": (4, 0)}, r"agent.hidden is out of its range, got \(4, 0\)"),
        ({"horizon": 0}, "agent.horizon is out of its range, got 0"),
        ({"epochs": 0}, "agent.epochs is out of its range, got 0"),
        ({"minibatches": 0}, "agent.minibatches is out of its range, got 0"),
        ({"learning_rate": 0.0}, "agent.learning_rate is out of its range, got 0.0"),
        ({"learning_rate": float("nan")}, "agent.learning_rate is out of its range, got nan"),
        ({"learning_rate": float("inf")}, "agent.learning_rate is out of its range, got inf"),
        ({"gamma": 1.1}, "agent.gamma is out of its range, got 1.1"),
        ({"gae_lambda": -0.1}, "agent.gae_lambda is out of its range, got -0.1"),
        ({"clip_range": 0.0}, "agent.clip_range is out of its range, got 0.0"),
        ({"value_coefficient": -1.0}, "agent.value_coefficient is out of its range, got -1.0"),
        ({"max_grad_norm": 0.0}, "agent.max_grad_norm is out of its range, got 0.0"),
        ({"target_kl": -1.0}, "agent.target_kl is out of its range, got -1.0"),
        ({"policy": "transformer"}, "agent.policy must be equivariant, linear or mlp, got 'transformer'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_learner(**settings)


def test_a_minibatch_of_one_sample_is_refused() -> None:
    """Its advantages have no spread: every member would break at the first step."""
    env = small_env(envs=2, group=1)
    with pytest.raises(ConfigError, match=r"agent\.minibatches = 12 leaves 1 sample in each minibatch"):
        small_learner(env=env, minibatches=12)
    trained(env=env, minibatches=6)


@pytest.mark.parametrize(("name", "value"), [("gamma", 1.5), ("learning_rate", float("nan")), ("clip_range", -0.1)])
def test_a_members_settings_have_the_same_ranges(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"agent.{name} is out of its range, got {value}"):
        small_learner((0, 1), hyperparameters=[{}, {name: value}])


@pytest.mark.parametrize("count", [1, 3])
def test_settings_for_another_number_of_members_are_refused(count: int) -> None:
    with pytest.raises(ConfigError, match=f"hyperparameters must be given for each of the 2 members, got {count}"):
        small_learner((0, 1), hyperparameters=[{}] * count)


def test_each_members_settings_replace_the_configs() -> None:
    learner = small_learner(
        (0, 1), hyperparameters=[{"clip_range": 0.3}, {"learning_rate": 0.5}], clip_range=0.15, learning_rate=0.01
    )
    assert [learner.hyperparameters(p)["clip_range"] for p in (0, 1)] == [0.3, 0.15]
    assert [learner.hyperparameters(p)["learning_rate"] for p in (0, 1)] == [0.01, 0.5]
