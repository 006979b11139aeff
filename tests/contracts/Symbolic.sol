// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Accumulator, Partial} from "contracts/arithmetic/Accumulator.sol";
import {Reduction} from "contracts/arithmetic/Reduction.sol";
import {Clock} from "contracts/Clock.sol";
import {Merkle} from "contracts/Merkle.sol";
import {Records} from "contracts/Records.sol";

/// @notice Assembly against its plain form, for all values of the arguments at once: experiments/symbolic.py runs each
/// `check_` with Halmos, which takes SHA-256 as a function that nothing is known of. Sizes are fixed: what is proven
/// holds for these.
contract Symbolic {
    // --- trees ---

    function check_node(uint8 kind, bytes32 left, bytes32 right) external view {
        assert(Merkle.node(kind, left, right) == _node(kind, left, right));
    }

    function check_leafOf(uint8 kind, bytes calldata content) external view {
        assert(Merkle.leafOf(kind, content) == sha256(abi.encodePacked(uint8(0), kind, content)));
    }

    /// @dev Every index of paths of one and four nodes.
    function check_pathRoot(uint8 kind, bytes32 child, bytes32[] calldata path) external view {
        for (uint256 index; index >> path.length == 0; ++index) {
            assert(Merkle.pathRoot(kind, child, index, path, path.length) == _pathRoot(kind, child, index, path));
        }
    }

    /// @dev One to nine nodes: both ways to fold, with padding of height 3.
    function check_fold(uint8 kind, bytes32[9] calldata nodes) external view {
        for (uint256 count = 1; count <= 9; ++count) {
            bytes32[] memory some = new bytes32[](count);
            for (uint256 i; i < count; ++i) some[i] = nodes[i];
            bytes32 plain = _fold(kind, some, 3);
            assert(Merkle.foldPadded(kind, some, 3) == plain);
            assert(this.foldOf(kind, some) == plain);
        }
    }

    function foldOf(uint8 kind, bytes32[] calldata nodes) external view returns (bytes32) {
        return Merkle.foldOf(kind, nodes, 3);
    }

    /// @dev Every range of eight leaves, its siblings taken from the whole tree.
    function check_rangeRoot(uint8 kind, bytes32[8] calldata leaves) external view {
        bytes32[] memory all = new bytes32[](8);
        for (uint256 i; i < 8; ++i) all[i] = leaves[i];
        bytes32 root = _fold(kind, all, 0);
        for (uint256 first; first < 8; ++first) {
            for (uint256 last = first; last < 8; ++last) {
                bytes32[] memory range = new bytes32[](last - first + 1);
                for (uint256 i; i < range.length; ++i) range[i] = leaves[first + i];
                assert(this.rangeRoot(kind, range, first, _siblings(kind, all, first, last)) == root);
            }
        }
    }

    function rangeRoot(
        uint8 kind,
        bytes32[] memory leaves,
        uint256 first,
        bytes32[] calldata siblings
    ) external view returns (bytes32) {
        return Merkle.rangeRoot(kind, leaves, first, 3, siblings);
    }

    // --- words ---

    function check_wordAt(bytes calldata words) external pure {
        for (uint256 i; i < words.length / 4; ++i) assert(Reduction.wordAt(words, i) == _word(words, i));
    }

    function check_records(bytes calldata record) external pure {
        for (uint256 i; i < record.length; ++i) assert(Records.u8(record, i) == uint8(record[i]));
        for (uint256 i; i + 4 <= record.length; ++i) {
            assert(Records.u32(record, i) == uint32(bytes4(record[i:i + 4])));
        }
    }

    /// @dev Three words.
    function check_maximum(bytes calldata words) external pure {
        if (words.length != 12) return;
        _checkMaximum(words);
    }

    /// @dev The last word of one chunk and the first of the next, all others 1.0.
    function check_maximum_acrossChunks(uint32 a, uint32 b) external view {
        bytes memory words;
        for (uint256 i; i < 9; ++i)
            words = abi.encodePacked(
                words,
                i == 7
                    ? a
                    : i == 8
                        ? b
                        : 0x0000803f
            );
        this.checkMaximum(words);
    }

    function checkMaximum(bytes calldata words) external pure {
        _checkMaximum(words);
    }

    // --- sums ---

    /// @dev Nine words, so that two chunks are read; each lane by itself.
    function check_oneHot(bytes calldata index, uint32 m, bytes calldata words) external pure {
        if (index.length != 36 || words.length != 36) return;
        (uint256 pointer, uint256 distance) = Accumulator.factorsOfOneHotSum(index, m, words);
        assert(distance == 64);
        for (uint256 i; i < 9; ++i) {
            uint256 chosen = _equal(_word(index, i), m);
            assert(_lane(pointer, i) == chosen * uint32(bytes4(words[4 * i:4 * i + 4])));
            assert(_lane(pointer + distance, i) == chosen * 0x0000803f);
        }
    }

    function check_sumOfNine(bytes calldata words) external pure {
        if (words.length != 36) return;
        (uint256 pointer, uint256 distance) = Accumulator.factorsOfSum(words);
        for (uint256 i; i < 9; ++i) {
            assert(_lane(pointer, i) == uint32(bytes4(words[4 * i:4 * i + 4])));
            assert(_lane(pointer + distance, i) == 0x0000803f);
        }
    }

    /// @dev 768 bits in six limbs.
    function check_merge(uint256 a2, uint256 a1, uint256 a0, uint256 b2, uint256 b1, uint256 b0) external pure {
        Partial memory sum = Accumulator.merge(Partial(0, a2, a1, a0), Partial(0, b2, b1, b0));
        uint256[3] memory a = [a0, a1, a2];
        uint256[3] memory b = [b0, b1, b2];
        uint256[3] memory plain;
        uint256 carry;
        for (uint256 i; i < 6; ++i) {
            uint256 limb = uint128(a[i / 2] >> (128 * (i % 2))) + uint256(uint128(b[i / 2] >> (128 * (i % 2)))) + carry;
            plain[i / 2] |= uint256(uint128(limb)) << (128 * (i % 2));
            carry = limb >> 128;
        }
        assert(sum.class == 0 && sum.low == plain[0] && sum.middle == plain[1] && sum.high == plain[2]);
    }

    /// @dev A number and its magnitude are equal, or add up to 2^768.
    function check_magnitude(uint256 high, uint256 middle, uint256 low) external pure {
        (uint256 sign, uint256 h, uint256 m, uint256 l) = Accumulator.magnitude(Partial(0, high, middle, low));
        assert(sign == high >> 255);
        if (sign == 0) {
            assert(h == high && m == middle && l == low);
        } else {
            Partial memory zero = Accumulator.merge(Partial(0, high, middle, low), Partial(0, h, m, l));
            assert(zero.high == 0 && zero.middle == 0 && zero.low == 0);
        }
    }

    // --- clocks: times of 32 bits, a grace of 48 ---

    /// @dev In the second of the deadline a move is in time, a second later the clock has run out; an opening that came
    /// too late convicts at any time. No deadline depends on the time of the question, so what has run out has run out
    /// for ever.
    function check_turn_deadline(Duty memory d, uint32 time) external pure {
        if (time < d.turnAt || time < d.openedAt) return;
        Clock.State memory s = _state(d);
        Clock.Turn turn = Clock.turn(s, d.openedAt, time);
        bool over = time > Clock.deadline(s, d.openedAt);
        bool late = d.openedAt != 0 && d.openedAt > uint256(d.turnAt) + d.grace + d.trainerLeft;
        if (late || (d.openedAt == 0 && over)) assert(turn == Clock.Turn.TrainerExpired);
        else if (d.openedAt == 0) assert(turn == Clock.Turn.Trainer);
        else assert(turn == (over ? Clock.Turn.AuditorExpired : Clock.Turn.Auditor));
    }

    /// @dev A move leaves both clocks with no more than they had, and charges each second after the start of a turn.
    function check_turn_budget(Duty memory d, uint32 time) external pure {
        if (d.openedAt == 0 || time < d.turnAt || time < d.openedAt) return;
        Clock.State memory s = _state(d);
        if (Clock.turn(s, d.openedAt, time) != Clock.Turn.Auditor) return;
        (uint256 trainer, uint256 auditor) = (Clock.trainerUsed(s, d.openedAt), Clock.auditorUsed(s, d.openedAt, time));
        assert(trainer <= d.trainerLeft && auditor <= d.auditorLeft);
        uint256 from = d.openedAt > d.turnAt ? d.openedAt : d.turnAt;
        assert(auditor == time - from);
        assert(trainer + d.grace >= from - d.turnAt);
        assert(trainer == 0 || trainer + d.grace == from - d.turnAt);
    }

    struct Duty {
        uint32 turnAt;
        uint48 grace;
        uint32 trainerLeft;
        uint32 auditorLeft;
        uint32 openedAt;
    }

    function _state(Duty memory d) private pure returns (Clock.State memory) {
        return Clock.State(d.turnAt, d.grace, d.trainerLeft, d.auditorLeft);
    }

    // --- the plain forms ---

    function _node(uint8 kind, bytes32 left, bytes32 right) private pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(1), kind, left, right));
    }

    function _pathRoot(
        uint8 kind,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path
    ) private pure returns (bytes32) {
        for (uint256 i; i < path.length; ++i) {
            child = (index >> i) & 1 == 0 ? _node(kind, child, path[i]) : _node(kind, path[i], child);
        }
        return child;
    }

    /// @dev Level by level, each as a new array; what is missing is padding.
    function _fold(uint8 kind, bytes32[] memory nodes, uint256 base) private pure returns (bytes32) {
        bytes32 pad = sha256(abi.encodePacked(uint8(2), kind));
        for (uint256 i; i < base; ++i) pad = _node(kind, pad, pad);
        while (nodes.length > 1) {
            bytes32[] memory above = new bytes32[]((nodes.length + 1) / 2);
            for (uint256 i; i < above.length; ++i) {
                above[i] = _node(kind, nodes[2 * i], 2 * i + 1 < nodes.length ? nodes[2 * i + 1] : pad);
            }
            (nodes, pad) = (above, _node(kind, pad, pad));
        }
        return nodes[0];
    }

    function _siblings(
        uint8 kind,
        bytes32[] memory level,
        uint256 first,
        uint256 last
    ) private pure returns (bytes32[] memory found) {
        bytes32[] memory some = new bytes32[](6);
        uint256 count;
        while (level.length > 1) {
            if (first & 1 == 1) some[count++] = level[first - 1];
            if (last & 1 == 0) some[count++] = level[last + 1];
            bytes32[] memory above = new bytes32[](level.length / 2);
            for (uint256 i; i < above.length; ++i) above[i] = _node(kind, level[2 * i], level[2 * i + 1]);
            (level, first, last) = (above, first / 2, last / 2);
        }
        found = new bytes32[](count);
        for (uint256 i; i < count; ++i) found[i] = some[i];
    }

    function _word(bytes calldata words, uint256 i) private pure returns (uint32) {
        return
            uint32(uint8(words[4 * i])) |
            (uint32(uint8(words[4 * i + 1])) << 8) |
            (uint32(uint8(words[4 * i + 2])) << 16) |
            (uint32(uint8(words[4 * i + 3])) << 24);
    }

    /// @dev In the order of the values, NaN on top, both zeros equal.
    function _key(uint32 word) private pure returns (uint256) {
        uint256 magnitude = word & 0x7fffffff;
        if (magnitude > 0x7f800000) return 2 ** 32 - 1;
        return word >> 31 == 0 ? 2 ** 31 + magnitude : 2 ** 31 - magnitude;
    }

    function _checkMaximum(bytes calldata words) private pure {
        uint256 best = _key(_word(words, 0));
        uint256 position;
        for (uint256 i = 1; i < words.length / 4; ++i) {
            uint256 key = _key(_word(words, i));
            if (key > best) (best, position) = (key, i);
        }
        assert(Reduction.argmax(words) == position);
        uint32 largest = Reduction.reduceMax(words);
        assert(_key(largest) == best && (best != 2 ** 31 || largest == 0));
        assert(best != 2 ** 32 - 1 || largest == 0x7fc00000);
    }

    function _equal(uint32 a, uint32 b) private pure returns (uint256 equal) {
        assembly ("memory-safe") {
            equal := eq(a, b)
        }
    }

    /// @dev Word i in memory, its bytes in their order.
    function _lane(uint256 pointer, uint256 i) private pure returns (uint256 lane) {
        assembly ("memory-safe") {
            lane := shr(224, mload(add(pointer, mul(4, i))))
        }
    }
}
