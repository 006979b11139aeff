"""A step that cannot fit into memory is refused before anything is computed; freed memory is used again."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_programs import World

from vgame.arithmetic.functions import Function
from vgame.arithmetic.workspace import LARGE, new
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.program.operators import Gather, Map, Operator, Philox, Ref, RefClass, identity_access, immediate

WORDS = 1 << 12


def read(i: int) -> Ref:
    return Ref(RefClass.OPERATOR, i)


def added(i: int, j: int) -> Map:
    return Map(Function.IADD, (WORDS,), tuple(identity_access(read(n), WORDS) for n in (i, j)), True)


#: Two draws and their sum are alive at once; then the sum, a draw and rows gathered from it; nothing else.
OPERATORS: list[Operator] = [
    Philox(WORDS),
    Philox(WORDS),
    added(0, 1),
    Philox(WORDS),
    Gather(WORDS, 1, WORDS, read(3), read(2), 0, True),
]


def executor(operators: list[Operator], world: World) -> Executor:
    return Executor(world.program(operators), world.data, world.scalars, world.seed)


@pytest.mark.parametrize(("bytes_more", "fits"), [(0, True), (-4, False)])
def test_memory_is_counted_from_the_words_alive_at_once(
    monkeypatch: pytest.MonkeyPatch, bytes_more: int, fits: bool
) -> None:
    world = World(data=(torch.zeros(100),))
    memory = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 4 * (3 * WORDS + 100) + bytes_more}
    monkeypatch.setattr(os, "sysconf", memory.__getitem__)
    if fits:
        executor(OPERATORS, world).step(1, ())
        return
    with pytest.raises(VgameError, match=r"needs at least 0\.0 GiB of memory, but this machine has 0\.0"):
        executor(OPERATORS, world).step(1, ())


def test_an_untrusted_job_beyond_any_memory_is_refused() -> None:
    most = 2**31 - 1
    every = [Philox(most) for _ in range(100)]
    readers = [Gather(1, 1, most, Ref(RefClass.DATA, 0), read(i), 0, True) for i in range(100)]
    with pytest.raises(VgameError, match=r"needs at least 800\.0 GiB of memory"):
        executor([*every, *readers], World(data=(torch.zeros(1, dtype=torch.int32),))).step(1, ())


def test_an_observed_step_needs_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maps form no chain: each output is in memory, also an expanded single word."""
    maps: list[Operator] = [Map(Function.IADD, (WORDS,), (immediate(1), immediate(2)), True)]
    maps += [added(i, i) for i in range(2)]
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": 4 * 2 * WORDS - 4}.__getitem__)
    one = executor(maps, World())
    one.step(1, ())
    with pytest.raises(VgameError, match="a step of this job needs at least"):
        one.step(1, (), lambda _, output: output)


#: Additional peak memory for the tree over so many words, relative to the words.
TREE = """
import re, sys, numpy
from vgame.commit.words import words_tree
peak = lambda: 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
words_tree(bytes(4 << 20))
words = memoryview(numpy.ones(int(sys.argv[1]), numpy.uint32)).cast("B")
before = peak()
tree = words_tree(words)
print((peak() - before) / len(words))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a peak of memory is read from /proc")
def test_the_tree_over_a_tensor_takes_half_of_its_memory() -> None:
    """The figure of docs/promises.md, section 3, for a dispute's hashes: 0.41 to 0.46 from 4 to 512 MiB on."""
    texts = subprocess.run([sys.executable, "-c", TREE, str(1 << 26)], capture_output=True, text=True, check=True)
    assert 0.1 < float(texts.stdout) < 0.5


#: Megabytes by which a process grows when it frees 32 tensors of 4 MB, that others lie between, and makes 32 more.
GROWTH = """
import re
import torch
from vgame.arithmetic.workspace import keep_pages, new
keep_pages()
made = lambda words: new((words,), torch.float32).fill_(1)
used = lambda: int(re.search(r"VmRSS:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
tensors, between = zip(*[(made(1 << 20), made(1 << 15)) for _ in range(32)])
before, tensors = used(), None
tensors = [made(1 << 20) for _ in range(32)]
print(used() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries reuse all freed memory")
def test_freed_memory_is_used_again() -> None:
    texts = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True, check=True)
    assert float(texts.stdout) < 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.float64])
@pytest.mark.parametrize("shape", [(LARGE - 1,), (LARGE,), (3, LARGE + 5), (0, 7), ()])
def test_a_new_tensor_begins_at_a_line_of_the_cache(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    tensor = new(shape, dtype)
    assert tensor.shape == shape and tensor.dtype is dtype and tensor.is_contiguous()
    assert tensor.data_ptr() % 64 == 0 and tensor.storage_offset() == 0
