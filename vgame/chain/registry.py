"""The addresses of a game on each chain: a file that `vgame deploy` writes and every command reads.

    {"1": {"game": ADDRESS, "parts": {CONTRACT: {"address": ADDRESS, "code": KECCAK-256 OF ITS CODE, hex}}}, ...}

In: a game whose code was compared with this version's; or a file. Out: the file; or an address and the number of its
chain. The hashes are for other tools: vgame itself compares the code with its own artifacts before every use.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from web3 import Web3

from vgame.chain.agreed import agreed
from vgame.chain.connect import named_chain
from vgame.chain.connection import Chain
from vgame.chain.final import most_answering
from vgame.chain.game import PARTS, Game
from vgame.chain.records import ZERO_ADDRESS, checksum_address
from vgame.errors import ChainError, VgameError
from vgame.system.files import MODE, flush, half_file, parse_json, read_file, write_atomic

MOST = 2**20  # maximum bytes of a registry
LONGEST, BEAT = 30.0, 0.05  # seconds to wait for the lock, in all, and between two attempts


def check_room(path: Path, chain_id: int) -> None:
    """VgameError unless the file has room for a game of the chain, holds none, and can be replaced. Called before a
    deployment is paid."""
    path = _followed(path)
    known = _known(path)
    if held := known.get(str(chain_id)):
        raise _is_held(path, chain_id, held["game"])
    part = {"address": ZERO_ADDRESS, "code": bytes(32).hex()}
    data = _text(path, known | {str(chain_id): {"game": ZERO_ADDRESS, "parts": dict.fromkeys(PARTS, part)}})
    try:
        if path.exists() and (not os.access(path, os.W_OK) or _is_sticky(path)):
            raise PermissionError(errno.EACCES, "only its owner may replace it")
        if _is_mounted(path):
            raise OSError(errno.EBUSY, "it is mounted alone, so it cannot be replaced: mount its folder")
        path.parent.mkdir(parents=True, exist_ok=True)
        with half_file(path.parent, path.name, MODE) as (file, _):
            file.write(data)
            flush(file)
    except OSError as error:
        raise VgameError(f"{path} cannot be written: {error.strerror or error}; nothing was deployed") from None


def _is_mounted(path: Path) -> bool:
    """Is the file a mount point, as in a container?"""
    name = os.fsencode(path).replace(b"\\", rb"\134")
    for letter in b" \t\n":
        name = name.replace(bytes([letter]), b"\\%03o" % letter)
    with suppress(OSError):  # not on this system
        return name in [line.split(b" ")[4] for line in Path("/proc/self/mountinfo").read_bytes().splitlines()]
    return False


def _is_sticky(path: Path) -> bool:
    """May only the owner of the file, or of its folder, replace it?"""
    folder = path.parent.stat()
    return bool(folder.st_mode & stat.S_ISVTX) and os.geteuid() not in (0, folder.st_uid, path.stat().st_uid)


def _text(path: Path, known: dict[str, Any]) -> bytes:
    """The content of the file; VgameError if it is too large to be read again, or has a number that JSON does not
    have."""
    try:
        data = (json.dumps(known, indent=1, allow_nan=False) + "\n").encode()
    except ValueError as error:
        raise VgameError(f"{path} is no registry of games: {error}") from None
    if len(data) > MOST:
        raise VgameError(f"{path} has no room for another game: at most {MOST:,} bytes are read; give another file")
    return data


def _is_held(path: Path, chain_id: int, game: str) -> VgameError:
    return VgameError(
        f"{path} holds the game {game} of chain {chain_id}, which roles may use; give another --registry, or delete "
        "that entry"
    )


def record(path: Path, game: Game) -> None:
    """Add the game to the file; VgameError if it holds another game of the same chain. NotYet unless more than half of
    the endpoints that answer show the same parts."""
    path, chain = _followed(path), game.chain
    shown = agreed(chain, "the parts of the game", lambda: _parts(game), most_answering)
    parts = {name: {"address": address, "code": code} for name, address, code in shown}
    with suppress(OSError):  # `write_atomic` names the problem
        path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        known = _known(path)
        if (held := known.get(str(chain.chain_id))) and held["game"].lower() != game.address.lower():
            raise _is_held(path, chain.chain_id, held["game"])
        known[str(chain.chain_id)] = {"game": game.address, "parts": parts}
        before = path.stat() if path.exists() else None
        write_atomic(path, _text(path, known), stat.S_IMODE(before.st_mode) if before else MODE)
        for owner in (before.st_uid, -1) if before else ():
            with suppress(OSError):  # as far as this user may
                os.chown(path, owner, before.st_gid)
                break


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Only one process at a time is in this context of a folder, where its file system has locks, and the user may read
    it."""
    held = -1
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if held >= 0:
            _lock(held, folder)
        yield
    finally:
        if held >= 0:
            os.close(held)


def _lock(held: int, folder: Path) -> None:
    end = time.monotonic() + LONGEST
    while True:
        try:
            return fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise VgameError(
                    f"another process has held the lock of {folder} for {LONGEST:.0f} s; end it, and start the "
                    "command again"
                ) from None
            time.sleep(BEAT)
        except OSError:  # without locks
            return None


def _followed(path: Path) -> Path:
    """The file behind links; VgameError if there is a link, and no file."""
    try:
        followed = Path(os.path.realpath(path))
    except OSError as error:  # of a relative path in a working directory that was deleted
        raise VgameError(f"{path} cannot be found: {error.strerror}; give an absolute path") from None
    if os.path.islink(path) and not os.path.lexists(followed):
        raise VgameError(f"{path} is a link to a file that is not there ({followed}): mount its folder, or remove it")
    return followed


def _parts(game: Game) -> tuple[tuple[str, str, str], ...]:
    """Name, address and hash of the code of each part, as one endpoint shows them."""
    return tuple((name, address, _hash(game, address)) for name, address in game.check_parts().items())


def _hash(game: Game, address: str) -> str:
    code = game.chain.ask(lambda: bytes(game.chain.web3.eth.get_code(Web3.to_checksum_address(address))))
    return Web3.keccak(code).hex()


def _known(path: Path) -> dict[str, Any]:
    """The entries; none if there is no file."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise VgameError(f"{path} cannot be written or read: {error.strerror or error}") from None
    return read(path)


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
    is_number = re.fullmatch("[1-9][0-9]{,77}", chain)  # 256 bits
    game = entry.get("game") if isinstance(entry, dict) else None
    return bool(is_number and isinstance(game, str) and re.fullmatch("0x[0-9a-fA-F]{40}", game))


def find(game: str, chain_id: int | None) -> tuple[str, int | None]:
    """(address, chain to sign for) for the value of `--game`: an address, or a registry file, which also names the
    chain."""
    try:
        is_file = Path(game).is_file()
    except OSError:  # for example, the text is too long for a file name
        is_file = False
    if not is_file:
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
