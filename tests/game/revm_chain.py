"""vgame's chain and game objects over the tests' fast chain, without a socket and without web3's calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from eth_abi import encode
from revm_calls import calldata, decode_log, decode_output, signature, topic
from revm_node import CHAIN_ID, RICH, Reverted, RevmNode
from web3 import Web3
from web3.providers import JSONBaseProvider

from vgame.chain.block_ids import RpcError
from vgame.chain.connection import DEVELOPMENT, Block, Chain, RefusedError
from vgame.chain.contents import Contents, Topics
from vgame.chain.game import Game
from vgame.chain.pauses import Pauses
from vgame.chain.records import Event
from vgame.chain.wallet import GAS_CAP, Wallet
from vgame.errors import EndpointError


class InProcess(JSONBaseProvider):
    """A provider that calls `handle` of a node."""

    def __init__(self, node: RevmNode) -> None:
        super().__init__()
        self.node = node

    def make_request(self, method: str, params: Any) -> Any:
        return self.node.handle(method, list(params))


class RevmChain(Chain):
    """vgame's chain object without a socket."""

    def __init__(self, node: RevmNode) -> None:
        self.checks = []  # this node is never away
        self.url = self.secret = "in process"
        self.poll, self.node = 0.0, node
        self.web3 = Web3(InProcess(node))
        self.chain_id, self.is_development = CHAIN_ID, CHAIN_ID in DEVELOPMENT

    def pause(self, seconds: float, *_: float) -> None:
        """Does nothing: no other account mines."""

    def block(self, which: int | str | None = None) -> Block:
        if which is None and self.pin:
            return self.pin
        named = self.web3.eth.default_block if which is None else which
        method = "eth_getBlockByHash" if str(named).startswith("0x") else "eth_getBlockByNumber"
        found = self.node.handle(method, [hex(named) if isinstance(named, int) else named, False]).get("result")
        if found is None:
            raise EndpointError(f"there is no block {named}")
        number, time, fee = (int(found[name], 16) for name in ("number", "timestamp", "baseFeePerGas"))
        return Block(number, bytes.fromhex(found["hash"][2:]), time, fee)

    def balance(self, address: str) -> int:
        return self.node.evm.get_balance(address)

    def advance(self, seconds: int) -> bool:
        self.node.increase_time(seconds)
        self.node.methods["evm_mine"]()
        return True

    def wallet(self, ether: int = 100) -> Wallet:
        """A new account with money, whose signature is its name."""
        wallet = Wallet(self)
        wallet.account = Unsigned(wallet.account)
        self.node.set_balance(wallet.address, ether * 10**18)
        return wallet


class RevmContents(Contents):
    """The same without web3."""

    def logs(self, block: Block, topics: Topics) -> list[Any]:
        query = {"blockHash": Web3.to_hex(block.digest), "address": self.address, "topics": list(topics)}
        try:
            return self.chain.node.logs(query)
        except RpcError as error:
            raise RefusedError(f"in process refused a request: {error}") from None

    def receipts(self, block: Block) -> list[Any]:
        return [log for r in self.chain.node.block_receipts(Web3.to_hex(block.digest)) or () for log in r["logs"]]

    def _decoded(self, logs: list[Any], topics: Topics) -> list[Event]:
        return [decode_log(log) for log in logs if log["address"].lower() == self.address.lower()]


class RevmGame(Game):
    """vgame's game object without web3, which costs ten times as much as the EVM; the tests on other chains use the
    real one."""

    def __init__(self, chain: RevmChain, address: str, wallet: Any = None) -> None:
        self.chain, self.address, self.wallet, self.begun = chain, Web3.to_checksum_address(address), wallet, {}
        self.contents = RevmContents(chain, self.address, decode_log)

    @staticmethod
    def _topic(name: str) -> bytes:
        return signature(name)

    def _request(self, name: str, args: Any, value: int = 0) -> dict[str, Any]:
        sender = self.wallet.address if self.wallet else RICH[0]
        return {"from": sender, "to": self.address, "data": calldata(name, args), "value": value, "gas": GAS_CAP}

    _transaction = _request

    def _run(self, request: dict[str, Any]) -> str:
        """Run in the next block, unless one is pinned: time passes only with transactions here."""
        block = self.chain.web3.eth.default_block if self.chain.pin else "pending"
        try:
            return self.chain.node.call(request, block)
        except Reverted as error:
            raise self.contract_error(error.args[0]) from None
        except RpcError as error:
            raise RefusedError(f"in process refused a request: {error}") from None

    def _call(self, name: str, *args: Any) -> Any:
        raw = self._run(self._request(name, args) | {"from": RICH[0]})
        values = decode_output(name, raw)
        return values[0] if len(values) == 1 else values

    def _calls(self, name: str, arguments: Any) -> list[Any]:
        return [self._call(name, *args) for args in arguments]

    def _send(self, name: str, args: tuple[Any, ...], value: int = 0) -> Any:
        self._check_funds(name, value)
        request = self._transaction(name, args, value)
        self._run(request)
        number = int(self.chain.node.handle("eth_getTransactionCount", [request["from"], "latest"])["result"], 16)
        if announce := getattr(self.wallet, "announce", None):
            announce(number, bytes(Web3.keccak(text=f"{request['from']} {number}")))
        receipt = self.chain.node.receipts[self.chain.node.send(request)]
        assert receipt["status"] == "0x1"
        return receipt

    def events(
        self,
        name: str | None = None,
        job: bytes | None = None,
        **place: Any,
    ) -> list[Event]:
        logs = self.chain.node.logs_of(self.address, name and topic(name))
        place |= {} if job is None else {"job": job}
        return [e for e in map(decode_log, logs) if place.items() <= e.args.items()]


class PayeeGame(RevmGame):
    """The game as tests/contracts/Payee.sol plays it: transactions go through the contract at `payee`."""

    def __init__(self, chain: RevmChain, address: str, payee: str) -> None:
        super().__init__(chain, address, SimpleNamespace(address=payee, pauses=Pauses(chain)))

    def _check_funds(self, name: str, value: int) -> None:
        """The money comes with the call."""

    def _transaction(self, name: str, args: Any, value: int = 0) -> dict[str, Any]:
        request = self._request(name, args, value)
        inner = [self.address, value, bytes.fromhex(request["data"][2:])]
        data = bytes(Web3.keccak(text="run(address,uint256,bytes)"))[:4] + encode(
            ["address", "uint256", "bytes"], inner
        )
        return request | {"from": RICH[0], "to": self.wallet.address, "data": "0x" + data.hex()}


class Unsigned:
    """An account that writes its address where the signature belongs: signing and recovering cost more than all the
    rest of a test."""

    def __init__(self, account: Any) -> None:
        self.address, self.key = account.address, account.key

    def sign_transaction(self, tx: dict[str, Any]) -> SimpleNamespace:
        to = bytes.fromhex(tx["to"][2:]) if "to" in tx else bytes(20)
        head = [bytes.fromhex(self.address[2:]), to, tx["value"].to_bytes(32, "big"), tx["gas"].to_bytes(8, "big")]
        raw = b"unsigned" + b"".join(head) + tx["nonce"].to_bytes(8, "big") + tx["data"]
        return SimpleNamespace(raw_transaction=raw, hash=Web3.keccak(raw))
