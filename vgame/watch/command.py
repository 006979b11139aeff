"""`vgame watch`: a page from the options of the command line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from vgame.chain.records import checksum_address
from vgame.chain.registry import open_reading
from vgame.errors import VgameError
from vgame.job.bundle import load_bundle
from vgame.runs.folder import open_run
from vgame.system.endpoints import without_secrets
from vgame.system.progress import Reporter
from vgame.watch.differences import shown
from vgame.watch.own import Own, OwnRun
from vgame.watch.programs import Programs
from vgame.watch.reader import Reader
from vgame.watch.server import Hub, PageServer


@dataclass(frozen=True)
class Watched:
    """The subjects of the page: a game; bundles, for the names in orders; own runs, accounts and roles."""

    rpc: Sequence[str]
    game: str
    bundles: tuple[Path, ...] = ()
    runs: tuple[Path, ...] = ()
    store: Path | None = None  # of an agent, with a run of each bundle
    accounts: tuple[str, ...] = ()
    known: tuple[str, ...] = ()  # ADDRESS=NAME
    roles: tuple[str, ...] = ()  # URLs of health endpoints
    port: int = 0
    every: float = 1.0


def serve_page(watched: Watched, reporter: Reporter) -> None:
    """Serve until interrupted."""
    game = open_reading(watched.rpc, watched.game)
    own = Own(
        game, _runs(watched), [checksum_address(a) for a in watched.accounts], [_health(u) for u in watched.roles]
    )
    programs = Programs([*watched.bundles, *(run / "job" for run in watched.runs)])
    reader = Reader(game, programs, dict(map(_known, watched.known)))

    server = PageServer(Hub(lambda: reader.look(own.records), watched.every), watched.port)
    reporter.emit("watching", f"{server.url} shows the game at {game.address}; end with Ctrl-C", url=server.url)
    server.serve()


def _runs(watched: Watched) -> list[OwnRun]:
    if watched.store and not watched.bundles:
        raise VgameError("--store needs --bundle: a store holds runs of bundles, without the bundles' folders")
    for run in watched.runs:
        open_run(run)  # fails at once for a folder without a run
    bundles = [load_bundle(folder) for folder in watched.bundles] if watched.store else []
    stored = [OwnRun(watched.store / b.identity.hex()[:16], b) for b in bundles if watched.store]
    found = [*(OwnRun(run) for run in watched.runs), *stored]
    return list({own.folder.resolve(): own for own in reversed(found)}.values())[::-1]  # orders may share a run


def _known(text: str) -> tuple[str, str]:
    """(address, name) from the option's text."""
    address, _, name = text.partition("=")
    if not name.strip():
        raise VgameError(f"--known {text!r}: ADDRESS=NAME is expected, as 0x12...=Ann")
    return checksum_address(address.strip()), shown(name.strip())


def _health(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise VgameError(
            f"--role {without_secrets(url)!r}: the URL of a role's health endpoint is expected, as "
            "http://127.0.0.1:9101/health"
        )
    return url
