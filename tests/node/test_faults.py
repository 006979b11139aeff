"""Agents behind an endpoint that drops, delays and repeats requests and loses replies, and on a chain that
reorganises."""

from __future__ import annotations

import gzip
import json
import random
import time
import tracemalloc

import pytest
from frauds import LIE, SETUP, Mistaken, state_lie
from proxy import DrippingProxy, FaultyProxy, HugeProxy, RedirectingProxy, served
from scene import Play, Scene
from wide import of_many

import vgame.chain.http as http_module
from vgame.agents.retry import Retry
from vgame.chain import http
from vgame.chain.connection import Chain
from vgame.chain.game import Game
from vgame.chain.records import Phase, Status
from vgame.chain.wallet import Wallet
from vgame.dispute.auditor import Auditor
from vgame.dispute.player import Player
from vgame.errors import ChainError, NotYet
from vgame.system.progress import Reporter


def patient(play: Play, chain: Chain, cls: type[Player], lies=None) -> tuple[Player, Retry]:
    """A player whose endpoint is `chain`, in a loop like that of `vgame trainer` and `vgame auditor`."""
    wallet = Wallet(play.scene.chain)
    play.scene.chain.fund(wallet.address, 100 * 10**18)
    game = Game(chain, play.scene.address, Wallet(chain, wallet.key))
    return cls(game, play.id, play.machine(lies)), Retry(Reporter(json_lines=True), 0.01, 0.05)


def keep_going(players: list[tuple[Player, Retry]], end, seconds: float = 400) -> None:
    limit = time.monotonic() + seconds
    while not end():
        assert time.monotonic() < limit, "the game stands still"
        for player, retry in players:
            with retry:
                player.step()


@pytest.mark.node
@pytest.mark.parametrize("seed", [2, *(pytest.param(n, marks=pytest.mark.nightly) for n in (0, 1))])
def test_a_fraud_is_convicted_through_a_faulty_endpoint(node: Scene, seed: int) -> None:
    with served(FaultyProxy, node.chain.url, dice=random.Random(seed), faults={}) as (handler, url):
        handler.rate, rate = 0.0001, handler.rate
        faulty = Chain(url)
        play = node.claimed(SETUP, LIE)
        auditor, retry = patient(play, faulty, Auditor)
        handler.rate = rate
        with retry:
            play.trainer.game = Game(faulty, node.address, Wallet(faulty, play.trainer.game.wallet.key))
        keep_going(
            [(play.trainer, Retry(Reporter(json_lines=True), 0.01, 0.05)), (auditor, retry)],
            lambda: play.phase is Phase.CONVICTED,
        )
        assert sum(handler.faults.values()) > 10, handler.faults
    assert play.verdicts[-1][0] == "Convicted" and len(play.disputes()) == 1


def reorganise(chain: Chain, depth: int) -> None:
    reply = chain.web3.provider.make_request("anvil_reorg", [depth, []])
    assert "error" not in reply, json.dumps(reply["error"])


def bury(chain: Chain) -> None:
    """Add empty blocks, so that a reorganisation undoes only later ones."""
    chain.web3.provider.make_request("anvil_mine", [hex(64)])


def look(player: Player, seconds: float = 30) -> None:
    """A step, as the services make it: beside a reorganisation, a node may not show for a moment what it has counted,
    and the next look asks again."""
    end = time.monotonic() + seconds
    while True:
        try:
            player.step()
            return
        except NotYet:
            assert time.monotonic() < end, "the game stands still"
            time.sleep(0.2)


@pytest.mark.node
@pytest.mark.parametrize("depth", of_many((1, 3, 6), 3))
def test_moves_undone_by_a_reorganisation_are_made_again(node: Scene, depth: int) -> None:
    """F3: also a challenge and a reveal; a move names its target by content, so none of them has an effect on another
    target."""
    play = node.claimed(SETUP, LIE)
    auditor = play.auditor()
    bury(node.chain)
    for _ in range(8):
        look(play.trainer)
        look(auditor)
        reorganise(node.chain, depth)
        look(play.trainer)
        look(auditor)
        look(play.trainer)
        look(auditor)
        if play.phase is not Phase.CLAIMED:
            break
    play.run(play.trainer, auditor)
    assert play.phase is Phase.CONVICTED


@pytest.mark.node
def test_an_honest_trainer_survives_reorganisations(node: Scene) -> None:
    play = node.claimed(SETUP)
    accuser = play.auditor(state_lie(6, 5, 0)[0], Mistaken)
    bury(node.chain)
    for _ in range(6):
        look(accuser)
        look(play.trainer)
        reorganise(node.chain, 2)
    play.run(accuser, play.trainer)
    assert play.phase is Phase.CLAIMED
    assert all(d.status is Status.DISMISSED for d in play.disputes())
    play.pass_window()
    play.run(play.trainer)
    assert play.phase is Phase.FINAL


@pytest.mark.parametrize("part", ["body", "header", "continue"])
def test_a_reply_of_single_bytes_is_no_answer(some_scene: Scene, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Also line by line of its header, or with endless headers: one time limit covers the whole reply."""
    with served(DrippingProxy, some_scene.chain.url, begin=part) as (handler, url):
        chain = Chain(url)
        monkeypatch.setattr(http_module, "REPLY_TIMEOUT", 1)
        handler.pause, begin = 0.3, time.monotonic()
        with pytest.raises(ChainError, match=r"no answer from .*"):
            chain.now()
        assert time.monotonic() - begin < 5
        handler.pause = 0.0
        assert chain.now() > 0


@pytest.mark.parametrize("part", of_many(("body", "chunk", "header", "compressed"), "header", "compressed"))
def test_a_reply_without_an_end_is_no_answer(some_scene: Scene, part: str) -> None:
    """It cannot fill the memory, not even compressed."""
    with served(HugeProxy, some_scene.chain.url, packed=gzip.compress(bytes(2**28))) as (handler, url):
        chain = Chain(url)
        handler.begin = part
        tracemalloc.start()
        try:
            with pytest.raises(ChainError):
                chain.now()
            assert tracemalloc.get_traced_memory()[1] < 5 * http.MOST_REPLY
        finally:
            tracemalloc.stop()
        handler.begin = ""
        assert chain.now() > 0


def test_a_redirection_is_not_followed(some_scene: Scene) -> None:
    with served(RedirectingProxy, some_scene.chain.url) as (handler, url):
        where = r"redirects to \.\.\./\.\.\.; if you trust that address, give its URL"  # of the same host
        with pytest.raises(ChainError, match=where):
            Chain(url)
        assert handler.requests == 1
