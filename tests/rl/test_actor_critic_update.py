"""The actor-critic kernel against each algorithm's loss through autograd."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

from finrl_pod.native.prebuild import find_compiler
from finrl_pod.rl.algorithms.actor_critic import TD3, ActorCritic
from finrl_pod.rl.algorithms.factory import make_algorithm
from finrl_pod.rl.networks.inputs import ObservationAdapter, make_adapter, spec_of
from finrl_pod.settings.algorithm_configs import DDPGConfig, OffPolicyConfig, REDQConfig, SACConfig, TD3Config
from tests.markets import random_market
from tests.rl.all_algorithms import small_learner
from tests.rl.test_off_policy import FlatEnv

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C++ compiler")
RECORDS: dict[str, type[OffPolicyConfig]] = {
    "sac": SACConfig, "redq": REDQConfig, "td3": TD3Config, "ddpg": DDPGConfig,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    ("sac", {}),
    ("sac", {"hidden": (5,), "critics": 1, "batch_size": 7}),
    ("sac", {"hidden": (17, 33, 6), "critics": 3, "batch_size": 50}),
    ("sac", {"hidden": (256, 256), "batch_size": 256}),
    ("sac", {"critic_rule": "mean", "critics": 3}),
    ("sac", {"critic_rule": "subset", "critics": 4}),
    ("sac", {"temperature": 0.3}),
    ("redq", {"critics": 5, "policy_delay": 2}),
    ("redq", {"critics": 3, "critic_rule": "min", "policy_delay": 2}),
    ("td3", {}),
    ("td3", {"target_noise": 1.5, "noise_clip": 0.3, "policy_delay": 3, "hidden": (40, 30)}),
    ("td3", {"critic_rule": "subset", "critics": 4, "policy_delay": 1}),
    ("ddpg", {}),
    ("ddpg", {"critics": 3, "critic_rule": "mean", "hidden": (5,), "batch_size": 7}),
]
NAMES = [f"{name} {settings}" for name, settings in CASES]


def flat_adapter(config: OffPolicyConfig) -> ObservationAdapter:
    return make_adapter(FlatEnv(), spec_of(FlatEnv(), config), torch.float32)


def algorithm_with_data(kernel: bool, members: int, algorithm: str = "sac", **settings: Any) -> Any:
    config = RECORDS[algorithm](
        **{"policy": "mlp", "hidden": (16, 24), "batch_size": 40, "buffer_size": 300, "learning_starts": 0, **settings}
    )
    hyperparameters = [{"learning_rate": 1e-3 * (p + 1), "gamma": 0.9 + 0.03 * p} for p in range(members)]
    result = make_algorithm(config, FlatEnv(members), seed=3, hyperparameters=hyperparameters)
    assert isinstance(result, ActorCritic)
    assert result._kernel is not None
    if not kernel:
        result._kernel = None
    generator = torch.Generator().manual_seed(1)
    items = {
        key: torch.randn(members, 300, *x.shape[2:], generator=generator).to(x.dtype)
        for key, x in result.replay.data.items()
    }
    result.replay.add({**items, "action": items["action"].tanh(), "terminated": items["reward"] > 1})
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("algorithm", "settings"), CASES, ids=NAMES)
@pytest.mark.parametrize("members", [1, 3])
def test_updates_match_autograd(members: int, algorithm: str, settings: dict[str, Any]) -> None:
    """Parameters, moments, targets and metrics after ten updates, up to float32 rounding."""
    fused, plain = (algorithm_with_data(kernel, members, algorithm, **settings) for kernel in (True, False))
    start = fused.weights()["w0"].clone()
    one, two = fused.learn(10, 1.0), plain.learn(10, 1.0)
    for name in fused.METRICS:
        torch.testing.assert_close(one[name], two[name], rtol=2e-4, atol=2e-5, equal_nan=True, msg=name)
    for p in range(members):
        a, b = fused.member(p)[1], plain.member(p)[1]
        for name in a:
            torch.testing.assert_close(a[name], b[name], rtol=2e-3, atol=2e-5, msg=name)
    assert (fused.weights()["w0"] - start).abs().max() > 1e-3


def test_default_delay_of_redq_updates_the_actor_every_twenty_updates() -> None:
    fused, plain = (algorithm_with_data(kernel, 1, "redq", critics=5) for kernel in (True, False))
    before = {name: value.clone() for name, value in fused.weights().items()}
    state = {name: value.clone() for name, value in fused.member(0)[1].items()}
    for algorithm in (fused, plain):
        algorithm.learn(19, 1.0)
        assert all(torch.equal(algorithm.weights()[name], value) for name, value in before.items())
        assert any(not torch.equal(algorithm.member(0)[1][name], value) for name, value in state.items())
        algorithm.learn(1, 1.0)
        assert (algorithm.weights()["w0"] - before["w0"]).abs().max() > 5e-4
    for name, value in plain.member(0)[1].items():
        torch.testing.assert_close(fused.member(0)[1][name], value, rtol=2e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize("algorithm", RECORDS)
def test_member_with_nan_parameters_stops_and_others_continue(algorithm: str) -> None:
    fused, unaffected = algorithm_with_data(True, 3, algorithm), algorithm_with_data(True, 3, algorithm)
    for sac in (fused, unaffected):
        sac.learn(2, 1.0)
    fused.weights()["w0"][1] = torch.nan
    fused.learn(3, 1.0), unaffected.learn(3, 1.0)
    assert fused.alive.tolist() == [True, False, True]
    assert fused.updates == 5
    for p in (0, 2):
        for name, value in unaffected.member(p)[1].items():
            assert torch.equal(fused.member(p)[1][name], value), name


@pytest.mark.slow
def test_results_are_independent_of_the_thread_count() -> None:
    before = torch.get_num_threads()
    try:
        states = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            sac = algorithm_with_data(True, 1, hidden=(256, 256), batch_size=256)
            sac.learn(3, 1.0)
            states.append(sac.member(0)[1])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_unsupported_dtype_and_networks_use_autograd() -> None:
    settings: dict[str, Any] = {"policy": "mlp", "hidden": (8,), "batch_size": 10}
    assert make_algorithm(SACConfig(**settings), FlatEnv(), dtype=torch.float64)._kernel is None  # type: ignore[attr-defined]
    market = random_market(5, bars=60)
    for policy in ("mlp", "equivariant"):
        on_market = small_learner("td3", market=market, policy=policy, dtype=torch.float32)
        assert on_market.algorithm._kernel is None  # type: ignore[attr-defined]


def test_subclass_uses_autograd_unless_it_sets_kernel() -> None:
    class Subclass(TD3):
        pass

    config = TD3Config(policy="mlp", hidden=(8,), batch_size=10)
    population = {"seed": 0, "members": (0,), "hyperparameters": None, "dtype": torch.float32, "start": None}
    original, subclass = (kind(flat_adapter(config), config, "cpu", **population) for kind in (TD3, Subclass))
    assert original._kernel is not None
    assert subclass._kernel is None


@pytest.mark.slow
def test_kernel_does_not_keep_its_algorithm_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        for name in RECORDS:
            algorithm = algorithm_with_data(True, 1, name)
            algorithm.learn(2, 1.0)
            reference = weakref.ref(algorithm)
            del algorithm
            assert reference() is None, name
    finally:
        gc.enable()
