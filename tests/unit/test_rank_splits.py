"""Ranks in one process: the parts of a step give the bits of the whole one, for any number of ranks (docs/ranks.md)."""

from __future__ import annotations

import math
import random
from functools import cache
from pathlib import Path

import pytest
import torch
from perturbed import perturbed_products
from rank_groups import shared_roots, single_root, state_root, together
from torch import nn
from wide import of_many

import vgame
from vgame.arithmetic import certified
from vgame.errors import VgameError
from vgame.program.lowering import builder
from vgame.program.operators import Access, Contract, Copy, Dim, Gather, Map, Ref, RefClass, Variant
from vgame.ranks.exchange import looked_up
from vgame.ranks.executor import RankExecutor
from vgame.ranks.part import Looked, Summed, part_of
from vgame.ranks.plan import make_plan, shared_work
from vgame.ranks.split import Share, Slice, Split, from_part, from_whole, part_sizes, place
from vgame.tasks import digits, shipped

TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 30


def prepared(task: vgame.Task) -> vgame.Bundle:
    return vgame.prepare(vgame.Job(task, steps=4, interval=2, seed=7, schedule=vgame.Constant(lr="0.05")))


def language(name: str, folder: Path) -> vgame.Bundle:
    (folder / "text").write_text(TEXT)
    return prepared(shipped.language_model(str(folder / "text"), name, batch=9, length=8))


SHIPPED = {
    "digits": lambda _: prepared(digits.task(batch=10, width=8)),
    "small_resnet": lambda _: prepared(shipped.small_resnet(batch=8)),
    "small_resnet in bfloat16": lambda _: prepared(shipped.small_resnet(batch=9, autocast=True)),
    "small_gpt": lambda folder: language("SmallGPT", folder),
    "small_llama": lambda folder: language("SmallLlama", folder),
    "small_lstm": lambda folder: language("SmallLSTM", folder),
}


@pytest.fixture(scope="module")
def bundle_of(tmp_path_factory):
    """A shipped job by name, prepared once."""
    return cache(lambda name: SHIPPED[name](tmp_path_factory.mktemp("text")))


@pytest.mark.parametrize("worlds", [(2, 8), pytest.param((3, 4, 5, 7), marks=pytest.mark.nightly)], ids=str)
@pytest.mark.parametrize("name", of_many(SHIPPED, "digits", "small_resnet in bfloat16"))
def test_any_number_of_ranks_gives_the_root(name, worlds, bundle_of):
    bundle = bundle_of(name)
    root = single_root(bundle, 2)
    for world in worlds:  # of batches of 9 and 10: unequal shares
        assert shared_roots(bundle, 2, world) == [root] * world, f"{world} ranks"


@pytest.mark.parametrize("name", of_many(["small_resnet", "small_gpt", "small_llama", "small_lstm"], "small_gpt"))
def test_nearly_all_work_is_shared_and_slots_are_kept_in_parts(name, bundle_of):
    program = bundle_of(name).program
    plan = make_plan(program, 4)
    assert shared_work(program, plan.nodes) > 0.99
    slots = [
        t
        for t, label in enumerate(program.labels.state)
        if label.name.split(".")[0] in ("momentum", "exp_avg", "exp_avg_sq")
    ]
    words = sum(program.sources[t].elements for t in slots)
    split = sum(program.sources[t].elements for t in slots if plan.state[t])
    assert split > 0.7 * words, "parts of the slots"


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 16), nn.Linear(16, 12)
        self.drop = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.first(x))))


def rows_task(batch: int, **options) -> vgame.Task:
    torch.manual_seed(1)
    model = Rows()
    samples = max(60, batch)
    data = {"x": torch.randn(samples, 24), "y": torch.arange(samples) % 12}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    return vgame.Task(
        model, lambda m, b: nn.functional.cross_entropy(m(b["x"]), b["y"]), optimizer, data, batch, clip=0.1, **options
    )


