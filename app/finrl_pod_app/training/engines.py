"""Engines of a tournament: this process, processes of this machine, or a Ray cluster."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from finrl_pod.data.splits import make_splits
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.settings.run import RunConfig
from finrl_pod.tournament.cohort import CohortTrainer
from finrl_pod.tournament.event_log import LoggedRun, read_run
from finrl_pod.tournament.executor import Executor, LocalExecutor, ReplayExecutor
from finrl_pod.tournament.executors.processes import ProcessExecutor
from finrl_pod.tournament.executors.ray_connection import (
    ONE_NODE,
    check_listening,
    connect,
    disconnect,
    import_ray,
)
from finrl_pod.tournament.executors.ray_shards import RayExecutor
from finrl_pod.types import Panel, Tensor
from finrl_pod.user_files import keep, keep_neighbours, kept_files, kept_neighbours
from finrl_pod_app.prices.market_setup import make_market, make_trainer
from finrl_pod_app.setup.doctor import pick_device


@dataclass(frozen=True)
class EngineOptions:
    """Options of an engine: where pods train.

    shards: processes or Ray actors that train at the same time; None: one per device, or as many as a cluster has room
    for. address: HOST:PORT of a running Ray cluster, None to start one here. cpus, gpus: resources of each Ray shard;
    default: 1 and 0. timeout: seconds without an iteration after which a shard is replaced. replay: event log of a run
    to repeat.
    """

    name: Literal["local", "processes", "ray"] = "local"
    shards: int | None = None
    address: str | None = None
    cpus: float | None = None
    gpus: float | None = None
    timeout: float = 600.0
    replay: Path | None = None

    def check(self) -> None:
        """Raise ConfigError for options that do not fit together, SetupError for an engine that cannot be used here."""
        if self.name == "local" and self.shards not in (None, 1):
            raise ConfigError(f"--engine local trains in one process, got --shards {self.shards}; use processes or ray")
        if self.name != "ray" and self.address is not None:
            raise ConfigError(f"--address is of a Ray cluster, got --engine {self.name}; add --engine ray")
        if self.name != "ray" and not (self.cpus is self.gpus is None):
            raise ConfigError(f"--shard-cpus and --shard-gpus are for --engine ray, got --engine {self.name}")
        if self.name != "local" and self.replay is not None:
            raise ConfigError(f"--replay trains in one process, got --engine {self.name}; use --engine local")
        if self.name == "ray":
            if self.address is not None:
                check_listening(self.address)
            import_ray(ONE_NODE if self.address is None else None)


LOCAL = EngineOptions()


@contextmanager
def joined_cluster(options: EngineOptions) -> Iterator[None]:
    """Join or start the Ray cluster of an engine, for `open_executor`; leave it with the context.

    Raises SetupError if Ray does not start. Does nothing for other engines.
    """
    if options.name != "ray":
        yield
        return
    ray = connect(options.address)
    try:
        yield
    finally:
        disconnect(ray)


@contextmanager
def open_executor(
    options: EngineOptions,
    config: RunConfig,
    panel: Panel,
    make_local: Callable[[], CohortTrainer],
    device: torch.device,
    start: Tensor | None = None,
) -> Iterator[Executor]:
    """Return the executor of an engine; its shards end with the context.

    make_local: the trainer of this process, on the device. start: solved weights for shards elsewhere. Raises
    InputError and SetupError for an engine that cannot be used.
    """
    executor: Executor
    values = dataclasses.asdict(config)
    own_files = kept_files(values)
    neighbours = kept_neighbours(values)
    if options.replay is not None:
        executor = ReplayExecutor(make_local(), logged_run(options.replay, config))
    elif options.name == "local":
        executor = LocalExecutor(make_local())
    elif options.name == "processes":
        shards = options.shards
        if shards is None:
            shards = torch.cuda.device_count() if device.type == "cuda" else 1
        threads = config.threads or max(1, (os.cpu_count() or 1) // shards)
        trainer = partial(shard_trainer, config, panel, own_files, neighbours, device.type, threads, start)
        executor = ProcessExecutor(trainer, shards, timeout=options.timeout)
    else:
        threads = config.threads or max(1, int(options.cpus or 0))
        shard_device = "cuda" if (options.gpus or 0) > 0 else "cpu"
        executor = RayExecutor(
            partial(shard_trainer, config, panel, own_files, neighbours, shard_device, threads, start),
            shards=options.shards,
            address=options.address,
            cpus=1.0 if options.cpus is None else options.cpus,
            gpus=options.gpus or 0.0,
            timeout=options.timeout,
        )
    try:
        yield executor
    finally:
        executor.close()


def logged_run(log: Path, config: RunConfig) -> LoggedRun:
    """Order of results in an event log. Raises RunError if it was made with another config."""
    run_log = read_run(log)
    if run_log.config_sha256 != config.sha256:
        raise RunError(f"{log} was made with another config or seed; repeat it with its own")
    return run_log


def shard_trainer(
    config: RunConfig,
    panel: Panel,
    own_files: Mapping[str, str],
    neighbours: Mapping[str, str],
    device: str,
    threads: int,
    start: Tensor | None,
    number: int,
) -> CohortTrainer:
    """Trainer of a shard in a separate process. device: "cpu", or "cuda" for one of several GPUs per shard.

    own_files, neighbours: texts of the user files in the config, and of the files that they import. start: see
    `make_trainer`.
    """
    keep(own_files)
    keep_neighbours(neighbours)
    splits = make_splits(panel.times, config.splits)
    if device == "cuda":
        torch_device = torch.device("cuda", number % max(torch.cuda.device_count(), 1))
    else:
        torch_device = pick_device(device)
    if threads:
        torch.set_num_threads(threads)
    market = make_market(panel, config, splits)
    return make_trainer(config, panel, market, splits, torch_device, threads, start)
