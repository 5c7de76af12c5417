"""The daemon's settings as its journal keeps them, so that the journal alone says what an account is measured by."""

from __future__ import annotations

import json
from datetime import datetime

from finrl_pod.paper.journal import schema
from finrl_pod.paper.journal.store import Store
from finrl_pod.paper.settings import PaperConfig, plain


def keep(store: Store, config: PaperConfig, at: datetime) -> None:
    """Write the settings down, where they are not what was written last."""
    content = json.dumps(plain(config), sort_keys=True)
    last = store.last(schema.settings)
    if last is None or last.content != content:
        store.add(schema.settings, at, content=content)
