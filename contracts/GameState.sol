// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {IDelivery} from "./IDelivery.sol";
import {IReferee} from "./IReferee.sol";
import {IGame} from "./IGame.sol";
import {Merkle} from "./Merkle.sol";
import {Position} from "./Position.sol";
import {Queue} from "./Queue.sol";

/// @title Common base of the game's parts: storage, turns, small checks
/// @notice `VerificationGame` runs `Settlement` and `Delivery` by delegatecall, so all have exactly this storage.
abstract contract GameState is IGame {
    /// @dev Opening of a node, a segment, a trace or partial sums, or the decision of a place.
    /// @param time of the opening; 0: not yet
    /// @param awaited a dispute waits for it, and it is counted in the job's queue
    struct Opening {
        uint32 time;
        bool awaited;
    }

    /// @inheritdoc IGame
    IReferee public immutable override referee;

    mapping(bytes32 job => Job) internal _jobs;
    mapping(bytes32 job => mapping(uint256 dispute => Dispute)) internal _disputes;
    mapping(bytes32 job => Verdict) internal _verdicts;
    mapping(bytes32 job => mapping(uint256 checkpoint => bytes32)) internal _segments;
    mapping(bytes32 job => mapping(uint256 step => bytes32)) internal _traces;
    mapping(bytes32 key => Opening) internal _openings;
    mapping(bytes32 key => bytes32) internal _partials;
    /// @dev Mode `logged`: roots of the rounding logs of posted segments.
    mapping(bytes32 job => mapping(uint256 checkpoint => bytes32)) internal _logs;
    /// @dev Accounts that may answer for the trainer.
    mapping(bytes32 job => mapping(address account => bool)) internal _delegates;

    /// @inheritdoc IGame
    mapping(address account => uint256) public override credits;
    /// @inheritdoc IGame
    uint256 public override burnt;

    mapping(bytes32 job => IDelivery.Exchange) internal _exchanges;
    mapping(bytes32 job => IDelivery.Request[]) internal _requests;
    mapping(address client => bytes32[]) internal _orders;
    /// @dev Claimed jobs of a program root.
    mapping(bytes32 programRoot => bytes32[]) internal _claims;
    /// @dev Accounts that have disputed the claim.
    mapping(bytes32 job => mapping(address account => bool)) internal _disputed;

    constructor(IReferee referee_) {
        referee = referee_;
    }

    // ---- turns ----

    /// @dev Time of the opening that the dispute waits for; 0 if the trainer still owes it.
    function _openingOf(bytes32 id, Job storage job, Dispute storage d) internal view returns (uint32 openedAt) {
        (, openedAt) = _duty(id, job, d);
    }

    /// @dev Key of the opening that the dispute waits for, and its time; key 0 if no opening is needed.
    function _duty(
        bytes32 id,
        Job storage job,
        Dispute storage d
    ) internal view returns (bytes32 key, uint32 openedAt) {
        (Level level, uint256 height) = (d.level, d.height);
        if (height == 0 && level == Level.Trace) return (0, d.turnAt); // one operator: its output is the trace root
        if (d.index == 0 && level == d.entry) openedAt = _postOf(id, job, d);
        if (openedAt != 0) return (0, openedAt);
        // INVARIANT I13: by position. What is posted below a leaf can have been revealed long before it was posted for
        // this place.
        if (height == 0 && level == Level.Run) key = _segmentKey(id, uint256(d.index) + 1);
        else if (height == 0 && level == Level.Segment) key = _traceKey(id, _stepOf(d));
        else if (level >= Level.Element || (height == 0 && level == Level.State))
            key = _placeKey(id, Position.current(d));
        else key = _key(id, level, height, d.node);
        openedAt = _openings[key].time;
    }

    /// @dev Is the dispute at a word, a partial sum or a state tensor? A decision there holds for all disputes at the
    /// same place.
    function _isDecisive(Dispute storage d) internal view returns (bool) {
        return
            d.level == Level.Partial ||
            (d.level == Level.Element && d.blocks <= 1) ||
            (d.level == Level.State && d.height == 0);
    }

    /// @dev INVARIANT I5: an opening has one time. False if it was open before: for an honest player that is success.
    function _open(Job storage job, bytes32 key) internal returns (bool) {
        Opening memory opening = _openings[key];
        if (opening.time != 0) return false;
        if (opening.awaited) job.queue = job.queue.remove();
        _openings[key] = Opening(_now(), false);
        return true;
    }

    /// @dev Time of the post with the root at which a dispute began; 0 if that post did not reveal the root, or the
    /// dispute has left it.
    function _postOf(bytes32 id, Job storage job, Dispute storage d) private view returns (uint32) {
        if (d.level == Level.Segment) {
            uint256 c = uint256(d.step) / job.spec.interval + 1;
            return d.node == _segments[id][c] ? _openings[_segmentKey(id, c)].time : 0;
        }
        return d.level == Level.Trace && d.node == _traces[id][d.step] ? _openings[_traceKey(id, d.step)].time : 0;
    }

    /// @dev The step after which the state is the contested leaf of a segment.
    function _stepOf(Dispute storage d) internal view returns (uint256) {
        return uint256(d.step) + d.index;
    }

    function _clock(Job storage job, Dispute storage d) internal view returns (Clock.State memory) {
        return Clock.State(d.turnAt, uint256(d.others) * job.slot, d.trainerLeft, d.auditorLeft);
    }

    function _turn(bytes32 id, Job storage job, Dispute storage d) internal view returns (Clock.Turn) {
        return _turnAfter(d, _clock(job, d), _openingOf(id, job, d));
    }

    /// @dev The only classifier of turns, for views, moves and timeouts. If another dispute has decided the place
    /// against this auditor, the dispute can only be ended.
    function _turnAfter(
        Dispute storage d,
        Clock.State memory clock,
        uint256 openedAt
    ) internal view returns (Clock.Turn turn_) {
        turn_ = Clock.turn(clock, openedAt, block.timestamp);
        if (turn_ == Clock.Turn.Auditor && _isDecisive(d)) turn_ = Clock.Turn.AuditorExpired;
    }

    function _openDispute(bytes32 id, uint256 n) internal view returns (Job storage job, Dispute storage d) {
        job = _inPhase(id, Phase.Claimed);
        d = _disputes[id][n];
        if (d.status != Status.Open) revert DisputeClosed(d.status);
    }

    // ---- openings ----

    /// @dev `state` is checkpoint c of the claim; checkpoint 0 is the job's initial state.
    function _checkCheckpoint(Job storage job, uint256 c, bytes32 state, bytes32[] calldata path) internal view {
        if (c == 0) return _expect(state, job.spec.initialRoot);
        uint256 height = Merkle.height(job.checkpoints);
        _expect(_runRoot(job, c, state, path, height), job.runRoot);
    }

    /// @dev The run root computed from checkpoint c and its path. In mode `logged` a path from a state to the run root
    /// starts with the root of the log beside it.
    function _runRoot(
        Job storage job,
        uint256 c,
        bytes32 state,
        bytes32[] calldata path,
        uint256 height
    ) internal view returns (bytes32) {
        bytes32 log = Merkle.padding(Merkle.LOG, 0);
        if (job.spec.mode != 0) {
            if (path.length == 0) revert Merkle.PathLength(0, height + 1);
            (log, path) = (path[0], path[1:]);
        }
        return Merkle.pathRoot(Merkle.RUN, Merkle.runLeaf(state, log), c - 1, path, height);
    }

    // ---- small things ----

    function _inPhase(bytes32 id, Phase expected) internal view returns (Job storage job) {
        job = _jobs[id];
        if (job.phase != expected) revert WrongPhase(job.phase, expected);
    }

    /// @dev n for checkpoint c >= 1: its segment holds S_0..S_n. In a claim "diverged" the last segment ends before the
    /// step that diverged.
    function _segmentLength(Job storage job, uint256 c) internal view returns (uint256) {
        uint256 interval = job.spec.interval;
        uint256 end = job.divergedAt == 0 ? job.spec.steps : uint256(job.divergedAt) - 1;
        uint256 start = (c - 1) * interval;
        if (start >= end) return 0;
        return end - start < interval ? end - start : interval;
    }

    function _wordOf(bytes calldata words, uint256 element) internal pure returns (uint32) {
        if (words.length != Merkle.LEAF_BYTES) revert LeafSize(words.length);
        uint256 start = (element % Merkle.LEAF_WORDS) * 4;
        uint32 w = uint32(bytes4(words[start:start + 4]));
        return (w >> 24) | ((w >> 8) & 0xff00) | ((w << 8) & 0xff0000) | (w << 24);
    }

    function _isFinite(uint32 word) internal pure returns (bool) {
        return word & 0x7f800000 != 0x7f800000;
    }

    function _expect(bytes32 actual, bytes32 expected) internal pure {
        if (actual != expected) revert BadProof(actual, expected);
    }

    function _ceilDiv(uint256 a, uint256 b) internal pure returns (uint256) {
        return (a + b - 1) / b;
    }

    /// @dev ROUNDING: the odd wei is burnt.
    function _burnHalf(uint256 amount) internal returns (uint256 rest) {
        rest = amount / 2;
        burnt += amount - rest;
    }

    /// @dev SAFETY: 32 bits last until 2106.
    function _now() internal view returns (uint32) {
        return uint32(block.timestamp);
    }

    function _key(bytes32 id, Level kind, uint256 height, bytes32 node) internal pure returns (bytes32) {
        return keccak256(abi.encode(id, kind, height, node));
    }

    function _segmentKey(bytes32 id, uint256 checkpoint) internal pure returns (bytes32) {
        return keccak256(abi.encode("segment", id, checkpoint));
    }

    function _traceKey(bytes32 id, uint256 step) internal pure returns (bytes32) {
        return keccak256(abi.encode("trace", id, step));
    }

    /// @dev An element, a partial sum of it or a tensor of a state.
    function _placeKey(bytes32 id, uint256 position) internal pure returns (bytes32) {
        return keccak256(abi.encode("place", id, position));
    }
}
