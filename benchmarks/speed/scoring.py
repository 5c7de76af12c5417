"""Benchmark of validation scores: accounts of a few pods, bar by bar in Python and through the compiled step.

`python` is `run_members`, the definition; `compiled` is `simulate_members`. Processor time is measured, so that other
work on the machine counts little. `max_difference` is the largest relative difference of equity, with weights in
float64.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from finrl_pod_envs.member_accounts import simulate_members

from benchmarks.harness.options import check_minimum
from benchmarks.harness.rows import Row, log_progress, median_row
from benchmarks.speed.speed_env import COST_BPS, SpeedSettings, make_market
from finrl_pod.native.device import one_thread
from finrl_pod.rl.acting import MeanActor, SimulateMembers, run_members
from finrl_pod.rl.networks.layers import Params
from finrl_pod.rl.networks.policies import PolicySpec
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig

POLICIES = ("linear", "mlp", "equivariant")
WEIGHT_SCALE = 0.2  # of normal random weights: scores of order 1


@dataclass(frozen=True)
class ScoringSettings:
    """Settings of `scoring`.

    assets: sizes of the market. pods: accounts that are scored at once. bars: bars of a run.
    """

    assets: tuple[int, ...] = (20, 100)
    pods: int = 8
    bars: int = 500
    features: int = 10
    hidden: tuple[int, ...] = (64, 64)
    runs: int = 3


@one_thread()
def scoring_rows(settings: ScoringSettings = ScoringSettings()) -> list[Row]:
    """Measure the CPU-milliseconds of a bar by both paths, for every policy and number of assets."""
    check_minimum(settings, pods=1, bars=3, runs=1)
    return [row for policy in POLICIES for assets in settings.assets for row in _policy_rows(settings, policy, assets)]


def _policy_rows(settings: ScoringSettings, policy: str, assets: int) -> list[Row]:
    size = SpeedSettings(assets=assets, days=settings.bars + 2, features=settings.features)
    market = make_market(size, "next")
    spec = PolicySpec(policy, assets, market.shape[2], assets, settings.hidden, action="tilt")
    actor = MeanActor(spec)
    params = _random_weights(actor, settings.pods)
    double_params = {name: x.double() for name, x in params.items()}
    config = EnvironmentConfig(cost_bps=COST_BPS)
    mandate = MandateConfig()

    def equity(simulate: SimulateMembers, weights: Params) -> torch.Tensor:
        return simulate(actor, weights, market, config, 0, settings.bars, mandate).equity

    expected = equity(run_members, double_params)
    difference = float((equity(simulate_members, double_params) / expected - 1).abs().max())
    facts = {"policy": policy, "assets": assets, "pods": settings.pods, "bars": settings.bars}
    rows = []
    for name, simulate in (("python", run_members), ("compiled", simulate_members)):
        values = []
        for _ in range(settings.runs):
            start = time.process_time()
            equity(simulate, params)
            values.append(1e3 * (time.process_time() - start) / settings.bars)
        log_progress(f"{name}, {policy}, {assets} assets: {min(values):.3f} CPU-ms a bar")
        details = {**facts, "max_difference": difference} if name == "compiled" else facts
        rows.append(median_row(f"scoring {name}", values, "CPU-ms a bar", details))
    return rows


def _random_weights(actor: MeanActor, pods: int) -> Params:
    generator = torch.Generator().manual_seed(0)
    shapes = actor.policy.init(generator, torch.float32)
    return {
        name: WEIGHT_SCALE * torch.randn(pods, *weight.shape, generator=generator) for name, weight in shapes.items()
    }
