"""A command's transaction, tried at one endpoint after the other until most of them show its effect.

In: a wallet, a call, its effect. Out: the effect. Neither a receipt nor a refusal decides: each comes from one
endpoint, and a call may be refused because another transaction was faster.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

from hexbytes import HexBytes
from web3 import Web3

from vgame.chain.agreed import TRIES, shown_by
from vgame.chain.connection import Chain
from vgame.chain.final import most
from vgame.chain.wallet import Wallet
from vgame.errors import ContractError, EndpointError, NotYet, VgameError

T = TypeVar("T", bound=Hashable)
WITHDRAWN = Web3.keccak(text="Withdrawn(address,address,uint256)")
NOTHING = ("NothingOwed", "NothingToWithdraw")  # the contracts' errors for an account without credits


def send_until(
    wallet: Wallet, name: str, send: Callable[[], Any], effect: Callable[[Sequence[bytes]], T],
    of: Callable[[Chain], int] = most,
) -> T:  # fmt: skip
    """The effect of a call, as enough endpoints (`of`) show it. `effect`: the effect as one endpoint shows it, given
    the hashes of the transactions sent here; false if there is none. A call may be sent more than once, so its effect
    must not be possible twice. Raises the most frequent error if there is no effect."""
    chain, sent, problems = wallet.chain, list[bytes](), list[VgameError]()
    for _ in range(max(TRIES, len(chain.turns.all) if chain.turns else 1)):
        chain.turn()  # so that each has the time of a look
        problem = _attempt(wallet, name, send, sent)
        lags = problem is None or (bool(sent) and not isinstance(problem, ContractError))
        if found := shown_by(chain, lambda: effect(sent), lags, of):
            return found
        problems.append(problem or NotYet(
            f"a receipt of `{name}` was shown, but most endpoints do not show its effect: run the command again"
        ))  # fmt: skip
    kinds = [(type(problem), getattr(problem, "name", "")) for problem in problems]
    raise problems[kinds.index(Counter(kinds).most_common(1)[0][0])]


def _attempt(wallet: Wallet, name: str, send: Callable[[], Any], sent: list[bytes]) -> VgameError | None:
    """Send at the endpoint in use; returns the error, if there is one. Each transaction's hash is added to `sent`."""
    usual, wallet.before = getattr(wallet, "before", None), sent.append
    try:
        with wallet.chain.released():
            receipt = send()
    except VgameError as problem:
        return problem
    except KeyError as missing:
        return EndpointError(
            f"{wallet.chain.url} shows a receipt of `{name}` without {missing}: the receipt is ignored; use another "
            "endpoint if this continues"
        )
    finally:
        wallet.before = usual
    if isinstance(receipt, Mapping) and "transactionHash" in receipt:
        sent.append(bytes(HexBytes(receipt["transactionHash"])))
    return None


def withdraw(
    wallet: Wallet, contract: str, owed: int, send: Callable[[], Any], of: Callable[[Chain], int] = most
) -> int:
    """Withdraw the credits of the account from a contract that has shown `owed` wei of them; returns the wei that the
    transactions sent here have paid. Lower credits alone do not count: another process may have withdrawn them."""
    try:
        return send_until(wallet, "withdraw", send, lambda sent: _paid(wallet.chain, contract, sent), of)
    except ContractError as error:
        if error.name not in NOTHING:
            raise
        raise NotYet(
            f"{contract} owed {owed} wei to {wallet.address}, and refuses to pay them now: another transaction of this "
            "account has withdrawn them, or an endpoint lags; run the command again"
        ) from None


def _paid(chain: Chain, contract: str, sent: Sequence[bytes]) -> int:
    """Wei that a contract has paid by these transactions, as the endpoint in use shows it."""
    receipts = [found for digest in set(sent) if (found := chain.receipt(digest, 0)) and found["status"] == 1]

    def amount() -> int:
        logs = (log for found in receipts for log in found["logs"] if log["address"] == contract)
        return sum(int.from_bytes(bytes(log["data"])[32:64]) for log in logs if bytes(log["topics"][0]) == WITHDRAWN)

    return chain.ask(amount)
