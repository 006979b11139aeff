"""Changes of code, which make the simulator play its seeds again, and changes of comments, which do not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts"))
from code_only import code_of, last_change

BEFORE = '''"""A module."""

LIMIT = 3  # seconds


class Player:
    """A player."""

    def move(self, name):
        """Its move."""
        # The first one.
        return f"{name} # {LIMIT}"
'''
SAME = {
    "a comment": BEFORE.replace("seconds", "minutes"),
    "no comments": BEFORE.replace("  # seconds", "").replace("        # The first one.\n", ""),
    "docstrings": BEFORE.replace("A module", "The module").replace("Its move", "The player's move,\n\n        of two"),
    "no docstring": BEFORE.replace('"""A module."""\n\n', ""),
    "blank lines": BEFORE.replace("\n\n\n", "\n\n"),
}
OTHER = {
    "a number": BEFORE.replace("3", "4"),
    "a text with a hash": BEFORE.replace("} # {", "} #  {"),
    "a returned string": BEFORE.replace('f"{name} # {LIMIT}"', '"""Its move."""'),
    "a name": BEFORE.replace("Player", "Role"),
    "the block of a statement": BEFORE.replace("        return", "    return"),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_a_change_of_comments_is_no_change_of_code(text: str) -> None:
    assert text != BEFORE and code_of(text) == code_of(BEFORE)


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_a_change_of_code_is_seen(text: str) -> None:
    assert code_of(text) != code_of(BEFORE)


def test_the_last_commit_that_changed_code(tmp_path: Path) -> None:
    def git(*words: str) -> str:
        author = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", *author, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    def commit(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        git("add", "-A")
        git("commit", "-m", name)
        return git("rev-parse", "HEAD")[:12]

    git("init")
    first = commit("a.py", BEFORE)
    assert commit("a.py", SAME["docstrings"]) != last_change(tmp_path, ["."]) == first
    second = commit("a.sol", "// a comment of another language counts")
    assert last_change(tmp_path, ["."]) == second and last_change(tmp_path, ["a.py"]) == first
    (tmp_path / "a.py").write_text(SAME["a comment"])
    assert last_change(tmp_path, ["."]) == second
    (tmp_path / "a.py").write_text(OTHER["a number"])
    assert last_change(tmp_path, ["."]) == f"{second}+"
    (tmp_path / "a.py").unlink()
    git("add", "-A")
    git("commit", "-m", "without it")
    assert last_change(tmp_path, ["."]) == git("rev-parse", "HEAD")[:12]
