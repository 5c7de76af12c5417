"""What a worker records, and the values that a learner gives it: each step's against a loop over single accounts."""

from __future__ import annotations

import pytest
import torch
from finrl_pod_envs.market_env import MarketEnv

from finrl_pod.rl.buffers.rollout import Rollout
from finrl_pod.rl.networks.distributions import log_probability
from finrl_pod.rl.training.learner import Learner
from finrl_pod.rl.training.worker import Worker
from finrl_pod.types import EnvStep, Observation
from tests.markets import random_market
from tests.rl.learners import easily_ruined, small_env, small_learner

MEMBERS = (0, 4)
H = 8  # as long as a window: every group ends within each rollout


class Recorder:
    """Records the actions and outcomes of an environment's steps."""

    def __init__(self, env: MarketEnv, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[tuple[torch.Tensor, EnvStep]] = []
        step = env.step

        def recorded(action: torch.Tensor) -> EnvStep:
            outcome = step(action)
            self.log.append((action, outcome))
            return outcome

        monkeypatch.setattr(env, "step", recorded)
        monkeypatch.setattr(env, "reuse_buffers", lambda enabled: None)


def collected(policy: str, rollouts: int = 3) -> list[tuple[Learner, Recorder, Rollout]]:
    """Rollouts one after the other, of accounts that fees ruin within a few days and windows that end."""
    market = random_market(2, gaps=0.1, starts={1: 12}, ends={2: 25})
    env = small_env(MEMBERS, market, cost_bps=4000.0)
    learner = small_learner(MEMBERS, env=env, policy=policy, horizon=H)
    worker, parts = Worker(env, 0), []
    for _ in range(rollouts):
        with easily_ruined(0.65), pytest.MonkeyPatch.context() as patch:
            recorder = Recorder(env, patch)
            rollout = worker.collect(
                learner.algorithm.explore, learner.algorithm.noise((env.groups, env.accounts, env.action_size))
            )
        parts.append((learner, recorder, rollout))
    return parts


@pytest.fixture(scope="module", params=["equivariant", "mlp"])
def parts(request: pytest.FixtureRequest) -> list[tuple[Learner, Recorder, Rollout]]:
    return collected(request.param)


def test_the_rollouts_hold_every_kind_of_end(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    for _, _, rollout in parts:
        assert rollout.over.sum(0).max() == 1, "a group ends at most once a rollout"
        assert rollout.over[:-1].any(), "a group that ends before the last step"
        assert rollout.terminated.any()
        assert not (rollout.terminated & rollout.truncated).any()
    assert any(rollout.over[-1].any() for _, _, rollout in parts) or any(r.over[0].any() for _, _, r in parts)
    mixed = [(r.terminated.any(-1) & r.truncated.any(-1)).any() for _, _, r in parts]
    assert any(mixed), "an account ruined at the very step at which its group's window is over"


def test_a_rollout_matches_the_environment(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    last: Observation | None = None
    for _, recorder, rollout in parts:
        shape = rollout.reward.shape[1:]
        for h, (action, outcome) in enumerate(recorder.log):
            assert torch.equal(rollout.action[h].reshape(action.shape), action)
            for name in ("reward", "terminated", "truncated"):
                assert torch.equal(getattr(rollout, name)[h], getattr(outcome, name).view(shape)), name
            assert torch.equal(rollout.over[h], outcome.truncated.view(shape).any(-1))
            if h + 1 < len(recorder.log):
                assert torch.equal(rollout.day[h + 1], outcome.observation.day)
                assert torch.equal(rollout.account[h + 1], outcome.observation.account.view(*shape, -1))
        if last is not None:
            assert torch.equal(rollout.day[0], last.day)
            assert torch.equal(rollout.account[0], last.account.view(*shape, -1))
        last = rollout.last
        assert torch.equal(last.day, recorder.log[-1][1].observation.day)
        assert torch.equal(last.account, recorder.log[-1][1].observation.account)


def test_actions_are_the_policys_mean_and_its_own_noise(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    learner, _, rollout = parts[-1]
    for h in range(H):
        with torch.no_grad():
            mean, log_std = learner.algorithm.act(rollout.day[h], rollout.account[h])
        torch.testing.assert_close(rollout.log_probability[h], log_probability(rollout.action[h], mean, log_std))
    noise = rollout.action[0] - mean
    assert noise.std() > 0.5


def slow_value(learner: Learner, p: int, day: torch.Tensor, account: torch.Tensor) -> float:
    """One account of one member: day a number, account [1 + N]."""
    ppo = learner.algorithm
    own = {name: view.detach()[p : p + 1] for name, view in ppo.parameters.views.items()}
    features, tradable = ppo.rows(day.view(1, 1))
    return float(ppo.policy.value(own, features, account.view(1, 1, 1, -1), tradable))


def test_each_step_is_valued_at_the_state_it_led_to(parts: list[tuple[Learner, Recorder, Rollout]]) -> None:
    """Before any reset: also where a window was over in the middle of the rollout."""
    for learner, recorder, rollout in parts:
        values, following = learner.algorithm._values(rollout)
        ended = 0
        for h, (_, outcome) in enumerate(recorder.log):
            final = outcome.final_observation
            _, members, groups, accounts = rollout.reward.shape
            finals = final.account.view(members, groups, accounts, -1)
            for p in range(members):
                for g in range(groups):
                    for a in range(accounts):
                        now = slow_value(learner, p, rollout.day[h, p, g], rollout.account[h, p, g, a])
                        assert float(values[h, p, g, a]) == pytest.approx(now, rel=1e-12)
                        if rollout.terminated[h, p, g, a]:
                            continue  # what a ruined account led to is worth nothing, whatever stands there
                        after = slow_value(learner, p, final.day[p, g], finals[p, g, a])
                        assert float(following[h, p, g, a]) == pytest.approx(after, rel=1e-12)
                        ended += bool(rollout.truncated[h, p, g, a])
        assert ended > 0
