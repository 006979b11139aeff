// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {Queue} from "./Queue.sol";

/// @title Types of the verification game (docs/protocol.md)
/// @notice Times are seconds, money is wei, roots are SHA-256.
interface IGameTypes {
    /// @notice The phase of a job.
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

    /// @notice The status of a dispute.
    enum Status {
        None,
        Open,
        Dismissed, // the word, partial sum or tensor that the auditor named is right
        Lapsed, // the auditor's clock ran out
        Won, // the trainer was convicted in this dispute
        Void // the trainer was convicted in another one: the bond went back
    }

    /// @notice The kind of a dispute's node: levels 1..5 are the kinds of trees (Merkle.sol), then the single word.
    enum Level {
        None,
        Run,
        Segment,
        State,
        Trace,
        Tensor,
        Element,
        Partial
    }

    /// @notice The cause of a dispute's end: a word or partial sum, a tie or padding, a clock.
    enum Cause {
        Element,
        Opening,
        Timeout
    }

    /// @notice The refused field of an order, or of a claim "diverged".
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
    /// @param depth maximum number of levels of one reveal
    /// @param mode rounding mode: 0 = correct; 26 to 32 = logged, with that many bits
    /// @param trainerBudget seconds of the trainer's clock per dispute
    /// @param auditorBudget seconds of the auditor's clock per dispute
    /// @param slot seconds added for each other duty that may come first in the trainer's queue
    /// @param reward paid to the trainer of a final claim
    /// @param divergedPay paid instead if the claim is "diverged"
    /// @param trainerBond at stake for the trainer: at least the reward
    /// @param auditorBond at stake for each auditor
    /// @param acceptWindow seconds from creation to acceptance
    /// @param claimWindow seconds from acceptance to the claim
    /// @param challengeWindow seconds from the claim in which it can be challenged
    /// @param confirmWindow seconds from finality to confirm or decline; 0: no delivery (docs/delivery.md)
    /// @param keyWindow seconds for the key, and for the answer to a request
    /// @param complaintWindow seconds from the key for complaints
    /// @param fee paid with each challenge beside the bond; burnt unless the claim is convicted on the dispute's path
    /// @param guardian account that is paid if the trainer is convicted while it has an open dispute; 0: no account
    /// @param trainer the only account that may accept; 0: any account
    struct JobSpec {
        bytes32 programRoot;
        bytes32 dataRoot;
        bytes32 initialRoot;
        bytes32 scalarRoot;
        uint64 seed;
        uint32 steps;
        uint32 interval;
        uint8 depth;
        uint8 mode;
        uint32 trainerBudget;
        uint32 auditorBudget;
        uint24 slot;
        uint128 reward;
        uint128 divergedPay;
        uint128 trainerBond;
        uint128 auditorBond;
        uint32 acceptWindow;
        uint32 claimWindow;
        uint32 challengeWindow;
        uint32 confirmWindow;
        uint32 keyWindow;
        uint32 complaintWindow;
        uint96 fee;
        address guardian;
        address trainer;
    }

    /// @notice Most moves read only the first word of a job.
    /// @param phase of the job
    /// @param states number of state tensors
    /// @param operators number of operators
    /// @param checkpoints number of leaves of the run tree
    /// @param divergedAt step that did not end finite; 0 under a claim "trained"
    /// @param disputes number of all disputes
    /// @param open number of open disputes
    /// @param queue the duties that disputes wait for
    /// @param depth the spec's
    /// @param slot the spec's
    /// @param guarded the guardian has challenged the claim
    /// @param client account that ordered and pays
    /// @param createdAt time of the order
    /// @param nonce the client's, part of the identity
    /// @param trainer account that accepted
    /// @param acceptedAt time of the acceptance
    /// @param claimedAt time of the claim
    /// @param guardianDispute the guardian's dispute, if `guarded`
    /// @param runRoot root over the checkpoints of the claim
    /// @param name given by the client, for display: UTF-8, padded with zeros
    struct Job {
        Phase phase;
        uint24 states;
        uint24 operators;
        uint32 checkpoints;
        uint32 divergedAt;
        uint32 disputes;
        uint32 open;
        Queue queue;
        uint8 depth;
        uint24 slot;
        bool guarded;
        address client;
        uint32 createdAt;
        uint64 nonce;
        address trainer;
        uint32 acceptedAt;
        uint32 claimedAt;
        uint32 guardianDispute;
        bytes32 runRoot;
        bytes32 name;
        JobSpec spec;
    }

