"""Serves the page on loopback: files, the state, and its changes as server-sent events.

INVARIANT: read-only and for this machine's browsers alone: it listens on loopback, answers only requests to loopback's
names (so no page of another site, even if its name resolves to this machine) and of the same site, runs only its own
script, and sends requests only to the endpoint.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vgame.errors import VgameError
from vgame.watch.differences import State, difference, shown

LOOPBACK = "127.0.0.1"
HOSTS = [LOOPBACK, "localhost"]
PAGE = files("vgame.watch") / "page"
SCRIPTS = (
    "words.js", "dom.js", "numbers.js", "pictures.js", "exact.js", "client.js", "dispute.js", "views.js", "watch.js",
)  # fmt: skip
SOURCES = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:"
POLICY = f"{SOURCES}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin", "Cache-Control": "no-store",
}  # fmt: skip
HEARTBEAT = 5.0  # seconds between two `alive` events
OWN = (None, "none", "same-origin")  # accepted values of Sec-Fetch-Site: other sites must not cause reads of a chain
MOST_LISTENERS = 16  # each holds a thread while it waits


class Hub:
    """The newest state, polled in a thread while there are listeners, which are woken by changes."""

    def __init__(self, look: Callable[[], State], every: float = 1.0) -> None:
        self.look, self.every = look, every
        self.state: State = {}
        self.listeners = 0
        self._changed, self._looking = threading.Condition(), threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(5)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def once(self) -> None:
        """Read now; an error becomes a record beside the last state. One read at a time, since the reader keeps
        state."""
        with self._looking:
            try:
                state = self.look()
            except Exception as error:  # untrusted data can raise anything; the page continues
                state = {k: v for k, v in self.state.items() if k != "problem"} | {"problem": {"text": _reason(error)}}
            if state != self.state:
                with self._changed:
                    self.state = state
                    self._changed.notify_all()

    def _watch(self) -> None:
        while not self._stop.wait(self.every if self.state else min(self.every, 0.1)):
            if self.listeners:
                self.once()

    def wait(self, seen: State, timeout: float) -> State:
        """Wait for another state than the given one; after a while returns the same."""
        with self._changed:
            self._changed.wait_for(lambda: self.state is not seen or self.stopped, timeout)
            return self.state


def _reason(error: Exception) -> str:
    return shown(error if isinstance(error, VgameError) else f"{type(error).__name__}: {error}")


async def events(hub: Hub, gone: Callable[[], Any]) -> AsyncIterator[str]:
    """`state` first, then a `difference` after each change; a slow listener skips intermediate states, never the
    last."""
    hub.listeners += 1  # starts the polling
    try:
        async for event in _changes(hub, gone):
            yield event
    finally:
        hub.listeners -= 1


async def _changes(hub: Hub, gone: Callable[[], Any]) -> AsyncIterator[str]:
    seen: State | None = None
    while not hub.stopped and not await gone():
        state = (
            await asyncio.to_thread(hub.wait, seen if seen is not None else {}, HEARTBEAT)
            if seen is not None
            else hub.state
        )
        if seen is None:
            yield _event("state", state)
        elif state is seen:
            yield "event: alive\ndata: 0\n\n"
        else:
            yield _event("difference", difference(seen, state))
        seen = state


def _event(name: str, data: Any) -> str:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"


def _own(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler that accepts only requests of this page or of a program: a page of another site cannot read answers,
    but could cause load."""

    async def checked(request: Request) -> Response:
        return await answer(request) if request.headers.get("sec-fetch-site") in OWN else Response("another site", 403)

    return checked


class _Headers:
    """Adds the security headers to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *message["headers"],
                    *((k.lower().encode(), v.encode()) for k, v in HEADERS.items()),
                ]
            await send(message)

        await self.app(scope, receive, with_headers)


def make_app(hub: Hub) -> Starlette:
    """The page over a hub."""

    async def newest(_: Request) -> Response:
        if not hub.listeners:  # nothing was read yet
            await asyncio.to_thread(hub.once)
        return JSONResponse(hub.state)

    async def stream(request: Request) -> Response:
        if hub.listeners >= MOST_LISTENERS:
            return Response(f"{MOST_LISTENERS} pages listen already; close one", 503)
        return StreamingResponse(events(hub, request.is_disconnected), media_type="text/event-stream")

    def file(name: str, kind: str) -> Route:
        content = (PAGE / name).read_bytes()
        return Route("/" if name == "index.html" else f"/{name}", lambda _: Response(content, media_type=kind))

    routes = [
        file("index.html", "text/html"), file("watch.css", "text/css"), *(file(s, "text/javascript") for s in SCRIPTS),
        Route("/state", _own(newest)), Route("/events", _own(stream)),
    ]  # fmt: skip
    return Starlette(
        routes=routes,
        middleware=[Middleware(_Headers), Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS, www_redirect=False)],
    )


class PageServer:
    """A hub and its page, served until stopped."""

    def __init__(self, hub: Hub, port: int = 0) -> None:
        self.hub = hub
        self._socket = self._bind(port)
        self.url = f"http://{LOOPBACK}:{self._socket.getsockname()[1]}/"
        config = uvicorn.Config(
            make_app(hub), log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @staticmethod
    def _bind(port: int) -> socket.socket:
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((LOOPBACK, port))
            made.listen(128)
        except OSError as error:
            made.close()
            raise VgameError(
                f"port {port} of {LOOPBACK} cannot be used: {error.strerror}; give another --port, 0 takes a free one"
            ) from None
        return made

    def start(self) -> None:
        """Start hub and server in threads of their own."""
        self.hub.start()
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        self._thread.start()

    def serve(self) -> None:
        """Serve until interrupted."""
        self.hub.start()
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """Stop server and hub."""
        self._server.should_exit = True
        self.hub.stop()
        if self._thread:
            self._thread.join(5)
