"""The game's address on each chain: a registry file that `vgame deploy` writes and every command reads.

    {"1": {"game": ADDRESS, "parts": {CONTRACT: {"address": ADDRESS, "code": KECCAK-256 OF ITS CODE, hex}}}, ...}

In: a game whose code was compared with this version's; or a file. Out: the file; or an address and the number of its
chain. The hashes are for other tools: vgame itself compares the code with its own artifacts before every use.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from web3 import Web3

from vgame.chain.agreed import agreed
from vgame.chain.connect import named_chain
from vgame.chain.connection import Chain
from vgame.chain.final import most_answering
from vgame.chain.game import Game
from vgame.chain.records import checksum_address
from vgame.errors import ChainError, VgameError
from vgame.system.files import parse_json, read_file, write_atomic

MOST = 2**20  # maximum bytes of a registry


def record(path: Path, game: Game) -> None:
    """Add the game to the file; it replaces an older game of the same chain. NotYet unless more than half of the
    endpoints that answer show the same parts."""
    known = read(path) if path.exists() else {}
    shown = agreed(game.chain, "the parts of the game", lambda: _parts(game), most_answering)
    parts = {name: {"address": address, "code": code} for name, address, code in shown}
    known[str(game.chain.chain_id)] = {"game": game.address, "parts": parts}
    write_atomic(path, (json.dumps(known, indent=1) + "\n").encode())


def _parts(game: Game) -> tuple[tuple[str, str, str], ...]:
    """Name, address and hash of the code of each part, as one endpoint shows them."""
    return tuple((name, address, _hash(game, address)) for name, address in game.check_parts().items())


def _hash(game: Game, address: str) -> str:
    code = game.chain.ask(lambda: bytes(game.chain.web3.eth.get_code(Web3.to_checksum_address(address))))
    return Web3.keccak(code).hex()


def read(path: Path) -> dict[str, Any]:
    """The entries, by number of the chain. VgameError if the file is not such a registry."""
    try:
        known = parse_json(read_file(path, MOST, follow=True))
    except (OSError, ValueError) as error:
        raise VgameError(f"{path} is no registry of games: {error}") from None
    if not isinstance(known, dict) or not all(_is_entry(*item) for item in known.items()):
        raise VgameError(f'{path} is no registry of games: {{"NUMBER OF A CHAIN": {{"game": ADDRESS}}}} is expected')
    return known


def _is_entry(chain: str, entry: Any) -> bool:
    return chain.isascii() and chain.isdigit() and isinstance(entry, dict) and isinstance(entry.get("game"), str)


def find(game: str, chain_id: int | None) -> tuple[str, int | None]:
    """(address, chain to sign for) for the value of `--game`: an address, or a registry file, which also names the
    chain."""
    if not Path(game).is_file():
        return game, chain_id
    known = read(Path(game))
    chain_id = named_chain() if chain_id is None else chain_id
    if chain_id is None and len(known) == 1:
        chain_id = int(next(iter(known)))
    entry = known.get(str(chain_id))
    if entry is None:
        held = ", ".join(sorted(known, key=int)) or "none"
        advice = f"chain {chain_id} is not one of them" if chain_id else "select one with --chain-id"
        raise ChainError(f"{game} holds games of chains {held}; {advice}")
    return checksum_address(entry["game"]), chain_id


def open_reading(rpc: str | Sequence[str], game: str, chain_id: int | None = None) -> Game:
    """A read-only game, by its address or a registry file."""
    address, chain_id = find(game, chain_id)
    return Game(Chain(rpc, chain_id), address)
