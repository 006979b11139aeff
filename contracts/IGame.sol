// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {IReferee} from "./IReferee.sol";

/// @title Types, events and errors of the verification game (docs/protocol.md)
/// @notice Times are seconds, money is wei, roots are SHA-256.
interface IGame {
    /// @notice Where a job stands.
    enum Phase {
        None,
        Created,
        Accepted,
        Claimed,
        Final,
        Convicted,
        Expired,
        Delivering, // final, with delivery: the client confirms, declines, requests; then the key is due
        Revealed, // the key is out: complaints
        Undelivered, // the trainer failed: refund, slash
        Declined
    }

    /// @notice Where a dispute stands.
    enum Status {
        None,
        Open,
        Dismissed,
        Won, // the trainer was convicted in this dispute
        Void // the trainer was convicted in another one: the bond went back
    }

    /// @notice What a dispute's node is: levels 1..5 are the kinds of trees (Merkle.sol), then the single word.
    enum Level {
        None,
        Run,
        Segment,
        State,
        Trace,
        Tensor,
        Element,
        Block
    }

    /// @notice What ended a dispute: a word or block, a tie or padding, a clock.
    enum Cause {
        Element,
        Opening,
        Timeout
    }

    /// @notice What of an order, or of a claim "diverged", is refused.
    enum Field {
        Program,
        Steps,
        Interval,
        Depth,
        Mode,
        Budget,
        Slot,
        DivergedPay,
        TrainerBond,
        AuditorBond,
        Window,
        Step
    }

    /// @param programRoot one training step
    /// @param dataRoot the data set
    /// @param initialRoot checkpoint 0
    /// @param scalarRoot values that change per step
    /// @param seed of the shuffle and of random words
    /// @param steps number of training steps
    /// @param interval steps between two checkpoints
    /// @param depth levels that one reveal goes down, at most
    /// @param mode rounding mode: 0 = correct; 26 to 32 = logged, so many bits
    /// @param trainerBudget seconds of the trainer's clock per dispute
    /// @param auditorBudget seconds of the auditor's clock per dispute
    /// @param slot seconds granted for each other duty that may be in front in the trainer's queue
    /// @param reward paid to the trainer of a final claim
    /// @param divergedPay paid instead if the claim is "diverged"
    /// @param trainerBond at stake for the trainer: the reward at least
    /// @param auditorBond at stake for each auditor
    /// @param acceptWindow seconds from creation to acceptance
    /// @param claimWindow seconds from acceptance to the claim
    /// @param challengeWindow seconds from the claim in which it can be challenged
    /// @param rewardWindow seconds after a conviction in which auditors show what they knew
    /// @param confirmWindow seconds from finality to confirm or decline; 0: no delivery (docs/delivery.md)
    /// @param keyWindow seconds for the key, and for the answer to a request
    /// @param complaintWindow seconds from the key for complaints
    /// @param fee paid with each challenge beside the bond; burnt unless the claim is convicted on the dispute's path
    /// @param guardian whose dispute is never out of pocket when the trainer is convicted; 0: nobody
    struct JobSpec {
        bytes32 programRoot;
        bytes32 dataRoot;
        bytes32 initialRoot;
        bytes32 scalarRoot;
        uint64 seed;
        uint40 steps;
        uint32 interval;
        uint8 depth;
        uint8 mode;
        uint32 trainerBudget;
        uint32 auditorBudget;
        uint32 slot;
        uint128 reward;
        uint128 divergedPay;
        uint128 trainerBond;
        uint128 auditorBond;
        uint32 acceptWindow;
        uint32 claimWindow;
        uint32 challengeWindow;
        uint32 rewardWindow;
        uint32 confirmWindow;
        uint32 keyWindow;
        uint32 complaintWindow;
        uint96 fee;
        address guardian;
    }

    /// @notice The first word is all that most moves read of a job.
    /// @param phase where the job stands
    /// @param states number of state tensors
    /// @param operators number of operators
    /// @param checkpoints number of leaves of the run tree
    /// @param divergedAt step that did not end finite; 0 under a claim "trained"
    /// @param since time of the last change of phase
    /// @param disputes how many were ever opened
    /// @param open how many are open
    /// @param queue distinct things that disputes wait for; with bit 23: number of the only open dispute, not marked
    /// @param depth the spec's
    /// @param slot the spec's
    /// @param client who ordered and pays
    /// @param trainer who accepted
    /// @param runRoot root over the checkpoints of the claim
    struct Job {
        Phase phase;
        uint24 states;
        uint24 operators;
        uint32 checkpoints;
        uint32 divergedAt;
        uint32 since;
        uint24 disputes;
        uint24 open;
        uint24 queue;
        uint8 depth;
        uint24 slot;
        address client;
        address trainer;
        bytes32 runRoot;
        JobSpec spec;
    }

