"""Contract of every algorithm: independent members, bit-identical resumption, isolated divergence."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run

from finrl_pod.errors import RunError
from finrl_pod.rl.algorithms.factory import DIFFERENTIABLE, OFF_POLICY, ON_POLICY, make_actor
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from tests.rl.all_algorithms import NAMES, small_config, small_learner, training_state

MEMBERS = (0, 1, 2, 3)
UPDATES = 20
POLICIES = ("equivariant", "linear", "mlp")
EVERY_ALGORITHM = pytest.mark.parametrize("name", NAMES)
EVERY_ALGORITHM_AND_POLICY = pytest.mark.parametrize(
    ("name", "policy"),
    [(n, p) for n in NAMES for p in POLICIES if p != "linear" or ALGORITHMS[n].actions != "discrete"],
)


MEMBER_SETTINGS = {name: kind.MEMBER_SETTINGS for name, kind in {**ON_POLICY, **OFF_POLICY, **DIFFERENTIABLE}.items()}


def settings_of(name: str) -> list[dict[str, float]]:
    """Different hyperparameters for four members, restricted to those of the algorithm."""
    settings: list[dict[str, float]] = [
        {"learning_rate": 1e-2, "gamma": 0.9},
        {"learning_rate": 2e-2, "gamma": 0.5, "tau": 0.3, "exploration_noise": 0.3, "final_epsilon": 0.5},
        {"learning_rate": 5e-3, "max_grad_norm": 0.05, "temperature": 0.2, "target_noise": 0.5, "gae_lambda": 0.5},
        {"learning_rate": 3e-3, "noise_clip": 0.1, "clip_range": 0.1, "tau": 1.0},
    ]
    return [{key: x for key, x in values.items() if key in MEMBER_SETTINGS[name]} for values in settings]


def train(name: str, members: tuple[int, ...], diverge: tuple[int, int] | None = None, **settings: Any) -> Any:
    """Train with at least 20 updates. diverge: (member, iteration) after which one of its weights is set to NaN."""
    hyperparameters = settings_of(name)
    learner = small_learner(name, members, seed=4, hyperparameters=[hyperparameters[m] for m in members], **settings)
    iterations = UPDATES // 2 + 2
    count = 0

    def inject_nan(agent: Any, _: Any) -> None:
        nonlocal count
        count += 1
        if diverge is not None and count == diverge[1] and diverge[0] in members:
            weights = agent.algorithm.weights()
            weights[next(iter(weights))][members.index(diverge[0])] = torch.nan

    learner.learn(iterations * learner.iteration_samples, callback=inject_nan)
    return learner


def assert_equal_within_rounding(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert torch.allclose(one[name], value, rtol=1e-9, atol=1e-9), f"{name}: {one[name]} against {value}"


@pytest.mark.slow
@EVERY_ALGORITHM_AND_POLICY
def test_members_equal_single_runs(name: str, policy: str) -> None:
    batch = train(name, MEMBERS, policy=policy)
    assert getattr(batch.algorithm, "updates", UPDATES) >= UPDATES
    for p in MEMBERS:
        assert_equal_within_rounding(training_state(batch, p), training_state(train(name, (p,), policy=policy)))
    flat = [torch.cat([x.flatten() for x in batch.algorithm.member(p)[0].values()]) for p in MEMBERS]
    assert all((flat[a] - flat[b]).abs().max() > 1e-3 for a in MEMBERS for b in MEMBERS if a < b)


@pytest.mark.slow
@EVERY_ALGORITHM
def test_diverged_member_stops_and_the_others_continue(name: str) -> None:
    batch = train(name, MEMBERS, diverge=(2, 6), policy="mlp")
    assert batch.alive == [True, True, False, True]
    for p in (0, 1, 3):
        assert_equal_within_rounding(training_state(batch, p), training_state(train(name, (p,), policy="mlp")))


@pytest.mark.slow
@EVERY_ALGORITHM
def test_resuming_a_checkpoint_is_bit_identical(name: str) -> None:
    """Covers replay buffer (after wrapping around), random generators and environments."""
    uninterrupted = small_learner(name, (0, 3), seed=7, learning_rate_schedule="constant")
    samples = uninterrupted.iteration_samples
    uninterrupted.learn(12 * samples)
    saved = uninterrupted.checkpoint()
    metrics = uninterrupted.learn(5 * samples)

    resumed = small_learner(name, (0, 3), seed=7, learning_rate_schedule="constant")
    resumed.resume(saved)
    resumed_metrics = resumed.learn(5 * samples)
    assert resumed.samples == uninterrupted.samples
    for p in (0, 1):
        one, two = training_state(uninterrupted, p), training_state(resumed, p)
        assert all(torch.equal(one[key], two[key]) for key in one)
    for key in metrics:
        assert torch.equal(metrics[key], resumed_metrics[key]), key
    end, resumed_end = uninterrupted.checkpoint(), resumed.checkpoint()
    assert end.keys() == resumed_end.keys()
    assert all(torch.equal(end[key], resumed_end[key]) for key in end)


@EVERY_ALGORITHM
def test_checkpoint_of_another_learner_is_refused(name: str) -> None:
    saved = small_learner(name, hidden=(3, 3)).checkpoint()
    with pytest.raises(RunError, match="does not fit"):
        small_learner(name).resume(saved)


@pytest.mark.slow
@EVERY_ALGORITHM
def test_copy_includes_the_member_but_not_the_slot(name: str) -> None:
    learner = small_learner(name, (0, 1), seed=3)
    learner.learn(5 * learner.iteration_samples)
    generators = [s.get_state() for s in learner.algorithm.generators()]
    slot_state = {key: x.clone() for key, x in learner.algorithm.slot_state().items()}
    learner.restore(learner.snapshot(0), 1)
    one, two = training_state(learner, 0), training_state(learner, 1)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert all(torch.equal(a, s.get_state()) for a, s in zip(generators, learner.algorithm.generators(), strict=True))
    assert all(torch.equal(slot_state[key], x) for key, x in learner.algorithm.slot_state().items())


@pytest.mark.slow
@EVERY_ALGORITHM
def test_diverged_member_cannot_be_replaced(name: str) -> None:
    learner = train(name, (0, 1), diverge=(1, 6), policy="mlp")
    with pytest.raises(RunError, match=r"member 1 diverged \(loss is NaN\).* into a new Learner"):
        learner.restore(learner.snapshot(0), 1)


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].actions != "discrete"])
def test_training_with_short_selling(name: str, policy: str) -> None:
    """With short selling, actions are portfolio weights, which critics receive as input."""
    learner = small_learner(name, (0, 1), policy=policy, rules={"short": True, "leverage": 1.5})
    before = training_state(learner)
    learner.learn(8 * learner.iteration_samples)
    assert learner.alive == [True, True]
    assert any(not torch.equal(before[key], x) for key, x in training_state(learner).items())


@pytest.mark.slow
@EVERY_ALGORITHM_AND_POLICY
def test_saved_agent_acts_like_the_learner(name: str, policy: str) -> None:
    learner = small_learner(name, (0, 1), policy=policy)
    learner.learn(4 * learner.iteration_samples)
    env = learner.env
    observation = env.reset(3)
    action = learner.act(observation)
    assert action.shape == (2, env.envs, env.action_size)
    assert torch.equal(action, learner.act(observation)), "acting without exploration is deterministic"
    env.step(action)
    actor = make_actor(name, learner.algorithm.spec)
    snapshot = learner.snapshot(1)
    params = {key: x.unsqueeze(0) for key, x in snapshot.weights.items()}
    bar, account = observation.bar[1:], observation.account[1:].view(1, env.groups, env.accounts, -1)
    rows, known = env.market.features[bar].double(), env.market.tradable[bar]
    saved_action = actor.action(params, rows, account, None if bool(env.market.tradable.all()) else known)
    torch.testing.assert_close(saved_action.reshape(action[1].shape), action[1])


@pytest.mark.slow
@EVERY_ALGORITHM
def test_learning_rate_schedule_scales_every_step(name: str) -> None:
    """With a factor of 0, training leaves all weights unchanged."""
    learner = small_learner(name)
    learner.learn(4 * learner.iteration_samples, schedule=lambda _: 0.0)
    untrained = small_learner(name)
    for key, value in untrained.algorithm.member(0)[0].items():
        assert torch.equal(learner.algorithm.member(0)[0][key], value), key


def test_registry_is_complete() -> None:
    assert set(ON_POLICY) | set(OFF_POLICY) | set(DIFFERENTIABLE) == set(NAMES)
    assert set(ALGORITHMS) - set(NAMES) == {"closed_form"}
    for name, info in ALGORITHMS.items():
        assert info.name == name
        assert info.summary
        assert info.source
        assert info.config_class(algorithm=name).algorithm == name
    for name in NAMES:
        assert all(hasattr(small_config(name), key) for key in MEMBER_SETTINGS[name])


def test_algorithms_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["algorithms"]
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert all(row["summary"] and row["source"] and row["settings"] for row in rows)
    assert run(["algorithms"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in ALGORITHMS)
