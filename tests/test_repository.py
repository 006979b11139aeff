"""The house rules that a program can check: direction of imports, the README's map, nothing of a machine in tracked
files."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import wide

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


def test_the_game_does_not_depend_on_the_machine() -> None:
    for path in tracked("vgame/chain/*.py", "vgame/dispute/*.py"):
        wrong = {
            m
            for m in imports(path, top_level_only=False)
            if m.startswith(
                ("vgame.execute", "vgame.program", "vgame.runs", "vgame.logged", "vgame.agents", "vgame.demo")
            )
        }
        assert not wrong, f"{path.name} imports {wrong}"


def test_the_direction_of_imports_has_no_exemption() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    assert not checked.get("exclude_type_checking_imports")
    assert [c["name"] for c in checked["contracts"] if any(key.startswith("ignore") for key in c)] == []
    circles = [c for c in checked["contracts"] if c["type"] == "acyclic_siblings"]
    assert [c["ancestors"] for c in circles] == [["vgame", "vgame.**"]]


def test_one_table_says_what_the_mode_logged_changes() -> None:
    """vgame/program/modes.py; folders of runs and orders read it. An auditor refuses an order without a log."""
    names = {p.relative_to(ROOT / "vgame").with_suffix("").as_posix(): p.read_text() for p in tracked("vgame/*.py")}
    compares = re.compile(r"[!=]= \"logged\"|isinstance\([^)]*\bLogged")
    assert {name for name, text in names.items() if compares.search(text)} == {"agents/auditor_service"}
    reads = {name for name, text in names.items() if ".keeps_log" in text}
    assert reads == {"job/bundle", "runs/folder", "runs/logged_order"}


PLANTED = {
    "imported": "from planted.room import b",
    "imported in a function": "def f():\n    from planted.room import b",
    "imported for types": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from planted.room import b",
    "none": "",
}


@pytest.mark.parametrize("circle", PLANTED)
def test_a_circle_is_found(tmp_path: Path, circle: str) -> None:
    room = tmp_path / "planted/room"
    room.mkdir(parents=True)
    files = {"../__init__": "", "__init__": "", "a": PLANTED[circle], "b": "from planted.room import a"}
    for file, text in files.items():
        (room / f"{file}.py").write_text(f"{text}\n")
    text = (ROOT / "pyproject.toml").read_text()
    options = text[text.index("[tool.importlinter]") : text.index("[[tool.importlinter.contracts]]")]
    circles = text[text.index('name = "No circles"') : text.index("[tool.mypy]")]
    checked = f"{options}[[tool.importlinter.contracts]]\n{circles}"
    (tmp_path / "pyproject.toml").write_text(checked.replace("vgame", "planted"))
    command = [f"{sys.prefix}/bin/lint-imports", "--no-cache", "--no-logo"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == (circle != "none"), done.stdout + done.stderr
    assert circle == "none" or "No cycles are allowed in planted.room" in done.stdout


def test_everything_public_has_strict_types() -> None:
    import vgame

    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    files = {p.relative_to(ROOT).as_posix() for pattern in checked["files"] for p in ROOT.glob(pattern)}
    public = {f"{module.replace('.', '/')}.py" for module in vgame._PLACES} | {
        p.relative_to(ROOT).as_posix() for p in tracked("vgame/*.py") if p.parent == ROOT / "vgame"
    }
    assert checked["strict"] and sorted(public - files) == ["vgame/__main__.py"]


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


def test_every_file_that_contributing_names_exists() -> None:
    """By its path, or by the end of one."""
    names = re.findall(r"`([\w/*.-]+\.(?:py|sol|json|toml|md))`", (ROOT / "CONTRIBUTING.md").read_text())
    files = [p.relative_to(ROOT).as_posix() for p in tracked()]
    assert len(names) > 30
    assert [name for name in names if not fnmatch.filter(files, name) + fnmatch.filter(files, f"*/{name}")] == []


MOST_LINES = 400


def test_every_long_test_exists() -> None:
    """tests/wide.txt names them: a test of another name would be run by `make test` again."""
    for line in wide.LONG.read_text().splitlines():
        name, _, function = wide.parsed(line)[0].partition("::")
        tree = ast.parse((ROOT / name).read_text())
        tests = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        assert not function or function.split("::")[-1] in tests, line


def test_no_file_is_too_long() -> None:
    lengths = {
        p.relative_to(ROOT).as_posix(): len(p.read_text().splitlines()) for p in tracked("*.py", "*.sol", "*.js")
    }
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES} == {}


def test_each_part_of_an_interface_is_documented() -> None:
    for path in tracked("contracts/I*.sol"):
        lines = path.read_text().splitlines()
        for before, line in itertools.pairwise(lines):
            if re.match(r"    (function|event|error|struct|enum) ", line):
                assert before.strip().startswith("///"), f"{path.name}: {line.strip()}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_the_page_of_the_contracts_matches_natspec(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import contract_page

    assert contract_page.PAGE.read_text() == contract_page.page(), "run scripts/contract_page.py"
    assert contract_page.parts_of("    /// @notice One.\n    event Two(bytes32 three);\n")[0].text == "One."


def test_the_changelog_is_short() -> None:
    assert len((ROOT / "CHANGELOG.md").read_text().splitlines()) <= 200


def test_each_program_is_called_or_on_the_page_of_experiments() -> None:
    texts = {p: p.read_text() for p in tracked("Makefile", ".ci/*", "tests/*.py", "scripts/*.py")}
    for script in tracked("scripts/*.py"):
        assert any(re.search(rf"\b{script.stem}\b", text) for p, text in texts.items() if p != script), script.name
    page = (ROOT / "experiments/README.md").read_text()
    for experiment in tracked("experiments/*.py"):
        assert experiment.name in page, f"experiments/README.md does not name {experiment.name}"


NAMES = re.compile(r"(vgame|verified[-_.]training)(\[[^\]]*\])?([=<>!~].*)?", re.IGNORECASE)
BETWEEN = r"(?:[ \t\"',#\\]|\n(?!\s*\n))+"  # words of a command, also in a list or over two lines of prose
INSTALLS = re.compile(
    rf"\b(?:(?:pip3?|pipx|uv tool|conda){BETWEEN}install|uv add|uvx|poetry add|pipx run)\b"
    rf"((?:{BETWEEN}[\w.{{}}\[\]=<>!~@:/+-]+)+)"
)
EXTRA_OF_ANOTHER = re.compile(r"\bvgame\[\{?\w")


def installed_by_name(text: str) -> list[str]:
    """Commands that ask a package index for this project, and extras of the name `vgame`, which is a stranger's."""
    commands = [" ".join(found.group(0).split()) for found in INSTALLS.finditer(text) if _by_name(found.group(1))]
    return commands + EXTRA_OF_ANOTHER.findall(text)


