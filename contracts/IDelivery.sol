// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGame} from "./IGame.sol";

/// @title Fair exchange of the trained state for the reward (docs/delivery.md); implemented by `Delivery`
/// @notice For jobs whose order has the three windows of delivery. A *pair* is a hash of the cipher tree and the true
/// hash of the same place.
interface IDelivery is IGame {
    /// @notice The trainer's commitments for the delivery, made with its claim.
    /// @param finalState state root of the last checkpoint
    /// @param cipherRoot root of the cipher tree over that state
    /// @param keyHash H(0x06 ‖ key ‖ job)
    struct Offer {
        bytes32 finalState;
        bytes32 cipherRoot;
        bytes32 keyHash;
    }

    /// @notice A node of the cipher tree: its pair, its place below the root, and the sibling pairs on its path to the
    /// root (cipher hash, true hash, ...).
    struct CipherPlace {
        bytes32 trueHash;
        uint256 index;
        bytes32[] path;
    }

    /// @notice Times are written once, except the time of the last answer.
    /// @param offer keccak256 of the `Offer`
    /// @param until end of the confirm window
    /// @param confirmedAt time of the client's confirmation; 0: not yet
    /// @param answeredAt time of the last answer to a request, or of the last drop; 0: none
    /// @param keyAt time at which the key was revealed; 0: not yet
    /// @param open number of requests without an answer
    /// @param deposits wei for the answers to these requests
    struct Exchange {
        bytes32 offer;
        uint40 until;
        uint32 confirmedAt;
        uint32 answeredAt;
        uint32 keyAt;
        uint8 open;
        uint112 deposits;
    }

    /// @param tensor number of the state tensor
    /// @param chunk number of the requested 64 leaves
    /// @param elements words of the tensor
    /// @param price maximum wei per unit of gas of the answer
    /// @param since begin of the trainer's time
    /// @param answeredAt time of the answer or drop; 0: the request is open
    /// @param deferredAt time of the first deferral at this price; 0: none
    /// @param dropped the request was closed without an answer
    struct Request {
        uint24 tensor;
        uint32 chunk;
        uint32 elements;
        uint64 price;
        uint32 since;
        uint32 answeredAt;
        uint32 deferredAt;
        bool dropped;
    }

    /// @notice The reason why the trainer was not paid.
    enum Fault {
        NoKey,
        Refused,
        BadNode,
        BadLeaf
    }

    /// @notice The trainer commits to a ciphertext of the final state and to its key.
    event Offered(bytes32 indexed job, bytes32 finalState, bytes32 cipherRoot, bytes32 keyHash);
    /// @notice The claim is final: the client can confirm, decline or request until `until`.
    event DeliveryOpened(bytes32 indexed job, uint256 until);
    /// @notice The client has the ciphertext; the key window begins.
    event Confirmed(bytes32 indexed job);
    /// @notice The client has declined the delivery. `deposits`: of open requests, returned to the client.
    event Declined(bytes32 indexed job, uint256 deposits);
    /// @notice The client wants 64 leaves opened on chain: its request number `index`.
    event Requested(bytes32 indexed job, uint256 index, uint256 tensor, uint256 chunk, uint256 price, uint256 deposit);
    /// @notice The client pays more for a request; `deposit`: the added amount.
    event Raised(bytes32 indexed job, uint256 index, uint256 price, uint256 deposit);
    /// @notice The base fee is above the price of the request: the trainer's time begins again.
    event Deferred(bytes32 indexed job, uint256 index);
    /// @notice After `Deferred`: the client did not raise its price within a key window. The request is closed, and the
    /// client gets the deposit back.
    event Dropped(bytes32 indexed job, uint256 index, uint256 deposit);
    /// @notice The opened leaves, so that readers need not decode calldata. `pay` goes to the trainer, the rest of
    /// `deposit` back to the client.
    event Answered(
        bytes32 indexed job,
        uint256 index,
        uint256 deposit,
        uint256 pay,
        bytes leaves,
        bytes32[] trueHashes
    );
    /// @notice The key is public: complaints are possible until the window ends.
    event KeyRevealed(bytes32 indexed job, bytes32 key);
    /// @notice The trainer is paid.
    event Delivered(bytes32 indexed job);
    /// @notice The delivery has failed. `paid`: the caller's compensation for the gas of its complaint.
    event NotDelivered(bytes32 indexed job, Fault fault, address caller, uint256 paid, uint256 deposits);

