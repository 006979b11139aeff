// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The side to move, its deadline, and the time that a move costs (docs/protocol.md section 3)
/// @notice Pure. One classifier for views, moves and timeouts: a move in the second of the deadline is in time, a
/// timeout needs a later second.
library Clock {
    enum Turn {
        Trainer,
        Auditor,
        TrainerExpired,
        AuditorExpired
    }

    /// @param turnAt time of the auditor's last move
    /// @param grace seconds before the trainer's clock starts for this duty
    /// @param trainerLeft seconds that the trainer had when its turn began
    /// @param auditorLeft seconds that the auditor has
    struct State {
        uint256 turnAt;
        uint256 grace;
        uint256 trainerLeft;
        uint256 auditorLeft;
    }

    /// @notice Seconds charged to the trainer for an opening at `time`.
    function trainerUsed(State memory s, uint256 time) internal pure returns (uint256) {
        uint256 start = s.turnAt + s.grace;
        return time > start ? time - start : 0;
    }

    /// @notice Seconds charged to the auditor for a move at `time` after an opening at `openedAt`.
    function auditorUsed(State memory s, uint256 openedAt, uint256 time) internal pure returns (uint256) {
        uint256 start = openedAt > s.turnAt ? openedAt : s.turnAt;
        return time > start ? time - start : 0;
    }

    /// @notice The turn at `time`; `openedAt` is 0 while the trainer owes an opening. The trainer's overrun is tested
    /// first.
    function turn(State memory s, uint256 openedAt, uint256 time) internal pure returns (Turn) {
        if (trainerUsed(s, openedAt == 0 ? time : openedAt) > s.trainerLeft) return Turn.TrainerExpired;
        if (openedAt == 0) return Turn.Trainer;
        return auditorUsed(s, openedAt, time) > s.auditorLeft ? Turn.AuditorExpired : Turn.Auditor;
    }

    /// @notice Last second in which the side to move may move.
    function deadline(State memory s, uint256 openedAt) internal pure returns (uint256) {
        if (openedAt == 0) return s.turnAt + s.grace + s.trainerLeft;
        return (openedAt > s.turnAt ? openedAt : s.turnAt) + s.auditorLeft;
    }
}