def _by_name(words: str) -> bool:
    called = [word.strip(".") for word in re.split(BETWEEN, words)]
    return any(
        NAMES.fullmatch(word) and after != "@" for word, after in itertools.zip_longest(called, called[1:])
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "pip install vgame", "`pip install\n'vgame[chain]'`", "pip install -U torch vgame==0.1.10", "uv add vgame",
        "python -m pip install -q verified-training", 'RUN pip install "Verified_Training[watch]>=0.1"',
        "extra `vgame[data]`", "pip install 'vgame[{extra}]'", "pip install --index-url URL vgame",
        "RUN pip install torch \\\n    && pip install \\\n    vgame",
        '["-m", "pip", "install", "-q", "vgame"]',
    ],
)  # fmt: skip
def test_a_command_that_queries_an_index_is_found(text: str) -> None:
    assert installed_by_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "pip install -e .", "pip install -e '.[chain]'", "in the clone of vgame: pip install '.[watch]'",
        "pip install 'verified-training[chain] @ git+URL'", "install -d -o vgame /data",
    ],
)  # fmt: skip
def test_a_command_that_installs_from_the_repository_is_none(text: str) -> None:
    assert not installed_by_name(text)


def test_no_tracked_file_installs_by_name() -> None:
    """The distribution is not published, and `vgame` on the package index is a stranger's."""
    read = [p for p in tracked() if p.name not in (Path(__file__).name, "package-lock.json") and p.suffix != ".png"]
    hits = {p.relative_to(ROOT).as_posix(): installed_by_name(p.read_text(errors="ignore")) for p in read}
    assert {name: found for name, found in hits.items() if found} == {}


def test_the_distribution_has_a_name_of_its_own() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = [w for words in project["optional-dependencies"].values() for w in words if NAMES.fullmatch(w)]
    assert project["name"] == "verified-training" and list(project["scripts"]) == ["vgame"]
    assert own and all(word.startswith("verified-training[") for word in own)
