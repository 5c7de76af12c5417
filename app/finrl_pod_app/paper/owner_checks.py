"""The checks of an owner: `paper run --check` before the start, `paper verify` at any time. Neither sends an order."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Literal

from finrl_pod.data.sources.feature_tables import is_column, tables_of
from finrl_pod.data.tensor import build_market
from finrl_pod.errors import BrokerUnavailable, ConfigError, DataError, FeatureError, FinrlPodError, JournalError
from finrl_pod.evaluate.audit.determinism import check_warm_up
from finrl_pod.evaluate.audit.pipeline import Pipeline
from finrl_pod.files import reserve_room
from finrl_pod.market.execution import ExecutionRules
from finrl_pod.paper.brokers.factory import open_broker, open_clock
from finrl_pod.paper.domain.port import Broker, Clock, DataFeed
from finrl_pod.paper.execution.account_trader import check_assets
from finrl_pod.paper.execution.mandate_limits import check_strategies
from finrl_pod.paper.execution.price_check import fetch_checked_prices
from finrl_pod.paper.execution.reconcile import LOOKBACK
from finrl_pod.paper.journal.row_check import open_checked
from finrl_pod.paper.journal.store import JournalLock, Store
from finrl_pod.paper.monitoring.alerts import PING, check_address, check_receivers
from finrl_pod.paper.monitoring.health import check_port
from finrl_pod.paper.monitoring.telegram import TOKEN, check_users
from finrl_pod.paper.monitoring.verification import Verification, verify
from finrl_pod.paper.runtime.daemon import MAX_DRIFT
from finrl_pod.paper.settings import PaperConfig
from finrl_pod.protocols import Strategy
from finrl_pod.types import MarketTensor, Panel
from finrl_pod.user_files import unpinned
from finrl_pod_app.paper.sources import strategy_sources
from finrl_pod_app.setup.extension_checks import random_panel

CALENDAR_DAYS = timedelta(days=14)
JOURNAL_BYTES = 2**20  # free bytes that a journal needs at the start of the daemon
Status = Literal["ok", "failed", "skipped"]


@dataclass(frozen=True)
class CheckResult:
    """Result of one check. skipped: one that it builds on failed."""

    name: str
    status: Status
    detail: str


@dataclass(frozen=True)
class StartChecks:
    """Results of all checks before a start, in the order in which they were made."""

    checks: tuple[CheckResult, ...]

    @property
    def failed(self) -> bool:
        return any(check.status == "failed" for check in self.checks)


def verify_journal(config: PaperConfig, store: Store) -> Verification:
    """Compare a journal with the broker of its config. Raises FinrlPodError if one of them cannot be read."""
    clock = open_clock(config.broker)
    broker, _ = open_broker(config.broker, clock, listen=False)
    with contextlib.closing(broker):
        return verify(store, config, broker, clock)


def check_start(config: PaperConfig, *, allow_unpromoted: bool) -> StartChecks:
    """Check all that `run_daemon` needs. A failure is a result: nothing is raised but for the clock of the config."""
    clock = open_clock(config.broker)
    results: dict[str, CheckResult] = {}

    def check(name: str, make: Callable[[], str], *needs: str) -> None:
        failed_needs = [need for need in needs if results[need].status != "ok"]
        if failed_needs:
            results[name] = CheckResult(name, "skipped", f"needs {failed_needs[0]}")
            return
        try:
            results[name] = CheckResult(name, "ok", make())
        except FinrlPodError as error:
            results[name] = CheckResult(name, "failed", str(error))

    with contextlib.ExitStack() as closing:
        opened: list[tuple[Broker, DataFeed]] = []

        def check_keys() -> str:
            opened.append(open_broker(config.broker, clock, listen=False))
            closing.callback(opened[0][0].close)
            try:
                return f"{opened[0][0].name} accepts them for account {opened[0][0].account().id}"
            except BrokerUnavailable as error:
                raise BrokerUnavailable(f"not checked, as the broker cannot be reached: {error}") from None

        def champion() -> str:
            strategies.extend(
                source.current().strategy for source in strategy_sources(config, allow_unpromoted=allow_unpromoted)
            )
            return ", ".join(strategy.name for strategy in strategies)

        def limits() -> str:
            check_strategies(config, strategies)
            check_history(config, strategies)
            return "they leave room for the strategy"

        strategies: list[Strategy] = []
        check("journal", lambda: check_journal(config))
        check("port", lambda: _check_port(config))
        check("keys", check_keys)
        check("account", lambda: _check_account(config, opened[0][0]), "keys")
        check("calendar", lambda: _check_calendar(opened[0][0], clock), "keys")
        check("clock", lambda: _check_clock(opened[0][0], clock), "keys")
        check("receivers", lambda: _check_receivers(config))
        check("data", lambda: _check_data(config, *opened[0], clock), "keys", "calendar")
        check("champion", champion)
        check("limits", limits, "champion")
    return StartChecks(tuple(results.values()))


def check_journal(config: PaperConfig) -> str:
    """Check that the journal can be written and has room. Raises JournalError."""
    journal = Path(config.journal)
    try:
        reserve_room(journal.parent, JOURNAL_BYTES)
        if journal.exists():
            with open(journal, "r+b"):
                pass
    except OSError as error:
        raise JournalError(
            f"the journal {journal} cannot be written ({error.strerror}): make room, allow it, or name another path"
        ) from None
    return f"{journal} can be written"


def _check_port(config: PaperConfig) -> str:
    port = config.monitoring.port
    if not port:
        return "none is set: /health and /metrics are not served"
    if JournalLock(Path(config.journal)).is_held:
        return f"{port} is left to the daemon that runs on this journal"
    check_port(port)
    return f"{port} is free"


def check_history(config: PaperConfig, strategies: Sequence[Strategy]) -> None:
    """Raises ConfigError for features that change, on simulated prices, without bars older than `data.window`.

    Features of tables do not depend on older bars.
    """
    window = config.data.window
    panel = random_panel(2 * window + 100)
    for strategy in strategies if window else ():
        tables = tables_of(strategy)
        names = tuple(name for name in strategy.feature_names if not is_column(name, tables))

        def build(prices: Panel, names: tuple[str, ...] = names) -> MarketTensor:
            return build_market(prices, names, (0, len(prices.times) - 1))

        pipeline = Pipeline("features", panel, build, ExecutionRules(), 1.0, out_of_sample=len(panel.times) - 2)
        with contextlib.suppress(FeatureError):  # of these prices; decisions have others
            for finding in check_warm_up(pipeline, window, probes=1, deployed=True):
                if finding.status == "fail":
                    raise ConfigError(
                        f"data.window = {window} is too short for strategy {unpinned(strategy.name)}: "
                        f"{unpinned(finding.message)} Raise it, or set 0 for all sessions."
                    )


def _check_account(config: PaperConfig, broker: Broker) -> str:
    account = broker.account()
    if account.block:
        raise ConfigError(f"the account takes no orders: {account.block}. Clear that at the broker.")
    journal = Path(config.journal)
    if journal.exists():
        with contextlib.closing(open_checked(journal)) as store:
            store.check_bound("account", account.id)
    return f"equity {account.equity:,.2f}, cash {account.cash:,.2f}"


def _check_calendar(broker: Broker, clock: Clock) -> str:
    today = clock.now().date()
    sessions = broker.calendar(today, today + CALENDAR_DAYS)
    if not sessions:
        raise BrokerUnavailable(f"the calendar has no session within {CALENDAR_DAYS.days} days")
    return f"the next session is {sessions[0].date}"


def _check_clock(broker: Broker, clock: Clock) -> str:
    drift = clock.now() - broker.clock()
    if abs(drift) > MAX_DRIFT:
        raise BrokerUnavailable(f"the clock of this machine is {drift.days} days off the broker's: set it")
    return f"this machine's clock is {drift.total_seconds():+.0f} s off the broker's, which is used"


def _check_receivers(config: PaperConfig) -> str:
    """Check the settings of every receiver; nothing is sent: `paper alert --test` does that."""
    names = list(check_receivers(config.monitoring.webhook))
    if os.environ.get(PING):
        check_address(os.environ[PING], PING)
        names.append("ping")
    if os.environ.get(TOKEN):
        check_users(config.monitoring.telegram_users)
        names.append("telegram")
    return ", ".join(names) or "none is set: alerts are in the log and the journal only"


def _check_data(config: PaperConfig, broker: Broker, feed: DataFeed, clock: Clock) -> str:
    check_assets(broker, config)
    now = clock.now()
    sessions = broker.calendar(now.date() - CALENDAR_DAYS, now.date())
    bar = max((session.date for session in sessions if session.close <= now), default=None)
    if bar is None:
        raise BrokerUnavailable(f"the calendar has no session in the last {CALENDAR_DAYS.days} days")
    actions = broker.corporate_actions(config.symbols, bar - LOOKBACK, now.date())
    prices = fetch_checked_prices(feed, config.symbols, bar, actions, config.data, lambda *_: None)
    if prices.problems:
        raise DataError("; ".join(f"{symbol}: {problem}" for symbol, problem in sorted(prices.problems.items())))
    return f"{len(prices.panel.times)} sessions up to {bar} from {feed.name}"
