"""Command line of the benchmarks: parse arguments, run a benchmark, print its rows."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

import torch
from finrl_pod_app.setup.doctor import pick_device

from benchmarks.agents.gate_calibration import CALIBRATION_FILE, gate_rows
from benchmarks.gpu.device import device_rows
from benchmarks.gpu.plan import FAULTS, plan_rows
from benchmarks.harness.rows import Row, as_json, as_table, describe, document
from benchmarks.learning.learn import BENCHMARKS, LearnSettings, learn_rows
from benchmarks.many_agents.markets import RESULTS_FILE as MARKET_RESULTS
from benchmarks.many_agents.markets import MarketStudy, market_rows
from benchmarks.speed.analytic import analytic_row
from benchmarks.speed.backtest import BacktestSettings, backtest_rows
from benchmarks.speed.env import env_row
from benchmarks.speed.pipeline import PipelineSettings, pipeline_rows
from benchmarks.speed.ppo import population_rows, ppo_row
from benchmarks.speed.sac import SacSettings, sac_rows
from benchmarks.speed.speed_env import SpeedSettings
from finrl_pod.errors import ConfigError, FinrlPodError
from finrl_pod.files import write_text

SPEED: dict[str, Callable[[SpeedSettings, torch.device], list[Row]]] = {
    "env": lambda settings, device: [env_row(settings, device)],
    "ppo": lambda settings, device: [ppo_row(settings, device)],
    "population": population_rows,
    "analytic": lambda settings, device: [analytic_row(settings, device)],
}
INDEPENDENT: dict[str, tuple[type[Any], Callable[[Any, torch.device], list[Row]]]] = {
    "sac": (SacSettings, sac_rows),
    "pipeline": (PipelineSettings, pipeline_rows),
}
# Defaults without flags. env: the size and flat observations that other libraries report.
DEFAULTS = {
    "env": SpeedSettings(envs=8192, observation="flat"),
    "ppo": SpeedSettings(),
    "population": SpeedSettings(policy="equivariant", members=32),
    "analytic": SpeedSettings(
        envs=4096, group=64, assets=20, features=2, horizon=8, hidden=(32, 32), policy="equivariant", kind="portfolio"
    ),
}
# Flags that do not apply to a benchmark.
PRECISION = ("matmul_precision", "activation_dtype")
UNUSED_FLAGS: dict[str, tuple[str, ...]] = {
    "env": PRECISION,
    "analytic": ("minibatch", "epochs", "kind", "order", "observation", *PRECISION),
}
# Studies and measurements with options of their own.
SCRIPTS: Mapping[str, tuple[str, str]] = {
    "agents": ("benchmarks.agents.study", "agents beside their base: what they add, and how often the gate errs"),
    "cluster": ("benchmarks.cluster.engine", "the engine of a tournament: leaderboard, snapshots, Ray, recovery"),
    "cluster-simulation": ("benchmarks.cluster.simulation", "a tournament on 1 to 1,000 shards, simulated"),
    "cold": ("benchmarks.speed.cold", "start-up time and peak memory of commands"),
    "compare": ("benchmarks.speed.compare", "PPO and environments beside JAX and Stable-Baselines3"),
    "dashboard": ("benchmarks.dashboard.pages", "speed and memory of the dashboard with 200 runs"),
    "dashboard-load": ("benchmarks.dashboard.load", "many sessions on the dashboard at once"),
    "dashboard-overview": ("benchmarks.dashboard.overview", "the overview with hundreds of runs"),
    "encoders": ("benchmarks.speed.encoders", "processor time of look-back encoders"),
    "growth": ("benchmarks.speed.growth", "rates by assets, features, days, environments and members"),
    "h-term": ("benchmarks.studies.h_term", "PPO with and without the H-term"),
    "installation": ("benchmarks.speed.installation", "sizes and import times of an installation"),
    "markets-picture": ("benchmarks.many_agents.picture", "picture of the recorded results of markets"),
    "pools": ("benchmarks.speed.pools", "worker pools beside AsyncVectorEnv and EnvPool"),
    "precision": ("benchmarks.learning.precision", "learning in bfloat16 and in float32"),
    "sb3": ("benchmarks.studies.sb3_study", "algorithms beside those of Stable-Baselines3"),
    "scale": ("benchmarks.speed.scale", "time and memory of whole tournaments by size"),
    "stability": ("benchmarks.studies.stability", "spread over seeds"),
    "windows": ("benchmarks.learning.windows", "learning with shared and with separate windows"),
}
COMMANDS = ("backtest", *SPEED, "sac", "pipeline", "learn", "gate", "markets", "gpu", *SCRIPTS)


def main(argv: Sequence[str]) -> int:
    """Run a benchmark (see --help) and return the exit code: 0, or 2 with a message on standard error.

    With --json, standard output is exactly one object: {"rows": [...], "machine": {...}}.
    """
    if argv and argv[0] in SCRIPTS:
        sys.argv = [f"python -m benchmarks {argv[0]}", *argv[1:]]
        return int(importlib.import_module(SCRIPTS[argv[0]][0]).main() or 0)
    try:
        options = _parser().parse_args(list(argv))
        if options.out is not None:
            _check_writable(options.out)
        _set_threads(options.threads)
        # Gymnasium environments run on the CPU; so does their learner unless another device is requested.
        device = pick_device("cpu" if (options.what, options.device) == ("pipeline", "auto") else options.device)
        about = describe(device)
        rows = _measure(options, device)
        result = as_json(document(rows, about))
        if options.out is not None:
            write_text(options.out, result)
    except SystemExit as leaving:  # --help
        return int(leaving.code or 0)
    except FinrlPodError as error:
        sys.stderr.write(f"bench: {error}\n")
        return error.exit_code
    sys.stdout.write(result if options.json else as_table(rows))
    sys.stdout.flush()
    return 0


def _measure(options: argparse.Namespace, device: torch.device) -> list[Row]:
    if options.what == "learn":
        return learn_rows(LearnSettings(device, options.seeds, options.samples), options.only)
    if options.what in INDEPENDENT:
        record, rows_of = INDEPENDENT[options.what]
        return rows_of(record(**{field.name: getattr(options, field.name) for field in fields(record)}), device)
    if options.what == "backtest":
        flags = (field.name for field in fields(BacktestSettings))
        return backtest_rows(BacktestSettings(**{name: getattr(options, name) for name in flags}))
    if options.what == "gpu":
        return (
            plan_rows(options.plant)
            if options.plan
            else device_rows(device, options.minutes, options.out, quiet=options.json)
        )
    if options.what == "markets":
        return market_rows(MarketStudy(options.run, options.only, options.results))
    if options.what == "gate":
        return gate_rows(options.calibration, calibrated=not options.calibrate)
    defaults = DEFAULTS[options.what].to_dict()
    settings = SpeedSettings(**{name: getattr(options, name, value) for name, value in defaults.items()})
    return SPEED[options.what](settings, device)


class _Parser(argparse.ArgumentParser):
    """Raises ConfigError for invalid arguments, so that they end with a message and exit code 2."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="what", required=True, metavar="|".join(COMMANDS))
    for name, summary in (
        ("env", "steps/s of an environment"),
        ("ppo", "samples/s of PPO, end to end"),
        ("population", "samples/s of many members relative to one, with the same total of samples"),
        ("analytic", "samples/s of the analytic policy gradient, end to end"),
    ):
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        _add_speed(command, DEFAULTS[name], UNUSED_FLAGS.get(name, ()))
        _add_common(command)
    backtest = commands.add_parser("backtest", help="backtests/s of many variations", allow_abbrev=False)
    for field in fields(BacktestSettings):
        kind = str if field.name == "peer" else int
        backtest.add_argument(f"--{field.name}", type=kind, default=field.default, help="default %(default)s")
    _add_common(backtest)
    for name, summary in (
        ("sac", "updates/s of soft actor-critic, compared with Stable-Baselines3"),
        ("pipeline", "samples/s and updates/s of collecting and learning concurrently, compared with alternately"),
    ):
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        for field in fields(INDEPENDENT[name][0]):
            command.add_argument(
                f"--{field.name}", type=type(field.default), default=field.default, help="default %(default)s"
            )
        _add_common(command)
    learn = commands.add_parser("learn", help="learning on markets with a known optimum", allow_abbrev=False)
    learn.add_argument("--only", action="append", default=[], choices=list(BENCHMARKS), help="may be given repeatedly")
    learn.add_argument("--seeds", type=int, help="number of seeds of every benchmark")
    learn.add_argument("--samples", type=int, help="training samples of every agent")
    _add_common(learn)
    gate = commands.add_parser(
        "gate", help="error rates of the gate's test for an edge, from stored results", allow_abbrev=False
    )
    gate.add_argument("--calibrate", action="store_true", help="simulate streams of returns again (minutes)")
    gate.add_argument("--calibration", type=Path, default=CALIBRATION_FILE, help="its file, default %(default)s")
    _add_common(gate)
    markets = commands.add_parser(
        "markets", help="agents in one market against its exact optimum, from stored results", allow_abbrev=False
    )
    markets.add_argument(
        "--run", action="store_true", help="run the trainings whose results are not stored yet (minutes each)"
    )
    markets.add_argument("--only", action="append", default=[], help="start of their names; may be given repeatedly")
    _add_results(markets, MARKET_RESULTS)
    _add_common(markets)
    for name, (_, summary) in SCRIPTS.items():
        commands.add_parser(name, help=summary)
    gpu = commands.add_parser("gpu", help="what a GPU would do in an iteration, counted on the CPU", allow_abbrev=False)
    gpu.add_argument("--plan", action="store_true", help="count launches, bytes and what prevents CUDA graphs")
    gpu.add_argument("--minutes", type=float, default=8, help="time for measuring on the device, default %(default)s")
    gpu.add_argument("--plant", choices=FAULTS, help="plant a fault that the plan must find")
    _add_common(gpu)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, default=0, help="CPU threads; 0: torch's default")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--out", type=Path, help="write the JSON to this file")


