"""A run as the game's agents use it: any state, trace, tensor or element proof, re-executed on demand from the nearest
checkpoint.

Nothing of a step is kept beyond bounded caches of operator outputs and hashes, so a dispute over a large model needs
memory for one step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cached_property

import numpy as np
import torch
from eth_abi import encode

from vgame.commit.machine import ElementProof, PathOf, RecordProof, Stop
from vgame.commit.merkle import Kind, Tree, fold, tree_height
from vgame.commit.tensor import tensor_bytes, tensor_root, to_words
from vgame.commit.words import LEAF_WORDS, leaf_bytes, words_range_proof, words_tree
from vgame.execute import reference
from vgame.program.operators import Contract, Ref, RefClass, operand_refs
from vgame.runs.store import Store
from vgame.runs.training import State, Stepper, advance, state_at

PROOF_TYPE = "(bytes,bytes,bytes32[],(bytes,bytes32[],bytes32[])[])"
OpeningTuple = tuple[bytes, list[bytes], list[bytes]]
CACHE_BYTES = 512 * 2**20
CACHED_STEPS = 4  # steps with cached operator outputs: each dispute is about one step


class Hashes(OrderedDict[int, list[bytes]]):
    """LRU cache of hashes by step or checkpoint: callers are untrusted and decide how much they request."""

    MOST = 2**20  # hashes, about 90 bytes each
    held = 0

    def of(self, place: int, compute: Callable[[], list[bytes]]) -> list[bytes]:
        if place not in self:
            self[place] = compute()
            self.held += len(self[place])
        self.move_to_end(place)
        while self.held > self.MOST and len(self) > 1:
            self.held -= len(self.popitem(last=False)[1])
        return self[place]

    def clear(self) -> None:
        super().clear()
        self.held = 0


class _Enough(Exception):
    """Ends a step once all wanted outputs exist: the rest would need time and memory."""


class History:
    """Implements vgame.commit.machine.Machine for a stored run."""

    def __init__(self, store: Store, stepper: Stepper) -> None:
        self.store, self.stepper, self.bundle = store, stepper, store.bundle
        self.program = store.bundle.program
        self.steps, self.interval = store.bundle.steps, store.bundle.interval
        self.operators = len(self.program.operators)
        self.prefetched: Callable[[int], list[bytes] | None] | None = None  # a segment executed by another process
        self._states: OrderedDict[int, State] = OrderedDict()
        self._roots, self._traces, self._segments = Hashes(), Hashes(), Hashes()
        self._outputs: OrderedDict[tuple[int, int], torch.Tensor] = OrderedDict()
        self._cached = 0  # bytes of the outputs
        step = sum(op.elements * 4 for op in self.program.operators)
        self.room = min(CACHE_BYTES, CACHED_STEPS * step)  # bytes for the outputs

    # ---- states ----

    @property
    def checkpoints(self) -> Sequence[bytes]:
        return self.store.roots

    @property
    def logs(self) -> Sequence[bytes] | None:
        return None

    @property
    def stop(self) -> Stop | None:
        d = self.store.divergence
        return Stop(d.step, d.operator, d.element) if d else None

    def state_tensors(self, step: int) -> State:
        """The tensors of the state after a step; the last few states are cached."""
        if step not in self._states:
            before = max((s for s in self._states if s < step), default=-1)
            checkpoint = min(step // self.interval, len(self.store.roots))
            if before < checkpoint * self.interval:
                before = checkpoint * self.interval
                self._keep(before, state_at(self.store, self.stepper, checkpoint))
            for s in range(before + 1, step + 1):
                self._keep(s, advance(self.stepper, self._states[s - 1], s, s))
        return self._states[step]

    def _keep(self, step: int, state: State) -> None:
        self._states[step] = state
        size = sum(t.numel() * 4 for t in state)
        while len(self._states) > max(2, CACHE_BYTES // max(size, 1)):
            self._states.popitem(last=False)

    def segment(self, checkpoint: int) -> list[bytes]:
        return self._segments.of(checkpoint, lambda: self._segment(checkpoint))

    def _segment(self, checkpoint: int) -> list[bytes]:
        if self.prefetched and (found := self.prefetched(checkpoint)):
            return found
        start = (checkpoint - 1) * self.interval
        end = min(start + self.interval, self.stop.step - 1 if self.stop else self.steps)
        roots = [self.initial_root] if start == 0 else [self.store.roots[checkpoint - 2]]
        return roots + [self._state_root(s) for s in range(start + 1, end + 1)]

    @property
    def initial_root(self) -> bytes:
        return self.bundle.initial_root

    def _state_root(self, step: int) -> bytes:
        roots = self.state(step)
        return fold(Kind.STATE, roots, tree_height(len(roots)))

    def state(self, step: int) -> list[bytes]:
        """Tensor roots of the state after a step."""
        return self._roots.of(step, lambda: [tensor_root(t) for t in self.state_tensors(step)])

    # ---- one step ----

    def trace(self, step: int) -> list[bytes]:
        return self._traces.of(step, lambda: self._trace(step))

    def _trace(self, step: int) -> list[bytes]:
        roots: list[bytes] = []

        def tap(index: int, output: torch.Tensor) -> torch.Tensor:
            roots.append(tensor_root(output))
            self._cache(step, index, output)
            return output

        self.stepper.step(step, self.state_tensors(step - 1), tap)
        return roots

    def _cache(self, step: int, operator: int, output: torch.Tensor) -> None:
        if (step, operator) in self._outputs or output.numel() * 4 > self.room:
            return
        self._outputs[step, operator] = _own(output)
        self._cached += output.numel() * 4
        while self._cached > self.room:
            self._cached -= self._outputs.popitem(last=False)[1].numel() * 4

    def outputs(self, step: int, wanted: Iterable[int]) -> dict[int, torch.Tensor]:
        """Operator outputs of a step (flat, on the CPU), from the cache or from one re-execution."""
        wanted = set(wanted)
        found = {i: self._outputs[step, i] for i in wanted if (step, i) in self._outputs}
        if len(found) < len(wanted):

            def tap(index: int, output: torch.Tensor) -> torch.Tensor:
                if index in wanted:
                    found[index] = _own(output)
                    if len(found) == len(wanted):
                        raise _Enough
                return output

            before = self.state_tensors(step - 1)
            with suppress(_Enough):
                self.stepper.step(step, before, tap)
            for index, output in found.items():
                self._cache(step, index, output)
        return found

    def words(self, step: int, operator: int) -> memoryview:
        return tensor_bytes(self.outputs(step, [operator])[operator])

    # ---- the program ----

    def source(self, tensor: int) -> int | None:
        ref = self.program.sources[tensor].ref
        return ref.index if ref.cls is RefClass.OPERATOR else None

    def finite(self, operator: int) -> bool:
        return operator in self.program.finite

    def source_record(self, tensor: int) -> RecordProof:
        path = self.program.source_tree.path(0, tensor)
        return RecordProof(self.program.header, self.program.source_records[tensor], path)

    def operator_record(self, operator: int) -> RecordProof:
        path = self.program.operator_tree.path(0, operator)
        return RecordProof(self.program.header, self.program.records[operator], path)

    def blocks(self, operator: int) -> int:
        op = self.program.operators[operator]
        return op.blocks if isinstance(op, Contract) else 1

    def operator_name(self, operator: int) -> str:
        return self.program.operator_name(operator)

    # ---- proofs ----

    def _reader(self, step: int, operator: int) -> _Reader:
        refs = [ref for ref, _, _ in operand_refs(self.program.operators[operator])]
        outputs = self.outputs(step, [r.index for r in refs if r.cls is RefClass.OPERATOR])
        before = self.state_tensors(step - 1) if any(r.cls is RefClass.STATE for r in refs) else ()
        return _Reader(self, step, outputs, before)

    def partials(self, step: int, operator: int, element: int) -> list[bytes]:
        op, reader = self.program.operators[operator], self._reader(step, operator)
        return [reference.partial(op, element, j, reader.read).encode() for j in range(op.blocks)]

    def witness(self, step: int, operator: int, element: int) -> list[bytes]:
        return []

    def evaluate(self, step: int, operator: int, element: int) -> int:
        """The word that the reference computes from this run's operands."""
        return self._compute(
            reference.Position(self.bundle.seed, step, operator, element), self._reader(step, operator).read
        )

    def _compute(self, at: reference.Position, read: reference.Read) -> int:
        return reference.evaluate(self.program.operators[at.operator], at, read)

    def prove(self, step: int, operator: int, element: int, block: int | None, path_of: PathOf) -> ElementProof:
        reader = self._reader(step, operator)
        if block is None:
            self._compute(reference.Position(self.bundle.seed, step, operator, element), reader.read)
        else:
            reference.rows(self.program.operators[operator], element, block, reader.read)
        openings = [reader.opening(ref, first, count, path_of) for ref, first, count in reader.reads]
        openings += self._log_openings(step, operator, element) if block is None else []
        return ElementProof(
            self._encode(operator, openings), any(ref.cls is RefClass.STATE for ref, _, _ in reader.reads)
        )

    def _encode(self, operator: int, openings: list[OpeningTuple]) -> bytes:
        """struct Proof."""
        return encode([PROOF_TYPE], [(*self.operator_record(operator).as_tuple(), openings)])

    def _log_openings(self, step: int, operator: int, element: int) -> list[OpeningTuple]:
        return []

    @cached_property
    def data_tree(self) -> Tree:
        return Tree(Kind.DATA, [tensor_root(t) for t in self.bundle.data])

    # ---- before anything is staked ----

    def rehearse(self) -> None:
        """Do the memory-intensive work of a dispute once, in the first step: a trace, the largest output's tree, the
        openings of the largest operands.

        A device without the memory fails before a bond is staked. Nothing is kept.
        """
        operators = self.program.operators
        self.trace(1)
        words_tree(self.words(1, max(range(len(operators)), key=lambda i: operators[i].elements)))
        dearest = max(range(len(operators)), key=lambda i: sum(n for _, n, _ in operand_refs(operators[i])))
        reader = self._reader(1, dearest)
        for ref, _, _ in operand_refs(operators[dearest]):
            if ref.cls is not RefClass.IMMEDIATE:
                reader.read(ref, 0, 1)
                reader.opening(ref, 0, 1, lambda _: [])
        for kept in (self._states, self._roots, self._traces, self._outputs):
            kept.clear()
        self._cached = 0


