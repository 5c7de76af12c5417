"""What every algorithm promises: members are independent, a run continues exactly, one that breaks breaks alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from finrl_pod_app.cli.main import run

from finrl_pod.errors import RunError
from finrl_pod.rl.algorithms.registry import OFF_POLICY, ON_POLICY, SIMULATOR, make_actor, member_settings
from finrl_pod.settings.algorithm_registry import ALGORITHMS
from tests.rl.all_algorithms import NAMES, everything, small_config, small_learner

MEMBERS = (0, 1, 2, 3)
UPDATES = 20
POLICIES = ("equivariant", "linear", "mlp")
EVERY = pytest.mark.parametrize("name", NAMES)
EVERY_PAIR = pytest.mark.parametrize(
    ("name", "policy"),
    [(n, p) for n in NAMES for p in POLICIES if p != "linear" or ALGORITHMS[n].actions != "discrete"],
)


def settings_of(name: str) -> list[dict[str, float]]:
    """Four members that differ in what an algorithm has."""
    each: list[dict[str, float]] = [
        {"learning_rate": 1e-2, "gamma": 0.9},
        {"learning_rate": 2e-2, "gamma": 0.5, "tau": 0.3, "exploration_noise": 0.3, "final_epsilon": 0.5},
        {"learning_rate": 5e-3, "max_grad_norm": 0.05, "temperature": 0.2, "target_noise": 0.5, "gae_lambda": 0.5},
        {"learning_rate": 3e-3, "target_entropy": -2.0, "noise_clip": 0.1, "clip_range": 0.1, "tau": 1.0},
    ]
    return [{key: x for key, x in values.items() if key in member_settings(name)} for values in each]


def learned(name: str, members: tuple[int, ...], spoil: tuple[int, int] | None = None, **settings: Any) -> Any:
    """20 updates at least. spoil: (member, iteration) after which one of its weights is no number."""
    each = settings_of(name)
    learner = small_learner(name, members, seed=4, hyperparameters=[each[m] for m in members], **settings)
    rounds = UPDATES // 2 + 2
    count = 0

    def watch(agent: Any, _: Any) -> None:
        nonlocal count
        count += 1
        if spoil is not None and count == spoil[1] and spoil[0] in members:
            weights = agent.algorithm.weights()
            weights[next(iter(weights))][members.index(spoil[0])] = torch.nan

    learner.learn(rounds * learner.iteration_samples, callback=watch)
    return learner


def assert_near(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in other.items():
        assert torch.allclose(one[name], value, rtol=1e-9, atol=1e-9), f"{name}: {one[name]} against {value}"


@EVERY_PAIR
def test_four_members_are_four_single_runs(name: str, policy: str) -> None:
    batch = learned(name, MEMBERS, policy=policy)
    assert getattr(batch.algorithm, "updates", UPDATES) >= UPDATES
    for p in MEMBERS:
        assert_near(everything(batch, p), everything(learned(name, (p,), policy=policy)))
    flat = [torch.cat([x.flatten() for x in batch.algorithm.member(p)[0].values()]) for p in MEMBERS]
    assert all((flat[a] - flat[b]).abs().max() > 1e-3 for a in MEMBERS for b in MEMBERS if a < b)


@EVERY
def test_a_diverged_member_stops_and_the_others_continue(name: str) -> None:
    batch = learned(name, MEMBERS, spoil=(2, 6), policy="mlp")
    assert batch.alive == [True, True, False, True]
    for p in (0, 1, 3):
        assert_near(everything(batch, p), everything(learned(name, (p,), policy="mlp")))


@EVERY
def test_resuming_a_checkpoint_is_bit_identical(name: str) -> None:
    """Replay, streams and environments included: to the last bit, also when the ring has come round."""
    whole = small_learner(name, (0, 3), seed=7, learning_rate_schedule="constant")
    each = whole.iteration_samples
    whole.learn(12 * each)
    saved = whole.checkpoint()
    metrics = whole.learn(5 * each)

    other = small_learner(name, (0, 3), seed=7, learning_rate_schedule="constant")
    other.resume(saved)
    again = other.learn(5 * each)
    assert other.samples == whole.samples
    for p in (0, 1):
        one, two = everything(whole, p), everything(other, p)
        assert all(torch.equal(one[key], two[key]) for key in one)
    for key in metrics:
        assert torch.equal(metrics[key], again[key]), key
    end, end_again = whole.checkpoint(), other.checkpoint()
    assert end.keys() == end_again.keys()
    assert all(torch.equal(end[key], end_again[key]) for key in end)


@EVERY
def test_a_checkpoint_of_another_learner_is_refused(name: str) -> None:
    saved = small_learner(name, hidden=(3, 3)).checkpoint()
    with pytest.raises(RunError, match="does not fit"):
        small_learner(name).resume(saved)


@EVERY
def test_a_copy_includes_the_member_but_not_the_slot(name: str) -> None:
    learner = small_learner(name, (0, 1), seed=3)
    learner.learn(5 * learner.iteration_samples)
    streams = [s.get_state() for s in learner.algorithm.streams()]
    kept = {key: x.clone() for key, x in learner.algorithm.slot_state().items()}
    learner.restore(learner.snapshot(0), 1)
    one, two = everything(learner, 0), everything(learner, 1)
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert all(torch.equal(a, s.get_state()) for a, s in zip(streams, learner.algorithm.streams(), strict=True))
    assert all(torch.equal(kept[key], x) for key, x in learner.algorithm.slot_state().items())


@EVERY
def test_nothing_is_restored_in_the_place_of_a_member_that_broke(name: str) -> None:
    learner = learned(name, (0, 1), spoil=(1, 6), policy="mlp")
    with pytest.raises(RunError, match=r"member 1 diverged \(loss is NaN\).* into a new Learner"):
        learner.restore(learner.snapshot(0), 1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", [name for name in NAMES if ALGORITHMS[name].actions != "discrete"])
def test_it_learns_to_sell_short(name: str, policy: str) -> None:
    """Scores stand for weights there, and critics receive the weights."""
    learner = small_learner(name, (0, 1), policy=policy, rules={"short": True, "leverage": 1.5})
    before = everything(learner)
    learner.learn(8 * learner.iteration_samples)
    assert learner.alive == [True, True]
    assert any(not torch.equal(before[key], x) for key, x in everything(learner).items())


@EVERY_PAIR
def test_a_saved_agent_acts_as_the_learner_does(name: str, policy: str) -> None:
    learner = small_learner(name, (0, 1), policy=policy)
    learner.learn(4 * learner.iteration_samples)
    env = learner.env
    observation = env.reset(3)
    action = learner.act(observation)
    assert action.shape == (2, env.envs, env.action_size)
    assert torch.equal(action, learner.act(observation)), "without exploration nothing is drawn"
    env.step(action)
    actor = make_actor(name, learner.algorithm.spec)
    snapshot = learner.snapshot(1)
    params = {key: x.unsqueeze(0) for key, x in snapshot.weights.items()}
    day, account = observation.day[1:], observation.account[1:].view(1, env.groups, env.accounts, -1)
    rows, known = env.market.features[day].double(), env.market.tradable[day]
    again = actor.action(params, rows, account, None if bool(env.market.tradable.all()) else known)
    torch.testing.assert_close(again.reshape(action[1].shape), action[1])


@EVERY
def test_the_learning_rate_factor_scales_every_step(name: str) -> None:
    """With a factor of 0 nothing moves but what counts steps and what targets follow."""
    learner = small_learner(name)
    learner.learn(4 * learner.iteration_samples, schedule=lambda _: 0.0)
    fresh = small_learner(name)
    for key, value in fresh.algorithm.member(0)[0].items():
        assert torch.equal(learner.algorithm.member(0)[0][key], value), key


def test_every_name_has_its_implementation_and_its_facts() -> None:
    assert set(ON_POLICY) | set(OFF_POLICY) | set(SIMULATOR) == set(NAMES)
    for name, facts in ALGORITHMS.items():
        assert facts.name == name
        assert facts.summary
        assert facts.source
        assert facts.record(algorithm=name).algorithm == name
    for name in NAMES:
        assert all(hasattr(small_config(name), key) for key in member_settings(name))


def test_the_command_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["algorithms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["algorithms"]
    assert [row["name"] for row in rows] == list(ALGORITHMS)
    assert all(row["summary"] and row["source"] and row["settings"] for row in rows)
    assert run(["algorithms"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ALGORITHMS)
