// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "./arithmetic/Binary32.sol";
import {Functions} from "./arithmetic/Functions.sol";
import {Grid} from "./arithmetic/Grid.sol";
import {Direction, LoggedSum, Moments} from "./arithmetic/LoggedSum.sol";
import {Pointwise} from "./arithmetic/Pointwise.sol";
import {IElements} from "./IReferee.sol";
import {Merkle} from "./Merkle.sol";
import {Operands} from "./Operands.sol";
import {Records} from "./Records.sol";
import {Referee} from "./Referee.sol";

/// @title The machine of mode `logged`: the one word that an element has, given the rounding log that the trainer
/// committed
/// @notice Twin: vgame/logged/reference.py; why an honest trainer's words pass: docs/paper.md, section 3. Only
/// contractions of more than one term read the log, as the last opening: `words` is the leaf of the LOG tree (32 bytes:
/// entries present ‖ entries up, one bit per element; empty for the padding leaf), `path` leads from it to the root.
/// Operators without rounding are computed by the referee.
contract Logged is Operands {
    using Records for bytes;

    Referee public immutable referee;
    Pointwise public immutable pointwise;

    constructor(Referee referee_) {
        referee = referee_;
        pointwise = referee_.pointwise();
    }

    /// @inheritdoc IElements
    function evaluate(Context calldata c, bytes calldata proof) external view returns (uint32 word) {
        (Proof calldata p, Records.Header memory h) = _open(c, proof);
        uint8 kind = p.record.u8(0);
        Cursor memory at;
        if (kind == Records.CONTRACT) word = _contract(c, p, h, at);
        else if (kind == Records.MAP && c.bits != 32) word = _map(c, p, h, at);
        else return referee.evaluate(c, proof);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        if (p.record.u8(2) & Records.INTEGER == 0 && Binary32.isNan(word)) word = Binary32.NAN;
    }

    /// @inheritdoc IElements
    function evaluateBlock(Context calldata c, uint32 part, bytes calldata proof) external view returns (bytes memory) {
        (Proof calldata p, Records.Header memory h) = _open(c, proof);
        (uint256 first, uint256 count) = _block(p.record, part);
        Cursor memory at;
        Moments memory result = _moments(c, p, h, at, first, count);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        return LoggedSum.encode(result);
    }

    /// @inheritdoc IElements
    function combine(Context calldata c, bytes[] calldata partials) external view returns (uint32) {
        uint256 blocks = partials.length - 1;
        (Proof calldata p, Records.Header memory h) = _open(c, partials[blocks]);
        Moments memory total = LoggedSum.decode(partials[0]);
        for (uint256 i = 1; i < blocks; ++i) total = LoggedSum.merge(total, LoggedSum.decode(partials[i]));
        Cursor memory at;
        Direction entry = _entry(c, p, h, at);
        if (at.next != p.openings.length) revert OpeningCount(p.openings.length, at.next);
        return LoggedSum.word(total, p.record.u32(Records.BODY + 12), c.bits, entry);
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
        Moments memory m = _moments(c, p, h, at, 0, k);
        return LoggedSum.word(m, k, c.bits, k == 1 ? Direction.None : _entry(c, p, h, at));
    }

    function _moments(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at,
        uint256 first,
        uint256 count
    ) private view returns (Moments memory) {
        (Shape memory s, bytes calldata a, bytes calldata b) = _rows(c, p, h, at, first, count);
        if (s.variant == Records.ONE_HOT) return LoggedSum.oneHotSum(a, uint32(s.row), b);
        return s.variant == Records.SUM ? LoggedSum.sum(a) : LoggedSum.dot(a, b);
    }

    /// @dev The log's entry for the element, proven: interval -> step -> operator -> leaf of 128 elements.
    function _entry(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (Direction) {
        if (at.next >= p.openings.length) revert OpeningCount(p.openings.length, at.next + 1);
        Opening calldata o = p.openings[at.next++];
        if (o.siblings.length != 0) revert OpeningSize(o.siblings.length, 0);
        if (o.words.length != 0 && o.words.length != 32) revert OpeningSize(o.words.length, 32);
        bytes32 leaf = o.words.length == 0 ? Merkle.padding(Merkle.LOG, 0) : Merkle.leafOf(Merkle.LOG, o.words);
        uint256 operators = Merkle.height(h.operators);
        uint256 leaves = Merkle.tensorHeight(p.record.u32(3));
        uint256 index = (uint256(c.logStep) << operators) | c.operator;
        index = (index << leaves) | (c.element / Merkle.LEAF_WORDS);
        uint256 length = Merkle.height(c.logSteps) + operators + leaves;
        bytes32 root = Merkle.pathRoot(Merkle.LOG, leaf, index, o.path, length);
        if (root != c.logRoot) revert WrongRoot(root, c.logRoot);
        if (o.words.length == 0) return Direction.None;
        uint256 entries = uint256(bytes32(o.words)) >> (c.element % Merkle.LEAF_WORDS);
        if ((entries >> 128) & 1 == 0) return Direction.None;
        return entries & 1 == 1 ? Direction.Up : Direction.Down;
    }

    /// @dev b < 32. Elementary functions cannot be computed here: agents refuse a program with such functions
    /// (docs/paper.md, section 3).
    function _map(
        Context calldata c,
        Proof calldata p,
        Records.Header memory h,
        Cursor memory at
    ) private view returns (uint32 word) {
        (uint8 code, uint32[3] memory w) = _arguments(c, p, h, at);
        if (Functions.isElementary(code)) revert Binary32.UnknownFunction(code);
        word = pointwise.evaluate(code, 0, w[0], w[1], w[2]);
        if (Grid.isWide(code)) return Grid.arithmetic(code, w[0], w[1], word, c.bits);
        if (code == Functions.ITOF || code == Functions.FMOD) return Grid.ofWord(word, c.bits);
    }
}
