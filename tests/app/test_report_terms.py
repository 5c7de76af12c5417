"""Terms of a report are explained in the section that uses them first, once."""

from __future__ import annotations

import re

from finrl_pod_app.report.terms import NOTE_PLACE, TERMS, explain


def explained(section: str) -> list[str]:
    """The terms that a section explains, in order."""
    return re.findall(r"<strong>([^<]+)</strong>:", section)


def test_terms_are_explained_at_their_first_use_and_once() -> None:
    first, second = explain(
        [
            "<div><p>The champion has a CAGR of 3% and two looks.</p></div>",
            "<section><p>Champions, a look, and 5 basis points.</p></section>",
        ]
    )
    assert explained(first) == ["champion", "Annual return (CAGR)", "look"]
    assert explained(second) == ["basis point"]
    assert second.endswith("<strong>basis point</strong>: one hundredth of a percent.</p></section>")


def test_a_section_may_have_a_place_for_its_note() -> None:
    first, second = explain(
        [f"<div><div>one pod{NOTE_PLACE}</div><p></p></div>", f"<div>{NOTE_PLACE}<p>a pod</p></div>"]
    )
    assert first.endswith("</p></div><p></p></div>")
    assert "<strong>pod</strong>" in first
    assert second == "<div><p>a pod</p></div>"


def test_the_longest_term_counts_and_definitions_of_the_page_are_kept() -> None:
    page = [
        "<p><strong>Turnover</strong>: what is traded; turnover</p>",
        "<script>agents</script>",
        "<p>effective trials</p>",
        "<p>turnover</p>",
    ]
    sections = explain(page)
    assert explained(sections[0]) == ["Turnover"]
    assert sections[1] == page[1]
    assert explained(sections[2])[0] == "effective trials"
    assert sections[3] == page[3]


def test_meanings_stand_alone_without_links() -> None:
    for term in TERMS:
        text = explain([f"<p>{term}</p>"])[0]
        meaning = re.findall(r"</strong>: ([^<]+?)[;.]", text)[0]
        assert "](" not in meaning
        assert len(meaning) > 10
