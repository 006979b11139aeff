"""The server of a client: a folder with an encrypted state, complete or not, in time or not.

In: a trainer's folder, a manner. Out: ranges of bytes, or DeliveryError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from seats import table
from world import World

from vgame.chain import http
from vgame.chain.records import Phase
from vgame.delivery.fetch import Source
from vgame.delivery.sealed import Change, Offer, Shape, seal, write_offer
from vgame.delivery.seller import Seller
from vgame.errors import DeliveryError

MANNERS = ("whole", "nothing", "holes", "garbage", "drip", "late", "early", "slow garbage", "another size")
SIZES = ("shorter", "longer", "nothing", "the whole file", "everything", "no such range", "broken off")
DRIP = 50.0  # seconds of a reply, below the time limit of one
AWAY = 120  # seconds for which an honest server is unreachable, at most


class Shelf:
    """An HTTP server of one folder, in a cheat's manner. `stands`: the phase of the job and the end of its confirm
    window; without it the server is honest, and may be unreachable for some time."""

    def __init__(
        self, world: World, folder: Path, manner: str = "whole", stands: Callable[[], tuple[Phase, int]] | None = None
    ) -> None:
        self.world, self.folder, self.manner, self.stands, self.away = world, folder, manner, stands, 0.0
        self.served = False  # whether it has served any true leaves
        self.holes, self.share = world.tape.byte(), world.tape.below(16) / 16

    def get(self, name: str, first: int, size: int) -> bytes:
        """`Source.get`."""
        world = self.world
        if self.stands is None and world.on("shelf", 4) and world.allows(seconds := 1 + world.tape.below(AWAY)):
            self.away = world.now + seconds
            world.log(f"the server is away for {seconds} s")
        phase, end = self.stands() if self.stands else (Phase.NONE, 0)
        turn = end - world.spec.confirm_window * self.share
        gone = {
            "nothing": True,
            "holes": name == "leaves" and self.holes >> (first // 512 % 8) & 1,
            "late": phase is Phase.CLAIMED or world.now < turn,
            "early": phase is Phase.DELIVERING and world.now > turn,
        }
        path = self.folder / name
        if self.away > world.now or gone.get(self.manner) or not path.exists():
            raise DeliveryError(f"the server does not serve {name}")
        if self.manner in ("drip", "slow garbage"):
            left = http._LAST.get() - world.now  # the limit of `replies_until`
            world.clock.sleep(min(DRIP, left))
            if left < DRIP:
                raise DeliveryError("the reply is not complete in time")
        found = path.read_bytes()[first : first + size]
        self.served |= name == "leaves" and "garbage" not in self.manner
        return bytes(b ^ 1 for b in found) if "garbage" in self.manner and name != "chunks" else found


class Session:
    """Twin: an HTTP session. Replies of `shelf`, some of another size than requested."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    @contextmanager
    def get(self, url: str, headers: dict[str, str], **_: Any) -> Iterator[Any]:
        world, name = self.shelf.world, url.rsplit("/", 1)[-1]
        first, last = (int(place) for place in headers["Range"].removeprefix("bytes=").split("-"))
        data, status = self.shelf.get(name, first, last + 1 - first), 206
        odd = self.shelf.manner == "another size" and name != "offer.json"
        if odd or world.on("replies", 5):
            data, status = self._resized(world.tape.pick(SIZES), name, data)
        yield SimpleNamespace(status_code=status, raw=BytesIO(data))

    def _resized(self, size: str, name: str, data: bytes) -> tuple[bytes, int]:
        whole, place = (self.shelf.folder / name).read_bytes(), self.shelf.world.tape.byte() * len(data) // 256
        match size:
            case "shorter":
                return data[:place], 206
            case "longer":
                return data + whole[: 1 + place], 206
            case "nothing":
                return b"", 206
            case "the whole file":
                return whole, 206
            case "everything":
                return whole, 200
            case "no such range":
                return b"", 416
        raise OSError("the connection broke off")


class Wire(Source):
    """vgame's reader of ranges over such a session."""

    def __init__(self, shelf: Shelf) -> None:
        self.url = "http://a-shelf"
        self.session: Any = Session(shelf)


def elements() -> list[int]:
    return [state.elements for state in table().program.states]


def words() -> list[Any]:
    """The words of the final state, little-endian."""
    return [w.astype("<u4") for w in table().state_words(table().steps)]


def flawed(folder: Path, job: bytes, key: bytes, flaw: str, place: int) -> None:
    """Seal the right state, with a leaf that does not decipher to its hash, or with a wrong node."""
    shape = Shape(elements())
    tensor = place % len(shape.elements)

    def change(piece: Any, true: Any, cipher: Any) -> None:
        if piece.tensor == tensor:
            (cipher if flaw == "leaf" else true)[0, place % 32] ^= 1

    changed: Change | None = change if flaw else None
    made = seal(words(), shape, key, job, folder, changed)
    right = table().state_root(table().steps)
    write_offer(folder, job, Offer(right, made.cipher_root, made.key_hash))


def seller(folder: Path, job: bytes) -> Seller:
    return Seller(folder, job, elements(), words)
