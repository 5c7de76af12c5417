"""The accounts behind a report as arrays in curves.safetensors, from which pages draw the report's charts again.

The file holds numbers only and is not compressed, so that its size bounds the memory it needs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from finrl_pod.errors import RunError
from finrl_pod.files import write_bytes
from finrl_pod.types import BacktestResult
from finrl_pod_app.report.builder import subject_of

FILE = "curves.safetensors"
MAX_BYTES = 64_000_000
_SECONDS = "datetime64[s]"


def write_curves(out: Path, results: Mapping[str, BacktestResult]) -> Path:
    """Write the results that share the bars of the report's subject. Raises RunError if the file cannot be written.

    Equity, turnover, costs and cash rates of every strategy; weights and costs by kind of the subject alone.
    """
    from safetensors.numpy import save

    subject = subject_of(results)
    times = results[subject].times
    kept = {name: result for name, result in results.items() if np.array_equal(result.times, times)}
    arrays: dict[str, Any] = {"times": times.astype(_SECONDS).astype(np.int64)}
    for place, (name, result) in enumerate(kept.items()):
        arrays[f"{place}.equity"] = result.equity.astype(np.float64)
        arrays[f"{place}.turnover"] = result.turnover.astype(np.float32)
        arrays[f"{place}.costs"] = result.costs.astype(np.float64)
        if result.risk_free is not None:
            arrays[f"{place}.risk_free"] = result.risk_free.astype(np.float64)
        if name == subject:
            arrays["weights"] = result.weights.astype(np.float32)
            for kind, part in enumerate(result.cost_parts.values()):
                arrays[f"cost_parts.{kind}"] = part.astype(np.float64)
    described = {
        "names": list(kept),
        "subject": subject,
        "symbols": list(results[subject].symbols),
        "cost_parts": list(results[subject].cost_parts),
        "metrics": {name: dict(result.metrics) for name, result in kept.items()},
    }
    data = save(
        {name: np.ascontiguousarray(array) for name, array in arrays.items()}, {"curves": json.dumps(described)}
    )
    return write_bytes(out / FILE, data)


def parse_curves(data: bytes) -> dict[str, BacktestResult]:
    """The results of a file's contents. Raises RunError if they are damaged."""
    try:
        return _parse(data)
    except Exception as error:  # noqa: BLE001 - a file may hold anything
        raise RunError(f"{FILE} is damaged ({type(error).__name__}); evaluate the run again") from None


def _parse(data: bytes) -> dict[str, BacktestResult]:
    from safetensors.numpy import load

    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    described = json.loads(header["__metadata__"]["curves"])
    arrays = load(data)
    times = arrays["times"].astype(_SECONDS)
    bars, symbols = len(times), tuple(map(str, described["symbols"]))
    results = {}
    for place, name in enumerate(described["names"]):
        own = name == described["subject"]
        weights = arrays["weights"].astype(np.float64) if own else np.zeros((bars, 0))
        parts = {str(kind): arrays[f"cost_parts.{i}"] for i, kind in enumerate(described["cost_parts"])} if own else {}
        result = BacktestResult(
            name=str(name),
            times=times,
            symbols=symbols if own else (),
            equity=arrays[f"{place}.equity"],
            weights=weights,
            turnover=arrays[f"{place}.turnover"].astype(np.float64),
            costs=arrays[f"{place}.costs"],
            metrics={str(key): float(value) for key, value in described["metrics"][name].items()},
            cost_parts=parts,
            risk_free=arrays.get(f"{place}.risk_free"),
        )
        lengths = {len(array) for array in (result.equity, result.weights, result.turnover, result.costs)}
        if lengths != {bars} or result.weights.shape[1] != len(result.symbols):
            raise ValueError("lengths differ")
        results[result.name] = result
    return results
