"""Pieces between ranks of one host, through shared memory: no copy at the receiver, and no network.

In: pieces for other ranks. Out: views of the same words at the receivers. A block belongs to the rank that writes it;
it is reused once no receiver holds a view. Memory has no name, so none is left when the processes end, even after a
kill.
"""

from __future__ import annotations

import os
import platform
import secrets
import time
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from mmap import mmap

import numpy as np
import torch

#: Words before a block's data: how often each rank has given it back; last, a token of this rank's memory.
HEAD = 1024
TOKEN = slice(HEAD - 4, HEAD)
#: Limit of a rank's unread messages to another one: far more than the number of pending exchanges.
LETTERS = 256
#: Seconds of busy waiting; the shortest and the longest sleep; seconds between two checks that the other process lives.
EAGER, REST, LONGEST, LOOK = 0.002, 0.0001, 0.02, 0.2
#: Seconds after which the others stop waiting for the last pieces of a rank that has ended normally.
LEAVING = 1.0

#: Counters wrap around: of messages, and of blocks given back.
MOST = 2**31 - 1

NUMBER, TAKEN, BLOCK, LETTER = range(4)  # words of a message: its number, the number last read, the block; word count

Gather = Callable[[Sequence[int]], list[list[int]]]  # gathers one rank's numbers from all ranks


class Gone(RuntimeError):
    """Another rank's process has ended."""


@dataclass
class Block:
    """A block of shared memory: a head, then words."""

    file: int
    words: np.ndarray
    given: Counter[int] = field(default_factory=Counter)  # times given to each rank

    @property
    def free(self) -> bool:
        return all(self.words[rank] == count & MOST for rank, count in self.given.items())


