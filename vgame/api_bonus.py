"""A bonus for accuracy, in Python: an escrow contract next to a game. Re-exported by `vgame`; needs the extra
`chain`."""

from __future__ import annotations

from pathlib import Path

from vgame.agents import bonus
from vgame.api_run import Run
from vgame.chain.deployment import deploy_part
from vgame.chain.escrow import NAME, EscrowContract
from vgame.chain.game import Game
from vgame.job.bundle import Bundle
from vgame.tasks.task import Task

Folder = Path | str


class Escrow(EscrowContract):
    """The escrow at an address: bonuses for trainers whose trained state reaches a mark on a committed test set
    (docs/bonus.md).

    Amounts are in wei, times in seconds. The identity of a bonus has 32 bytes.
    """

    @classmethod
    def deploy(cls, game: Game) -> Escrow:
        """Deploy an escrow for a game on its chain, unless the account's last transaction has done so."""
        assert game.wallet is not None
        return cls(game, deploy_part(game.wallet, NAME, game.address))

    def promise(
        self,
        job: bytes,
        training: Bundle,
        task: Task,
        total: str,
        *,
        least: int,
        amount: int,
        window: int | None = None,
        nonce: int = 0,
        validate: float | None = None,
        store: Folder = ".",
    ) -> bytes:
        """Lock `amount` for the trainer of a job that is not claimed yet. It is paid if the task's evaluation of the
        trained state gives `total` as `least` or more. `window`: None means the shortest window in which a delay of
        the evaluation costs more than it gains. `validate`: seconds for comparing the evaluation's program with the
        task's code (None: 60, 0: none). `store`: as for `check`. Abstain if `check` would refuse the bonus on this
        device."""
        return bonus.promise(self, job, training, task, total, least, amount, window, nonce, validate, store)

    def check(
        self,
        identity: bytes,
        training: Bundle,
        task: Task,
        *,
        job: bytes | None = None,
        validate: float | None = None,
        store: Folder = ".",
    ) -> str:
        """For a trainer, before the work: the name of the total that the bonus pays for. Raises Abstain if the task's
        evaluation is another one, or if the bonus cannot be earned or paid; NotYet until more than half of the
        endpoints show it in a final state. `job`: the job that the trainer wants to accept; a bonus for another one is
        refused. `validate`: as for `promise`. `store`: a folder on the disk where the roles will keep the evaluation,
        which has to fit."""
        return bonus.check(self, self.promised(identity, self.final(identity)), training, task, job, validate, store)

    def evaluation(
        self, identity: bytes, run: Run | Folder, task: Task, *, validate: float | None = None, early: bool = False
    ) -> Bundle:
        """The evaluation of a trained run that the bonus requires. NotYet until the bonus's window has begun (`close`
        begins it), because an earlier claim does not count. Order it with `game.post`, then train and claim it like any
        job. It names the trainer of the training, so that no other account can accept it. `validate`: as for
        `promise`. `early`: for an auditor, also before the window begins; such an evaluation must not be claimed."""
        return bonus.evaluation_bundle(self, self.promised(identity, self.final(identity)), run, task, validate, early)

    def pay(self, identity: bytes, job: bytes, run: Run | Folder, evaluation: Run | Folder) -> int:
        """Prove that the final evaluation `job` reaches the mark; returns the wei added to the trainer's credits.
        ContractError `MarkMissed` if it does not."""
        return bonus.pay(self, identity, job, run, evaluation)

    def close(self, identity: bytes) -> str:
        """Settle a bonus whose time is over, and withdraw: `paid`, `returned`, `started` (its window has begun),
        `waiting` (for the training), `kept` (for the payer, after a failed training). The trainer and its delegates
        return no bonus."""
        return bonus.close(self, identity)
