"""Hook of the site: links of pages to files outside docs/ lead to the repository."""

import re
from typing import Any

_OUTSIDE = re.compile(r"\]\((?:\.\./)+([^)]*)\)")


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001
    """Replace ](../path) of pages in docs/ itself."""
    if page.file.src_uri.count("/"):
        return markdown
    return _OUTSIDE.sub(lambda found: f"]({config.repo_url}/blob/main/{found[1]})", markdown)
