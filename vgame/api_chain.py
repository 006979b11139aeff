"""The Python API on a chain: a game, orders, agents. Re-exported by `vgame`; needs the extra `chain`.

Reports of agents go to the logger `vgame`; amounts are in wei, times in seconds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vgame.agents import auditor_service, client, config, delivery, local_run, roles
from vgame.agents.named_jobs import Limits
from vgame.agents.news import News
from vgame.agents.retry import Retry
from vgame.api_run import save_pretrained
from vgame.chain import game as contract
from vgame.chain.agreed import checked
from vgame.chain.anywhere import anywhere
from vgame.chain.connection import Chain
from vgame.chain.deployment import deploy
from vgame.chain.records import checksum_address
from vgame.chain.wallet import Wallet
from vgame.dispute.trainer import Trainer
from vgame.errors import VgameError
from vgame.execute.devices import find, use_device
from vgame.job.bundle import Bundle
from vgame.job.weights import read_weights
from vgame.system.progress import Reporter

log = logging.getLogger("vgame")


@dataclass(frozen=True)
class Node:
    """A chain for experiments: its `url`, and the private `keys` of funded accounts; these keys are public."""

    url: str
    keys: tuple[str, ...]


@contextmanager
def embedded_chain() -> Iterator[Node]:
    """Context with the embedded chain on loopback. Time passes with transactions, or by `Chain.advance`."""
    from eth_tester.backends.pyevm.main import get_default_account_keys

    from vgame.chain.embedded import serve

    server = serve()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Node(f"http://127.0.0.1:{server.server_port}", tuple(key.to_hex() for key in get_default_account_keys()))
    finally:
        server.shutdown()
        server.server_close()


class Game(contract.Game):
    """The contract at an address, with the wallet that sends the transactions. ChainError unless all its parts are
    those of this version."""

    def __init__(self, chain: Chain, address: str, wallet: Wallet | None = None) -> None:
        with checked(chain):
            super().__init__(chain, address, wallet)
            anywhere(chain, self.check_parts)
            chain.checks.append(self.check_parts)

    @classmethod
    def deploy(cls, wallet: Wallet) -> Game:
        """Deploy a game on the wallet's chain. Parts that the account's last transactions have deployed are used: after
        an interruption the same call continues."""
        return cls(wallet.chain, deploy(wallet), wallet)

    def post(self, bundle: Bundle, nonce: int = 0) -> Order:
        """Order a bundle's job; pays its reward. To repeat an order, use another `nonce`."""
        return Order(self, client.post_job(self, bundle, nonce))


@dataclass(frozen=True)
class Order:
    """A job of a `game`; `job`: its identity."""

    game: Game
    job: bytes

    @property
    def phase(self) -> str:
        """created, accepted, claimed, final, convicted or expired; with delivery also delivering, revealed, undelivered
        or declined."""
        self.game.chain.turn()
        return self.game.job(self.job).phase.name.lower()

    def close(self) -> int:
        """End the job if its time is over, and withdraw all credits of the wallet; returns the wei. ChainError if
        neither is possible."""
        return client.close_job(self.game, self.job)[1]

    def receive(self, bundle: Bundle | Path | str, source: str, out: Path | str) -> Received:
        """For the client, get the trained state: fetch it from the trainer's URL, confirm, wait for the key, write the
        safetensors file `out`. Complains, requests and declines by the rules of docs/delivery.md. VgameError if the job
        ends without its state. After an interruption, call it again to continue."""
        held = bundle if isinstance(bundle, Bundle) else Bundle.load(bundle)
        delivery.receive(self.game, held, self.job, source, Path(out), _Log(who="client"))
        return Received(Path(out))


class Received(dict[str, torch.Tensor]):
    """A received state, as `module.load_state_dict` takes it; `file`: the safetensors file that holds it."""

    def __init__(self, file: Path) -> None:
        super().__init__(read_weights(file)[0])
        self.file = file

    def save_pretrained(self, folder: Path | str, model: torch.nn.Module) -> None:
        """Load the weights into a model of the task's class and save it in its own format, with its configuration."""
        save_pretrained(self, str(self.file), folder, model)


