// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {GameState} from "./GameState.sol";
import {IDelivery} from "./IDelivery.sol";
import {IReferee} from "./IReferee.sol";
import {ISettlement} from "./ISettlement.sol";
import {Merkle} from "./Merkle.sol";
import {Payout} from "./Payout.sol";
import {Places} from "./Places.sol";

/// @title Jobs, claims and money
/// @notice Runs inside `VerificationGame` by delegatecall; at its own address it accepts no order, so no game can be
/// played there.
contract Settlement is Places, ISettlement {
    /// @dev Lower bound of either side's gas in a dispute that reaches a word (docs/gas.json): no bond may be worth
    /// less than two such disputes.
    uint256 private constant DISPUTE_GAS = 250_000;

    address private immutable self = address(this);

    constructor(IReferee referee_) GameState(referee_) {}

    // ---- life of a job ----

    /// @inheritdoc ISettlement
    function createJob(
        JobSpec calldata spec,
        uint64 nonce,
        bytes32 name,
        bytes calldata header
    ) external payable returns (bytes32 id) {
        // at this address there are no disputes, so every claim would become final
        if (address(this) == self) revert OnlyDelegated();
        _checkSpec(spec);
        id = keccak256(abi.encode(spec, block.chainid, address(this), msg.sender, nonce));
        Job storage job = _jobs[id];
        if (job.phase != Phase.None) revert JobExists(id);
        if (msg.value != spec.reward) revert WrongValue(msg.value, spec.reward);
        (uint32 states, uint32 operators) = referee.program(spec.programRoot, header);
        if (states == 0 || states >> 24 != 0 || operators == 0 || operators >> 24 != 0) revert BadSpec(Field.Program);
        job.phase = Phase.Created;
        job.states = uint24(states);
        job.operators = uint24(operators);
        job.createdAt = _now();
        job.depth = spec.depth;
        job.slot = spec.slot;
        (job.client, job.nonce, job.name) = (msg.sender, nonce, name);
        job.spec = spec;
        _orders[msg.sender].push(id);
        emit JobCreated(id, msg.sender, spec, nonce, name);
    }

    function _checkSpec(JobSpec calldata spec) private view {
        if (spec.steps == 0) revert BadSpec(Field.Steps);
        if (spec.interval == 0) revert BadSpec(Field.Interval);
        if (spec.depth == 0 || spec.depth > 8) revert BadSpec(Field.Depth);
        if (spec.mode != 0 && (spec.mode < 26 || spec.mode > 32)) revert BadSpec(Field.Mode);
        if (spec.divergedPay > spec.reward) revert BadSpec(Field.DivergedPay);
        uint256 least = 2 * DISPUTE_GAS * block.basefee;
        if (spec.auditorBond == 0 || spec.auditorBond < least) revert BadSpec(Field.AuditorBond);
        if (spec.trainerBond == 0 || spec.trainerBond < least || spec.trainerBond < spec.reward) {
            revert BadSpec(Field.TrainerBond);
        }
        if (spec.acceptWindow == 0 || spec.claimWindow == 0 || spec.challengeWindow == 0) {
            revert BadSpec(Field.Window);
        }
        bool none = spec.confirmWindow == 0;
        if (none != (spec.keyWindow == 0) || none != (spec.complaintWindow == 0)) revert BadSpec(Field.Window);
        if (spec.slot == 0) revert BadSpec(Field.Slot);
        if (spec.trainerBudget < spec.slot || spec.auditorBudget == 0) revert BadSpec(Field.Budget);
    }

    /// @inheritdoc ISettlement
    function acceptJob(bytes32 id) external payable {
        Job storage job = _inPhase(id, Phase.Created);
        uint256 until = uint256(job.createdAt) + job.spec.acceptWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        address named = job.spec.trainer;
        if (named != address(0) && msg.sender != named) revert NotTrainer(msg.sender);
        if (msg.value != job.spec.trainerBond) revert WrongValue(msg.value, job.spec.trainerBond);
        job.phase = Phase.Accepted;
        job.trainer = msg.sender;
        job.acceptedAt = _now();
        emit JobAccepted(id, msg.sender);
    }

    /// @inheritdoc ISettlement
    function setDelegate(bytes32 id, address account, bool allowed) external {
        if (msg.sender != _jobs[id].trainer) revert NotTrainer(msg.sender);
        _delegates[id][account] = allowed;
        emit DelegateSet(id, account, allowed);
    }

    /// @inheritdoc ISettlement
    function postClaim(
        bytes32 id,
        bytes32 runRoot,
        bytes32 finalState,
        bytes32[] calldata path,
        bytes32 cipherRoot,
        bytes32 keyHash
    ) external {
        Job storage job = _claimable(id);
        uint256 count = _ceilDiv(job.spec.steps, job.spec.interval);
        _expect(_runRoot(job, count, finalState, path, Merkle.height(count)), runRoot);
        _claim(id, job, runRoot, count, 0);
        emit ClaimPosted(id, runRoot, finalState, 0);
        if (job.spec.confirmWindow == 0) {
            if (cipherRoot != 0 || keyHash != 0) revert IDelivery.NoDelivery();
            return;
        }
        if (cipherRoot == 0 || keyHash == 0) revert IDelivery.NoOffer();
        _exchanges[id].offer = keccak256(abi.encode(IDelivery.Offer(finalState, cipherRoot, keyHash)));
        emit IDelivery.Offered(id, finalState, cipherRoot, keyHash);
    }

    /// @inheritdoc ISettlement
    /// @dev The run tree ends with the last full checkpoint before the step, the segment with the state before it: no
    /// number is the trainer's choice.
    function postDiverged(bytes32 id, DivergedPost calldata post) external {
        Job storage job = _claimable(id);
        if (post.step == 0 || post.step > job.spec.steps) revert BadSpec(Field.Step);
        uint256 full = (post.step - 1) / job.spec.interval;
        uint256 last = (post.step - 1) % job.spec.interval;
        _claim(id, job, post.runRoot, full, post.step);
        if (full == 0) _expect(post.runRoot, Merkle.padding(Merkle.RUN, 0));
        _checkCheckpoint(job, full, post.prior, post.priorPath);
        uint256 height = Merkle.height(last + 1);
        _expect(Merkle.pathRoot(Merkle.SEGMENT, post.prior, 0, post.firstPath, height), post.segmentRoot);
        _segments[id][full + 1] = post.segmentRoot;
        _traces[id][post.step] = post.traceRoot;
        if (job.spec.mode != 0) _logs[id][full + 1] = post.logRoot;
        _checkNotFinite(job, post);
        emit ClaimPosted(id, post.runRoot, bytes32(0), post.step);
        emit SegmentPosted(id, full + 1, post.segmentRoot);
        emit TracePosted(id, post.step, post.traceRoot);
    }

    /// @dev Reverts unless the trace contains, at an operator that must be finite, a word that is not finite.
    function _checkNotFinite(Job storage job, DivergedPost calldata post) private view {
        (uint32 elements, bool finite, ) = referee.describe(
            job.spec.programRoot,
            post.operator,
            post.record.header,
            post.record.record,
            post.record.path
        );
        if (!finite || post.element >= elements) revert WrongSource();
        uint32 word = _wordOf(post.words, post.element);
        if (_isFinite(word)) revert StillFinite(word);
        bytes32 node = Merkle.leafOf(Merkle.TENSOR, post.words);
        uint256 leaf = post.element / Merkle.LEAF_WORDS;
        node = Merkle.pathRoot(Merkle.TENSOR, node, leaf, post.tensorPath, Merkle.tensorHeight(elements));
        uint256 height = Merkle.height(job.operators);
        _expect(Merkle.pathRoot(Merkle.TRACE, node, post.operator, post.tracePath, height), post.traceRoot);
    }

    function _claimable(bytes32 id) private view returns (Job storage job) {
        job = _inPhase(id, Phase.Accepted);
        if (msg.sender != job.trainer) revert NotTrainer(msg.sender);
        uint256 until = uint256(job.acceptedAt) + job.spec.claimWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
    }

    /// @dev SAFETY: there are at most 2^32 - 1 steps, and no more checkpoints than steps.
    function _claim(bytes32 id, Job storage job, bytes32 runRoot, uint256 checkpoints, uint32 divergedAt) private {
        job.phase = Phase.Claimed;
        job.claimedAt = _now();
        job.runRoot = runRoot;
        job.checkpoints = uint32(checkpoints);
        job.divergedAt = divergedAt;
        _claims[job.spec.programRoot].push(id);
    }

    /// @inheritdoc ISettlement
    function expire(bytes32 id) external {
        Job storage job = _jobs[id];
        bool created = job.phase == Phase.Created;
        if (!created && job.phase != Phase.Accepted) revert WrongPhase(job.phase, Phase.Accepted);
        uint256 until =
            created ? uint256(job.createdAt) + job.spec.acceptWindow : uint256(job.acceptedAt) + job.spec.claimWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        job.phase = Phase.Expired;
        credits[job.client] += job.spec.reward;
        if (!created) credits[job.client] += _burnHalf(job.spec.trainerBond);
        emit JobExpired(id);
    }

    /// @inheritdoc ISettlement
    function finalize(bytes32 id) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        uint256 until = uint256(job.claimedAt) + job.spec.challengeWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        // INVARIANT I6: no dispute is open.
        if (job.open != 0) revert DisputesOpen(job.open);
        if (job.divergedAt == 0 && job.spec.confirmWindow != 0) {
            job.phase = Phase.Delivering;
            _exchanges[id].until = uint40(block.timestamp + job.spec.confirmWindow); // SAFETY: less than 2^33
            emit IDelivery.DeliveryOpened(id, _exchanges[id].until);
            return;
        }
        job.phase = Phase.Final;
        uint256 pay = job.divergedAt == 0 ? job.spec.reward : job.spec.divergedPay;
        credits[job.trainer] += pay + job.spec.trainerBond;
        credits[job.client] += job.spec.reward - pay;
        emit Finalized(id, job.divergedAt != 0);
    }

    // ---- after a conviction ----

    /// @inheritdoc ISettlement
    function refund(bytes32 id, uint256 n) external {
        Job storage job = _inPhase(id, Phase.Convicted);
        Dispute storage d = _disputes[id][n];
        if (d.status != Status.Open) revert DisputeClosed(d.status);
        d.status = Status.Void;
        job.open--;
        uint256 fee = _feeBack(id, job, d) ? job.spec.fee : 0;
        burnt += job.spec.fee - fee;
        credits[d.auditor] += job.spec.auditorBond + fee;
        emit Refunded(id, n, fee);
    }

    /// @dev Is the fee returned? For the guardian's dispute, and if the dispute's node contains the place of the
    /// conviction. Not if it is below that place, because a claim "diverged" has trees that need not be opened.
    function _feeBack(bytes32 id, Job storage job, Dispute storage d) private view returns (bool) {
        if (d.auditor == job.spec.guardian) return true;
        return _contains(_placeOf(d), _placeOf(_verdicts[id]), job.spec.interval, _leaves(job, d));
    }

    /// @dev Number of leaves of a run or segment tree, without the data that a claim "diverged" posts after the last
    /// leaf. Other trees have no data after their leaves.
    function _leaves(Job storage job, Dispute storage d) private view returns (uint256) {
        if (d.level == Level.Run) return job.checkpoints;
        if (d.level != Level.Segment) return type(uint256).max;
        return _segmentLength(job, uint256(d.step) / job.spec.interval + 1) + 1;
    }

    /// @inheritdoc ISettlement
    function withdraw(address payable recipient) external {
        uint256 amount = credits[msg.sender];
        if (amount == 0) revert NothingToWithdraw();
        credits[msg.sender] = 0;
        emit Withdrawn(msg.sender, recipient, amount);
        if (!Payout.send(recipient, amount)) revert PaymentRefused(recipient);
    }

    // ---- views ----

    /// @inheritdoc ISettlement
    function getJob(bytes32 id) external view returns (Job memory) {
        return _jobs[id];
    }

    /// @inheritdoc ISettlement
    function getDispute(bytes32 id, uint256 n) external view returns (Dispute memory) {
        return _disputes[id][n];
    }

    /// @inheritdoc ISettlement
    function getDisputes(bytes32 id, uint256 from, uint256 count) external view returns (Standing[] memory found) {
        Job storage job = _jobs[id];
        uint256 rest = from < job.disputes ? job.disputes - from : 0;
        found = new Standing[](count < rest ? count : rest);
        for (uint256 i; i < found.length; ++i) {
            found[i] = _standing(id, job, _disputes[id][from + i]);
        }
    }

    /// @dev SAFETY: a deadline is a time, a grace of 56 bits and a clock of 32.
    function _standing(bytes32 id, Job storage job, Dispute storage d) private view returns (Standing memory found) {
        found.dispute = d;
        if (d.status != Status.Open || job.phase != Phase.Claimed) return found;
        found.openedAt = _openingOf(id, job, d);
        found.turn = _turn(id, job, d);
        found.deadline = uint64(Clock.deadline(_clock(job, d), found.openedAt));
    }

    /// @inheritdoc ISettlement
    function getVerdict(bytes32 id) external view returns (Verdict memory) {
        return _verdicts[id];
    }

    /// @inheritdoc ISettlement
    function turn(bytes32 id, uint256 n) external view returns (Clock.Turn, uint256) {
        (Job storage job, Dispute storage d) = _openDispute(id, n);
        Standing memory found = _standing(id, job, d);
        return (found.turn, found.deadline);
    }

    /// @inheritdoc ISettlement
    function isDelegate(bytes32 id, address account) external view returns (bool) {
        return _delegates[id][account];
    }

    /// @inheritdoc ISettlement
    function getPosts(bytes32 id, Level kind, uint256[] calldata where) external view returns (Post[] memory found) {
        if (kind != Level.Segment && kind != Level.Trace && kind != Level.Element) revert NothingPostedAt(kind);
        found = new Post[](where.length);
        for (uint256 i; i < where.length; ++i) {
            if (kind == Level.Segment) {
                bytes32 root = _segments[id][where[i]];
                found[i] = Post(root, _logs[id][where[i]], _openings[_segmentKey(id, where[i])].time);
            } else if (kind == Level.Trace) {
                found[i] = Post(_traces[id][where[i]], 0, _openings[_traceKey(id, where[i])].time);
            } else {
                bytes32 key = _placeKey(id, where[i]);
                found[i] = Post(_partials[key], 0, _openings[key].time);
            }
            // a claim "diverged" posts its last segment and trace with the claim
            if (found[i].root != 0 && found[i].time == 0) found[i].time = _jobs[id].claimedAt;
        }
    }

    /// @inheritdoc ISettlement
    function opened(bytes32 id, Level kind, uint256 height, bytes32 node) external view returns (uint32) {
        return _openings[_key(id, kind, height, node)].time;
    }

    /// @inheritdoc ISettlement
    function ordersOf(address client, uint256 from, uint256 count) external view returns (bytes32[] memory, uint256) {
        return _page(_orders[client], from, count);
    }

    /// @inheritdoc ISettlement
    function claimsOf(
        bytes32 programRoot,
        uint256 from,
        uint256 count
    ) external view returns (bytes32[] memory, uint256) {
        return _page(_claims[programRoot], from, count);
    }

    function _page(
        bytes32[] storage all,
        uint256 from,
        uint256 count
    ) private view returns (bytes32[] memory found, uint256 total) {
        total = all.length;
        uint256 rest = from < total ? total - from : 0;
        found = new bytes32[](count < rest ? count : rest);
        for (uint256 i; i < found.length; ++i) found[i] = all[from + i];
    }
}
