"""Read a file of prices in a child process with limits on memory, time, rows, columns and uncompressed size.

A few megabytes of Parquet or gzip can expand to more than a machine has. Stated sizes are checked first; the child
enforces the others. It leaves a validated panel in a temporary store; the parent reads its plain Parquet.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from finrl_pod.data.sources.files import read_file
from finrl_pod.data.sources.read_options import ReadOptions
from finrl_pod.data.sources.tables import is_table
from finrl_pod.data.store import Store
from finrl_pod.errors import DataError, FinrlPodError
from finrl_pod.process import die_with_parent, this_process
from finrl_pod.types import Panel

_CODE = "from finrl_pod.data.sources.bounded import run_child; run_child()"
_PANEL = "imported"
_CHUNK = 1 << 20
_POLL = 0.2  # seconds between two looks at a cancellation


@dataclass(frozen=True)
class ReadLimits:
    """Limits of an import in bytes and seconds.

    memory: growth of the child process after its start. size: uncompressed size of the file.
    """

    memory: int = 1_500_000_000
    seconds: float = 600.0
    rows: int = 20_000_000
    columns: int = 20_000
    size: int = 2_000_000_000


def read_bounded(
    path: Path, limits: ReadLimits | None = None, *, cancelled: Callable[[], bool] = lambda: False, **options: Any
) -> Panel:
    """`read_file` within limits. Raises DataError as it does, and for a file that exceeds a limit.

    cancelled: asked several times a second; the child process is killed and DataError raised once it returns True.
    """
    limits = limits or ReadLimits()
    ReadOptions(**options)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        if is_table(file.name):
            _check_stated_size(file, limits)
    with tempfile.TemporaryDirectory(prefix="finrl-pod-import-") as folder:
        job = {"path": str(path.absolute()), "store": folder, "options": options, "parent": this_process()}
        name = _run(json.dumps({**job, "limits": dataclasses.asdict(limits)}), limits, path, cancelled)
        return dataclasses.replace(Store(folder).load(_PANEL), name=name)


def _run(job: str, limits: ReadLimits, path: Path, cancelled: Callable[[], bool]) -> str:
    """Name of the panel that the child process read. job: JSON text for `run_child`."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CODE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    child_input: str | None = job
    end = time.monotonic() + limits.seconds
    with child:
        while True:
            try:
                output, trace = child.communicate(child_input, timeout=_POLL)
                break
            except subprocess.TimeoutExpired:
                child_input = None  # the first call has it
                is_late = time.monotonic() > end
                if is_late or cancelled():
                    child.kill()
                    reason = (
                        f"took more than {limits.seconds:g} seconds to read: split it" if is_late else "was cancelled"
                    )
                    raise DataError(f"{path.name} {reason}") from None
            except BaseException:
                child.kill()
                raise
    try:
        answer: dict[str, str] = json.loads(output.strip().splitlines()[-1])
    except (ValueError, IndexError):
        last = (trace.strip().splitlines() or [""])[-1]
        if child.returncode < 0 or not last or "alloc" in last.lower() or "MemoryError" in last:
            raise _too_large(path, limits) from None  # the child was killed, or a library failed to allocate
        raise DataError(f"{path.name} cannot be read: {last[:80]}") from None
    if "error" in answer:
        raise DataError(answer["error"])
    return answer["name"]


def run_child() -> None:
    """Read the file of the job on standard input; write its name or an error to standard output, as JSON."""
    job = json.load(sys.stdin)
    die_with_parent(job["parent"])
    limits = ReadLimits(**job["limits"])
    path = Path(job["path"])
    with contextlib.suppress(ImportError, OSError, ValueError):  # where the system can
        import resource

        memory_in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (memory_in_use + limits.memory, memory_in_use + limits.memory))
    try:
        panel = read_file(path, **job["options"])
        Store(job["store"]).save(dataclasses.replace(panel, name=_PANEL))
        answer = {"name": panel.name}
    except MemoryError:
        answer = {"error": str(_too_large(path, limits))}
    except FinrlPodError as error:
        answer = {"error": str(error)}
    sys.stdout.write(json.dumps(answer))


def _too_large(path: Path, limits: ReadLimits) -> DataError:
    return DataError(
        f"{path.name} needs more than {limits.memory / 1e9:g} GB of memory to read: split it, or raise --memory"
    )


def _check_stated_size(path: Path, limits: ReadLimits) -> None:
    """Raises DataError for a file whose size, rows or columns, as it states or unpacks to, exceed the limits."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    name = path.name.lower()
    size = rows = columns = 0
    try:
        with gzip.open(path) if name.endswith(".gz") else path.open("rb") as file:
            if name.endswith((".parquet", ".pq")):
                metadata = pq.ParquetFile(file).metadata
                rows, columns = metadata.num_rows, metadata.num_columns
                stated_size = sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups))
                size = max(stated_size, 8 * rows * columns)
            else:
                while (chunk := file.read(_CHUNK)) and size <= limits.size and rows <= limits.rows:
                    size += len(chunk)
                    rows += chunk.count(b"\n")
    except (OSError, EOFError, zlib.error, pa.ArrowException):
        return  # reported by the reader
    counts = {"rows": (rows, limits.rows), "columns": (columns, limits.columns)}
    for unit, (value, limit) in {**counts, "bytes uncompressed": (size, limits.size)}.items():
        if value > limit:
            raise DataError(f"{path.name} has {value:,} {unit}, and at most {limit:,} are read: split it")
