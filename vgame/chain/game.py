"""The typed interface of the game contract: its records, calls, moves, errors and events.

In: a connection and a wallet. Out: typed views and receipts; a revert is a `ContractError` with the name and the
arguments of the contract's error. Twin: IVerificationGame.sol.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import astuple, replace
from functools import cached_property
from typing import Any, TypeVar

from web3 import Web3
from web3.exceptions import ContractCustomError, ContractLogicError

from vgame.chain.abi import abi_type, artifact, errors, full_abi, known_revert, refuse_overlap
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import Chain, RefusedError, quantity
from vgame.chain.contents import Contents
from vgame.chain.events import Events
from vgame.chain.listener import Listener
from vgame.chain.records import (
    CAUSES,
    FIELDS,
    MOST_REQUESTS,
    Dispute,
    Event,
    Exchange,
    Job,
    JobSpec,
    Level,
    Phase,
    Post,
    Request,
    Standing,
    Status,
    Turn,
    Verdict,
    _dispute,
    _job,
    checksum_address,
    sized,
    standing,
)
from vgame.chain.wallet import Wallet
from vgame.commit.merkle import Kind, fold, leaf_hash, tree_height
from vgame.errors import ChainError, ContractError, EndpointError, LostRace

T = TypeVar("T")
JOBS = 50  # jobs in one request: a reply of 100 KB
PAGE = 200  # disputes in one request: about 5 million gas of a view, a reply of 300 KB
PARTS = ("VerificationGame", "Settlement", "Delivery", "Referee", "Pointwise", "Logged")
RACE_GAS = 50_000  # added to the estimate: a move also marks a dispute that begins after the estimate
#: Gas of calls that are sent without an estimate: nodes simulate with a base fee of 0, at which these calls revert.
UNESTIMATED = {"defer": 60_000}
LOOKS = 3  # reads of the state after a receipt, before the receipt is rejected


class Game:
    """The contract at one address, for one wallet (None: read only)."""

    listener = Listener()

    def __init__(self, chain: Chain, address: str, wallet: Wallet | None = None) -> None:
        self.chain, self.wallet = chain, wallet
        self.address = checksum_address(address)
        self.contract = chain.web3.eth.contract(address=self.address, abi=full_abi())
        self._alone: dict[str, Any] = {}
        self._events = Events(chain, self.address, self._decode_log)
        self.contents = Contents(chain, self.address, self._decode_log)
        self.begun: dict[bytes, int] = {}  # by job: a block before which it has no events
        self.ranges: int | None = None  # maximum number of ranges of settled blocks that one query of a job reads
        anywhere(chain, self._check_code)
        chain.checks.append(self._check_code)

    def _check_code(self, name: str = "VerificationGame", address: str | None = None) -> None:
        """ChainError unless the code is this version's contract, byte for byte, except for its immutables."""
        address = address or self.address
        code = self.chain.ask(lambda: bytearray(bytes(self.chain.web3.eth.get_code(address))))
        compiled = artifact(name)
        for start in compiled["immutables"]:
            code[start : start + 32] = bytes(len(code[start : start + 32]))
        if bytes(code).hex() != compiled["runtime"]:
            raise ChainError(
                f"the code at {address} on chain {self.chain.chain_id} ({len(code)} bytes) is not the {name} of this "
                "vgame; check the address, or use the version of vgame that deployed it"
            )

    def check_parts(self) -> dict[str, str]:
        """Addresses of the game's parts by name; ChainError unless all of them are this version's contracts."""
        referee, settlement = str(self._call("referee")), str(self._call("settlement"))
        contract = self.chain.web3.eth.contract(
            address=Web3.to_checksum_address(referee), abi=artifact("Referee")["abi"]
        )
        self._check_code("Settlement", settlement)
        delivery = str(self._call("delivery"))
        self._check_code("Delivery", delivery)
        for name, address in (("Settlement", settlement), ("Delivery", delivery)):
            part = self.chain.web3.eth.contract(address=Web3.to_checksum_address(address), abi=artifact(name)["abi"])
            if (other := str(self._decoded(part.functions.referee().call))) != referee:
                raise ChainError(
                    f"the game at {self.address} has the referee {referee}, its {name} has {other}: do not play there"
                )
        self._check_code("Referee", referee)
        pointwise = str(self._decoded(lambda: contract.functions.pointwise().call()))
        self._check_code("Pointwise", pointwise)
        logged = self._check_logged([referee, pointwise])
        addresses = (self.address, settlement, delivery, referee, pointwise, logged)
        return dict(zip(PARTS, addresses, strict=True))

    def _check_logged(self, expected: list[str]) -> str:
        """Address of the contract of mode `logged`; ChainError unless it uses the same referee and functions."""
        address = str(self._call("logged"))
        self._check_code("Logged", address)
        contract = self.chain.web3.eth.contract(
            address=Web3.to_checksum_address(address), abi=artifact("Logged")["abi"]
        )
        parts = [str(self._decoded(f().call)) for f in (contract.functions.referee, contract.functions.pointwise)]
        if parts != expected:
            raise ChainError(
                f"the referee of the game {self.address} is {expected[0]}, in mode logged {parts[0]}: do not play there"
            )
        return address

    # ---- calls ----

    def _function(self, name: str, args: tuple[Any, ...]) -> Any:
        """A function with its arguments, from a small ABI of its own: web3 reads the whole ABI at every call."""
        if name not in self._alone:
            own = [e for e in full_abi() if e["type"] == "function" and e["name"] == name]
            self._alone[name] = self.chain.web3.eth.contract(address=self.address, abi=own)
        return getattr(self._alone[name].functions, name)(*args)

    def _call(self, name: str, *args: Any) -> Any:
        function = self._function(name, args)
        return self._decoded(lambda: function.call())

    def _calls(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Results of calls of one function, in one request; one by one if the endpoint accepts no batches."""

        def ask() -> list[Any]:
            with self.chain.web3.batch_requests() as batch:
                for args in arguments:
                    batch.add(self._function(name, args))
                return list(batch.execute())

        try:
            return self._decoded(ask)
        except (RefusedError, EndpointError):
            return [self._call(name, *args) for args in arguments]

    def _record(self, make: Callable[[Any], Any], name: str, *args: Any) -> Any:
        """The result of a call, converted by `make`; EndpointError if that fails."""
        answer = self._call(name, *args)
        return self.chain.ask(lambda: make(answer))

    def _decoded(self, question: Callable[[], Any]) -> Any:
        try:
            return self.chain.ask(question)
        except (ContractLogicError, RefusedError) as error:
            reply = error.answer if isinstance(error, RefusedError) else (error.data, error.message)
            if (data := known_revert(reply)) is None:
                if isinstance(error, RefusedError):
                    raise
                if not isinstance(error, ContractCustomError):
                    raise ContractError(self.chain.shown(error.message), ()) from None
                data = error.data
            raise self.chain.ask(lambda: self.contract_error(data)) from None

    def contract_error(self, data: Any) -> ContractError:
        """The contract's error for revert data."""
        raw = bytes.fromhex(data[2:]) if isinstance(data, str) else bytes(data or b"")
        name, types = errors().get(raw[:4], (f"unknown error 0x{raw[:4].hex()}", []))
        found = self.chain.web3.codec.decode(types, raw[4:]) if types else ()
        args = tuple(self.chain.shown(value) if isinstance(value, str) else value for value in found)
        return ContractError(name, (FIELDS[args[0]],) if name == "BadSpec" else args)

    def send(self, name: str, *args: Any, value: int = 0) -> Any:
        """Send a transaction; returns its receipt. A call that would revert is not sent and raises ContractError."""
        assert self.wallet is not None, "a read-only Game cannot send"
        with self.chain.released():
            return self._send(name, args, value)

    def move(self, name: str, *args: Any, value: int = 0) -> Any:
        """`send` for a role, which decides again in each look. Paused if it sent the same call a short time ago."""
        with self.wallet.pauses.sending(self.address, name, *args):
            return self.send(name, *args, value=value)

    def was_sent(self, name: str, *args: Any) -> bool:
        """Did a role make this move a short time ago?"""
        return self.wallet.pauses.was_sent(self.address, name, *args)

    def _send(self, name: str, args: tuple[Any, ...], value: int) -> Any:
        function, tx = self._function(name, args), {"from": self.wallet.address, "value": value}
        self._check_funds(name, value)
        gas = UNESTIMATED.get(name) or self._decoded(lambda: quantity(function.estimate_gas(tx)))
        data = bytes.fromhex(function._encode_transaction_data()[2:])
        receipt = self.wallet.send(self.address, data, value, gas + RACE_GAS)
        if receipt["status"] != 1:  # it reverted although the estimate did not: another account was faster
            self._decoded(lambda: function.call(tx))
            raise LostRace(name)
        block = receipt["blockNumber"]
        if not any(self._visible(name, args, block) for _ in range(LOOKS)):
            raise EndpointError(
                f"{self.chain.url} shows a receipt of {name} without error, but a state without it: the endpoint lags "
                "or is wrong; the move counts as not made, use another endpoint if this continues"
            )
        self.listener.sent(name, args, value, receipt)
        return receipt

    def _visible(self, name: str, args: tuple[Any, ...], block: int) -> bool:
        """Does the state show the effect of a call in a block? Either the effect is read, or the same call, which
        cannot be made twice, must revert now."""
        match name:
            case "createJob":
                return self.job(self.job_id(JobSpec(*args[0]), self.wallet.address, args[1])).phase is not Phase.NONE
            case "acceptJob":
                return self.job(args[0]).phase > Phase.CREATED
            case "challenge":
                own = (s.dispute for s in self.all_disputes(args[0]) if s.dispute.auditor == self.wallet.address)
                return any(d.status is Status.OPEN for d in own)
            case "reveal":
                node = fold(Kind(args[1]), args[3], tree_height(len(args[3])))
                return self.opened(args[0], args[1], args[2], node) > 0
            case "openLeaf":
                return self.opened(args[0], Level.TENSOR, 0, leaf_hash(Kind.TENSOR, args[1])) > 0
            case "defer":
                return any(r.since >= self.chain.time_of(block) for r in self.requests(args[0])[args[1] :][:1])
            case "setDelegate":
                return self.is_delegate(args[0], args[1]) is bool(args[2])
            case "timeoutMany":  # other disputes of the list may have expired later
                return any(self.dispute(args[0], n).status is not Status.OPEN for n in args[1])
            case "request":
                return len(self.requests(args[0])) > args[2]
            case "raise":
                return any(r.price >= args[4] for r in self.requests(args[0])[args[1] :][:1])
        function = self._function(name, args)
        try:
            self._decoded(lambda: function.call({"from": self.wallet.address}))
        except ContractError:
            return True
        return False

    def _check_funds(self, name: str, value: int) -> None:
        if value and value > (owned := self.chain.balance(self.wallet.address)):
            raise ChainError(f"{name} needs {value} wei, {self.wallet.address} has {owned}; send it some ether")

    # ---- views ----

    def job(self, job: bytes) -> Job:
        return self._record(_job, "getJob", job)

    def jobs(self, jobs: Sequence[bytes]) -> list[Job]:
        """Several jobs, JOBS in each request."""
        found: list[Job] = []
        for first in range(0, len(jobs), JOBS):
            answers = self._calls("getJob", [(job,) for job in jobs[first : first + JOBS]])
            found += self.chain.ask(lambda a=answers: [_job(answer) for answer in a])
        return found

    def dispute(self, job: bytes, number: int) -> Dispute:
        return self._record(_dispute, "getDispute", job, number)

    def disputes(self, job: bytes, first: int = 0, count: int = PAGE, least: int = 0) -> list[Standing]:
        """Disputes from `first` on, at most `count` of them, with turn and deadline, in one request. EndpointError if
        the reply has fewer than `least`."""
        read = lambda a: [standing(first + i, s) for i, s in enumerate(sized(a, least, count))]  # noqa: E731
        return self._record(read, "getDisputes", job, first, count)

    def all_disputes(self, job: bytes, count: int | None = None, first: int = 0) -> Iterator[Standing]:
        """Every dispute of a job from `first` on, page by page; `count`: their number, by default that of the job."""
        total = self.job(job).disputes if count is None else count
        for n in range(first, total, PAGE):
            yield from self.disputes(job, n, PAGE, min(PAGE, total - n))

    def exchange(self, job: bytes) -> Exchange:
        """The state of a job's delivery."""
        return self._record(lambda a: Exchange(*a), "getExchange", job)

    def offer_hash(self, offer: tuple[bytes, bytes, bytes]) -> bytes:
        """Hash of an IDelivery.Offer, as the contract stores it."""
        return bytes(Web3.keccak(b"".join(offer)))

    def answer_gas(self, job: bytes, elements: int, chunk: int) -> int:
        """The gas that the client pays for an answer."""
        return int(self._call("answerGas", job, elements, chunk))

    def requests(self, job: bytes) -> list[Request]:
        """All requests for pieces of the ciphertext."""
        read = lambda a: [Request(i, *r) for i, r in enumerate(sized(a, 0, MOST_REQUESTS))]  # noqa: E731
        return self._record(read, "getRequests", job)

    def verdict(self, job: bytes) -> Verdict:
        return self._record(lambda a: Verdict(Level(a[0]), *a[1:7], CAUSES[a[7]], *a[8:]), "getVerdict", job)

    def turn(self, job: bytes, number: int) -> tuple[Turn, int]:
        return self._record(lambda a: (Turn(a[0]), a[1]), "turn", job, number)

    def is_delegate(self, job: bytes, account: str) -> bool:
        """May the account answer for the job's trainer?"""
        return bool(self._call("isDelegate", job, account))

    def posts(self, job: bytes, kind: Level, where: Sequence[int]) -> list[Post]:
        """Posts for checkpoint intervals (SEGMENT), steps (TRACE), or elements at positions (ELEMENT)."""
        read = lambda a: [Post(*p) for p in sized(a, len(where), len(where))]  # noqa: E731
        return self._record(read, "getPosts", job, kind, list(where))

    def segment_root(self, job: bytes, checkpoint: int) -> bytes | None:
        return self._posted(job, Level.SEGMENT, checkpoint).root

    def log_root(self, job: bytes, checkpoint: int) -> bytes | None:
        return self._posted(job, Level.SEGMENT, checkpoint).log

    def trace_root(self, job: bytes, step: int) -> bytes | None:
        return self._posted(job, Level.TRACE, step).root

    def _posted(self, job: bytes, kind: Level, where: int) -> Post:
        """One post, with None for roots that are not posted."""
        (post,) = self.posts(job, kind, [where])
        return replace(post, root=post.root if any(post.root) else None, log=post.log if any(post.log) else None)

    def orders_of(self, client: str, first: int = 0) -> list[bytes]:
        """A client's orders from `first` on, in their order."""
        return self._pages("ordersOf", client, first)

    def claims_of(self, program_root: bytes, first: int = 0) -> list[bytes]:
        """All claimed jobs of a program, from `first` on, in the order of their claims."""
        return self._pages("claimsOf", program_root, first)

    def _pages(self, name: str, key: Any, first: int) -> list[bytes]:
        found: list[bytes] = []
        total = first + 1
        while first + len(found) < total:
            page, total = self._record(lambda a: (sized(a[0], 0, PAGE), a[1]), name, key, first + len(found), PAGE)
            if not page:
                break
            found += page
        return found

    def opened(self, job: bytes, level: Level, height: int, node: bytes) -> int:
        return int(self._call("opened", job, level, height, node))

    def credits(self, address: str) -> int:
        return int(self._call("credits", address))

    def burnt(self) -> int:
        return int(self._call("burnt"))

    def job_id(self, spec: JobSpec, client: str, nonce: int) -> bytes:
        """The id that the contract gives to an order."""
        inputs = next(e for e in full_abi() if e.get("name") == "createJob")["inputs"]
        types = [abi_type(inputs[0]), "uint256", "address", "address", "uint64"]
        encoded = self.chain.web3.codec.encode(types, [astuple(spec), self.chain.chain_id, self.address, client, nonce])
        return bytes(Web3.keccak(encoded))

    def content(
        self, name: str, job: bytes, time: int, check: Callable[[Event], T | None], *indexed: bytes,
        key: Hashable = None,
    ) -> T:  # fmt: skip
        """The result of `check` for an event with this name, job and further indexed arguments, at a time that the
        contract's state names. NotYet if the endpoint shows no event that passes. Cached by these and `key`."""
        topics = tuple(map(Web3.to_hex, (self._topic(name), job, *indexed)))
        return self.contents.find((topics, time, key), topics, time, check)

    def events(
        self, name: str | None = None, job: bytes | None = None, node: bytes | None = None,
        auditor: str | None = None, **place: Any,
    ) -> list[Event]:  # fmt: skip
        """Events in order, of one name and one job, or of one auditor (Challenged). For one node (Revealed,
        LeafOpened): the newest event with these arguments (`place`)."""
        topics = [Web3.to_hex(self._topic(name)) if name else None]
        topics += [Web3.to_hex(topic) for topic in (job, node) if topic is not None]
        if auditor is not None:
            topics += [None, None, Web3.to_hex(bytes(12) + Web3.to_bytes(hexstr=auditor))]
        begin = self.begun.get(job, 0)
        if node is not None:  # a node is opened only once
            return self._events.find(tuple(topics), begin, place)
        return self._events.read(tuple(topics), begin, self.ranges if job else None)

    @cached_property
    def _topics(self) -> dict[bytes, Any]:
        named = {e["name"]: ",".join(map(abi_type, e["inputs"])) for e in full_abi() if e["type"] == "event"}
        events = {f"{name}({types})": getattr(self.contract.events, name)() for name, types in named.items()}
        return {bytes(Web3.keccak(text=signature)): event for signature, event in events.items()}

    def _topic(self, name: str) -> bytes:
        return next(topic for topic, event in self._topics.items() if event.event_name == name)

    def _decode_log(self, log: Any) -> Event | None:
        if (event := self._topics.get(bytes(log["topics"][0]))) is None:
            return None
        if event.event_name == "PartialsPosted":
            refuse_overlap(bytes(log["data"]))
        args = dict(event.process_log(log)["args"])
        return Event(event.event_name, args, quantity(log["blockNumber"]), bytes(log["transactionHash"]).hex())
