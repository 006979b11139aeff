// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {IGameTypes} from "./IGameTypes.sol";
import {IReferee} from "./IReferee.sol";

/// @title Events and errors of the verification game (docs/protocol.md)
interface IGame is IGameTypes {
    /// @notice An order, with everything that decides its bits and its money; `nonce` is part of the identity, `name`
    /// is not.
    event JobCreated(bytes32 indexed job, address indexed client, JobSpec spec, uint64 nonce, bytes32 name);
    /// @notice The trainer has paid its bond; the claim window begins.
    event JobAccepted(bytes32 indexed job, address indexed trainer);
    /// @notice `account` may answer for the trainer in disputes, or may no longer do so.
    event DelegateSet(bytes32 indexed job, address indexed account, bool allowed);
    /// @notice The trainer claims the result of the training; `divergedAt` is 0, or the step that diverged.
    event ClaimPosted(bytes32 indexed job, bytes32 runRoot, bytes32 finalState, uint256 divergedAt);
    /// @notice A dispute begins in the tree `entry`; `where`: its checkpoint or step.
    event Challenged(bytes32 indexed job, uint256 indexed dispute, address indexed auditor, Level entry, uint256 where);
    /// @notice The children of an opened node, for any encoding of the call: readers need not decode calldata.
    event Revealed(bytes32 indexed job, bytes32 indexed node, uint256 kind, uint256 height, bytes32[] children);
    /// @notice The 512 bytes of a leaf of a tensor.
    event LeafOpened(bytes32 indexed job, bytes32 indexed node, bytes words);
    /// @notice The trainer has committed to the states of a checkpoint interval.
    event SegmentPosted(bytes32 indexed job, uint256 indexed checkpoint, bytes32 root);
    /// @notice The trainer has committed to the outputs of all operators of a step.
    event TracePosted(bytes32 indexed job, uint256 indexed step, bytes32 root);
    /// @notice The exact partial sums of an element that is decided in blocks.
    event PartialsPosted(bytes32 indexed job, uint256 indexed dispute, bytes[] partials);
    /// @notice The auditor contests `node`, at a position (Position.sol).
    event Selected(bytes32 indexed job, uint256 indexed dispute, uint256 place, bytes32 node);
    /// @notice The contract has computed the word: `exact` is the right word, `claimed` the trainer's.
    event Adjudicated(
        bytes32 indexed job,
        uint256 indexed dispute,
        uint256 step,
        uint256 operator,
        uint256 element,
        uint32 claimed,
        uint32 exact
    );
    /// @notice The word was decided by one of its exact partial sums, so the contract has not computed its bits.
    /// `part`: number of the partial sum; `right`: it equals the claimed one.
    event PartialAdjudicated(
        bytes32 indexed job,
        uint256 indexed dispute,
        uint256 step,
        uint256 operator,
        uint256 element,
        uint256 part,
        bool right
    );
    /// @notice The auditor has lost a dispute and its bond: half goes to the trainer, the rest and the fee are burnt.
    event Dismissed(bytes32 indexed job, uint256 indexed dispute, Cause cause);
    /// @notice The trainer has lost the job and its bond; `amount`: the winner's part of the bond.
    event Convicted(bytes32 indexed job, uint256 indexed dispute, Cause cause, address winner, uint256 amount);
    /// @notice The claim is final, and has no delivery: the reward is paid.
    event Finalized(bytes32 indexed job, bool diverged);
    /// @notice The order was not accepted in time, or the trainer did not claim in time.
    event JobExpired(bytes32 indexed job);
    /// @notice An open dispute of a convicted job has its bond back, and `fee` of its fee; the rest is burnt.
    event Refunded(bytes32 indexed job, uint256 indexed dispute, uint256 fee);
    /// @notice Credits have left the contract.
    event Withdrawn(address indexed account, address recipient, uint256 amount);

