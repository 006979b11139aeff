"""One honest player of a toy job as a process, to be killed: key from the environment, prints "ready", plays until its
job has ended.

Arguments: trainer | auditor, endpoint, address of the game, job.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.extend(str(Path(__file__).resolve().parents[1] / folder) for folder in ("game", "twin"))

from frauds import SETUP

from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Phase
from vgame.chain.wallet import Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.trainer import Trainer


def main() -> None:
    role, url, address, job = sys.argv[1], sys.argv[2], sys.argv[3], bytes.fromhex(sys.argv[4])
    chain = Chain(url)
    game = Game(chain, address, Wallet(chain, os.environ["VGAME_KEY"]))
    player = {"trainer": Trainer, "auditor": Auditor}[role](game, job, SETUP.machine())
    print("ready", flush=True)
    if role == "trainer":
        player.accept()
        player.claim()
    while player.step() or game.job(job).phase not in (Phase.FINAL, Phase.CONVICTED):
        time.sleep(0.02)


if __name__ == "__main__":
    main()
