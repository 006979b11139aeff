// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Accumulator, Partial} from "./Accumulator.sol";
import {Binary32} from "./Binary32.sol";

/// @notice The data of a sum for mode `logged`: the exact value; Σ |terms| as an unsigned 768-bit number in the
/// same unit; and the lowest bit that is set in any term, NO_TERM if all are zero. All zero unless the value's class is
/// 0.
struct Moments {
    Partial value;
    uint256 high;
    uint256 middle;
    uint256 low;
    uint256 quantum;
}

/// @notice An entry of the rounding log, numbered as in the paper.
enum Direction {
    Down,
    None,
    Up
}

/// @title LoggedSum: the one word that a sum has in mode `logged`, given its entry in the rounding log.
/// @notice In: ranges of little-endian words, K, b, an entry. Out: the word. Twin: vgame/logged/admissible.py; meaning
/// and proof: docs/paper.md, section 3. The word is RN_b(exact); where an entry names the other end of the exact sum's
/// cell, and exact ± e reaches over the midpoint, it is that end. e = K·2^-53·(1 + 2^-20)·Σ |terms|, or 0 if no order
/// of summation rounds.
library LoggedSum {
    /// @notice Not the encoding of moments: 195 bytes, a class up to 3, and all zero unless the class is 0.
    error MalformedMoments();

    uint256 internal constant ENCODED_BYTES = 195;
    uint256 internal constant NO_TERM = 0xffff;
    int256 private constant UNIT_EXPONENT = -298;
    /// @dev 2^73 e = K·SLACK·Σ |terms|.
    uint256 private constant SLACK = (1 << 20) + 1;
    uint256 private constant BOUND_SHIFT = 73;

    // --- moments ---

    /// @notice Moments of Σ_k a[k]·b[k].
    function dot(bytes calldata a, bytes calldata b) internal pure returns (Moments memory) {
        (uint256 pointer, uint256 distance) = Accumulator.factors(a, b);
        return _moments(pointer, distance);
    }

    /// @notice Moments of Σ_k words[k].
    function sum(bytes calldata words) internal pure returns (Moments memory) {
        (uint256 pointer, uint256 distance) = Accumulator.factorsOfSum(words);
        return _moments(pointer, distance);
    }

    /// @notice Moments of Σ_{k: index[k] = m} words[k].
    function oneHotSum(bytes calldata index, uint32 m, bytes calldata words) internal pure returns (Moments memory) {
        (uint256 pointer, uint256 distance) = Accumulator.factorsOfOneHotSum(index, m, words);
        return _moments(pointer, distance);
    }

    /// @dev SAFETY: the carry-save words lie behind the allocated memory and are read before anything is allocated.
    function _moments(uint256 pointer, uint256 distance) private pure returns (Moments memory m) {
        (uint256 carrySave, bool special) = Accumulator.collect(pointer, distance);
        if (special) {
            m.value.class = Accumulator.classify(pointer, distance);
            return m;
        }
        Accumulator.normalise(carrySave, m.value);
        (m.high, m.middle, m.low) = _total(carrySave);
        m.quantum = _quantum(pointer, distance);
    }

    /// @dev Σ_{i < 4} (positive[i] + negative[i])·2^(128 i).
    function _total(uint256 carrySave) private pure returns (uint256 high, uint256 middle, uint256 low) {
        assembly ("memory-safe") {
            function pair(word) -> total {
                total := add(mload(word), mload(add(word, 128)))
            }
            // SAFETY: a word is below 2^206, so no addition leaves 256 bits.
            let mask := sub(shl(128, 1), 1)
            let carry := pair(carrySave)
            low := and(carry, mask)
            carry := add(shr(128, carry), pair(add(carrySave, 32)))
            low := or(low, shl(128, carry))
            carry := add(shr(128, carry), pair(add(carrySave, 64)))
            middle := and(carry, mask)
            carry := add(shr(128, carry), pair(add(carrySave, 96)))
            middle := or(middle, shl(128, carry))
            high := shr(128, carry)
        }
    }

    /// @dev The lowest bit set in the OR of all |a[k]·b[k]| in units of 2^-298; no word is infinite or NaN.
    function _quantum(uint256 pointer, uint256 distance) private pure returns (uint256) {
        uint256 low;
        uint256 middle;
        uint256 high;
        assembly ("memory-safe") {
            // Mantissa and exponent of the little-endian word at `at`: x = m·2^(e - 149).
            function open(at) -> m, e {
                let x := shr(224, mload(at))
                x := or(and(shr(8, x), 0x00ff00ff), shl(8, and(x, 0x00ff00ff)))
                x := or(shr(16, x), shl(16, and(x, 0xffff)))
                e := and(shr(23, x), 0xff)
                let hidden := iszero(iszero(e))
                m := or(and(x, 0x7fffff), shl(23, hidden))
                e := sub(e, hidden)
            }
            for {
                let end := add(pointer, distance)
            } lt(pointer, end) {
                pointer := add(pointer, 4)
            } {
                let p, s := open(pointer)
                let n, t := open(add(pointer, distance))
                p := mul(p, n)
                s := add(s, t)
                // p << s in 768 bits: a shift by 256 or more gives 0, and so does one by a negative number; p < 2^48, s
                // <= 506.
                low := or(low, shl(s, p))
                middle := or(middle, or(shr(sub(256, s), p), shl(sub(s, 256), p)))
                high := or(high, shr(sub(512, s), p))
            }
        }
        if (low != 0) return Math.log2(low & (~low + 1));
        if (middle != 0) return 256 + Math.log2(middle & (~middle + 1));
        return high != 0 ? 512 + Math.log2(high & (~high + 1)) : NO_TERM;
    }

    /// @notice Moments of both sums together, modulo 2^768, which genuine moments never reach.
    function merge(Moments memory a, Moments memory b) internal pure returns (Moments memory result) {
        result.value = Accumulator.merge(a.value, b.value);
        if (result.value.class != 0) return result;
        // The magnitudes add up like two's complement numbers do.
        Partial memory total = Accumulator.merge(
            Partial(0, a.high, a.middle, a.low),
            Partial(0, b.high, b.middle, b.low)
        );
        (result.high, result.middle, result.low) = (total.high, total.middle, total.low);
        result.quantum = a.quantum < b.quantum ? a.quantum : b.quantum;
    }

    /// @notice partial sum ‖ Σ |terms| u768 ‖ quantum u16: 195 bytes.
    function encode(Moments memory m) internal pure returns (bytes memory) {
        return abi.encodePacked(Accumulator.encode(m.value), m.high, m.middle, m.low, uint16(m.quantum));
    }

    /// @notice The inverse of {encode}.
    function decode(bytes calldata data) internal pure returns (Moments memory m) {
        if (data.length != ENCODED_BYTES || !Accumulator.isPartial(data[:97])) revert MalformedMoments();
        if (uint8(data[0]) >= Accumulator.NARROW) revert MalformedMoments();
        m.value = Accumulator.decode(data[:97]);
        m.high = uint256(bytes32(data[97:129]));
        m.middle = uint256(bytes32(data[129:161]));
        m.low = uint256(bytes32(data[161:193]));
        m.quantum = uint16(bytes2(data[193:195]));
        if (m.value.class != 0 && (m.high | m.middle | m.low | m.quantum) != 0) revert MalformedMoments();
    }

    // --- the word ---

    /// @dev The cell of |value|, which is 2^width units of 2^-298 wide: its ends are `quotient` widths and one more;
    /// the upper one is RN_b if `up`, the other one is called far.
    struct Cell {
        uint256 sign;
        uint256 quotient;
        uint256 width;
        bool up;
        uint256 distanceHigh; // D = | |value| - midpoint |
        uint256 distanceLow;
    }

    /// @notice The word of a sum of `terms` terms.
    function word(Moments memory m, uint256 terms, uint256 bits, Direction entry) internal pure returns (uint32) {
        if (m.value.class != 0) return Accumulator.round(m.value);
        (uint256 sign, uint256 high, uint256 middle, uint256 low) = Accumulator.magnitude(m.value);
        // From 2^128 on, which is 2^426 units, both ends of the cell are infinite.
        if (high != 0 || middle >> 170 != 0) return sign == 0 ? Binary32.POSITIVE_INFINITY : Binary32.NEGATIVE_INFINITY;
        Cell memory cell = _cellOf(sign, middle, low, bits);
        bool up = cell.up;
        if (entry != Direction.None && (entry == Direction.Up) != up && _reaches(m, terms, cell)) up = !up;
        uint32 result = Binary32.roundToBinary32(
            sign,
            cell.quotient + (up ? 1 : 0),
            int256(cell.width) + UNIT_EXPONENT,
            0
        );
        return result == Binary32.SIGN_BIT ? 0 : result;
    }

    /// @dev The cell of (high ‖ low) < 2^426 on the grid of b bits: 2^(E - b + 9) wide, E = floor(log2), at least that
    /// of the subnormals.
    function _cellOf(uint256 sign, uint256 high, uint256 low, uint256 bits) private pure returns (Cell memory cell) {
        uint256 exponent = high != 0 ? 256 + Math.log2(high) : Math.log2(low);
        // unchecked: 149 <= 181 - bits <= width <= 408; the quotient is below 2^24.
        unchecked {
            uint256 width = (exponent < 172 ? 172 : exponent) + 9 - bits;
            cell.sign = sign;
            cell.width = width;
            cell.quotient = width < 256 ? (high << (256 - width)) | (low >> width) : high >> (width - 256);
            // The rest, and half a width.
            uint256 restHigh = width < 256 ? 0 : high & ((1 << (width - 256)) - 1);
            uint256 restLow = width < 256 ? low & ((1 << width) - 1) : low;
            uint256 halfHigh = width > 256 ? 1 << (width - 257) : 0;
            uint256 halfLow = width > 256 ? 0 : 1 << (width - 1);
            bool above = restHigh > halfHigh || (restHigh == halfHigh && restLow > halfLow);
            bool tie = restHigh == halfHigh && restLow == halfLow;
            cell.up = above || (tie && cell.quotient & 1 == 1);
            if (!above) (restHigh, restLow, halfHigh, halfLow) = (halfHigh, halfLow, restHigh, restLow);
            cell.distanceLow = restLow - halfLow;
            cell.distanceHigh = restHigh - halfHigh - (restLow < halfLow ? 1 : 0);
        }
    }

    /// @dev Is RN_b of some value within e of the exact one the far end? Yes if e > 0 and e > D, or if e = D and the
    /// far end is even.
    function _reaches(Moments memory m, uint256 terms, Cell memory cell) private pure returns (bool) {
        if (_isExact(m)) return false;
        if (m.high != 0) return true; // e >= 2^(512 - 53) units, D < 2^408
        uint256 factor = terms * SLACK; // below 2^52
        (uint256 high, uint256 middle, uint256 low) = _times(m.middle, m.low, factor);
        // SAFETY: D < 2^408, so that 2^73 D stays below 2^481.
        uint256 farHigh = (cell.distanceHigh << BOUND_SHIFT) | (cell.distanceLow >> (256 - BOUND_SHIFT));
        uint256 farLow = cell.distanceLow << BOUND_SHIFT;
        if (high != 0 || middle != farHigh) return high != 0 || middle > farHigh;
        bool farIsEven = (cell.quotient + (cell.up ? 0 : 1)) & 1 == 0;
        return low > farLow || (low == farLow && farIsEven);
    }

    /// @dev (middle ‖ low)·factor, factor < 2^52.
    function _times(
        uint256 middle,
        uint256 low,
        uint256 factor
    ) private pure returns (uint256 high, uint256 middle_, uint256 low_) {
        // unchecked: digits of 128 bits times 52 bits, plus a carry below 2^53.
        unchecked {
            uint256 digit = uint128(low) * factor;
            low_ = uint128(digit);
            digit = (low >> 128) * factor + (digit >> 128);
            low_ |= digit << 128;
            digit = uint128(middle) * factor + (digit >> 128);
            middle_ = uint128(digit);
            digit = (middle >> 128) * factor + (digit >> 128);
            middle_ |= digit << 128;
            high = digit >> 128;
        }
    }

    /// @dev All terms are multiples of 2^quantum and Σ |terms| <= 2^(quantum + 53): no order of summation rounds.
    function _isExact(Moments memory m) private pure returns (bool) {
        (uint256 high, uint256 middle, uint256 low) = (m.high, m.middle, m.low);
        if (high | middle | low == 0) return true;
        // unchecked: the magnitude, which is not zero, less one: it must be below 2^(quantum + 53).
        unchecked {
            if (low == 0) {
                if (middle == 0) high -= 1;
                middle -= 1;
            }
            low -= 1;
        }
        uint256 top =
            high != 0
                ? 512 + Math.log2(high)
                : middle != 0
                    ? 256 + Math.log2(middle)
                    : Math.log2(low);
        return top < m.quantum + 53;
    }
}
