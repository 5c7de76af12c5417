"""Compiles the Triton kernels that benchmark and presets launch, without a device.

    python -m benchmarks.gpu.ahead_of_time --out benchmarks/ahead_of_time.json
    python -m benchmarks.gpu.ahead_of_time --arch 80 90 100

The launches are planned with the settings of the benchmark on tensors without data; Triton compiles the same for other
numbers of accounts, steps and days. Each distinct signature is compiled for every architecture, and the assembler says
how many registers, spilled bytes and bytes of shared memory it takes.
Default variants must not spill: the exit code is 1 if one does.
"""

from __future__ import annotations

import argparse
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from finrl_pod_app.setup.presets import PRESETS
from finrl_pod_envs.trading_envs import make_env
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.gpu.plan import MINIBATCHES, POLICIES, PolicyName, plan_iteration, without_data
from benchmarks.harness.rows import as_json, log_progress
from benchmarks.speed.speed_env import SpeedSettings, make_market
from finrl_pod.files import write_text
from finrl_pod.native.device import as_on_device
from finrl_pod.native.kernel_launch import Constant, Launch, planned_launches
from finrl_pod.rl.training.learner import Learner
from finrl_pod.settings.algorithm_configs import AgentConfig
from finrl_pod.settings.run import RunConfig

ARCHITECTURES = (90,)  # compute capability 9.0 is an H100
HORIZON = 4
ACCOUNTS = 2**14  # the market table is encoded
FEW_ACCOUNTS = 2**10  # their items are encoded
MEMBERS = 16
SHORT_ITERATION: Mapping[str, str | int] = {"start": "new", "horizon": HORIZON, "epochs": 1}
Dtype = Literal["float32", "bfloat16"]
BLACKWELL = 100  # from this architecture on another assembler is needed
INT32_LIMIT = 2**31
ALIGNMENT = 16  # bytes of a pointer, and the divisor of a number, that Triton compiles for


class Signature(NamedTuple):
    """What Triton compiles a kernel for.

    kernel: module and name. arguments: (dtype, whether it is aligned) for a tensor, None, or a number of the same kind
    as the launched one. constants: compile-time constants.
    """

    kernel: str
    arguments: tuple[tuple[str, bool] | int | None, ...]
    constants: tuple[tuple[str, Constant], ...]


@dataclass(frozen=True)
class CompiledVariant:
    """A compiled signature.

    default: True if launched in float32, the default. spill_bytes: stores and loads of a thread. shared_bytes: shared
    memory of a program. dtypes: dtypes of the tensors, in order. constants: all constants except fractions.
    """

    kernel: str
    arch: int
    default: bool
    registers: int
    spill_bytes: int
    shared_bytes: int
    triton: str
    dtypes: str
    constants: str


def signature_of(launch: Launch) -> Signature:
    """The signature of a launch, on a device or in the interpreter of Triton."""
    kernel = f"{launch.kernel.fn.__module__}:{launch.name}"
    return Signature(kernel, tuple(map(_kind, launch.args)), tuple(sorted(launch.constants.items())))


def _kind(argument: Any) -> tuple[str, bool] | int | None:
    if isinstance(argument, torch.Tensor):
        offset = argument.storage_offset() * argument.element_size()
        return (str(argument.dtype).removeprefix("torch."), offset % ALIGNMENT == 0)
    if argument is None:
        return None
    if argument == 1:  # a constant for Triton
        return 1
    number = ALIGNMENT if argument % ALIGNMENT == 0 else ALIGNMENT + 1
    return int(number if argument < INT32_LIMIT else number * INT32_LIMIT)


def constants_text(signature: Signature) -> str:
    """The constants of a signature except fractions: sizes and variants."""
    return " ".join(f"{key}={value}" for key, value in signature.constants if not isinstance(value, float))


def launch_rows(signatures: Collection[Signature]) -> list[dict[str, str]]:
    """Signatures as text, sorted."""
    rows = []
    for signature in signatures:
        kinds = [f"{x[0]}{'' if x[1] else ' unaligned'}" if isinstance(x, tuple) else x for x in signature.arguments]
        arguments = ", ".join(map(str, kinds))
        kernel = signature.kernel.split(":")[1]
        rows.append({"kernel": kernel, "arguments": arguments, "constants": constants_text(signature)})
    return sorted(rows, key=lambda row: (row["kernel"], row["arguments"], row["constants"]))


def planned_signatures() -> dict[Signature, bool]:
    """Signatures that benchmark and presets launch, and whether one is launched with default settings."""
    signatures: dict[Signature, bool] = {}
    for is_default, launches in ((True, _default_launches()), (False, _bfloat16_launches())):
        for launch in launches:
            signatures.setdefault(signature_of(launch), is_default)
    return signatures


def _default_launches() -> Iterator[Launch]:
    for policy in POLICIES:
        yield from _iteration_launches(policy, ACCOUNTS, 1)
    yield from _iteration_launches("equivariant", FEW_ACCOUNTS, 1)
    yield from _iteration_launches("equivariant", ACCOUNTS, MEMBERS)
    for config in PRESETS.values():
        for agent in (config.agent, *config.cohorts):
            yield from _preset_launches(config, agent)


