"""What would keep iterations from being captured as a CUDA graph, counted on a simulated device.

For every algorithm: how often the host waits for the device, copies pageable memory to it, or creates state of the
learner late, in an iteration after another. Scoring copies the weights of all pods to the CPU once; what is counted
is what it does with the device for every further bar.

    python -m benchmarks.gpu.captures
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from finrl_pod_envs.trading_envs import make_env

from benchmarks.gpu.simulated_device import NAME, HostLog, host_log, simulated_device
from benchmarks.harness.rows import ROOT
from benchmarks.speed.speed_env import SpeedSettings, make_market
from finrl_pod.data.tensor import to_device
from finrl_pod.errors import RunError
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.algorithm_registry import ALGORITHMS, AlgorithmInfo
from finrl_pod.settings.run import EnvironmentConfig, MandateConfig, RunConfig
from finrl_pod.tournament.scoring import MarketScorer
from finrl_pod.types import MarketTensor

CopyFault = Literal["copy"]
SCORING = "scoring"
MARKET = SpeedSettings(assets=3, features=2, days=40)
ENVIRONMENT = EnvironmentConfig(envs=4, group=2, window=12)
HORIZON = 2
VALIDATION = (20, 24)  # bars that are scored, and four more
MORE_BARS = 4


@dataclass(frozen=True)
class Case:
    """Settings of an algorithm, an environment and a mandate that take a path of their own."""

    name: str
    agent: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)
    mandate: MandateConfig | None = field(default_factory=MandateConfig)


ENCODER: Mapping[str, Any] = {"encoder": "gru", "lookback": 4, "encoder_size": 2}
TURNOVER = MandateConfig(max_turnover=2.0)
CASES = (
    Case("mlp", {"policy": "mlp"}),
    Case("equivariant, turnover budget", {"policy": "equivariant"}, mandate=TURNOVER),
    Case("linear, encoder", {"policy": "linear", **ENCODER}),
)
ON_POLICY = (
    *CASES,
    Case("mlp, gSDE", {"policy": "mlp", "use_sde": True}),
    Case("linear, turnover budget", {"policy": "linear"}, mandate=TURNOVER),
    Case("equivariant, frictions", {"policy": "equivariant"}, {"half_spread_bps": 5.0, "per_share": 0.01}),
    Case("mlp, no mandate", {"policy": "mlp"}, mandate=None),
    Case("mlp, sequential buys", {"policy": "mlp"}, {"kind": "stock_trading", "buy_allocation": "sequential"}, None),
)
DISCRETE = (
    Case("mlp", {"policy": "mlp"}, {"kind": "discrete"}, None),
    Case("mlp, encoder", {"policy": "mlp", **ENCODER}, {"kind": "discrete"}, None),
)
SOLVED = (Case("linear", {}),)


def cases_of(info: AlgorithmInfo) -> tuple[Case, ...]:
    """The cases of an algorithm."""
    if info.kind == "solved":
        return SOLVED
    if info.actions == "discrete":
        return DISCRETE
    return ON_POLICY if info.kind == "on-policy" else CASES


def capture_rows(fault: CopyFault | None = None, names: Sequence[str] = (*ALGORITHMS, SCORING)) -> list[dict[str, Any]]:
    """A row for each algorithm and one for scoring, counted in a process of its own.

    fault: "copy" copies a tensor of the host to the device in every iteration. names: rows to count. Raises RunError if
    the process fails.
    """
    command = [sys.executable, "-m", "benchmarks.gpu.captures", fault or "", *names]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RunError(f"the simulated device failed: {(process.stderr.strip().splitlines() or ['no message'])[-1]}")
    rows: list[dict[str, Any]] = json.loads(process.stdout)
    return rows


def main(fault: str = "", *names: str) -> None:
    """Print rows as JSON, by default all."""
    rows = []
    with simulated_device(has_numbers_of_cpu=False):
        for name in names or (*ALGORITHMS, SCORING):
            if name == SCORING:
                rows.append(_row(name, [scoring_log()]))
            else:
                info = ALGORITHMS[name]
                rows.append(_row(name, [log_of(info, case, fault) for case in cases_of(info)]))
    sys.stdout.write(json.dumps(rows) + "\n")


def log_of(info: AlgorithmInfo, case: Case, fault: str = "") -> HostLog:
    """What the host does in the second iteration of an algorithm."""
    learner = _learner(info, case)
    rate = _rate(learner)
    learner.algorithm.iterate(learner.collector, rate)
    with host_log(learner) as log:
        if fault == "copy":
            torch.zeros(4).to(NAME)
        learner.algorithm.iterate(learner.collector, rate)
    return log


def scoring_log() -> HostLog:
    """What the host does with the device for `MORE_BARS` further bars of a tournament's scoring."""
    learner = _learner(ALGORITHMS["ppo"], CASES[0])
    first, last = VALIDATION
    config = RunConfig(environment=ENVIRONMENT, agent=learner.config, mandate=MandateConfig())
    logs = []
    for bars in (0, MORE_BARS):
        scorer = MarketScorer(make_market(MARKET, "next"), config, (first, last + bars))
        with host_log(learner) as log:
            scorer(learner)
        logs.append(log)
    few, many = logs
    return HostLog(
        many.waits[len(few.waits) :], many.pageable_copies[len(few.pageable_copies) :], few.late_state + many.late_state
    )


def _learner(info: AlgorithmInfo, case: Case) -> Learner:
    market: MarketTensor = to_device(make_market(MARKET, "next"), NAME)
    settings = {name: value for name, value in _SIZES.items() if hasattr(info.config_class, name)}
    agent: AgentConfig = info.config_class(**{**settings, **case.agent, "algorithm": info.name})
    environment = replace(ENVIRONMENT, **case.environment)
    return Learner(make_env(market, environment, members=(0, 1), mandate=case.mandate), agent)


_SIZES: Mapping[str, Any] = {
    "hidden": (4, 4),
    "horizon": HORIZON,
    "epochs": 2,
    "minibatches": 2,
    "learning_starts": 0,
    "buffer_size": 64,
    "batch_size": 8,
    "gradient_steps": 2,
}


def _rate(learner: Learner) -> torch.Tensor:
    """The factor of the learning rate of all pods, on the device."""
    return torch.ones(learner.env.members, device=learner.algorithm.alive.device)


def _row(name: str, logs: list[HostLog]) -> dict[str, Any]:
    operations = sorted({*_all(logs, "waits"), *_all(logs, "pageable_copies"), *_all(logs, "late_state")})
    return {
        "name": name,
        "waits": len(list(_all(logs, "waits"))),
        "pageable_copies": len(list(_all(logs, "pageable_copies"))),
        "late_state": len(list(_all(logs, "late_state"))),
        "cases": len(logs),
        "operations": operations,
    }


def _all(logs: list[HostLog], kind: str) -> Iterator[str]:
    for log in logs:
        yield from getattr(log, kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
