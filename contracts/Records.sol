// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Merkle} from "./Merkle.sol";

/// @title Program headers and records, byte by byte (docs/formats.md section 3)
/// @notice Twin: vgame/program/encoding.py. The client commits to the records, and every player validates them off
/// chain before it stakes a bond. Here they are only read; a read beyond the end reverts.
library Records {
    uint256 internal constant HEADER_BYTES = 124;
    uint256 internal constant SOURCE_BYTES = 9;
    uint32 internal constant VERSION = 2;

    // Kinds of operators.
    uint8 internal constant MAP = 1;
    uint8 internal constant COPY = 2;
    uint8 internal constant CONTRACT = 3;
    uint8 internal constant GATHER = 4;
    uint8 internal constant REDUCE_MAX = 5;
    uint8 internal constant ARGMAX = 6;
    uint8 internal constant PHILOX = 7;
    uint8 internal constant SHUFFLE = 8;

    // Variants of CONTRACT.
    uint8 internal constant DOT = 0;
    uint8 internal constant SUM = 1;
    uint8 internal constant ONE_HOT = 2;

    // Classes of references.
    uint8 internal constant IMMEDIATE = 0;
    uint8 internal constant OPERATOR = 1;
    uint8 internal constant STATE = 2;
    uint8 internal constant CONSTANT = 3;
    uint8 internal constant DATUM = 4;
    uint8 internal constant SCALAR = 5;

    uint8 internal constant BROADCAST = 0xff;
    uint8 internal constant INTEGER = 1; // flag
    uint8 internal constant FINITE = 2; // flag
    uint8 internal constant BFLOAT16 = 4; // flag of a MAP or a CONTRACT: the output is rounded to 8 bits, once
    uint256 internal constant BODY = 7; // offset of an operator's body

    uint256 internal constant LEAF_TERMS = 1024;
    uint256 internal constant MAX_BLOCKS = 64;

    error HeaderMismatch(bytes32 actual, bytes32 expected);
    error RecordMismatch(bytes32 actual, bytes32 expected);
    error HeaderLength(uint256 actual);
    error UnknownVersion(uint32 version);
    error RecordTooShort(uint256 offset);
    error UnknownKind(uint8 kind);
    error UnknownClass(uint8 class);
    error NoTerms();

    struct Header {
        uint32 states;
        uint32 operators;
        uint32 constants;
        uint32 data;
        uint32 scalars;
        bytes32 sourcesRoot;
        bytes32 operatorsRoot;
        bytes32 constantsRoot;
    }

    struct Reference {
        uint8 class;
        uint32 index;
    }

    /// @notice The header behind a program root.
    function openHeader(bytes32 programRoot, bytes calldata raw) internal pure returns (Header memory h) {
        if (raw.length != HEADER_BYTES) revert HeaderLength(raw.length);
        bytes32 actual = sha256(abi.encodePacked(uint8(3), raw));
        if (actual != programRoot) revert HeaderMismatch(actual, programRoot);
        uint32 version = u32(raw, 0);
        if (version != VERSION) revert UnknownVersion(version);
        h.states = u32(raw, 4);
        h.operators = u32(raw, 8);
        h.constants = u32(raw, 12);
        h.data = u32(raw, 16);
        h.scalars = u32(raw, 20);
        h.sourcesRoot = bytes32(raw[28:60]);
        h.operatorsRoot = bytes32(raw[60:92]);
        h.constantsRoot = bytes32(raw[92:124]);
    }

    /// @notice Reverts unless `record` is entry `index` of the table of `count` records under `root`.
    function check(
        uint8 kind,
        bytes calldata record,
        uint256 index,
        uint256 count,
        bytes32 root,
        bytes32[] calldata path
    ) internal view {
        bytes32 leaf = Merkle.leafOf(kind, record);
        if (index >= count) revert Merkle.IndexOutOfRange(index, count);
        bytes32 actual = Merkle.pathRoot(kind, leaf, index, path, Merkle.height(count));
        if (actual != root) revert RecordMismatch(actual, root);
    }

    function u8(bytes calldata record, uint256 offset) internal pure returns (uint8 value) {
        if (offset >= record.length) revert RecordTooShort(offset);
        // Equivalent to: value = uint8(record[offset]), without a second bounds check.
        assembly ("memory-safe") {
            value := byte(0, calldataload(add(record.offset, offset)))
        }
    }

    function u32(bytes calldata record, uint256 offset) internal pure returns (uint32 value) {
        if (offset + 4 > record.length) revert RecordTooShort(offset);
        // Equivalent to: value = uint32(bytes4(record[offset:offset + 4])), without a second bounds check.
        assembly ("memory-safe") {
            value := shr(224, calldataload(add(record.offset, offset)))
        }
    }

    /// @notice Class and index of a reference.
    function ref(bytes calldata record, uint256 offset) internal pure returns (Reference memory) {
        uint32 word = u32(record, offset);
        return Reference(uint8(word >> 24), word & 0xffffff);
    }

    /// @notice (number of blocks, terms per block) for the decision of a sum of k >= 1 terms.
    function blocksOf(uint256 k) internal pure returns (uint256 blocks, uint256 length) {
        if (k == 0) revert NoTerms();
        blocks = (k + LEAF_TERMS - 1) / LEAF_TERMS;
        if (blocks > MAX_BLOCKS) blocks = MAX_BLOCKS;
        length = (k + blocks - 1) / blocks;
        blocks = (k + length - 1) / length;
    }
}