def _own(output: torch.Tensor) -> torch.Tensor:
    """An output on the CPU without shared memory; a whole output is not copied, since nothing writes to outputs."""
    here = output.detach().cpu()
    return here if here.untyped_storage().nbytes() == here.numel() * here.element_size() else here.clone()


class _Reader:
    """Reads operand words of one step and remembers which."""

    def __init__(self, history: History, step: int, outputs: dict[int, torch.Tensor], before: State) -> None:
        self.history, self.step, self.outputs, self.before = history, step, outputs, before
        self.reads: list[tuple[Ref, int, int]] = []
        self._words: dict[Ref, np.ndarray] = {}

    def _tensor(self, ref: Ref) -> torch.Tensor:
        bundle = self.history.bundle
        match ref.cls:
            case RefClass.OPERATOR:
                return self.outputs[ref.index]
            case RefClass.STATE:
                return self.before[ref.index]
            case RefClass.CONSTANT:
                return self.history.program.constants[ref.index]
            case RefClass.DATA:
                return bundle.data[ref.index]
        return bundle.scalars

    def _offset(self, ref: Ref) -> int:
        """Position of a scalar in the table of all steps."""
        if ref.cls is not RefClass.SCALAR:
            return 0
        return (self.step - 1) * self.history.program.scalars + ref.index

    def read(self, ref: Ref, first: int, count: int) -> list[int]:
        self.reads.append((ref, first, count))
        if ref not in self._words:
            self._words[ref] = to_words(self._tensor(ref))
        first += self._offset(ref)
        return self._words[ref][first : first + count].tolist()

    def opening(self, ref: Ref, first: int, count: int, path_of: PathOf) -> OpeningTuple:
        """(whole leaves, range proof, path of the tensor root in its tree)."""
        first += self._offset(ref)
        low, high = first // LEAF_WORDS, (first + count - 1) // LEAF_WORDS
        data = memoryview(self._words[ref]).cast("B")
        words = b"".join(leaf_bytes(data, leaf) for leaf in range(low, high + 1))
        return words, words_range_proof(data, low, high), self._outer_path(ref, path_of)

    def _outer_path(self, ref: Ref, path_of: PathOf) -> list[bytes]:
        match ref.cls:
            case RefClass.OPERATOR:
                return path_of(ref.index)
            case RefClass.STATE:
                return Tree(Kind.STATE, self.history.state(self.step - 1)).path(0, ref.index)
            case RefClass.CONSTANT:
                return self.history.program.constant_tree.path(0, ref.index)
            case RefClass.DATA:
                return self.history.data_tree.path(0, ref.index)
        return []
