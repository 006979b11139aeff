"""Contracts see the base fee of their block; in a call they see 0, as at real nodes.

pyrevm sets it to 0 everywhere, so BASEFEE is replaced by PREVRANDAO in all code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import branches
from branches import Block, Replica, Tx
from revm_node import BASEFEE, PREVRANDAO, Env, replaced

_INCLUDE, _FEE = Replica._include, [0]


def _shown(code: bytes) -> bytes:
    try:
        return replaced(code, BASEFEE, PREVRANDAO)
    except AssertionError:  # this part does not read the base fee
        return code


@cache
def _accounts() -> Any:
    address, codes = branches.contracts()
    shown = {part: _shown(code) for part, code in codes.items()}
    with patch.object(branches, "contracts", lambda: (address, shown)):
        return branches.accounts.__wrapped__()


def _include(self: Replica, block: Block, tx: Tx, index: int) -> dict[str, Any]:
    _FEE[0] = block.base_fee
    try:
        return _INCLUDE(self, block, tx, index)
    finally:
        _FEE[0] = 0


@contextmanager
def fee_shown() -> Iterator[None]:
    """Within this context all new states show the base fee."""
    accounts = _accounts()
    with ExitStack() as stack:
        stack.enter_context(patch.object(branches, "accounts", lambda: accounts))
        stack.enter_context(patch.object(branches, "Env", lambda number, time, _: Env(number, time, _FEE[0])))
        stack.enter_context(patch.object(Replica, "_include", _include))
        yield


__all__ = ["fee_shown"]
