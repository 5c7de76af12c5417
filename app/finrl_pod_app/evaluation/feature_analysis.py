"""Analyse features of stored prices: `finrl-pod features analyse`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from finrl_pod.data import features
from finrl_pod.data.tensor import build_market
from finrl_pod.evaluate.feature_analysis import HORIZONS, QUANTILES, analyse_feature, ranks_assets
from finrl_pod.files import to_plain
from finrl_pod.settings.run import RunConfig, SplitConfig, load
from finrl_pod_app.prices.stored_prices import backtest_period, load_panel, splits_of_panel, with_stored_splits
from finrl_pod_app.report.builder import bars_sentence
from finrl_pod_app.setup.overrides import override_config


def analyse_features(
    names: Sequence[str],
    *,
    data: str | None = None,
    config: Path | None = None,
    split: str = "train",
    start: str | None = None,
    end: str | None = None,
    horizons: Sequence[int] = HORIZONS,
    quantiles: int | None = None,
    on_feature: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Figures of features on the bars of a split, or from start to end.

    names: feature names; if empty, all that the prices allow. config: TOML file with prices, splits and tables. split:
    "train", "validation" or "test" of these splits, by default those that `finrl-pod init` writes for the prices, or
    "all". quantiles: groups of assets by rank; by default 5, or one for each of fewer assets. Returns {"data",
    "period", "features": [...]}. Raises ConfigError for prices that are too short for splits.
    """
    settings = override_config(load(config) if config else RunConfig(), data)
    settings = with_stored_splits(settings) if config else settings
    panel = load_panel(settings)
    splits: SplitConfig | None = None
    if split != "all" and not (start and end):
        splits = settings.splits if config and not data else splits_of_panel(panel)
    first, last = backtest_period(panel, start, end, splits, split)
    feature_names = tuple(names) or features.available(panel)
    features.check(panel, feature_names)
    market = build_market(panel, (), (first, last), settings.environment.fill)
    quantiles = min(QUANTILES, len(market.symbols)) if quantiles is None else quantiles
    analyses = []
    for name in feature_names:
        on_feature(name)
        feature_values = features.compute(panel, (name,))[..., 0]
        if not names and not ranks_assets(feature_values):
            continue
        analysis = analyse_feature(
            name, feature_values, market, first, min(last, market.steps - 1), horizons, quantiles
        )
        analyses.append(analysis.plain())
    period = [str(panel.times[i].astype("datetime64[D]")) for i in (first, last)]
    document = {"data": panel.name, "period": period, "split": split, "quantiles": quantiles, "features": analyses}
    if meaning := bars_sentence(panel):
        document["bars"] = meaning
    values: dict[str, Any] = to_plain(document)
    return values
