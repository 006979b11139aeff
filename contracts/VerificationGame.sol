// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "./Clock.sol";
import {GameState} from "./GameState.sol";
import {IElements, IReferee} from "./IReferee.sol";
import {IGame, IMoves} from "./IVerificationGame.sol";
import {Merkle} from "./Merkle.sol";

/// @title The verification game
/// @notice Read IVerificationGame for what each call means, docs/protocol.md for why. Invariants In are numbered there.
/// Trust: nobody. Safety needs one live honest auditor per claim; liveness needs a chain that includes a transaction
/// within a clock's budget.
contract VerificationGame is GameState, IMoves {
    /// @dev More than any tree of a job has.
    uint256 private constant MAX_HEIGHT = 64;

    /// @dev In a job's queue: the rest is the number of the only open dispute.
    uint24 private constant ALONE = 1 << 23;

    /// @notice Code of the calls that are no moves: jobs, claims, money, views.
    address public immutable settlement;

    /// @inheritdoc IMoves
    IElements public immutable override logged;

    /// @dev All parts decide by one referee (one machine may do for both modes), and the chain has SHA-256: a missing
    /// precompile answers nothing, and what lay in memory would count as its answer.
    constructor(IReferee referee_, address settlement_, IElements logged_) GameState(referee_) {
        if (sha256("") != 0xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855) revert NoSha256();
        _checkPart(settlement_);
        if (address(logged_) != address(referee_)) _checkPart(address(logged_));
        settlement = settlement_;
        logged = logged_;
    }

    function _checkPart(address part) private view {
        IReferee other = IGame(part).referee();
        if (other != referee) revert ForeignReferee(part, address(other));
    }

    /// @dev Everything in ISettlement. The target is fixed for ever, so this is one contract in two pieces, not an
    /// upgrade.
    fallback() external payable {
        address target = settlement;
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

    // ---- moves ----

    /// @inheritdoc IMoves
    function challenge(
        bytes32 id,
        Level entry,
        uint256 where,
        bytes32 root,
        bytes32 commitment
    ) external payable returns (uint256 n) {
        Job storage job = _inPhase(id, Phase.Claimed);
        uint256 until = uint256(job.since) + job.spec.challengeWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        uint256 price = uint256(job.spec.auditorBond) + job.spec.fee;
        if (msg.value != price) revert WrongValue(msg.value, price);
        n = job.disputes++; // SAFETY: 2^23 disputes would cost more than 10^12 gas
        Dispute storage d = _disputes[id][n];
        (d.node, d.height, d.step) = _enter(id, job, entry, where);
        // after a reorganisation it may be another claim: nobody stakes a bond against what it has not seen
        _expect(root, d.node);
        d.level = d.entry = entry;
        d.auditor = msg.sender;
        d.status = Status.Open;
        d.commitment = commitment;
        d.trainerLeft = job.spec.trainerBudget;
        d.auditorLeft = job.spec.auditorBudget;
        d.turnAt = uint32(block.timestamp);
        d.price = _packPrice(block.basefee);
        job.open++;
        _await(id, job, n, d);
        emit Challenged(id, n, msg.sender, entry, where);
    }

    /// @dev Root, height and step of the tree that a challenge enters.
    function _enter(
        bytes32 id,
        Job storage job,
        Level entry,
        uint256 where
    ) private view returns (bytes32 root, uint8 height, uint32 step) {
        if (entry == Level.Run) {
            if (job.checkpoints == 0) revert NothingToContest();
            return (job.runRoot, uint8(Merkle.height(job.checkpoints)), 0);
        }
        if (entry != Level.Segment && entry != Level.Trace) revert WrongLevel(entry, 0);
        root = entry == Level.Segment ? _segments[id][where] : _traces[id][where];
        if (root == 0) revert NotPosted();
        if (entry == Level.Trace) return (root, uint8(Merkle.height(job.operators)), uint32(where));
        uint256 states = _segmentLength(job, where);
        if (states == 0) revert NothingToContest();
        return (root, uint8(Merkle.height(states + 1)), uint32((where - 1) * job.spec.interval));
    }

    /// @inheritdoc IMoves
    function reveal(bytes32 id, Level kind, uint256 height, bytes32[] calldata children) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        if (kind < Level.Run || kind > Level.Tensor || height == 0 || height > MAX_HEIGHT)
            revert WrongLevel(kind, height);
        bytes32 node = _parent(job, kind, height, children);
        if (_open(job, _key(id, kind, height, node))) emit Revealed(id, node, uint256(kind), height, children);
    }

    /// @dev The node of that height over all that a reveal of it shows.
    function _parent(
        Job storage job,
        Level kind,
        uint256 height,
        bytes32[] calldata children
    ) private view returns (bytes32) {
        uint256 expected = uint256(1) << Merkle.revealDepth(height, job.depth);
        if (children.length != expected) revert ChildCount(children.length, expected);
        return Merkle.foldOf(uint8(kind), children, 0);
    }

    /// @inheritdoc IMoves
    function openLeaf(bytes32 id, bytes calldata words) external {
        Job storage job = _inPhase(id, Phase.Claimed);
        if (words.length != Merkle.LEAF_BYTES) revert LeafSize(words.length);
        bytes32 node = Merkle.leafOf(Merkle.TENSOR, words);
        if (_open(job, _key(id, Level.Tensor, 0, node))) emit LeafOpened(id, node, words);
    }

    /// @inheritdoc IMoves
    function postSegment(bytes32 id, uint256 n, SegmentPost calldata post) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, Level.Run);
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
    function postTrace(bytes32 id, uint256 n, bytes32[] calldata children) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, Level.Segment);
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
    function tie(bytes32 id, uint256 n, Record calldata source, bytes32 traceLeaf, bytes32[] calldata path) external {
        (Job storage job, Dispute storage d) = _trainersTurn(id, n, Level.State);
        (bool computed, uint32 operator) = referee.source(
            job.spec.programRoot,
            uint32(d.index),
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
        Record calldata source,
        bytes32 prior,
        bytes32[] calldata priorPath,
        bytes32 tensor,
        bytes32[] calldata path
    ) external {
        (Job storage job, Dispute storage d) = _trainersTurn(id, n, Level.State);
        (bool computed, ) = referee.source(
            job.spec.programRoot,
            uint32(d.index),
            source.header,
            source.record,
            source.path
        );
        if (computed) revert WrongSource();
        _checkPrior(id, job, d.step, prior, priorPath);
        _expect(Merkle.pathRoot(Merkle.STATE, tensor, d.index, path, Merkle.height(job.states)), prior);
        _decide(id, job, n, d, tensor == d.node, Cause.Opening);
    }

    /// @dev `prior` is the state before `step` in the posted segment.
    function _checkPrior(
        bytes32 id,
        Job storage job,
        uint256 step,
        bytes32 prior,
        bytes32[] calldata path
    ) private view {
        uint256 c = (step - 1) / job.spec.interval + 1;
        uint256 index = (step - 1) % job.spec.interval;
        uint256 height = Merkle.height(_segmentLength(job, c) + 1);
        _expect(Merkle.pathRoot(Merkle.SEGMENT, prior, index, path, height), _segments[id][c]);
    }

    /// @inheritdoc IMoves
    function select(bytes32 id, uint256 n, bytes32 child, uint256 index, bytes32[] calldata path) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n);
        (Level kind, uint256 height, uint256 position) = _descend(id, job, d, child, index, path);
        if (kind == Level.Trace && height == 0) revert WrongLevel(kind, height);
        // INVARIANT I11: what is all padding is what the format fixes, or it convicts.
        if (position << height >= _leafCount(job, d, kind)) {
            if (child == Merkle.padding(uint8(kind), height)) revert NothingToContest();
            _enterStep(job, d, kind);
            return _convictAt(id, job, n, d, kind, height, position);
        }
        if (kind == Level.Segment && height == 0 && position == 0) revert NothingToContest();
        _enterStep(job, d, kind);
        _move(id, job, n, d, child, kind, height, position);
    }

    /// @inheritdoc IMoves
    function selectState(bytes32 id, uint256 n) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n);
        if (d.level != Level.Segment || d.height != 0) revert WrongLevel(d.level, d.height);
        _enterStep(job, d, Level.State);
        _move(id, job, n, d, d.node, Level.State, Merkle.height(job.states), 0);
    }

    /// @inheritdoc IMoves
    function selectOperator(
        bytes32 id,
        uint256 n,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path,
        Record calldata operator
    ) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n);
        (Level kind, uint256 height, uint256 position) = _descend(id, job, d, child, index, path);
        if (kind != Level.Trace || height != 0) revert WrongLevel(kind, height);
        if (position >= job.operators) {
            if (child == Merkle.padding(Merkle.TRACE, 0)) revert NothingToContest();
            _enterStep(job, d, kind);
            return _convictAt(id, job, n, d, kind, height, position);
        }
        (uint32 elements, bool finite, uint32 blocks) = referee.describe(
            job.spec.programRoot,
            uint32(position),
            operator.header,
            operator.record,
            operator.path
        );
        (d.elements, d.finite, d.blocks, d.operator) = (elements, finite, uint8(blocks), uint24(position));
        _enterStep(job, d, Level.Trace);
        _move(id, job, n, d, child, Level.Tensor, Merkle.tensorHeight(elements), 0);
    }

    /// @dev INVARIANT I3, I7: the child lies exactly `revealDepth` levels below the contested node (or the root posted
    /// for it), inside it.
    function _descend(
        bytes32 id,
        Job storage job,
        Dispute storage d,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) private view returns (Level kind, uint256 height, uint256 position) {
        bytes32 root = d.node;
        (kind, height, position) = (d.level, d.height, d.index);
        if (kind > Level.Tensor) revert WrongLevel(kind, height);
        if (height == 0 && kind == Level.Run) {
            (kind, root) = (Level.Segment, _segments[id][position + 1]);
            (height, position) = (Merkle.height(_segmentLength(job, position + 1) + 1), 0);
        } else if (height == 0 && kind == Level.Segment) {
            (kind, root, height, position) = (Level.Trace, _traces[id][_stepOf(d)], Merkle.height(job.operators), 0);
        } else if (height == 0 && kind != Level.Trace) {
            revert WrongLevel(kind, height);
        }
        // SAFETY: it is the auditor's turn, so the node was revealed; the roots of a segment and of a trace are, when
        // they are posted.
        uint256 depth = Merkle.revealDepth(height, job.depth);
        _expect(Merkle.pathRoot(uint8(kind), child, index, path, depth), root);
        (height, position) = (height - depth, (position << depth) | index);
    }

    /// @dev Leaves of the tree that a dispute is in; d still stands where it was before the move.
    function _leafCount(Job storage job, Dispute storage d, Level kind) private view returns (uint256) {
        if (kind == Level.Run) return job.checkpoints;
        if (kind == Level.State) return job.states;
        if (kind == Level.Trace) return job.operators;
        if (kind == Level.Tensor) return _ceilDiv(d.elements, Merkle.LEAF_WORDS);
        uint256 c = d.level == Level.Run ? uint256(d.index) + 1 : uint256(d.step) / job.spec.interval + 1;
        return _segmentLength(job, c) + 1;
    }

    /// @dev A dispute that leaves the leaf of one tree for another tree takes the step of that one with it.
    function _enterStep(Job storage job, Dispute storage d, Level kind) private {
        if (d.level == Level.Run && kind == Level.Segment) d.step = uint32(uint256(d.index) * job.spec.interval);
        else if (d.level == Level.Segment && kind != Level.Segment) d.step = uint32(_stepOf(d));
    }

    function _move(
        bytes32 id,
        Job storage job,
        uint256 n,
        Dispute storage d,
        bytes32 node,
        Level level,
        uint256 height,
        uint256 index
    ) private {
        (d.node, d.level, d.height, d.index) = (node, level, uint8(height), uint40(index));
        _await(id, job, n, d);
        emit Selected(id, n, level, height, index, node);
    }

    /// @dev The place of a conviction is what convicts, not the node above it: below that anything might lie.
    function _convictAt(
        bytes32 id,
        Job storage job,
        uint256 n,
        Dispute storage d,
        Level level,
        uint256 height,
        uint256 index
    ) private {
        (d.level, d.height, d.index) = (level, uint8(height), uint40(index));
        _convict(id, job, n, d, Cause.Opening);
    }

    // ---- the trainer's queue ----

    /// @dev A dispute has come to a node: the trainer is given a slot for each other thing that disputes wait for. What
    /// the only open dispute waits for is marked when there is a second one, which is rare.
    function _await(bytes32 id, Job storage job, uint256 n, Dispute storage d) private {
        if (job.open == 1) {
            d.others = 0;
            if (job.queue != (ALONE | uint24(n))) job.queue = ALONE | uint24(n);
            return;
        }
        if (job.queue & ALONE != 0) {
            Dispute storage first = _disputes[id][job.queue ^ ALONE];
            job.queue = 0;
            _mark(id, job, first);
        }
        d.others = _mark(id, job, d) ? job.queue - 1 : 0;
    }

    /// @dev Each thing counts once, however many disputes wait for it, until it is opened. False: it is open.
    function _mark(bytes32 id, Job storage job, Dispute storage d) private returns (bool) {
        (bytes32 key, uint256 openedAt) = _duty(id, job, d);
        if (openedAt != 0) return false;
        if (_openedAt[key] != AWAITED) {
            _openedAt[key] = AWAITED;
            job.queue++;
        }
        return true;
    }

    /// @inheritdoc IMoves
    function selectElement(bytes32 id, uint256 n, uint256 element, bytes calldata words) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n);
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
    function postPartials(bytes32 id, uint256 n, bytes[] calldata partials) external {
        (Job storage job, Dispute storage d) = _trainerMoves(id, n, Level.Element);
        if (d.blocks <= 1) revert NotDecidedInBlocks();
        uint256 expected = uint256(d.blocks) + (job.spec.mode != 0 ? 1 : 0);
        if (partials.length != expected) revert ChildCount(partials.length, expected);
        IElements.Context memory context;
        if (job.spec.mode != 0) context = _context(id, job, d, 0);
        uint32 word = _machine(job).combine(context, partials);
        if (word != d.word) revert NotTheClaimedSum(word, d.word);
        bytes32[] memory leaves = new bytes32[](d.blocks);
        for (uint256 i; i < leaves.length; ++i) leaves[i] = Merkle.leafOf(Merkle.PARTIALS, partials[i]);
        bytes32 key = _placeKey(id, d);
        _partials[key] = Merkle.foldPadded(Merkle.PARTIALS, leaves, 0);
        _open(job, key);
        emit PartialsPosted(id, n, partials);
    }

    /// @inheritdoc IMoves
    function selectBlock(bytes32 id, uint256 n, bytes32 child, uint256 index, bytes32[] calldata path) external {
        (Job storage job, Dispute storage d) = _auditorMoves(id, n);
        if (d.level != Level.Element) revert WrongLevel(d.level, d.height);
        if (index >= d.blocks) revert NothingToContest();
        bytes32 root = _partials[_placeKey(id, d)];
        _expect(Merkle.pathRoot(Merkle.PARTIALS, child, index, path, Merkle.height(d.blocks)), root);
        _move(id, job, n, d, child, Level.Block, 0, (index << 32) | d.index);
    }

    /// @inheritdoc IMoves
    function prove(bytes32 id, uint256 n, bytes32 prior, bytes32[] calldata priorPath, bytes calldata proof) external {
        (Job storage job, Dispute storage d) = _openDispute(id, n);
        _requireTurn(id, job, d, Clock.Turn.Trainer);
        if (prior != 0) _checkPrior(id, job, d.step, prior, priorPath);
        IElements.Context memory context = _context(id, job, d, prior);
        IElements machine = _machine(job);
        bool right;
        // INVARIANT I10: the referee reverts on a wrong witness and for lack of gas; it never decides then.
        if (d.level == Level.Block) {
            bytes memory partialSum = machine.evaluateBlock(context, uint32(d.index >> 32), proof);
            right = Merkle.leaf(Merkle.PARTIALS, partialSum) == d.node;
            emit BlockAdjudicated(id, n, d.step, d.operator, context.element, d.index >> 32, right);
        } else if (d.level != Level.Element) {
            revert WrongLevel(d.level, d.height);
        } else if (d.blocks > 1) {
            revert DecidedInBlocks(d.blocks);
        } else {
            uint32 exact = machine.evaluate(context, proof);
            right = exact == d.word;
            emit Adjudicated(id, n, d.step, d.operator, context.element, d.word, exact);
        }
        if (msg.sender == d.auditor) _countMoves(d, 4); // a proof costs more than four other moves
        _decide(id, job, n, d, right, Cause.Element);
    }

    /// @dev Who decides elements in the job's mode.
    function _machine(Job storage job) private view returns (IElements) {
        return job.spec.mode == 0 ? referee : logged;
    }

    /// @dev What the contested element depends on; `prior` was checked.
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
        context.element = uint32(d.index);
        if (job.spec.mode != 0) _addLog(id, job, d, context);
    }

    /// @dev A trace is posted only below a segment, whose log was posted with it. The log of a claim "diverged" ends
    /// with the step that diverged.
    function _addLog(bytes32 id, Job storage job, Dispute storage d, IElements.Context memory context) private view {
        uint256 c = (uint256(d.step) - 1) / job.spec.interval + 1;
        uint256 position = (uint256(d.step) - 1) % job.spec.interval;
        bool last = job.divergedAt != 0 && (uint256(job.divergedAt) - 1) / job.spec.interval + 1 == c;
        context.bits = job.spec.mode;
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

    // ---- verdicts ----

    /// @dev Why an auditor has no move left: its clock, or what was decided at its place.
    function _causeOf(Dispute storage d) private view returns (Cause) {
        if (!_isDecisive(d)) return Cause.Timeout;
        return d.level == Level.State ? Cause.Opening : Cause.Element;
    }

    /// @dev A word, a block or a tie. What is right here is right for every dispute at this place: each can be ended by
    /// `timeout` now.
    function _decide(bytes32 id, Job storage job, uint256 n, Dispute storage d, bool right, Cause cause) private {
        if (!right) return _convict(id, job, n, d, cause);
        bytes32 key = _placeKey(id, d);
        if (_openedAt[key] == AWAITED) _open(job, key); // every place is, that two disputes wait for
        _dismiss(id, job, n, d, cause);
    }

    function _dismiss(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) private {
        d.status = Status.Dismissed;
        job.open--;
        credits[job.trainer] += _burnHalf(job.spec.auditorBond);
        burnt += job.spec.fee;
        emit Dismissed(id, n, cause);
    }

    function _convict(bytes32 id, Job storage job, uint256 n, Dispute storage d, Cause cause) private {
        d.status = Status.Won;
        job.open--;
        job.phase = Phase.Convicted;
        job.since = uint32(block.timestamp);
        uint256 pool = job.spec.trainerBond / 2;
        uint256 stipend = _stipend(d, pool);
        bool guarded = d.auditor == job.spec.guardian;
        _verdicts[id] = Verdict(
            d.level,
            d.height,
            d.index,
            d.step,
            d.operator,
            uint32(n),
            0,
            false,
            guarded,
            cause,
            uint128(pool - stipend)
        );
        credits[d.auditor] += uint256(job.spec.auditorBond) + job.spec.fee + stipend;
        credits[job.client] += job.spec.reward;
        emit Convicted(id, n, cause, stipend);
    }

    // ---- turns ----

    function _requireTurn(bytes32 id, Job storage job, Dispute storage d, Clock.Turn expected) private view {
        Clock.Turn actual = _turn(id, job, d);
        if (actual != expected) revert NotYourTurn(actual);
    }

    /// @dev The trainer's turn at a given level, height 0; anyone may move for it.
    function _trainersTurn(
        bytes32 id,
        uint256 n,
        Level level
    ) private view returns (Job storage job, Dispute storage d) {
        (job, d) = _openDispute(id, n);
        if (d.level != level || d.height != 0) revert WrongLevel(d.level, d.height);
        _requireTurn(id, job, d, Clock.Turn.Trainer);
    }

    /// @dev The same where only the trainer may commit to something, or a delegate of its: nothing else asks for
    /// delegates.
    function _trainerMoves(
        bytes32 id,
        uint256 n,
        Level level
    ) private view returns (Job storage job, Dispute storage d) {
        (job, d) = _trainersTurn(id, n, level);
        if (msg.sender != job.trainer && !_delegates[id][msg.sender]) revert NotTrainer(msg.sender);
    }

    /// @dev INVARIANT I4: charges both clocks for the turn that ends, and starts the trainer's next one.
    function _auditorMoves(bytes32 id, uint256 n) private returns (Job storage job, Dispute storage d) {
        (job, d) = _openDispute(id, n);
        if (msg.sender != d.auditor) revert NotAuditor(msg.sender);
        Clock.State memory clock = _clock(job, d);
        uint256 openedAt = _openingOf(id, job, d);
        Clock.Turn turn_ = Clock.turn(clock, openedAt, block.timestamp);
        if (turn_ != Clock.Turn.Auditor) revert NotYourTurn(turn_);
        d.trainerLeft = uint32(clock.trainerLeft - Clock.trainerUsed(clock, openedAt));
        d.auditorLeft = uint32(clock.auditorLeft - Clock.auditorUsed(clock, openedAt, block.timestamp));
        _countMoves(d, 1);
        d.turnAt = uint32(block.timestamp);
    }
}
