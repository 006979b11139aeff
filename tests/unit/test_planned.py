"""Planned steps (vgame/execute/planned.py): the same words as in the ordinary way, with reused memory.

tests/unit/small_programs.py checks every kind of operator both ways; here are whole jobs, and data that change in
place.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from certified_data import FAMILIES, dot_words, draw, one_hot_words, sum_words, words
from small_programs import World, executed
from test_jobs import SHIPPED, USER, prepared
from wide import of_many

from vgame.arithmetic import certified
from vgame.arithmetic.functions import Function
from vgame.arithmetic.indexed_matrix import Mirrored, in_place
from vgame.arithmetic.numba import rows
from vgame.arithmetic.torch.planned import LIMIT, PlannedTile, plan_product, plan_sum
from vgame.arithmetic.torch.rounding_test import weigh
from vgame.arithmetic.workspace import Workspace
from vgame.errors import VgameError
from vgame.execute.executor import Executor
from vgame.execute.ordinary import Run
from vgame.execute.places import Memory
from vgame.execute.planned import Planned
from vgame.job.bundle import Bundle, load_bundle
from vgame.program.operators import Access, Copy, Dim, Map, Ref, RefClass, identity_access
from vgame.program.program import Source

pytestmark = pytest.mark.usefixtures("one_thread")


def executor_of(bundle: Bundle, *, plans: bool) -> Executor:
    found = Executor(bundle.program, bundle.data, bundle.scalars, bundle.seed)
    found.plans = plans
    return found


@pytest.fixture(scope="module")
def digits(jobs) -> Bundle:
    return load_bundle(prepared("digits", jobs))


@pytest.mark.parametrize("threads", of_many([1, 2], 2))
@pytest.mark.parametrize("name", [*SHIPPED, *USER])
def test_jobs_give_the_words_of_the_ordinary_way(name, threads, jobs, threads_come_back):
    torch.set_num_threads(threads)
    bundle = load_bundle(prepared(name, jobs))
    planned, ordinary = executor_of(bundle, plans=True), executor_of(bundle, plans=False)
    state = planned.initial(bundle.state)
    for step in range(1, 4):
        found, wanted = planned.step(step, state), ordinary.step(step, state)
        assert [words(t) for t in found.state] == [words(t) for t in wanted.state]
        assert words(found.loss) == words(wanted.loss) and found.not_finite == wanted.not_finite is None
        state = found.state
    assert isinstance(planned._plan, Planned) and ordinary._plan is None


def test_a_state_that_is_not_finite(digits):
    """The first output that must be finite and is not; the next step is unaffected."""
    planned, ordinary = executor_of(digits, plans=True), executor_of(digits, plans=False)
    good = planned.initial(digits.state)
    bad = [t.clone() for t in good]
    bad[0][3] = torch.inf
    for state in (good, bad, good):
        found, wanted = planned.step(1, state), ordinary.step(1, state)
        assert found.not_finite == wanted.not_finite and (found.not_finite is None) == (state is good)
        assert [words(t) for t in found.state] == [words(t) for t in wanted.state]


def test_later_steps_do_not_change_earlier_results(digits):
    planned = executor_of(digits, plans=True)
    state = planned.initial(digits.state)
    first = planned.step(1, state)
    before = [words(t) for t in first.state], words(first.loss)
    planned.step(2, first.state)
    assert ([words(t) for t in first.state], words(first.loss)) == before
    assert [words(t) for t in state] == [words(t) for t in planned.initial(digits.state)]


def test_two_threads_may_use_one_executor(digits):
    planned, ordinary = executor_of(digits, plans=True), executor_of(digits, plans=False)
    state = planned.initial(digits.state)
    wanted = [[words(t) for t in ordinary.step(step, state).state] for step in (1, 2)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            found = list(pool.map(lambda step: planned.step(step, state).state, (1, 2)))
            assert [[words(t) for t in tensors] for tensors in found] == wanted


def test_taps_and_replaced_libraries_use_the_ordinary_way(digits, monkeypatch):
    planned = executor_of(digits, plans=True)
    state, taken = planned.initial(digits.state), []
    monkeypatch.setattr(Run, "compute_unit", lambda self, unit: taken.append(unit) or 1 / 0)
    assert planned.step(1, state).not_finite is None and not taken
    with certified.reversed_order(), pytest.raises(ZeroDivisionError):
        planned.step(1, state)
    with pytest.raises(ZeroDivisionError):
        planned.step(1, state, tap=lambda _, words: words)
    planned.plans = False
    with pytest.raises(ZeroDivisionError):
        planned.step(1, state)


def test_times_are_reported_for_every_operator(digits):
    planned, times = executor_of(digits, plans=True), {}
    planned.watch = lambda index, seconds: times.update({index: seconds})
    planned.step(1, planned.initial(digits.state))
    assert sorted(times) == list(range(len(digits.program.operators))) and isinstance(planned._plan, Planned)


def test_large_steps_are_not_planned(digits, monkeypatch):
    monkeypatch.setattr("vgame.execute.executor.MOST", 1000)
    large = executor_of(digits, plans=True)
    large.step(1, large.initial(digits.state))
    assert large._plan is False


def test_a_program_whose_results_are_its_inputs(digits):
    """State without an operator, data and scalars as state."""
    sources = list(digits.program.sources)
    sources[0] = replace(sources[0], ref=replace(sources[0].ref, cls=RefClass.STATE, index=0))
    bundle = replace(digits, program=replace(digits.program, sources=tuple(sources)))
    planned, ordinary = executor_of(bundle, plans=True), executor_of(bundle, plans=False)
    state = planned.initial(digits.state)
    found, wanted = planned.step(1, state).state, ordinary.step(1, state).state
    assert [words(t) for t in found] == [words(t) for t in wanted] and found[0] is state[0]


def test_memory_is_reused():
    memory = Memory()
    first = memory.take(100)
    memory.hold(first)
    memory.hold(first[:10])
    memory.release(first)
    second = memory.take(100)
    assert second.data_ptr() != first.data_ptr()  # still read
    memory.release(first[:10])
    assert memory.take(97).data_ptr() == first.data_ptr()  # of one size with it
    assert memory.take(100).data_ptr() not in (first.data_ptr(), second.data_ptr())


def test_memory_that_a_unit_still_reads_is_not_written_by_it():
    """A chain reads a strided output in place and, by a copy of it, in another order; its result is as large."""
    words_of, sizes = 1200, (6, 5, 40)
    permuted = lambda ref: Access(ref, (Dim(5), Dim(6), Dim(40)), ((1, 1), (0, 1), (2, 1)))  # noqa: E731
    in_place_ = lambda ref: Access(ref, (Dim(words_of),), ((0, 200), (0, 40), (0, 1)))  # noqa: E731
    state, first, second = Ref(RefClass.STATE), Ref(RefClass.OPERATOR, 0), Ref(RefClass.OPERATOR, 1)
    operators = [
        Map(Function.NEG, (words_of,), (identity_access(state, words_of),), False),
        Copy(sizes, (permuted(first),), False),
        Map(Function.SUB, sizes, (in_place_(second), permuted(second)), False),
    ]
    world = World(state=[draw("normal", words_of)])
    program = replace(world.program(operators), sources=(Source(Ref(RefClass.OPERATOR, 2), words_of),))
    executor = Executor(program, (), world.scalars, world.seed)
    found = executor.step(1, world.state).state[0]
    assert isinstance(executor._plan, Planned) and words(found) == executed(operators, world)[2]


# ---- products and sums whose data change in place ----

SHAPES = {  # batches of a and b, M, N, K
    "one": (1, 1, 5, 7, 33),
    "batch": (3, 3, 4, 5, 17),
    "shared a": (1, 3, 4, 5, 17),
    "shared b": (3, 1, 4, 5, 17),
    "columns of one": (1, 1, 6, 1, 40),
    "blocks": (1, 1, 3, 4, 2100),
}


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_product_of_changing_data(shape, bfloat16):
    """Every family in the same memory, one after the other: no old data remain."""
    batch_a, batch_b, m, n, k = shape
    a, b = torch.empty(batch_a, m, k), torch.empty(batch_b, n, k)
    out = torch.empty(max(batch_a, batch_b), m, n)
    call = plan_product(a, b, out, bfloat16, Workspace())
    for seed, family in enumerate([*FAMILIES, *reversed(FAMILIES)]):
        a.copy_(draw(family, *a.shape, seed=seed)), b.copy_(draw(family, *b.shape, seed=seed + 50))
        call()
        wanted = words(certified.dot(a, b, bfloat16=True)) if bfloat16 else dot_words(a, b)
        assert words(out) == wanted, family


@pytest.mark.parametrize("family", FAMILIES)
def test_a_product_of_folded_rows(family):
    """Patches, forwards and backwards, of pictures read in place; on both sides."""
    picture = draw(family, 2, 3, 6, 6)
    view = picture.as_strided((2, 4, 4, 3, 3, 3), (108, 6, 1, 36, 6, 1))
    for backwards in ((), (4, 5)):
        rows_of = in_place(Mirrored(view, backwards), (1, 32, 27), 0)
        filters = draw(family, 1, 4, 27, seed=1)
        out = torch.empty(1, 4, 32)
        plan_product(filters, rows_of, out, False, Workspace())()
        assert words(out) == dot_words(filters, rows_of.whole())
        square = torch.empty(1, 32, 32)
        plan_product(rows_of, rows_of, square, False, Workspace())()
        assert words(square) == dot_words(rows_of.whole(), rows_of.whole())


def test_all_ways_of_a_product_are_taken(monkeypatch):
    """Open sums: none, a few, too many; or a row is not finite."""
    a, b, out = torch.empty(1, 20, 64), torch.empty(1, 20, 64), torch.empty(1, 20, 20)
    tile, on = PlannedTile(a, b, out, False, 0, Workspace()), []
    monkeypatch.setattr(PlannedTile, "_go_on", lambda self, real=PlannedTile._go_on: on.append(self) or real(self))
    ways = set()
    for family in FAMILIES:
        a.copy_(draw(family, *a.shape)), b.copy_(draw(family, *b.shape, seed=1))
        on.clear()
        with certified.counting() as counts:
            tile.fill()
        assert words(out) == dot_words(a, b) and counts.elements == 400
        ways.add("too many" if on else "a few" if counts.tier else "none")
        assert not on or counts.tier + counts.exact > LIMIT * 40 or not (a.isfinite().all() and b.isfinite().all())
    assert ways == {"none", "a few", "too many"}


@pytest.mark.parametrize("length", [1, 3, 40, 2100])
def test_a_sum_of_changing_data(length):
    a, out = torch.empty(1, 6, length), torch.empty(6)
    call = plan_sum(a, out)
    for seed, family in enumerate([*FAMILIES, *reversed(FAMILIES)]):
        a.copy_(draw(family, *a.shape, seed=seed))
        call()
        assert words(out) == sum_words(a[0]), family


@pytest.mark.parametrize("family", FAMILIES)
def test_sums_of_rows_that_are_not_contiguous(family):
    """Channels of pictures in runs, and rows beside each other."""
    pictures = draw(family, 3, 5, 20)
    folded = in_place(pictures.permute(1, 0, 2), (1, 5, 60), 0)
    out = torch.empty(5)
    plan_sum(folded, out)()
    assert words(out) == sum_words(folded.whole()[0])
    beside = draw(family, 40, 5).T
    plan_sum(beside.unsqueeze(0), out)()
    assert words(out) == sum_words(beside)


# ---- loops over rows ----


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length,block", [(1, 1), (4, 4), (7, 3), (12, 4)])
def test_maxima_of_rows(family, length, block):
    a = draw(family, 50, length)
    out, places = torch.empty(50, -(-length // block)), torch.empty(50, dtype=torch.int32)
    rows.largest(a.view(-1).numpy(), length, block, out.view(-1).numpy())
    rows.place_of_largest(a.view(-1).numpy(), length, places.numpy(), 0, places.numel())
    assert words(out) == words(certified.reduce_max(a, block)) and places.tolist() == certified.argmax(a).tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("shared", ["neither", "index", "terms"])
def test_sums_that_an_index_selects(family, shared):
    index = torch.randint(-1, 6, (1 if shared == "index" else 3, 9)).int()
    b = draw(family, 1 if shared == "terms" else 3, 2, 9)
    out = torch.empty(3, 5, 2)
    strides = 9 if len(index) > 1 else 0, 18 if len(b) > 1 else 0, 9, 1
    scratch = torch.empty(3, 5, dtype=torch.float64).numpy(), torch.empty(5, dtype=torch.int64).numpy()
    flat_index, flat_b, flat_out = (x.reshape(-1).numpy() for x in (index, b, out))
    found = rows.select(flat_index, flat_b, (3, 5, 2, 9), strides, weigh(2) / 2, *scratch, flat_out)
    wanted = torch.tensor(one_hot_words(index, b, 5))
    wrong = int((torch.tensor(words(out)) != wanted).sum())
    assert wrong <= found and (found == 0 or family in ("any bits", "wide", "edges", "cancelling"))


def test_after_an_interrupt_another_plan_is_made(digits):
    """Threads of the interrupted step may still write to the memory of the first plan."""
    executor = executor_of(digits, plans=True)
    state = executor.initial(digits.state)
    wanted = [words(t) for t in executor.step(1, state).state]
    first, calls = executor._plan, list(executor._plan.calls)

    def interrupted() -> None:
        raise KeyboardInterrupt

    first.calls[5] = interrupted
    with pytest.raises(KeyboardInterrupt):
        executor.step(1, state)
    first.calls[5] = calls[5]
    assert [words(t) for t in executor.step(1, state).state] == wanted
    assert executor._plan is not first and first.launch(1, state) is None


def test_a_step_with_many_words_is_not_planned():
    """Few of them are alive at once."""
    half, operators = 1 << 19, []
    for index in range(40):
        before = Ref(RefClass.STATE, 0) if index == 0 else Ref(RefClass.OPERATOR, index - 1)
        operators.append(Map(Function.NEG, (half,), (identity_access(before, half),), False))
    world = World(state=[torch.randn(half)])
    sources = (Source(Ref(RefClass.OPERATOR, 39), half, False),)
    executor = Executor(replace(world.program(operators), sources=sources), (), world.scalars, 1)
    assert words(executor.step(1, world.state).state[0]) == words(world.state[0])
    assert executor._plan is False


def test_a_plan_made_in_inference_mode_works_outside_of_it(digits):
    executor = executor_of(digits, plans=True)
    state = executor.initial(digits.state)
    with torch.inference_mode():
        inside = [words(t) for t in executor.step(1, state).state]
    assert [words(t) for t in executor.step(1, state).state] == inside


@pytest.mark.parametrize("plans", [True, False])
def test_a_state_that_is_not_flat_is_refused(digits, plans):
    state = [t.clone() for t in digits.state]
    state[0] = torch.stack([state[0], state[0]], 1)[:, 0]
    with pytest.raises(VgameError, match="contiguous words are expected"):
        executor_of(digits, plans=plans).step(1, state)
