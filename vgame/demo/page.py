"""The page of the demonstration: served while the story is played, and at its end the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.job.bundle import Bundle
from vgame.watch.differences import State, shown
from vgame.watch.own import Own, OwnRun
from vgame.watch.programs import Programs
from vgame.watch.reader import Reader
from vgame.watch.server import Hub, PageServer

ALL = 10**6  # transactions that the report looks up


class StoryPage:
    """Reads the chain by a connection of its own, while the page is read; the story adds names as it
    goes on."""

    def __init__(self, url: str, game: str, names: dict[str, str]) -> None:
        self.programs, self.titles = Programs(), dict[str, str]()
        contract = Game(Chain(url), game)
        self._reader = Reader(contract, self.programs, names, self.titles)
        self._own = Own(contract)
        self._server = PageServer(Hub(self.look))
        self._server.start()

    @property
    def url(self) -> str:
        return self._server.url

    def look(self) -> State:
        """What stands on the chain, and what the roles say."""
        return self._reader.look(self._own.records)

    def follow(self, folder: Path, bundle: Bundle) -> None:
        """Show a run's progress and losses."""
        self._own.runs.append(OwnRun(folder, bundle))

    def hear(self, event: dict[str, Any]) -> None:
        """An event of a role, from its listener's thread."""
        name, before = event["role"], self._own.said.get(event["role"], {})
        record = {"name": shown(name), "doing": before.get("doing", "starts")}
        if event["event"] == "progress":
            record |= {
                "doing": shown(f"{event['what']} {event['detail']}"),
                "done": event["done"],
                "total": event["total"],
            }
        elif event["event"] == "computed":
            record["doing"] = f"computed up to step {event['step']}"
        elif event["event"] == "audited":
            record["doing"] = "its own result is " + ("the claim's" if event["agrees"] else "another than the claim's")
        elif event["event"] in ("hello", "claimed", "accepted", "ended", "played", "accused"):
            record["doing"] = event["event"]
        self._own.said = self._own.said | {name: record}

    def state(self) -> State:
        """Everything, once more, for the report; roles have ended by then."""
        self._reader.budget, self._own.said = ALL, {}
        return self.look()

    def stop(self) -> None:
        """Serve no more."""
        self._server.stop()
