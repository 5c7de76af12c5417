"""Benchmarks and studies: parse arguments, measure, print the rows."""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from finrl_pod_app.setup.doctor import pick_device

from benchmarks.harness.options import Parser, add_flags, settings_of
from benchmarks.harness.rows import Row, Section, as_json, as_table, describe, document
from finrl_pod.errors import ConfigError, FinrlPodError
from finrl_pod.files import write_text


class Benchmark(NamedTuple):
    """Where a benchmark is and how it runs.

    function: module and function below `benchmarks`. Its first parameter is a record of settings with their flags
    without `unused_flags`; the second is the device. threads: default of --threads; 0 for the default of torch.
    """

    function: str
    summary: str
    unused_flags: tuple[str, ...] = ()
    device: Literal["auto", "cpu"] = "cpu"
    threads: int = 0


Measure = Callable[..., Iterable[Row | Section]]
PRECISION = ("matmul_precision", "activation_dtype")
BENCHMARKS: Mapping[str, Benchmark] = {
    "env": Benchmark("speed.market_rates:env_rows", "steps/s of an environment", PRECISION, "auto"),
    "ppo": Benchmark("speed.market_rates:ppo_rows", "samples/s of PPO, end to end", device="auto"),
    "population": Benchmark("speed.market_rates:population_rows", "samples/s of many members over one", device="auto"),
    "sac": Benchmark("speed.sac:sac_rows", "updates/s of soft actor-critic and of Stable-Baselines3", device="auto"),
    "backtest": Benchmark("speed.backtest:backtest_rows", "backtests/s of many variations, and of vectorbt and bt"),
    "scoring": Benchmark("speed.scoring:scoring_rows", "CPU-milliseconds of a bar of validation scores"),
    "scale": Benchmark("speed.scale:scale_rows", "time and memory of whole tournaments by size"),
    "gpu": Benchmark("gpu.device:gpu_rows", "speed of a device, or a plan counted on the CPU", device="auto"),
    "learn": Benchmark("learning.learn:learn_rows", "learning on markets with a known optimum", device="auto"),
    "look-ahead": Benchmark("look_ahead:look_ahead_rows", "look-ahead that the audit misses, and false accusations"),
    "agents": Benchmark("agents.study:study_rows", "agents relative to their base, and errors of the gate", threads=1),
    "h-term": Benchmark("studies.h_term:h_term_rows", "PPO with and without the H-term"),
    "sb3": Benchmark("studies.sb3_study:sb3_rows", "algorithms against Stable-Baselines3", threads=1),
    "rllib": Benchmark("studies.rllib_study:rllib_rows", "PPO against RLlib", threads=1),
    "demos": Benchmark("studies.demos:demo_rows", "the commands of docs/demos.md"),
    "cluster": Benchmark("cluster:cluster_rows", "leaderboard, snapshots, Ray and schedulers of a tournament"),
}


def main(argv: Sequence[str]) -> int:
    """Run a benchmark (see --help) and return the exit code.

    2 with a message on standard error. With --json, standard output is exactly one object: {"rows": [...], "machine":
    {...}}, and the further sections of the benchmark.
    """
    try:
        name = argv[0] if argv and argv[0] in BENCHMARKS else None
        measure = None if name is None else _load(BENCHMARKS[name])
        options = _parser(name, measure).parse_args(list(argv))
        if options.out is not None:
            _check_writable(options.out)
        if options.threads < 0:
            raise ConfigError(f"--threads must be 0 or more, got {options.threads}")
        if options.threads:
            torch.set_num_threads(options.threads)
        assert measure is not None
        device = pick_device(options.device)
        machine = describe(device)
        rows: list[Row] = []
        sections: list[Section] = []
        arguments = (settings_of(_defaults(measure), options), device)
        for result in measure(*arguments[: len(inspect.signature(measure).parameters)]):
            if isinstance(result, Section):
                sections.append(result)
            else:
                rows.append(result)
            if options.out is not None:
                write_text(options.out, as_json(document(rows, machine, sections)))
        text = as_json(document(rows, machine, sections)) if options.json else as_table(rows)
    except SystemExit as leaving:  # --help
        return int(leaving.code or 0)
    except FinrlPodError as error:
        sys.stderr.write(f"benchmarks: {error}\n")
        return error.exit_code
    sys.stdout.write(text)
    sys.stdout.flush()
    return 0


def _load(benchmark: Benchmark) -> Measure:
    module, function = benchmark.function.split(":")
    measure: Measure = getattr(importlib.import_module(f"benchmarks.{module}"), function)
    return measure


def _defaults(measure: Measure) -> Any:
    """Default settings: the default of the first parameter, or a new record of its type."""
    parameter = next(iter(inspect.signature(measure).parameters.values()))
    return get_type_hints(measure)[parameter.name]() if parameter.default is parameter.empty else parameter.default


def _parser(selected_name: str | None, measure: Measure | None) -> argparse.ArgumentParser:
    """Parser of all names, with the flags of the selected benchmark."""
    parser = Parser(prog="python -m benchmarks", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, benchmark in BENCHMARKS.items():
        command = commands.add_parser(name, help=benchmark.summary, allow_abbrev=False)
        if name != selected_name or measure is None:
            continue
        command.description = sys.modules[measure.__module__].__doc__
        command.formatter_class = argparse.RawDescriptionHelpFormatter
        add_flags(command, _defaults(measure), benchmark.unused_flags)
        command.add_argument("--threads", type=int, default=benchmark.threads, help="CPU threads; 0: default of torch")
        command.add_argument("--device", choices=("auto", "cpu", "cuda"), default=benchmark.device)
        command.add_argument("--json", action="store_true", help="print one JSON object")
        command.add_argument("--out", type=Path, help="write the JSON to this file")
    return parser


def _check_writable(path: Path) -> None:
    """Raise ConfigError if the file cannot be written, before anything is measured."""
    if path.is_dir():
        raise ConfigError(f"--out {path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(f"cannot write --out {path}: {error.strerror}; name another file") from None
