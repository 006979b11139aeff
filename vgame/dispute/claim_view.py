"""The claim as an auditor sees it: data from the chain, checked by hash, next to the auditor's own trees.

In: a job on chain, an auditor's machine. Out: the first difference, and the data that a move has to contain.
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
    """Starting point of a challenge: the run root, a posted segment (`where`: its checkpoint) or a posted trace
    (`where`: its step)."""

    level: Level
    where: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A contested node and its revealed children, which are at height `base`; the leftmost has index `first`."""

    kind: Kind
    base: int
    first: int
    children: Sequence[bytes]


class Openings:
    """Revealed nodes, read one by one at the time that the contract's state names, because any account may reveal any
    number of nodes."""

    def __init__(self, game: Game, job: bytes) -> None:
        self.game, self.job = game, job
        self.times: dict[bytes, int] = {}  # by root: the second of its post, which may contain its children
        self._children: dict[tuple[int, int, bytes], list[bytes]] = {}

    def get(self, key: tuple[int, int, bytes]) -> list[bytes] | None:
        """Children of (kind, height, node), if they were revealed."""
        if key not in self._children:
            kind, height, node = key
            time = self.game.opened(self.job, Level(kind), height, node) or self.times.get(node, 0)
            if not time:
                return None

            def check(event: Event) -> list[bytes] | None:
                # the hash does not contain the height, and any account may reveal the node at another height
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
    """Hash of the node with these children; other data from an endpoint cannot give the same hash."""
    depth = tree_height(len(children))
    return fold(Kind(kind), children, depth, max(height - depth, 0))


class Viewer(Player):
    """A player that compares a claim with its own run."""

    @cached_property
    def openings(self) -> Openings:
        return Openings(self.game, self.id)

    def secret(self, what: bytes) -> bytes:
        """A value derived from the wallet's key: unknown to others, and available again if the store is lost."""
        assert self.game.wallet is not None
        return hmac.digest(self.game.wallet.key, what + self.id, "sha256")