def _add_results(parser: argparse.ArgumentParser, default: Path) -> None:
    parser.add_argument(
        "--results", type=Path, default=default, metavar="FILE", help="JSONL file of results, default %(default)s"
    )


def _add_speed(parser: argparse.ArgumentParser, defaults: SpeedSettings, without: Sequence[str]) -> None:
    for name in ("envs", "assets", "features", "days", "horizon", "minibatch", "epochs", "group", "members", "runs"):
        if name in without:
            continue
        parser.add_argument(f"--{name}", type=int, default=getattr(defaults, name), help="default %(default)s")
    parser.add_argument("--hidden", type=_widths, default=defaults.hidden, metavar="64,64")
    for name, choices in (
        ("policy", ("mlp", "equivariant")),
        ("kind", ("stock_trading", "portfolio")),
        ("mandate", ("none", "equal_weight")),
        ("order", ("proportional", "sequential")),
        ("observation", ("flat", "table")),
        ("matmul_precision", ("float32", "tf32")),
        ("activation_dtype", ("float32", "bfloat16")),
    ):
        if name in without:
            continue
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, choices=choices, default=getattr(defaults, name), help="default %(default)s")


def _widths(text: str) -> tuple[int, ...]:
    """64,64 -> (64, 64)."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"widths must be numbers such as 64,64, got {text!r}") from None


def _set_threads(threads: int) -> None:
    if threads < 0:
        raise ConfigError(f"--threads must be 0 or more, got {threads}")
    if threads:
        torch.set_num_threads(threads)


def _check_writable(path: Path) -> None:
    """Raise ConfigError if the file cannot be written, before anything is measured."""
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"cannot write --out {path}: {error.strerror}; name another file") from None
    os.close(handle)
    Path(name).unlink()
