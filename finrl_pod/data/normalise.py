"""Standardisation of features, fitted on the training bars."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from finrl_pod.errors import FeatureError, UndefinedFeatureError
from finrl_pod.types import Bools, Floats, Normaliser

# A feature whose standard deviation is below this fraction of its mean is constant.
_RELATIVE_SPREAD = 1e-12


def fit_normaliser(raw: Floats, tradable: Bools, first: int, last: int, names: tuple[str, ...]) -> Normaliser:
    """Mean and standard deviation (n) of each feature over the tradable, defined cells of bars first..last, inclusive.

    raw: [T, N, F], NaN where undefined. tradable: [T, N]. names: F. A constant feature gets std 1.

    Raises FeatureError for a range outside the data and for a feature that is undefined on the whole range.
    """
    if not 0 <= first <= last < len(raw):
        raise FeatureError(f"features can be fitted on bars 0 to {len(raw) - 1}, got {first} to {last}")
    rows, there = raw[first : last + 1], tradable[first : last + 1]
    means, stds = [], []
    for i, name in enumerate(names):
        values = rows[..., i][there & np.isfinite(rows[..., i])]
        if not values.size:
            raise UndefinedFeatureError(
                f"feature {name!r} is undefined on all training bars {first} to {last}; "
                "train on more bars or drop the feature"
            )
        mean, std = float(values.mean()), float(values.std())
        means.append(mean)
        stds.append(std if std > _RELATIVE_SPREAD * max(abs(mean), float(np.finfo(np.float64).tiny)) else 1.0)
    return Normaliser(names, tuple(means), tuple(stds))


def normalise(raw: Floats, normaliser: Normaliser) -> NDArray[np.float32]:
    """(raw - mean) / std clipped to +-clip, 0 where raw is NaN: [..., F] float64 -> [..., F] float32."""
    scaled = (raw - np.array(normaliser.mean)) / np.array(normaliser.std)
    clipped = np.clip(scaled, -normaliser.clip, normaliser.clip)
    return np.where(np.isnan(clipped), 0.0, clipped).astype(np.float32)