    /// @notice Four words; `node` is contested by the auditor.
    /// @param step step of the state or trace; in a segment the step of S_0
    /// @param turnAt when the auditor last moved (32 bits last until 2106)
    /// @param others other things of the claim that disputes waited for when the auditor last moved
    /// @param moves moves of the auditor after its challenge, one a second; its own `prove` counts as four
    /// @param price lowest base fee at the challenge and the moves, in 16 bits: 5 of exponent, 11 of significand
    /// @param word the claimed word of the contested element
    /// @param blocks in how many blocks the element is decided
    struct Dispute {
        bytes32 node;
        Level level;
        uint8 height;
        uint40 index;
        uint32 step;
        uint24 operator;
        uint32 turnAt;
        uint32 trainerLeft;
        uint32 auditorLeft;
        uint24 others;
        uint8 moves;
        uint16 price;
        address auditor;
        Status status;
        Level entry;
        bool finite;
        uint8 blocks;
        uint32 elements;
        uint32 word;
        bytes32 commitment;
    }

    /// @notice A dispute, whose turn it is and until when; of a closed one turn and deadline are 0.
    struct Standing {
        Dispute dispute;
        Clock.Turn turn;
        uint256 deadline;
    }

    /// @notice Where and how the trainer was convicted.
    struct Verdict {
        Level level;
        uint8 height;
        uint48 index;
        uint40 step;
        uint24 operator;
        uint32 dispute;
        uint32 best; // earliest dispute that showed its knowledge, plus one
        bool paid;
        bool guarded; // the guardian has had its fee back
        Cause cause;
        uint128 pool; // what is left of the half of the trainer's bond that pays stipends and the reward
    }

    /// @notice A record of the program and its path (docs/formats.md section 3).
    struct Record {
        bytes header;
        bytes record;
        bytes32[] path;
    }

    /// @param state state root in the contested checkpoint
    /// @param prior state root of the checkpoint before (checkpoint 0: the initial state)
    /// @param priorPath its path in the run tree (empty for checkpoint 0); in mode `logged` it starts with the root of
    /// the log beside the state
    /// @param children first reveal below the segment root, without what is all padding
    /// @param firstPath from S_0 to the first child
    /// @param lastPath from S_n to the child above it
    /// @param logRoot mode `logged`: root of the interval's rounding log; else it is not read
    struct SegmentPost {
        bytes32 state;
        bytes32 prior;
        bytes32[] priorPath;
        bytes32[] children;
        bytes32[] firstPath;
        bytes32[] lastPath;
        bytes32 logRoot;
    }

    /// @notice An operator record, a trace root and a word in it, for a claim "diverged". `logRoot`: that of the log
    /// from the last full checkpoint to this step (mode `logged`; else it is not read).
    struct DivergedPost {
        uint40 step;
        bytes32 runRoot;
        bytes32 segmentRoot;
        bytes32 prior;
        bytes32[] priorPath;
        bytes32[] firstPath;
        bytes32 traceRoot;
        uint32 operator;
        Record record;
        bytes32[] tracePath;
        uint32 element;
        bytes words;
        bytes32[] tensorPath;
        bytes32 logRoot;
    }

    /// @notice What an auditor committed to, and the two nodes that differ.
    struct Knowledge {
        bytes32 salt;
        bytes32 ownRoot;
        bytes32 ownNode;
        bytes32[] ownPath;
        bytes32 theirNode;
        bytes32[] theirPath;
    }

