"""The house rules that a program can check: direction of imports, the README's map, nothing of a machine in tracked
files."""

from __future__ import annotations

import ast
import itertools
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


TORCH_FREE = (
    "vgame/chain",
    "vgame/dispute",
    "vgame/attacks/adversaries.py",
    "vgame/errors.py",
    "vgame/system/files.py",
    "vgame/system/progress.py",
    "vgame/commit/machine.py",
    "vgame/commit/merkle.py",
    "vgame/commit/words.py",
)


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [ROOT / line for line in listing.splitlines() if (ROOT / line).is_file()]


def imports(path: Path, top_level_only: bool = True) -> set[str]:
    """Modules that a file imports when it is loaded."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else ast.walk(tree)
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_torch_and_web3_are_imported_only_where_they_belong() -> None:
    for path in tracked("vgame/*.py"):
        name = path.relative_to(ROOT).as_posix()
        modules = {m.split(".")[0] for m in imports(path, top_level_only=False)}
        if name.startswith(TORCH_FREE):
            assert "torch" not in modules, f"{name} imports torch"
        if not name.startswith(("vgame/chain/", "vgame/dispute/")):
            assert "web3" not in modules, f"{name} imports web3"


def test_the_game_does_not_depend_on_what_computes() -> None:
    for path in tracked("vgame/chain/*.py", "vgame/dispute/*.py"):
        wrong = {
            m
            for m in imports(path, top_level_only=False)
            if m.startswith(
                ("vgame.execute", "vgame.program", "vgame.runs", "vgame.logged", "vgame.agents", "vgame.demo")
            )
        }
        assert not wrong, f"{path.name} imports {wrong}"


REGISTRIES = r"\b(pypi|npmjs|deb\.debian|registry\.\w+)\.(org|com|net)\b"
FOLDERS = r"(?<![\w.~-])/(home|Users|mnt|srv|opt)/\w"


@pytest.mark.parametrize(
    "pattern", [REGISTRIES, FOLDERS, re.escape(f"{ROOT.parent}/".replace("//", f"/{ROOT.name}/")), '"resolved"']
)
def test_no_tracked_file_names_a_machine_or_a_registry(pattern: str) -> None:
    me = Path(__file__).name
    hits = [
        p.name
        for p in tracked()
        if p.name != me and p.suffix not in {".png"} and re.search(pattern, p.read_text(errors="ignore"))
    ]
    assert not hits


def test_the_readme_map_is_complete() -> None:
    text = (ROOT / "README.md").read_text()
    folders = {p.relative_to(ROOT).parts[0] for p in tracked("*/*") if not p.relative_to(ROOT).parts[0].startswith(".")}
    packages = {f"vgame/{p.relative_to(ROOT).parts[1]}" for p in tracked("vgame/*/*.py")}
    for place in folders | packages:
        assert f"`{place}/`" in text, f"README's map does not name {place}/"


def test_every_document_that_is_linked_exists() -> None:
    for page in tracked("*.md"):
        for target in re.findall(r"\]\(([^)#:]+?\.(?:md|json|png|html))\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


MOST_LINES = 400


def test_no_file_is_too_long() -> None:
    lengths = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in tracked("*.py", "*.sol", "*.js")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_each_part_of_an_interface_says_what_it_is() -> None:
    for path in tracked("contracts/I*.sol"):
        lines = path.read_text().splitlines()
        for before, line in itertools.pairwise(lines):
            if re.match(r"    (function|event|error|struct|enum) ", line):
                assert before.strip().startswith("///"), f"{path.name}: {line.strip()}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
