"""Replies of an endpoint that are replaced, and calls that are counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from vgame.chain import final, pauses
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Standing
from vgame.delivery import calls, looks


@contextmanager
def altered(chain: Chain, method: str, change: Callable[[Any, Callable[..., Any]], Any]) -> Iterator[None]:
    """The endpoint replies to a method with `change(params, usual)`."""
    provider = chain.web3.provider
    usual, cached = provider.make_request, provider._request_func_cache

    def request(name: str, params: Any) -> Any:
        return change(params, lambda: usual(name, params)) if name == method else usual(name, params)

    with patch.object(provider, "make_request", request):
        provider._request_func_cache = (None, None)
        yield
    provider._request_func_cache = cached


@contextmanager
def invented_estimates(chain: Chain) -> Iterator[None]:
    """If the node refuses an estimate, the endpoint replies with a number."""

    def estimate(_: Any, usual: Callable[[], Any]) -> Any:
        answer = usual()
        return {"jsonrpc": "2.0", "id": 1, "result": hex(300_000)} if "error" in answer else answer

    with altered(chain, "eth_estimateGas", estimate):
        yield


@contextmanager
def invented_results(chain: Chain) -> Iterator[None]:
    """If a call reverts, the endpoint replies with an empty result."""

    def call(_: Any, usual: Callable[[], Any]) -> Any:
        answer = usual()
        return {"jsonrpc": "2.0", "id": 1, "result": "0x"} if "error" in answer else answer

    with altered(chain, "eth_call", call):
        yield


def own_clock(monkeypatch: pytest.MonkeyPatch, chain: Chain, *more: ModuleType) -> None:
    """The process has the clock of the chain, in pauses, times of replies, and more modules."""
    clock = SimpleNamespace(monotonic=chain.now, sleep=lambda seconds: chain.advance(max(1, int(seconds))))
    for module in (calls, final, looks, pauses, *more):
        monkeypatch.setattr(module, "time", clock)


def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of pauses is an hour later at each reading."""
    hours = count(0.0, 3600.0)
    monkeypatch.setattr(pauses, "time", SimpleNamespace(monotonic=lambda: next(hours)))


def refused() -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": -32005, "message": "try later"}}


def show_stale(game: Game, number: int, old: Standing) -> None:
    """Show one dispute in an old state, all others as they are."""
    usual, turn = game.disputes, game.turn
    game.disputes = lambda *args: [old if s.number == number else s for s in usual(*args)]
    game.turn = lambda job, n: (old.turn, old.deadline) if n == number else turn(job, n)


def show_late(game: Game) -> None:
    """The state directly after a receipt comes from a node one block behind; the next look sees everything."""
    usual, chain = game._visible, game.chain

    def visible(name: str, args: Any, block: int) -> bool:
        with chain.at(block - 1):
            return usual(name, args, block)

    game._visible = visible
