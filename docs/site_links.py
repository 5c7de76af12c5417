"""Hook of the site: links of pages to files outside docs/ lead to the repository."""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"\]\(([^)#:]+)(#[^)]*)?\)")
_DOCS = Path(__file__).parent


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Replace links of a page to what the site does not have: files outside docs/, and notebooks."""
    folder = (_DOCS / page.file.src_uri).parent

    def to_repository(found: re.Match[str]) -> str:
        target = (folder / found[1]).resolve()
        if target.is_relative_to(_DOCS) and target.suffix != ".ipynb":
            return found[0]
        return f"]({config.repo_url}/blob/main/{target.relative_to(_DOCS.parent)}{found[2] or ''})"

    return _LINK.sub(to_repository, markdown)
