"""The accounts behind a report as arrays in curves.safetensors, from which pages draw the charts of the report again.

The file holds numbers only and is not compressed, so that its size bounds the memory it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import RunError
from finrl_pod.files import write_bytes
from finrl_pod.types import BacktestResult
from finrl_pod_app.report.builder import subject_of

FILE = "curves.safetensors"
MAX_BYTES = 64_000_000
_SECONDS = "datetime64[s]"


def write_curves(out: Path, results: Mapping[str, BacktestResult]) -> Path:
    """Write the results that share the bars of the subject of the report. Raises RunError if the file cannot be
    written.

    Equity, turnover, costs and cash rates of every strategy; weights and costs by kind of the subject alone.
    """
    from safetensors.numpy import save

    subject = subject_of(results)
    times = results[subject].times
    shared_results = {name: result for name, result in results.items() if np.array_equal(result.times, times)}
    arrays: dict[str, NDArray[Any]] = {"times": times.astype(_SECONDS).astype(np.int64)}
    for i, (name, result) in enumerate(shared_results.items()):
        arrays[f"{i}.equity"] = result.equity.astype(np.float64)
        arrays[f"{i}.turnover"] = result.turnover.astype(np.float32)
        arrays[f"{i}.costs"] = result.costs.astype(np.float64)
        if result.risk_free is not None:
            arrays[f"{i}.risk_free"] = result.risk_free.astype(np.float64)
        if name == subject:
            arrays["weights"] = result.weights.astype(np.float32)
            for kind, values in enumerate(result.cost_parts.values()):
                arrays[f"cost_parts.{kind}"] = values.astype(np.float64)
    header = {
        "names": list(shared_results),
        "subject": subject,
        "symbols": list(results[subject].symbols),
        "cost_parts": list(results[subject].cost_parts),
        "metrics": {name: dict(result.metrics) for name, result in shared_results.items()},
    }
    data = save({name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"curves": json.dumps(header)})
    return write_bytes(out / FILE, data)


def parse_curves(data: bytes) -> dict[str, BacktestResult]:
    """The results in the contents of a file. Raises RunError if they are damaged."""
    try:
        return _parse(data)
    except Exception as error:  # noqa: BLE001 - a file may hold anything
        raise RunError(f"{FILE} is damaged ({type(error).__name__}); evaluate the run again") from None


def _parse(data: bytes) -> dict[str, BacktestResult]:
    from safetensors.numpy import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    contents = json.loads(header["__metadata__"]["curves"])
    arrays = load(data)
    times = arrays["times"].astype(_SECONDS)
    bars = len(times)
    symbols = tuple(map(str, contents["symbols"]))
    results = {}
    for i, name in enumerate(contents["names"]):
        is_subject = name == contents["subject"]
        weights = arrays["weights"].astype(np.float64) if is_subject else np.zeros((bars, 0))
        costs = (
            {str(kind): arrays[f"cost_parts.{i}"] for i, kind in enumerate(contents["cost_parts"])}
            if is_subject
            else {}
        )
        result = BacktestResult(
            name=str(name),
            times=times,
            symbols=symbols if is_subject else (),
            equity=arrays[f"{i}.equity"],
            weights=weights,
            turnover=arrays[f"{i}.turnover"].astype(np.float64),
            costs=arrays[f"{i}.costs"],
            metrics={str(key): float(value) for key, value in contents["metrics"][name].items()},
            cost_parts=costs,
            risk_free=arrays.get(f"{i}.risk_free"),
        )
        lengths = {len(array) for array in (result.equity, result.weights, result.turnover, result.costs)}
        if lengths != {bars} or result.weights.shape[1] != len(result.symbols):
            raise ValueError("lengths differ")
        results[result.name] = result
    return results