def test_each_accumulated_batch_is_split():
    bundle = prepared(rows_task(5, accumulate=3))
    for world in (2, 4, 5):
        assert shared_roots(bundle, 2, world) == [single_root(bundle, 2)] * world
    plan = make_plan(bundle.program, 4)
    assert shared_work(bundle.program, plan.nodes) > 0.95


def test_sums_beyond_the_longest(monkeypatch):
    monkeypatch.setattr(builder, "LONGEST_SUM", 7)
    bundle = prepared(rows_task(16))
    longest = max(op.k for op in bundle.program.operators if isinstance(op, Contract))
    assert longest <= 7, "sums are made of pieces"
    for world in (2, 3, 8):
        assert shared_roots(bundle, 2, world) == [single_root(bundle, 2)] * world
        pieces = [n for n in make_plan(bundle.program, world).nodes if isinstance(n.held, Slice)]
        assert pieces, "pieces of gradients stay where they are, although shares do not end where pieces do"
        part = part_of(bundle.program, make_plan(bundle.program, world), 0).operators
        assert any(isinstance(op, Summed) and op.empty for op in part), "of some pieces a rank has nothing"


def test_rows_are_looked_up_on_the_rank_that_holds_them(monkeypatch):
    """The loss reads one word of each row: each index is on the rank with the row, until they are reversed."""
    bundle = prepared(rows_task(10))
    part = part_of(bundle.program, make_plan(bundle.program, 3), 0).operators
    assert any(isinstance(op, Looked) for op in part)
    index = torch.tensor([11, 0, 3, -1, 12, 7, 2, 5])

    def work(group):
        share = Share(group.rank, 3)
        low, high = share.cut(6)
        table = torch.arange(24.0)[low * 4 : high * 4]
        gather = Gather(8, 2, (high - low) * 2, Ref(RefClass.OPERATOR, 0), Ref(RefClass.OPERATOR, 1), 0, False)
        return looked_up(group, index.roll(group.rank), table, torch.tensor([-1.0]), Looked(gather, Split(6, 4), 12))

    rows = torch.arange(24.0).view(12, 2)
    expected = torch.where(((index >= 0) & (index < 12))[:, None], rows[index.clamp(0, 11)], -1.0)
    for rank, found in enumerate(together(3, work)):
        assert torch.equal(found, expected.roll(rank, 0))


@pytest.mark.parametrize("kind", ["up", "midpoint", "reversed"])
@pytest.mark.parametrize("batch", [10, 240])
def test_a_library_that_errs_and_adds_in_another_order_on_every_rank(kind, batch):
    bundle = prepared(rows_task(batch))
    part = part_of(bundle.program, make_plan(bundle.program, 3), 0).operators
    products = [op for op in part if isinstance(op, Summed) and op.operator.variant is Variant.DOT]
    assert bool(products) == (batch == 240), "of many samples, sums are exchanged; of few, their operands"
    root = single_root(bundle, 2)

    def with_other_sums(group):
        wrong = certified.reversed_order() if kind == "reversed" or group.rank == 1 else perturbed_products(kind)
        executor = RankExecutor(bundle.program, bundle.data, bundle.scalars, bundle.seed, bundle.mode, "cpu", group)
        with wrong:
            state = executor.to_device(bundle.state)
            for step in (1, 2):
                state = executor.step(step, state).state
            return state_root(executor, state)

    assert together(3, with_other_sums) == [root] * 3


def test_a_wrong_word_of_a_rank_is_detected():
    """The tests above can fail: one word of one rank's part, changed."""
    bundle = prepared(rows_task(10))

    def damage(executor: RankExecutor) -> None:
        if executor.group.rank == 1:
            state = executor.to_device

            def flipped(tensors):
                parts = [t.clone() for t in state(tensors)]
                parts[0].view(torch.int32)[3] ^= 1 << 22
                return parts

            executor.to_device = flipped

    roots = shared_roots(bundle, 2, 2, damage)
    assert single_root(bundle, 2) not in roots


# ---- the rule itself ----


