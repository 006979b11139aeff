"""An endpoint with limits, for the tests of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proxy import Request
from scene import Scene

from vgame.chain.connection import Chain
from vgame.chain.game import Game

RANGE = 20
Truth = Callable[[], Request]


@dataclass
class Provider:
    """An endpoint with limits: `most` blocks per request; `code`: its reply about old code."""

    scene: Scene
    handler: Any
    url: str
    most: int = 10**9
    code: Any = None
    requested: list[tuple[int, int]] = field(default_factory=list)

    def answer(self, query: Request, truth: Truth) -> Request:
        match query["method"]:
            case "eth_getLogs":
                first, last = (int(query["params"][0][k], 16) for k in ("fromBlock", "toBlock"))
                self.requested.append((first, last))
                if last - first >= self.most:
                    return {"error": {"code": -32005, "message": "block range is too large"}}
            case "eth_getCode" if self.code is not None and query["params"][1] != "latest":
                return self.code
        return truth()

    def game(self) -> Game:
        return Game(Chain(self.url), self.scene.address)

    @property
    def ranges(self) -> int:
        """The number of ranges of the whole chain, plus one. The chain's length depends on the tests before."""
        return int(self.scene.chain.web3.eth.block_number) // RANGE + 2

    def jobs(self, game: Game) -> list[bytes]:
        self.requested.clear()
        return [e.args["job"] for e in game.events("JobCreated")]


def pass_blocks(scene: Scene, count: int = 3 * RANGE) -> None:
    for _ in range(count):
        scene.chain.advance(1)


def truth(provider: Provider) -> list[bytes]:
    return [e.args["job"] for e in provider.scene.game().events("JobCreated")]
