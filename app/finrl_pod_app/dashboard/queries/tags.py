"""Tags that visitors give to runs, in tags.json of each run's folder."""

from __future__ import annotations

from collections.abc import Sequence

from finrl_pod.errors import InputError, RunError
from finrl_pod.files import write_json
from finrl_pod_app.dashboard.queries.run_files import TAGS, RunFiles, is_file

MAX_TAG, MAX_TAGS = 30, 20


def save_tags(run: RunFiles, tags: Sequence[str]) -> None:
    """Replace the tags of a run. Raises InputError for more or longer tags than allowed, RunError from writing."""
    cleaned = list(dict.fromkeys(" ".join(tag.split()) for tag in tags))
    cleaned = [tag for tag in cleaned if tag]
    if len(cleaned) > MAX_TAGS:
        raise InputError(f"a run has at most {MAX_TAGS} tags, got {len(cleaned)}")
    for tag in cleaned:
        if len(tag) > MAX_TAG or not tag.isprintable():
            raise InputError(f"a tag has at most {MAX_TAG} printable characters, got {tag[:60]!r}")
    file = run.path / TAGS
    if file.is_symlink() or (file.exists() and not is_file(file)):
        raise RunError(f"{file} is not a regular file: remove it first")
    write_json(file, {"tags": cleaned})
