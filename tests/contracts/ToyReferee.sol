// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IElements, IReferee} from "../../contracts/IReferee.sol";
import {Merkle} from "../../contracts/Merkle.sol";

/// @title A machine that is cheap to compute, so that the game can be tested by itself
/// @notice Twin: tests/game/toy.py. The header is abi.encode of struct Program, its root is sha256(header); the record
/// of operator or tensor i is abi.encode(i), without a path. Errors have the names that the real referee uses.
contract ToyReferee is IReferee {
    /// @dev HASH: a hash. CARRY: plus a word of the state before. CHAIN: plus a word of an earlier operator. SUM:
    /// CHAIN, decided in blocks.
    enum Kind {
        HASH,
        CARRY,
        CHAIN,
        SUM
    }

    /// @param operand state tensor (CARRY) or operator (CHAIN, SUM) that is read
    struct Operator {
        uint32 elements;
        Kind kind;
        bool finite;
        uint32 operand;
        uint32 blocks;
    }

    /// @param operator whose output becomes the tensor; UNCHANGED: the program leaves it alone
    struct State {
        uint32 elements;
        uint32 operator;
    }

    /// @notice A word that is not what the rule says.
    struct Special {
        uint64 step;
        uint32 operator;
        uint32 element;
        uint32 word;
    }

    struct Program {
        Operator[] operators;
        State[] states;
        Special[] specials;
    }

    /// @param words the 512 bytes of the leaf that holds the operand's word; empty if there is no operand
    /// @param siblings from the leaf to the operand's root
    /// @param path from there to the trace root or to the state root
    struct Proof {
        bytes header;
        bytes words;
        bytes32[] siblings;
        bytes32[] path;
    }

    uint32 internal constant UNCHANGED = type(uint32).max;
    uint32 internal constant FINITE_MASK = 0xbfffffff;

    error HeaderMismatch(bytes32 actual, bytes32 expected);
    error RecordMismatch(bytes32 actual, bytes32 expected);
    error ElementOutOfRange(uint256 element, uint256 elements);
    error WrongRoot(bytes32 actual, bytes32 expected);
    error OpeningSize(uint256 actual, uint256 expected);
    error DecidedInBlocks(uint256 blocks);
    error NotABlock(uint256 part, uint256 blocks);

    // ---- the program ----

    /// @notice It decides in mode `logged` too: the game asks for its referee.
    function referee() external view returns (IReferee) {
        return this;
    }

    /// @inheritdoc IReferee
    function program(bytes32 root, bytes calldata header) external pure returns (uint32, uint32) {
        Program memory p = _open(root, header);
        return (uint32(p.states.length), uint32(p.operators.length));
    }

    /// @inheritdoc IReferee
    function source(
        bytes32 root,
        uint32 tensor,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external pure returns (bool computed, uint32 operator) {
        Program memory p = _open(root, header);
        if (tensor >= p.states.length) revert ElementOutOfRange(tensor, p.states.length);
        _check(abi.encodePacked(uint8(0), p.states[tensor].elements, tensor), record, path);
        operator = p.states[tensor].operator;
        computed = operator != UNCHANGED;
    }

    /// @inheritdoc IReferee
    function describe(
        bytes32 root,
        uint32 operator,
        bytes calldata header,
        bytes calldata record,
        bytes32[] calldata path
    ) external pure returns (uint32 elements, bool finite, uint32 blocks) {
        Program memory p = _open(root, header);
        if (operator >= p.operators.length) revert ElementOutOfRange(operator, p.operators.length);
        _check(abi.encode(uint256(operator)), record, path);
        Operator memory o = p.operators[operator];
        return (o.elements, o.finite, o.blocks);
    }

    function _open(bytes32 root, bytes calldata header) private pure returns (Program memory) {
        bytes32 actual = sha256(header);
        if (actual != root) revert HeaderMismatch(actual, root);
        return abi.decode(header, (Program));
    }

    function _check(bytes memory own, bytes calldata record, bytes32[] calldata path) private pure {
        if (path.length != 0) revert Merkle.PathLength(path.length, 0);
        bytes32 expected = sha256(own);
        if (sha256(record) != expected) revert RecordMismatch(sha256(record), expected);
    }

    // ---- elements ----

    /// @inheritdoc IElements
    function evaluate(Context calldata c, bytes calldata proof) external view returns (uint32) {
        (Program memory p, Operator memory o, uint32 operand) = _operand(c, proof);
        if (o.blocks > 1) revert DecidedInBlocks(o.blocks);
        for (uint256 i; i < p.specials.length; ++i) {
            Special memory s = p.specials[i];
            if (s.step == c.step && s.operator == c.operator && s.element == c.element) return s.word;
        }
        uint256 eight = uint256(sha256(abi.encodePacked(c.seed, c.step, c.operator, c.element / 8)));
        unchecked {
            return (uint32(eight >> (224 - 32 * (c.element % 8))) + operand) & FINITE_MASK;
        }
    }

    /// @inheritdoc IElements
    function evaluateBlock(Context calldata c, uint32 part, bytes calldata proof) external view returns (bytes memory) {
        (, Operator memory o, uint32 operand) = _operand(c, proof);
        if (part >= o.blocks) revert NotABlock(part, o.blocks);
        return abi.encode(sha256(abi.encodePacked(c.seed, c.step, c.operator, c.element, part, operand)));
    }

    /// @inheritdoc IElements
    function combine(Context calldata, bytes[] calldata partials) external pure returns (uint32 word) {
        for (uint256 i; i < partials.length; ++i) {
            if (partials[i].length != 32) revert OpeningSize(partials[i].length, 32);
            word ^= uint32(bytes4(partials[i]));
        }
        word &= FINITE_MASK;
    }

    /// @dev The word that the element reads, proven; zero if it reads none.
    function _operand(
        Context calldata c,
        bytes calldata proof
    ) private view returns (Program memory p, Operator memory o, uint32 word) {
        Proof calldata q;
        assembly ("memory-safe") {
            q := add(proof.offset, calldataload(proof.offset))
        }
        p = _open(c.programRoot, q.header);
        o = p.operators[c.operator];
        if (c.element >= o.elements) revert ElementOutOfRange(c.element, o.elements);
        if (o.kind == Kind.CARRY) {
            uint256 elements = p.states[o.operand].elements;
            word = _word(q, c.element % elements, elements, Merkle.STATE, o.operand, p.states.length, c.stateRoot);
        } else if (o.kind != Kind.HASH) {
            uint256 elements = p.operators[o.operand].elements;
            word = _word(q, c.element % elements, elements, Merkle.TRACE, o.operand, p.operators.length, c.traceRoot);
        } else if (q.words.length != 0) {
            revert OpeningSize(q.words.length, 0);
        }
    }

    function _word(
        Proof calldata q,
        uint256 position,
        uint256 elements,
        uint8 kind,
        uint256 index,
        uint256 count,
        bytes32 expected
    ) private view returns (uint32) {
        if (q.words.length != Merkle.LEAF_BYTES) revert OpeningSize(q.words.length, Merkle.LEAF_BYTES);
        bytes32 root = Merkle.leafOf(Merkle.TENSOR, q.words);
        uint256 leaf = position / Merkle.LEAF_WORDS;
        root = Merkle.pathRoot(Merkle.TENSOR, root, leaf, q.siblings, Merkle.tensorHeight(elements));
        root = Merkle.pathRoot(kind, root, index, q.path, Merkle.height(count));
        if (root != expected) revert WrongRoot(root, expected);
        uint256 start = (position % Merkle.LEAF_WORDS) * 4;
        uint32 w = uint32(bytes4(q.words[start:start + 4]));
        return (w >> 24) | ((w >> 8) & 0xff00) | ((w << 8) & 0xff0000) | (w << 24);
    }
}
