// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {Descent} from "./Descent.sol";
import {Dispatch} from "./Dispatch.sol";
import {GameState} from "./GameState.sol";
import {IElements, IReferee} from "./IReferee.sol";
import {IMoves} from "./IMoves.sol";
import {Merkle} from "./Merkle.sol";
import {Position} from "./Position.sol";

/// @title The verification game
/// @notice IVerificationGame documents each call; docs/protocol.md gives the reasons and numbers the invariants In.
/// Trust: no account is trusted. Safety needs one live honest auditor per claim; liveness needs a chain that includes a
/// transaction within a clock's budget.
contract VerificationGame is Descent, Dispatch, IMoves {
    /// @dev Limit of a queue (Queue.sol). To reach it costs more than 10^14 gas, and half as many bonds are burnt.
    uint256 private constant MAX_DISPUTES = 1 << 31;
    /// @dev Above the height of every tree of a job.
    uint256 private constant MAX_HEIGHT = 64;

    /// @inheritdoc IMoves
    IElements public immutable override logged;

    /// @dev All parts use one referee (one machine may serve both modes).
    constructor(
        IReferee referee_,
        address settlement_,
        address delivery_,
        IElements logged_
    ) GameState(referee_) Dispatch(settlement_, delivery_) {
        _checkPart(address(logged_));
        logged = logged_;
    }

    // ---- moves ----

    /// @inheritdoc IMoves
    function challenge(
        bytes32 id,
        Level entry,
        uint256 where,
        bytes32 root,
        Basis calldata basis
    ) external payable returns (uint256 n) {
        Job storage job = _inPhase(id, Phase.Claimed);
        uint256 until = uint256(job.claimedAt) + job.spec.challengeWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        uint256 price = uint256(job.spec.auditorBond) + job.spec.fee;
        if (msg.value != price) revert WrongValue(msg.value, price);
        // INVARIANT I16: one stake of an account, whatever an endpoint hides from it
        if (_disputed[id][msg.sender]) revert AlreadyDisputed();
        _disputed[id][msg.sender] = true;
        n = job.disputes++;
        if (n == MAX_DISPUTES) revert TooManyDisputes();
        Dispute storage d = _disputes[id][n];
        (d.node, d.height, d.step) = _enter(id, job, entry, where);
        // INVARIANT I15: after a reorganisation it may be another claim; a bond is staked against what was seen
        _expect(root, d.node);
        _checkBasis(id, job, entry, where, basis);
        d.level = d.entry = entry;
        d.auditor = msg.sender;
        d.status = Status.Open;
        d.trainerLeft = job.spec.trainerBudget;
        d.auditorLeft = job.spec.auditorBudget;
        d.turnAt = _now();
        if (msg.sender == job.spec.guardian) (job.guarded, job.guardianDispute) = (true, uint32(n)); // SAFETY: n < 2^31
        job.open++;
        _await(id, job, n, d);
        emit Challenged(id, n, msg.sender, entry, where);
    }

    /// @inheritdoc IMoves
    function reveal(bytes32 id, Level kind, uint256 height, bytes32[] calldata children) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        if (kind < Level.Run || kind > Level.Tensor || height == 0 || height > MAX_HEIGHT)
            revert WrongLevel(kind, height);
        bytes32 node = _parent(job, kind, height, children);
        if (_open(job, _key(id, kind, height, node))) emit Revealed(id, node, uint256(kind), height, children);
    }

    /// @inheritdoc IMoves
    function openLeaf(bytes32 id, bytes calldata words) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        if (words.length != Merkle.LEAF_BYTES) revert LeafSize(words.length);
        bytes32 node = Merkle.leafOf(Merkle.TENSOR, words);
        if (_open(job, _key(id, Level.Tensor, 0, node))) emit LeafOpened(id, node, words);
    }

    /// @inheritdoc IMoves
    function postSegment(bytes32 id, uint256 n, uint256 place, SegmentPost calldata post) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, place, Level.Run);
        uint256 c = uint256(d.index) + 1;
        bytes32 log = job.spec.mode == 0 ? Merkle.padding(Merkle.LOG, 0) : post.logRoot;
        _expect(Merkle.runLeaf(post.state, log), d.node);
        if (job.spec.mode != 0) _logs[id][c] = log;
        _checkCheckpoint(job, c - 1, post.prior, post.priorPath);
        uint256 last = _segmentLength(job, c);
        uint256 height = Merkle.height(last + 1);
        uint256 below = height - Merkle.revealDepth(height, job.depth);
        if (post.children.length != (last >> below) + 1) revert ChildCount(post.children.length, (last >> below) + 1);
        bytes32 root = Merkle.foldOf(Merkle.SEGMENT, post.children, below);
        // INVARIANT I8: both ends are the states of the checkpoints around it.
        _expect(Merkle.pathRoot(Merkle.SEGMENT, post.prior, 0, post.firstPath, below), post.children[0]);
        uint256 rest = last & ((uint256(1) << below) - 1);
        _expect(Merkle.pathRoot(Merkle.SEGMENT, post.state, rest, post.lastPath, below), post.children[last >> below]);
        // INVARIANT I5: the trainer's turn at a checkpoint ends with the first post, so there is no second.
        _segments[id][c] = root;
        _open(job, _segmentKey(id, c));
        emit Revealed(id, root, uint256(Level.Segment), height, post.children);
        emit SegmentPosted(id, c, root);
    }

    /// @inheritdoc IMoves
    function postTrace(bytes32 id, uint256 n, uint256 place, bytes32[] calldata children) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, place, Level.Segment);
        uint256 step = _stepOf(d);
        uint256 height = Merkle.height(job.operators);
        bytes32 root = _parent(job, Level.Trace, height, children);
        // INVARIANT I5: the trainer's turn at a step ends with the first post, so there is no second.
        _traces[id][step] = root;
        _open(job, _traceKey(id, step));
        emit Revealed(id, root, uint256(Level.Trace), height, children);
        emit TracePosted(id, step, root);
    }

    /// @inheritdoc IMoves
    function tie(
        bytes32 id,
        uint256 n,
        uint256 place,
        Record calldata source,
        bytes32 traceLeaf,
        bytes32[] calldata path
    ) external {
        (Job storage job, Dispute storage d) = _trainersTurn(id, n, place, Level.State);
        (bool computed, uint32 operator) = referee.source(
            job.spec.programRoot,
            uint32(d.index), // SAFETY: a state tensor, below 2^24
            source.header,
            source.record,
            source.path
        );
        if (!computed) revert WrongSource();
        _expect(
            Merkle.pathRoot(Merkle.TRACE, traceLeaf, operator, path, Merkle.height(job.operators)),
            _traces[id][d.step]
        );
        // INVARIANT I9: the state is what the trace says.
        _decide(id, job, n, d, traceLeaf == d.node, Cause.Opening);
    }

    /// @inheritdoc IMoves
    function tieUnchanged(
        bytes32 id,
        uint256 n,
        uint256 place,
        Record calldata source,
        bytes32 prior,
        bytes32[] calldata priorPath,
        bytes32 tensor,
        bytes32[] calldata path
    ) external {
        (Job storage job, Dispute storage d) = _trainersTurn(id, n, place, Level.State);
        (bool computed, ) = referee.source(
            job.spec.programRoot,
            uint32(d.index), // SAFETY: a state tensor, below 2^24
            source.header,
            source.record,
            source.path
        );
        if (computed) revert WrongSource();
        _checkPrior(id, job, d.step, prior, priorPath);
        _expect(Merkle.pathRoot(Merkle.STATE, tensor, d.index, path, Merkle.height(job.states)), prior);
        _decide(id, job, n, d, tensor == d.node, Cause.Opening);
    }

    /// @inheritdoc IMoves
    function select(
        bytes32 id,
        uint256 n,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n, place);
        (Level kind, uint256 height, uint256 position) = _descend(id, job, d, child, index, path);
        if (kind == Level.Trace && height == 0) revert WrongLevel(kind, height);
        // INVARIANT I11: what is all padding is what the format fixes, or it convicts.
        if (position << height >= _leafCount(job, d, kind)) {
            if (child == Merkle.padding(uint8(kind), height)) revert NothingToContest();
            return _convictAt(id, job, n, d, kind, height, position);
        }
        if (kind == Level.Segment && height == 0 && position == 0) revert NothingToContest();
        _move(id, job, n, d, child, kind, height, position);
    }

    /// @inheritdoc IMoves
    function selectState(bytes32 id, uint256 n, uint256 place, bytes32 trace) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n, place);
        if (d.level != Level.Segment || d.height != 0) revert WrongLevel(d.level, d.height);
        // INVARIANT I15: the state is contested since this very trace was read
        _expect(trace, _traces[id][_stepOf(d)]);
        _move(id, job, n, d, d.node, Level.State, Merkle.height(job.states), 0);
    }

    /// @inheritdoc IMoves
    function selectOperator(
        bytes32 id,
        uint256 n,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path,
        Record calldata operator
    ) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n, place);
        (Level kind, uint256 height, uint256 position) = _descend(id, job, d, child, index, path);
        if (kind != Level.Trace || height != 0) revert WrongLevel(kind, height);
        if (position >= job.operators) {
            if (child == Merkle.padding(Merkle.TRACE, 0)) revert NothingToContest();
            return _convictAt(id, job, n, d, kind, height, position);
        }
        (uint32 elements, bool finite, uint32 blocks) = referee.describe(
            job.spec.programRoot,
            uint32(position),
            operator.header,
            operator.record,
            operator.path
        );
        // SAFETY: an element has at most 64 partial sums (Records.sol), a program 2^24 operators
        (d.elements, d.finite, d.blocks, d.operator) = (elements, finite, uint8(blocks), uint24(position));
        _move(id, job, n, d, child, Level.Tensor, Merkle.tensorHeight(elements), 0);
    }

    /// @inheritdoc IMoves
    function selectElement(bytes32 id, uint256 n, uint256 place, uint256 element, bytes calldata words) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n, place);
        if (d.level != Level.Tensor || d.height != 0) revert WrongLevel(d.level, d.height);
        _expect(Merkle.leafOf(Merkle.TENSOR, words), d.node);
        if (element / Merkle.LEAF_WORDS != d.index) revert ElementOutOfLeaf(element, d.index);
        uint32 word = _wordOf(words, element);
        if (element >= d.elements) {
            if (word == 0) revert NothingToContest();
            return _convictAt(id, job, n, d, Level.Element, 0, element);
        }
        if (d.finite && !_isFinite(word) && (job.divergedAt == 0 || d.step < job.divergedAt)) {
            return _convictAt(id, job, n, d, Level.Element, 0, element);
        }
        d.word = word;
        _move(id, job, n, d, d.node, Level.Element, 0, element);
    }

    /// @inheritdoc IMoves
    function postPartials(bytes32 id, uint256 n, uint256 place, bytes[] calldata partials) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, place, Level.Element);
        if (d.blocks <= 1) revert NotDecidedInBlocks();
        uint256 expected = uint256(d.blocks) + (job.spec.mode != 0 ? 1 : 0);
        if (partials.length != expected) revert ChildCount(partials.length, expected);
        IElements.Context memory context;
        if (job.spec.mode != 0) context = _context(id, job, d, 0);
        uint32 word = _machine(job).combine(context, partials);
        if (word != d.word) revert NotTheClaimedSum(word, d.word);
        bytes32[] memory leaves = new bytes32[](d.blocks);
        for (uint256 i; i < leaves.length; ++i) leaves[i] = Merkle.leafOf(Merkle.PARTIAL, partials[i]);
        bytes32 key = _placeKey(id, place);
        _partials[key] = Merkle.foldPadded(Merkle.PARTIAL, leaves, 0);
        _open(job, key);
        emit PartialsPosted(id, n, partials);
    }

    /// @inheritdoc IMoves
    function selectPartial(
        bytes32 id,
        uint256 n,
        uint256 place,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n, place);
        if (d.level != Level.Element) revert WrongLevel(d.level, d.height);
        if (index >= d.blocks) revert NothingToContest();
        bytes32 root = _partials[_placeKey(id, place)];
        _expect(Merkle.pathRoot(Merkle.PARTIAL, child, index, path, Merkle.height(d.blocks)), root);
        d.part = uint8(index); // SAFETY: below `blocks`
        _move(id, job, n, d, child, Level.Partial, 0, d.index);
    }

    /// @inheritdoc IMoves
    function prove(
        bytes32 id,
        uint256 n,
        uint256 place,
        bytes32 prior,
        bytes32[] calldata priorPath,
        bytes calldata proof
    ) external {
        (Job storage job, Dispute storage d) = _disputeAt(id, n, place);
        _requireTurn(id, job, d, Clock.Turn.Trainer);
        if (prior != 0) _checkPrior(id, job, d.step, prior, priorPath);
        IElements.Context memory context = _context(id, job, d, prior);
        IElements machine = _machine(job);
        bool right;
        // INVARIANT I10: the referee reverts on a wrong witness and for lack of gas; it never decides then.
        if (d.level == Level.Partial) {
            bytes memory partialSum = machine.evaluateBlock(context, d.part, proof);
            right = Merkle.leaf(Merkle.PARTIAL, partialSum) == d.node;
            emit PartialAdjudicated(id, n, d.step, d.operator, context.element, d.part, right);
        } else if (d.level != Level.Element) {
            revert WrongLevel(d.level, d.height);
        } else if (d.blocks > 1) {
            revert DecidedInBlocks(d.blocks);
        } else {
            uint32 exact = machine.evaluate(context, proof);
            right = exact == d.word;
            emit Adjudicated(id, n, d.step, d.operator, context.element, d.word, exact);
        }
        _decide(id, job, n, d, right, Cause.Element);
    }

    /// @dev The machine that decides elements in the job's mode.
    function _machine(Job storage job) private view returns (IElements) {
        return job.spec.mode == 0 ? referee : logged;
    }

    /// @dev The input of the contested element's computation; `prior` was checked.
    function _context(
        bytes32 id,
        Job storage job,
        Dispute storage d,
        bytes32 prior
    ) private view returns (IElements.Context memory context) {
        context.programRoot = job.spec.programRoot;
        context.dataRoot = job.spec.dataRoot;
        context.scalarRoot = job.spec.scalarRoot;
        context.traceRoot = _traces[id][d.step];
        context.stateRoot = prior;
        context.seed = job.spec.seed;
        context.step = d.step;
        context.steps = job.spec.steps;
        context.operator = d.operator;
        context.element = uint32(d.index); // SAFETY: an element, below `elements`
        if (job.spec.mode != 0) _addLog(id, job, d, context);
    }

    /// @dev A trace is posted only below a segment, and the segment's log was posted with the segment. The log of a
    /// claim "diverged" ends with the step that diverged.
    function _addLog(bytes32 id, Job storage job, Dispute storage d, IElements.Context memory context) private view {
        uint256 c = (uint256(d.step) - 1) / job.spec.interval + 1;
        uint256 position = (uint256(d.step) - 1) % job.spec.interval;
        bool last = job.divergedAt != 0 && (uint256(job.divergedAt) - 1) / job.spec.interval + 1 == c;
        context.bits = job.spec.mode;
        // SAFETY: below the interval
        context.logStep = uint32(position);
        context.logSteps = uint32(_segmentLength(job, c) + (last ? 1 : 0));
        context.logRoot = _logs[id][c];
    }

    /// @inheritdoc IMoves
    function timeout(bytes32 id, uint256 n) external {
        (Job storage job, Dispute storage d) = _openDispute(id, n);
        Clock.Turn turn_ = _turn(id, job, d);
        if (turn_ == Clock.Turn.TrainerExpired) _convict(id, job, n, d, Cause.Timeout);
        else if (turn_ == Clock.Turn.AuditorExpired) _dismiss(id, job, n, d, _causeOf(d));
        else revert NotExpired(turn_);
    }

    /// @inheritdoc IMoves
    function timeoutMany(bytes32 id, uint256[] calldata disputes) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        bool ended;
        for (uint256 i; i < disputes.length; ++i) {
            Dispute storage d = _disputes[id][disputes[i]];
            if (d.status != Status.Open) continue;
            Clock.Turn turn_ = _turn(id, job, d);
            if (turn_ == Clock.Turn.TrainerExpired) return _convict(id, job, disputes[i], d, Cause.Timeout);
            if (turn_ != Clock.Turn.AuditorExpired) continue;
            _dismiss(id, job, disputes[i], d, _causeOf(d));
            ended = true;
        }
        if (!ended) revert NoneExpired();
    }
}
