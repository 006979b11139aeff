"""A connection to a node on this machine: the polling interval of an idle role, and no use of proxies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from vgame.chain.connection import Chain
from vgame.chain.embedded import serve


@pytest.fixture
def chain() -> Iterator[Chain]:
    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    chain = Chain(f"http://127.0.0.1:{server.server_port}")
    chain.pause(0)
    yield chain
    server.shutdown()
    server.server_close()


def paused(chain: Chain, seconds: float) -> float:
    begin = time.monotonic()
    chain.pause(seconds)
    return time.monotonic() - begin


def test_a_pause_ends_with_a_block(chain: Chain) -> None:
    threading.Timer(0.2, chain.advance, [1]).start()
    assert 0.1 < paused(chain, 60) < 30


def test_a_block_mined_during_the_round_ends_the_pause_at_once(chain: Chain) -> None:
    chain.advance(1)
    assert paused(chain, 60) < 30


def test_without_a_block_a_pause_ends_in_time(chain: Chain) -> None:
    assert 0.3 <= paused(chain, 0.3) < 30


def test_connections_to_this_machine_use_no_proxy(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert Chain(chain.url).chain_id == chain.chain_id
