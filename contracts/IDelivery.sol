// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGame} from "./IGame.sol";

/// @title Fair exchange of the trained state for the reward (docs/delivery.md); implemented by `Delivery`
/// @notice For jobs whose order has the three windows of delivery. A *pair* is a hash of the cipher tree and the true
/// hash of the same place.
interface IDelivery is IGame {
    /// @notice What the trainer committed to with its claim.
    /// @param finalState state root of the last checkpoint
    /// @param cipherRoot root of the cipher tree over that state
    /// @param keyHash H(0x06 ‖ key ‖ job)
    struct Offer {
        bytes32 finalState;
        bytes32 cipherRoot;
        bytes32 keyHash;
    }

    /// @notice A node of the cipher tree: its pair, where it lies below the root, and the pairs beside its way up
    /// (cipher hash, true hash, ...).
    struct Place {
        bytes32 trueHash;
        uint256 index;
        bytes32[] path;
    }

    /// @param offer keccak256 of the `Offer`
    /// @param until end of the confirm window: what comes later is the time for the key
    /// @param requests how many chunks were ever requested
    /// @param open how many of them are not answered
    /// @param confirmed the client has confirmed
    /// @param deposits wei for the answers to the open ones
    struct Exchange {
        bytes32 offer;
        uint40 until;
        uint8 requests;
        uint8 open;
        bool confirmed;
        uint128 deposits;
    }

    /// @param elements words of the tensor
    /// @param price most wei for a unit of gas of the answer
    /// @param since when the trainer's time began; 0: never requested
    /// @param open not answered yet
    struct Request {
        uint32 elements;
        uint96 price;
        uint40 since;
        bool open;
    }

    /// @notice Why the trainer was not paid.
    enum Fault {
        NoKey,
        Refused,
        BadNode,
        BadLeaf
    }

    /// @notice The trainer commits to a ciphertext of the final state and to its key.
    event Offered(bytes32 indexed job, bytes32 finalState, bytes32 cipherRoot, bytes32 keyHash);
    /// @notice The claim is final: the client confirms, declines or requests until then.
    event DeliveryOpened(bytes32 indexed job, uint256 until);
    /// @notice The client has the ciphertext; the time for the key runs.
    event Confirmed(bytes32 indexed job);
    /// @notice `deposits`: of requests that were open, gone back to the client.
    event Declined(bytes32 indexed job, uint256 deposits);
    /// @notice The client wants 64 leaves opened on chain.
    event Requested(bytes32 indexed job, uint256 tensor, uint256 chunk, uint256 price, uint256 deposit);
    /// @notice The base fee is above what the client pays: the answer waits.
    event Deferred(bytes32 indexed job, uint256 tensor, uint256 chunk);
    /// @notice What was opened stands here: nobody has to decode calldata. `pay` goes to the trainer, the rest of
    /// `deposit` back.
    event Answered(
        bytes32 indexed job,
        uint256 tensor,
        uint256 chunk,
        uint256 deposit,
        uint256 pay,
        bytes leaves,
        bytes32[] trueHashes
    );
    /// @notice The key is out: complaints until the window ends.
    event KeyRevealed(bytes32 indexed job, bytes32 key);
    /// @notice The trainer is paid.
    event Delivered(bytes32 indexed job);
    /// @notice `paid`: what the caller has for the gas of its complaint.
    event NotDelivered(bytes32 indexed job, Fault fault, address caller, uint256 paid, uint256 deposits);

    /// @notice The order has no windows of delivery.
    error NoDelivery();
    /// @notice The claim came without an offer.
    error NoOffer();
    /// @notice Only the client may do that.
    error NotClient(address caller);
    /// @notice The client has confirmed.
    error AlreadyConfirmed();
    /// @notice The client can still decline.
    error NotConfirmed(uint256 until);
    /// @notice Some requests are not answered.
    error RequestsOpen(uint256 count);
    /// @notice The client has requested as often as it may.
    error TooManyRequests(uint256 limit);
    /// @notice A request pays at least the base fee.
    error PriceTooLow(uint256 price, uint256 baseFee);
    /// @notice The base fee is not above the price of the request.
    error PriceHolds(uint256 price, uint256 baseFee);
    /// @notice The base fee is above the price of the request.
    error PriceExceeded(uint256 price, uint256 baseFee);
    /// @notice The tensor has fewer chunks.
    error NoSuchChunk(uint256 chunk, uint256 count);
    /// @notice The chunk was requested before.
    error AlreadyRequested();
    /// @notice Nobody has requested the chunk.
    error NotRequested();
    /// @notice A chunk has so many leaves.
    error ChunkSize(uint256 actual, uint256 expected);
    /// @notice The complaint shows no fault.
    error NothingWrong();

    /// @notice The trainer's claim "trained" of a job with delivery: `postClaim`, and what the client will receive.
    function postClaimAndOffer(
        bytes32 job,
        bytes32 runRoot,
        bytes32 finalState,
        bytes32[] calldata path,
        bytes32 cipherRoot,
        bytes32 keyHash
    ) external;

    /// @notice The client has the ciphertext, whole: the time for the key begins. Silence to the end of the window says
    /// the same.
    function confirm(bytes32 job) external;

    /// @notice The client does not want it: a quarter of the reward goes back, a quarter and the bond to the trainer,
    /// the rest is burnt.
    function decline(bytes32 job) external;

    /// @notice The client has the trainer open 64 leaves on chain, once each; pays price · gas of the answer, what is
    /// left over comes back. `source` is the record of the tensor in the program.
    function request(bytes32 job, uint24 tensor, uint32 chunk, uint96 price, Record calldata source) external payable;

    /// @notice Open a requested chunk: cipher leaves, their true hashes, the pairs beside the way to the root. Anyone;
    /// the trainer is credited.
    function answer(
        bytes32 job,
        Offer calldata offer,
        uint24 tensor,
        uint32 chunk,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        bytes32[] calldata path
    ) external;

    /// @notice In a block whose base fee is above the price of a request its time begins again. Anyone.
    function defer(bytes32 job, uint24 tensor, uint32 chunk) external;

    /// @notice A request was not answered in time. Anyone, in a block whose base fee is not above its price.
    function refused(bytes32 job, uint24 tensor, uint32 chunk) external;

    /// @notice After the confirmation, with no request open: the key. Anyone.
    function revealKey(bytes32 job, Offer calldata offer, bytes32 key) external;

    /// @notice A node whose children's true hashes do not make its own. Anyone.
    function badNode(bytes32 job, Offer calldata offer, bytes32[4] calldata children, Place calldata place) external;

    /// @notice A leaf whose plain text, by the revealed key, does not have its true hash. Anyone.
    function badLeaf(
        bytes32 job,
        Offer calldata offer,
        bytes32 key,
        uint32 tensor,
        uint40 leaf,
        bytes calldata cipher,
        Place calldata place
    ) external;

    /// @notice What time has decided: no key in time (refund, slash), or no complaint in time (the reward is paid).
    /// Anyone.
    function closeDelivery(bytes32 job) external;

    /// @notice How the delivery of a job stands.
    function getExchange(bytes32 job) external view returns (Exchange memory);
    /// @notice How a request for a chunk stands.
    function getRequest(bytes32 job, uint24 tensor, uint32 chunk) external view returns (Request memory);

    /// @notice What a request costs at a price of one wei.
    function answerGas(bytes32 job, uint32 elements, uint32 chunk) external view returns (uint256);
}
