// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {IGame} from "./IGame.sol";

/// @title Jobs, claims and money; implemented by `Settlement`
interface ISettlement is IGame {
    // ---- life of a job ----

    /// @notice Order a job; pays the reward. `name` is for display, `header` is the program's.
    function createJob(
        JobSpec calldata spec,
        uint64 nonce,
        bytes32 name,
        bytes calldata header
    ) external payable returns (bytes32 job);

    /// @notice Accept a job; pays the trainer's bond. If the order names its trainer, only that account can accept.
    function acceptJob(bytes32 job) external payable;

    /// @notice The trainer allows an account to answer for it in disputes (`postSegment`, `postTrace`, `postPartials`),
    /// or forbids it. A delegate has no other rights: it cannot claim, withdraw or name delegates. Its posts bind the
    /// trainer.
    function setDelegate(bytes32 job, address account, bool allowed) external;

    /// @notice Claim "trained". The path proves that the last checkpoint holds the announced final state; in mode
    /// `logged` it starts with the root of the log beside it. `cipherRoot` and `keyHash`: commitments for the delivery;
    /// both 0 in a job without delivery.
    function postClaim(
        bytes32 job,
        bytes32 runRoot,
        bytes32 finalState,
        bytes32[] calldata path,
        bytes32 cipherRoot,
        bytes32 keyHash
    ) external;

    /// @notice Claim "diverged": step `step` ended with a word that must be finite and is not.
    function postDiverged(bytes32 job, DivergedPost calldata post) external;

    /// @notice After a missed deadline of acceptance or claim: the reward goes back, and half of the bond of a trainer
    /// that did not claim goes to the client. Anyone.
    function expire(bytes32 job) external;

    /// @notice After the window, with no dispute open: the trainer is paid, or the delivery begins. Anyone.
    function finalize(bytes32 job) external;

    // ---- after a conviction ----

    /// @notice Return the bond of a dispute that was open when the trainer was convicted. The fee is returned too if
    /// the dispute's node contains the place of the conviction, and always to the guardian. Anyone.
    function refund(bytes32 job, uint256 dispute) external;

    /// @notice Pay the caller's credits to `recipient`, with at most 100,000 gas. If it refuses, nothing changes.
    function withdraw(address payable recipient) external;

    // ---- views ----

    /// @notice All fields of a job.
    function getJob(bytes32 job) external view returns (Job memory);
    /// @notice All fields of a dispute.
    function getDispute(bytes32 job, uint256 dispute) external view returns (Dispute memory);

    /// @notice Disputes from..from + count - 1, or up to the last one.
    function getDisputes(bytes32 job, uint256 from, uint256 count) external view returns (Standing[] memory);

    /// @notice Place and time of the trainer's conviction, and the account that receives the part of its bond that is
    /// not burnt; all 0 before a conviction.
    function getVerdict(bytes32 job) external view returns (Verdict memory);
    /// @notice The side to move, and the last second of its turn.
    function turn(bytes32 job, uint256 dispute) external view returns (Clock.Turn turn_, uint256 deadline);
    /// @notice Whether `account` may answer for the trainer.
    function isDelegate(bytes32 job, address account) external view returns (bool);
    /// @notice Posts and their times, for checkpoint intervals (kind Segment, `where`: checkpoints), steps (kind Trace)
    /// or elements that are decided in blocks (kind Element, `where`: positions).
    function getPosts(bytes32 job, Level kind, uint256[] calldata where) external view returns (Post[] memory);
    /// @notice Time at which a node was opened; 0: not yet.
    function opened(bytes32 job, Level kind, uint256 height, bytes32 node) external view returns (uint32 time);
    /// @notice A client's orders from..from + count - 1, or up to the last one, in their order; and the number of all.
    function ordersOf(
        address client,
        uint256 from,
        uint256 count
    ) external view returns (bytes32[] memory found, uint256 total);
    /// @notice The same for the claimed jobs of a program.
    function claimsOf(
        bytes32 programRoot,
        uint256 from,
        uint256 count
    ) external view returns (bytes32[] memory found, uint256 total);
}
