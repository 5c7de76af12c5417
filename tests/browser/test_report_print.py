"""The printed report: a heading shares its page with its legend and first chart, and what is folded is printed."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.app.report_data import page_of, synthetic_document, synthetic_results

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# Links in the corners of what must share a page; the annotations of the PDF tell where they are printed.
MARK = """() => {
  const mark = (element, name) => ["afterbegin", "beforeend"].forEach((place) => {
    const link = document.createElement("a");
    link.href = `http://mark.invalid/${name}`;
    link.textContent = ".";
    element.insertAdjacentElement(place, link);
  });
  document.querySelectorAll(".block").forEach((block, i) => [...block.children]
    .filter((child) => child.tagName !== "SCRIPT").forEach((child) => mark(child, `block-${i}`)));
  document.querySelectorAll("details").forEach((details) => mark(details.lastElementChild, "folded"));
  return document.querySelectorAll(".block").length;
}"""

MARK_FIRST_PAGE = """() => ["afterbegin", "beforeend"].forEach((place) => document.querySelector(".first-page")
  .insertAdjacentHTML(place, '<a href="http://mark.invalid/first-page">.</a>'))"""


def pages_of_marks(pdf: bytes) -> dict[str, set[int]]:
    """Numbers of the pages on which each mark is printed, from an uncompressed PDF."""
    text = pdf.decode("latin1")
    objects = {int(number): body for number, body in re.findall(r"(?ms)^(\d+) 0 obj\s*(.*?)endobj", text)}
    pages = defaultdict(set)
    for number, body in objects.items():
        if re.search(r"/Type\s*/Page\b", body) and (notes := re.search(r"/Annots\s*\[(.*?)\]", body, re.DOTALL)):
            links = notes[1] + "".join(objects[int(note)] for note in re.findall(r"(\d+) 0 R", notes[1]))
            for name in re.findall(r"mark\.invalid/([\w-]+)", links):
                pages[name].add(number)
    return pages


def test_heading_legend_and_chart_and_the_first_page_share_a_page(browser: Browser, tmp_path: Path) -> None:
    results = synthetic_results()
    file = tmp_path / "report.html"
    file.write_text(page_of(synthetic_document(results), results, "run"))
    page = browser.new_page()
    page.goto(file.as_uri())
    page.locator(".js-plotly-plot").first.wait_for()
    page.evaluate(MARK_FIRST_PAGE)
    for size in ("A4", "Letter"):
        assert len(pages_of_marks(page.pdf(format=size))["first-page"]) == 1
    page.reload()
    page.locator(".js-plotly-plot").first.wait_for()
    blocks = page.evaluate(MARK)
    for size in ("A4", "Letter"):
        pages = pages_of_marks(page.pdf(format=size, print_background=True))
        assert "folded" in pages
        assert len(pages) == blocks + 1
        assert {name: numbers for name, numbers in pages.items() if len(numbers) > 1 and name != "folded"} == {}
    page.close()
