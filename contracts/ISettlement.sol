// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {IGame} from "./IGame.sol";

/// @title Jobs, claims and money; implemented by `Settlement`
interface ISettlement is IGame {
    // ---- life of a job ----

    /// @notice Order a job; pays the reward. `name` is for people, `header` is the program's.
    function createJob(
        JobSpec calldata spec,
        uint64 nonce,
        bytes32 name,
        bytes calldata header
    ) external payable returns (bytes32 job);

    /// @notice Take a job; pays the trainer's bond. Where the order names its trainer, that account alone.
    function acceptJob(bytes32 job) external payable;

    /// @notice The trainer lets an account answer for it in disputes (`postSegment`, `postTrace`, `postPartials`), or
    /// no longer. A delegate can do nothing else that strangers cannot: not claim, not withdraw, not name delegates.
    /// What it posts binds the trainer.
    function setDelegate(bytes32 job, address account, bool allowed) external;

    /// @notice Claim "trained". The path proves that the last checkpoint holds the announced final state; in mode
    /// `logged` it starts with the root of the log beside it. `cipherRoot` and `keyHash`: what the client will receive;
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

    /// @notice Return the bond of a dispute that was open when the trainer was convicted. The fee too where its node
    /// contains the place of the conviction, and to the guardian. Anyone.
    function refund(bytes32 job, uint256 dispute) external;

    /// @notice Have one's credits paid to `recipient`, with at most 100,000 gas. If it is refused nothing changes.
    function withdraw(address payable recipient) external;

    // ---- views ----

    /// @notice The job, all of it.
    function getJob(bytes32 job) external view returns (Job memory);
    /// @notice The dispute, all of it.
    function getDispute(bytes32 job, uint256 dispute) external view returns (Dispute memory);

    /// @notice Disputes from..from + count - 1, as far as there are so many.
    function getDisputes(bytes32 job, uint256 from, uint256 count) external view returns (Standing[] memory);

    /// @notice Where and when the trainer was convicted, and who has what is not burnt of its bond; all 0 before.
    function getVerdict(bytes32 job) external view returns (Verdict memory);
    /// @notice Whose turn it is, and the second in which it ends.
    function turn(bytes32 job, uint256 dispute) external view returns (Clock.Turn turn_, uint256 deadline);
    /// @notice Whether `account` may answer for the trainer.
    function isDelegate(bytes32 job, address account) external view returns (bool);
    /// @notice What was posted, and when, for checkpoint intervals (kind Segment, `where`: checkpoints), steps (kind
    /// Trace) or elements that are decided in blocks (kind Element, `where`: positions).
    function getPosts(bytes32 job, Level kind, uint256[] calldata where) external view returns (Post[] memory);
    /// @notice When a node was opened; 0: not yet.
    function opened(bytes32 job, Level kind, uint256 height, bytes32 node) external view returns (uint32 time);
    /// @notice A client's orders from..from + count - 1, in their order, as far as there are so many; and their number.
    function ordersOf(
        address client,
        uint256 from,
        uint256 count
    ) external view returns (bytes32[] memory found, uint256 total);
    /// @notice The same of the claimed jobs of a program.
    function claimsOf(
        bytes32 programRoot,
        uint256 from,
        uint256 count
    ) external view returns (bytes32[] memory found, uint256 total);
}