    /// @notice An order, with everything that decides its bits and its money; `nonce` is part of the identity.
    event JobCreated(bytes32 indexed job, address indexed client, JobSpec spec, uint256 nonce);
    /// @notice The trainer has paid its bond; the time to claim runs.
    event JobAccepted(bytes32 indexed job, address indexed trainer);
    /// @notice `account` may answer for the trainer in disputes, or no longer.
    event DelegateSet(bytes32 indexed job, address indexed account, bool allowed);
    /// @notice The trainer says that it has trained; `divergedAt` is 0, or the step at which training ended.
    event ClaimPosted(bytes32 indexed job, bytes32 runRoot, bytes32 finalState, uint256 divergedAt);
    /// @notice A dispute begins in the tree `entry`; `where`: its checkpoint or step.
    event Challenged(bytes32 indexed job, uint256 indexed dispute, address indexed auditor, Level entry, uint256 where);
    /// @notice What is opened stands here, however the call was encoded: nobody has to decode calldata.
    event Revealed(bytes32 indexed job, bytes32 indexed node, uint256 kind, uint256 height, bytes32[] children);
    /// @notice The 512 bytes of a leaf of a tensor.
    event LeafOpened(bytes32 indexed job, bytes32 indexed node, bytes words);
    /// @notice The states of a checkpoint interval are committed to.
    event SegmentPosted(bytes32 indexed job, uint256 indexed checkpoint, bytes32 root);
    /// @notice The outputs of all operators of a step are committed to.
    event TracePosted(bytes32 indexed job, uint256 indexed step, bytes32 root);
    /// @notice The exact partial sums of an element that is decided in blocks.
    event PartialsPosted(bytes32 indexed job, uint256 indexed dispute, bytes[] partials);
    /// @notice The auditor contests `node`, at `index` and `height` in the tree of `level`.
    event Selected(
        bytes32 indexed job,
        uint256 indexed dispute,
        Level level,
        uint256 height,
        uint256 index,
        bytes32 node
    );
    /// @notice The contract has computed the word: `exact` is right, `claimed` was said.
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
    /// `part`: which one; `right`: it is what was claimed.
    event BlockAdjudicated(
        bytes32 indexed job,
        uint256 indexed dispute,
        uint256 step,
        uint256 operator,
        uint256 element,
        uint256 part,
        bool right
    );
    /// @notice The auditor has lost a dispute, and its bond.
    event Dismissed(bytes32 indexed job, uint256 indexed dispute, Cause cause);
    /// @notice The trainer has lost the job and its bond; `stipend`: wei for the gas of the moves.
    event Convicted(bytes32 indexed job, uint256 indexed dispute, Cause cause, uint256 stipend);
    /// @notice Nobody can contest the claim any more: the reward is paid, or delivery begins.
    event Finalized(bytes32 indexed job, bool diverged);
    /// @notice The trainer did not claim in time.
    event JobExpired(bytes32 indexed job);
    /// @notice The dispute's auditor has shown that it knew of the fraud.
    event Known(bytes32 indexed job, uint256 indexed dispute);
    /// @notice The rest of the half of the bond, for who knew first; to nobody where `auditor` is 0.
    event RewardPaid(bytes32 indexed job, address indexed auditor, uint256 amount);
    /// @notice An open dispute of a convicted job has its bond back.
    event Refunded(bytes32 indexed job, uint256 indexed dispute, uint256 fee, uint256 stipend);
    /// @notice Credits have left the contract.
    event Withdrawn(address indexed account, address recipient, uint256 amount);

    /// @notice The call does not belong to this phase of the job.
    error WrongPhase(Phase actual, Phase expected);
    /// @notice The call does not belong to where the dispute stands.
    error WrongLevel(Level level, uint256 height);
    /// @notice Wei that came with the call.
    error WrongValue(uint256 actual, uint256 expected);
    /// @notice A field of the order cannot be played.
    error BadSpec(Field field);
    /// @notice Two parts of the game decide by different machines.
    error ForeignReferee(address part, address referee);
    /// @notice The chain has no SHA-256 at 0x02.
    error NoSha256();
    /// @notice Only the game may run this code.
    error OnlyDelegated();
    /// @notice This client has ordered this with this nonce already.
    error JobExists(bytes32 job);
    /// @notice The time for the call begins at `from`.
    error TooEarly(uint256 now_, uint256 from);
    /// @notice The time for the call has ended at `until`.
    error TooLate(uint256 now_, uint256 until);
    /// @notice Only the trainer or a delegate may do that.
    error NotTrainer(address caller);
    /// @notice Only the dispute's auditor may do that.
    error NotAuditor(address caller);
    /// @notice The other side has to move, or a clock has run out.
    error NotYourTurn(Clock.Turn turn);
    /// @notice Neither clock of the dispute has run out.
    error NotExpired(Clock.Turn turn);
    /// @notice No dispute of the list can be ended.
    error NoneExpired();
    /// @notice The dispute has ended.
    error DisputeClosed(Status status);
    /// @notice Some disputes have not ended.
    error DisputesOpen(uint256 count);
    /// @notice What is named here cannot be wrong.
    error NothingToContest();
    /// @notice The witness leads to another hash.
    error BadProof(bytes32 actual, bytes32 expected);
    /// @notice The root that this needs is not posted.
    error NotPosted();
    /// @notice The element lies in another leaf.
    error ElementOutOfLeaf(uint256 element, uint256 leaf);
    /// @notice A leaf has 512 bytes.
    error LeafSize(uint256 actual);
    /// @notice A node is opened to so many children.
    error ChildCount(uint256 actual, uint256 expected);
    /// @notice The word that is to show divergence is finite.
    error StillFinite(uint32 word);
    /// @notice The element is one sum, without partial sums.
    error NotDecidedInBlocks();
    /// @notice The element is decided by its partial sums.
    error DecidedInBlocks(uint256 blocks);
    /// @notice The partial sums give another word than the one that was claimed.
    error NotTheClaimedSum(uint32 actual, uint32 claimed);
    /// @notice The state tensor comes from elsewhere.
    error WrongSource();
    /// @notice The dispute has no such right.
    error NotEligible();
    /// @notice The reward has been paid.
    error AlreadyPaid();
    /// @notice The account has no credits.
    error NothingToWithdraw();

    /// @notice What an account may withdraw.
    function credits(address account) external view returns (uint256);

    /// @notice Wei that nobody can withdraw any more.
    function burnt() external view returns (uint256);

    /// @notice The machine that knows programs and decides elements in mode `correct`, fixed at deployment.
    function referee() external view returns (IReferee);
}
