"""`finrl-pod paper adopt`: rebuilds a lost journal from the broker, and puts it in place after a confirmation."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from finrl_pod.errors import InputError, JournalError
from finrl_pod.paper.brokers.factory import open_broker, open_clock
from finrl_pod.paper.domain.port import Broker
from finrl_pod.paper.execution.adoption import Adoption, adopt, own_orders
from finrl_pod.paper.journal.ledger import Ledger
from finrl_pod.paper.journal.row_check import open_checked
from finrl_pod.paper.journal.store import JournalLock, Store
from finrl_pod.paper.settings import PaperConfig, allocations

COMPANIONS = ("", "-wal", "-shm")


@dataclass(frozen=True)
class AdoptionReport(Adoption):
    """Books of a rebuilt journal. kept: new name of the former file, None without one. written: it is in its place."""

    journal: str
    kept: str | None
    written: bool


def adopt_journal(config: PaperConfig, *, write: bool) -> AdoptionReport:
    """Rebuild the journal of a config from its broker; with `write` in place of the journal, else to show it only.

    What lies there is kept under another name. Raises InputError if it is whole and has all orders, JournalError if a
    daemon runs on it, and BrokerError.
    """
    path = Path(os.path.realpath(config.journal))  # a link to it stays one
    clock = open_clock(config.broker)
    broker, _ = open_broker(config.broker, clock, listen=False)
    with contextlib.closing(broker), _lock_journal(path) if write else contextlib.nullcontext():
        if _is_whole(path, config, broker):
            raise InputError(f"journal {path} has all orders of this run: nothing is to be rebuilt. Start the daemon.")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
            rebuilt_file = Path(folder) / "journal.sqlite"
            now = clock.now()
            with contextlib.closing(Store.create_or_open(rebuilt_file)) as store:
                books = adopt(store, config, broker, now)
            former_file = _put_in_place(rebuilt_file, path, now) if write else None
    return AdoptionReport(**vars(books), journal=str(path), kept=former_file, written=write)


@contextlib.contextmanager
def _lock_journal(path: Path) -> Iterator[None]:
    """Keep daemons out. A journal that the lock creates is empty and removed again."""
    missing = not path.exists()
    with JournalLock(path):
        if missing:
            path.unlink()
        yield


def _is_whole(path: Path, config: PaperConfig, broker: Broker) -> bool:
    """Whether the journal in place can be read and has every own order of the broker."""
    if not path.exists():
        return False
    try:
        with contextlib.closing(open_checked(path)) as store:
            journal_ids = Ledger(store).client_order_ids()
    except JournalError:
        return False
    own_rows = own_orders(broker.orders("all"), [*(allocation.name for allocation in allocations(config)), config.name])
    return all(order.client_order_id in journal_ids for order, *_ in own_rows)


def _put_in_place(rebuilt_file: Path, path: Path, now: datetime) -> str | None:
    """Move the rebuilt journal to its place, and what lies there aside. Returns the new name of the latter."""
    aside = path.with_name(f"{path.name}.before-{now:%Y%m%dT%H%M%S}")
    is_replaced = path.exists()
    for companion in COMPANIONS:
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{companion}", f"{aside}{companion}")
    os.replace(rebuilt_file, path)
    return str(aside) if is_replaced else None