class Near:
    """The shared memory of a rank: `gives`: the ranks that can read it; `gets`: the ranks whose memory this one can
    read."""

    def __init__(self, rank: int, world: int, gather: Gather) -> None:
        """Called by all ranks; they exchange addresses by `gather`."""
        self.rank, self.world = rank, world
        self.gives, self.gets = set[int](), set[int]()
        self.blocks, self.seen = list[Block](), dict[tuple[int, int], np.ndarray]()
        self.sent, self.expected = Counter[int](), Counter[int]()
        self.mail: Block | None = None
        namespace, file, self.token = _host(), -1, [secrets.randbits(31) for _ in range(4)]
        if namespace and world < TOKEN.start:
            with suppress(OSError):  # no shared memory: the network is used for all
                self.mail = _new_block(world * LETTERS * LETTER)
                file, self.mail.words[TOKEN] = self.mail.file, self.token
        try:
            self.addresses = gather([os.getpid(), namespace, file, *self.token])
            reads = [
                q != rank and there == namespace and self._reads(q) for q, (_, there, *_) in enumerate(self.addresses)
            ]
            self.gets = {q for q in range(world) if reads[q]}
            self.gives = {q for q, theirs in enumerate(gather(reads)) if theirs[rank]}
        except BaseException:
            self.close(failed=True)
            raise

    def _reads(self, rank: int) -> bool:
        """Whether this process can read another rank's messages."""
        with suppress(OSError, Gone):
            return self.addresses[rank][2] >= 0 and self._memory(rank, self.addresses[rank][2]) is not None
        return False

    def _memory(self, rank: int, file: int) -> np.ndarray:
        """Memory of another rank. OSError or Gone if it is gone, even if its file number was reused."""
        if (rank, file) not in self.seen:
            there = os.open(self._path(rank, file), os.O_RDWR)
            try:
                words = np.frombuffer(mmap(there, 0), np.int32)
            except ValueError:  # empty
                words = np.empty(0, np.int32)
            finally:
                os.close(there)
            if words[TOKEN].tolist() != self.addresses[rank][3:]:
                raise Gone(f"memory of rank {rank} is gone")
            self.seen[rank, file] = words
        return self.seen[rank, file]

    def _path(self, rank: int, file: int) -> str:
        return f"/proc/{self.addresses[rank][0]}/fd/{file}"

    def _letter(self, words: np.ndarray, to: int, number: int) -> np.ndarray:
        """Words of a message in a rank's memory."""
        at = HEAD + (to * LETTERS + number % LETTERS) * LETTER
        return words[at : at + LETTER]

    # ---- pieces ----

    def give(self, pieces: dict[int, torch.Tensor]) -> None:
        """Give each rank its piece; a piece for several ranks is written once."""
        written: dict[int, Block] = {}
        for q, piece in pieces.items():  # count all receivers before the first can give it back
            written[id(piece)] = block = written.get(id(piece)) or self._write(piece)
            block.given[q] += 1
        for q, piece in pieces.items():
            self.sent[q] += 1
            letter = self._letter(self.mail.words, q, self.sent[q])
            self._until(q, lambda letter=letter: letter[NUMBER] == letter[TAKEN])
            letter[BLOCK] = written[id(piece)].file
            letter[NUMBER] = self.sent[q] & MOST  # last: x86 makes stores visible in order

    def _write(self, piece: torch.Tensor) -> Block:
        fitting = [b for b in self.blocks if len(b.words) >= HEAD + piece.numel() and b.free]
        if fitting:
            block = min(fitting, key=lambda b: len(b.words))
        else:
            block = _new_block(piece.numel())
            block.words[TOKEN] = self.token
            self.blocks.append(block)
        torch.from_numpy(block.words[HEAD : HEAD + piece.numel()]).copy_(piece)
        return block

    def expect(self, rank: int, words: int) -> Callable[[], torch.Tensor]:
        """A function that waits for the next piece of another rank; the piece is given back when it is no longer
        referenced."""
        self.expected[rank] += 1
        mail = self._memory(rank, self.addresses[rank][2])
        letter, number = self._letter(mail, self.rank, self.expected[rank]), self.expected[rank] & MOST

        def take() -> torch.Tensor:
            self._until(rank, lambda: letter[NUMBER] == number)
            memory = self._memory(rank, int(letter[BLOCK]))
            letter[TAKEN] = number
            seen = memory[HEAD : HEAD + words]
            weakref.finalize(seen, _give_back, memory, self.rank).atexit = False
            return torch.from_numpy(seen)

        return take

    def close(self, failed: bool = False) -> None:
        """Release the memory once all messages are read; views stay valid. If a living rank does not read them, memory
        stays until the process ends, or, if the work has `failed`, is released: reading it raises Gone."""
        letters = [(q, self._letter(self.mail.words, q, self.sent[q])) for q in self.gives if self.sent[q]]
        end = time.monotonic() + LEAVING
        while any(letter[NUMBER] != letter[TAKEN] and not self._has_ended(q) for q, letter in letters):
            if time.monotonic() > end:
                if failed:
                    break
                return
            time.sleep(REST)
        for block in (*self.blocks, *filter(None, [self.mail])):
            os.close(block.file)
        self.blocks.clear()
        self.seen.clear()

    def _until(self, rank: int, done: Callable[[], bool]) -> None:
        """Wait. Gone if the other rank has ended, or one that it may wait for."""
        start = look = time.monotonic()
        while not done():
            now = time.monotonic()
            if now - start < EAGER:
                os.sched_yield()
                continue
            time.sleep(min(max(REST, (now - start) / 50), LONGEST))
            if now - look > LOOK:
                look, ended = now, [q for q in self.gets if self._has_ended(q)]
                if (rank in ended or (ended and now - start > LEAVING)) and not done():
                    raise Gone(f"the process of rank {rank if rank in ended else ended[0]} has ended")

    def _has_ended(self, rank: int) -> bool:
        return not os.path.exists(self._path(rank, self.addresses[rank][2]))


def _new_block(words: int) -> Block:
    """Shared memory of this process for at least so many words. OSError without memory."""
    file = os.memfd_create("vgame")
    try:
        os.ftruncate(file, 4 * (HEAD + (1 << max(10, (words - 1).bit_length()))))
        return Block(file, np.frombuffer(mmap(file, 0), np.int32))
    except BaseException:
        os.close(file)
        raise


def _give_back(memory: np.ndarray, rank: int) -> None:
    memory[rank] = (int(memory[rank]) + 1) & MOST


def _host() -> int:
    """An identifier of host and network, equal for ranks that may share memory; 0 if none may. Stores must become
    visible in order, as on x86."""
    if hasattr(os, "memfd_create") and platform.machine() in ("x86_64", "AMD64"):
        return os.stat("/proc/self/ns/net").st_ino % 2**31
    return 0
