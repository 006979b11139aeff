// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Address} from "@openzeppelin/contracts/utils/Address.sol";
import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Cipher} from "./Cipher.sol";
import {GameState} from "./GameState.sol";
import {IDelivery} from "./IDelivery.sol";
import {IReferee} from "./IReferee.sol";
import {ISettlement} from "./ISettlement.sol";
import {Merkle} from "./Merkle.sol";
import {Records} from "./Records.sol";

/// @title The exchange of the trained state for the reward
/// @notice Runs inside `VerificationGame` by delegatecall, behind `Settlement`; at its own address there is no job, so
/// nothing can be played there.
contract Delivery is GameState, IDelivery {
    uint256 private constant MAX_REQUESTS = 64;
    /// @dev Less than any complaint costs, also of who has credits already (tests/game/test_delivery_money.py): to be
    /// paid for it is no gain.
    uint256 private constant NODE_GAS = 35_000;
    uint256 private constant LEAF_GAS = 55_000;
    /// @dev What every answer costs, and each byte of it: the floor of calldata. Less than it really costs, so to be
    /// asked is no gain.
    uint256 private constant ANSWER_GAS = 21_000;
    uint256 private constant BYTE_GAS = 40;

    constructor(IReferee referee_) GameState(referee_) {}

    /// @inheritdoc IDelivery
    /// @dev The claim itself is made by the code that makes every claim, in this storage and for this caller. It
    /// reverts at `Delivery`'s own address.
    function postClaimAndOffer(
        bytes32 id,
        bytes32 runRoot,
        bytes32 finalState,
        bytes32[] calldata path,
        bytes32 cipherRoot,
        bytes32 keyHash
    ) external {
        if (_jobs[id].spec.confirmWindow == 0) revert NoDelivery();
        _exchanges[id].offer = keccak256(abi.encode(Offer(finalState, cipherRoot, keyHash)));
        Address.functionDelegateCall(
            address(this),
            abi.encodeCall(ISettlement.postClaim, (id, runRoot, finalState, path))
        );
        emit Offered(id, finalState, cipherRoot, keyHash);
    }

    // ---- the client, before the key ----

    /// @inheritdoc IDelivery
    function confirm(bytes32 id) external {
        (, Exchange storage e) = _undecided(id);
        if (e.open != 0) revert RequestsOpen(e.open);
        (e.confirmed, e.until) = (true, uint40(block.timestamp));
        emit Confirmed(id);
    }

    /// @inheritdoc IDelivery
    /// @dev ROUNDING: odd wei are burnt.
    function decline(bytes32 id) external {
        (Job storage job, Exchange storage e) = _undecided(id);
        job.phase = Phase.Declined;
        uint256 quarter = job.spec.reward / 4;
        credits[job.client] += quarter + e.deposits;
        credits[job.trainer] += quarter + job.spec.trainerBond;
        burnt += job.spec.reward - 2 * quarter;
        emit Declined(id, e.deposits);
        e.deposits = 0;
    }

    /// @inheritdoc IDelivery
    function request(bytes32 id, uint24 tensor, uint32 chunk, uint96 price, Record calldata source) external payable {
        (Job storage job, Exchange storage e) = _undecided(id);
        if (e.requests == MAX_REQUESTS) revert TooManyRequests(MAX_REQUESTS);
        // A price that the trainer could refuse at once would be no request, only a nuisance.
        if (price < block.basefee) revert PriceTooLow(price, block.basefee);
        referee.source(job.spec.programRoot, tensor, source.header, source.record, source.path);
        uint32 elements = Records.u32(source.record, 1);
        uint256 cost = price * _answerGas(job, elements, chunk);
        if (msg.value != cost) revert WrongValue(msg.value, cost);
        Request storage r = _requests[_requestKey(id, tensor, chunk)];
        if (r.since != 0) revert AlreadyRequested();
        (r.elements, r.price, r.since, r.open) = (elements, price, uint40(block.timestamp), true);
        e.requests++;
        e.open++;
        e.deposits += uint128(cost); // SAFETY: somebody paid it
        emit Requested(id, tensor, chunk, price, cost);
    }

    /// @dev In the confirm window, the client alone.
    function _undecided(bytes32 id) private view returns (Job storage job, Exchange storage e) {
        job = _inPhase(id, Phase.Delivering);
        e = _exchanges[id];
        if (msg.sender != job.client) revert NotClient(msg.sender);
        if (e.confirmed) revert AlreadyConfirmed();
        if (block.timestamp > e.until) revert TooLate(block.timestamp, e.until);
    }

    // ---- requests ----

    /// @inheritdoc IDelivery
    function answer(
        bytes32 id,
        Offer calldata offer,
        uint24 tensor,
        uint32 chunk,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        bytes32[] calldata path
    ) external {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, tensor, chunk);
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
        r.open = false;
        e.open--;
        if (block.timestamp > e.until) e.until = uint40(block.timestamp);
        (uint256 deposit, uint256 pay) = _payAnswer(job, e, r, chunk);
        emit Answered(id, tensor, chunk, deposit, pay, leaves, trueHashes);
    }

    /// @dev ROUNDING: in nobody's favour; both factors are whole.
    function _payAnswer(
        Job storage job,
        Exchange storage e,
        Request storage r,
        uint256 chunk
    ) private returns (uint256 deposit, uint256 pay) {
        uint256 gas_ = _answerGas(job, r.elements, chunk);
        deposit = gas_ * r.price;
        pay = gas_ * Math.min(r.price, block.basefee);
        e.deposits -= uint128(deposit);
        credits[job.trainer] += pay;
        credits[job.client] += deposit - pay;
    }

    /// @inheritdoc IDelivery
    function defer(bytes32 id, uint24 tensor, uint32 chunk) external {
        (, , Request storage r) = _openRequest(id, tensor, chunk);
        if (block.basefee <= r.price) revert PriceHolds(r.price, block.basefee);
        r.since = uint40(block.timestamp);
        emit Deferred(id, tensor, chunk);
    }

    /// @inheritdoc IDelivery
    function refused(bytes32 id, uint24 tensor, uint32 chunk) external {
        (Job storage job, Exchange storage e, Request storage r) = _openRequest(id, tensor, chunk);
        if (block.basefee > r.price) revert PriceExceeded(r.price, block.basefee);
        uint256 until = uint256(r.since) + job.spec.keyWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        _fail(id, job, e, Fault.Refused, 0);
    }

    function _openRequest(
        bytes32 id,
        uint256 tensor,
        uint256 chunk
    ) private view returns (Job storage job, Exchange storage e, Request storage r) {
        job = _inPhase(id, Phase.Delivering);
        e = _exchanges[id];
        r = _requests[_requestKey(id, tensor, chunk)];
        if (!r.open) revert NotRequested();
    }

    // ---- the key, and after it ----

    /// @inheritdoc IDelivery
    /// @dev A key that comes late, but before anybody has said so, harms nobody: the client has what it paid for.
    function revealKey(bytes32 id, Offer calldata offer, bytes32 key) external {
        Job storage job = _inPhase(id, Phase.Delivering);
        Exchange storage e = _exchanges[id];
        if (e.open != 0) revert RequestsOpen(e.open);
        if (!e.confirmed && block.timestamp <= e.until) revert NotConfirmed(e.until);
        _checkOffer(e, offer);
        _expect(Cipher.keyHash(key, id), offer.keyHash);
        job.phase = Phase.Revealed;
        job.since = uint32(block.timestamp);
        emit KeyRevealed(id, key);
    }

    /// @inheritdoc IDelivery
    function badNode(bytes32 id, Offer calldata offer, bytes32[4] calldata children, Place calldata place) external {
        (Job storage job, Exchange storage e) = _contestable(id);
        _checkOffer(e, offer);
        // A node is a state's or a tensor's by where it lies, not as the caller likes.
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
        Place calldata place
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
    function closeDelivery(bytes32 id) external {
        Job storage job = _jobs[id];
        Exchange storage e = _exchanges[id];
        if (job.phase == Phase.Revealed) {
            uint256 end = uint256(job.since) + job.spec.complaintWindow;
            if (block.timestamp <= end) revert TooEarly(block.timestamp, end + 1);
            job.phase = Phase.Final;
            credits[job.trainer] += uint256(job.spec.reward) + job.spec.trainerBond;
            emit Delivered(id);
            return;
        }
        _inPhase(id, Phase.Delivering);
        if (e.open != 0) revert RequestsOpen(e.open);
        uint256 until = uint256(e.until) + job.spec.keyWindow;
        if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);
        _fail(id, job, e, Fault.NoKey, 0);
    }

    /// @dev Until the end of the complaint window.
    function _contestable(bytes32 id) private view returns (Job storage job, Exchange storage e) {
        job = _jobs[id];
        e = _exchanges[id];
        if (job.phase == Phase.Delivering) return (job, e);
        _inPhase(id, Phase.Revealed);
        uint256 until = uint256(job.since) + job.spec.complaintWindow;
        if (block.timestamp > until) revert TooLate(block.timestamp, until);
    }

    /// @dev The client has its money back, the caller at most what the call cost; the rest of the bond is burnt: nobody
    /// gains by a failure.
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

    /// @dev The pair at `index`, path.length / 2 levels below the root. Every true hash on its way up is the fold of
    /// those below: who wants to show a fault shows the highest one.
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

    function _requestKey(bytes32 id, uint256 tensor, uint256 chunk) private pure returns (bytes32) {
        return keccak256(abi.encode("request", id, tensor, chunk));
    }

    // ---- views ----

    /// @inheritdoc IDelivery
    function getExchange(bytes32 id) external view returns (Exchange memory) {
        return _exchanges[id];
    }

    /// @inheritdoc IDelivery
    function getRequest(bytes32 id, uint24 tensor, uint32 chunk) external view returns (Request memory) {
        return _requests[_requestKey(id, tensor, chunk)];
    }

    /// @inheritdoc IDelivery
    function answerGas(bytes32 id, uint32 elements, uint32 chunk) external view returns (uint256) {
        return _answerGas(_jobs[id], elements, chunk);
    }
}
