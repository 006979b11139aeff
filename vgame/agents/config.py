"""The configuration of a role: endpoint, game, bundle, store, device, and a key from the environment."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vgame.agents.news import News
from vgame.chain.anywhere import anywhere
from vgame.chain.connect import connect
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.wallet import Wallet, keystore_key
from vgame.errors import ChainError
from vgame.system.progress import Reporter

KEY_VARIABLE = "VGAME_KEY"


KEYSTORE_VARIABLE = "VGAME_KEYSTORE"


PASSWORD_VARIABLE = "VGAME_PASSWORD"


@dataclass(frozen=True)
class AgentConfig:
    """Endpoint, contract, bundle, store and device of a role."""

    rpc: str | Sequence[str]  # of one endpoint, or several
    game: str
    bundle: Path
    store: Path
    device: str = "default"
    keep: int = 1
    poll: float = 0.2
    log: Path | None = None  # for an auditor: the trainer's run folder, in mode `logged`
    published: tuple[str, ...] = ()  # for an auditor: the folder or the URLs of the trainer's run
    workers: int = 1  # processes that execute parts of a run, or contested segments, at the same time
    chain_id: int | None = None  # the chain for which transactions are signed


def wallet_from_environment(chain: Chain) -> Wallet:
    """The wallet with the key from VGAME_KEY or from an encrypted keystore file; never from the command line."""
    if path := os.environ.get(KEYSTORE_VARIABLE):
        return Wallet(chain, _from_keystore(Path(path)))
    key = os.environ.get(KEY_VARIABLE)
    if not key:
        raise ChainError(
            f"no key: put the account's private key into the environment variable {KEY_VARIABLE}, or the path of its "
            f"keystore file into {KEYSTORE_VARIABLE} and the password into {PASSWORD_VARIABLE}"
        )
    try:
        return Wallet(chain, key)
    except (ValueError, TypeError):
        raise ChainError(f"{KEY_VARIABLE} does not hold a private key (32 bytes in hex)") from None


def _from_keystore(path: Path) -> bytes:
    """The key in a keystore file (Web3 Secret Storage, version 3)."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        raise ChainError(f"the keystore {path} needs its password in the environment variable {PASSWORD_VARIABLE}")
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ChainError(f"the keystore {path} cannot be read: {error}") from None
    try:
        return keystore_key(text, password)
    except Exception:  # a file can hold anything, so reading it can raise anything
        raise ChainError(f"{path} is no keystore file, or {PASSWORD_VARIABLE} is not its password") from None


def open_game(seat: AgentConfig, reporter: Reporter | None = None) -> Game:
    """The configured contract, with all its parts checked, and the wallet from the environment."""
    chain = connect(seat.rpc, seat.chain_id)
    if reporter:
        chain.tell = lambda text: reporter.emit("waiting", text, message=text)
    game = Game(chain, seat.game, wallet_from_environment(chain))
    anywhere(chain, game.check_parts)
    chain.checks.append(game.check_parts)
    if reporter:
        News(game, reporter)
    return game
