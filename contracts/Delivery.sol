// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Cipher} from "./Cipher.sol";
import {GameState} from "./GameState.sol";
import {IDelivery} from "./IDelivery.sol";
import {IReferee} from "./IReferee.sol";
import {Merkle} from "./Merkle.sol";
import {Records} from "./Records.sol";

/// @title The exchange of the trained state for the reward
/// @notice Runs inside `VerificationGame` by delegatecall; at its own address there is no job, so no game can be played
/// there.
contract Delivery is GameState, IDelivery {
    uint256 private constant MAX_REQUESTS = 64;
    /// @dev Lower bound of a complaint's gas, also for a caller that already has credits
    /// (tests/game/test_delivery_money.py): the payment for a complaint is never a gain.
    uint256 private constant NODE_GAS = 35_000;
    uint256 private constant LEAF_GAS = 55_000;
    /// @dev Gas of every answer, and of each byte of it: the floor of calldata. Below the real cost, so a request is
    /// never a gain for the trainer.
    uint256 private constant ANSWER_GAS = 21_000;
    uint256 private constant BYTE_GAS = 40;

    constructor(IReferee referee_) GameState(referee_) {}

    // ---- the client, before the key ----

    /// @inheritdoc IDelivery
    function confirm(bytes32 id, bytes32 offer) external {
        (, Exchange storage e) = _undecided(id, offer);
        if (e.open != 0) revert RequestsOpen(e.open);
        e.confirmedAt = _now();
        emit Confirmed(id);
    }

    /// @inheritdoc IDelivery
    /// @dev ROUNDING: odd wei are burnt.
    function decline(bytes32 id, bytes32 offer) external {
        (Job storage job, Exchange storage e) = _undecided(id, offer);
        job.phase = Phase.Declined;
        uint256 quarter = job.spec.reward / 4;
        credits[job.client] += quarter + e.deposits;
        credits[job.trainer] += quarter + job.spec.trainerBond;
        burnt += job.spec.reward - 2 * quarter;
        emit Declined(id, e.deposits);
        e.deposits = 0;
    }

    /// @inheritdoc IDelivery
    function request(
        bytes32 id,
        bytes32 offer,
        uint256 index,
        uint24 tensor,
        uint32 chunk,
        uint64 price,
        Record calldata source
    ) external payable {
        (Job storage job, Exchange storage e) = _undecided(id, offer);
        Request[] storage all = _requests[id];
        // a repeated call must not make a second request
        if (index != all.length) revert WrongIndex(all.length, index);
        if (index == MAX_REQUESTS) revert TooManyRequests(MAX_REQUESTS);
        // A price below the base fee could be deferred at once, so it is refused here.
        if (price < block.basefee) revert PriceTooLow(price, block.basefee);
        referee.source(job.spec.programRoot, tensor, source.header, source.record, source.path);
        uint32 elements = Records.u32(source.record, 1);
        uint256 cost = price * _answerGas(job, elements, chunk);
        _takeDeposit(e, cost);
        emit Requested(id, index, tensor, chunk, price, cost);
        all.push(Request(tensor, chunk, elements, price, _now(), 0, 0, false));
        e.open++;
    }

    /// @inheritdoc IDelivery
    function raise(bytes32 id, uint256 index, uint24 tensor, uint32 chunk, uint64 price) external payable {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, index);
        if (msg.sender != job.client) revert NotClient(msg.sender);
        if (r.tensor != tensor || r.chunk != chunk) revert NotRequested();
        uint256 least = Math.max(uint256(r.price) + 1, block.basefee);
        if (price < least) revert PriceTooLow(price, least);
        uint256 cost = uint256(price - r.price) * _answerGas(job, r.elements, chunk);
        _takeDeposit(e, cost);
        (r.price, r.since, r.deferredAt) = (price, _now(), 0);
        emit Raised(id, index, price, cost);
    }

    /// @dev SAFETY: the call's value contains it, and fewer than 2^112 wei exist.
    function _takeDeposit(Exchange storage e, uint256 cost) private {
        if (msg.value != cost) revert WrongValue(msg.value, cost);
        e.deposits += uint112(cost);
    }

    /// @dev In the confirm window, only the client. INVARIANT I15: about the offer that it has seen.
    function _undecided(bytes32 id, bytes32 offer) private view returns (Job storage job, Exchange storage e) {
        job = _inPhase(id, Phase.Delivering);
        e = _exchanges[id];
        if (msg.sender != job.client) revert NotClient(msg.sender);
        _expect(offer, e.offer);
        if (e.confirmedAt != 0) revert AlreadyConfirmed();
        if (block.timestamp > e.until) revert TooLate(block.timestamp, e.until);
    }

    // ---- requests ----

    /// @inheritdoc IDelivery
    function answer(
        bytes32 id,
        Offer calldata offer,
        uint256 index,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        bytes32[] calldata path
    ) external {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, index);
        (uint24 tensor, uint32 chunk) = (r.tensor, r.chunk);
        _checkOffer(e, offer);
        (uint256 count, uint256 above) = _shape(r.elements, chunk);
        if (leaves.length != count * Merkle.LEAF_BYTES) revert ChunkSize(leaves.length, count * Merkle.LEAF_BYTES);
        if (trueHashes.length != count) revert ChunkSize(trueHashes.length, count);
        uint256 height = Merkle.tensorHeight(r.elements);
        uint256 length = Merkle.height(job.states) + above;
        if (path.length != 2 * length) revert Merkle.PathLength(path.length, 2 * length);
        Cipher.Pair memory pair = Cipher.fold(
            tensor,
            uint256(chunk) * Cipher.CHUNK,
            leaves,
            trueHashes,
            height - above
        );
        _checkPair(job, offer, pair, (uint256(tensor) << above) | chunk, path);
        r.answeredAt = e.answeredAt = _now();
        e.open--;
        (uint256 deposit, uint256 pay) = _payAnswer(job, e, r);
        emit Answered(id, index, deposit, pay, leaves, trueHashes);
    }

    /// @dev ROUNDING: none; both factors are integers.
    function _payAnswer(
        Job storage job,
        Exchange storage e,
        Request storage r
    ) private returns (uint256 deposit, uint256 pay) {
        uint256 gas_ = _answerGas(job, r.elements, r.chunk);
        deposit = gas_ * r.price;
        pay = gas_ * Math.min(r.price, block.basefee);
        e.deposits -= uint112(deposit); // SAFETY: it was added before
        credits[job.trainer] += pay;
        credits[job.client] += deposit - pay;
    }

    /// @inheritdoc IDelivery
    function defer(bytes32 id, uint256 index) external {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, index);
        if (block.basefee <= r.price) revert PriceHolds(r.price, block.basefee);
        uint256 until = uint256(r.since) + job.spec.keyWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
        emit Deferred(id, index);
        r.since = _now();
        if (r.deferredAt == 0) {
            r.deferredAt = _now();
        } else if (block.timestamp > uint256(r.deferredAt) + job.spec.keyWindow) {
            _drop(id, job, e, r, index);
        }
    }

    /// @dev The client had a key window to raise its price; the trainer must not wait without end.
    function _drop(bytes32 id, Job storage job, Exchange storage e, Request storage r, uint256 index) private {
        uint256 deposit = _answerGas(job, r.elements, r.chunk) * r.price;
        r.answeredAt = e.answeredAt = _now();
        r.dropped = true;
        e.open--;
        e.deposits -= uint112(deposit); // SAFETY: it was added before
        credits[job.client] += deposit;
        emit Dropped(id, index, deposit);
    }

    /// @inheritdoc IDelivery
    function refused(bytes32 id, uint256 index) external {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, index);
        if (block.basefee > r.price) revert PriceExceeded(r.price, block.basefee);
        uint256 until = uint256(r.since) + job.spec.keyWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        _fail(id, job, e, Fault.Refused, 0);
    }

    function _openRequest(
        bytes32 id,
        uint256 index
    ) private view returns (Job storage job, Exchange storage e, Request storage r) {
        job = _inPhase(id, Phase.Delivering);
        e = _exchanges[id];
        if (index >= _requests[id].length) revert NotRequested();
        r = _requests[id][index];
        if (r.answeredAt != 0) revert NotRequested();
    }

    // ---- the key, and after it ----

    /// @inheritdoc IDelivery
    /// @dev A late key is accepted until `closeDelivery`: it does no harm, because the client receives the state.
    function revealKey(bytes32 id, Offer calldata offer, bytes32 key) external {
        Job storage job = _inPhase(id, Phase.Delivering);
        Exchange storage e = _exchanges[id];
        if (e.open != 0) revert RequestsOpen(e.open);
        if (e.confirmedAt == 0 && block.timestamp <= e.until) revert NotConfirmed(e.until);
        _checkOffer(e, offer);
        _expect(Cipher.keyHash(key, id), offer.keyHash);
        job.phase = Phase.Revealed;
        e.keyAt = _now();
        emit KeyRevealed(id, key);
    }

    /// @inheritdoc IDelivery
    function badNode(
        bytes32 id,
        Offer calldata offer,
        bytes32[4] calldata children,
        CipherPlace calldata place
    ) external {
        (Job storage job, Exchange storage e) = _contestable(id);
        _checkOffer(e, offer);
        // The kind of a node (state or tensor) follows from its place; the caller cannot choose it.
        uint8 kind = place.path.length / 2 < Merkle.height(job.states) ? Merkle.STATE : Merkle.TENSOR;
        (bytes32 cipher, bytes32 plain) = Cipher.parent(kind, children[0], children[1], children[2], children[3]);
        if (plain == place.trueHash) revert NothingWrong();
        _checkPair(job, offer, Cipher.Pair(cipher, place.trueHash), place.index, place.path);
        _fail(id, job, e, Fault.BadNode, NODE_GAS);
    }

    /// @inheritdoc IDelivery
    function badLeaf(
        bytes32 id,
        Offer calldata offer,
        bytes32 key,
        uint32 tensor,
        uint40 leaf,
        bytes calldata cipher,
        CipherPlace calldata place
    ) external {
        (Job storage job, Exchange storage e) = _contestable(id);
        if (job.phase != Phase.Revealed) revert WrongPhase(job.phase, Phase.Revealed);
        _checkOffer(e, offer);
        _expect(Cipher.keyHash(key, id), offer.keyHash);
        if (cipher.length != Merkle.LEAF_BYTES) revert LeafSize(cipher.length);
        Cipher.Pair memory pair = Cipher.Pair(Cipher.leaf(cipher, tensor, leaf), place.trueHash);
        _checkPair(job, offer, pair, place.index, place.path);
        if (Cipher.trueHash(cipher, Cipher.jobKey(key, id), tensor, leaf) == place.trueHash) revert NothingWrong();
        _fail(id, job, e, Fault.BadLeaf, LEAF_GAS);
    }

    /// @inheritdoc IDelivery
    function closeDelivery(bytes32 id, Phase phase) external {
        Job storage job = _inPhase(id, phase);
        Exchange storage e = _exchanges[id];
        if (phase == Phase.Revealed) {
            uint256 end = uint256(e.keyAt) + job.spec.complaintWindow;
            if (block.timestamp <= end) revert TooEarly(block.timestamp, end + 1);
            job.phase = Phase.Final;
            credits[job.trainer] += uint256(job.spec.reward) + job.spec.trainerBond;
            emit Delivered(id);
            return;
        }
        _inPhase(id, Phase.Delivering);
        if (e.open != 0) revert RequestsOpen(e.open);
        uint256 until = _keyFrom(e) + job.spec.keyWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        _fail(id, job, e, Fault.NoKey, 0);
    }

    /// @dev Begin of the key window: the confirmation or the end of the confirm window, but not before the last answer.
    function _keyFrom(Exchange storage e) private view returns (uint256) {
        return Math.max(e.confirmedAt != 0 ? e.confirmedAt : e.until, e.answeredAt);
    }

    /// @dev Until the end of the complaint window.
    function _contestable(bytes32 id) private view returns (Job storage job, Exchange storage e) {
        job = _jobs[id];
        e = _exchanges[id];
        if (job.phase == Phase.Delivering) return (job, e);
        _inPhase(id, Phase.Revealed);
        uint256 until = uint256(e.keyAt) + job.spec.complaintWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
    }

    /// @dev The client gets its money back, the caller at most the cost of the call; the rest of the bond is burnt. So
    /// no account gains by a failure.
    function _fail(bytes32 id, Job storage job, Exchange storage e, Fault fault, uint256 gas_) private {
        job.phase = Phase.Undelivered;
        uint256 bond = job.spec.trainerBond;
        uint256 paid = Math.min(gas_ * block.basefee, bond / 2);
        credits[msg.sender] += paid;
        credits[job.client] += uint256(job.spec.reward) + e.deposits;
        burnt += bond - paid;
        emit NotDelivered(id, fault, msg.sender, paid, e.deposits);
        e.deposits = 0;
    }

    // ---- the cipher tree ----

    function _checkOffer(Exchange storage e, Offer calldata offer) private view {
        _expect(keccak256(abi.encode(offer)), e.offer);
    }

    /// @dev Checks the pair at `index`, path.length / 2 levels below the root. Every true hash on its path must be the
    /// fold of those below it, so a complaint must show the highest fault.
    function _checkPair(
        Job storage job,
        Offer calldata offer,
        Cipher.Pair memory pair,
        uint256 index,
        bytes32[] calldata path
    ) private view {
        uint256 depth = path.length / 2;
        if (path.length % 2 != 0) revert Merkle.PathLength(path.length, 2 * depth);
        if (index >> depth != 0) revert Merkle.IndexOutOfRange(index, depth);
        uint256 ofState = Merkle.height(job.states);
        (bytes32 c, bytes32 p) = (pair.cipher, pair.plain);
        for (uint256 i; i < depth; ++i) {
            uint8 kind = depth - 1 - i < ofState ? Merkle.STATE : Merkle.TENSOR;
            (bytes32 c2, bytes32 p2) = (path[2 * i], path[2 * i + 1]);
            (c, p) = (index >> i) & 1 == 1 ? Cipher.parent(kind, c2, p2, c, p) : Cipher.parent(kind, c, p, c2, p2);
        }
        _expect(c, offer.cipherRoot);
        _expect(p, offer.finalState);
    }

    /// @dev Leaves of a chunk, and levels of its tensor above it.
    function _shape(uint256 elements, uint256 chunk) private pure returns (uint256 count, uint256 above) {
        uint256 leaves = _ceilDiv(elements, Merkle.LEAF_WORDS);
        uint256 chunks = _ceilDiv(leaves, Cipher.CHUNK);
        if (chunk >= chunks) revert NoSuchChunk(chunk, chunks);
        return (Math.min(leaves - chunk * Cipher.CHUNK, Cipher.CHUNK), Merkle.height(chunks));
    }

    function _answerGas(Job storage job, uint256 elements, uint256 chunk) private view returns (uint256) {
        (uint256 count, uint256 above) = _shape(elements, chunk);
        uint256 hashes = count + 2 * (Merkle.height(job.states) + above);
        return ANSWER_GAS + BYTE_GAS * (count * Merkle.LEAF_BYTES + 32 * hashes);
    }

    // ---- views ----

    /// @inheritdoc IDelivery
    function getExchange(bytes32 id) external view returns (Exchange memory) {
        return _exchanges[id];
    }

    /// @inheritdoc IDelivery
    function getRequests(bytes32 id) external view returns (Request[] memory) {
        return _requests[id];
    }

    /// @inheritdoc IDelivery
    function answerGas(bytes32 id, uint32 elements, uint32 chunk) external view returns (uint256) {
        return _answerGas(_jobs[id], elements, chunk);
    }
}