    /// @notice The call needs the phase `expected`; if several phases allow it, the last of them.
    error WrongPhase(Phase actual, Phase expected);
    /// @notice The move names another position than the dispute's (Position.sol).
    error Elsewhere(uint256 actual, uint256 expected);
    /// @notice The claim is "trained" (0), or names another step of divergence.
    error WrongDivergence(uint256 actual, uint256 expected);
    /// @notice The call does not fit the dispute's level and height.
    error WrongLevel(Level level, uint256 height);
    /// @notice The call has a wrong value, in wei.
    error WrongValue(uint256 actual, uint256 expected);
    /// @notice A field of the order, or the step of a claim "diverged", cannot be played.
    error BadSpec(Field field);
    /// @notice The part names another referee than the game's.
    error ForeignReferee(address part, address referee);
    /// @notice The chain has no SHA-256 at 0x02.
    error NoSha256();
    /// @notice Only the game may run this code.
    error OnlyDelegated();
    /// @notice This client has already placed this order with this nonce.
    error JobExists(bytes32 job);
    /// @notice The time for the call begins at `from`.
    error TooEarly(uint256 now_, uint256 from);
    /// @notice The time for the call has ended at `until`.
    error TooLate(uint256 now_, uint256 until);
    /// @notice Only the trainer may make this call. `acceptJob`: only the trainer in the order; posts: also a delegate.
    error NotTrainer(address caller);
    /// @notice Only the dispute's auditor may make this call.
    error NotAuditor(address caller);
    /// @notice The claim has had 2^31 disputes.
    error TooManyDisputes();
    /// @notice The account has disputed this claim before.
    error AlreadyDisputed();
    /// @notice It is the other side's turn, or a clock has run out.
    error NotYourTurn(Clock.Turn turn);
    /// @notice Neither clock of the dispute has run out.
    error NotExpired(Clock.Turn turn);
    /// @notice No dispute of the list can be ended.
    error NoneExpired();
    /// @notice The dispute has ended.
    error DisputeClosed(Status status);
    /// @notice Some disputes have not ended.
    error DisputesOpen(uint256 count);
    /// @notice The selected node or word cannot be wrong.
    error NothingToContest();
    /// @notice The witness, or the root or offer in the call, differs from the stored one.
    error BadProof(bytes32 actual, bytes32 expected);
    /// @notice The call needs a root that is not posted.
    error NotPosted();
    /// @notice The element is in another leaf.
    error ElementOutOfLeaf(uint256 element, uint256 leaf);
    /// @notice A leaf has 512 bytes.
    error LeafSize(uint256 actual);
    /// @notice Wrong number of children of a node, or of partial sums of a sum.
    error ChildCount(uint256 actual, uint256 expected);
    /// @notice The word that should prove divergence is finite.
    error StillFinite(uint32 word);
    /// @notice The element is one sum, without partial sums.
    error NotDecidedInBlocks();
    /// @notice The element is decided by its partial sums.
    error DecidedInBlocks(uint256 blocks);
    /// @notice The partial sums do not give the claimed word.
    error NotTheClaimedSum(uint32 actual, uint32 claimed);
    /// @notice The record does not fit the call: `tie` needs a computed tensor, `tieUnchanged` one that the program
    /// does not change, a claim "diverged" an operator that must be finite, and one of its elements.
    error WrongSource();
    /// @notice Only segments, traces and elements (their partial sums) are posted.
    error NothingPostedAt(Level kind);
    /// @notice The account has no credits.
    error NothingToWithdraw();
    /// @notice The recipient does not accept the money; the credits are kept.
    error PaymentRefused(address recipient);

    /// @notice Wei that an account may withdraw.
    function credits(address account) external view returns (uint256);

    /// @notice Wei that no account can withdraw.
    function burnt() external view returns (uint256);

    /// @notice The machine that knows programs and decides elements in mode `correct`, fixed at deployment.
    function referee() external view returns (IReferee);
}
