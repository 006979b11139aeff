"""`vgame watch`: what is given on the command line, as a page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.system.progress import Reporter
from vgame.watch.programs import Programs
from vgame.watch.reader import Reader
from vgame.watch.server import Hub, PageServer


@dataclass(frozen=True)
class Watched:
    """What is looked at: a game, bundles that give names to what is ordered."""

    rpc: str
    game: str
    bundles: tuple[Path, ...] = ()
    port: int = 0
    every: float = 1.0


def serve_page(watched: Watched, reporter: Reporter) -> None:
    """Until interrupted."""
    reader = Reader(Game(Chain(watched.rpc), watched.game), Programs(list(watched.bundles)))
    server = PageServer(Hub(reader.look, watched.every), watched.port)
    reporter.emit("watching", f"{server.url} shows the game at {watched.game}; end with Ctrl-C", url=server.url)
    server.serve()
