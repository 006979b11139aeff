"""The scene of the exchange of the trained state for the reward, honest and with every attack, on a small job of its
own.

All jobs are claimed, then become final together; trainer and client are the real seller and buyer, in this process. The
honest state is sent over HTTP to a file, whose content must equal the run's state.
"""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vgame.agents.client import post_job
from vgame.agents.config import AgentConfig
from vgame.agents.delivery import folder_server, source_record, write_state
from vgame.agents.local_run import LocalRun
from vgame.attacks.exchange import CHEATS, HONEST, Cheat, Exchange
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.commit.tensor import to_words
from vgame.delivery.fetch import Source
from vgame.demo.result import Sale
from vgame.demo.stage import Stage
from vgame.execute.devices import use_device
from vgame.system.progress import Reporter
from vgame.tasks.task import Task
from vgame.watch.money import CONTRACT, balances, flows

WINDOWS = {"confirm_window": 20_000, "key_window": 8_000, "complaint_window": 8_000}
REWARD = 10**17
#: These attacks of the register; tests/game/test_exchange_attacks.py plays all.
SHOWN = (
    "garbage-ciphertext",
    "one-wrong-leaf",
    "wrong-true-hash",
    "wrong-key",
    "no-key",
    "refused-chunk",
    "false-complaint",
    "declines",
    "requests-to-the-limit",
    "silent-client",
)
FAULTS = ("no key", "a refused request", "badNode", "badLeaf")


def task() -> Task:
    torch.manual_seed(1)
    model, data = torch.nn.Linear(3, 5_500), {"x": torch.randn(8, 3)}
    loss = lambda m, batch: m(batch["x"]).square().mean()  # noqa: E731
    return Task(model, loss, torch.optim.SGD(model.parameters(), lr=0.1), data, batch=4)


class Order:
    """A small job: its bundle, and its run."""

    def __init__(self, stage: Stage) -> None:
        from vgame.api import Job, prepare
        from vgame.job.file import Terms

        terms = Terms(reward=REWARD, trainer_bond=2 * REWARD, diverged_pay=0, **WINDOWS)
        self.bundle = prepare(Job(task(), steps=2, interval=1, seed=5, terms=terms))
        folder = stage.folder / "delivery"
        self.bundle.save(folder)
        stage.page.programs.add(self.bundle)
        seat = AgentConfig(stage.url, stage.game.address, folder, stage.folder / "delivery-run")
        with use_device("default") as kind:
            computation = LocalRun(seat, kind, _Quiet())
            computation.lock()
            computation.run()
        self.history = computation.history
        self.words = [to_words(t) for t in self.history.state_tensors(self.bundle.steps)]


class _Quiet(Reporter):
    """A listener that reports nothing: the scene reports."""

    def emit(self, event: str, text: str = "", **fields: Any) -> None:
        pass

    def progress(self, what: str, done: int, total: int, detail: str = "") -> None:
        pass


class Deliveries:
    """Plays the deliveries on a stage."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def play(self) -> None:
        stage = self.stage
        stage.screen.scene("The trained state for the reward: honestly, and with every way to cheat")
        order = Order(stage)
        exchanges = [self._begin(order, cheat) for cheat in (HONEST, *(CHEATS[name] for name in SHOWN))]
        stage.travel(order.bundle.terms.challenge_window + 1)
        for exchange in exchanges:
            self._end(exchange)

    def _begin(self, order: Order, cheat: Cheat) -> Exchange:
        stage = self.stage
        stage.nonce += 1
        job = post_job(stage.game, order.bundle, stage.nonce)
        stage.page.titles[job.hex()] = f"{cheat.name}: {cheat.title}"
        trainer = Game(
            stage.chain, stage.game.address, stage.wallets["cheat" if cheat.end is Phase.UNDELIVERED else "trainer"]
        )
        folder = stage.folder / "deliveries" / cheat.name
        record = partial(source_record, order.bundle)
        exchange = Exchange(cheat, stage.game, trainer, order.history, job, order.words, folder, record)
        exchange.claim()
        if cheat is HONEST:
            self._over_http(exchange, order, folder / "model.safetensors")
        return exchange

    def _over_http(self, exchange: Exchange, order: Order, out: Path) -> None:
        """Check that the client receives the trained state."""
        from vgame.job.weights import check_weights

        server = folder_server(exchange.seller.public, "127.0.0.1", 0)
        self.stage.stack.callback(server.server_close)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.stage.stack.callback(server.shutdown)
        exchange.get = Source(f"http://127.0.0.1:{server.server_port}").get

        def write(buyer: Any) -> None:
            write_state(order.bundle, buyer, out)
            keys = check_weights(out, buyer.offer().final_state, order.bundle)
            self.stage.screen.say(f"the client has {len(keys)} tensors, certified by the claim")

        exchange.write = write

    def _end(self, exchange: Exchange) -> None:
        phase, stage = exchange.play(), self.stage
        events = stage.game.events(job=exchange.job)
        fault = next((FAULTS[e.args["fault"]] for e in events if e.name == "NotDelivered"), None)
        requests = sum(e.name == "Requested" for e in events)
        found = balances(flows(stage.game.job(exchange.job), events))
        money = {stage.names.get(who, who): wei for who, wei in found.items() if who != CONTRACT}
        cheat = exchange.cheat
        right = phase is cheat.end and exchange.received == (phase is Phase.FINAL and not cheat.absent)
        sale = Sale(
            cheat.name, cheat.title, phase.name.lower(), fault, exchange.refusals, requests, money, right
        )  # fmt: skip
        stage.result.exchanges.append(sale)
        stage.screen.sale(sale)
