"""The code of a Python file: a change of comments and docstrings alone is no change of code."""

from __future__ import annotations

import io
import subprocess
import tokenize
from collections.abc import Sequence
from functools import partial
from pathlib import Path

BEGIN = (tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)  # a statement follows


def code_of(text: str) -> list[tuple[int, str]]:
    """Tokens without comments, blank lines and strings that are statements."""
    kept = [(tokenize.ENCODING, "")]
    tokens = [t[:2] for t in tokenize.generate_tokens(io.StringIO(text).readline)]
    tokens = [t for t in tokens if t[0] not in (tokenize.COMMENT, tokenize.NL)]
    for token, following in zip(tokens, [*tokens[1:], (tokenize.ENDMARKER, "")], strict=True):
        if token[0] == tokenize.STRING and kept[-1][0] in BEGIN and following[0] == tokenize.NEWLINE:
            continue
        if token[0] == tokenize.NEWLINE and kept[-1][0] in BEGIN:
            continue
        kept.append((token[0], "" if token[0] == tokenize.INDENT else token[1]))
    return kept


def last_change(root: Path, paths: Sequence[str]) -> str:
    """The hash of the last commit that changed code in these paths of git; with a + where the checkout differs from
    it."""
    git = partial(_git, root)
    changed = git("diff", "--name-only", "HEAD", "--", *paths).split()
    suffix = "+" * any(_differs(git("show", f"HEAD:{name}"), _read(root / name), name) for name in changed)
    for commit in git("log", "--no-merges", "--format=%H", "--", *paths).split():
        changed = git("diff-tree", "--root", "-r", "--no-commit-id", "--name-only", commit, "--", *paths).split()
        versions = ((git("show", f"{commit}^:{name}"), git("show", f"{commit}:{name}"), name) for name in changed)
        if any(_differs(*version) for version in versions):
            return commit[:12] + suffix
    return suffix


def _differs(before: str, after: str, name: str) -> bool:
    if name.endswith(".py") and before and after:
        return code_of(before) != code_of(after)
    return before != after


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _git(root: Path, *words: str) -> str:
    """The output of git; empty if it fails, for example for a file that a commit does not have."""
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, errors="replace").stdout
