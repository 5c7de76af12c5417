"""The server's process: Streamlit's own command, while what the first page needs is loaded beside it.

Streamlit imports a script when the first visitor comes, who would wait for pandas and what stands on it.
"""

from __future__ import annotations

import importlib
import sys
import threading

FIRST_NEEDED = ("pandas", "pyarrow", "finrl_pod_app.dashboard.pages.overview")


def main() -> None:
    """Run `streamlit` with this process's arguments. It does not return."""
    from streamlit.web.cli import main as streamlit

    threading.Thread(target=_load, daemon=True).start()
    sys.exit(streamlit(prog_name="streamlit"))


def _load() -> None:
    for name in FIRST_NEEDED:
        importlib.import_module(name)


if __name__ == "__main__":
    main()
