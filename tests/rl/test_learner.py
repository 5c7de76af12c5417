"""The public Learner: learning, acting, reproducibility, snapshots and invalid input."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from finrl_pod.errors import ConfigError, RunError
from finrl_pod.rl.experience import Rollout, RolloutCollector
from finrl_pod.rl.training.learner import Learner, Metrics
from finrl_pod.types import Observation
from tests.markets import random_market
from tests.rl import all_algorithms
from tests.rl.small_learners import PPO_METRICS, iteration_samples, same_weights, small_env, small_learner

POLICIES = pytest.mark.parametrize("policy", ["equivariant", "mlp"])
UPDATES = 3


def trained_learner(**settings: Any) -> Learner:
    learner = small_learner(**settings)
    learner.learn(UPDATES * iteration_samples(learner))
    return learner


# ---------------------------------------------------------------- learn


def test_learn_counts_whole_iterations_and_reports_metrics_per_member() -> None:
    learner = small_learner((0, 1))
    metrics = learner.learn(iteration_samples(learner) + 1)
    assert learner.samples == [2 * iteration_samples(learner)] * 2
    assert set(metrics) == PPO_METRICS
    for name, column in metrics.items():
        assert column.shape == (2,), name
        assert torch.isfinite(column).all(), name
    learner.learn(1)
    assert learner.samples == [3 * iteration_samples(learner)] * 2


def test_callback_runs_every_iteration_and_stops_by_returning_false() -> None:
    learner, calls = small_learner(), []

    def record(agent: Learner, metrics: Metrics) -> bool | None:
        calls.append((agent.samples[0], float(metrics["reward"][0])))
        return False if len(calls) == 4 else None

    metrics = learner.learn(100 * iteration_samples(learner), callback=record)
    assert [samples for samples, _ in calls] == [i * iteration_samples(learner) for i in (1, 2, 3, 4)]
    assert float(metrics["reward"][0]) == calls[-1][1]
    assert learner.samples == [4 * iteration_samples(learner)]


@pytest.mark.parametrize(
    ("schedule", "custom_schedule", "expected"),
    [
        ("linear", None, [0.01, 0.0075, 0.005, 0.0025]),
        ("constant", None, [0.01] * 4),
        ("linear", lambda done: 1 / (1 + done), [0.01, 0.01 / 37, 0.01 / 73, 0.01 / 109]),
    ],
)
def test_learning_rate_follows_its_schedule(
    schedule: Any, custom_schedule: Any, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = small_learner(learning_rate=0.01, learning_rate_schedule=schedule, epochs=1, minibatches=1)
    assert iteration_samples(learner) == 36
    rates: list[float] = []
    step = learner.algorithm.optimiser.step

    def record(flat: torch.Tensor, gradient: torch.Tensor, rate: torch.Tensor, moves: torch.Tensor) -> None:
        rates.append(float(rate[0]))
        step(flat, gradient, rate, moves)

    monkeypatch.setattr(learner.algorithm.optimiser, "step", record)
    learner.learn(4 * iteration_samples(learner), schedule=custom_schedule)
    assert rates == pytest.approx(expected)


@pytest.mark.slow
@POLICIES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_seeds_give_bit_identical_weights(policy: str, dtype: torch.dtype) -> None:
    one, repeated, other = (trained_learner(policy=policy, dtype=dtype, seed=seed) for seed in (5, 5, 6))
    assert same_weights(one.snapshot(), repeated.snapshot())
    assert all(value.dtype == dtype for value in one.snapshot().weights.values())
    for name, value in one.snapshot().weights.items():
        assert not torch.equal(value, other.snapshot().weights[name]), name


def test_several_learn_calls_equal_one() -> None:
    """Environments continue between calls; only schedules restart with each call."""
    uninterrupted = small_learner(learning_rate_schedule="constant")
    uninterrupted.learn(4 * iteration_samples(uninterrupted))
    pieces = small_learner(learning_rate_schedule="constant")
    for n in (1, 2, 1):
        pieces.learn(n * iteration_samples(pieces))
    assert same_weights(uninterrupted.snapshot(), pieces.snapshot())


@POLICIES
def test_environment_dtype_may_differ_from_the_learner(policy: str) -> None:
    """Accounts in float64 with a float32 learner and vice versa."""
    for own_settings, saved_settings in ((torch.float32, torch.float64), (torch.float64, torch.float32)):
        learner = small_learner(env=small_env(dtype=saved_settings), dtype=own_settings, policy=policy)
        learner.learn(2 * iteration_samples(learner))
        assert learner.alive == [True]
        assert learner.act(learner.env.reset(0)).dtype == own_settings


@POLICIES
def test_act_returns_the_mean_action(policy: str) -> None:
    env = small_env((0, 1))
    learner = trained_learner(members=(0, 1), env=env, policy=policy)
    observation = env.reset(3)
    action = learner.act(observation)
    assert action.shape == (2, env.envs, env.action_size)
    assert torch.equal(action, learner.act(observation))
    assert not action.requires_grad
    grouped_action = learner.algorithm.act(observation.bar, observation.account.view(2, env.groups, env.accounts, -1))[
        0
    ]
    assert torch.equal(action.view(grouped_action.shape), grouped_action)
    env.step(action)


def test_threads_setting_sets_the_torch_thread_count() -> None:
    before = torch.get_num_threads()
    try:
        make_learner_with_threads(2)
        assert torch.get_num_threads() == 2
        make_learner_with_threads(0)
        assert torch.get_num_threads() == 2, "0 keeps the thread count"
        make_learner_with_threads(1)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


def make_learner_with_threads(threads: int) -> Learner:
    return Learner(small_env(dtype=torch.float32, window=32), threads=threads)


# ---------------------------------------------------------------- snapshots


@POLICIES
def test_snapshot_records_ids_samples_and_settings(policy: str) -> None:
    learner = trained_learner(policy=policy, members=(0, 3), hyperparameters=[{}, {"clip_range": 0.3}])
    snapshot = learner.snapshot(1, id="g01s03", parent="g00s01", data_sha256="abc")
    assert (snapshot.id, snapshot.parent, snapshot.data_sha256) == ("g01s03", "g00s01", "abc")
    assert snapshot.samples == UPDATES * iteration_samples(learner)
    assert snapshot.hyperparameters["clip_range"] == 0.3
    assert snapshot.hyperparameters["gamma"] == learner.config.gamma
    assert snapshot.spec["kind"] == policy
    assert snapshot.spec["environment"]["window"] == 8
    assert snapshot.normaliser == learner.env.market.normaliser


def test_snapshot_is_independent_of_further_training() -> None:
    learner = trained_learner()
    snapshot, repeated = learner.snapshot(), learner.snapshot()
    learner.learn(iteration_samples(learner))
    assert same_weights(snapshot, repeated)
    assert not same_weights(snapshot, learner.snapshot())


@POLICIES
def test_restored_member_continues_exactly(policy: str) -> None:
    """Given the same rollout, the saved learner and its copy in another slot make the same update."""
    settings: dict[str, Any] = {"policy": policy, "epochs": 1, "minibatches": 1}
    learner = trained_learner(**settings)
    restored = small_learner((7, 8), seed=99, **settings)
    other_slot = restored.snapshot(0)
    restored.restore(learner.snapshot(), 1)
    assert same_weights(restored.snapshot(1), learner.snapshot())
    assert same_weights(restored.snapshot(0), other_slot)
    assert restored.samples == [0, UPDATES * iteration_samples(learner)]

    env = learner.env
    noise = learner.algorithm.noise((env.groups, env.accounts, env.action_size))
    rollout = RolloutCollector(env, 12).collect(learner.algorithm.explore, noise)
    learner.algorithm.update(rollout)
    restored.algorithm.update(for_two_members(rollout))
    one, other = learner.snapshot(), restored.snapshot(1)
    for name, value in {**one.weights, **one.optimiser}.items():
        torch.testing.assert_close({**other.weights, **other.optimiser}[name], value, rtol=1e-10, atol=1e-12)
    assert other.optimiser["steps"] == UPDATES + 1


def for_two_members(rollout: Rollout) -> Rollout:
    """Repeat a rollout of one member for two members."""
    parts: dict[str, Any] = {}
    for name, value in rollout._asdict().items():
        if name == "last":
            parts[name] = repeat_members(value)
        elif name == "final_observations":
            parts[name] = tuple(map(repeat_members, value))
        else:
            parts[name] = value.repeat(1, 2, *[1] * (value.dim() - 2))
    return Rollout(**parts)


def repeat_members(observation: Observation) -> Observation:
    return Observation(*(part.repeat(2, *[1] * (part.dim() - 1)) for part in observation))


def test_equivariant_agent_is_restored_for_another_number_of_assets() -> None:
    learner = trained_learner()
    more_assets = small_learner(env=small_env(market=random_market(8, assets=7)))
    more_assets.restore(learner.snapshot())
    more_assets.learn(iteration_samples(more_assets))
    assert more_assets.alive == [True]


MISMATCHED_SHAPES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hidden sizes": ({}, {"hidden": (9, 5)}),
    "policy kind": ({"policy": "mlp"}, {}),
    "number of features": ({}, {"env": lambda: small_env(market=random_market(3, features=4))}),
    "number of assets of an mlp": (
        {"policy": "mlp"},
        {"policy": "mlp", "env": lambda: small_env(market=random_market(assets=5))},
    ),
}


@pytest.mark.parametrize("name", MISMATCHED_SHAPES)
def test_snapshot_with_other_shapes_is_rejected_without_changes(name: str) -> None:
    saved_settings, own_settings = MISMATCHED_SHAPES[name]
    snapshot = dataclasses.replace(small_learner(**saved_settings).snapshot(), id="g02s05")
    own_settings = {key: value() if callable(value) else value for key, value in own_settings.items()}
    learner = small_learner(**own_settings)
    before = learner.snapshot()
    with pytest.raises(
        RunError, match=r"^snapshot g02s05 does not fit this agent: \w+ has shape .*, expected .*; use the"
    ):
        learner.restore(snapshot)
    assert same_weights(learner.snapshot(), before)


@pytest.mark.parametrize(
    ("saved_settings", "own_settings", "difference"),
    [
        ({"policy": "mlp", "activation": "relu"}, {"policy": "mlp"}, "its activation is 'relu', expected 'tanh'"),
        ({"optimiser": "rmsprop"}, {}, "only one of them has the training state "),
    ],
)
def test_snapshot_with_other_settings_is_rejected_without_changes(
    saved_settings: dict[str, Any], own_settings: dict[str, Any], difference: str
) -> None:
    learner = small_learner(**own_settings)
    before = learner.snapshot()
    with pytest.raises(RunError, match=f"^snapshot agent does not fit this agent: {difference}"):
        learner.restore(small_learner(**saved_settings).snapshot())
    assert same_weights(learner.snapshot(), before)


def test_snapshot_trained_with_shorts_is_rejected_without_shorts() -> None:
    one, other = (all_algorithms.small_learner("sac", policy="mlp", rules={"short": short}) for short in (True, False))
    with pytest.raises(RunError, match="its action is 'direct', expected 'softmax'"):
        other.restore(one.snapshot())


def test_snapshot_with_other_feature_names_is_rejected() -> None:
    learner = small_learner()
    normaliser = learner.env.market.normaliser
    other = dataclasses.replace(
        learner.snapshot(), normaliser=dataclasses.replace(normaliser, feature_names=("rsi", "macd"))
    )
    with pytest.raises(
        RunError, match=r"snapshot agent was trained on the features rsi, macd, .* has feature_0, feature_1"
    ):
        learner.restore(other)


# ---------------------------------------------------------------- invalid input


@pytest.mark.parametrize("samples", [0, -5])
def test_non_positive_samples_are_rejected(samples: int) -> None:
    with pytest.raises(ConfigError, match=f"samples must be at least 1, got {samples}"):
        small_learner().learn(samples)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"horizon": 9}, "agent.horizon must be at most the window of 8 bars, got 9; shorten"),
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
        (
            {"policy": "transformer"},
            "agent.policy must be one of equivariant, linear, mlp, got 'transformer'",
        ),
    ],
)
def test_settings_out_of_range_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small_learner(**settings)


def test_minibatches_of_one_sample_are_rejected() -> None:
    """Advantages of one sample have no standard deviation, so every member would diverge at the first step."""
    env = small_env(envs=2, group=1)
    with pytest.raises(ConfigError, match=r"agent\.minibatches = 12 leaves 1 sample in each minibatch"):
        small_learner(env=env, minibatches=12)
    trained_learner(env=env, minibatches=6)


@pytest.mark.parametrize(("name", "value"), [("gamma", 1.5), ("learning_rate", float("nan")), ("clip_range", -0.1)])
def test_hyperparameters_of_members_have_the_same_ranges(name: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"agent.{name} is out of its range, got {value}"):
        small_learner((0, 1), hyperparameters=[{}, {name: value}])


@pytest.mark.parametrize("count", [1, 3])
def test_wrong_number_of_hyperparameter_sets_is_rejected(count: int) -> None:
    with pytest.raises(ConfigError, match=f"hyperparameters must be given for each of the 2 members, got {count}"):
        small_learner((0, 1), hyperparameters=[{}] * count)


def test_hyperparameters_override_the_config() -> None:
    learner = small_learner(
        (0, 1), hyperparameters=[{"clip_range": 0.3}, {"learning_rate": 0.5}], clip_range=0.15, learning_rate=0.01
    )
    assert [learner.hyperparameters(p)["clip_range"] for p in (0, 1)] == [0.3, 0.15]
    assert [learner.hyperparameters(p)["learning_rate"] for p in (0, 1)] == [0.01, 0.5]
