"""`vgame --help` in groups, and docs/commands.md: every command that is shown, in whole sentences."""

from __future__ import annotations

import pydoc
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import forked
import pytest

import vgame
from vgame.chain.wallet import deploy_game
from vgame.cli.commands import app
from vgame.cli.options import ALONE, LOOK, ON_CHAIN, TOOLS
from vgame.system.progress import NullProgress

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_every_visible_command_is_in_a_group() -> None:
    shown = [c for c in app.registered_commands if not c.hidden] + list(app.registered_groups)
    assert {c.rich_help_panel for c in shown} == {ALONE, ON_CHAIN, LOOK, TOOLS}


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda c: c.callback.__name__)
def test_a_command_is_documented_unless_it_is_hidden(command: Any) -> None:
    name = command.callback.__name__
    listed = re.findall(rf"^\* `{name}`: (.*)$", PAGE.partition("## `vgame demo`")[0], re.MULTILINE)
    assert bool(listed) is (f"## `vgame {name}`" in PAGE) is not command.hidden
    assert all(line.endswith((".", "?")) and "..." not in line for line in listed)


#: First words of the summaries of commands.
VERBS = re.compile(
    r"accept|begin|capture|check|deploy|end|fetch|find|let|list|measure|order|pay|play|post|promise|propose|re-execute|"
    r"save|print|prove|serve|show|sound|test|train|write"
)


def test_a_summary_is_a_sentence() -> None:
    """It begins with its verb, preceded only by a role and a time."""
    summaries = re.findall(r"^\* `[a-z]+`: (.*)$", PAGE, re.MULTILINE)
    verbs = [re.match(r"(?:As [^,]+, (?:before [^,]+, )?)?([\w-]+)", line)[1].lower() for line in summaries]
    assert len(verbs) > 30 and not [verb for verb in verbs if not VERBS.fullmatch(verb)]


def test_options_stay_on_the_page() -> None:
    done = subprocess.run([sys.executable, "scripts/commands.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "* `--quick`: " in PAGE and "* `--json`: " in PAGE


CLASSES = [n for n in vgame.__all__ if is_dataclass(getattr(vgame, n)) or hasattr(getattr(vgame, n), "model_fields")]


@pytest.mark.parametrize("name", CLASSES)
def test_help_shows_fields_and_their_meaning(name: str) -> None:
    found = getattr(vgame, name)
    text = pydoc.render_doc(found, renderer=pydoc.plaintext)
    for field in [f.name for f in fields(found)] if is_dataclass(found) else found.model_fields:
        assert re.search(rf"^ \|      {field}: \S|`{field}`", text, re.MULTILINE), field
    assert "BeforeValidator" not in text.splitlines()[3]


WARNS = """
import sys, warnings
sys.path.insert(0, {folder!r})
from vgame.cli import commands
commands.app = lambda **_: __import__("warned").loud()
sys.argv = ["vgame"]
commands.main()
"""
LOUD = r"""
import warnings
import torch
def loud():
    for _ in range(2):
        warnings.warn("the loss\nis odd")
        torch.nn.LSTM(2, 8, dropout=0.1)
    warnings.warn("old", DeprecationWarning, stacklevel=1)
"""


def test_a_warning_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "warned.py").write_text(LOUD)
    done = forked.run([sys.executable, "-c", WARNS.format(folder=str(tmp_path))], cwd=tmp_path)
    first, second = done.stderr.splitlines()
    assert done.returncode == 0 and first == "vgame: warning: warned.py:6: the loss is odd"
    assert second.startswith("vgame: warning: dropout option adds dropout after all but last recurrent layer")


class Deployer:
    """Contracts deployed by a wallet, by name."""

    def deploy(self, name: str, *_: str) -> str:
        return f"0x{name}"


def test_a_deployment_reports_its_progress() -> None:
    reported: list[tuple[int, int, str]] = []

    class Listener(NullProgress):
        def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
            reported.append((done, total, detail))

    assert deploy_game(Deployer(), listener=Listener()) == "0xVerificationGame"  # type: ignore[arg-type]
    assert [done for done, _, _ in reported] == [0, 1, 2, 3, 4, 5, 6] and {total for _, total, _ in reported} == {6}
    assert {name for _, _, name in reported} >= {"Referee", "Logged", "Settlement", "Delivery", "VerificationGame"}


def test_the_report_is_not_a_file_of_the_repository() -> None:
    done = subprocess.run(["git", "check-ignore", "vgame-report.html"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
