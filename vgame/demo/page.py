"""The page of the demonstration: served during the story, then written as the report."""

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

ALL = 10**6  # limit of transactions in the report


class StoryPage:
    """Reads the chain by a connection of its own while the page is open; the story adds names."""

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
        """The chain's state, and the roles' reports."""
        return self._reader.look(self._own.records)

    def follow(self, folder: Path, bundle: Bundle) -> None:
        """Show a run's progress and losses on the page."""
        self._own.runs.append(OwnRun(folder, bundle))

    def hear(self, event: dict[str, Any]) -> None:
        """Handle an event of a role; called from its listener's thread."""
        name, before = event["role"], self._own.roles_seen.get(event["role"], {})
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
            record["doing"] = "its own result is " + (
                "the claim's" if event["agrees"] else "different from the claim's"
            )
        elif event["event"] in ("hello", "claimed", "accepted", "ended", "played", "accused"):
            record["doing"] = event["event"]
        self._own.roles_seen = self._own.roles_seen | {name: record}

    def state(self) -> State:
        """The whole state for the report, read after the roles have ended."""
        self._reader.budget, self._own.roles_seen = ALL, {}
        return self.look()

    def stop(self) -> None:
        """Stop serving."""
        self._server.stop()