    /// @notice The order has no windows of delivery.
    error NoDelivery();
    /// @notice The claim came without an offer.
    error NoOffer();
    /// @notice Only the client may make this call.
    error NotClient(address caller);
    /// @notice The client has confirmed.
    error AlreadyConfirmed();
    /// @notice The client can still decline.
    error NotConfirmed(uint256 until);
    /// @notice Some requests have no answer yet.
    error RequestsOpen(uint256 count);
    /// @notice The client has made the maximum number of requests.
    error TooManyRequests(uint256 limit);
    /// @notice A request pays at least the base fee; a raised one more than before.
    error PriceTooLow(uint256 price, uint256 least);
    /// @notice The base fee is not above the price of the request.
    error PriceHolds(uint256 price, uint256 baseFee);
    /// @notice The base fee is above the price of the request.
    error PriceExceeded(uint256 price, uint256 baseFee);
    /// @notice The tensor has fewer chunks.
    error NoSuchChunk(uint256 chunk, uint256 count);
    /// @notice The number of requests has changed since the call was prepared.
    error WrongIndex(uint256 actual, uint256 index);
    /// @notice There is no such request, or it is answered, or it is for another chunk.
    error NotRequested();
    /// @notice Wrong number of leaves of a chunk.
    error ChunkSize(uint256 actual, uint256 expected);
    /// @notice The complaint shows no fault.
    error NothingWrong();

    /// @notice The client has the whole ciphertext of an offer (given by its hash): the key window begins. Without any
    /// call of the client, it begins at the end of the confirm window.
    function confirm(bytes32 job, bytes32 offer) external;

    /// @notice The client declines the state: a quarter of the reward is refunded, a quarter and the bond go to the
    /// trainer, and the rest is burnt.
    function decline(bytes32 job, bytes32 offer) external;

    /// @notice The client requests that the trainer opens 64 leaves on chain; it pays price · gas of the answer, and
    /// the rest is refunded. `index`: number of earlier requests; `source`: the record of the tensor in the program.
    function request(
        bytes32 job,
        bytes32 offer,
        uint256 index,
        uint24 tensor,
        uint32 chunk,
        uint64 price,
        Record calldata source
    ) external payable;

    /// @notice The client pays a higher price for an open request; its time begins again.
    function raise(bytes32 job, uint256 index, uint24 tensor, uint32 chunk, uint64 price) external payable;

    /// @notice Open a requested chunk: cipher leaves, their true hashes, and the sibling pairs on the path to the root.
    /// Anyone; the trainer is credited.
    function answer(
        bytes32 job,
        Offer calldata offer,
        uint256 index,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        bytes32[] calldata path
    ) external;

    /// @notice In a block whose base fee is above the price of a request, its time begins again, unless it is over. A
    /// key window after the first deferral, if the client has not raised the price, the request is dropped. Anyone.
    function defer(bytes32 job, uint256 index) external;

    /// @notice A request was not answered in time. Anyone, in a block whose base fee is not above its price.
    function refused(bytes32 job, uint256 index) external;

    /// @notice Reveal the key, after the confirmation and with no request open. Anyone.
    function revealKey(bytes32 job, Offer calldata offer, bytes32 key) external;

    /// @notice Complain about a node whose true hash does not follow from its children's true hashes. Anyone.
    function badNode(
        bytes32 job,
        Offer calldata offer,
        bytes32[4] calldata children,
        CipherPlace calldata place
    ) external;

    /// @notice Complain about a leaf whose plain text, decrypted with the revealed key, does not have its true hash.
    /// Anyone.
    function badLeaf(
        bytes32 job,
        Offer calldata offer,
        bytes32 key,
        uint32 tensor,
        uint40 leaf,
        bytes calldata cipher,
        CipherPlace calldata place
    ) external;

    /// @notice Close a delivery whose window is over: without a key (refund, slash), or without a complaint (the reward
    /// is paid). Anyone.
    /// @param phase the job's: Delivering or Revealed
    function closeDelivery(bytes32 job, Phase phase) external;

    /// @notice The state of a job's delivery.
    function getExchange(bytes32 job) external view returns (Exchange memory);
    /// @notice All requests, at most 64.
    function getRequests(bytes32 job) external view returns (Request[] memory);

    /// @notice The deposit of a request at a price of one wei.
    function answerGas(bytes32 job, uint32 elements, uint32 chunk) external view returns (uint256);
}
