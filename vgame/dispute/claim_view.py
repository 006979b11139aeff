"""The claim as an auditor sees it: what the chain shows, checked by its hash, beside the auditor's own trees.

In: a job on chain, an auditor's machine. Out: where the two differ, and what a move has to show.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from vgame.chain.game import Game
from vgame.chain.records import Dispute, Job, Level, Standing
from vgame.commit.merkle import Kind, Tree, fold, leaf_hash, tree_height
from vgame.commit.trees import ClaimedTree, known_tree, run_leaf
from vgame.commit.words import LEAF_WORDS, leaf_bytes, words_tree
from vgame.dispute.player import is_open
from vgame.errors import Abstain, EndpointError, NotYet

if TYPE_CHECKING:
    from vgame.dispute.auditor import Auditor


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a challenge enters: the run root, a posted segment (where = checkpoint) or a posted trace (where =
    step)."""

    level: Level
    where: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A contested node as it was revealed: its children stand at height `base`, the leftmost at index `first`."""

    kind: Kind
    base: int
    first: int
    children: Sequence[bytes]


class Openings:
    """What was revealed, asked for node by node: strangers may open anything, so whoever reads all openings can be
    flooded."""

    def __init__(self, game: Game, job: bytes) -> None:
        self.game, self.job = game, job
        self._children: dict[tuple[int, int, bytes], list[bytes]] = {}
        self._leaves: dict[bytes, bytes] = {}

    def get(self, key: tuple[int, int, bytes]) -> list[bytes] | None:
        """Children of (kind, height, node), if they were revealed."""
        if key not in self._children:
            # the hash holds no height, and anybody may reveal the node as one of another height
            for event in self.game.events("Revealed", self.job, node=key[2], kind=key[0], height=key[1]):
                kind, height, node = event.args["kind"], event.args["height"], event.args["node"]
                children = event.args["children"]
                self.check(node, self.game.chain.ask(lambda k=kind, h=height, c=children: _folded(k, h, c)))
                self._children[kind, height, node] = list(children)
        return self._children.get(key)

    def __getitem__(self, key: tuple[int, int, bytes]) -> list[bytes]:
        children = self.get(key)
        if children is None:
            raise NotYet(f"the node {key[2].hex()[:16]} was revealed, but its event is not shown")
        return children

    def leaf(self, node: bytes) -> bytes:
        """The words of an opened leaf."""
        if node not in self._leaves:
            events = self.game.events("LeafOpened", self.job, node=node)
            if not events:
                raise NotYet(f"the leaf {node.hex()[:16]} was opened, but its event is not shown")
            words = events[0].args["words"]
            self.check(node, leaf_hash(Kind.TENSOR, words))
            self._leaves[node] = words
        return self._leaves[node]

    def check(self, node: bytes, content: bytes) -> None:
        """The contract files openings under what they hash to; an endpoint can show anything."""
        if node != content:
            raise EndpointError(
                f"{self.game.chain.url} shows an opening of {node.hex()[:16]} that hashes to {content.hex()[:16]}: "
                "nothing is done on its word; use another endpoint"
            )


def _folded(kind: int, height: int, children: Sequence[bytes]) -> bytes:
    """What revealed children hash to; whatever else an endpoint shows in their place has no hash."""
    depth = tree_height(len(children))
    return fold(Kind(kind), children, depth, max(height - depth, 0))


class Posted(dict[int, bytes]):
    """Posted roots by checkpoint or step."""

    def __missing__(self, where: int) -> bytes:
        raise NotYet(f"what was posted for {where} is not shown")


class ClaimView:
    """The claim as the chain shows it now, beside the auditor's own run."""

    def __init__(self, auditor: Auditor, job: Job) -> None:
        self.auditor, self.job = auditor, job
        self.game, self.machine, self.id = auditor.game, auditor.machine, auditor.id
        self.checkpoints = job.checkpoints
        self.false: list[str] = []

    @cached_property
    def standings(self) -> list[Standing]:
        return self.auditor.standings(self.job)

    @property
    def mine(self) -> list[tuple[int, Dispute]]:
        return [(s.number, s.dispute) for s in self.standings if s.dispute.auditor == self.auditor.address]

    @property
    def open_mine(self) -> list[Standing]:
        """Own disputes that have not ended."""
        return [s for s in self.standings if s.dispute.auditor == self.auditor.address and is_open(s)]

    def args(self, name: str) -> list[dict]:
        """Arguments of the job's events of that name."""
        return [e.args for e in self.game.events(name, self.id)]

    @property
    def revealed(self) -> Openings:
        return self.auditor.openings

    @property
    def last_step(self) -> int:
        """The last step that the claim is about."""
        return self.job.diverged_at or self.machine.steps

    @cached_property
    def segments(self) -> dict[int, bytes]:
        last = (self.last_step - 1) // self.machine.interval + 1
        return self._posted("SegmentPosted", "checkpoint", self.game.segment_root, last)

    @cached_property
    def traces(self) -> dict[int, bytes]:
        return self._posted("TracePosted", "step", self.game.trace_root, self.last_step)

    def _posted(self, event: str, key: str, root_of: Callable[[bytes, int], bytes | None], last: int) -> Posted:
        """What the contract's view confirms, asked once for each root. Other events are left out: the view may lag, but
        where it shows another root, or there is no such place, `complain` says so."""
        found, confirmed = Posted(), self.auditor.confirmed
        nothing = not (self.job.disputes or self.job.diverged_at)  # then nothing can have been posted
        for args in () if nothing else self.args(event):
            where, root = args[key], args["root"]
            inside = 1 <= where <= last
            told = root if (event, where, root) in confirmed else root_of(self.id, where) if inside else bytes(32)
            if told == root:
                confirmed.add((event, where, root))
                found[where] = root
            elif told is not None:
                self.false.append(f"{event} {where}, root {root.hex()[:16]}")
        return found

    def complain(self) -> bool:
        """Say that events were left out; the moves that need none of them are made first."""
        self.segments, self.traces  # noqa: B018 - read them all
        if self.auditor.engaged_in:
            self.args("PartialsPosted")  # or the move that needs them would wait until all blocks have been read
        if self.false:
            raise EndpointError(
                f"{self.game.chain.url} shows the event {self.false[0]}, which the contract does not confirm "
                f"({len(self.false)} such): it is left out; use another endpoint if this goes on"
            )
        return False

    def leaf(self, node: bytes) -> bytes:
        return self.auditor.openings.leaf(node)

    def partials(self, d: Dispute) -> list[bytes]:
        """The partial sums posted for the contested element, in whichever dispute that was."""
        for args in reversed(self.args("PartialsPosted")):
            other = self.standings[args["dispute"]].dispute
            if (other.step, other.operator, other.index) == (d.step, d.operator, d.index):
                partials = list(args["partials"])[: d.blocks]
                if len(partials) == d.blocks:
                    return partials
        raise NotYet("the partial sums of the contested element were posted, but their event is not shown")

    def where(self, d: Dispute) -> int:
        """The argument with which the dispute was opened."""
        if d.entry is Level.RUN:
            return 0
        if d.entry is Level.TRACE:
            return d.step
        below = d.level is not Level.SEGMENT
        return (d.step - below) // self.machine.interval + 1

    # ---- my own trees, in the shape of the claim ----

    def known(self, kind: Kind, leaves: Sequence[bytes], count: int) -> Tree:
        """My tree in the claim's shape; where my run stopped earlier its leaves are secrets, which no claim can
        contain."""
        return known_tree(kind, leaves, count, self.auditor.secret(b"vgame unknown"))

    @cached_property
    def own_run(self) -> Tree:
        roots, logs = self.machine.checkpoints, self.machine.logs
        leaves = map(run_leaf, roots) if logs is None else map(run_leaf, roots, logs)
        return self.known(Kind.RUN, list(leaves), self.checkpoints)

    def segment_length(self, c: int) -> int:
        """n of checkpoint c in the claim: its segment holds S_0..S_n."""
        end = self.job.diverged_at - 1 if self.job.diverged_at else self.machine.steps
        return min(end - (c - 1) * self.machine.interval, self.machine.interval)

    def own_segment(self, c: int) -> Tree:
        return self.known(Kind.SEGMENT, self.machine.segment(c), self.segment_length(c) + 1)

    def own_tree(self, level: Level, where: int) -> Tree:
        if level is Level.RUN:
            return self.own_run
        return self.own_segment(where) if level is Level.SEGMENT else Tree(Kind.TRACE, self.machine.trace(where))

    def tree_at(self, d: Dispute, kind: Kind) -> Tree:
        """My tree of the kind that the dispute goes into next."""
        match kind:
            case Kind.RUN:
                return self.own_run
            case Kind.SEGMENT:
                c = d.index + 1 if d.level is Level.RUN else d.step // self.machine.interval + 1
                return self.own_segment(c)
            case Kind.STATE:
                return Tree(Kind.STATE, self.machine.state(d.step))
            case Kind.TRACE:
                return Tree(Kind.TRACE, self.machine.trace(self.step_of(d)))
        return words_tree(self.machine.words(d.step, d.operator))

    def step_of(self, d: Dispute) -> int:
        """The step that a dispute is about, from the leaf of a segment on."""
        return d.step + (d.index if d.level is Level.SEGMENT else 0)

    def base(self, d: Dispute) -> Node:
        """The node whose children are named next. Twin: VerificationGame._descend."""
        kind, height, root, position = Kind(min(d.level, Level.TENSOR)), d.height, d.node, d.index
        if d.height == 0 and d.level is Level.RUN:
            c = d.index + 1
            kind, height, root, position = Kind.SEGMENT, tree_height(self.segment_length(c) + 1), self.segments[c], 0
        elif d.height == 0 and d.level is Level.SEGMENT:
            root = self.traces[self.step_of(d)]
            kind, height, position = Kind.TRACE, tree_height(self.machine.operators), 0
        children = self.revealed[kind, height, root] if height else [root]
        span = tree_height(len(children))
        return Node(kind, height - span, position << span, children)

    # ---- where the claim and my run part ----

    def contradicts_segment(self, c: int, root: bytes) -> bool:
        return self.segment_length(c) > 0 and self.own_segment(c).root != root

    def contradicts_trace(self, step: int, root: bytes) -> bool:
        """Only where I agree with the state before the step, so that I know its operands."""
        segment = self.machine.segment((step - 1) // self.machine.interval + 1)
        reached = (step - 1) % self.machine.interval < len(segment)
        return reached and fold(Kind.TRACE, self.machine.trace(step), tree_height(self.machine.operators)) != root

    def contests_trace(self, d: Dispute) -> bool:
        """At a state that is not mine: is the trace wrong, or my run not finite? Else the state does not follow from
        it."""
        step, stop = self.step_of(d), self.machine.stop
        return (stop is not None and step == stop.step) or self.contradicts_trace(step, self.traces[step])

    def first_difference(self, d: Dispute, node: Node) -> int:
        """Index of the first child that is not mine; at the step where my run stopped, of the one with the word that is
        not finite."""
        kind, tree = node.kind, self.tree_at(d, node.kind)
        for i, theirs in enumerate(node.children):
            if theirs != tree.node(node.base, node.first + i):
                return i
        stop = self.machine.stop
        if stop is None or self.step_of(d) != stop.step or kind not in (Kind.TRACE, Kind.TENSOR):
            raise Abstain(f"the contested {kind.name} node is my own: nothing below it can be named")
        target = {
            Kind.TRACE: stop.operator,
            Kind.TENSOR: stop.element // LEAF_WORDS,
        }[kind]
        return (target >> node.base) - node.first

    def first_word(self, d: Dispute, words: bytes) -> int:
        """The first word of the opened leaf that is not mine (padding is zero), or the one that must be finite and is
        not."""
        own = leaf_bytes(self.machine.words(d.step, d.operator), d.index)
        for i in range(LEAF_WORDS):
            if words[4 * i : 4 * i + 4] != own[4 * i : 4 * i + 4]:
                return d.index * LEAF_WORDS + i
        stop = self.machine.stop
        if stop and (stop.step, stop.operator, stop.element // LEAF_WORDS) == (d.step, d.operator, d.index):
            return stop.element
        raise Abstain("the contested leaf is my own: no word of it can be named")

    # ---- the trainer's trees ----

    def claimed_root(self, entry: Entry) -> bytes:
        """What stands on chain where a challenge enters."""
        if entry.level is Level.RUN:
            return self.job.run_root
        return (self.segments if entry.level is Level.SEGMENT else self.traces)[entry.where]

    def basis(self, entry: Entry) -> tuple[int, bytes, bytes]:
        """struct Basis: what else of the claim a challenge rests on."""
        segment, log = bytes(32), bytes(32)
        if entry.level is not Level.RUN:
            c = entry.where if entry.level is Level.SEGMENT else (entry.where - 1) // self.machine.interval + 1
            segment = self.segments[c]
            log = self.game.log_root(self.id, c) or log
        return self.job.diverged_at, segment, log

    def claimed(self, kind: Kind, root: bytes, own: Tree) -> ClaimedTree:
        return ClaimedTree(kind, root, own, self.job.spec.depth, self.revealed)

    def check_place(self, d: Dispute) -> None:
        """The contested node stands where the endpoint says, in a tree that hangs from a root of the claim: or I would
        compare it with the wrong piece of my run, and name what is right."""
        match d.level:
            case Level.RUN:
                tree = self.claimed(Kind.RUN, self.job.run_root, self.own_run)
            case Level.SEGMENT:
                tree = self.claimed_segment(d.step // self.machine.interval + 1)
            case Level.STATE:
                segment = self.claimed_segment((d.step - 1) // self.machine.interval + 1)
                root = segment.node(0, (d.step - 1) % self.machine.interval + 1)
                tree = self.claimed(Kind.STATE, root, Tree(Kind.STATE, self.machine.state(d.step)))
            case Level.TRACE:
                tree = self.claimed_trace(d.step)
            case _:
                root = self.claimed_trace(d.step).node(0, d.operator)
                tree = self.claimed(Kind.TENSOR, root, words_tree(self.machine.words(d.step, d.operator)))
        index = d.index // LEAF_WORDS if d.level is Level.ELEMENT else d.index
        if (stands := tree.node(d.height, index)) != d.node:
            raise EndpointError(
                f"{self.game.chain.url} says that the node {d.node.hex()[:16]} is contested at {d.level.name.lower()} "
                f"height {d.height}, index {index}, but the claim has {stands.hex()[:16]} there: nothing is done on "
                "its word; use another endpoint"
            )

    def claimed_trace(self, step: int) -> ClaimedTree:
        return self.claimed(Kind.TRACE, self.traces[step], Tree(Kind.TRACE, self.machine.trace(step)))

    def claimed_segment(self, c: int) -> ClaimedTree:
        return self.claimed(Kind.SEGMENT, self.segments[c], self.own_segment(c))
