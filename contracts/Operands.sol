// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Functions} from "./arithmetic/Functions.sol";
import {Reduction} from "./arithmetic/Reduction.sol";
import {IElements} from "./IReferee.sol";
import {Merkle} from "./Merkle.sol";
import {Records} from "./Records.sol";

/// @title Proven operand words, for the machines of both modes
/// @notice The proof is abi.encode of struct Proof; its openings are the operand words of the formula, in its order
/// (docs/formats.md section 6).
abstract contract Operands is IElements {
    using Records for bytes;

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

    /// @dev Counts the used openings; `rank` and `index` are the output's position in the index space.
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

    /// @dev Reverts unless the proof's record is the operator's, and the element exists.
    function _open(
        Context calldata c,
        bytes calldata proof
    ) internal view returns (Proof calldata p, Records.Header memory h) {
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

    /// @dev Function and operand words of a `map`.
    function _arguments(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) internal view returns (uint8 code, uint32[3] memory words) {
        code = p.record.u8(1);
        uint256 offset = _unravel(c, p, at);
        uint256 count = Functions.arity(code);
        for (uint256 i; i < count; ++i) (, words[i], offset) = _access(c, p, h, at, offset);
    }

    /// @dev First term and number of terms of a block; reverts unless the part is one of the element's blocks.
    function _block(bytes calldata record, uint256 part) internal pure returns (uint256 first, uint256 count) {
        if (record.u8(0) != Records.CONTRACT) revert Records.UnknownKind(record.u8(0));
        uint256 k = record.u32(Records.BODY + 12);
        (uint256 blocks, uint256 length) = Records.blocksOf(k);
        if (part >= blocks) revert NotABlock(part, blocks);
        first = part * length;
        count = first + length > k ? k - first : length;
    }

    /// @dev The words of the terms first .. first + count - 1 of an element of a contraction: index and values of
    /// ONE_HOT, the terms of SUM (and an empty range), both rows of DOT.
    function _rows(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        uint256 first,
        uint256 count
    ) internal view returns (Shape memory s, bytes calldata a, bytes calldata b) {
        s = _shape(p.record, c.element);
        if (s.variant == Records.ONE_HOT) {
            a = _words(c, p, h, at, s.a, s.aBatches * s.k, s.aBatch * s.k + first, count);
        } else {
            a = _words(c, p, h, at, s.a, s.aBatches * s.m * s.k, (s.aBatch * s.m + s.row) * s.k + first, count);
        }
        if (s.variant == Records.SUM) return (s, a, a);
        b = _words(c, p, h, at, s.b, s.bBatches * s.n * s.k, s.bRow * s.k + first, count);
    }

    /// @dev The rows of an element: `row` in A's batch, row `bRow` of B.
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

    function _shape(bytes calldata record, uint256 element) internal pure returns (Shape memory s) {
        s.variant = record.u8(1);
        uint256 batches = record.u32(Records.BODY);
        (s.m, s.n, s.k) = (record.u32(Records.BODY + 4), record.u32(Records.BODY + 8), record.u32(Records.BODY + 12));
        uint8 shared = record.u8(Records.BODY + 16);
        uint256 batch = element / (s.m * s.n);
        s.row = (element / s.n) % s.m;
        (s.aBatch, s.aBatches) = shared & 1 == 0 ? (batch, batches) : (0, 1);
        uint256 bBatch;
        (bBatch, s.bBatches) = shared & 2 == 0 ? (batch, batches) : (0, 1);
        // prettier-ignore
        s.bRow = bBatch * s.n + element % s.n;
        s.a = record.ref(Records.BODY + 17);
        s.b = record.ref(Records.BODY + 21);
    }

    // ---- accesses ----

    /// @dev Unravels the element over the index space at the start of the body; returns the offset after it.
    function _unravel(Context calldata c, Proof calldata p, Cursor memory at) internal pure returns (uint256 offset) {
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

    /// @dev One access: whether it is in bounds, its word, and the offset of the next access.
    function _access(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        uint256 offset
    ) internal view returns (bool inside, uint32 word, uint256 behind) {
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

    /// @dev Coordinate of each operand dimension: offset + Σ coefficient · index, divisible, in range; row-major
    /// position of the quotients.
    function _position(
        bytes calldata record,
        uint256[] memory index,
        uint256 offset,
        uint256 dims
    ) private pure returns (bool inside, uint256 elements, uint256 position) {
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

    /// @dev Σ coefficient · index over the output dimensions on which operand dimension j depends.
    function _offsetOf(
        bytes calldata record,
        uint256[] memory index,
        uint256 targets,
        uint256 j
    ) private pure returns (int256 sum) {
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
    ) internal view returns (uint32) {
        return Reduction.wordAt(_words(c, p, h, at, r, elements, position, 1), 0);
    }

    /// @dev Words first .. first + count - 1 of a tensor of `elements` words, from the next opening, proven against the
    /// tensor's tree.
    function _words(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        Records.Reference memory r,
        uint256 elements,
        uint256 first,
        uint256 count
    ) internal view returns (bytes calldata) {
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
        if (o.words.length != leaves * Merkle.LEAF_BYTES)
            revert OpeningSize(o.words.length, leaves * Merkle.LEAF_BYTES);
        bytes32[] memory hashes = new bytes32[](leaves);
        for (uint256 i; i < leaves; ++i) {
            hashes[i] = Merkle.leafOf(Merkle.TENSOR, o.words[i * Merkle.LEAF_BYTES:(i + 1) * Merkle.LEAF_BYTES]);
        }
        return Merkle.rangeRoot(Merkle.TENSOR, hashes, low, height, o.siblings);
    }

    /// @dev Reverts unless the tensor's root is at the place of the reference.
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

    function _tree(
        Context calldata c,
        Records.Header memory h,
        uint8 class
    ) private pure returns (uint8 kind, uint256 count, bytes32 root) {
        if (class == Records.OPERATOR) return (Merkle.TRACE, h.operators, c.traceRoot);
        if (class == Records.STATE) return (Merkle.STATE, h.states, c.stateRoot);
        if (class == Records.CONSTANT) return (Merkle.CONSTANTS, h.constants, h.constantsRoot);
        if (class == Records.DATUM) return (Merkle.DATA, h.data, c.dataRoot);
        if (class == Records.SCALAR) return (Merkle.TENSOR, 1, c.scalarRoot);
        revert Records.UnknownClass(class);
    }
}
