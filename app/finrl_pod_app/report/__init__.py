"""The report of a run: the object of report.json, and the page made from it."""

from finrl_pod_app.report.document import build_document, write_json
from finrl_pod_app.report.html import write_report

__all__ = ["build_document", "write_json", "write_report"]
