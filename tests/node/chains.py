"""A common development node, started for the tests: anvil. The embedded chain is in tests/game/scene.py."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vgame.chain.connection import Chain
from vgame.errors import ChainError

ANVIL = Path(__file__).resolve().parents[2] / "node_modules" / ".bin" / "anvil"


def is_installed() -> bool:
    return ANVIL.exists() and shutil.which("node") is not None


@contextmanager
def anvil() -> Iterator[Chain]:
    """A new anvil with the EVM version of the contracts, stopped at the end."""
    if not is_installed():
        message = "anvil is missing: install node, then run `npm install`"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [str(ANVIL), "--port", str(port), "--hardfork", "prague", "--balance", "1000000", "--silent"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        assert wait_until(lambda: process.poll() is not None or answers(port), 30)
        assert process.poll() is None, "anvil stopped at once"
        yield Chain(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(10)


def answers(port: int) -> bool:
    try:
        return Chain(f"http://127.0.0.1:{port}").now() > 0
    except ChainError:
        return False


def wait_until(condition: Callable[[], bool], timeout: float, poll: float = 0.05) -> bool:
    """Poll until the condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(poll)
    return True
