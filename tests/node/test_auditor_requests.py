"""The requests of an auditor with one quiet claim in a minute, and its constant memory."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from lying import table
from proxy import Request
from scene import Scene
from test_watch import watch
from wide import of_many

from vgame.agents.named_jobs import Limits
from vgame.agents.retry import QUIET_ROUND
from vgame.dispute.trainer import Trainer

KEPT = ("vgame", "web3")  # only their allocations are measured: the proxy lives in this process too
MOST_REQUESTS, MOST_CALLS = 12, 60  # a minute


@pytest.mark.parametrize("how", of_many(["job", "client", "hunt"], "job"))
def test_a_quiet_claim_costs_few_requests(some_scene: Scene, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with table(some_scene) as t:
        client = frozenset({t.play.client.wallet.address})
        limits = {"job": Limits(jobs=frozenset({t.play.id})), "client": Limits(clients=client), "hunt": Limits(hunt=1)}
        service = watch(t.play, limits[how], game=t.seat(Trainer).game)
        for _ in range(20):  # until claims of earlier tests are read, and the final ones dropped
            service.round()
        calls: list[Request] = []
        t.proxy.lie = staticmethod(lambda queries, truth: calls.append(queries) or truth())
        posts: list[Any] = []
        post = t.proxy.do_POST
        monkeypatch.setattr(t.proxy, "do_POST", lambda self: posts.append(1) or post(self))
        minute = round(60 / QUIET_ROUND)
        for _ in range(minute):
            service.round()
        print(f"{how}: {len(posts)} requests and {len(calls)} calls a minute")
        assert len(posts) <= MOST_REQUESTS and len(calls) <= MOST_CALLS
        tracemalloc.start()
        sizes = []
        for _ in range(2):
            for _ in range(50):
                service.round()
            calls.clear(), posts.clear()
            gc.collect()
            own = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, f"*/{kept}/*") for kept in KEPT])
            sizes.append(sum(trace.size for trace in own.traces))
        tracemalloc.stop()
        assert sizes[1] - sizes[0] < 2_000, sizes
