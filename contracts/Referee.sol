// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Accumulator, Partial} from "./arithmetic/Accumulator.sol";
import {Binary32} from "./arithmetic/Binary32.sol";
import {Functions} from "./arithmetic/Functions.sol";
import {Philox} from "./arithmetic/Philox.sol";
import {Pointwise} from "./arithmetic/Pointwise.sol";
import {Reduction} from "./arithmetic/Reduction.sol";
import {IReferee} from "./IReferee.sol";
import {Merkle} from "./Merkle.sol";
import {Records} from "./Records.sol";

/// @title The referee: one output element of one operator of one training step, computed exactly from words that are proven
/// @notice Twin: vgame/execute/reference.py. The proof is abi.encode of struct Proof; its openings are the words that the formula reads, in
/// its order (docs/formats.md section 6). No storage; the functions of a map live in a contract of their own.
contract Referee is IReferee {
    using Records for bytes;

    Pointwise public immutable pointwise;

    /// @param words whole leaves that cover a run of words
    /// @param siblings their range proof to the tensor's root
    /// @param path of the tensor's root in its tree
    struct Opening {
        bytes words;
        bytes32[] siblings;
        bytes32[] path;
    }

    /// @param header of the program
    /// @param record of the operator
    /// @param path of the record
    struct Proof {
        bytes header;
        bytes record;
        bytes32[] path;
        Opening[] openings;
    }

    /// @dev Counts the openings that are used up; `rank` and `index` are the output's position in the index space.
    struct Cursor {
        uint256 next;
        uint256[] index;
    }

    error WrongRoot(bytes32 actual, bytes32 expected);
    error OpeningSize(uint256 actual, uint256 expected);
    error OpeningCount(uint256 actual, uint256 expected);
    error ElementOutOfRange(uint256 element, uint256 elements);
    error NotABlock(uint256 part, uint256 blocks);
    error DecidedInBlocks(uint256 blocks);

    constructor(Pointwise pointwise_) {
        pointwise = pointwise_;
    }

    // ---- what the game asks about a program ----

    /// @inheritdoc IReferee
    function program(bytes32 programRoot, bytes calldata header) external pure returns (uint32, uint32) {
        Records.Header memory h = Records.openHeader(programRoot, header);
        return (h.states, h.operators);
    }

    /// @inheritdoc IReferee
    function source(
        bytes32 programRoot,
        uint32 tensor,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external view returns (bool computed, uint32 operator) {
        Records.Header memory h = Records.openHeader(programRoot, header);
        Records.check(Merkle.SOURCES, record, tensor, h.states, h.sourcesRoot, path);
        Records.Reference memory r = record.ref(5);
        return (r.class == Records.OPERATOR, r.index);
    }

    /// @inheritdoc IReferee
    function describe(
        bytes32 programRoot,
        uint32 operator,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external view returns (uint32 elements, bool finite, uint32 blocks) {
        Records.Header memory h = Records.openHeader(programRoot, header);
        Records.check(Merkle.OPERATORS, record, operator, h.operators, h.operatorsRoot, path);
        (elements, finite, blocks) = (record.u32(3), record.u8(2) & Records.FINITE != 0, 1);
        if (record.u8(0) == Records.CONTRACT) {
            (uint256 count,) = Records.blocksOf(record.u32(Records.BODY + 12));
            blocks = uint32(count);
        }
    }

    // ---- elements ----

    /// @inheritdoc IReferee
    function evaluate(Context calldata c, bytes calldata proof) external view returns (uint32 word) {
        (Proof calldata p, Records.Header memory h) = _open(c, proof);
        bytes calldata record = p.record;
        Cursor memory at;
        uint8 kind = record.u8(0);
        if (kind == Records.MAP) word = _map(c, p, h, at);
        else if (kind == Records.COPY) word = _copy(c, p, h, at);
        else if (kind == Records.CONTRACT) word = _contract(c, p, h, at);
        else if (kind == Records.GATHER) word = _gather(c, p, h, at);
        else if (kind == Records.REDUCE_MAX) word = _reduceMax(c, p, h, at);
        else if (kind == Records.ARGMAX) word = _argmax(c, p, h, at);
        else if (kind == Records.PHILOX) word = Philox.randomWord(c.seed, c.step, c.operator, c.element);
        else if (kind == Records.SHUFFLE) word = Philox.shuffleIndex(c.seed, c.step, c.element, record.u32(3), record.u32(Records.BODY));
        else revert Records.UnknownKind(kind);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        if (record.u8(2) & Records.INTEGER == 0 && Binary32.isNan(word)) word = Binary32.NAN;
    }

    /// @inheritdoc IReferee
    function evaluateBlock(Context calldata c, uint32 part, bytes calldata proof) external view returns (bytes memory) {
        (Proof calldata p, Records.Header memory h) = _open(c, proof);
        if (p.record.u8(0) != Records.CONTRACT) revert Records.UnknownKind(p.record.u8(0));
        uint256 k = p.record.u32(Records.BODY + 12);
        (uint256 blocks, uint256 length) = Records.blocksOf(k);
        if (part >= blocks) revert NotABlock(part, blocks);
        uint256 first = part * length;
        Cursor memory at;
        Partial memory result = _terms(c, p, h, at, first, first + length > k ? k - first : length);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        return Accumulator.encode(result);
    }

    /// @inheritdoc IReferee
    function combine(bytes[] calldata partials) external pure returns (uint32) {
        Partial memory total = Accumulator.decode(partials[0]);
        for (uint256 i = 1; i < partials.length; ++i) total = Accumulator.merge(total, Accumulator.decode(partials[i]));
        return Accumulator.round(total);
    }

    /// @dev The proof's record is the operator's, and the element exists.
    function _open(Context calldata c, bytes calldata proof)
        private
        view
        returns (Proof calldata p, Records.Header memory h)
    {
        // Equivalent to: p = abi.decode(proof, (Proof)), without the copy to memory.
        // SAFETY: every field is read through Solidity's bounds checks of calldata.
        assembly ("memory-safe") {
            p := add(proof.offset, calldataload(proof.offset))
        }
        h = Records.openHeader(c.programRoot, p.header);
        Records.check(Merkle.OPERATORS, p.record, c.operator, h.operators, h.operatorsRoot, p.path);
        uint32 elements = p.record.u32(3);
        if (c.element >= elements) revert ElementOutOfRange(c.element, elements);
    }

    // ---- operators ----

    function _map(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32)
    {
        uint8 code = p.record.u8(1);
        uint256 offset = _unravel(c, p, at);
        uint32[3] memory w;
        uint256 count = Functions.arity(code);
        for (uint256 i; i < count; ++i) {
            bool inside;
            (inside, w[i], offset) = _access(c, p, h, at, offset);
        }
        return pointwise.evaluate(code, w[0], w[1], w[2]);
    }

    function _copy(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32 word)
    {
        uint256 offset = _unravel(c, p, at);
        uint256 count = p.record.u8(offset++);
        for (uint256 i; i < count; ++i) {
            bool inside;
            (inside, word, offset) = _access(c, p, h, at, offset);
            if (inside) break;
        }
    }

    function _contract(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32)
    {
        uint256 k = p.record.u32(Records.BODY + 12);
        (uint256 blocks,) = Records.blocksOf(k);
        if (blocks != 1) revert DecidedInBlocks(blocks);
        return Accumulator.round(_terms(c, p, h, at, 0, k));
    }

    /// @dev Exact sum of the terms first .. first + count - 1 of an element of a contraction.
    function _terms(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        uint256 first,
        uint256 count
    ) private view returns (Partial memory) {
        Shape memory s = _shape(p.record, c.element);
        if (s.variant == Records.ONE_HOT) {
            bytes calldata index = _words(c, p, h, at, s.a, s.aBatches * s.k, s.aBatch * s.k + first, count);
            bytes calldata values = _words(c, p, h, at, s.b, s.bBatches * s.n * s.k, s.bRow * s.k + first, count);
            return Accumulator.oneHotSum(index, uint32(s.row), values);
        }
        bytes calldata a =
            _words(c, p, h, at, s.a, s.aBatches * s.m * s.k, (s.aBatch * s.m + s.row) * s.k + first, count);
        if (s.variant == Records.SUM) return Accumulator.sum(a);
        return Accumulator.dot(a, _words(c, p, h, at, s.b, s.bBatches * s.n * s.k, s.bRow * s.k + first, count));
    }

    /// @dev Where an element's rows lie: `row` of A's batch, row `bRow` of B.
    struct Shape {
        uint8 variant;
        uint256 m;
        uint256 n;
        uint256 k;
        uint256 row;
        uint256 aBatch;
        uint256 aBatches;
        uint256 bRow;
        uint256 bBatches;
        Records.Reference a;
        Records.Reference b;
    }

    function _shape(bytes calldata record, uint256 element) private pure returns (Shape memory s) {
        s.variant = record.u8(1);
        uint256 batches = record.u32(Records.BODY);
        (s.m, s.n, s.k) =
            (record.u32(Records.BODY + 4), record.u32(Records.BODY + 8), record.u32(Records.BODY + 12));
        uint8 shared = record.u8(Records.BODY + 16);
        uint256 batch = element / (s.m * s.n);
        s.row = (element / s.n) % s.m;
        (s.aBatch, s.aBatches) = shared & 1 == 0 ? (batch, batches) : (0, 1);
        uint256 bBatch;
        (bBatch, s.bBatches) = shared & 2 == 0 ? (batch, batches) : (0, 1);
        s.bRow = bBatch * s.n + element % s.n;
        s.a = record.ref(Records.BODY + 17);
        s.b = record.ref(Records.BODY + 21);
    }

    function _gather(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32)
    {
        bytes calldata r = p.record;
        (uint256 count, uint256 width, uint256 rows) =
            (r.u32(Records.BODY), r.u32(Records.BODY + 4), r.u32(Records.BODY + 8));
        uint256 row = _word(c, p, h, at, r.ref(Records.BODY + 16), count, c.element / width);
        if (row >= rows) return r.u32(Records.BODY + 12); // a negative index is a large unsigned one
        uint256 position = row * width + c.element % width;
        return _word(c, p, h, at, r.ref(Records.BODY + 20), rows * width, position);
    }

    function _reduceMax(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32)
    {
        bytes calldata r = p.record;
        (uint256 rows, uint256 length, uint256 size) =
            (r.u32(Records.BODY), r.u32(Records.BODY + 4), r.u32(Records.BODY + 8));
        uint256 blocks = (length + size - 1) / size;
        uint256 first = (c.element % blocks) * size;
        uint256 count = first + size > length ? length - first : size;
        uint256 position = (c.element / blocks) * length + first;
        bytes calldata words = _words(c, p, h, at, r.ref(Records.BODY + 12), rows * length, position, count);
        return r.u8(2) & Records.INTEGER == 0 ? Reduction.reduceMax(words) : Reduction.integerMax(words);
    }

    function _argmax(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at)
        private
        view
        returns (uint32)
    {
        (uint256 rows, uint256 length) = (p.record.u32(Records.BODY), p.record.u32(Records.BODY + 4));
        Records.Reference memory r = p.record.ref(Records.BODY + 8);
        return Reduction.argmax(_words(c, p, h, at, r, rows * length, c.element * length, length));
    }

    // ---- accesses ----

    /// @dev Unravels the element over the index space at the start of the body; returns the offset behind it.
    function _unravel(Context calldata c, Proof calldata p, Cursor memory at) private pure returns (uint256 offset) {
        bytes calldata record = p.record;
        uint256 rank = record.u8(Records.BODY);
        at.index = new uint256[](rank);
        uint256 rest = c.element;
        for (uint256 i = rank; i > 0; --i) {
            uint256 size = record.u32(Records.BODY + 1 + 4 * (i - 1));
            at.index[i - 1] = rest % size;
            rest /= size;
        }
        return Records.BODY + 1 + 4 * rank;
    }

    /// @dev One access: is it in bounds, which word does it yield, and where does the next one start.
    function _access(Context calldata c, Proof calldata p, Records.Header memory h, Cursor memory at, uint256 offset)
        private
        view
        returns (bool inside, uint32 word, uint256 behind)
    {
        bytes calldata record = p.record;
        Records.Reference memory r = record.ref(offset);
        word = record.u32(offset + 4);
        uint256 dims = record.u8(offset + 8);
        behind = offset + 9 + 12 * dims + 5 * at.index.length;
        if (r.class == Records.IMMEDIATE) return (true, word, behind);
        uint256 elements;
        uint256 position;
        (inside, elements, position) = _position(record, at.index, offset + 9, dims);
        if (inside) word = _word(c, p, h, at, r, elements, position);
    }

    /// @dev Coordinate of each operand dimension: offset + Σ coefficient · index, divisible, in range; row-major position of the quotients.
    function _position(bytes calldata record, uint256[] memory index, uint256 offset, uint256 dims)
        private
        pure
        returns (bool inside, uint256 elements, uint256 position)
    {
        uint256 targets = offset + 12 * dims;
        elements = 1;
        inside = true;
        for (uint256 j; j < dims; ++j) {
            uint256 size = record.u32(offset + 12 * j);
            int256 divisor = int256(uint256(record.u32(offset + 12 * j + 8)));
            int256 coordinate = int32(record.u32(offset + 12 * j + 4)) + _offsetOf(record, index, targets, j);
            if (coordinate < 0 || coordinate % divisor != 0 || uint256(coordinate / divisor) >= size) inside = false;
            else position = position * size + uint256(coordinate / divisor);
            elements *= size;
        }
    }

    /// @dev Σ coefficient · index over the output dimensions that move along operand dimension j.
    function _offsetOf(bytes calldata record, uint256[] memory index, uint256 targets, uint256 j)
        private
        pure
        returns (int256 sum)
    {
        for (uint256 i; i < index.length; ++i) {
            if (record.u8(targets + 5 * i) != j) continue;
            sum += int256(int32(record.u32(targets + 5 * i + 1))) * int256(index[i]);
        }
    }

    // ---- openings ----

    function _word(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        Records.Reference memory r,
        uint256 elements,
        uint256 position
    ) private view returns (uint32) {
        return Reduction.wordAt(_words(c, p, h, at, r, elements, position, 1), 0);
    }

    /// @dev Words first .. first + count - 1 of a tensor of `elements` words, from the next opening, proven against the tensor's tree.
    function _words(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        Records.Reference memory r,
        uint256 elements,
        uint256 first,
        uint256 count
    ) private view returns (bytes calldata) {
        if (at.next >= p.openings.length) revert OpeningCount(p.openings.length, at.next + 1);
        Opening calldata o = p.openings[at.next++];
        if (r.class == Records.SCALAR) {
            elements = uint256(c.steps) * h.scalars;
            first = (uint256(c.step) - 1) * h.scalars + r.index;
        }
        if (first + count > elements) revert ElementOutOfRange(first + count, elements);
        uint256 low = first / Merkle.LEAF_WORDS;
        bytes32 root = _leavesRoot(o, low, (first + count - 1) / Merkle.LEAF_WORDS, Merkle.tensorHeight(elements));
        _checkTree(c, h, r, root, o.path);
        uint256 start = 4 * (first - low * Merkle.LEAF_WORDS);
        return o.words[start:start + 4 * count];
    }

    function _leavesRoot(Opening calldata o, uint256 low, uint256 high, uint256 height) private view returns (bytes32) {
        uint256 leaves = high - low + 1;
        if (o.words.length != leaves * Merkle.LEAF_BYTES) revert OpeningSize(o.words.length, leaves * Merkle.LEAF_BYTES);
        bytes32[] memory hashes = new bytes32[](leaves);
        for (uint256 i; i < leaves; ++i) {
            hashes[i] =
                Merkle.leafOf(Merkle.TENSOR, o.words[i * Merkle.LEAF_BYTES:(i + 1) * Merkle.LEAF_BYTES]);
        }
        return Merkle.rangeRoot(Merkle.TENSOR, hashes, low, height, o.siblings);
    }

    /// @dev The tensor's root stands where the reference says.
    function _checkTree(
        Context calldata c,
        Records.Header memory h,
        Records.Reference memory r,
        bytes32 tensor,
        bytes32[] calldata path
    ) private view {
        (uint8 kind, uint256 count, bytes32 root) = _tree(c, h, r.class);
        bytes32 actual = tensor;
        if (r.class == Records.SCALAR) {
            if (path.length != 0) revert Merkle.PathLength(path.length, 0);
        } else {
            if (r.index >= count) revert ElementOutOfRange(r.index, count);
            actual = Merkle.pathRoot(kind, tensor, r.index, path, Merkle.height(count));
        }
        if (actual != root) revert WrongRoot(actual, root);
    }

    function _tree(Context calldata c, Records.Header memory h, uint8 class)
        private
        pure
        returns (uint8 kind, uint256 count, bytes32 root)
    {
        if (class == Records.OPERATOR) return (Merkle.TRACE, h.operators, c.traceRoot);
        if (class == Records.STATE) return (Merkle.STATE, h.states, c.stateRoot);
        if (class == Records.CONSTANT) return (Merkle.CONSTANTS, h.constants, h.constantsRoot);
        if (class == Records.DATUM) return (Merkle.DATA, h.data, c.dataRoot);
        if (class == Records.SCALAR) return (Merkle.TENSOR, 1, c.scalarRoot);
        revert Records.UnknownClass(class);
    }
}
