"""Rollouts against the recorded environment steps, and their values against a loop over single accounts."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv

from finrl_pod.rl.experience import Rollout, RolloutCollector
from finrl_pod.rl.networks.distributions import GAUSSIAN
from finrl_pod.rl.training.learner import Learner
from finrl_pod.types import EnvStep, Observation
from tests.markets import random_market
from tests.rl.small_learners import ruin_threshold, small_env, small_learner

MEMBERS = (0, 4)
H = 8  # equals the window, so that every group ends once per rollout


class Recorder:
    """Records the actions and results of an environment's steps."""

    def __init__(self, env: MarketEnv, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[torch.Tensor, EnvStep]] = []
        step = env.step

        def recording_step(action: torch.Tensor) -> EnvStep:
            outcome = step(action)
            self.log.append((action, outcome))
            return outcome

        monkeypatch.setattr(env, "step", recording_step)
        monkeypatch.setattr(env, "reuse_buffers", lambda enabled: None)


def collect_rollouts(policy: str, rollouts: int = 3) -> list[tuple[Learner, Recorder, Rollout]]:
    """Consecutive rollouts with terminations (high costs) and truncations."""
    market = random_market(2, gaps=0.1, starts={1: 12}, ends={2: 25})
    env = small_env(MEMBERS, market, cost_bps=4000.0)
    learner = small_learner(MEMBERS, env=env, policy=policy, horizon=H)
    collector, parts = RolloutCollector(env, 0), []
    for _ in range(rollouts):
        with ruin_threshold(0.65), pytest.MonkeyPatch.context() as patch:
            recorder = Recorder(env, patch)
            rollout = collector.collect(
                learner.algorithm.explore, learner.algorithm.noise((env.groups, env.accounts, env.action_size))
            )
        parts.append((learner, recorder, rollout))
    return parts


@pytest.fixture(scope="module", params=["equivariant", "mlp"])
def parts(request: pytest.FixtureRequest) -> list[tuple[Learner, Recorder, Rollout]]:
    return collect_rollouts(request.param)


def test_rollouts_contain_every_kind_of_episode_end(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    for _, _, rollout in parts:
        assert rollout.truncated_groups.sum(0).max() == 1, "a group ends at most once per rollout"
        assert rollout.truncated_groups[:-1].any(), "some group must end before the last step"
        assert rollout.terminated.any()
        assert not (rollout.terminated & rollout.truncated).any()
    assert any(rollout.truncated_groups[-1].any() for _, _, rollout in parts) or any(
        r.truncated_groups[0].any() for _, _, r in parts
    )
    both_ends = [(r.terminated.any(-1) & r.truncated.any(-1)).any() for _, _, r in parts]
    assert any(both_ends), "some account must terminate at the step that truncates its group"


def test_rollout_matches_the_environment_steps(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    last: Observation | None = None
    for _, recorder, rollout in parts:
        shape = rollout.reward.shape[1:]
        for h, (action, outcome) in enumerate(recorder.log):
            assert torch.equal(rollout.action[h].reshape(action.shape), action)
            for name in ("reward", "terminated", "truncated"):
                assert torch.equal(getattr(rollout, name)[h], getattr(outcome, name).view(shape)), name
            assert torch.equal(rollout.truncated_groups[h], outcome.truncated.view(shape).any(-1))
            if h + 1 < len(recorder.log):
                assert torch.equal(rollout.bar[h + 1], outcome.observation.bar)
                assert torch.equal(rollout.account[h + 1], outcome.observation.account.view(*shape, -1))
        if last is not None:
            assert torch.equal(rollout.bar[0], last.bar)
            assert torch.equal(rollout.account[0], last.account.view(*shape, -1))
        last = rollout.last
        assert torch.equal(last.bar, recorder.log[-1][1].observation.bar)
        assert torch.equal(last.account, recorder.log[-1][1].observation.account)


def test_actions_are_samples_of_the_policy(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    learner, _, rollout = parts[-1]
    for h in range(H):
        with torch.no_grad():
            mean, log_std = learner.algorithm.act(rollout.bar[h], rollout.account[h])
        valid = learner.algorithm.valid_scores(rollout.bar[h])
        density = GAUSSIAN.log_probability(rollout.action[h], mean, log_std, valid)
        torch.testing.assert_close(rollout.log_probability[h], density)
    noise = rollout.action[0] - mean
    assert noise.std() > 0.5


def single_value(learner: Learner, p: int, bar: torch.Tensor, account: torch.Tensor) -> float:
    """Value of one account of one member. bar: scalar, account: [1 + N]."""
    ppo = learner.algorithm
    member_params = {name: view.detach()[p : p + 1] for name, view in ppo.parameters.views.items()}
    features, tradable = ppo.inputs.of_actor({}, bar.view(1, 1))
    return float(ppo.policy.value(member_params, features, account.view(1, 1, 1, -1), tradable))


def test_next_values_are_those_of_the_states_before_reset(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    """Also where a window ends in the middle of the rollout."""
    for learner, recorder, rollout in parts:
        values, next_values = learner.algorithm._values(rollout)
        ended = 0
        for h, (_, outcome) in enumerate(recorder.log):
            final = outcome.final_observation
            _, members, groups, accounts = rollout.reward.shape
            finals = final.account.view(members, groups, accounts, -1)
            for p in range(members):
                for g in range(groups):
                    for a in range(accounts):
                        now = single_value(learner, p, rollout.bar[h, p, g], rollout.account[h, p, g, a])
                        assert float(values[h, p, g, a]) == pytest.approx(now, rel=1e-12)
                        if rollout.terminated[h, p, g, a]:
                            continue  # the next value of a terminated account is unused
                        after = single_value(learner, p, final.bar[p, g], finals[p, g, a])
                        assert float(next_values[h, p, g, a]) == pytest.approx(after, rel=1e-12)
                        ended += bool(rollout.truncated[h, p, g, a])
        assert ended > 0