    /// @notice Three words; `node` is contested by the auditor. From `level` to `index`: the position (Position.sol).
    /// @param part number of the partial sum; 0 above level Partial
    /// @param operator index of the operator with the contested output
    /// @param step step of the state or trace; in a segment the step of S_0
    /// @param index in its level of its tree; of an element or partial sum, the element
    /// @param turnAt time of the auditor's last move (32 bits last until 2106)
    /// @param others number of other duties of the claim in the queue at the auditor's last move
    /// @param entry level at which the challenge began
    /// @param finite every word of the contested output must be finite
    /// @param blocks number of partial sums of the element
    /// @param elements number of elements of the contested output
    /// @param word the claimed word of the contested element
    struct Dispute {
        bytes32 node;
        Level level;
        uint8 height;
        uint8 part;
        uint24 operator;
        uint32 step;
        uint40 index;
        uint32 turnAt;
        uint32 trainerLeft;
        uint32 auditorLeft;
        uint32 others;
        address auditor;
        Status status;
        Level entry;
        bool finite;
        uint8 blocks;
        uint32 elements;
        uint32 word;
    }

    /// @notice A dispute with its turn and deadline; turn, deadline and opening are 0 unless dispute and claim are
    /// open. If another dispute has decided the place, or an opening was late, a clock counts as run out before the
    /// deadline.
    /// @param openedAt time at which the awaited node or post was opened, maybe before the dispute began; 0: not yet
    struct Standing {
        Dispute dispute;
        Clock.Turn turn;
        uint64 deadline;
        uint32 openedAt;
    }

    /// @notice Place, cause and time of the trainer's conviction, and the account that receives the part of its bond
    /// that is not burnt.
    struct Verdict {
        Level level;
        uint8 height;
        uint8 part;
        uint24 operator;
        uint32 step;
        uint40 index;
        uint32 dispute;
        Cause cause;
        uint32 time;
        address winner;
    }

    /// @notice The post for a checkpoint interval, a step or an element.
    /// @param root of its tree; 0: no post
    /// @param log root of the interval's rounding log (mode `logged`)
    /// @param time of the post
    struct Post {
        bytes32 root;
        bytes32 log;
        uint32 time;
    }

    /// @notice Further data of the claim that a challenge depends on.
    /// @param divergedAt the claim's step of divergence; 0: a claim "trained"
    /// @param segment root posted for the interval, if the challenge begins at a trace; otherwise not read
    /// @param log root of the interval's log, if the challenge begins at a segment or trace in mode `logged`; otherwise
    /// not read
    struct Basis {
        uint32 divergedAt;
        bytes32 segment;
        bytes32 log;
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
    /// @param children first reveal below the segment root, without nodes that contain only padding
    /// @param firstPath from S_0 to the first child
    /// @param lastPath from S_n to the child above it
    /// @param logRoot mode `logged`: root of the interval's rounding log; otherwise not read
    struct SegmentPost {
        bytes32 state;
        bytes32 prior;
        bytes32[] priorPath;
        bytes32[] children;
        bytes32[] firstPath;
        bytes32[] lastPath;
        bytes32 logRoot;
    }

    /// @notice An operator record, a trace root and a word in it, for a claim "diverged". `logRoot`: root of the log
    /// from the last full checkpoint to this step (mode `logged`; otherwise not read).
    struct DivergedPost {
        uint32 step;
        bytes32 runRoot;
        bytes32 segmentRoot;
        bytes32 prior;
        bytes32[] priorPath;
        bytes32[] firstPath;
        bytes32 traceRoot;
        uint24 operator;
        Record record;
        bytes32[] tracePath;
        uint32 element;
        bytes words;
        bytes32[] tensorPath;
        bytes32 logRoot;
    }
}
