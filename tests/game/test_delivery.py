"""The exchange of the trained state for the reward on chain: each cheat and each silence of either side; the ghost
counts every wei."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchange import COMPLAINT, DELIVERY, KEY, KEY_WINDOW, ONE, Exchange, claim, offered, run_tree_of
from scene import Scene
from toy import Operator, Program, State

from vgame.chain.records import Phase
from vgame.commit.merkle import Kind, node_hash
from vgame.commit.words import LEAF_BYTES
from vgame.delivery import bulk
from vgame.delivery.cipher import CHUNK
from vgame.delivery.opening import BadLeaf, decipher
from vgame.delivery.sealed import Piece
from vgame.errors import ContractError

SPEC = DELIVERY.spec
PRICE = 7 * 2**14
BIG = 1  # the tensor of several chunks


@pytest.fixture
def exchange(scene: Scene, tmp_path: Path) -> Exchange:
    return offered(scene, tmp_path).finalize()


def refuses(error: str, player: Any, name: str, *args: Any, value: int = 0) -> None:
    with pytest.raises(ContractError, match=error):
        player.send(name, *args, value=value)


def owed(x: Exchange) -> tuple[int, int]:
    """Credits of client and trainer."""
    return tuple(p.credits(p.wallet.address) for p in (x.client, x.trainer))


NOT_DELIVERED = (SPEC.reward, 0)


def test_an_honest_exchange(exchange: Exchange) -> None:
    """The payment follows the key and a complaint window without complaint, not finality."""
    x = exchange
    assert x.phase is Phase.DELIVERING and owed(x) == (0, 0)
    refuses("NotConfirmed", x.trainer, "revealKey", x.id, astuple(x.offer), KEY)
    x.confirm()
    for move in ("decline", "confirm"):
        refuses("AlreadyConfirmed", x.client, move, x.id, x.state().offer)
    x.reveal()
    plain = {}
    for piece, leaves in decipher(x.sealed, KEY, x.id):
        plain[piece.tensor] = plain.get(piece.tensor, b"") + leaves.tobytes()
    for tensor, words in enumerate(x.words):
        assert plain[tensor][: words.nbytes] == words.tobytes() and not any(plain[tensor][words.nbytes :])
    refuses("TooEarly", x.trainer, "closeDelivery", x.id, int(Phase.REVEALED))
    x.play.advance(COMPLAINT + 1)
    refuses("WrongPhase", x.trainer, "closeDelivery", x.id, int(Phase.DELIVERING))
    x.close(Phase.REVEALED)
    assert x.phase is Phase.FINAL and owed(x) == (0, SPEC.reward + SPEC.trainer_bond)


def test_silence_counts_as_confirmation(exchange: Exchange) -> None:
    x = exchange
    x.after_window(0)
    refuses("NotConfirmed", x.trainer, "revealKey", x.id, astuple(x.offer), KEY)
    x.after_window()
    for move in ("confirm", "decline"):
        refuses("TooLate", x.client, move, x.id, x.state().offer)
    x.reveal()
    assert x.phase is Phase.REVEALED


def test_no_key(exchange: Exchange) -> None:
    x = exchange
    x.after_window(KEY_WINDOW)
    refuses("TooEarly", x.client, "closeDelivery", x.id, int(Phase.DELIVERING))
    refuses("WrongPhase", x.client, "closeDelivery", x.id, int(Phase.CLAIMED))
    x.after_window(KEY_WINDOW + 1)
    x.close()
    assert x.phase is Phase.UNDELIVERED and owed(x) == NOT_DELIVERED
    refuses("WrongPhase", x.trainer, "revealKey", x.id, astuple(x.offer), KEY)


def test_a_late_key_counts_until_it_is_reported_as_late(exchange: Exchange) -> None:
    x = exchange
    x.after_window(KEY_WINDOW + 500)
    stale = ("closeDelivery", x.id, int(Phase.DELIVERING))
    x.client._run(x.client._request(*stale[:1], stale[1:]))  # it could be sent
    x.reveal()
    refuses("WrongPhase", x.client, *stale)  # and arrives after the key
    refuses("TooEarly", x.client, "closeDelivery", x.id, int(Phase.REVEALED))


def test_a_wrong_key_or_another_offer_reveals_nothing(exchange: Exchange) -> None:
    x = exchange
    x.confirm()
    refuses("BadProof", x.trainer, "revealKey", x.id, astuple(x.offer), b"\x4c" * 32)
    other = replace(x.offer, key_hash=b"\1" * 32)
    refuses("BadProof", x.trainer, "revealKey", x.id, astuple(other), KEY)


def test_the_key_of_another_job_is_refused(scene: Scene, tmp_path: Path) -> None:
    """The hash of the key names the job: a copied offer cannot be paid by its key."""
    first, second = offered(scene, tmp_path / "a"), offered(scene, tmp_path / "b")
    assert first.offer.key_hash != second.offer.key_hash and first.offer.cipher_root != second.offer.cipher_root


@pytest.mark.parametrize("leaf", [0, CHUNK, 2 * CHUNK])
def test_a_complaint_about_one_wrong_leaf(scene: Scene, tmp_path: Path, leaf: int) -> None:
    """Garbage in one leaf's ciphertext beside its true hash: invisible before the key is revealed, and visible
    after."""

    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        if piece.tensor == BIG:
            cipher[leaf - piece.first, 17] ^= 1

    x = offered(scene, tmp_path, change=garble).finalize()
    refuses("WrongPhase", x.client, "badLeaf", *x.bad_leaf(BIG, leaf))
    x.after_window()
    x.reveal()
    refuses("NothingWrong", x.client, "badLeaf", *x.bad_leaf(BIG, leaf + 1 if leaf < 2 * CHUNK else 0))
    with pytest.raises(BadLeaf) as found:
        list(decipher(x.sealed, KEY, x.id))
    bad = found.value
    assert (bad.tensor, bad.leaf) == (BIG, leaf)
    x.client.send("badLeaf", x.id, astuple(x.offer), KEY, bad.tensor, bad.leaf, bad.cipher, bad.place)
    assert x.phase is Phase.UNDELIVERED and owed(x) == NOT_DELIVERED


def test_a_complaint_after_its_window_is_refused(scene: Scene, tmp_path: Path) -> None:
    def garble(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        cipher[0] ^= 1

    x = offered(scene, tmp_path, ONE, garble).finalize()
    x.confirm()
    x.reveal()
    x.play.advance(COMPLAINT + 1)
    refuses("TooLate", x.client, "badLeaf", *x.bad_leaf(0, 0))


def test_false_complaints_are_refused(exchange: Exchange) -> None:
    """Leaves of an honest trainer, moved, cut, with another key, on another path."""
    x = exchange
    x.confirm()
    x.reveal()
    job, offer, key, tensor, leaf, cipher, (true, index, path) = good = x.bad_leaf(BIG, 70)
    refuses("NothingWrong", x.client, "badLeaf", *good)
    for args in (
        (tensor, leaf + 1, cipher, (true, index, path)),
        (tensor + 1, leaf, cipher, (true, index, path)),
        (tensor, leaf, bytes(512), (true, index, path)),
        (tensor, leaf, cipher, (b"\1" * 32, index, path)),
        (tensor, leaf, cipher, (true, index ^ 1, path)),
    ):
        refuses("BadProof", x.client, "badLeaf", job, offer, key, *args)
    refuses("BadProof", x.client, "badLeaf", job, offer, b"\1" * 32, *good[3:])
    refuses("LeafSize", x.client, "badLeaf", *good[:5], cipher[:-1], good[6])
    refuses("PathLength", x.client, "badLeaf", *good[:6], (true, index, path[:-1]))
    refuses("IndexOutOfRange", x.client, "badLeaf", *good[:6], (true, index | 1 << 200, path))
    # The position of a node decides whether it is a state's or a tensor's, not the caller.
    refuses("BadProof|NothingWrong", x.client, "badNode", *x.bad_node(BIG, 64, true))


def test_a_wrong_true_hash_is_shown_without_the_key(scene: Scene, tmp_path: Path) -> None:
    """The true hash of a leaf is not the one under the final state: the node above it does not hash to its own true
    hash."""
    honest = offered(scene, tmp_path / "honest", ONE)

    def lie(piece: Piece, true: np.ndarray, cipher: np.ndarray) -> None:
        true[2] ^= 1

    x = offered(scene, tmp_path / "lie", ONE, lie)
    # Its own tree folds to another state, and the claim must hold the final state: it grafts the lie below it.
    assert x.offer.final_state != honest.offer.final_state
    y = graft(scene, tmp_path, honest, x)
    y.finalize()
    children = top_children(x)
    good = (y.id, astuple(y.offer), children, (honest.offer.final_state, 0, []))
    refuses("BadProof", y.client, "badNode", *good[:3], (x.offer.final_state[::-1], 0, []))
    y.client.send("badNode", *good)
    assert y.phase is Phase.UNDELIVERED and owed(y) == NOT_DELIVERED


def top_children(x: Exchange) -> list[bytes]:
    """The children of the root of a state with one tensor of three leaves: two pairs of height 1."""
    cipher, true = x.sealed.read(x.sealed.shape.chunk(0, 0))
    pairs = np.concatenate([bulk.cipher_leaves(cipher, 0, 0), true], axis=1)
    return [h for pair in bulk.from_rows(bulk.next_level(Kind.TENSOR, pairs, 0)) for h in pair]


def graft(scene: Scene, folder: Path, honest: Exchange, lie: Exchange, wallet: Any = None) -> Exchange:
    """A claim with the true final state and the cipher root of the lie."""
    play = scene.post(ONE, wallet)
    trainer = scene.game()
    trainer.send("acceptJob", play.id, value=ONE.spec.trainer_bond)
    offer = replace(lie.offer, final_state=honest.offer.final_state)
    claim(trainer, play, offer)
    return Exchange(play, trainer, offer, lie.sealed, lie.words)


def test_no_node_of_an_honest_trainer_is_bad(exchange: Exchange) -> None:
    x = exchange
    args = x.bad_node(BIG, 4, b"\1" * 32)
    refuses("BadProof", x.client, "badNode", *args)
    right = node_hash(Kind.TENSOR, args[2][1], args[2][3])
    refuses("NothingWrong", x.client, "badNode", *args[:3], (right, *args[3][1:]))


def test_decline(exchange: Exchange) -> None:
    """A quarter for each side, the bond back, the rest burnt; the deposit of an open request goes back too."""
    x = exchange
    refuses("NotClient", x.trainer, "decline", x.id, x.state().offer)
    x.request(BIG, 2, PRICE)
    burnt = x.client.burnt()
    deposit = x.state().deposits
    for move in ("decline", "confirm"):  # a decision about the offer of another claim
        refuses("BadProof", x.client, move, x.id, b"\1" * 32)
    answer = x.answer_args()
    x.client.send("decline", x.id, x.state().offer)
    quarter = SPEC.reward // 4
    assert deposit and x.phase is Phase.DECLINED
    assert owed(x) == (quarter + deposit, quarter + SPEC.trainer_bond)
    assert x.client.burnt() - burnt == SPEC.reward - 2 * quarter
    refuses("WrongPhase", x.trainer, "answer", *answer)


@pytest.mark.parametrize(("tensor", "chunk"), [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)])
def test_a_request_is_answered(exchange: Exchange, tensor: int, chunk: int) -> None:
    x = exchange
    x.request(tensor, chunk, PRICE)
    refuses("RequestsOpen", x.client, "confirm", x.id, x.state().offer)
    refuses("WrongIndex", *request_call(x, tensor, chunk, index=0))  # the same call once more
    deposit = x.state().deposits
    good = x.answer_args()
    for position, wrong in ((3, bytes(len(good[3]))), (4, [b"\1" * 32] * len(good[4]))):
        refuses("BadProof", x.trainer, "answer", *good[:position], wrong, *good[position + 1 :])
    refuses("ChunkSize", x.trainer, "answer", *good[:3], good[3][:-1], *good[4:])
    refuses("ChunkSize", x.trainer, "answer", *good[:4], good[4][:-1], good[5])
    refuses("PathLength", x.trainer, "answer", *good[:5], good[5][:-2])
    refuses("NotRequested", x.trainer, "answer", *good[:2], 1, *good[3:])
    x.answer()
    (event,) = x.client.events("Answered", job=x.id)
    assert event.args["leaves"] == good[3] and len(good[3]) == LEAF_BYTES * len(good[4])
    assert owed(x) == (deposit, 0)  # the base fee of this chain is 0
    refuses("NotRequested", x.trainer, "answer", *good)
    refuses("WrongIndex", *request_call(x, tensor, chunk, index=0))
    x.confirm()


def request_call(x: Exchange, tensor: int, chunk: int, price: int = PRICE, index: int | None = None) -> tuple[Any, ...]:
    return x.client, "request", *x.request_args(tensor, chunk, price, index)


def test_absent_pieces_cannot_be_requested(exchange: Exchange) -> None:
    x = exchange
    refuses("NoSuchChunk", *request_call(x, BIG, 3))
    refuses("NoSuchChunk", *request_call(x, 0, 1))
    refuses("RecordMismatch", *request_call(x, 0, 0)[:-1], x.play.setup.honest.source_record(1).as_tuple())
    refuses("WrongValue", *request_call(x, 0, 0))
    refuses("NotClient", x.trainer, *request_call(x, 0, 0)[1:])
    refuses("WrongIndex", *request_call(x, 0, 0, index=1))
    other = request_call(x, 0, 0)
    refuses("BadProof", *other[:3], b"\1" * 32, *other[4:])  # of another offer


def test_a_request_that_is_refused(exchange: Exchange) -> None:
    """The window of confirmation may end meanwhile: neither the key nor its absence counts before the answer."""
    x = exchange
    x.after_window(-10)
    x.request(BIG, 1, PRICE)
    deposit = x.state().deposits
    refuses("TooEarly", x.client, "refused", x.id, 0)
    x.after_window()
    refuses("RequestsOpen", x.trainer, "revealKey", x.id, astuple(x.offer), KEY)
    x.after_window(KEY_WINDOW + 1)
    refuses("RequestsOpen", x.client, "closeDelivery", x.id, int(Phase.DELIVERING))
    refuses("NotRequested", x.client, "refused", x.id, 1)
    x.client.send("refused", x.id, 0)
    assert x.phase is Phase.UNDELIVERED and owed(x) == (SPEC.reward + deposit, 0)


def test_a_late_answer_gives_the_key_its_time(exchange: Exchange) -> None:
    x = exchange
    x.after_window(-10)
    x.request(BIG, 1)
    x.after_window(KEY_WINDOW - 20)
    x.answer()
    x.play.advance(KEY_WINDOW - 1)
    refuses("TooEarly", x.client, "closeDelivery", x.id, int(Phase.DELIVERING))
    x.reveal()


def test_the_number_of_requests_has_a_limit(scene: Scene, tmp_path: Path) -> None:
    sizes = tuple([1] * 65)
    many = replace(DELIVERY, program=Program((Operator(1),), tuple(State(n) for n in sizes)))
    x = offered(scene, tmp_path, many).finalize()
    for tensor in range(64):
        x.request(tensor, 0)
    refuses("TooManyRequests", *request_call(x, 64, 0, 0))
    for index in range(64):
        x.answer(index)
    x.confirm()
    x.reveal()


def test_a_job_with_delivery_needs_an_offer_and_one_without_takes_none(scene: Scene, tmp_path: Path) -> None:
    x = offered(scene, tmp_path / "a")
    play, trainer = scene.post(DELIVERY), scene.game()
    trainer.send("acceptJob", play.id, value=SPEC.trainer_bond)
    call = next(e for e in x.trainer.events("ClaimPosted", job=x.id)).args
    last = (call["runRoot"], call["finalState"], run_path(x))
    for offer in ((bytes(32), bytes(32)), (b"\4" * 32, bytes(32)), (bytes(32), b"\5" * 32)):
        refuses("NoOffer", trainer, "postClaim", play.id, *last, *offer)
    refuses("NotTrainer", x.trainer, "postClaim", play.id, *last, b"\4" * 32, b"\5" * 32)
    plain = scene.post(replace(DELIVERY, terms={}))
    trainer.send("acceptJob", plain.id, value=SPEC.trainer_bond)
    refuses("NoDelivery", trainer, "postClaim", plain.id, *last, b"\4" * 32, b"\5" * 32)
    refuses("WrongPhase", x.trainer, "confirm", x.id, x.state().offer)  # before finality there is nothing to confirm


def run_path(x: Exchange) -> list[bytes]:
    tree = run_tree_of(x.play.setup, x.offer)
    return tree.path(0, tree.count - 1)


@pytest.mark.parametrize("missing", ["confirm_window", "key_window", "complaint_window"])
def test_an_order_has_all_windows_of_delivery_or_none(scene: Scene, missing: str) -> None:
    with pytest.raises(ContractError, match="BadSpec"):
        scene.post(replace(DELIVERY, terms=DELIVERY.terms | {missing: 0}))


def test_the_delivery_contract_alone_accepts_no_call(scene: Scene, exchange: Exchange) -> None:
    """At its own address there is no job, and no code for claims."""
    address = exchange.client._call("delivery")
    alone = scene.make_game(scene.chain, address, scene.wallet())
    refuses("WrongPhase", alone, "confirm", exchange.id, bytes(32))
    refuses("unknown error 0x", alone, "postClaim", exchange.id, *[b"\1" * 32] * 2, [], *[b"\1" * 32] * 2)