def _bfloat16_launches() -> Iterator[Launch]:
    for policy in POLICIES:
        yield from _iteration_launches(policy, ACCOUNTS, 1, "bfloat16")


def _iteration_launches(policy: PolicyName, accounts: int, members: int, dtype: Dtype = "float32") -> list[Launch]:
    with without_data():
        run, _ = plan_iteration(
            policy, accounts, HORIZON, MINIBATCHES, activation_dtype=dtype, members=members, epochs=1
        )
        return _launches(run)


def _preset_launches(config: RunConfig, agent: AgentConfig) -> Iterator[Launch]:
    """Launches of an iteration of a preset, from new weights."""
    assets = 20
    with without_data():
        with as_on_device(), _disable_current_modes():
            market = make_market(SpeedSettings(assets=assets, features=len(config.features.names), days=300), "next")
            members = range(config.tournament.pods)
            env = make_env(market, config.environment, members=members, mandate=config.mandate)
            short: Any = {name: value for name, value in SHORT_ITERATION.items() if hasattr(agent, name)}
            learner = Learner(env, replace(agent, **short))
            learner.collector  # noqa: B018  resets the environments

        def run() -> None:
            with as_on_device():
                learner.algorithm.iterate(learner.collector, 1.0)

        yield from _launches(run)


def _launches(run: Any) -> list[Launch]:
    launches: list[Launch] = []
    with planned_launches(launches.append):
        run()
    return launches


class _Pointer:
    """Stands for a tensor where Triton asks for its dtype and address."""

    def __init__(self, dtype: str, is_aligned: bool) -> None:
        self.dtype = getattr(torch, dtype)
        self._address = 0 if is_aligned else ALIGNMENT // 4

    def data_ptr(self) -> int:
        return self._address


class _Driver:
    """Stands for the driver of CUDA where Triton asks for the device to compile for: the number of a device is its
    architecture."""

    def __init__(self, arch: int) -> None:
        self._arch = arch

    def get_current_device(self) -> int:
        return self._arch

    def get_current_stream(self, device: int) -> int:  # noqa: ARG002
        return 0

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]

        return GPUTarget("cuda", self._arch, 32)


def compile_variant(signature: Signature, arch: int, *, is_default: bool) -> CompiledVariant:
    """Compile a signature for an architecture. Raises errors of Triton if it cannot be compiled."""
    import triton  # type: ignore[import-untyped]
    from triton.runtime.driver import driver  # type: ignore[import-untyped]

    driver.set_active(_Driver(arch))
    module, name = signature.kernel.split(":")
    kernel = getattr(importlib.import_module(module), name)
    arguments = [_Pointer(*kind) if isinstance(kind, tuple) else kind for kind in signature.arguments]
    compiled = kernel.warmup(*arguments, grid=(1,), **dict(signature.constants))
    registers, spill_bytes = _registers(compiled.asm["ptx"], arch)
    return CompiledVariant(
        kernel=name,
        arch=arch,
        default=is_default,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=int(compiled.metadata.shared),
        triton=triton.__version__,
        dtypes=" ".join(kind[0] for kind in signature.arguments if isinstance(kind, tuple)),
        constants=constants_text(signature),
    )


def _registers(ptx: str, arch: int) -> tuple[int, int]:
    """Registers of a thread, and bytes that it stores and loads because they do not suffice."""
    import triton

    assembler = "ptxas-blackwell" if arch >= BLACKWELL else "ptxas"
    tool = Path(str(triton.__file__)).parent / "backends" / "nvidia" / "bin" / assembler
    (target,) = re.findall(r"^\.target (\w+)", ptx, re.M)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "kernel.ptx")
        source.write_text(ptx)
        command = [str(tool), "-v", f"--gpu-name={target}", str(source), "-o", str(source.with_suffix(".cubin"))]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    (registers,) = re.findall(r"Used (\d+) registers", report)
    spills = re.findall(r"(\d+) bytes spill", report)
    return int(registers), sum(map(int, spills))


def main(argv: Sequence[str]) -> int:
    """Compile, print a table, and return 1 if a default variant spills."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.ahead_of_time", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--arch", type=int, nargs="+", default=list(ARCHITECTURES), help="such as 80, 90 and 100")
    parser.add_argument("--out", type=Path, help="write the rows as JSON to this file")
    options = parser.parse_args(list(argv))
    rows = []
    for arch in options.arch:
        for signature, is_default in planned_signatures().items():
            row = compile_variant(signature, arch, is_default=is_default)
            log_progress(
                f"sm_{row.arch} {row.kernel:22} {row.registers:4} registers {row.spill_bytes:4} spilled "
                f"{row.shared_bytes:6} shared  {row.dtypes.split()[0]}{'' if row.default else ', not the default'}"
            )
            rows.append(row)
    if options.out is not None:
        write_text(options.out, as_json({"rows": [asdict(row) for row in rows]}))
    return int(any(row.default and row.spill_bytes for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
