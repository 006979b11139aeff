"""The Python blocks of README and tutorial, run as a reader would: all of a page in one process, in an empty folder."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import re
import sys
import textwrap
from pathlib import Path

import forked
import pytest
from typed import files, section

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_python_blocks_run(page: str, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = forked.run([sys.executable, "page.py"], cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "MATCH" in done.stdout or "True" in done.stdout


def test_the_factory_of_the_guide_gets_the_jobs_seed(tmp_path: Path) -> None:
    import torch

    import vgame

    for name, content in files(section("docs/guide.md", "1. A task")):
        (tmp_path / name).write_text(content)
    order = (tmp_path / "mine.toml").read_text()
    (tmp_path / "other.toml").write_text(order.replace("seed = 7", "seed = 8"))
    models = [vgame.Job.from_toml(tmp_path / name).task.model for name in ("mine.toml", "mine.toml", "other.toml")]
    first, again, other = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_the_api_page_has_every_public_name() -> None:
    import vgame

    named = set(re.findall(r"^::: vgame\.(\w+)$", (ROOT / "docs/api.md").read_text(), re.MULTILINE))
    assert named == set(vgame.__all__) - {"__version__"}


def test_every_page_is_in_the_site() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").glob("*.md"):
        assert f": {page.name}\n" in site, f"mkdocs.yml does not name docs/{page.name}"


def test_every_field_of_the_api_is_described() -> None:
    """Below it, for the page of the API, or by name in the docstring of its class."""
    import vgame

    classes = [kind for name in vgame.__all__ if isinstance(kind := getattr(vgame, name), type)]
    missing = [f"{kind.__name__}.{field}" for kind in classes for field in sorted(undescribed(kind))]
    assert sum(len(fields(kind)) for kind in classes) > 90 and not missing


def fields(kind: type) -> set[str]:
    """The public fields that a dataclass or a model of pydantic has of its own."""
    own = vars(kind).get("__dataclass_fields__") or vars(kind).get("__pydantic_fields__") or {}
    return {name for name in own if name in inspect.get_annotations(kind) and not name.startswith("_")}


def undescribed(kind: type) -> set[str]:
    if not fields(kind):
        return set()
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    described = {
        first.target.id
        for first, then in itertools.pairwise(tree.body)
        if isinstance(first, ast.AnnAssign) and isinstance(then, ast.Expr) and isinstance(then.value, ast.Constant)
    }
    return {name for name in fields(kind) - described if f"`{name}`" not in (kind.__doc__ or "")}
