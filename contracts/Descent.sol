// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Merkle} from "./Merkle.sol";
import {Position} from "./Position.sol";
import {Turns} from "./Turns.sol";

/// @title The descent of a dispute through the trees: its entry, its next node, its end
abstract contract Descent is Turns {
    /// @dev Root, height and step of the tree at which a challenge begins.
    function _enter(
        bytes32 id,
        Job storage job,
        Level entry,
        uint256 where
    ) internal view returns (bytes32 root, uint8 height, uint32 step) {
        // SAFETY: only posted roots pass; heights are below 64, steps have 32 bits
        if (entry == Level.Run) {
            if (job.checkpoints == 0) revert NothingToContest();
            return (job.runRoot, uint8(Merkle.height(job.checkpoints)), 0);
        }
        if (entry != Level.Segment && entry != Level.Trace) revert WrongLevel(entry, 0);
        root = entry == Level.Segment ? _segments[id][where] : _traces[id][where];
        if (root == 0) revert NotPosted();
        if (entry == Level.Trace) return (root, uint8(Merkle.height(job.operators)), uint32(where));
        uint256 states = _segmentLength(job, where);
        if (states == 0) revert NothingToContest();
        return (root, uint8(Merkle.height(states + 1)), uint32((where - 1) * job.spec.interval));
    }

    /// @dev The words below a trace depend also on the segment, and in mode `logged` all words depend on the log.
    function _checkBasis(bytes32 id, Job storage job, Level entry, uint256 where, Basis calldata basis) internal view {
        if (basis.divergedAt != job.divergedAt) revert WrongDivergence(job.divergedAt, basis.divergedAt);
        if (entry == Level.Run) return;
        uint256 c = entry == Level.Segment ? where : (where - 1) / job.spec.interval + 1;
        if (entry == Level.Trace) _expect(basis.segment, _segments[id][c]);
        if (job.spec.mode != 0) _expect(basis.log, _logs[id][c]);
    }

    /// @dev The node of that height over all children of a reveal.
    function _parent(
        Job storage job,
        Level kind,
        uint256 height,
        bytes32[] calldata children
    ) internal view returns (bytes32) {
        uint256 expected = uint256(1) << Merkle.revealDepth(height, job.depth);
        if (children.length != expected) revert ChildCount(children.length, expected);
        return Merkle.foldOf(uint8(kind), children, 0);
    }

    /// @dev Reverts unless `prior` is the state before `step` in the posted segment.
    function _checkPrior(
        bytes32 id,
        Job storage job,
        uint256 step,
        bytes32 prior,
        bytes32[] calldata path
    ) internal view {
        uint256 c = (step - 1) / job.spec.interval + 1;
        uint256 index = (step - 1) % job.spec.interval;
        uint256 height = Merkle.height(_segmentLength(job, c) + 1);
        _expect(Merkle.pathRoot(Merkle.SEGMENT, prior, index, path, height), _segments[id][c]);
    }

    /// @dev INVARIANT I3, I7: the child lies exactly `revealDepth` levels below the contested node (or the root posted
    /// for it), inside it.
    function _descend(
        bytes32 id,
        Job storage job,
        Dispute storage d,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) internal view returns (Level kind, uint256 height, uint256 position) {
        bytes32 root = d.node;
        (kind, height, position) = (d.level, d.height, d.index);
        if (kind > Level.Tensor) revert WrongLevel(kind, height);
        if (height == 0 && kind == Level.Run) {
            (kind, root) = (Level.Segment, _segments[id][position + 1]);
            (height, position) = (Merkle.height(_segmentLength(job, position + 1) + 1), 0);
        } else if (height == 0 && kind == Level.Segment) {
            (kind, root, height, position) = (Level.Trace, _traces[id][_stepOf(d)], Merkle.height(job.operators), 0);
        } else if (height == 0 && kind != Level.Trace) {
            revert WrongLevel(kind, height);
        }
        // SAFETY: it is the auditor's turn, so the node was revealed; a post of a segment or trace also reveals its
        // root.
        uint256 depth = Merkle.revealDepth(height, job.depth);
        _expect(Merkle.pathRoot(uint8(kind), child, index, path, depth), root);
        (height, position) = (height - depth, (position << depth) | index);
    }

    /// @dev Number of leaves of the tree of a dispute; d still has its position before the move.
    function _leafCount(Job storage job, Dispute storage d, Level kind) internal view returns (uint256) {
        if (kind == Level.Run) return job.checkpoints;
        if (kind == Level.State) return job.states;
        if (kind == Level.Trace) return job.operators;
        if (kind == Level.Tensor) return _ceilDiv(d.elements, Merkle.LEAF_WORDS);
        uint256 c = d.level == Level.Run ? uint256(d.index) + 1 : uint256(d.step) / job.spec.interval + 1;
        return _segmentLength(job, c) + 1;
    }

    /// @dev Sets the step of a dispute that goes from a leaf of one tree into another tree.
    function _enterStep(Job storage job, Dispute storage d, Level kind) private {
        // SAFETY: a step of the claim, at most 2^32 - 1
        if (d.level == Level.Run && kind == Level.Segment) d.step = uint32(uint256(d.index) * job.spec.interval);
        else if (d.level == Level.Segment && kind != Level.Segment) d.step = uint32(_stepOf(d));
    }

    function _move(
        bytes32 id,
        Job storage job,
        uint256 n,
        Dispute storage d,
        bytes32 node,
        Level level,
        uint256 height,
        uint256 index
    ) internal {
        _enterStep(job, d, level);
        // SAFETY: trees have at most 40 levels: 2^32 words at most, 2^32 steps, 2^24 operators
        (d.node, d.level, d.height, d.index) = (node, level, uint8(height), uint40(index));
        _await(id, job, n, d);
        emit Selected(id, n, Position.current(d), node);
    }

    /// @dev The place of a conviction is the convicting node itself, not the node above it, which may contain other
    /// faults.
    function _convictAt(
        bytes32 id,
        Job storage job,
        uint256 n,
        Dispute storage d,
        Level level,
        uint256 height,
        uint256 index
    ) internal {
        _enterStep(job, d, level);
        // SAFETY: as in `_move`
        (d.level, d.height, d.index) = (level, uint8(height), uint40(index));
        _convict(id, job, n, d, Cause.Opening);
    }
}
