"""Ranks as threads of one process, which meet at a barrier. Twin: vgame.ranks.group.TorchGroup."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context

import torch

from vgame.commit.merkle import Kind, fold, tree_height
from vgame.commit.tensor import tensor_roots, tensors_root
from vgame.execute.executor import Executor
from vgame.job.bundle import Bundle
from vgame.program.operators import Ref, RefClass
from vgame.ranks.exchange import exchanged
from vgame.ranks.executor import RankExecutor
from vgame.ranks.part import Exchange


class LocalGroup:
    """A rank's view of the others."""

    def __init__(self, rank: int, world: int, box: dict, barrier: threading.Barrier) -> None:
        self.rank, self.world, self.box, self.barrier, self.sent = rank, world, box, barrier, 0

    def note(self, step: int, doing: str) -> None:
        pass

    def swap(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        self.sent += sum(4 * p.numel() for q, p in enumerate(pieces) if q != self.rank)
        self.box[self.rank] = [p.clone() for p in pieces]
        self.barrier.wait(60)
        got = [self.box[q][self.rank] for q in range(self.world)]
        self.barrier.wait(60)
        assert [g.numel() for g in got] == list(sizes), "ranks differ in what they exchange"
        return got

    def begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        got = self.swap(pieces, sizes)
        return lambda: got


def together(world: int, work: Callable[[LocalGroup], object]) -> list:
    """The result of `work` on each rank; raises its first error."""
    box: dict = {}
    barrier, results, errors = threading.Barrier(world), [None] * world, []

    def run(rank: int) -> None:
        try:
            results[rank] = work(LocalGroup(rank, world, box, barrier))
        except Exception as error:
            errors.append(error)
            barrier.abort()

    threads = [threading.Thread(target=copy_context().run, args=(run, rank)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise next((e for e in errors if not isinstance(e, threading.BrokenBarrierError)), errors[0])
    return results


def single_root(bundle: Bundle, steps: int) -> str:
    executor = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed)
    state = executor.initial(bundle.state)
    for step in range(1, steps + 1):
        state = executor.step(step, state).state
    return tensors_root(Kind.STATE, state).hex()


def shared_roots(
    bundle: Bundle, steps: int, world: int, change: Callable[[RankExecutor], None] = lambda _: None
) -> list[str]:
    """The state root after some steps, computed by every rank."""

    def work(group: LocalGroup) -> str:
        executor = RankExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, "cpu", group)
        change(executor)
        state = executor.to_device(bundle.state)
        for step in range(1, steps + 1):
            state = executor.step(step, state).state
        return state_root(executor, state)

    return together(world, work)


def state_root(executor: RankExecutor, state: Sequence[torch.Tensor]) -> str:
    """The state root: computed by this rank from the whole state; on rank 0 also joined from all ranks' hashed
    parts."""
    own, joined = tensor_roots(whole(executor, state)), executor.roots(state)
    roots = own if executor.group.rank else joined
    return fold(Kind.STATE, roots, tree_height(len(roots))).hex()


def whole(executor: RankExecutor, state: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The whole state of all ranks, on each of them."""
    tensors = []
    for t, (part, form) in enumerate(zip(state, executor.plan.state, strict=True)):
        words = executor.shared.sources[t].elements
        exchange = Exchange(Ref(RefClass.STATE, t), form, None, words, words, False, t)
        tensors.append(part if form is None else exchanged(executor.group, part, exchange))
    return tensors
