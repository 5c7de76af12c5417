"""Audit a run, a strategy or an environment by name, as `finrl-pod audit` and the dashboard do."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path

from finrl_pod_envs.trading_envs import KINDS
from finrl_pod_strategies.baselines import index_panel
from finrl_pod_strategies.user_strategy import load_strategy

from finrl_pod import opened_files
from finrl_pod.data.splits import make_splits
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import ConfigError, DataError, InputError
from finrl_pod.evaluate.audit import external_data
from finrl_pod.evaluate.audit.lookahead import PROBES
from finrl_pod.evaluate.audit.pipeline import Finding, Pipeline
from finrl_pod.evaluate.audit.warmup import WARM_UP
from finrl_pod.market.rules import rules_of
from finrl_pod.protocols import Strategy
from finrl_pod.settings.run import DataConfig, MandateConfig, RunConfig
from finrl_pod.tournament.run_directory import RunDirectory
from finrl_pod.types import Panel
from finrl_pod.user_files import custom_source, import_user_file, is_custom, is_file_reference
from finrl_pod_app.evaluation.audit import (
    Audit,
    OnStep,
    audit_champion,
    audit_env_factory,
    market_builder,
    run_checks,
)
from finrl_pod_app.evaluation.backtests import splits_of_panel
from finrl_pod_app.evaluation.champions import saved_members
from finrl_pod_app.prices.market_setup import make_market, training_env
from finrl_pod_app.prices.panels import load_panel
from finrl_pod_app.prices.stored_prices import load_run_panel

MIN_BARS = 60  # shorter panels leave no bar to probe


def audit_run(
    path: Path,
    *,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    every_bar: bool = False,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit the champion of a run.

    Raises RunError for a folder without a finished generation, DataError if its prices are no longer stored.
    """
    run = RunDirectory.open(path)
    config = run.config
    panel = load_run_panel(config, run.data_sha256, path)
    splits = make_splits(panel.times, config.splits)
    last_decision = training_env(config, make_market(panel, config, splits), splits, (0,)).last
    members = saved_members(run)
    return audit_champion(
        run,
        panel,
        config,
        members,
        last_decision,
        probes=probes,
        warm_up_bars=warm_up_bars,
        every_bar=every_bar,
        on_step=on_step,
    )


def audit_strategy(
    name: str,
    data: str | None = None,
    *,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    every_bar: bool = False,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit a baseline or a user's `file.py:Class` on a panel of the store, under the default rules.

    Costs are varied on validation bars, so that an audit is no look at the test period.
    """
    return _audit_strategy(name, data, probes, warm_up_bars, every_bar, on_step)


def audit_object(
    strategy: Strategy,
    data: str | None = None,
    config: RunConfig | None = None,
    *,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit a strategy that has no file, such as one of a notebook.

    config: prices, rules and splits, in place of `data` and the defaults.
    """
    return _audit_strategy(strategy.name, data, PROBES, WARM_UP, False, on_step, strategy, config)


def _audit_strategy(
    name: str,
    data: str | None,
    probes: int,
    warm_up_bars: int,
    every_bar: bool,
    on_step: OnStep,
    given: Strategy | None = None,
    config: RunConfig | None = None,
) -> Audit:
    begin = opened_files.number()
    opened_files.watch()
    strategy = given or load_strategy(name)
    config, panel, span = _default_data(data) if config is None else _data_of(config)
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
        out_of_sample=span[0],
        strategies={name: strategy},
        restart=_reimport(name) if given is None and is_file_reference(name) else None,
    )
    reference = strategy if name == "index" else None
    cost = config.environment.cost_bps
    found, varied = run_checks(pipeline, span, cost, probes, warm_up_bars, on_step, reference, every_bar=every_bar)
    if varied is not None:
        found += external_data.growth_findings(name, varied, cost)
    return Audit(name, (*found, *_opened_by_strategy(name, begin, given)), varied)


def _opened_by_strategy(name: str, begin: int, given: Strategy | None) -> list[Finding]:
    """Warnings of what user code opened since number `begin`, and the strategy's file before, such as on import."""
    opened = opened_files.opened_files(begin)
    if given is not None or not is_custom(name):
        return external_data.opened_file_findings(opened)
    path, text = custom_source(name, "an audit")
    earlier = [x for x in opened_files.opened_files() if os.path.abspath(x.reader) == os.path.abspath(path)]
    findings = external_data.opened_file_findings(dict.fromkeys((*earlier, *opened)))
    return findings + external_data.unseen_reader_findings({path.name: text})


def _reimport(name: str) -> Callable[[], None]:
    """A function that imports the file of a `file.py:Class` again, which replaces its features."""

    def restart() -> None:
        import_user_file(Path(name.rpartition(":")[0]), f"the strategy {name}")

    return restart


def audit_env(
    kind: str,
    data: str | None = None,
    *,
    probes: int = PROBES,
    warm_up_bars: int = WARM_UP,
    every_bar: bool = False,
    on_step: OnStep = lambda _: None,
) -> Audit:
    """Audit an environment and its features on a panel of the store, under the default rules."""
    if kind not in KINDS:
        raise InputError(f"--env must be one of {', '.join(KINDS)}, got {kind!r}")
    config, panel, span = _default_data(data)
    environment = dataclasses.replace(config.environment, kind=kind)  # type: ignore[arg-type]  # checked above
    config = dataclasses.replace(config, environment=environment, mandate=MandateConfig(base="none"))
    normaliser = build_market(panel, config.features.names, (0, span[0] - 1), environment.fill).normaliser
    pipeline = Pipeline(
        name=kind,
        panel=panel,
        build=market_builder(config, normaliser),
        rules=rules_of(environment),
        cash=environment.cash,
        out_of_sample=span[0],
        make_env=audit_env_factory(environment),
    )
    terms = (environment.cost_bps, probes, warm_up_bars, on_step)
    found, _ = run_checks(pipeline, None, *terms, every_bar=every_bar)
    return Audit(kind, tuple(found))


def _default_data(data: str | None) -> tuple[RunConfig, Panel, tuple[int, int]]:
    """The default config, its panel, and the bars on which costs are varied.

    These are the validation split, or the second half of a panel that is too short for splits. Probes start at their
    first.
    """
    return _data_of(RunConfig()) if data is None else _data_of(RunConfig(data=DataConfig(data)), default_splits=True)


def _data_of(config: RunConfig, *, default_splits: bool = False) -> tuple[RunConfig, Panel, tuple[int, int]]:
    """The config, its panel, and the bars of `_default_data`. default_splits: those of a panel without a config."""
    panel = load_panel(config)
    if len(panel.times) < MIN_BARS:
        raise DataError(f"an audit needs at least {MIN_BARS} bars, panel {panel.name!r} has {len(panel.times)}")
    try:
        splits = splits_of_panel(panel) if default_splits else config.splits
        validation = make_splits(panel.times, splits).validation
    except (DataError, ConfigError):
        return config, panel, (len(panel.times) // 2, len(panel.times) - 1)
    return config, panel, (validation.first, validation.last)
