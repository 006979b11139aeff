"""Pieces through memory that ranks of one host share: the right words while views exist."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest
import torch

from vgame.ranks import near
from vgame.ranks.near import LETTERS, Gone, Near

pytestmark = pytest.mark.skipif(not near._host(), reason="ranks share memory on Linux and x86 only")


def meet(world: int) -> list[Near]:
    """Ranks of this process."""
    box: dict[int, list[int]] = {}
    barrier, ranks = threading.Barrier(world), [None] * world

    def run(rank: int) -> None:
        def exchange(numbers):
            box[rank] = [*numbers]
            barrier.wait(10)
            numbers_of_all = [box[q] for q in range(world)]
            barrier.wait(10)
            return numbers_of_all

        ranks[rank] = Near(rank, world, exchange)

    together(*(lambda rank=rank: run(rank) for rank in range(world)))
    return ranks


def together(*works: Callable[[], object]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


def test_words_can_be_taken_in_any_order():
    first, second = meet(2)
    assert first.gives == first.gets == {1} and second.gives == second.gets == {0}
    pieces = [torch.arange(n, dtype=torch.int32) * 3 + n for n in (1, 5000, 70000)]
    takes = [second.expect(0, p.numel()) for p in pieces]
    for piece in pieces:
        first.give({1: piece})
    for take, piece in reversed([*zip(takes, pieces, strict=True)]):
        assert torch.equal(take(), piece)


def test_a_block_is_reused_only_without_views():
    first, second = meet(2)

    def passed(number: int) -> torch.Tensor:
        take = second.expect(0, 100)
        first.give({1: torch.full((100,), number, dtype=torch.int32)})
        return take()

    held = passed(1).view(10, 10)[3:]  # a view of a view
    assert passed(2).eq(2).all() and held.eq(1).all() and len(first.blocks) == 2
    for number in range(3, 50):
        assert passed(number).eq(number).all() and held.eq(1).all()
    assert len(first.blocks) == 2, "blocks are used again"
    del held
    several = [passed(50), passed(51)]
    assert len(first.blocks) == 2 and [int(t[0]) for t in several] == [50, 51]


def test_one_piece_for_several_ranks_is_written_once():
    first, second, third = meet(3)
    piece = torch.arange(9, dtype=torch.int32)
    takes = [rank.expect(0, 9) for rank in (second, third)]
    first.give({1: piece, 2: piece})
    views = [take() for take in takes]
    assert len(first.blocks) == 1 and all(torch.equal(view, piece) for view in views)
    del views[0]
    assert not first.blocks[0].free, "the third looks at it"
    views.clear()
    assert first.blocks[0].free


def test_a_rank_with_too_many_unread_pieces_waits():
    first, second = meet(2)
    got = []

    def give() -> None:
        for number in range(2 * LETTERS):
            first.give({1: torch.tensor([number], dtype=torch.int32)})

    def take() -> None:
        end = time.monotonic() + 30
        while first.sent.get(1, 0) <= LETTERS and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.3)  # and no more
        assert first.sent[1] == LETTERS + 1
        got.extend(int(second.expect(0, 1)()) for _ in range(2 * LETTERS))

    together(give, take)
    assert got == list(range(2 * LETTERS))


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_an_ended_process_is_not_waited_for(ended):
    second = meet(3)[1]
    second.addresses[0][0] = ended
    for waits_for in (0, 2):  # it may wait for the ended one
        with pytest.raises(Gone, match="rank 0 has ended"):
            second.expect(waits_for, 1)()


def test_ranks_of_other_hosts_share_nothing(monkeypatch, ended):
    hosts = iter([1, 2])
    monkeypatch.setattr(near, "_host", lambda: next(hosts))
    assert all(not rank.gives and not rank.gets for rank in meet(2)), "another network"
    monkeypatch.setattr(near, "_host", lambda: 1)
    monkeypatch.setattr(near.os, "getpid", lambda: ended)
    assert all(not rank.gives and not rank.gets for rank in meet(2)), "processes that are not seen here"


def test_a_piece_for_two_ranks_is_not_overwritten_between_their_letters():
    """The first receiver returns the piece as soon as its letter arrives, before another piece is written."""
    first, second, third, fourth = meet(4)
    one, other = (torch.full((8,), n, dtype=torch.int32) for n in (1, 2))
    takes, write = [rank.expect(0, 8) for rank in (second, third, fourth)], first._write
    letter, early = second._letter(second._memory(0, second.addresses[0][2]), 1, 1), []

    def written(piece):
        if letter[near.NUMBER] == 1 and not early:
            early.append(takes[0]().tolist())
        return write(piece)

    first._write = written
    first.give({1: one, 2: other, 3: one})
    assert (early or [takes[0]().tolist()]) == [[1] * 8]
    assert takes[1]().tolist() == [2] * 8 and takes[2]().tolist() == [1] * 8


def test_counters_wrap_around():
    first, second = meet(2)
    first.sent[1] = second.expected[0] = near.MOST - 2
    for n in range(6):
        take = second.expect(0, 5)
        first.give({1: torch.full((5,), n, dtype=torch.int32)})
        assert take().tolist() == [n] * 5
    assert len(first.blocks) == 1, "a block that was given back is written again"


def blocks() -> list[str]:
    """Shared memory held by this process."""
    gc.collect()
    files = [f"/proc/self/fd/{file}" for file in os.listdir("/proc/self/fd")]
    return [file for file in files if os.path.lexists(file) and "memfd:vgame" in os.readlink(file)]


def test_closed_memory_leaves_no_file_and_views_stay_readable():
    before = blocks()
    first, second = meet(2)
    take = second.expect(0, 5)
    first.give({1: torch.arange(5, dtype=torch.int32)})
    words = take()
    first.close(), second.close()
    assert words.tolist() == [0, 1, 2, 3, 4]
    del first, second, take, words  # a mapping keeps its file
    assert blocks() == before


def test_after_a_failure_memory_is_released_and_never_mistaken_for_that_of_another_run(monkeypatch):
    monkeypatch.setattr(near, "LEAVING", 0.1)
    before = blocks()
    first, second = meet(2)
    take = second.expect(0, 5)
    first.give({1: torch.arange(5, dtype=torch.int32)})
    number = first.blocks[0].file
    first.close()
    assert first.blocks, "who succeeded leaves it to a rank that is late"
    first.close(failed=True)
    other = near._new_block(5000)  # of another run
    os.dup2(other.file, number)
    with pytest.raises(Gone, match="of rank 0 is gone"):
        take()
    second.close(failed=True)
    os.close(other.file), os.close(number)
    del first, second, take, other
    assert blocks() == before


def test_closing_waits_for_no_ended_reader(ended):
    first, _ = meet(2)
    first.give({1: torch.arange(5, dtype=torch.int32)})
    first.addresses[1][0] = ended
    begun = time.monotonic()
    first.close()
    assert not first.blocks and time.monotonic() - begun < near.LEAVING / 2


def test_ranks_that_do_not_meet_leave_no_shared_memory():
    before = blocks()
    with pytest.raises(RuntimeError, match="broke"):
        Near(0, 2, lambda numbers: (_ for _ in ()).throw(RuntimeError("broke")))
    assert blocks() == before


def test_without_shared_memory_the_network_carries_all_pieces(monkeypatch):
    def refused(words):
        raise OSError(27, "File too large")

    monkeypatch.setattr(near, "_new_block", refused)
    assert all(not rank.gives and not rank.gets for rank in meet(2))