class _Log(Reporter):
    """Writes an agent's reports to the log."""

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        if text:
            log.info("%s: %s", self.who, text)

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        log.debug("%s: %s %s of %s %s", self.who, what, done, total, detail)


class _Agent:
    role = ""

    def __init__(
        self, game: Game, bundle: Path | str, store: Path | str, *, device: str = "default", any_terms: bool = False
    ) -> None:
        if find(device).environment:
            raise VgameError(f"device {device} needs a process of its own: start `vgame {self.role} --device {device}`")
        self.game, self.device, self.any_terms = game, device, any_terms
        self.seat = config.AgentConfig(game.chain.url, game.address, Path(bundle), Path(store), device)
        self.reporter = _Log(who=self.role)
        News(game, self.reporter)
        self._player: Any = None

    def step(self) -> bool:
        """Make the next move, if there is one; True if it was made. The first call computes the whole run before that.
        VgameError if a temporary problem prevents it; the next call tries again."""
        with use_device(self.device) as kind:
            self._begin(kind)
            return self._move()

    def _begin(self, kind: str) -> None:
        """Compute the whole run, once."""
        if self._player is None:
            self._player = self._start(kind)

    def _start(self, kind: str) -> Any:
        raise NotImplementedError

    def _move(self) -> bool:
        raise NotImplementedError


class TrainerAgent(_Agent):
    """Accepts an order, trains its bundle (a folder), claims, defends, withdraws. A new agent with the same store
    continues."""

    role = "trainer"

    def __init__(
        self,
        game: Game,
        order: Order,
        bundle: Path | str,
        store: Path | str,
        *,
        device: str = "default",
        any_terms: bool = False,
    ) -> None:
        super().__init__(game, bundle, store, device=device, any_terms=any_terms)
        self.order = order

    def _start(self, kind: str) -> Trainer:
        self._computation = local_run.LocalRun(self.seat, kind, self.reporter)
        return roles.trainer_of(self.game, self.order.job, self._computation, self.any_terms)

    def _move(self) -> bool:
        return bool(self._player.step())

    def run(self) -> str:
        """Play until the job has ended: final or convicted. Waits during outages."""
        with use_device(self.device) as kind:
            self._begin(kind)
            return roles.play(self._player, self._computation, self.reporter, self.seat.poll).name.lower()


class AuditorAgent(_Agent):
    """Executes a bundle (a folder) again, and disputes claims that differ. It audits the jobs in `orders`, the orders
    of the addresses in `clients`, and all claims of the bundle, `hunt` at a time; without these arguments, all claims,
    eight at a time. `log`: the trainer's run folder, needed for a bundle in mode `logged`. `published`: folder or URLs
    of the trainer's run, whose states save time.
    """

    role = "auditor"

    def __init__(
        self,
        game: Game,
        bundle: Path | str,
        store: Path | str,
        *,
        device: str = "default",
        any_terms: bool = False,
        orders: Iterable[Order] = (),
        clients: Iterable[str] = (),
        hunt: int = 0,
        log: Path | str | None = None,
        published: str | Sequence[str] = (),
    ) -> None:
        super().__init__(game, bundle, store, device=device, any_terms=any_terms)
        published = (published,) if isinstance(published, str) else tuple(published)
        self.seat = replace(self.seat, log=None if log is None else Path(log), published=published)
        jobs, addresses = frozenset(order.job for order in orders), frozenset(map(checksum_address, clients))
        self.limits = Limits(any_clocks=any_terms, jobs=jobs, clients=addresses, hunt=hunt)

    def _start(self, kind: str) -> auditor_service.AuditorService:
        return auditor_service.auditor_of(self.game, self.seat, kind, self.reporter, self.limits)

    def _move(self) -> bool:
        return bool(self._player.round())

    def run(self) -> None:
        """Play until all its jobs have ended. Waits during outages."""
        with use_device(self.device) as kind:
            self._begin(kind)
        retry = Retry(self.reporter, self.seat.poll)
        while not self._player.finished:
            with retry:
                if not self.step():
                    self._player.pause()
