// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {GameState} from "./GameState.sol";

/// @title What moves begin and end with: whose turn it is, what the trainer waits for, verdicts
abstract contract Turns is GameState {
    /// @dev In a job's queue: the rest is the number of the only open dispute.
    uint24 private constant ALONE = 1 << 23;

    // ---- turns ----

    function _requireTurn(bytes32 id, Job storage job, Dispute storage d, Clock.Turn expected) internal view {
        Clock.Turn actual = _turn(id, job, d);
        if (actual != expected) revert NotYourTurn(actual);
    }

    /// @dev The trainer's turn at a given level, height 0; anyone may move for it.
    function _trainersTurn(
        bytes32 id,
        uint256 n,
        Level level
    ) internal view returns (Job storage job, Dispute storage d) {
        (job, d) = _openDispute(id, n);
        if (d.level != level || d.height != 0) revert WrongLevel(d.level, d.height);
        _requireTurn(id, job, d, Clock.Turn.Trainer);
    }

    /// @dev The same where only the trainer may commit to something, or a delegate of its: nothing else asks for
    /// delegates.
    function _trainerMoves(
        bytes32 id,
        uint256 n,
        Level level
    ) internal view returns (Job storage job, Dispute storage d) {
        (job, d) = _trainersTurn(id, n, level);
        if (msg.sender != job.trainer && !_delegates[id][msg.sender]) revert NotTrainer(msg.sender);
    }

    /// @dev INVARIANT I4: charges both clocks for the turn that ends, and starts the trainer's next one.
    function _auditorMoves(bytes32 id, uint256 n) internal returns (Job storage job, Dispute storage d) {
        (job, d) = _openDispute(id, n);
        if (msg.sender != d.auditor) revert NotAuditor(msg.sender);
        Clock.State memory clock = _clock(job, d);
        uint256 openedAt = _openingOf(id, job, d);
        Clock.Turn turn_ = Clock.turn(clock, openedAt, block.timestamp);
        if (turn_ != Clock.Turn.Auditor) revert NotYourTurn(turn_);
        d.trainerLeft = uint32(clock.trainerLeft - Clock.trainerUsed(clock, openedAt));
        d.auditorLeft = uint32(clock.auditorLeft - Clock.auditorUsed(clock, openedAt, block.timestamp));
        _countMoves(d, 1);
        d.turnAt = uint32(block.timestamp);
    }

    // ---- the trainer's queue ----

    /// @dev A dispute has come to a node: the trainer is given a slot for each other thing that disputes wait for. What
    /// the only open dispute waits for is marked when there is a second one, which is rare.
    function _await(bytes32 id, Job storage job, uint256 n, Dispute storage d) internal {
        if (job.open == 1) {
            d.others = 0;
            if (job.queue != (ALONE | uint24(n))) job.queue = ALONE | uint24(n);
            return;
        }
        if (job.queue & ALONE != 0) {
            Dispute storage first = _disputes[id][job.queue ^ ALONE];
            job.queue = 0;
            _mark(id, job, first);
        }
        d.others = _mark(id, job, d) ? job.queue - 1 : 0;
    }

    /// @dev Each thing counts once, however many disputes wait for it, until it is opened. False: it is open.
    function _mark(bytes32 id, Job storage job, Dispute storage d) internal returns (bool) {
        (bytes32 key, uint256 openedAt) = _duty(id, job, d);
        if (openedAt != 0) return false;
        if (_openedAt[key] != AWAITED) {
            _openedAt[key] = AWAITED;
            job.queue++;
        }
        return true;
    }

    // ---- verdicts ----

    /// @dev Why an auditor has no move left: its clock, or what was decided at its place.
    function _causeOf(Dispute storage d) internal view returns (Cause) {
        if (!_isDecisive(d)) return Cause.Timeout;
        return d.level == Level.State ? Cause.Opening : Cause.Element;
    }

    /// @dev A word, a block or a tie. What is right here is right for every dispute at this place: each can be ended by
    /// `timeout` now.
    function _decide(bytes32 id, Job storage job, uint256 n, Dispute storage d, bool right, Cause cause) internal {
        if (!right) return _convict(id, job, n, d, cause);
        bytes32 key = _placeKey(id, d);
        if (_openedAt[key] == AWAITED) _open(job, key); // every place is, that two disputes wait for
        _dismiss(id, job, n, d, cause);
    }

    function _dismiss(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) internal {
        d.status = Status.Dismissed;
        job.open--;
        credits[job.trainer] += _burnHalf(job.spec.auditorBond);
        burnt += job.spec.fee;
        emit Dismissed(id, n, cause);
    }

    function _convict(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) internal {
        d.status = Status.Won;
        job.open--;
        job.phase = Phase.Convicted;
        job.since = uint32(block.timestamp);
        uint256 pool = job.spec.trainerBond / 2;
        uint256 stipend = _stipend(d, pool);
        bool guarded = d.auditor == job.spec.guardian;
        _verdicts[id] = Verdict(
            d.level,
            d.height,
            d.index,
            d.step,
            d.operator,
            uint32(n),
            0,
            false,
            guarded,
            cause,
            uint128(pool - stipend)
        );
        credits[d.auditor] += uint256(job.spec.auditorBond) + job.spec.fee + stipend;
        credits[job.client] += job.spec.reward;
        emit Convicted(id, n, cause, stipend);
    }
}
