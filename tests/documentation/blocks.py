"""Fenced code blocks of the documentation, with the comments above them that say how a test runs them.

<!-- not run: REASON -->              the next block is not run; REASON is one of `REASONS`, or a test file that runs it
<!-- not run: REASON, lines: TEXT --> the same for the lines of the next block that contain TEXT
<!-- run with: OLD -> NEW -->         the next block runs with OLD replaced by NEW, which shortens it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
REASONS = {
    "gpu": "needs a CUDA device",
    "cluster": "needs several machines or a cluster",
    "account": "needs an account or its keys",
    "network": "fetches from the network",
    "install": "installs packages, or builds what the tests run in",
    "hours": "takes minutes to hours",
    "service": "runs until it is stopped",
    "simulator": "needs a simulator of another vendor",
    "output": "shows a file or an answer, not input",
}
# Lines that are never run, by how they start; the rest of the line is checked where it can be.
NEVER_RUN = {
    "make ": "install",
    "pip ": "install",
    "pip install": "install",
    "pipx ": "install",
    "uvx ": "install",
    "uv ": "install",
    "docker ": "install",
    "kubectl ": "cluster",
    "printf ": "install",
    "sha256sum ": "output",
    "python -m benchmarks ": "hours",
    "finrl-pod paper demo": "hours",
    "finrl-pod dashboard": "service",
    "finrl-pod paper run ": "service",
    "finrl-pod paper fake-alpaca ": "service",
}
RUNNABLE = ("sh", "bash", "console", "python", "toml")
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_COMMENTS = re.compile(r"(?:<!-- [^\n]* -->\n\s*)+\Z")
_NOT_RUN = re.compile(r"<!-- not run: ([^,]*?)(?:, lines: (.*?))? -->")
_RUN_WITH = re.compile(r"<!-- run with: (.*?) -> (.*?) -->")


@dataclass(frozen=True)
class Block:
    """page: relative to the repository; line: of the fence, from 1.

    skipped: (reason, text) pairs: lines that contain the text are not run for that reason; "" is in all lines.
    """

    page: str
    line: int
    language: str
    text: str
    skipped: tuple[tuple[str, str], ...]
    replacements: tuple[tuple[str, str], ...]

    def reason(self, line: str = "") -> str:
        """Why a line, or without one the whole block, is not run; "" if it is."""
        marked = next((reason for reason, text in self.skipped if not text or (line and text in line)), "")
        line = line.removeprefix(".venv/bin/")
        return marked or next((reason for start, reason in NEVER_RUN.items() if line.startswith(start)), "")

    def commands(self) -> list[str]:
        """Lines of a shell block: continued lines joined, prompts, comments and answers of a console removed."""
        lines = [line.strip() for line in re.sub(r"\\\n\s*", " ", self.runnable_text).splitlines()]
        if self.language == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line and not line.startswith("#")]

    @property
    def runnable_text(self) -> str:
        """The text after its replacements. Raises ValueError if one does not occur."""
        text = self.text
        for old, new in self.replacements:
            if old not in text:
                raise ValueError(f"{self.page}:{self.line}: {old!r} does not occur")
            text = text.replace(old, new)
        return text


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    markdown = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(markdown):
        indent, language, text = match.groups()
        comments = _COMMENTS.search(markdown[: match.start()])
        above = comments[0] if comments else ""
        found.append(
            Block(
                page=str(page.relative_to(ROOT)),
                line=markdown.count("\n", 0, match.start()) + 1,
                language=language,
                text=re.sub(f"^{indent}", "", text, flags=re.MULTILINE),
                skipped=tuple(_NOT_RUN.findall(above)),
                replacements=tuple(_RUN_WITH.findall(above)),
            )
        )
    return found


def comments_of(page: Path) -> list[str]:
    """Comments of a page that look like these, to find misspelt ones."""
    return re.findall(r"<!-- *(?:not[ -]run|run[ -]with|skip).*? -->\n", page.read_text(encoding="utf-8"))
