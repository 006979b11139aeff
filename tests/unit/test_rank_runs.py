"""Rank 0 drives a run, the others follow: divergence, resuming, reads of its states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rank_groups import LocalGroup, together
from test_rank_splits import prepared, rows_task
from torch import nn

import vgame
from vgame.job.bundle import Bundle
from vgame.ranks.executor import RankExecutor
from vgame.ranks.lead import Leader, follow, give_out, rank_executor
from vgame.ranks.split import Split
from vgame.runs.folder import executor_of, store_of
from vgame.runs.store import Store
from vgame.runs.training import train


def run(bundle: Bundle, folder: Path, world: int, check: float = 0.0, seen: list | None = None) -> Store:
    """A run by several ranks, as vgame.runs.shared drives it."""

    def work(group: LocalGroup) -> Store | bool:
        executor = rank_executor(bundle, "cpu", group)
        if group.rank:
            return follow(executor)
        leader, store = Leader(bundle, "cpu", executor, check), store_of(folder, bundle, keep=2)
        failed = True
        try:
            committed = None if seen is None else lambda store, state, losses: seen.append([t.sum() for t in state])
            train(store, leader, committed=committed)
            failed = False
        finally:
            store.release()
            leader.end(failed)
        return store

    store, *followed = together(world, work)
    assert followed == [True] * (world - 1)
    return store


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return prepared(rows_task(6))


@pytest.fixture(scope="module")
def alone(bundle, tmp_path_factory) -> Store:
    store = store_of(tmp_path_factory.mktemp("alone"), bundle)
    return train(store, executor_of(bundle, "cpu"))


def test_roots_losses_and_states_are_those_of_one_rank(bundle, alone, tmp_path):
    seen: list = []
    store = run(bundle, tmp_path, 3, check=0.5, seen=seen)
    assert store.roots == alone.roots and store.losses().tobytes() == alone.losses().tobytes()
    assert len(seen) == len(store.roots)


def test_a_run_is_resumed_by_another_number_of_ranks_and_its_last_state_recomputed(bundle, alone, tmp_path):
    run(replace(bundle, steps=2, interval=2), tmp_path / "half", 2)
    half = Store(tmp_path / "half", replace(bundle, steps=2, interval=2))
    begun = store_of(tmp_path / "run", bundle)
    begun.commit(half.load_state(1), half.losses())
    begun.release()
    assert run(bundle, tmp_path / "run", 3).roots == alone.roots
    for state in (tmp_path / "run" / "states").iterdir():
        state.unlink()
    again = run(bundle, tmp_path / "run", 2)  # nothing is kept: executed again from the initial state
    assert again.nearest(2) == 2 and again.load_state(2)


def wide() -> Bundle:
    """Slots that two ranks hold in parts, and more tensors than a mailbox has letters."""
    torch.manual_seed(2)
    model = nn.Sequential(*[nn.Linear(40, 40) for _ in range(70)])
    data = {"x": torch.randn(12, 40)}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)
    task = vgame.Task(model, lambda m, b: m(b["x"]).square().mean(), optimizer, data, batch=4)
    return vgame.prepare(vgame.Job(task, steps=4, interval=2, seed=3, schedule=vgame.Constant(lr="0.1")))


def test_slots_in_parts_are_gathered_and_a_late_read_is_refused(tmp_path):
    bundle, kept = wide(), []
    alone = train(store_of(tmp_path / "alone", bundle), executor_of(bundle, "cpu"))

    def work(group: LocalGroup) -> list[str] | bool:
        executor = rank_executor(bundle, "cpu", group)
        assert any(executor.plan.state), "something is split"
        if group.rank:
            return follow(executor)
        leader, store = Leader(bundle, "cpu", executor), store_of(tmp_path / "run", bundle)
        complaints = []

        def look(late) -> None:
            with pytest.raises(vgame.VgameError, match="is read too late") as caught:
                list(late)
            complaints.append(str(caught.value))

        def committed(store, state, losses) -> None:
            kept.append(state)
            assert [t.numel() for t in state[:3]] == [s.elements for s in bundle.program.sources[:3]]
            if len(kept) == 2:
                look(kept[0])

        train(store, leader, committed=committed)
        store.release()
        leader.end()
        look(kept[1])
        return complaints

    complaints, followed = together(2, work)
    assert len(complaints) == 2 and followed is True
    assert store_of(tmp_path / "run", bundle).roots == alone.roots


def test_a_whole_tensor_is_one_piece_for_all():
    """It is written once for all readers."""
    seen = []
    group = SimpleNamespace(rank=0, world=4, swap=lambda pieces, sizes: seen.append(len({id(p) for p in pieces})))
    plan = SimpleNamespace(state=(None, Split(4, 2)))
    executor = SimpleNamespace(plan=plan, device="cpu", part_of=RankExecutor.part_of)
    mine = give_out(group, executor, [torch.arange(8.0), torch.arange(8.0)])
    assert seen == [1, 4] and [t.tolist() for t in mine] == [[*range(8)], [0, 1]]


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_report_a_divergence_as_one_rank_does(tmp_path, world):
    job = vgame.Job(rows_task(6), steps=8, interval=2, seed=7, schedule=vgame.Constant(lr="1e30"))
    bundle = vgame.prepare(job)
    single = vgame.train(bundle, tmp_path / "alone")
    assert single.divergence is not None, "the learning rate is too large for any weight"
    store = run(bundle, tmp_path / "run", world)
    assert store.divergence == single.divergence and store.step == single.step
