// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "./Binary32.sol";

/// @notice An exact partial sum: class 0 finite, 1 +inf, 2 -inf, 3 NaN, and a signed 768-bit value (two's complement,
/// high word first) in units of 2^-298, zero unless the class is 0. NARROW is added to the class of a sum that is
/// rounded to 8 bits.
struct Partial {
    uint8 class;
    uint256 high;
    uint256 middle;
    uint256 low;
}

/// @title Accumulator: exact sums of binary32 words, rounded once.
/// @notice In: ranges of little-endian words (word i at byte 4 * i). Out: a {Partial}, and from it a word.
/// Every product of two binary32 numbers is a multiple of 2^-298, so a sum is one integer in that unit, whatever the
/// order. Twin: vgame/arithmetic/reference/sums.py; the encoding is section 4 of docs/formats.md.
/// @dev Infinities and NaN: the sum is NaN if a term is NaN or infinity times zero, or if both infinities occur; else
/// the infinity; else the exact sum. Hence classes combine by OR.
library Accumulator {
    /// @notice The ranges of two operands hold different numbers of words, or no whole number of words.
    error UnequalRanges(uint256 lengthA, uint256 lengthB);
    /// @notice Not the encoding of a partial sum: 97 bytes, a class up to 3 (or NARROW more), and a zero value unless
    /// it is finite.
    error MalformedPartial();

    uint256 internal constant ENCODED_BYTES = 97;
    uint8 internal constant NARROW = 4; // in a class: the sum is rounded to bfloat16
    uint8 private constant KINDS = 3;
    int256 private constant UNIT_EXPONENT = -298;

    // Constants in each of the eight 32-bit lanes of a chunk.
    // bit 0 of each lane
    uint256 private constant LANES = 0x0000000100000001000000010000000100000001000000010000000100000001;
    uint256 private constant BIT31 = 0x8000000080000000800000008000000080000000800000008000000080000000;
    uint256 private constant LOW31 = 0x7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff;
    // every second byte
    uint256 private constant BYTES = 0x00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff;
    uint256 private constant HALF = 0x0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff;
    // the exponent field of a swapped lane
    uint256 private constant FIELD = 0x00007f8000007f8000007f8000007f8000007f8000007f8000007f8000007f80;
    uint256 private constant BIT15 = 0x0000800000008000000080000000800000008000000080000000800000008000;
    uint256 private constant BIT7 = 0x0000008000000080000000800000008000000080000000800000008000000080;
    uint256 private constant LOW7 = 0x0000007f0000007f0000007f0000007f0000007f0000007f0000007f0000007f;
    uint256 private constant BIT16 = 0x0001000000010000000100000001000000010000000100000001000000010000;
    // bits 0..6 and 21..23
    uint256 private constant CONTROL = 0x00e0007f00e0007f00e0007f00e0007f00e0007f00e0007f00e0007f00e0007f;
    // 1.0, little-endian
    uint256 private constant ONES = 0x0000803f0000803f0000803f0000803f0000803f0000803f0000803f0000803f;
    /// @dev Two lanes, 64 bits apart.
    uint256 private constant PAIR = 0xffffffff00000000ffffffff;
    uint256 private constant LOW48 = 0xffffffffffff;

    // --- exact sums ---

    /// @notice Σ_k a[k]·b[k].
    function dot(bytes calldata a, bytes calldata b) internal pure returns (Partial memory result) {
        (uint256 pointer, uint256 distance) = factors(a, b);
        _accumulate(pointer, distance, result);
    }

    /// @notice Σ_k words[k].
    function sum(bytes calldata words) internal pure returns (Partial memory result) {
        (uint256 pointer, uint256 distance) = factorsOfSum(words);
        _accumulate(pointer, distance, result);
    }

    /// @notice Σ_{k: index[k] = m} words[k]; terms that are not selected are absent, not multiplied by zero.
    function oneHotSum(
        bytes calldata index,
        uint32 m,
        bytes calldata words
    ) internal pure returns (Partial memory result) {
        (uint256 pointer, uint256 distance) = factorsOfOneHotSum(index, m, words);
        _accumulate(pointer, distance, result);
    }

    // --- factors: two copies in fresh memory, the second `distance` bytes behind the first at `pointer` ---

    /// @notice (a[k], b[k]). Copies both ranges to fresh memory, filled up with zero words to whole chunks of eight.
    /// The copy of b starts `distance` bytes behind that of a, and both are `distance` long.
    function factors(bytes calldata a, bytes calldata b) internal pure returns (uint256 pointer, uint256 distance) {
        if (a.length != b.length || a.length % 4 != 0) revert UnequalRanges(a.length, b.length);
        assembly ("memory-safe") {
            pointer := mload(0x40)
            distance := and(add(a.length, 31), not(31))
            let second := add(pointer, distance)
            calldatacopy(pointer, a.offset, a.length)
            calldatacopy(second, b.offset, b.length)
            calldatacopy(add(pointer, a.length), calldatasize(), sub(distance, a.length)) // zeros
            calldatacopy(add(second, b.length), calldatasize(), sub(distance, b.length))
            mstore(0x40, add(second, distance))
        }
    }

    /// @notice (words[k], 1.0).
    function factorsOfSum(bytes calldata words) internal pure returns (uint256 pointer, uint256 distance) {
        (pointer, distance) = factors(words, words);
        // Equivalent to: the second copy = 1.0, 1.0, ...
        // SAFETY: `factors` has allocated it.
        assembly ("memory-safe") {
            let end := add(pointer, mul(2, distance))
            for {
                let at := add(pointer, distance)
            } lt(at, end) {
                at := add(at, 32)
            } {
                mstore(at, ONES)
            }
        }
    }

    /// @notice (words[k], 1.0) where index[k] = m, (+0, +0) elsewhere.
    function factorsOfOneHotSum(
        bytes calldata index,
        uint32 m,
        bytes calldata words
    ) internal pure returns (uint256 pointer, uint256 distance) {
        (pointer, distance) = factors(words, index);
        // Equivalent to: where index[k] == m: (word, 1.0), elsewhere (+0, +0).
        // SAFETY: `factors` has allocated both ranges.
        assembly ("memory-safe") {
            // m in the byte order of the lanes, in every lane
            let wanted := add(and(shr(8, m), 0x00ff00ff), shl(8, and(m, 0x00ff00ff)))
            wanted := mul(add(shr(16, wanted), shl(16, and(wanted, 0xffff))), LANES)
            let end := add(pointer, distance)
            for {
                let at := pointer
            } lt(at, end) {
                at := add(at, 32)
            } {
                let difference := xor(mload(add(at, distance)), wanted)
                // bit 31 where the lane is zero, then the whole lane
                let equal := and(not(or(difference, add(and(difference, LOW31), LOW31))), BIT31)
                equal := sub(shl(1, equal), shr(31, equal))
                mstore(at, and(mload(at), equal))
                mstore(add(at, distance), and(ONES, equal))
            }
        }
    }

    // --- partial sums ---

    /// @notice The sum of both, modulo 2^768, which genuine sums (|value| < 2^588) never reach.
    function merge(Partial memory a, Partial memory b) internal pure returns (Partial memory result) {
        result.class = a.class | b.class;
        if (result.class & KINDS != 0) return result;
        // unchecked: a 768-bit addition; the carries are found by comparison.
        unchecked {
            result.low = a.low + b.low;
            uint256 carry = result.low < a.low ? 1 : 0;
            uint256 middle = a.middle + carry;
            carry = middle < carry ? 1 : 0;
            result.middle = middle + b.middle;
            if (result.middle < middle) carry += 1;
            result.high = a.high + b.high + carry;
        }
    }

    /// @notice RN(sum) as a word; a zero result is +0, also where a negative sum underflows.
    function round(Partial memory partialSum) internal pure returns (uint32) {
        uint8 kind = partialSum.class & KINDS;
        if (kind == 3) return Binary32.NAN;
        if (kind != 0) {
            return kind == 1 ? Binary32.POSITIVE_INFINITY : Binary32.NEGATIVE_INFINITY;
        }
        uint32 word = _roundFinite(partialSum);
        return word == Binary32.SIGN_BIT ? 0 : word;
    }

    /// @dev RN(value * 2^-298); the sign of a zero is the value's.
    function _roundFinite(Partial memory partialSum) private pure returns (uint32) {
        (uint256 sign, uint256 high, uint256 middle, uint256 low) = magnitude(partialSum);
        // From 2^512 units upwards everything overflows: the largest finite number is below 2^(128 + 298) units.
        if (high != 0) return sign == 0 ? Binary32.POSITIVE_INFINITY : Binary32.NEGATIVE_INFINITY;
        // The highest 256 bits in steps of 128: what is cut off is marked in the last of at least 128 significant bits.
        int256 exponent = UNIT_EXPONENT;
        uint256 mantissa = low;
        // unchecked: the exponent is at most -42.
        unchecked {
            if (middle >> 128 != 0) (mantissa, low, exponent) = (middle, low, exponent + 256);
            else if (middle != 0)
                (mantissa, low, exponent) = ((middle << 128) | (low >> 128), low << 128, exponent + 128);
            else low = 0;
        }
        if (low != 0) mantissa |= 1;
        return
            Binary32.roundToBinary32(
                sign,
                mantissa,
                exponent,
                partialSum.class & NARROW == 0 ? 0 : Binary32.NARROW_CUT
            );
    }

    /// @dev Sign and absolute value.
    function magnitude(
        Partial memory p
    ) internal pure returns (uint256 sign, uint256 high, uint256 middle, uint256 low) {
        (sign, high, middle, low) = (p.high >> 255, p.high, p.middle, p.low);
        if (sign == 0) return (sign, high, middle, low);
        // unchecked: two's complement negation, ~x + 1 with its carries.
        unchecked {
            low = ~low + 1;
            uint256 carry = low == 0 ? 1 : 0;
            middle = ~middle + carry;
            carry = middle == 0 ? carry : 0;
            high = ~high + carry;
        }
    }

    /// @notice class u8 ‖ value i768: 97 bytes.
    function encode(Partial memory partialSum) internal pure returns (bytes memory) {
        return abi.encodePacked(partialSum.class, partialSum.high, partialSum.middle, partialSum.low);
    }

    /// @notice Whether `data` is the encoding of a partial sum.
    function isPartial(bytes calldata data) internal pure returns (bool) {
        if (data.length != ENCODED_BYTES) return false;
        uint8 class = uint8(data[0]);
        if (class & KINDS == 0) return class <= NARROW;
        return class <= KINDS | NARROW && bytes32(data[1:33]) | bytes32(data[33:65]) | bytes32(data[65:97]) == 0;
    }

    /// @notice The inverse of {encode}.
    function decode(bytes calldata data) internal pure returns (Partial memory) {
        if (!isPartial(data)) revert MalformedPartial();
        return
            Partial({
                class: uint8(data[0]),
                high: uint256(bytes32(data[1:33])),
                middle: uint256(bytes32(data[33:65])),
                low: uint256(bytes32(data[65:97]))
            });
    }

    // --- the loop ---

    /// @dev Σ a[k]·b[k] over the words at `pointer` (a) and `pointer + distance` (b), and frees the memory from
    /// `pointer` on.
    function _accumulate(uint256 pointer, uint256 distance, Partial memory result) private pure {
        (uint256 carrySave, bool special) = collect(pointer, distance);
        if (special) result.class = classify(pointer, distance);
        else normalise(carrySave, result);
        // SAFETY: only the copies lie between `pointer` and the free memory, and nothing refers to them any more.
        assembly ("memory-safe") {
            mstore(0x40, pointer)
        }
    }

    /// @notice Σ a[k]·b[k] as eight carry-save words, in memory that is not allocated; special: they are void, an
    /// exponent field was 255.
    ///
    /// @dev Eight words are taken apart at once, in eight lanes of 32 bits. With x = M·2^(E-149), M < 2^24 and 0 <= E
    /// <= 253 (E is the field - 1, and 0 for subnormals, which lack the hidden bit), a product is Ma·Mb·2^S units, S =
    /// Ea + Eb <= 506. It goes to one of eight carry-save words, one per sign and S >> 7, shifted by S & 127: a term
    /// adds less than 2^175, so no word can overflow in 2^81 terms. Nothing branches on the data; if an exponent field
    /// was 255, the sum is void and {classify} decides. Sums of disjoint bits are written with `add`: the optimizer
    /// would take `or` apart and repeat its parts.
    function collect(uint256 pointer, uint256 distance) internal pure returns (uint256 carrySave, bool special) {
        uint256 fields;
        assembly ("memory-safe") {
            carrySave := mload(0x40)
            calldatacopy(carrySave, calldatasize(), 256) // zeros
            let at := pointer
            for {
                let end := add(pointer, distance)
            } lt(at, end) {} {
                let x := mload(at)
                let y := mload(add(at, distance))
                at := add(at, 32)
                // Bytes exchanged in pairs: a lane is now (low half ‖ high half) of its word.
                x := xor(x, mul(0x101, and(xor(x, shr(8, x)), BYTES)))
                y := xor(y, mul(0x101, and(xor(y, shr(8, y)), BYTES)))
                // Exponent field at bit 7; a field of 255 carries to bit 15; hidden bit (field != 0) at bit 7.
                let ex := and(x, FIELD)
                let ey := and(y, FIELD)
                fields := or(fields, or(add(ex, BIT7), add(ey, BIT7)))
                let hx := and(shr(8, add(ex, FIELD)), BIT7)
                let hy := and(shr(8, add(ey, FIELD)), BIT7)
                // Mantissas with their hidden bit, at bits 0..23.
                let mx := add(and(shr(16, x), HALF), shl(16, add(and(x, LOW7), hx)))
                let my := add(and(shr(16, y), HALF), shl(16, add(and(y, LOW7), hy)))
                // S at bits 7..15 and the sign at bit 16, doubled 14 bits higher: one control lane per product, in
                // which bits 0..6 are the shift and bits 16..23 the offset of its word.
                ex := add(sub(add(ex, ey), add(hx, hy)), and(shl(1, xor(x, y)), BIT16))
                let control := and(shr(7, mul(0x4001, ex)), CONTROL)
                // Two products per multiplication: lanes 64 bits apart, so that the cross terms lie between them.
                let p := mul(and(mx, PAIR), and(my, PAIR))
                let word := add(carrySave, byte(29, control))
                mstore(word, add(mload(word), shl(byte(31, control), and(p, LOW48))))
                word := add(carrySave, byte(21, control))
                mstore(word, add(mload(word), shl(byte(23, control), shr(128, p))))
                p := mul(and(shr(32, mx), PAIR), and(shr(32, my), PAIR))
                word := add(carrySave, byte(25, control))
                mstore(word, add(mload(word), shl(byte(27, control), and(p, LOW48))))
                word := add(carrySave, byte(17, control))
                mstore(word, add(mload(word), shl(byte(19, control), shr(128, p))))
                p := mul(and(shr(128, mx), PAIR), and(shr(128, my), PAIR))
                word := add(carrySave, byte(13, control))
                mstore(word, add(mload(word), shl(byte(15, control), and(p, LOW48))))
                word := add(carrySave, byte(5, control))
                mstore(word, add(mload(word), shl(byte(7, control), shr(128, p))))
                p := mul(and(shr(160, mx), PAIR), and(shr(160, my), PAIR))
                word := add(carrySave, byte(9, control))
                mstore(word, add(mload(word), shl(byte(11, control), and(p, LOW48))))
                word := add(carrySave, byte(1, control))
                mstore(word, add(mload(word), shl(byte(3, control), shr(128, p))))
            }
        }
        special = fields & BIT15 != 0;
    }

    /// @dev The OR of the terms' classes (a[k]·b[k] over the same words as in {collect}); 0 if no infinity and no NaN
    /// occurs.
    function classify(uint256 pointer, uint256 distance) internal pure returns (uint8 class) {
        uint256 nans;
        uint256 positive;
        uint256 negative;
        assembly ("memory-safe") {
            // Bit 0 of each lane: the magnitude is at least `threshold` (magnitudes are below 2^31: the sum does not
            // leave the lane).
            function reaches(magnitude, threshold) -> bits {
                bits := and(shr(31, add(magnitude, sub(BIT31, mul(threshold, LANES)))), LANES)
            }
            let at := pointer
            for {
                let end := add(pointer, distance)
            } lt(at, end) {
                at := add(at, 32)
            } {
                let x := mload(at)
                let y := mload(add(at, distance))
                x := add(shl(8, and(x, BYTES)), and(shr(8, x), BYTES))
                y := add(shl(8, and(y, BYTES)), and(shr(8, y), BYTES))
                x := add(shl(16, and(x, HALF)), and(shr(16, x), HALF))
                y := add(shl(16, and(y, HALF)), and(shr(16, y), HALF))
                let sign := and(shr(31, xor(x, y)), LANES)
                x := and(x, LOW31)
                y := and(y, LOW31)
                // A factor is NaN, or one is infinite and the other zero.
                let nan := or(reaches(x, 0x7f800001), reaches(y, 0x7f800001))
                nan := or(nan, and(reaches(x, 0x7f800000), not(reaches(y, 1))))
                nan := or(nan, and(reaches(y, 0x7f800000), not(reaches(x, 1))))
                nans := or(nans, nan)
                let infinite := and(or(reaches(x, 0x7f800000), reaches(y, 0x7f800000)), not(nan))
                negative := or(negative, and(infinite, sign))
                positive := or(positive, and(infinite, not(sign)))
            }
        }
        if (nans != 0) return 3;
        return (positive != 0 ? 1 : 0) | (negative != 0 ? 2 : 0);
    }

    /// @dev value = Σ_{i < 4} (positive[i] - negative[i])·2^(128 i), as 768 bits.
    function normalise(uint256 carrySave, Partial memory result) internal pure {
        // unchecked: every word is below 2^206 (2^31 terms below 2^175), so differences and carries are signed 256-bit
        // numbers.
        unchecked {
            int256 carry = _difference(carrySave, 0);
            uint256 digit = uint128(uint256(carry));
            carry = (carry >> 128) + _difference(carrySave, 1);
            result.low = digit | (uint256(carry) << 128);
            carry = (carry >> 128) + _difference(carrySave, 2);
            digit = uint128(uint256(carry));
            carry = (carry >> 128) + _difference(carrySave, 3);
            result.middle = digit | (uint256(carry) << 128);
            result.high = uint256(carry >> 128);
        }
    }

    /// @dev positive[i] - negative[i].
    function _difference(uint256 carrySave, uint256 i) private pure returns (int256 difference) {
        assembly ("memory-safe") {
            let word := add(carrySave, shl(5, i))
            difference := sub(mload(word), mload(add(word, 128)))
        }
    }
}
