"""Calibration of the gate test for an edge on synthetic streams of active returns with known information ratios.

Two parts. *selection*: z-scores of correlated trials, drawn directly, over numbers of trials, correlations and ways to
select an ensemble, for one of the two tests (mean active return, alpha). *streams*: daily returns of twelve years of
validation and twelve of test with autocorrelation, fat tails, skew or volatility clustering, through both tests, at a
beta of 1. Power is compared with a test of the test period alone at 5% for the same champions,
Phi(IR sqrt(12) - 1.645), IR the mean information ratio of the champions.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.results import FOLDER
from benchmarks.harness.rows import Row, log_progress
from finrl_pod.errors import ConfigError, RunError
from finrl_pod.evaluate.intervals import binomial_interval
from finrl_pod.evaluate.overfitting import MAX_ADDITIONS, null_z_scores
from finrl_pod.files import write_json
from finrl_pod.promotion.edge import ActivePeriod, SelectedPeriod, edge_test, selected_z_score, validation_weight
from finrl_pod.settings.run import GateConfig
from finrl_pod.types import Floats

YEARS = 12
BARS = 252 * YEARS
SEED = 20
SELECTION_DRAWS = 4_000
STREAM_DRAWS = 1_500
NULL_DRAWS = 2_000
RATIOS = (0.0, 0.25, 0.5, 1.0)  # annual information ratios of the trials
STREAM_RATIOS = (0.0, 0.5)
STRUCTURES = ("equal", "families")
CORRELATIONS = (0.0, 0.3, 0.6, 0.9, 0.95)
TRIALS = (1, 8, 17, 50, 200)
FAMILIES = 4
STREAM_TRIALS = 8
STREAM_MEMBERS = 4
STREAM_CORRELATION = 0.6
BASE_RATIO = 0.5  # annual Sharpe ratio of the base
BURN_IN = 250
VOLATILITY_MEMORY = 0.98
LOG_VARIANCE_SPREAD = 0.8
COMPARED_LEVEL_Z = 1.6448536269514722  # of a test at 5%

CALIBRATION_FILE = FOLDER / "gate_calibration.json"

Noise = Callable[[np.random.Generator, tuple[int, int]], Floats]


@dataclass(frozen=True)
class GateSettings:
    """Settings of `gate`. calibrate: simulate streams of returns again (minutes)."""

    calibrate: bool = False
    calibration: Path = CALIBRATION_FILE


def gate_rows(settings: GateSettings) -> list[Row]:
    """Rows of a stored calibration. Raises RunError for a file that is none, ConfigError for a missing one."""
    file = settings.calibration
    if settings.calibrate:
        calibrate(file)
    if not file.exists():
        raise ConfigError(f"{file} is missing: add --calibrate to make it, or name another --calibration file")
    return calibration_rows(file)


def calibrate(file: Path) -> None:
    """Simulate all cells and write them to a JSON file."""
    cells = [*selection_cells(), *stream_cells()]
    write_json(file, {"cells": cells, "significance_level": GateConfig().significance_level, "years": YEARS})


def selection_cells() -> list[dict[str, Any]]:
    """Cells over structures, correlations, numbers of trials, members and selections; skills equal and unequal."""
    cells = []
    grid = itertools.product(STRUCTURES, CORRELATIONS, TRIALS, ((1, "best"), (8, "best"), (4, "greedy")))
    for number, (structure, correlation, trials, (members, method)) in enumerate(grid):
        if members > trials or (method == "greedy" and trials > 50):
            continue
        rng = np.random.default_rng([SEED, number])
        matrix = correlation_matrix(structure, correlation, trials)
        null = null_z_scores(matrix, members, method, seed=number)  # type: ignore[arg-type]
        parameters = {"structure": structure, "correlation": correlation, "trials": trials, "members": members}
        for ratio, skill in itertools.product(RATIOS, ("equal", "unequal")):
            if skill == "unequal" and (ratio == 0 or trials == 1):
                continue
            means = np.full(trials, ratio) if skill == "equal" else np.linspace(0, 2 * ratio, trials)
            result = _select_and_test(rng, matrix, means * math.sqrt(YEARS), members, method, null)
            labels = {**parameters, "selection": method, "skill": skill}
            cells.append(_cell("selection", labels, ratio, *result, SELECTION_DRAWS))
        log_progress(f"{structure} {correlation:g}, {trials} trials, {members} members by {method}")
    return cells


def correlation_matrix(structure: str, correlation: float, trials: int) -> Floats:
    """Correlation [N, N]: equal for all pairs, or within four families and a quarter of it between them."""
    family = np.zeros(trials) if structure == "equal" else np.arange(trials) % FAMILIES
    values: Floats = np.where(family[:, None] == family, correlation, correlation / FAMILIES)
    np.fill_diagonal(values, 1.0)
    return values


def select(z_scores: Floats, matrix: Floats, members: int, method: str) -> Floats:
    """Shares [B, N] of the ensembles selected by z-scores [B, N] of trials with equal volatility."""
    shares = np.zeros_like(z_scores)
    np.put_along_axis(shares, np.argsort(-z_scores, 1)[:, :members], 1.0, axis=1)
    if method == "best":
        return shares
    ratio = (shares * z_scores).sum(1) / np.sqrt(((shares @ matrix) * shares).sum(1))
    for _ in range(MAX_ADDITIONS):
        inner = shares @ matrix
        risk = np.sqrt((inner * shares).sum(1, keepdims=True) + 2 * inner + 1)
        ratios = ((shares * z_scores).sum(1, keepdims=True) + z_scores) / risk
        better = np.flatnonzero(ratios.max(1) > ratio + 1e-9)
        if not len(better):
            break
        shares[better, ratios[better].argmax(1)] += 1
        ratio[better] = ratios[better].max(1)
    return shares


def _select_and_test(
    rng: np.random.Generator, matrix: Floats, means: Floats, members: int, method: str, null: Floats
) -> tuple[int, float]:
    """Number of promoted champions, and the mean information ratio of all."""
    values, vectors = np.linalg.eigh(matrix)
    factor = vectors * np.sqrt(np.maximum(values, 0))
    z_scores = rng.normal(size=(SELECTION_DRAWS, len(matrix))) @ factor.T + means
    shares = select(z_scores, matrix, members, method)
    risk = np.sqrt(((shares @ matrix) * shares).sum(1))
    validation = (shares * z_scores).sum(1) / risk
    true = shares @ means / risk
    test = true + rng.normal(size=SELECTION_DRAWS)
    weight = validation_weight(BARS, BARS)
    validation_scores = np.array([selected_z_score(float(z), null) for z in validation])
    combined_scores = math.sqrt(1 - weight**2) * test + weight * validation_scores
    limit = statistics.NormalDist().inv_cdf(1 - GateConfig().significance_level)
    return int((combined_scores >= limit).sum()), float(true.mean() / math.sqrt(YEARS))


def autocorrelated_noise(coefficient: float) -> Noise:
    """AR(1) of unit variance."""

    def draw(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
        from scipy.signal import lfilter

        shocks = rng.normal(size=(shape[0] + BURN_IN, shape[1])) * math.sqrt(1 - coefficient**2)
        return np.asarray(lfilter([1.0], [1.0, -coefficient], shocks, axis=0)[BURN_IN:], dtype=np.float64)

    return draw


def clustered_noise(rng: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """Stochastic volatility of unit mean variance: its logarithm is AR(1), half-life 34 bars, common to all columns."""
    from scipy.signal import lfilter

    shocks = rng.normal(size=shape[0] + BURN_IN) * math.sqrt(LOG_VARIANCE_SPREAD * (1 - VOLATILITY_MEMORY**2))
    log_variance = lfilter([1.0], [1.0, -VOLATILITY_MEMORY], shocks)[BURN_IN:] - LOG_VARIANCE_SPREAD / 2
    return np.asarray(np.exp(log_variance / 2)[:, None] * rng.normal(size=shape), dtype=np.float64)


NOISES: Mapping[str, Noise] = {
    "normal": lambda rng, shape: rng.normal(size=shape),
    "fat tails": lambda rng, shape: rng.standard_t(4, shape) / math.sqrt(2),  # four degrees of freedom, unit variance
    "skewed": lambda rng, shape: np.asarray(1 - rng.exponential(size=shape)),  # skewness -2
    "autocorrelation 0.2": autocorrelated_noise(0.2),
    "autocorrelation -0.2": autocorrelated_noise(-0.2),
    "volatility clusters": clustered_noise,
}


def stream_cells() -> list[dict[str, Any]]:
    """Cells over kinds of noise. Trials share a part of their noise; the best are averaged."""
    cells = []
    parameters = {"correlation": STREAM_CORRELATION, "trials": STREAM_TRIALS, "members": STREAM_MEMBERS}
    for number, (name, noise) in enumerate(NOISES.items()):
        for ratio in STREAM_RATIOS:
            rng = np.random.default_rng([SEED, 1000 + number])
            p_values = [_stream(rng, noise, ratio) for _ in range(STREAM_DRAWS)]
            promotions = sum(p <= GateConfig().significance_level for p in p_values)
            mean_ratio = ratio / math.sqrt(STREAM_CORRELATION + (1 - STREAM_CORRELATION) / STREAM_MEMBERS)
            mean_ratio /= _risk_per_year(name)
            labels = {"noise": name, **parameters, "selection": "best"}
            cells.append(_cell("streams", labels, ratio, promotions, mean_ratio, STREAM_DRAWS))
        log_progress(f"streams with noise: {name}")
    return cells


def _stream(rng: np.random.Generator, noise: Noise, ratio: float) -> float:
    """p-value of one champion."""
    common_noise = noise(rng, (2 * BARS, 1))
    trial_noise = noise(rng, (2 * BARS, STREAM_TRIALS))
    active = (
        math.sqrt(STREAM_CORRELATION) * common_noise
        + math.sqrt(1 - STREAM_CORRELATION) * trial_noise
        + ratio / math.sqrt(252)
    )
    validation = active[:BARS]
    test = active[BARS:]
    best_columns = np.argsort(-validation.mean(0) / validation.std(0))[:STREAM_MEMBERS]
    base = rng.normal(BASE_RATIO / math.sqrt(252), 1.0, 2 * BARS)
    period = SelectedPeriod(validation[:, best_columns].mean(1), base[:BARS], validation, STREAM_MEMBERS)
    return edge_test(ActivePeriod(test[:, best_columns].mean(1), base[BARS:]), period, seed=0, draws=NULL_DRAWS).p_value


def _risk_per_year(name: str) -> float:
    """Long-run over daily volatility: an information ratio is less certain if returns are autocorrelated."""
    if not name.startswith("autocorrelation"):
        return 1.0
    coefficient = float(name.split()[-1])
    return math.sqrt((1 + coefficient) / (1 - coefficient))


def _cell(
    kind: str, parameters: Mapping[str, Any], ratio: float, promotions: int, mean_ratio: float, draws: int
) -> dict[str, Any]:
    alone = 0.5 * math.erfc((COMPARED_LEVEL_Z - mean_ratio * math.sqrt(YEARS)) / math.sqrt(2))
    return {
        "part": kind,
        **parameters,
        "information_ratio": ratio,
        "information_ratio_reached": round(mean_ratio, 4),
        "draws": draws,
        "promoted": promotions,
        "test_alone_at_5_percent": round(alone, 4),
    }


def calibration_rows(file: Path) -> list[Row]:
    """Rows of a calibration: false promotions and power relative to a test of the test period alone."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        cells = document["cells"]
        null = [cell for cell in cells if cell["information_ratio"] == 0]
        edges = [cell for cell in cells if cell["information_ratio"] > 0]
        rates = [cell["promoted"] / cell["draws"] for cell in null]
        margins = [cell["promoted"] / cell["draws"] - cell["test_alone_at_5_percent"] for cell in edges]
        promotions = sum(cell["promoted"] for cell in null)
        draws = sum(cell["draws"] for cell in null)
        low, high = binomial_interval(promotions, draws)
        worst = null[int(np.argmax(rates))]
        weakest = edges[int(np.argmin(margins))]
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{file} is not a calibration of the gate: add --calibrate to make it again") from None
    return [
        Row("calibration_size", promotions / draws, low, high, "share promoted", {
            "interval": "95% Clopper-Pearson, all cells without an edge", "cells": len(null), "draws": draws,
            "highest": max(rates), "highest_cell": worst, "significance_level": document["significance_level"],
        }),
        Row("calibration_power_over_test_alone", statistics.median(margins), min(margins), max(margins), "difference", {
            "interval": "range over cells with an edge", "cells": len(edges), "lowest_cell": weakest,
            "compared": "test of the test period alone at 5%",
        }),
    ]  # fmt: skip
