// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Clock} from "./Clock.sol";
import {GameState} from "./GameState.sol";
import {Position} from "./Position.sol";
import {Queue, aloneWith} from "./Queue.sol";

/// @title Begin and end of a move: turns, the trainer's queue, verdicts
abstract contract Turns is GameState {
    // ---- turns ----

    function _requireTurn(bytes32 id, Job storage job, Dispute storage d, Clock.Turn expected) internal view {
        Clock.Turn actual = _turn(id, job, d);
        if (actual != expected) revert NotYourTurn(actual);
    }

    /// @dev INVARIANT I15: a move counts only at the position that it was decided for.
    function _disputeAt(
        bytes32 id,
        uint256 n,
        uint256 place
    ) internal view returns (Job storage job, Dispute storage d) {
        (job, d) = _openDispute(id, n);
        uint256 position = Position.current(d);
        if (position != place) revert Elsewhere(position, place);
    }

    /// @dev The trainer's turn at a given level, height 0; anyone may move for it.
    function _trainersTurn(
        bytes32 id,
        uint256 n,
        uint256 place,
        Level level
    ) internal view returns (Job storage job, Dispute storage d) {
        (job, d) = _disputeAt(id, n, place);
        if (!Position.isLeaf(place, level)) revert WrongLevel(d.level, d.height);
        _requireTurn(id, job, d, Clock.Turn.Trainer);
    }

    /// @dev The same for commitments, which only the trainer or one of its delegates may make. Delegates are read
    /// nowhere else.
    function _trainerMoves(
        bytes32 id,
        uint256 n,
        uint256 place,
        Level level
    ) internal view returns (Job storage job, Dispute storage d) {
        (job, d) = _trainersTurn(id, n, place, level);
        if (msg.sender != job.trainer && !_delegates[id][msg.sender]) revert NotTrainer(msg.sender);
    }

    /// @dev INVARIANT I4: charges both clocks for the turn that ends, and starts the trainer's next one.
    function _auditorMoves(bytes32 id, uint256 n, uint256 place) internal returns (Job storage job, Dispute storage d) {
        (job, d) = _disputeAt(id, n, place);
        if (msg.sender != d.auditor) revert NotAuditor(msg.sender);
        Clock.State memory clock = _clock(job, d);
        uint256 openedAt = _openingOf(id, job, d);
        Clock.Turn turn_ = _turnAfter(d, clock, openedAt);
        if (turn_ != Clock.Turn.Auditor) revert NotYourTurn(turn_);
        // SAFETY: by the turn, neither has used more than it had.
        d.trainerLeft = uint32(clock.trainerLeft - Clock.trainerUsed(clock, openedAt));
        d.auditorLeft = uint32(clock.auditorLeft - Clock.auditorUsed(clock, openedAt, block.timestamp));
        d.turnAt = _now();
    }

    // ---- the trainer's queue ----

    /// @dev A dispute has reached a node: the trainer gets one slot for each other opening in the queue. The opening
    /// that a single open dispute waits for is marked only when a second dispute comes, which is rare.
    function _await(bytes32 id, Job storage job, uint256 n, Dispute storage d) internal {
        if (job.open == 1) {
            d.others = 0;
            if (!job.queue.isAlone() || job.queue.alone() != n) job.queue = aloneWith(n);
            return;
        }
        if (job.queue.isAlone()) {
            Dispute storage first = _disputes[id][job.queue.alone()];
            job.queue = Queue.wrap(0);
            _mark(id, job, first);
        }
        d.others = _mark(id, job, d) ? uint32(job.queue.count() - 1) : 0; // SAFETY: a queue has 32 bits
    }

    /// @dev Each opening counts once, for any number of waiting disputes, until it is made. False: it is already made.
    function _mark(bytes32 id, Job storage job, Dispute storage d) internal returns (bool) {
        (bytes32 key, uint32 openedAt) = _duty(id, job, d);
        if (openedAt != 0) return false;
        if (!_openings[key].awaited) {
            _openings[key].awaited = true;
            job.queue = job.queue.add();
        }
        return true;
    }

    // ---- verdicts ----

    /// @dev Why an auditor has no move left: its clock, or a decision at its place.
    function _causeOf(Dispute storage d) internal view returns (Cause) {
        if (!_isDecisive(d)) return Cause.Timeout;
        return d.level == Level.State ? Cause.Opening : Cause.Element;
    }

    /// @dev Decides a word, a partial sum or a tie. If it is right, it is right for every dispute at this place:
    /// `timeout` can now end each of them.
    function _decide(bytes32 id, Job storage job, uint256 n, Dispute storage d, bool right, Cause cause) internal {
        if (!right) return _convict(id, job, n, d, cause);
        bytes32 key = _placeKey(id, Position.current(d));
        if (_openings[key].awaited) _open(job, key); // true for every place with two waiting disputes
        _dismiss(id, job, n, d, cause);
    }

    function _dismiss(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) internal {
        d.status = cause == Cause.Timeout ? Status.Lapsed : Status.Dismissed;
        job.open--;
        credits[job.trainer] += _burnHalf(job.spec.auditorBond);
        burnt += job.spec.fee;
        emit Dismissed(id, n, cause);
    }

    /// @dev ROUNDING: the odd wei of the bond is burnt.
    function _convict(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) internal {
        d.status = Status.Won;
        job.open--;
        job.phase = Phase.Convicted;
        bool guardian = job.guarded && _disputes[id][job.guardianDispute].status == Status.Open;
        address winner = guardian ? job.spec.guardian : d.auditor;
        uint256 amount = _prize(job, cause);
        burnt += job.spec.trainerBond - amount;
        credits[winner] += amount;
        credits[d.auditor] += uint256(job.spec.auditorBond) + job.spec.fee;
        credits[job.client] += job.spec.reward;
        // SAFETY: n < 2^31 (`challenge`)
        _verdicts[id] = Verdict(
            d.level,
            d.height,
            d.part,
            d.operator,
            d.step,
            d.index,
            uint32(n),
            cause,
            _now(),
            winner
        );
        emit Convicted(id, n, cause, winner, amount);
    }

    /// @dev The winner's part of the bond: half, because an element or opening convicts no honest trainer. Others can
    /// delay a trainer until its clock runs out, so a timeout pays no more than an auditor's timeout pays the trainer.
    function _prize(Job storage job, Cause cause) private view returns (uint256 half) {
        half = job.spec.trainerBond / 2;
        if (cause == Cause.Timeout) half = Math.min(half, job.spec.auditorBond / 2);
    }
}
