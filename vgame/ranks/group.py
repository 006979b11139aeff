"""The processes that execute a step together: torch.distributed, and shared memory within a host.

In: the user's process group, or torchrun's environment variables. Out: `TorchGroup`, and a comparison of facts over all
ranks.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property
from itertools import count

import torch
import torch.distributed as dist

from vgame.errors import VgameError
from vgame.ranks.health import BEAT, TIMEOUT, Health, RankError, Terminated, signals
from vgame.ranks.near import Near
from vgame.system.version import __version__

#: The library for pieces between hosts; only this module uses it. Pieces are flat int32 tensors in CPU memory, so NCCL,
#: which needs them on the GPU, does not fit.
BACKEND = "gloo"
#: Longer than any wait: hanging ranks are found by their signs of life (health.py), not by the library.
FOREVER = timedelta(days=7)

_sessions = count()  # groups joined by this process; the same number on every rank


class TorchGroup:
    """Twin: LocalGroup, of threads."""

    def __init__(self, group: dist.ProcessGroup, health: Health) -> None:
        self.group, self.health = group, health
        self.rank, self.world, self.sent = health.rank, health.world, 0

    def note(self, step: int, doing: str) -> None:
        self.health.step, self.health.doing = step, doing

    def swap(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        return self.begin(pieces, sizes)()

    def begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        """Shared memory for ranks of this host, the network for the others."""
        others = self._others()
        self.sent += sum(4 * pieces[q].numel() for q in others)
        with self.health.waiting(), self._watched():  # for ranks that still read earlier pieces
            near = self.near
            near.give({q: pieces[q] for q in others if q in near.gives and pieces[q].numel()})
        coming = {q: near.expect(q, sizes[q]) for q in others if q in near.gets and sizes[q]}
        empty = torch.empty(0, dtype=torch.int32)
        far = self._begin(
            [empty if q in near.gives else piece for q, piece in enumerate(pieces)],
            [0 if q in coming else size for q, size in enumerate(sizes)],
        )

        def arrive() -> list[torch.Tensor]:
            got = far()
            with self.health.waiting(), self._watched():
                for q, take in coming.items():
                    got[q] = take()
            return got

        return arrive

    def _begin(self, pieces: Sequence[torch.Tensor], sizes: Sequence[int]) -> Callable[[], list[torch.Tensor]]:
        """Send from rank to rank without a copy; an empty piece is not sent."""
        got = [torch.empty(size, dtype=torch.int32) for size in sizes]
        got[self.rank] = pieces[self.rank]
        others = self._others()
        with self._watched():
            works = [dist.irecv(got[q], group=self.group, group_src=q) for q in others if sizes[q]]
            given = [(pieces[q].contiguous(), q) for q in others if pieces[q].numel()]
            works += [dist.isend(piece, group=self.group, group_dst=q) for piece, q in given]

        def arrive() -> list[torch.Tensor]:
            with self.health.waiting(), self._watched():
                for work in works:
                    work.wait()
            given.clear()  # kept until now: the library holds no reference
            return got

        return arrive

    def close(self, failed: bool = False) -> None:
        """Stop giving pieces; given pieces can still be read, unless the work has `failed`."""
        if "near" in self.__dict__:
            self.near.close(failed)
        dist.destroy_process_group(self.group)

    def _others(self) -> list[int]:
        return [(self.rank + n) % self.world for n in range(1, self.world)]

    @cached_property
    def near(self) -> Near:
        """The shared memory, set up in the first exchange of all ranks."""

        def gather(numbers: Sequence[int]) -> list[list[int]]:
            words = torch.tensor(numbers, dtype=torch.int32)
            return [t.tolist() for t in self._begin([words] * self.world, [words.numel()] * self.world)()]

        return Near(self.rank, self.world, gather)

    @contextmanager
    def _watched(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise self.health.diagnose(error) from None


def is_shared() -> bool:
    """Whether this process is one of several ranks."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size() > 1
    return "MASTER_ADDR" in os.environ and "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def own_rank() -> int:
    """The rank of this process; 0 for a single process."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return int(os.environ["RANK"]) if is_shared() else 0


@contextmanager
def joined(timeout: float = TIMEOUT) -> Iterator[TorchGroup]:
    """The group of this process's ranks, for the duration of the block. A rank's error is raised on the others too."""
    ours = not dist.is_initialized()
    if ours:
        try:
            dist.init_process_group(BACKEND, timeout=timedelta(seconds=timeout))
        except (RuntimeError, ValueError) as error:
            text = " ".join(str(error).split())[:200]
            raise VgameError(
                f"no group of {os.environ.get('WORLD_SIZE')} ranks came together at {os.environ.get('MASTER_ADDR')}:"
                f"{os.environ.get('MASTER_PORT')} within {timeout:g} s ({text}); start all of them with the same "
                "address"
            ) from None
    health = _health(timeout)
    group = TorchGroup(dist.new_group(backend=BACKEND, timeout=FOREVER), health)
    health.start()
    failed = True
    try:
        with signals():
            yield group
        failed = False
    except Terminated as error:
        raise health.diagnose(error) from None
    except RankError:
        raise
    except BaseException as error:
        health.stop("failed", str(error) or type(error).__name__)
        raise
    finally:
        health.stop()
        group.close(failed)  # waits for no rank that has ended
        if ours:
            dist.destroy_process_group()


def _health(timeout: float) -> Health:
    """The signs of life of this rank, over two connections: a wait on one must not delay the signs."""
    store = dist.distributed_c10d._get_default_store()
    prefix = f"vgame/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_sessions)}"
    stores = (dist.PrefixStore(prefix, s) for s in (store, store.clone()))
    return Health(*stores, dist.get_rank(), dist.get_world_size(), timeout)


# ---- facts that must be equal on all ranks ----


def library() -> dict[str, str]:
    """Versions that must be equal on all ranks. No bits depend on them, but the order of exchanges does."""
    return {"vgame": __version__, "torch": torch.__version__, "Python": platform.python_version()}


def compare(group: TorchGroup, facts: Mapping[str, str]) -> None:
    """RankError, the same on every rank, unless all ranks have the same facts."""
    health = group.health
    health.store.set(f"facts/{group.rank}", json.dumps(facts))
    for rank in range(group.world):
        _wait(health, rank)
    all_facts = [json.loads(health.store.get(f"facts/{rank}")) for rank in range(group.world)]
    for rank, theirs in enumerate(all_facts):
        for what, value in all_facts[0].items():
            if theirs.get(what) != value:
                raise RankError(
                    f"rank {rank} has another {what} ({theirs.get(what)}) than rank 0 ({value}): nothing is started, "
                    "give all ranks the same",
                    reported=group.rank != 0,
                )


def _wait(health: Health, rank: int) -> None:
    """Wait until a rank has published its facts."""
    while not health.store.check([f"facts/{rank}"]):
        sign = health.signs.get(rank, {})
        if sign.get("how") == "failed":
            raise RankError(f"{health.name(rank)}: {sign['why']}", reported=True)
        if time.monotonic() - health.changed[rank] > health.timeout and rank != health.rank:
            raise RankError(
                f"{health.name(rank)} did not join within {health.timeout:g} s: nothing is started",
                reported=health.rank != 0,
            )
        time.sleep(BEAT / 10)
