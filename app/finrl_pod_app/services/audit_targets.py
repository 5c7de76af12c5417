"""What can be audited from the command line: a run, a baseline, an environment."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from finrl_pod_envs.trading_envs import KINDS
from finrl_pod_strategies.index import index_panel
from finrl_pod_strategies.user_strategy import is_file_reference, strategy_hash

from finrl_pod.data.splits import Span, make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import DataError, InputError
from finrl_pod.evaluate.audit.lookahead import PROBES
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.evaluate.audit.warmup import WARM_UP
from finrl_pod.market.rules import rules_of
from finrl_pod.settings.run import DataConfig, RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod_app.services.audit import YARDSTICK, Audit, Tell, audit_champion, builder, examine, small_env
from finrl_pod_app.services.backtests import find_strategy
from finrl_pod_app.services.champions import saved_members
from finrl_pod_app.services.prices import load_panel
from finrl_pod_app.services.training import make_market, training_env
from finrl_pod_app.services.trial_log import log_look

FEWEST_BARS = 60  # of a panel: below it there is no bar to probe


def audit_run(path: Path, *, probes: int = PROBES, warm_up_bars: int = WARM_UP, tell: Tell = lambda _: None) -> Audit:
    """The champion of a run. Raises RunError for a folder without a finished generation, DataError for changed data."""
    run = RunDirectory.open(path)
    config = run.config
    panel = load_panel(config)
    if panel.sha256 != run.data_sha256:
        raise DataError(f"data set {panel.name!r} has changed since the run in {path}; restore it to audit the run")
    splits = make_splits(panel.times, config.splits)
    trained = training_env(config, make_market(panel, config, splits), splits, (0,))
    members = saved_members(run)
    return audit_champion(
        run, panel, config, members, trained.last, probes=probes, warm_up_bars=warm_up_bars, tell=tell
    )


def audit_strategy(
    name: str,
    data: str | None = None,
    *,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    tell: Tell = lambda _: None,
) -> Audit:
    """A baseline, or a user's `file.py:Class`, on a panel of the store, under the default rules."""
    strategy = find_strategy(name)
    config, panel, span = _grounds(data)
    if is_file_reference(name):  # the audit says how it does on these bars
        log_look(panel, Span(*span), strategy_hash(name, None), f"audit of {name}")
    if name == "index":
        panel = index_panel(panel)
    features, fill = strategy.feature_names, config.environment.fill
    frozen = build_market(panel, features, (0, span[0] - 1), fill).normaliser if features else None
    pipeline = Pipeline(
        name=name,
        panel=panel,
        build=lambda prices: build_market(prices, features, frozen or (0, len(prices.times) - 1), fill),
        rules=rules_of(config.environment),
        cash=config.environment.cash,
        settled=span[0],
        strategies={name: strategy},
    )
    yardstick = name if name == "index" else YARDSTICK
    terms = (span, config.environment.cost_bps, probes, warm_up_bars, tell, yardstick)
    found, sensed = examine(pipeline, *terms)
    return Audit(name, tuple(found), sensed)


def audit_env(
    kind: str,
    data: str | None = None,
    *,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    tell: Tell = lambda _: None,
) -> Audit:
    """An environment and the features that it shows, on a panel of the store, under the default rules."""
    if kind not in KINDS:
        raise InputError(f"--env must be one of {', '.join(KINDS)}, got {kind!r}")
    config, panel, span = _grounds(data)
    environment = dataclasses.replace(config.environment, kind=kind)  # type: ignore[arg-type]  # checked above
    config = dataclasses.replace(config, environment=environment)
    market = build_market(panel, config.features.names, (0, span[0] - 1), environment.fill)
    pipeline = Pipeline(
        name=kind,
        panel=panel,
        build=builder(config, market.normaliser),
        rules=rules_of(environment),
        cash=environment.cash,
        settled=span[0],
        make_env=small_env(environment),
    )
    found, _ = examine(pipeline, None, environment.cost_bps, probes, warm_up_bars, tell)
    return Audit(kind, tuple(found))


def _grounds(data: str | None) -> tuple[RunConfig, Panel, tuple[int, int]]:
    """The default config on a panel, and the bars that costs are tried on: the validation split of the sample, the
    later half of other data. Decisions are probed from the first of them on."""
    config = RunConfig() if data is None else RunConfig(data=DataConfig(data))
    panel = load_panel(config)
    if len(panel.times) < FEWEST_BARS:
        raise DataError(f"an audit needs {FEWEST_BARS} bars at least, panel {panel.name!r} has {len(panel.times)}")
    if data is not None:
        return config, panel, (len(panel.times) // 2, len(panel.times) - 1)
    validation = make_splits(panel.times, config.splits).validation
    return config, panel, (validation.first, validation.last)
