"""Contents are found by their timestamp in the state, in few requests, even if an endpoint hides or alters data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from web3 import Web3
from web3.providers import JSONBaseProvider

from vgame.chain.connection import Chain
from vgame.chain.contents import SAME, Contents
from vgame.chain.records import Event
from vgame.errors import NotYet

ADDRESS = Web3.to_checksum_address("0x" + "ab" * 20)
TOPIC = Web3.to_hex(Web3.keccak(text="Opened"))


def data_of(content: str) -> str:
    return Web3.to_hex(content.encode())


@dataclass
class Endpoint(JSONBaseProvider):
    """A chain of headers and logs behind JSON-RPC, with hidden parts."""

    times: list[int]
    contents: dict[int, list[str]]  # by block
    branch: str = "a"  # of the blocks from `forked` on
    forked: int = 10**9
    hidden: frozenset[str] = frozenset()
    altered: bool = False  # its logs
    missing: frozenset[str] = frozenset()  # methods
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def digest(self, number: int) -> str:
        return Web3.to_hex(Web3.keccak(text=f"{self.branch if number >= self.forked else 'a'} {number}"))

    def block(self, number: int) -> dict[str, Any]:
        return {"number": hex(number), "hash": self.digest(number), "timestamp": hex(self.times[number])}

    def logs(self, digest: str, altered: bool) -> list[dict[str, Any]]:
        number = next((n for n in self.contents if self.digest(n) == digest), None)
        return [] if number is None else [
            {
                "address": ADDRESS, "topics": [TOPIC], "data": data_of("a lie" if altered else content),
                "blockNumber": hex(number), "blockHash": digest, "transactionHash": "0x" + 64 * "0",
                "transactionIndex": "0x0", "logIndex": hex(i), "removed": False,
            }
            for i, content in enumerate(self.contents[number]) if content not in self.hidden
        ]  # fmt: skip

    def make_request(self, method: Any, params: Any) -> Any:
        self.requests.append(method)
        match method:
            case _ if method in self.missing:
                return {"id": 1, "jsonrpc": "2.0", "error": {"code": -32601, "message": f"{method} does not exist"}}
            case "eth_chainId":
                result: Any = "0x1"
            case "eth_getBlockByNumber":
                which = params[0]
                result = self.block(len(self.times) - 1 if which == "latest" else int(which, 16))
            case "eth_getLogs":
                assert set(params[0]) == {"address", "topics", "blockHash"}
                result = self.logs(params[0]["blockHash"], self.altered)
            case "eth_getBlockReceipts":
                result = [{"logs": self.logs(params[0], False)}]
        return {"id": 1, "jsonrpc": "2.0", "result": result}


class Connected(Chain):
    def __init__(self, endpoint: Endpoint) -> None:
        self.url, self.checks, self.secret = "http://node", [], "http://node"
        self.web3 = Web3(endpoint)


def reader(endpoint: Endpoint) -> Contents:
    def decode(log: Any) -> Event:
        return Event("Opened", {"content": bytes(log["data"]).decode()}, log["blockNumber"], "")

    return Contents(Connected(endpoint), ADDRESS, decode)


def read(contents: Contents, time: int, content: str) -> str:
    def check(event: Event) -> str | None:
        return event.args["content"] if event.args["content"] == content else None

    return contents.find(content, (TOPIC,), time, check)


def steady(blocks: int, seconds: int = 12) -> list[int]:
    return [1_700_000_000 + seconds * n for n in range(blocks)]


def irregular(blocks: int) -> list[int]:
    """A slow chain: a minute or an hour between two blocks, and one gap of a day."""
    times = steady(blocks)
    return [t + 3_000 * (n // 7) + 60 * (n // 3) + (86_400 if n > blocks // 2 else 0) for n, t in enumerate(times)]


def crowded(blocks: int) -> list[int]:
    """Four blocks in each second."""
    return [1_700_000_000 + n // 4 for n in range(blocks)]


@pytest.mark.parametrize("times", [steady, irregular, crowded], ids=lambda f: f.__name__)
@pytest.mark.parametrize("count", [1, 2, 63, 64, 65, 3_001])
def test_a_content_is_found_in_any_block(times: Any, count: int) -> None:
    wanted = sorted({0, count // 3, count // 2, count - 2, count - 1} & set(range(count)))
    endpoint = Endpoint(times(count), {n: [f"content {n}"] for n in wanted})
    contents = reader(endpoint)
    for number in wanted:
        assert read(contents, endpoint.times[number], f"content {number}") == f"content {number}"
    assert "eth_getBlockReceipts" not in endpoint.requests


def test_few_headers_are_read_and_results_are_cached() -> None:
    """Twenty million blocks of which the content's is one of the last thousand."""

    class Long(list):
        def __getitem__(self, n: Any) -> int:
            return 1_700_000_000 + 12 * n

        def __len__(self) -> int:
            return 20_000_000

    newest = 20_000_000 - 1
    endpoint = Endpoint(Long(), {newest - n: [f"content {n}"] for n in (0, 700, 705, 19_000_000)})
    contents = reader(endpoint)
    for ago, most in ((0, 4), (700, 7), (705, 5), (19_000_000, 16)):
        endpoint.requests.clear()
        for _ in range(2):
            assert read(contents, Long()[newest - ago], f"content {ago}") == f"content {ago}"
        assert len(endpoint.requests) <= most, ago


