"""A connection for signing. The user chooses the chain for which it signs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from vgame.chain.connection import Chain
from vgame.chain.http import LOOPBACK
from vgame.errors import ChainError

CHAIN_VARIABLE = "VGAME_CHAIN_ID"


def named_chain() -> int | None:
    """The chain in VGAME_CHAIN_ID; None if the variable is not set."""
    text = os.environ.get(CHAIN_VARIABLE)
    if text and not (text.isascii() and text.isdigit() and len(text) < 79):  # 256 bits
        raise ChainError(f"{CHAIN_VARIABLE} is {text[:80]!r}; the number of a chain is expected, as 1")
    return int(text) if text else None


def connect(rpc: str | Sequence[str], chain_id: int | None = None) -> Chain:
    """A chain for signing, at one endpoint or at several, which take turns (vgame.chain.turns). The user names it, here
    or in VGAME_CHAIN_ID; only a node on loopback may choose it.

    INVARIANT: no remote endpoint chooses the chain for which a key signs. Otherwise it could send the transaction on
    another chain, on which the account has money.
    """
    chain_id = named_chain() if chain_id is None else chain_id
    chain = Chain(rpc, chain_id)
    urls = [rpc] if isinstance(rpc, str) else rpc
    if chain_id is None and any(urlsplit(url).hostname not in LOOPBACK for url in urls):
        raise ChainError(
            f"the endpoint reports chain {chain.chain_id}, but vgame does not sign for a chain that only the endpoint "
            f"names: give the chain with --chain-id (--chain-id {chain.chain_id} if that is the right one)"
        )
    return chain
