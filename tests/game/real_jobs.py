"""Jobs that are really trained, in games on the real contracts and the fast chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

from revm_calls import calldata
from revm_chain import RevmChain, RevmGame

from vgame.attacks.adversaries import FalseAccuser
from vgame.attacks.tampered_log import Tampering
from vgame.chain.records import CAUSES, JobSpec, Level, Phase
from vgame.chain.wallet import Wallet, calldata_floor
from vgame.commit.merkle import Kind
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.job.bundle import Bundle
from vgame.runs.history import History
from vgame.runs.logged_history import LoggedHistory
from vgame.runs.logged_store import LoggedStore, make_executor
from vgame.runs.training import train


class Scene:
    """One job on chain."""

    nonce = 0

    def __init__(self, system: tuple[RevmChain, str], bundle: Bundle) -> None:
        self.chain, self.address = system
        self.bundle, Scene.nonce = bundle, Scene.nonce + 1
        self.gas: dict[str, int] = {}
        client, spec = self.game(), JobSpec(**bundle.order)
        self.id = client.job_id(spec, client.wallet.address, Scene.nonce)
        client.send("createJob", astuple(spec), Scene.nonce, bytes(32), bundle.program.header, value=spec.reward)
        self.view = client

    def game(self) -> RevmGame:
        return Metered(self.chain, self.address, self.chain.wallet(), self.gas)

    def trainer(self, run: History, cls: type[Trainer] = Trainer, **options) -> Trainer:
        player = cls(self.game(), self.id, run, **options)
        player.accept()
        player.claim()
        return player

    def play(self, *players: Player) -> Phase:
        """Let the players move in turn until none has a move; then pass the window."""
        for _ in range(300):
            if not sum(player.step() for player in players):
                break
        job = self.view.job(self.id)
        if job.phase is Phase.CLAIMED:
            assert self.chain.advance(job.spec.challenge_window + 1)
            for player in players:
                player.step()
        return self.view.job(self.id).phase

    @property
    def causes(self) -> list[tuple[str, str]]:
        found = [e for e in self.view.events(job=self.id) if e.name in ("Convicted", "Dismissed")]
        return [(e.name, CAUSES[e.args["cause"]]) for e in found]


class Metered(RevmGame):
    """Records the largest gas of each call."""

    def __init__(self, chain: RevmChain, address: str, wallet: Wallet, gas: dict[str, int]) -> None:
        super().__init__(chain, address, wallet)
        self.gas = gas

    def send(self, name: str, *args, value: int = 0):
        receipt = super().send(name, *args, value=value)
        used = max(int(receipt["gasUsed"], 16), calldata_floor(bytes.fromhex(calldata(name, args)[2:])))
        self.gas[name] = max(used, self.gas.get(name, 0))
        return receipt


Tamper = Callable[[Tampering], None]


def train_run(
    bundle: Bundle, folder: Path, tamper: Tamper | None = None, cls: type[Tampering] = Tampering
) -> LoggedHistory:
    """A trainer's run, with its log."""
    store, executor = LoggedStore(folder, bundle), make_executor(bundle, "cpu")
    if tamper:
        executor.kernels = cls(bundle.program, bundle.log.bits, executor.kernels.windows)
        tamper(executor.kernels)
    store.record(executor)
    train(store, executor)
    return LoggedHistory(store, executor, store)


class AtElement(FalseAccuser):
    """It accuses one element of an operator."""

    def __init__(self, *arguments, operator: int, element: int, **options) -> None:
        super().__init__(*arguments, **options)
        self.operator, self.element = operator, element

    def order(self, node):
        wanted = {Kind.TRACE: self.operator, Kind.TENSOR: self.element // 128}.get(node.kind)
        return [*([] if wanted is None else [(wanted >> node.base) - node.first]), *super().order(node)]

    def move(self, view, number, d):
        if d.level is Level.TENSOR and d.height == 0 and self.element // 128 == d.index:
            return self.name("selectElement", number, d, self.element, view.leaf(d.node))
        return super().move(view, number, d)
