"""The route that serves the HTML reports of runs, embedded in pages and opened in a tab.

Frames of Streamlit run scripts with the rights of the page. A report is served with a sandbox policy instead: whatever
a file named report.html contains, it has no origin, no network and no access to the dashboard. Its address is signed,
since only pages know whether a visitor has logged in.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode

from finrl_pod.errors import RunError
from finrl_pod_app.dashboard.queries import runs
from finrl_pod_app.dashboard.settings import Settings

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PATH = "/report"
# Scripts of the report are inline. Nothing is fetched, and only the dashboard itself may frame it.
POLICY = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; img-src data: blob:; font-src data:; frame-ancestors 'self'"
)
_KEY = secrets.token_bytes(32)  # of this process: addresses expire with the server


def report_url(name: str) -> str:
    """The address of the report of a run, relative to the root of the server, for visitors who may see the pages."""
    return f"{PATH}?{urlencode({'name': name, 'key': _signature(name)}, quote_via=quote)}"


def is_signed(name: str, key: str) -> bool:
    """True if `key` is the signature of the address of the report."""
    return hmac.compare_digest(_signature(name).encode(), key.encode())


def read_page(run: runs.RunFiles) -> bytes:
    """The page of a report. Raises RunError if it cannot be read."""
    return runs.read_bytes(run.path / runs.PAGE, runs.MAX_PAGE_BYTES)


async def serve_report(request: Request) -> Response:
    """Answer GET /report?name=NAME&key=SIGNATURE."""
    from starlette.concurrency import run_in_threadpool
    from starlette.responses import PlainTextResponse, Response

    name, key = (request.query_params.get(parameter, "") for parameter in ("name", "key"))
    # In a separate tab the report may open the print dialog to save it as PDF; in a frame it opens none.
    own_tab = request.headers.get("sec-fetch-dest") == "document"
    policy = POLICY.replace("allow-scripts", "allow-scripts allow-modals") if own_tab else POLICY
    headers = {"content-security-policy": policy, "cache-control": "no-store"}
    if not is_signed(name, key):
        return PlainTextResponse("The address is not valid any more: open the report from the run's page.\n", 403)
    try:
        root = Settings.from_environment(os.environ).runs
        page = await run_in_threadpool(lambda: read_page(runs.open_run(root, name)))
    except RunError as error:
        return PlainTextResponse(f"{error}\n", 404)
    return Response(page, media_type="text/html; charset=utf-8", headers=headers)


def _signature(name: str) -> str:
    return hmac.new(_KEY, name.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()[:32]
