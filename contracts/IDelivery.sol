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
    struct CipherPlace {
        bytes32 trueHash;
        uint256 index;
        bytes32[] path;
    }

    /// @notice Times are written once, but for that of the last answer.
    /// @param offer keccak256 of the `Offer`
    /// @param until end of the confirm window
    /// @param confirmedAt when the client confirmed; 0: it has not
    /// @param answeredAt when a request was last answered or dropped; 0: none was
    /// @param keyAt when the key was revealed; 0: it is not
    /// @param open requests that are not answered
    /// @param deposits wei for the answers to these
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
    /// @param chunk which 64 leaves of it
    /// @param elements words of the tensor
    /// @param price most wei for a unit of gas of the answer
    /// @param since when the trainer's time began
    /// @param answeredAt when it was answered or dropped; 0: it is open
    /// @param deferredAt when it was first deferred at this price; 0: never
    /// @param dropped it was closed without an answer
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
    /// @notice The client wants 64 leaves opened on chain: its request number `index`.
    event Requested(bytes32 indexed job, uint256 index, uint256 tensor, uint256 chunk, uint256 price, uint256 deposit);
    /// @notice The client pays more for a request; `deposit`: what it has added.
    event Raised(bytes32 indexed job, uint256 index, uint256 price, uint256 deposit);
    /// @notice The base fee is above what the client pays: the answer waits.
    event Deferred(bytes32 indexed job, uint256 index);
    /// @notice After `Deferred`: the client did not raise its price in a key window. The request is closed, the deposit is
    /// the client's.
    event Dropped(bytes32 indexed job, uint256 index, uint256 deposit);
    /// @notice What was opened stands here: nobody has to decode calldata. `pay` goes to the trainer, the rest of
    /// `deposit` back.
    event Answered(
        bytes32 indexed job,
        uint256 index,
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
    /// @notice A request pays at least the base fee; a raised one more than before.
    error PriceTooLow(uint256 price, uint256 least);
    /// @notice The base fee is not above the price of the request.
    error PriceHolds(uint256 price, uint256 baseFee);
    /// @notice The base fee is above the price of the request.
    error PriceExceeded(uint256 price, uint256 baseFee);
    /// @notice The tensor has fewer chunks.
    error NoSuchChunk(uint256 chunk, uint256 count);
    /// @notice There are so many requests: the call was decided on another list.
    error WrongIndex(uint256 actual, uint256 index);
    /// @notice There is no such request, or it is answered, or it is for another chunk.
    error NotRequested();
    /// @notice A chunk has so many leaves.
    error ChunkSize(uint256 actual, uint256 expected);
    /// @notice The complaint shows no fault.
    error NothingWrong();

    /// @notice The client has the ciphertext of that offer (its hash), whole: the time for the key begins. Silence to the
    /// end of the window means the same.
    function confirm(bytes32 job, bytes32 offer) external;

    /// @notice The client does not want it: a quarter of the reward goes back, a quarter and the bond to the trainer,
    /// the rest is burnt.
    function decline(bytes32 job, bytes32 offer) external;

    /// @notice The client has the trainer open 64 leaves on chain; pays price · gas of the answer, what is left over
    /// comes back. `index`: how many requests there are; `source`: the record of the tensor in the program.
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

    /// @notice Open a requested chunk: cipher leaves, their true hashes, the pairs beside the way to the root. Anyone;
    /// the trainer is credited.
    function answer(
        bytes32 job,
        Offer calldata offer,
        uint256 index,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        bytes32[] calldata path
    ) external;

    /// @notice In a block whose base fee is above the price of a request its time begins again, if it is not over. A key
    /// window after the first time, if the client has not raised the price, the request is dropped. Anyone.
    function defer(bytes32 job, uint256 index) external;

    /// @notice A request was not answered in time. Anyone, in a block whose base fee is not above its price.
    function refused(bytes32 job, uint256 index) external;

    /// @notice After the confirmation, with no request open: the key. Anyone.
    function revealKey(bytes32 job, Offer calldata offer, bytes32 key) external;

    /// @notice A node whose children's true hashes do not make its own. Anyone.
    function badNode(
        bytes32 job,
        Offer calldata offer,
        bytes32[4] calldata children,
        CipherPlace calldata place
    ) external;

    /// @notice A leaf whose plain text, by the revealed key, does not have its true hash. Anyone.
    function badLeaf(
        bytes32 job,
        Offer calldata offer,
        bytes32 key,
        uint32 tensor,
        uint40 leaf,
        bytes calldata cipher,
        CipherPlace calldata place
    ) external;

    /// @notice What time has decided: no key in time (refund, slash), or no complaint in time (the reward is paid).
    /// Anyone.
    /// @param phase the job's: Delivering or Revealed
    function closeDelivery(bytes32 job, Phase phase) external;

    /// @notice How the delivery of a job stands.
    function getExchange(bytes32 job) external view returns (Exchange memory);
    /// @notice All requests, at most 64.
    function getRequests(bytes32 job) external view returns (Request[] memory);

    /// @notice What a request costs at a price of one wei.
    function answerGas(bytes32 job, uint32 elements, uint32 chunk) external view returns (uint256);
}
