"""`vgame --help` in groups, and docs/commands.md: every command that is shown, in whole sentences."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from vgame.chain.wallet import deploy_game
from vgame.cli.commands import app
from vgame.cli.options import ALONE, LOOK, ON_CHAIN, TOOLS
from vgame.system.progress import NullProgress

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "commands.md").read_text()


def test_every_command_that_is_shown_stands_in_a_group() -> None:
    shown = [c for c in app.registered_commands if not c.hidden] + list(app.registered_groups)
    assert {c.rich_help_panel for c in shown} == {ALONE, ON_CHAIN, LOOK, TOOLS}


@pytest.mark.parametrize("command", app.registered_commands, ids=lambda c: c.callback.__name__)
def test_a_command_is_documented_unless_it_is_hidden(command: Any) -> None:
    name = command.callback.__name__
    listed = re.findall(rf"^\* `{name}`: (.*)$", PAGE.partition("## `vgame demo`")[0], re.MULTILINE)
    assert bool(listed) is (f"## `vgame {name}`" in PAGE) is not command.hidden
    assert all(line.endswith((".", "?")) and "..." not in line for line in listed)


def test_options_stay_on_the_page() -> None:
    done = subprocess.run([sys.executable, "scripts/commands.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "* `--quick`: " in PAGE and "* `--json`: " in PAGE


class Deployer:
    """What a wallet deploys, by name."""

    def deploy(self, name: str, *_: str) -> str:
        return f"0x{name}"


def test_a_deployment_says_how_far_it_is() -> None:
    heard: list[tuple[int, int, str]] = []

    class Listener(NullProgress):
        def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
            heard.append((done, total, detail))

    assert deploy_game(Deployer(), listener=Listener()) == "0xVerificationGame"  # type: ignore[arg-type]
    assert [done for done, _, _ in heard] == [0, 1, 2, 3, 4, 5, 6] and {total for _, total, _ in heard} == {6}
    assert {name for _, _, name in heard} >= {"Referee", "Logged", "Settlement", "Delivery", "VerificationGame"}


def test_the_report_is_no_file_of_the_repository() -> None:
    done = subprocess.run(["git", "check-ignore", "vgame-report.html"], cwd=ROOT, capture_output=True)
    assert done.returncode == 0