def drawn(rng: random.Random) -> tuple[Access, tuple[int, ...]]:
    """An access as lowering makes them: merged, transposed, cut, padded and strided dimensions."""
    inside = [rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3))]
    dims, targets, sizes, order = [], [], [], []
    for j, size in enumerate(inside):
        pieces = [size] if size < 4 or rng.random() < 0.4 else [2, size // 2]
        dims.append(Dim(size, rng.choice([0, 0, 0, 1, -1]), rng.choice([1, 1, 1, 2])))
        for n, piece in enumerate(pieces):
            order.append((j, math.prod(pieces[n + 1 :]) * rng.choice([1, 1, 1, 1, -1]), piece))
    order += [(255, 0, rng.choice([2, 3]))] * rng.randint(0, 1)
    rng.shuffle(order)
    for target, coefficient, size in order:
        targets.append((target, coefficient))
        sizes.append(size)
    return Access(Ref(RefClass.OPERATOR, 0), tuple(dims), tuple(targets), 7), tuple(sizes)


def splits_of(sizes: tuple[int, ...]) -> list[Split]:
    words = math.prod(sizes)
    drawn = (Split(d, i) for d in range(2, words + 1) for i in range(1, words // d + 1) if words % (d * i) == 0)
    return [split for split in drawn if place(sizes, split)]


def held(split: Split, words: int, low: int, high: int) -> list[int]:
    """Positions of a part, in its order."""
    outer = words // (split.digit * split.inner)
    return [
        (o * split.digit + d) * split.inner + i
        for o in range(outer)
        for d in range(low, high)
        for i in range(split.inner)
    ]


def positions(access: Access, sizes: tuple[int, ...]) -> list[int | None]:
    index = [()]
    for size in sizes:
        index = [(*i, n) for i in index for n in range(size)]
    return [access.position(i) for i in index]


def test_a_part_reads_the_words_that_the_whole_reads():
    rng, seen, refused = random.Random(3), 0, 0
    for _ in range(150):
        access, sizes = drawn(rng)
        words, whole = access.elements, positions(access, sizes)
        for split in rng.sample(found := splits_of(sizes), min(3, len(found))):
            low, high = sorted(rng.sample(range(split.digit + 1), 2))
            mine, part = held(split, len(whole), low, high), part_sizes(sizes, split, high - low)
            expected = [whole[p] for p in mine]
            assert positions(from_whole(access, sizes, split, low), part) == expected, (access, sizes, split)
            for operand in splits_of(tuple(d.size for d in access.dims)):
                if operand.digit != split.digit:
                    continue
                here = held(operand, words, low, high)
                local = from_part(access, sizes, split, operand, high - low)
                seen, refused = seen + (local is not None), refused + (local is None)
                if local is not None:
                    read = [None if p is None else here[p] for p in positions(local, part)]
                    assert read == expected, (access, sizes, split, operand)
    assert seen > 30 < refused, "both answers are drawn"


def test_cuts_cover_every_digit():
    for world in (1, 2, 3, 7):
        for digit in (7, 8, 100):
            cuts = [Share(rank, world).cut(digit) for rank in range(world)]
            assert [x for low, high in cuts for x in range(low, high)] == list(range(digit))
            assert {high - low for low, high in cuts} <= {digit // world, -(-digit // world)}


# ---- refusals ----


def test_more_ranks_than_samples_and_other_modes_are_refused():
    bundle = prepared(rows_task(4))
    with pytest.raises(VgameError, match="5 ranks were started, but a step of this job has 4 samples: start at most 4"):
        shared_roots(bundle, 1, 5)
    with pytest.raises(VgameError, match="mode 'nearest' cannot be shared by 2 ranks"):
        together(2, lambda g: RankExecutor(bundle.program, bundle.data, bundle.scalars, 1, "nearest", "cpu", g))


def test_a_plan_is_the_same_on_every_rank():
    program = prepared(rows_task(9)).program
    assert make_plan(program, 3) == make_plan(program, 3)
    assert all(n.split is None or n.split.digit >= 3 for n in make_plan(program, 3).nodes)
    assert any(isinstance(program.operators[n.index], Map | Copy) and n.split for n in make_plan(program, 3).nodes)
