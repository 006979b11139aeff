"""A command in a process of its own, for devices whose environment must be set before torch is loaded; its output is
JSON lines."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from vgame.errors import PARENT_VARIABLE, VgameError
from vgame.system.progress import NullProgress

log = logging.getLogger("vgame")

SECRETS = ("VGAME_KEY", "VGAME_KEYSTORE", "VGAME_PASSWORD")  # as in demo/processes.py: computing processes get no keys


def child_environment() -> dict[str, str]:
    """This process's environment without keys; imports the same vgame."""
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
    return kept | {"PYTHONPATH": paths, PARENT_VARIABLE: str(os.getpid())}


def run_apart(command: str, *arguments: object, listener: NullProgress) -> dict[str, Any]:
    """The last event of `vgame COMMAND ARGUMENTS --json`. VgameError with the command's error message if it fails."""
    line = [sys.executable, "-P", "-m", "vgame.cli", command, *map(str, arguments), "--json"]
    log.info("starts a process of its own: vgame %s", " ".join(line[4:]))
    event: dict[str, Any] = {}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=errors, text=True, env=child_environment())
        try:
            assert process.stdout is not None
            for text in process.stdout:
                event = json.loads(text)
                if event["event"] == "progress":
                    listener.progress(event["what"], event["done"], event["total"], event["detail"])
                elif event["event"] == "forecast":
                    listener.emit(**event)
            code = process.wait()
        finally:
            if process.poll() is None:  # cancelled
                process.terminate()
                process.wait()
        errors.seek(0)
        lines = errors.read().strip().splitlines()
    if code not in (0, 2):
        raise VgameError(
            lines[-1].removeprefix("vgame: ") if lines else f"{' '.join(line)} ended with exit code {code}"
        )
    return event