def test_several_blocks_of_one_second_are_all_read() -> None:
    endpoint = Endpoint(crowded(100), {n: [f"content {n}"] for n in range(40, 44)})
    contents = reader(endpoint)
    for number in range(40, 44):
        assert read(contents, endpoint.times[40], f"content {number}") == f"content {number}"


def test_other_events_of_the_same_second_are_ignored() -> None:
    endpoint = Endpoint(steady(10), {5: ["one", "two", "three"]})
    assert read(reader(endpoint), endpoint.times[5], "two") == "two"


@pytest.mark.parametrize("fault", [{"hidden": frozenset({"x"})}, {"altered": True}])
def test_a_state_with_hidden_or_altered_data_is_not_yet_available(fault: dict[str, Any]) -> None:
    endpoint = Endpoint(steady(10), {5: ["x"]}, missing=frozenset({"eth_getBlockReceipts"}), **fault)
    contents = reader(endpoint)
    for _ in range(2):
        with pytest.raises(NotYet, match=r"http://node does not show .* second 1700000060 .*use another endpoint"):
            read(contents, endpoint.times[5], "x")
    endpoint.hidden, endpoint.altered = frozenset(), False
    assert read(contents, endpoint.times[5], "x") == "x"


def test_receipts_are_requested_if_logs_are_altered() -> None:
    endpoint = Endpoint(steady(10), {5: ["x"]}, altered=True)
    assert read(reader(endpoint), endpoint.times[5], "x") == "x"


def test_receipts_are_requested_if_logs_are_refused() -> None:
    endpoint = Endpoint(steady(10), {5: ["x"]}, missing=frozenset({"eth_getLogs"}))
    assert read(reader(endpoint), endpoint.times[5], "x") == "x"


@pytest.mark.parametrize("time", [0, 1_700_000_001, 2_000_000_000])
def test_a_second_without_a_block_has_no_content(time: int) -> None:
    """Before the chain, between two blocks, after the newest."""
    endpoint = Endpoint(steady(200), {5: ["x"]})
    with pytest.raises(NotYet):
        read(reader(endpoint), time, "x")
    assert len(endpoint.requests) <= 20


def test_headers_are_read_again_after_a_reorganisation() -> None:
    endpoint = Endpoint(steady(300), {150: ["x"]}, forked=100)
    contents = reader(endpoint)
    assert read(contents, endpoint.times[150], "x") == "x"
    endpoint.branch, endpoint.times[100:] = "b", [t + 12 for t in endpoint.times[100:]]
    endpoint.contents = {150: ["x"], 149: ["y"]}
    assert read(contents, endpoint.times[149], "y") == "y"


def test_false_headers_cause_no_endless_search() -> None:
    """All blocks have one timestamp, or the order of times is reversed."""
    for times in ([1_700_000_000] * 5_000, list(range(1_700_005_000, 1_700_000_000, -1))):
        endpoint = Endpoint(times, {})
        with pytest.raises(NotYet):
            read(reader(endpoint), 1_700_000_000, "x")
        assert len(endpoint.requests) <= 4 * SAME + 60


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vgame.chain.contents.KEPT", 20)
    endpoint = Endpoint(steady(2_000), {n: [f"content {n}"] for n in range(0, 2_000, 10)})
    contents = reader(endpoint)
    for number in range(0, 2_000, 10):
        assert read(contents, endpoint.times[number], f"content {number}")
    assert len(contents._found) == len(contents._headers) == 20
