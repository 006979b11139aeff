// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Accumulator, Partial} from "./arithmetic/Accumulator.sol";
import {Binary32} from "./arithmetic/Binary32.sol";
import {Philox} from "./arithmetic/Philox.sol";
import {Pointwise} from "./arithmetic/Pointwise.sol";
import {Reduction} from "./arithmetic/Reduction.sol";
import {IElements, IReferee} from "./IReferee.sol";
import {Merkle} from "./Merkle.sol";
import {Operands} from "./Operands.sol";
import {Records} from "./Records.sol";

/// @title The referee: computes one output element of one operator of one training step exactly, from proven words
/// @notice Mode `correct`. Twin: vgame/execute/reference.py. No storage; the functions of a map are in a separate
/// contract.
contract Referee is Operands, IReferee {
    using Records for bytes;

    Pointwise public immutable pointwise;

    constructor(Pointwise pointwise_) {
        pointwise = pointwise_;
    }

    // ---- the program ----

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
            (uint256 count, ) = Records.blocksOf(record.u32(Records.BODY + 12));
            blocks = uint32(count); // SAFETY: at most MAX_BLOCKS
        }
    }

    // ---- elements ----

    /// @inheritdoc IElements
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
        else if (kind == Records.SHUFFLE)
            word = Philox.shuffleIndex(c.seed, c.step, c.element, record.u32(3), record.u32(Records.BODY));
        else revert Records.UnknownKind(kind);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        if (record.u8(2) & Records.INTEGER == 0 && Binary32.isNan(word)) word = Binary32.NAN;
    }

    /// @inheritdoc IElements
    function evaluateBlock(Context calldata c, uint32 part, bytes calldata proof) external view returns (bytes memory) {
        (Proof calldata p, Records.Header memory h) = _open(c, proof);
        (uint256 first, uint256 count) = _block(p.record, part);
        Cursor memory at;
        Partial memory result = _terms(c, p, h, at, first, count);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        return Accumulator.encode(result);
    }

    /// @inheritdoc IElements
    function combine(Context calldata, bytes[] calldata partials) external pure returns (uint32) {
        Partial memory total = Accumulator.decode(partials[0]);
        for (uint256 i = 1; i < partials.length; ++i) total = Accumulator.merge(total, Accumulator.decode(partials[i]));
        return Accumulator.round(total);
    }

    // ---- operators ----

    function _map(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32) {
        (uint8 code, uint32[3] memory w) = _arguments(c, p, h, at);
        uint8 cut = _isNarrow(p.record) ? Binary32.NARROW_CUT : 0;
        return pointwise.evaluate(code, cut, w[0], w[1], w[2]);
    }

    function _copy(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32 word) {
        uint256 offset = _unravel(c, p, at);
        uint256 count = p.record.u8(offset++);
        for (uint256 i; i < count; ++i) {
            bool inside;
            (inside, word, offset) = _access(c, p, h, at, offset);
            if (inside) break;
        }
    }

    function _contract(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32) {
        uint256 k = p.record.u32(Records.BODY + 12);
        (uint256 blocks, ) = Records.blocksOf(k);
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
    ) private view returns (Partial memory result) {
        (Shape memory s, bytes calldata a, bytes calldata b) = _rows(c, p, h, at, first, count);
        if (s.variant == Records.ONE_HOT) result = Accumulator.oneHotSum(a, uint32(s.row), b);
        else result = s.variant == Records.SUM ? Accumulator.sum(a) : Accumulator.dot(a, b);
        if (_isNarrow(p.record)) result.class |= Accumulator.NARROW;
    }

    /// @dev Is the output rounded to bfloat16?
    function _isNarrow(bytes calldata record) private pure returns (bool) {
        return record.u8(2) & Records.BFLOAT16 != 0;
    }

    function _gather(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32) {
        bytes calldata r = p.record;
        (uint256 count, uint256 width, uint256 rows) = (
            r.u32(Records.BODY),
            r.u32(Records.BODY + 4),
            r.u32(Records.BODY + 8)
        );
        uint256 row = _word(c, p, h, at, r.ref(Records.BODY + 16), count, c.element / width);
        if (row >= rows) return r.u32(Records.BODY + 12); // a negative index is a large unsigned one
        // prettier-ignore
        uint256 position = row * width + c.element % width;
        return _word(c, p, h, at, r.ref(Records.BODY + 20), rows * width, position);
    }

    function _reduceMax(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32) {
        bytes calldata r = p.record;
        (uint256 rows, uint256 length, uint256 size) = (
            r.u32(Records.BODY),
            r.u32(Records.BODY + 4),
            r.u32(Records.BODY + 8)
        );
        uint256 blocks = (length + size - 1) / size;
        uint256 first = (c.element % blocks) * size;
        uint256 count = first + size > length ? length - first : size;
        uint256 position = (c.element / blocks) * length + first;
        bytes calldata words = _words(c, p, h, at, r.ref(Records.BODY + 12), rows * length, position, count);
        return r.u8(2) & Records.INTEGER == 0 ? Reduction.reduceMax(words) : Reduction.integerMax(words);
    }

    function _argmax(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32) {
        (uint256 rows, uint256 length) = (p.record.u32(Records.BODY), p.record.u32(Records.BODY + 4));
        Records.Reference memory r = p.record.ref(Records.BODY + 8);
        return Reduction.argmax(_words(c, p, h, at, r, rows * length, c.element * length, length));
    }
}
