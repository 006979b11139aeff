"""Players with a rule broken that counts only where a role is played twice: the simulator has to find every one."""

from __future__ import annotations

from typing import Any

from several import Patches

from vgame.chain.pauses import Pauses
from vgame.chain.wallet import Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.claim_view import ClaimView
from vgame.dispute.delegate import Delegate
from vgame.dispute.player import Player
from vgame.dispute.trainer import Trainer
from vgame.errors import Over


def nothing(*_: Any) -> None:
    """Replaces a check."""


def own_number(self: Wallet) -> int:
    """It counts transactions by itself, though another process has the key too."""
    count = self.__dict__.get("number", None)
    self.number = COUNT(self) if count is None else count + 1
    return self.number


def left_to_others(self: Auditor, view: ClaimView) -> bool:
    """It does not dispute a claim that another auditor disputes."""
    return not view.job.open and CHALLENGE(self, view)


def own_stakes(self: Auditor, view: ClaimView) -> Any:
    """It plays only disputes that this process has begun."""
    return MOVES(self, view) if self.stakes is None or self.stakes.sent else []


def never(*_: Any) -> bool:
    return False


def shown(self: Trainer, shown: bool) -> bool:
    return shown


def every_error(self: Player, name: str, *args: object, value: int = 0) -> bool:
    """Each refused move ends it, though another process may have made the move."""
    try:
        self.game.move(name, *args, value=value)
    except Exception as error:
        raise Over(str(error)) from None
    return True


COUNT, CHALLENGE, MOVES = Wallet._count, Auditor.challenge, Auditor.moves
BROKEN: dict[str, Patches] = {
    "makes no pauses": ((Pauses, "check", nothing), (Pauses, "begin", nothing)),
    "counts its own transactions": ((Wallet, "_count", own_number),),
    "leaves disputed claims to others": ((Auditor, "challenge", left_to_others),),
    "plays its own process's stakes": ((Auditor, "moves", own_stakes),),
    "ends where another was faster": ((Player, "attempt", every_error),),
    "delegate never defends": ((Delegate, "defend", never),),
    "delegate never finishes": ((Delegate, "finish", never),),
    "delegate ends with the newest block": ((Delegate, "has_ended", shown),),
}
