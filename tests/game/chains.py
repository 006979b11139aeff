"""A common development node, started for the tests: anvil. The embedded chain is in scene.py."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from scene import embedded_chain

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


@contextmanager
def still_anvil() -> Iterator[Chain]:
    """An anvil with the clock of the embedded chain: each block is one second later, and time passes only with
    blocks."""
    with anvil() as chain:
        request = chain.web3.provider.make_request  # also if a test replaces replies
        request("anvil_setBlockTimestampInterval", [1])

        def advance(seconds: int) -> bool:
            now = int(request("eth_getBlockByNumber", ["latest", False])["result"]["timestamp"], 16)
            request("evm_setNextBlockTimestamp", [now + max(1, seconds)])
            return "error" not in request("evm_mine", [])

        chain.advance = advance
        yield chain


def quick_chain() -> AbstractContextManager[Chain]:
    """A node with real replies, nonces and fees: anvil, in a third of the embedded chain's time, or where it is not
    installed the embedded chain."""
    return (still_anvil if is_installed() or os.environ.get("CI") else embedded_chain)()


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
