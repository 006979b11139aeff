"""The claim as an auditor sees it: what the chain shows, checked by its hash, beside the auditor's own trees.

In: a job on chain, an auditor's machine. Out: where the two differ, and what a move has to show.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from vgame.chain.game import Game
from vgame.chain.records import Dispute, Event, Job, Level, Post, Standing
from vgame.commit.merkle import Kind, Tree, fold, leaf_hash, tree_height
from vgame.commit.trees import ClaimedTree, known_tree, run_leaf
from vgame.commit.words import LEAF_WORDS, leaf_bytes, words_tree
from vgame.dispute.player import Player, is_open
from vgame.errors import Abstain, EndpointError, NotYet


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
    """What was revealed, asked for node by node at the second that the state names: strangers may open anything."""

    def __init__(self, game: Game, job: bytes) -> None:
        self.game, self.job = game, job
        self.times: dict[bytes, int] = {}  # when roots were posted, perhaps with their children
        self._children: dict[tuple[int, int, bytes], list[bytes]] = {}

    def get(self, key: tuple[int, int, bytes]) -> list[bytes] | None:
        """Children of (kind, height, node), if they were revealed."""
        if key not in self._children:
            kind, height, node = key
            time = self.game.opened(self.job, Level(kind), height, node) or self.times.get(node, 0)
            if not time:
                return None

            def check(event: Event) -> list[bytes] | None:
                # the hash holds no height, and anybody may reveal the node as one of another height
                if (event.args["kind"], event.args["height"]) != (kind, height):
                    return None
                children = list(event.args["children"])
                return children if _folded(kind, height, children) == node else None

            self._children[key] = self.game.content("Revealed", self.job, time, check, node, key=(kind, height))
        return self._children[key]

    def __getitem__(self, key: tuple[int, int, bytes]) -> list[bytes]:
        children = self.get(key)
        if children is None:
            raise NotYet(f"the node {key[2].hex()[:16]} is not revealed")
        return children

    def leaf(self, node: bytes) -> bytes:
        """The words of an opened leaf."""

        def check(event: Event) -> bytes | None:
            words = event.args["words"]
            return words if leaf_hash(Kind.TENSOR, words) == node else None

        time = self.game.opened(self.job, Level.TENSOR, 0, node)
        return self.game.content("LeafOpened", self.job, time, check, node)


def _folded(kind: int, height: int, children: Sequence[bytes]) -> bytes:
    """What revealed children hash to; whatever else an endpoint shows in their place has no hash."""
    depth = tree_height(len(children))
    return fold(Kind(kind), children, depth, max(height - depth, 0))


class Viewer(Player):
    """A player that compares a claim with its own run."""

    @cached_property
    def openings(self) -> Openings:
        return Openings(self.game, self.id)

    def secret(self, what: bytes) -> bytes:
        """Derived from the wallet's key: unknown to others, and kept when a store is lost."""
        assert self.game.wallet is not None
        return hmac.digest(self.game.wallet.key, what + self.id, "sha256")


class Posted:
    """What the trainer has posted, by checkpoint or step, as one state has it."""

    def __init__(self, auditor: Viewer, level: Level) -> None:
        self.auditor, self.level = auditor, level
        self._posts: dict[int, Post] = {}

    def post(self, where: int) -> Post:
        if where not in self._posts:
            (self._posts[where],) = self.auditor.game.posts(self.auditor.id, self.level, [where])
        return self._posts[where]

    def __getitem__(self, where: int) -> bytes:
        post = self.post(where)
        if not post.at:
            raise NotYet(f"{self.level.name.lower()} {where} is not posted")
        self.auditor.openings.times[post.root] = post.at
        return post.root


class ClaimView:
    """The claim as the chain shows it now, beside the auditor's own run."""

    def __init__(self, auditor: Viewer, job: Job) -> None:
        self.auditor, self.job = auditor, job
        self.game, self.machine, self.id = auditor.game, auditor.machine, auditor.id
        self.checkpoints = job.checkpoints
        self._standings: list[Standing] | None = None
        self.segments, self.traces = Posted(auditor, Level.SEGMENT), Posted(auditor, Level.TRACE)

    @property
    def claim(self) -> str:
        """Job and run root, as stakes are remembered."""
        return f"{self.id.hex()} {self.job.run_root.hex()}"

    @property
    def standings(self) -> list[Standing]:
        if self._standings is None:  # a cached_property would hold a lock of all views while a node is waited for
            self._standings = self.auditor.standings(self.job)
        return self._standings

    @property
    def mine(self) -> list[tuple[int, Dispute]]:
        return [(s.number, s.dispute) for s in self.standings if s.dispute.auditor == self.auditor.address]

    @property
    def open_mine(self) -> list[Standing]:
        """Own disputes that have not ended."""
        return [s for s in self.standings if s.dispute.auditor == self.auditor.address and is_open(s)]

    @property
    def revealed(self) -> Openings:
        return self.auditor.openings

    def leaf(self, node: bytes) -> bytes:
        return self.auditor.openings.leaf(node)

    def partials(self, d: Dispute) -> list[bytes]:
        """The partial sums posted for the contested element, in whichever dispute that was."""
        (post,) = self.game.posts(self.id, Level.ELEMENT, [d.position])

        def check(event: Event) -> list[bytes] | None:
            partials = list(event.args["partials"])[: d.blocks]
            tree = Tree(Kind.PARTIAL, [leaf_hash(Kind.PARTIAL, p) for p in partials])
            return partials if len(partials) == d.blocks and tree.root == post.root else None

        return self.game.content("PartialsPosted", self.id, post.at, check, key=post.root)

    def where(self, d: Dispute) -> int:
        """Checkpoint or step of the tree in which the dispute began, while it is in that."""
        return d.step if d.level is Level.TRACE else d.step // self.machine.interval + 1

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
        elif d.entry is d.level:
            self.claimed_root(Entry(d.level, self.where(d)))  # perhaps it was posted with its children
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
        target = stop.operator if kind is Kind.TRACE else stop.element // LEAF_WORDS
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
            segment, log = self.segments[c], self.segments.post(c).log
        return self.job.diverged_at, segment, log

    def claimed(self, kind: Kind, root: bytes, own: Tree) -> ClaimedTree:
        return ClaimedTree(kind, root, own, self.revealed)

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
