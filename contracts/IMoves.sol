// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGame} from "./IGame.sol";
import {IElements} from "./IReferee.sol";

/// @title The moves of a dispute; implemented by `VerificationGame` itself
/// @notice `place` is the position of the dispute for which a move was chosen (Position.sol). If the dispute is at
/// another position, for example after a reorganisation, the move reverts (`Elsewhere`).
interface IMoves is IGame {
    /// @notice The machine that decides elements in mode `logged`, fixed at deployment; it names the game's referee.
    function logged() external view returns (IElements);

    /// @notice Dispute a claim, for the auditor's bond and the fee, at its run root (entry Run), a posted segment
    /// (where = checkpoint) or a posted trace (where = step). The call reverts if `root` or `basis` differs from the
    /// claim.
    /// @param root the claimed root that is disputed
    /// @param basis further data of the claim that the auditor's decision depends on
    function challenge(
        bytes32 job,
        Level entry,
        uint256 where,
        bytes32 root,
        Basis calldata basis
    ) external payable returns (uint256 dispute);

    /// @notice Open the descendants of a node, `revealDepth` levels below. Anyone; idempotent.
    function reveal(bytes32 job, Level kind, uint256 height, bytes32[] calldata children) external;

    /// @notice Open the 512 bytes of a tensor leaf. Anyone; idempotent.
    function openLeaf(bytes32 job, bytes calldata words) external;

    /// @notice The trainer posts the states between two checkpoints.
    function postSegment(bytes32 job, uint256 dispute, uint256 place, SegmentPost calldata post) external;

    /// @notice The trainer posts the operator outputs of the contested step: the first reveal below the root.
    function postTrace(bytes32 job, uint256 dispute, uint256 place, bytes32[] calldata children) external;

    /// @notice Show the trace leaf of the operator that computes the contested state tensor. If it equals the tensor,
    /// the dispute is dismissed; if not, the trainer is convicted.
    function tie(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        Record calldata source,
        bytes32 traceLeaf,
        bytes32[] calldata path
    ) external;

    /// @notice The same for a tensor that the program does not change: show it in the state before the step.
    function tieUnchanged(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        Record calldata source,
        bytes32 prior,
        bytes32[] calldata priorPath,
        bytes32 tensor,
        bytes32[] calldata path
    ) external;

    /// @notice Select one of the revealed nodes: its `index` among them, and its path to the contested node.
    function select(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) external;

    /// @notice After the post of the trace: contest not the trace, but that the contested state follows from it.
    function selectState(bytes32 job, uint256 dispute, uint256 place, bytes32 trace) external;

    /// @notice Select an operator's output, with the operator's record.
    function selectOperator(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path,
        Record calldata operator
    ) external;

    /// @notice Select a word of the opened leaf. A padding word that is not zero, or a word that must be finite and is
    /// not, convicts the trainer at once.
    function selectElement(bytes32 job, uint256 dispute, uint256 place, uint256 element, bytes calldata words) external;

    /// @notice The trainer posts the exact partial sums of a long sum; they must round to the claimed word. In mode
    /// `logged` one more item follows them: the proof of the element's log entry.
    function postPartials(bytes32 job, uint256 dispute, uint256 place, bytes[] calldata partials) external;

    /// @notice Select one partial sum.
    function selectPartial(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) external;

    /// @notice Make the referee compute the contested element (or partial sum). Anyone. `prior` opens the state before
    /// the step if the operator reads it.
    function prove(
        bytes32 job,
        uint256 dispute,
        uint256 place,
        bytes32 prior,
        bytes32[] calldata priorPath,
        bytes calldata proof
    ) external;

    /// @notice End a dispute whose clock has run out, or whose element, partial sum or tensor was decided in another
    /// dispute. Anyone.
    function timeout(bytes32 job, uint256 dispute) external;

    /// @notice End every dispute of the list whose clock has run out, up to one that convicts; other disputes are
    /// skipped. Anyone.
    function timeoutMany(bytes32 job, uint256[] calldata disputes) external;
}
