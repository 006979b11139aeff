"""The commands in deploy/ exist. `make lint` checks the files themselves, scripts/containers.py runs them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from vgame.cli import app

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
VALUES = {"GAME": "0x" + "11" * 20, "JOB": "22" * 32}


def commands() -> dict[str, str]:
    """Words after `vgame` of each service, and of the unit's example."""
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    found = {name: service["command"] for name, service in services.items() if service["image"] == "vgame"}
    (found["unit"],) = re.findall(r"^#   ARGUMENTS=(.*)$", (DEPLOY / "vgame@.service").read_text(), re.MULTILINE)
    return {name: re.sub(r"\$\{(\w+)\}", lambda m: VALUES[m[1]], text) for name, text in found.items()}


def test_every_role_has_a_service() -> None:
    assert set(commands()) == {"trainer", "auditor", "watch", "unit"}


@pytest.mark.parametrize("name", ["trainer", "auditor", "watch", "unit"])
def test_a_service_passes_valid_options_to_its_command(name: str) -> None:
    words = shlex.split(commands()[name].replace("0x...", VALUES["GAME"]).replace("https://...", "https://example.org"))
    group = typer.main.get_command(app)
    context = group.commands[words[0]].make_context(words[0], words[1:])  # raises an error for an unknown option
    assert context.params["rpc"] and context.params["game"] == VALUES["GAME"]


def market() -> list[str]:
    """Each command of vgame in deploy/market.yaml, in its order."""
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "market.yaml").read_text())["services"]
    lines = "\n".join(line for service in services.values() for line in service["command"]).replace("\\\n", " ")
    words = lines.replace('"$$(cat job)"', VALUES["JOB"]).replace("> posted", "")
    return re.findall(r"\bvgame ([a-z][^;\n]*)", words)


def test_the_market_is_that_of_the_guide() -> None:
    """Every command exists, and the roles, options and keys are the guide's."""
    group = typer.main.get_command(app)
    for words in map(shlex.split, market()):
        command, rest = group.commands[words[0]], words[1:]
        if words[0] == "job":
            command, rest = command.commands[words[1]], words[2:]
        command.make_context(words[0], rest)
    guide = (DEPLOY.parent / "docs" / "guide.md").read_text()
    played = {line.split(" --")[0] for line in market()}
    assert played == {"chain", "prepare /data/mine.toml", "deploy", "job post bundle", "trainer", "auditor", "watch"}
    keys = re.findall(r"^(?:CLIENT|TRAINER|AUDITOR)=(0x\w+)$", guide, re.MULTILINE)
    assert re.findall(r"VGAME_KEY=(0x\w+)", (DEPLOY / "market.yaml").read_text()) == keys


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed: the unit is not verified")
    text = (DEPLOY / "vgame@.service").read_text()
    (tmp_path / "vgame@.service").write_text(text.replace("/usr/local/bin/vgame", sys.executable))
    output = subprocess.run(["systemd-analyze", "verify", tmp_path / "vgame@.service"], capture_output=True, text=True)
    assert (output.returncode, output.stderr) == (0, "")