class Posted:
    """Roots that the trainer has posted, by checkpoint or step, in one state of the chain."""

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
    """The claim as the chain shows it now, next to the auditor's own run."""

    def __init__(self, auditor: Viewer, job: Job) -> None:
        self.auditor, self.job = auditor, job
        self.game, self.machine, self.id = auditor.game, auditor.machine, auditor.id
        self.checkpoints = job.checkpoints
        self._standings: list[Standing] | None = None
        self.segments, self.traces = Posted(auditor, Level.SEGMENT), Posted(auditor, Level.TRACE)

    @property
    def claim(self) -> str:
        """Job and run root: the key under which stakes are recorded."""
        return f"{self.id.hex()} {self.job.run_root.hex()}"

    @property
    def standings(self) -> list[Standing]:
        if self._standings is None:  # a cached_property would lock all views while it waits for an endpoint
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
        """The partial sums posted for the contested element, in any dispute."""
        (post,) = self.game.posts(self.id, Level.ELEMENT, [d.position])

        def check(event: Event) -> list[bytes] | None:
            partials = list(event.args["partials"])[: d.blocks]
            tree = Tree(Kind.PARTIAL, [leaf_hash(Kind.PARTIAL, p) for p in partials])
            return partials if len(partials) == d.blocks and tree.root == post.root else None

        return self.game.content("PartialsPosted", self.id, post.at, check, key=post.root)

    def where(self, d: Dispute) -> int:
        """Checkpoint or step of the tree in which the dispute began; valid while the dispute is in that tree."""
        return d.step if d.level is Level.TRACE else d.step // self.machine.interval + 1

    # ---- own trees, in the shape of the claim ----

    def known(self, kind: Kind, leaves: Sequence[bytes], count: int) -> Tree:
        """The own tree in the claim's shape. If the own run stopped earlier, the missing leaves are secret values,
        which no claim can contain."""
        return known_tree(kind, leaves, count, self.auditor.secret(b"vgame unknown"))

    @cached_property
    def own_run(self) -> Tree:
        roots, logs = self.machine.checkpoints, self.machine.logs
        leaves = map(run_leaf, roots) if logs is None else map(run_leaf, roots, logs)
        return self.known(Kind.RUN, list(leaves), self.checkpoints)

    def segment_length(self, c: int) -> int:
        """n for checkpoint c of the claim: its segment holds S_0..S_n."""
        end = self.job.diverged_at - 1 if self.job.diverged_at else self.machine.steps
        return min(end - (c - 1) * self.machine.interval, self.machine.interval)

    def own_segment(self, c: int) -> Tree:
        return self.known(Kind.SEGMENT, self.machine.segment(c), self.segment_length(c) + 1)

    def tree_at(self, d: Dispute, kind: Kind) -> Tree:
        """The own tree of the kind that the dispute enters next."""
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
        """The contested step; defined once the dispute has reached a leaf of a segment."""
        return d.step + (d.index if d.level is Level.SEGMENT else 0)

    def base(self, d: Dispute) -> Node:
        """The node whose children can be selected next. Twin: VerificationGame._descend."""
        kind, height, root, position = Kind(min(d.level, Level.TENSOR)), d.height, d.node, d.index
        if d.height == 0 and d.level is Level.RUN:
            c = d.index + 1
            kind, height, root, position = Kind.SEGMENT, tree_height(self.segment_length(c) + 1), self.segments[c], 0
        elif d.height == 0 and d.level is Level.SEGMENT:
            root = self.traces[self.step_of(d)]
            kind, height, position = Kind.TRACE, tree_height(self.machine.operators), 0
        elif d.entry is d.level:
            self.claimed_root(Entry(d.level, self.where(d)))  # records the time: the post may contain the children
        children = self.revealed[kind, height, root] if height else [root]
        span = tree_height(len(children))
        return Node(kind, height - span, position << span, children)

    # ---- differences between the claim and the own run ----

    def contradicts_segment(self, c: int, root: bytes) -> bool:
        return self.segment_length(c) > 0 and self.own_segment(c).root != root

    def contradicts_trace(self, step: int, root: bytes) -> bool:
        """Does the trace differ from the own one? Only if the own run has the state before the step, and so the
        operands."""
        segment = self.machine.segment((step - 1) // self.machine.interval + 1)
        reached = (step - 1) % self.machine.interval < len(segment)
        return reached and fold(Kind.TRACE, self.machine.trace(step), tree_height(self.machine.operators)) != root

    def contests_trace(self, d: Dispute) -> bool:
        """At a state that differs: is the trace wrong, or is the own run not finite at this step? If neither, the
        state does not follow from the trace."""
        step, stop = self.step_of(d), self.machine.stop
        return (stop is not None and step == stop.step) or self.contradicts_trace(step, self.traces[step])

    def first_difference(self, d: Dispute, node: Node) -> int:
        """Index of the first child that differs from the own tree. If none differs at the step where the own run
        stopped: the child that contains the word that is not finite."""
        kind, tree = node.kind, self.tree_at(d, node.kind)
        for i, theirs in enumerate(node.children):
            if theirs != tree.node(node.base, node.first + i):
                return i
        stop = self.machine.stop
        if stop is None or self.step_of(d) != stop.step or kind not in (Kind.TRACE, Kind.TENSOR):
            raise Abstain(f"the contested {kind.name} node equals the own one: nothing below it can be contested")
        target = stop.operator if kind is Kind.TRACE else stop.element // LEAF_WORDS
        return (target >> node.base) - node.first

    def first_word(self, d: Dispute, words: bytes) -> int:
        """The first word of the opened leaf that differs from the own one (padding is zero). If none differs: the word
        that must be finite and is not."""
        own = leaf_bytes(self.machine.words(d.step, d.operator), d.index)
        for i in range(LEAF_WORDS):
            if words[4 * i : 4 * i + 4] != own[4 * i : 4 * i + 4]:
                return d.index * LEAF_WORDS + i
        stop = self.machine.stop
        if stop and (stop.step, stop.operator, stop.element // LEAF_WORDS) == (d.step, d.operator, d.index):
            return stop.element
        raise Abstain("the contested leaf equals the own one: no word of it can be contested")

    # ---- the trainer's trees ----

    def claimed_root(self, entry: Entry) -> bytes:
        """The root on chain at which a challenge starts."""
        if entry.level is Level.RUN:
            return self.job.run_root
        return (self.segments if entry.level is Level.SEGMENT else self.traces)[entry.where]

    def basis(self, entry: Entry) -> tuple[int, bytes, bytes]:
        """struct Basis: the other data of the claim that a challenge depends on."""
        segment, log = bytes(32), bytes(32)
        if entry.level is not Level.RUN:
            c = entry.where if entry.level is Level.SEGMENT else (entry.where - 1) // self.machine.interval + 1
            segment, log = self.segments[c], self.segments.post(c).log
        return self.job.diverged_at, segment, log

    def claimed(self, kind: Kind, root: bytes, own: Tree) -> ClaimedTree:
        return ClaimedTree(kind, root, own, self.revealed)

    def check_place(self, d: Dispute) -> None:
        """Raises EndpointError unless the contested node is at the shown place in a tree below a root of the claim.
        Otherwise it would be compared with the wrong part of the own run, and a correct node could be contested."""
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
        if (claimed := tree.node(d.height, index)) != d.node:
            raise EndpointError(
                f"{self.game.chain.url} shows the contested node {d.node.hex()[:16]} at {d.level.name.lower()} "
                f"height {d.height}, index {index}, but the claim has {claimed.hex()[:16]} there: the reply is "
                "ignored; use another endpoint"
            )

    def claimed_trace(self, step: int) -> ClaimedTree:
        return self.claimed(Kind.TRACE, self.traces[step], Tree(Kind.TRACE, self.machine.trace(step)))

    def claimed_segment(self, c: int) -> ClaimedTree:
        return self.claimed(Kind.SEGMENT, self.segments[c], self.own_segment(c))
