// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGame} from "./IGame.sol";
import {IGameTypes} from "./IGameTypes.sol";
import {ISettlement} from "./ISettlement.sol";
import {Merkle} from "./Merkle.sol";
import {Payout} from "./Payout.sol";

/// @title A bonus for a trained state with a high enough total on a committed test set (docs/bonus.md)
/// @notice A separate contract without rights in the game. The payer fixes the order of an evaluation except for its
/// initial state, which is the final state of a training together with totals that begin at zero. A final claim of that
/// evaluation with a total of at least `least` pays the trainer of the training. Nothing else pays the bonus. The lack
/// of such a claim is decided by time alone, so a false low total does no harm.
contract AccuracyEscrow {
    /// @dev 2^30 in binary32. A total whose parts' absolute values sum to less has not passed 2^31
    /// (vgame/api_evaluation.py).
    uint32 private constant TOO_LARGE = 0x4e800000;

    /// @param training the job whose trainer is paid
    /// @param evaluation hash of the evaluation's order without initial root and trainer
    /// @param layout hash of the list that makes the evaluation's initial state: an entry below 2^24 is the training's
    /// state tensor of that number, any other the root of a tensor of its own
    /// @param payer account that paid
    /// @param promisedAt time of the payment
    /// @param since begin of the window; 0 before
    /// @param settledAt time at which the money was paid or returned; 0: not yet
    /// @param paid the money went to the trainer
    /// @param window seconds in which an evaluation must become final
    /// @param amount the trainer's bonus
    /// @param total state tensor of the evaluation that holds the total
    /// @param size state tensor that holds the sum of the absolute values of the total's terms, in binary32
    /// @param least the total that is needed for the bonus
    struct Bonus {
        bytes32 training;
        bytes32 evaluation;
        bytes32 layout;
        address payer;
        uint32 promisedAt;
        uint32 since;
        uint32 settledAt;
        bool paid;
        uint32 window;
        uint128 amount;
        uint24 total;
        uint24 size;
        int32 least;
    }

    /// @param training the job whose trainer is to be paid
    /// @param window see Bonus
    /// @param total see Bonus
    /// @param size see Bonus
    /// @param least see Bonus
    struct Terms {
        bytes32 training;
        uint32 window;
        uint24 total;
        uint24 size;
        int32 least;
    }

    /// @param evaluation a final job
    /// @param layout see Bonus
    /// @param trained final state of the training, and its path in the run tree (mode `logged`: the log's root first)
    /// @param tensors roots of all tensors of the final state
    /// @param measured final state of the evaluation, and its path
    /// @param total word of the total, and its path in the state tree
    /// @param size word of the size, and its path
    struct Proof {
        bytes32 evaluation;
        bytes32[] layout;
        bytes32 trained;
        bytes32[] trainedPath;
        bytes32[] tensors;
        bytes32 measured;
        bytes32[] measuredPath;
        uint32 total;
        bytes32[] totalPath;
        uint32 size;
        bytes32[] sizePath;
    }

    /// @notice The game of the jobs, fixed at deployment.
    ISettlement public immutable game;

    /// @notice Wei that an account may withdraw.
    mapping(address account => uint256) public credits;

    mapping(bytes32 id => Bonus) private _bonuses;

    /// @notice `evaluation` is the order to place, after adding the initial root and the training's trainer.
    event Promised(
        bytes32 indexed id,
        bytes32 indexed training,
        address indexed payer,
        uint256 amount,
        Terms terms,
        IGame.JobSpec evaluation,
        bytes32[] layout
    );
    /// @notice The window for the evaluation of the trained state begins, and ends at `until`.
    event Started(bytes32 indexed id, uint256 until);
    /// @notice A final evaluation has a total of at least `least`.
    event Paid(bytes32 indexed id, address indexed trainer, bytes32 evaluation, int32 total, uint256 amount);
    /// @notice The money was returned to the payer.
    event Returned(bytes32 indexed id, uint256 amount);
    /// @notice Credits have left the contract.
    event Withdrawn(address indexed account, address recipient, uint256 amount);

    /// @notice This bonus was promised before.
    error BonusExists(bytes32 id);
    /// @notice There is no such bonus, or it is settled.
    error NoBonus(bytes32 id);
    /// @notice A bonus must be more than 0 wei.
    error NoMoney();
    /// @notice The evaluation starts from the trained state: its initial root is 0 here.
    error InitialRootGiven(bytes32 root);
    /// @notice The evaluation's order names the trainer of the training, which the promise cannot know.
    error TrainerGiven(address trainer);
    /// @notice The trainer's bond is below twice the bonus, so a false claim could be profitable.
    error BondTooSmall(uint256 actual, uint256 least);
    /// @notice The training is over, or has not been ordered.
    error NotAhead(IGame.Phase phase);
    /// @notice The training, or the evaluation, has fewer state tensors.
    error NoSuchTensor(uint256 index, uint256 count);
    /// @notice The training is not final, or has diverged.
    error NotTrained(bytes32 job, IGame.Phase phase, uint256 divergedAt);
    /// @notice The evaluation was claimed before the window began (0: it has not), when the trained state was not
    /// public.
    error ClaimedTooEarly(uint256 actual, uint256 from);
    /// @notice The recipient does not accept the money.
    error PaymentRefused(address recipient);
    /// @notice The window for the evaluation has already begun.
    error AlreadyStarted(uint256 since);
    /// @notice The money can be returned to the payer only from the time `from` on.
    error NotOver(uint256 now_, uint256 from);
    /// @notice The evaluation's order does not name the trainer of the training.
    error WrongTrainer(address actual, address expected);
    /// @notice The shown state is not the trained one.
    error WrongRoot(bytes32 actual, bytes32 expected);
    /// @notice The list has a wrong length.
    error WrongCount(uint256 actual, uint256 expected);
    /// @notice The total is below `least`.
    error MarkMissed(int32 total, int32 least);
    /// @notice The total may have overflowed 2^31.
    error TotalTooLarge(uint32 size);
    /// @notice The account has no credits.
    error NothingOwed();

    constructor(ISettlement game_) {
        game = game_;
    }

    /// @notice Pay for the bonus of a job that has not been claimed. `evaluation`: the order without initial
    /// root and trainer.
    /// @dev Twice the bonus as a bond: a false number costs its trainer more than the bonus, of which an accomplice can
    /// win back half at most.
    function open(
        Terms calldata terms,
        IGame.JobSpec calldata evaluation,
        bytes32[] calldata layout,
        uint256 nonce
    ) external payable returns (bytes32 id) {
        if (msg.value == 0 || msg.value > type(uint128).max) revert NoMoney();
        if (evaluation.initialRoot != 0) revert InitialRootGiven(evaluation.initialRoot);
        if (evaluation.trainer != address(0)) revert TrainerGiven(evaluation.trainer);
        if (evaluation.trainerBond < 2 * msg.value) revert BondTooSmall(evaluation.trainerBond, 2 * msg.value);
        IGame.Job memory training = game.getJob(terms.training);
        if (training.phase != IGameTypes.Phase.Created && training.phase != IGameTypes.Phase.Accepted) {
            revert NotAhead(training.phase);
        }
        for (uint256 i; i < layout.length; ++i) {
            uint256 source = uint256(layout[i]);
            if (source >> 24 == 0 && source >= training.states) revert NoSuchTensor(source, training.states);
        }
        // tensors that the evaluation does not have would make the bonus unreachable
        uint256 largest = terms.total > terms.size ? terms.total : terms.size;
        if (largest >= layout.length) revert NoSuchTensor(largest, layout.length);
        id = keccak256(abi.encode(terms, evaluation, layout, msg.sender, msg.value, nonce));
        if (_bonuses[id].amount != 0) revert BonusExists(id);
        _bonuses[id] = Bonus({
            training: terms.training,
            evaluation: keccak256(abi.encode(evaluation)),
            layout: keccak256(abi.encodePacked(layout)),
            payer: msg.sender,
            promisedAt: uint32(block.timestamp), // SAFETY: until 2106
            since: 0,
            settledAt: 0,
            paid: false,
            window: terms.window,
            amount: uint128(msg.value), // SAFETY: checked above
            total: terms.total,
            size: terms.size,
            least: terms.least
        });
        emit Promised(id, terms.training, msg.sender, msg.value, terms, evaluation, layout);
    }

    /// @notice The training is final: the window begins. Anyone.
    function start(bytes32 id) external {
        Bonus storage b = _bonus(id);
        if (b.since != 0) revert AlreadyStarted(b.since);
        _trained(b.training);
        b.since = uint32(block.timestamp);
        emit Started(id, block.timestamp + b.window);
    }

    /// @notice Prove that a final evaluation of the trained state has a total of at least `least`: the trainer is paid.
    /// Anyone.
    /// @dev Also after the window, as long as the money was not returned.
    function pay(bytes32 id, Proof calldata p) external {
        Bonus memory b = _bonus(id);
        IGame.Job memory training = _trained(b.training);
        IGame.Job memory evaluation = _trained(p.evaluation);
        if (b.since == 0 || evaluation.claimedAt < b.since) revert ClaimedTooEarly(evaluation.claimedAt, b.since);
        _expect(keccak256(abi.encodePacked(p.layout)), b.layout);
        _expect(_initialRoot(training, p), evaluation.spec.initialRoot);
        // only this order is paid, so auditors know all claims that can be paid
        if (evaluation.spec.trainer != training.trainer) revert WrongTrainer(evaluation.spec.trainer, training.trainer);
        (evaluation.spec.initialRoot, evaluation.spec.trainer) = (0, address(0));
        _expect(keccak256(abi.encode(evaluation.spec)), b.evaluation);
        _checkFinal(evaluation, p.measured, p.measuredPath);
        _checkWord(evaluation, p.measured, b.total, p.total, p.totalPath);
        _checkWord(evaluation, p.measured, b.size, p.size, p.sizePath);
        // NaN and negative numbers are larger words.
        if (p.size >= TOO_LARGE) revert TotalTooLarge(p.size);
        int32 total = int32(p.total);
        if (total < b.least) revert MarkMissed(total, b.least);
        _settle(id, true);
        credits[training.trainer] += b.amount;
        emit Paid(id, training.trainer, p.evaluation, total, b.amount);
    }

    /// @notice Return the money: the training has ended without a delivered state, or the window is over. Anyone.
    function giveBack(bytes32 id) external {
        Bonus memory b = _bonus(id);
        if (!_failed(game.getJob(b.training))) {
            uint256 until = uint256(b.since) + b.window;
            if (b.since == 0 || block.timestamp <= until) {
                revert NotOver(block.timestamp, b.since == 0 ? type(uint256).max : until + 1);
            }
        }
        _settle(id, false);
        credits[b.payer] += b.amount;
        emit Returned(id, b.amount);
    }

    /// @notice Pay the caller's credits to an address.
    function withdraw(address payable recipient) external {
        uint256 amount = credits[msg.sender];
        if (amount == 0) revert NothingOwed();
        credits[msg.sender] = 0;
        emit Withdrawn(msg.sender, recipient, amount);
        if (!Payout.send(recipient, amount)) revert PaymentRefused(recipient);
    }

    /// @notice A bonus; all zero if there is none.
    function getBonus(bytes32 id) external view returns (Bonus memory) {
        return _bonuses[id];
    }

    function _bonus(bytes32 id) private view returns (Bonus storage b) {
        b = _bonuses[id];
        if (b.amount == 0 || b.settledAt != 0) revert NoBonus(id);
    }

    function _settle(bytes32 id, bool paid) private {
        // SAFETY: 32 bits last until 2106
        (_bonuses[id].settledAt, _bonuses[id].paid) = (uint32(block.timestamp), paid);
    }

    /// @dev Reverts unless the claim is "trained" and final, and the state was delivered (with delivery).
    function _trained(bytes32 id) private view returns (IGame.Job memory job) {
        job = game.getJob(id);
        if (job.phase != IGameTypes.Phase.Final || job.divergedAt != 0)
            revert NotTrained(id, job.phase, job.divergedAt);
    }

    /// @dev Has the training ended so that `_trained` can never succeed?
    function _failed(IGame.Job memory job) private pure returns (bool) {
        if (job.phase == IGameTypes.Phase.Final) return job.divergedAt != 0;
        return
            job.phase == IGameTypes.Phase.Convicted ||
            job.phase == IGameTypes.Phase.Expired ||
            job.phase == IGameTypes.Phase.Undelivered ||
            job.phase == IGameTypes.Phase.Declined;
    }

    /// @dev Root of the evaluation's required initial state.
    function _initialRoot(IGame.Job memory training, Proof calldata p) private view returns (bytes32) {
        if (p.tensors.length != training.states) revert WrongCount(p.tensors.length, training.states);
        _expect(Merkle.foldOf(Merkle.STATE, p.tensors, 0), p.trained);
        _checkFinal(training, p.trained, p.trainedPath);
        bytes32[] memory roots = new bytes32[](p.layout.length);
        for (uint256 i; i < roots.length; ++i) {
            uint256 source = uint256(p.layout[i]);
            // SAFETY: `open` has checked that the training has this tensor; no hash is below 2^24.
            roots[i] = source >> 24 == 0 ? p.tensors[source] : p.layout[i];
        }
        return Merkle.foldPadded(Merkle.STATE, roots, 0);
    }

    /// @dev Reverts unless `state` is the last checkpoint of a claim.
    function _checkFinal(IGame.Job memory job, bytes32 state, bytes32[] calldata path) private view {
        uint256 height = Merkle.height(job.checkpoints);
        bytes32 log = Merkle.padding(Merkle.LOG, 0);
        if (job.spec.mode != 0) {
            if (path.length == 0) revert Merkle.PathLength(0, height + 1);
            (log, path) = (path[0], path[1:]);
        }
        bytes32 leaf = Merkle.runLeaf(state, log);
        _expect(Merkle.pathRoot(Merkle.RUN, leaf, job.checkpoints - 1, path, height), job.runRoot);
    }

    /// @dev Reverts unless the state tensor with that number is this single word: a leaf of 512 bytes, little-endian,
    /// the rest zero.
    function _checkWord(
        IGame.Job memory job,
        bytes32 state,
        uint256 index,
        uint32 word,
        bytes32[] calldata path
    ) private view {
        word = (word >> 24) | ((word >> 8) & 0xff00) | ((word << 8) & 0xff0000) | (word << 24);
        bytes32 leaf = Merkle.leaf(Merkle.TENSOR, abi.encodePacked(word, new bytes(Merkle.LEAF_BYTES - 4)));
        _expect(Merkle.pathRoot(Merkle.STATE, leaf, index, path, Merkle.height(job.states)), state);
    }

    function _expect(bytes32 actual, bytes32 expected) private pure {
        if (actual != expected) revert WrongRoot(actual, expected);
    }
}
