"""An endpoint's replies, limited in time and size: JSON without duplicate keys."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from http.client import HTTPResponse
from math import inf
from typing import Any
from urllib.parse import urljoin, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, HTTPError
from web3 import HTTPProvider
from web3.providers.rpc.utils import ExceptionRetryConfiguration

from vgame.system.endpoints import without_secrets
from vgame.system.files import json_text

REPLY_TIMEOUT = 60  # seconds from the request to the last byte of its reply


LOOPBACK = ("127.0.0.1", "localhost", "::1")


MOST_REPLY = 2**25  # maximum bytes of a reply, with its header


MOST_VALUES = 2**20  # maximum values in a reply, about 200 MB as Python objects; 32 MiB of values would be gigabytes


CONNECT_TIMEOUT = 10  # seconds, of REPLY_TIMEOUT, until one of the endpoint's addresses accepts a connection


# Its warnings about a reply's header contain the whole URL.
logging.getLogger("urllib3.connection").setLevel(logging.ERROR)

#: Deadlines on the monotonic clock: of the present reply, and of all replies.
_END: ContextVar[float] = ContextVar("end")
_LAST: ContextVar[float] = ContextVar("last", default=inf)


@contextmanager
def replies_until(end: float) -> Iterator[None]:
    """Inside this context the wait for a reply ends at a time of the monotonic clock."""
    token = _LAST.set(min(end, _LAST.get()))
    try:
        yield
    finally:
        _LAST.reset(token)


class _InTime(io.RawIOBase):
    """A socket's data until `_END`, at most MOST_REPLY bytes. The library's own timeout is not sufficient: it holds for
    each piece, and a header line may come in many pieces."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock, self._raw, self._room = sock, sock.makefile("rb", buffering=0), MOST_REPLY

    def makefile(self, _: str) -> io.BufferedReader:
        """The file that HTTPResponse reads from."""
        return io.BufferedReader(self)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if (left := _END.get() - time.monotonic()) <= 0:
            raise TimeoutError(f"a reply took more than {REPLY_TIMEOUT} seconds")
        self._sock.settimeout(left)
        count = self._raw.readinto(buffer)
        self._room -= count or 0
        if self._room < 0:
            raise ValueError(f"a reply has more than {MOST_REPLY:,} bytes")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


def _addresses(name: str, port: int) -> list[str]:
    """The addresses of a host; its name if it has none."""
    try:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return [name]
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class _Reply(HTTPResponse):
    """A reply within the time limit. INVARIANT: it has no cookies, because a session would keep any number of them."""

    def __init__(self, sock: socket.socket, **options: Any) -> None:
        super().__init__(_InTime(sock), **options)  # type: ignore[arg-type]

    def begin(self) -> None:
        super().begin()
        for name in ("Set-Cookie", "Set-Cookie2"):
            del self.headers[name]


def _in_time(pool: Any) -> Any:
    """A pool of connections whose replies, from the first header line on, must be complete by `_END`."""

    class Connection(pool.ConnectionCls):
        """The connect timeout holds for all addresses of a name together: an untrusted name may have thousands."""

        response_class = _Reply

        def _new_conn(self) -> socket.socket:
            name, seconds, end = self._dns_host, self.timeout, time.monotonic() + self.timeout
            problem: Exception = ConnectTimeoutError(self, f"connecting to {name} takes too long")
            try:
                for address in _addresses(name, self.port):
                    if (left := end - time.monotonic()) <= 0:
                        break
                    self._dns_host, self.timeout = address, left
                    try:
                        return super()._new_conn()
                    except HTTPError as error:
                        problem = error
            finally:
                self._dns_host, self.timeout = name, seconds
            raise problem

    return type(pool.__name__, (pool,), {"ConnectionCls": Connection})


class _InTimeAdapter(HTTPAdapter):
    """Connections with these limits, also through proxies."""

    pools = {"http": _in_time(HTTPConnectionPool), "https": _in_time(HTTPSConnectionPool)}  # noqa: RUF012

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = self.pools

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = self.pools
        return manager

    def send(self, *args: Any, **options: Any) -> requests.Response:
        """INVARIANT: a body is as large as the received data. Compression, which was not requested, is ignored: it
        would allow a body of any size."""
        now = time.monotonic()
        _END.set(min(now + REPLY_TIMEOUT, _LAST.get()))
        if (left := _END.get() - now) <= 0:
            raise requests.Timeout("the time for the request is over")
        options["timeout"] = tuple(min(left, seconds) for seconds in options["timeout"])
        response = super().send(*args, **options)
        if response.is_redirect:
            where = without_secrets(urljoin(response.url, response.headers["Location"]))[:200]
            raise requests.TooManyRedirects(
                f"it redirects to {where}; if you trust that address, give its URL",
                response=response,
            )
        response.raw.headers.discard("Content-Encoding")
        return response


class _Provider(HTTPProvider):
    """Accepts a reply only if it has no duplicate keys and not too many values, and fetches no URL that a reply names
    (EIP-3668): that could take hours, and reach this machine's own services."""

    global_ccip_read_enabled = False

    def decode_rpc_response(self, raw_response: bytes) -> Any:
        if (values := sum(map(raw_response.count, (b",", b"[", b"{")))) > MOST_VALUES:
            raise ValueError(f"a reply has {values:,} values, more than {MOST_VALUES:,}")
        reply = json.loads(json_text(raw_response), object_pairs_hook=_unique)
        error = reply.get("error") if isinstance(reply, dict) else None
        if isinstance(error, dict) and error.get("data") is None and "revert 0x" in _message(error):
            error["data"] = {"message": error["message"]}  # web3 drops a string, but keeps an object
        return reply


def _message(error: dict[str, Any]) -> str:
    return str(error.get("message")).lower().replace("reverted: ", "revert ")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys: of two values for one key, two programs may read different ones."""
    if len(found := dict(pairs)) < len(pairs):
        raise ValueError("a reply has the same key twice")
    return found


def careful_session(url: str) -> requests.Session:
    """A session for an untrusted server: a reply must come within REPLY_TIMEOUT, uncompressed, and without a
    redirection; no cookie is kept or sent. INVARIANT: the server gets no password but that of its URL, so ~/.netrc is
    not read. Proxies and certificates are those of the environment."""
    session = requests.Session()
    session.trust_env = False
    with suppress(ValueError):  # a wrong URL is reported at the first request
        if urlsplit(url).hostname not in LOOPBACK:
            session.proxies = requests.utils.get_environ_proxies(url)
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
    session.headers["Accept-Encoding"] = "identity"
    session.mount("http://", _InTimeAdapter())
    session.mount("https://", _InTimeAdapter())
    return session


def provider(url: str) -> HTTPProvider:
    """A provider for an endpoint; a request without a reply in time is not repeated at once."""
    again = ExceptionRetryConfiguration(errors=(ConnectionError, requests.HTTPError))
    return _Provider(url, {"timeout": (CONNECT_TIMEOUT, REPLY_TIMEOUT)}, careful_session(url), again)
