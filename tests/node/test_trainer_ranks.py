"""A trainer of several ranks: one of them plays, the others only compute and end with the run."""

from __future__ import annotations

import json
import socket
from contextlib import suppress
from pathlib import Path

from chains import wait_until
from scene import Scene
from test_commands import JOB, Hand

import vgame
from vgame.chain.game import Game
from vgame.chain.records import Phase


def given(process: int) -> int:
    """Blocks of memory that a process shares with other ranks; one of them is for letters."""
    count = 0
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            count += "memfd:vgame" in str(file.readlink())
    return count


def test_two_ranks_accept_train_claim_and_are_paid(some_scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(JOB)
    client, trainer = (Hand(some_scene, tmp_path) for _ in range(2))
    rpc = ("--rpc", some_scene.chain.url, "--json")
    client.run("prepare", "job.toml", "--out", "bundle", "--json")
    client.run("deploy", *rpc, "--registry", "games.json")
    at = (*rpc, "--game", "games.json")
    job = client.run("job", "post", "bundle", *at)[0][-1]["job"]
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        meet = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(s.getsockname()[1]), "WORLD_SIZE": "2"}
    ranks = []
    for rank in ("0", "1"):
        trainer.environment |= meet | {"RANK": rank}
        command = ("trainer", *at, "--bundle", "bundle", "--any-terms", "--store", "trainer", "--job", job)
        ranks.append(trainer.start(*command))
    game = Game(
        some_scene.chain, json.loads((tmp_path / "games.json").read_text())[str(some_scene.chain.chain_id)]["game"]
    )
    try:
        assert wait_until(lambda: given(ranks[1].pid) > 1, 240), "it gives the other rank what it computes"
        assert wait_until(lambda: game.job(bytes.fromhex(job)).phase is Phase.CLAIMED, 240), ranks[0].poll()
        assert ranks[1].wait(60) == 0, "it leaves when the run is there"
        some_scene.chain.advance(game.job(bytes.fromhex(job)).spec.challenge_window + 1)
        assert ranks[0].wait(120) == 0
    finally:
        for process in ranks:
            process.kill()
    text = [json.loads(line) for line in ranks[0].stdout]
    claimed = [line["run_root"] for line in text if line["event"] == "claimed"]
    assert claimed == [vgame.train(vgame.Bundle.load(tmp_path / "bundle"), tmp_path / "alone").root]
    assert ranks[1].stdout.read() == "", "one says what happens"
