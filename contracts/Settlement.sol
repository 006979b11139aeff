// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {Clock} from "./Clock.sol";
import {GameState} from "./GameState.sol";
import {IDelivery} from "./IDelivery.sol";
import {IReferee} from "./IReferee.sol";
import {ISettlement} from "./ISettlement.sol";
import {Merkle} from "./Merkle.sol";
import {Places} from "./Places.sol";

/// @title Jobs, claims and money
/// @notice Runs inside `VerificationGame` by delegatecall; at its own address it takes no order, so nothing can be
/// played there.
contract Settlement is Places, ISettlement {
    /// @dev Less than any dispute that reaches a word costs either side (docs/gas.json): no bond may be worth less than
    /// two of them.
    uint256 private constant DISPUTE_GAS = 250_000;

    address private immutable self = address(this);

    /// @notice Code of the exchange of the trained state for the reward.
    address public immutable delivery;

    constructor(IReferee referee_, address delivery_) GameState(referee_) {
        IReferee other = ISettlement(delivery_).referee();
        if (other != referee_) revert ForeignReferee(delivery_, address(other));
        delivery = delivery_;
    }

    /// @dev Everything in IDelivery. As in `VerificationGame`, the target is fixed for ever.
    fallback() external payable {
        address target = delivery;
        assembly ("memory-safe") {
            let p := mload(0x40)
            calldatacopy(p, 0, calldatasize())
            let ok := delegatecall(gas(), target, p, calldatasize(), 0, 0)
            returndatacopy(p, 0, returndatasize())
            if iszero(ok) {
                revert(p, returndatasize())
            }
            return(p, returndatasize())
        }
    }

    // ---- life of a job ----

    /// @inheritdoc ISettlement
    function createJob(
        JobSpec calldata spec,
        uint256 nonce,
        bytes calldata header
    ) external payable returns (bytes32 id) {
        // there are no disputes here, so any claim would become final
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
        job.since = uint32(block.timestamp);
        job.depth = spec.depth;
        job.slot = uint24(spec.slot);
        job.client = msg.sender;
        job.spec = spec;
        emit JobCreated(id, msg.sender, spec, nonce);
    }

    function _checkSpec(JobSpec calldata spec) private view {
        if (spec.steps == 0 || spec.steps > type(uint32).max) revert BadSpec(Field.Steps);
        if (spec.interval == 0) revert BadSpec(Field.Interval);
        if (spec.slot > type(uint24).max) revert BadSpec(Field.Slot);
        if (spec.depth == 0 || spec.depth > 8) revert BadSpec(Field.Depth);
        if (spec.mode != 0 && (spec.mode < 26 || spec.mode > 32)) revert BadSpec(Field.Mode);
        if (spec.divergedPay > spec.reward) revert BadSpec(Field.DivergedPay);
        uint256 least = 2 * DISPUTE_GAS * block.basefee;
        if (spec.auditorBond == 0 || spec.auditorBond < least) revert BadSpec(Field.AuditorBond);
        if (spec.trainerBond == 0 || spec.trainerBond < least || spec.trainerBond < spec.reward) {
            revert BadSpec(Field.TrainerBond);
        }
        if (spec.acceptWindow == 0 || spec.claimWindow == 0 || spec.challengeWindow == 0 || spec.rewardWindow == 0) {
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
        uint256 until = uint256(job.since) + job.spec.acceptWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        if (msg.value != job.spec.trainerBond) revert WrongValue(msg.value, job.spec.trainerBond);
        job.phase = Phase.Accepted;
        job.trainer = msg.sender;
        job.since = uint32(block.timestamp);
        emit JobAccepted(id, msg.sender);
    }

    /// @inheritdoc ISettlement
    function setDelegate(bytes32 id, address account, bool allowed) external {
        if (msg.sender != _jobs[id].trainer) revert NotTrainer(msg.sender);
        _delegates[id][account] = allowed;
        emit DelegateSet(id, account, allowed);
    }

    /// @inheritdoc ISettlement
    function postClaim(bytes32 id, bytes32 runRoot, bytes32 finalState, bytes32[] calldata path) external {
        Job storage job = _claimable(id);
        if (job.spec.confirmWindow != 0 && _exchanges[id].offer == 0) revert IDelivery.NoOffer();
        uint256 count = _ceilDiv(job.spec.steps, job.spec.interval);
        _expect(_runRoot(job, count, finalState, path, Merkle.height(count)), runRoot);
        _claim(job, runRoot, count, 0);
        emit ClaimPosted(id, runRoot, finalState, 0);
    }

    /// @inheritdoc ISettlement
    /// @dev The run tree ends with the last full checkpoint before the step, the segment with the state before it: no
    /// number is the trainer's choice.
    function postDiverged(bytes32 id, DivergedPost calldata post) external {
        Job storage job = _claimable(id);
        if (post.step == 0 || post.step > job.spec.steps) revert BadSpec(Field.Step);
        uint256 full = (post.step - 1) / job.spec.interval;
        uint256 last = (post.step - 1) % job.spec.interval;
        _claim(job, post.runRoot, full, post.step);
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

    /// @dev The trace holds, at an operator that must be finite, a word that is not.
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
        uint256 until = uint256(job.since) + job.spec.claimWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
    }

    function _claim(Job storage job, bytes32 runRoot, uint256 checkpoints, uint256 divergedAt) private {
        job.phase = Phase.Claimed;
        job.since = uint32(block.timestamp);
        job.runRoot = runRoot;
        job.checkpoints = uint32(checkpoints);
        job.divergedAt = uint32(divergedAt);
    }

    /// @inheritdoc ISettlement
    function expire(bytes32 id) external {
        Job storage job = _jobs[id];
        bool created = job.phase == Phase.Created;
        if (!created && job.phase != Phase.Accepted) revert WrongPhase(job.phase, Phase.Accepted);
        uint256 until = uint256(job.since) + (created ? job.spec.acceptWindow : job.spec.claimWindow);
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        job.phase = Phase.Expired;
        credits[job.client] += job.spec.reward;
        if (!created) credits[job.client] += _burnHalf(job.spec.trainerBond);
        emit JobExpired(id);
    }

    /// @inheritdoc ISettlement
    function finalize(bytes32 id) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        uint256 until = uint256(job.since) + job.spec.challengeWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        // INVARIANT I6: no dispute is open.
        if (job.open != 0) revert DisputesOpen(job.open);
        if (job.divergedAt == 0 && job.spec.confirmWindow != 0) {
            job.phase = Phase.Delivering;
            _exchanges[id].until = uint40(block.timestamp + job.spec.confirmWindow);
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
        (uint256 fee, uint256 stipend) = _due(id, job, d);
        burnt += job.spec.fee - fee;
        credits[d.auditor] += job.spec.auditorBond + fee + stipend;
        emit Refunded(id, n, fee, stipend);
    }

    /// @dev The fee, where the dispute's node contains the conviction: not where it lies below, for a claim "diverged"
    /// has trees that nobody had to open. Who named nothing has it back if nothing could be named: else each idle
    /// dispute would be a free guess at what `proveKnowledge` asks. The guardian has fee and stipend once, wherever the
    /// trainer was convicted. Nobody else here has a stipend: a crowd could share its transactions.
    function _due(bytes32 id, Job storage job, Dispute storage d) private returns (uint256 fee, uint256 stipend) {
        Verdict storage v = _verdicts[id];
        fee = job.spec.fee;
        if (d.auditor == job.spec.guardian && !v.guarded) {
            v.guarded = true;
            if (v.paid) return (fee, 0);
            stipend = _stipend(d, v.pool);
            v.pool -= uint128(stipend);
        } else if (d.moves == 0) {
            if (_openingOf(id, job, d) != 0) fee = 0;
        } else if (!_contains(_placeOf(d), _placeOf(v), job.spec.interval)) {
            fee = 0;
        }
    }

    /// @inheritdoc ISettlement
    function proveKnowledge(bytes32 id, uint256 n, Knowledge calldata k) external {
        Job storage job = _inPhase(id, Phase.Convicted);
        uint256 until = uint256(job.since) + job.spec.rewardWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        Dispute storage d = _disputes[id][n];
        Verdict storage v = _verdicts[id];
        if (d.status == Status.None || d.status == Status.Dismissed) revert DisputeClosed(d.status);
        bytes32 commitment = keccak256(abi.encode(id, d.auditor, k.salt, k.ownRoot));
        _expect(commitment, d.commitment);
        _checkKnowledge(job, d, v, k);
        if (v.best == 0 || n + 1 < v.best) v.best = uint32(n + 1);
        emit Known(id, n);
    }

    /// @dev In the run tree, at the node over the place of conviction: own node differs, everything left of it is
    /// equal, and something is left of it.
    function _checkKnowledge(Job storage job, Dispute storage d, Verdict storage v, Knowledge calldata k) private view {
        // What is posted later is public, so who enters there need not have computed anything; and silence decides
        // nothing that could be known.
        if (d.entry != Level.Run || v.cause == Cause.Timeout) revert NotEligible();
        Place memory place = _lift(_placeOf(v), Level.Run, job.spec.interval);
        Place memory own = _lift(_placeOf(d), Level.Run, job.spec.interval);
        // The dispute itself went to that node or below it, so whoever never moved has no share.
        if (own.height > place.height || own.index >> (place.height - own.height) != place.index) revert NotEligible();
        if (place.index == 0) revert NotEligible(); // nothing is left of it, so any node at all would pass
        uint256 length = Merkle.height(job.checkpoints) - place.height;
        _expect(Merkle.pathRoot(Merkle.RUN, k.theirNode, place.index, k.theirPath, length), job.runRoot);
        _expect(Merkle.pathRoot(Merkle.RUN, k.ownNode, place.index, k.ownPath, length), k.ownRoot);
        if (k.ownNode == k.theirNode) revert NotEligible();
        for (uint256 i; i < length; ++i) {
            if ((place.index >> i) & 1 == 1 && k.ownPath[i] != k.theirPath[i]) revert NotEligible();
        }
    }

    /// @inheritdoc ISettlement
    function payReward(bytes32 id) external {
        Job storage job = _inPhase(id, Phase.Convicted);
        Verdict storage v = _verdicts[id];
        if (v.paid) revert AlreadyPaid();
        uint256 until = uint256(job.since) + job.spec.rewardWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        v.paid = true;
        _burnHalf(job.spec.trainerBond);
        uint256 reward = v.pool;
        address auditor = v.best == 0 ? address(0) : _disputes[id][v.best - 1].auditor;
        if (v.best == 0) burnt += reward;
        else credits[auditor] += reward;
        emit RewardPaid(id, auditor, reward);
    }

    /// @inheritdoc ISettlement
    function withdraw(address payable recipient) external {
        uint256 amount = credits[msg.sender];
        if (amount == 0) revert NothingToWithdraw();
        credits[msg.sender] = 0;
        emit Withdrawn(msg.sender, recipient, amount);
        Address.sendValue(recipient, amount);
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
            Dispute storage d = _disputes[id][from + i];
            found[i].dispute = d;
            if (d.status != Status.Open || job.phase != Phase.Claimed) continue;
            (found[i].turn, found[i].deadline) = _standing(id, job, d);
        }
    }

    function _standing(bytes32 id, Job storage job, Dispute storage d) private view returns (Clock.Turn, uint256) {
        return (_turn(id, job, d), Clock.deadline(_clock(job, d), _openingOf(id, job, d)));
    }

    /// @inheritdoc ISettlement
    function getVerdict(bytes32 id) external view returns (Verdict memory) {
        return _verdicts[id];
    }

    /// @inheritdoc ISettlement
    function turn(bytes32 id, uint256 n) external view returns (Clock.Turn, uint256) {
        (Job storage job, Dispute storage d) = _openDispute(id, n);
        return _standing(id, job, d);
    }

    /// @inheritdoc ISettlement
    function isDelegate(bytes32 id, address account) external view returns (bool) {
        return _delegates[id][account];
    }

    /// @inheritdoc ISettlement
    function segmentRoot(bytes32 id, uint256 checkpoint) external view returns (bytes32) {
        return _segments[id][checkpoint];
    }

    /// @inheritdoc ISettlement
    function logRoot(bytes32 id, uint256 checkpoint) external view returns (bytes32) {
        return _logs[id][checkpoint];
    }

    /// @inheritdoc ISettlement
    function traceRoot(bytes32 id, uint256 step) external view returns (bytes32) {
        return _traces[id][step];
    }

    /// @inheritdoc ISettlement
    function opened(bytes32 id, Level kind, uint256 height, bytes32 node) external view returns (uint256) {
        uint256 time = _openedAt[_key(id, kind, height, node)];
        return time == AWAITED ? 0 : time;
    }
}
