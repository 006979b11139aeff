// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Binary32} from "./Binary32.sol";
import {Functions} from "./Functions.sol";

/// @title Grid: RN_b of binary64 results, 26 <= b < 32, for the pointwise functions that round.
/// @notice In: a function, binary32 words, b, and the word of mode `correct`, which settles the special cases. Out:
/// RN_b(RN_64(exact)) as a word. Twin: vgame/logged/reference.py. With b = 32 the word of mode `correct` is the same
/// (docs/numerics.md, section 3: rounding twice is harmless).
library Grid {
    /// @notice Does the function round a binary64 result of its own?
    function isWide(uint8 code) internal pure returns (bool) {
        return
            code == Functions.ADD ||
            code == Functions.SUB ||
            code == Functions.MUL ||
            code == Functions.DIV ||
            code == Functions.SQRT;
    }

    /// @notice RN_b(RN_64(f(a, b))); `plain` is RN_32 of it.
    function arithmetic(uint8 code, uint32 a, uint32 b, uint32 plain, uint256 bits) internal pure returns (uint32) {
        bool unary = code == Functions.SQRT;
        // Not finite, a division by zero, or exactly zero: nothing to round.
        if (!_isFinite(a) || (!unary && !_isFinite(b))) return plain;
        if (unary ? plain == Binary32.NAN || a << 1 == 0 : code == Functions.DIV && b << 1 == 0) return plain;
        (uint256 sign, uint256 mantissa, int256 exponent) = _exact(code, a, b);
        if (mantissa == 0) return plain;
        (mantissa, exponent) = _round(mantissa, exponent, 52, type(int256).min);
        return round(sign, mantissa, exponent, bits);
    }

    /// @notice RN_b of a word: of one that was rounded from binary64 before, as int32 conversions are.
    function ofWord(uint32 word, uint256 bits) internal pure returns (uint32) {
        if (!_isFinite(word)) return word;
        (uint256 sign, uint256 mantissa, int256 exponent) = Binary32.decode(word);
        return mantissa == 0 ? word : round(sign, mantissa, exponent, bits);
    }

    /// @notice RN_b(± mantissa·2^exponent); a zero keeps the sign.
    function round(uint256 sign, uint256 mantissa, int256 exponent, uint256 bits) internal pure returns (uint32) {
        (mantissa, exponent) = _round(mantissa, exponent, int256(bits) - 9, -117 - int256(bits));
        return Binary32.roundToBinary32(sign, mantissa, exponent, 0);
    }

    /// @dev To nearest, ties to even: to `after` places after the leading bit, but to no multiple of less than 2^least.
    function _round(
        uint256 mantissa,
        int256 exponent,
        int256 places,
        int256 least
    ) private pure returns (uint256, int256) {
        int256 width = int256(Math.log2(mantissa)) + exponent - places;
        if (width < least) width = least;
        if (width <= exponent) return (mantissa, exponent);
        uint256 shift = uint256(width - exponent);
        if (shift > 255) return (0, width);
        uint256 kept = mantissa >> shift;
        uint256 rest = mantissa - (kept << shift);
        uint256 half = 1 << (shift - 1);
        if (rest > half || (rest == half && kept & 1 == 1)) kept += 1;
        return (kept, width);
    }

    /// @dev The exact result; what is cut off a quotient or a root behind more than 100 bits is marked in the last one.
    function _exact(uint8 code, uint32 a, uint32 b) private pure returns (uint256, uint256, int256) {
        (uint256 signA, uint256 mantissaA, int256 exponentA) = Binary32.decode(a);
        if (code == Functions.SQRT) return _root(mantissaA, exponentA);
        (uint256 signB, uint256 mantissaB, int256 exponentB) = Binary32.decode(b);
        if (code == Functions.MUL) return (signA ^ signB, mantissaA * mantissaB, exponentA + exponentB);
        if (code == Functions.DIV) {
            uint256 quotient = (mantissaA << 128) / mantissaB;
            if (quotient * mantissaB != mantissaA << 128) quotient |= 1;
            return (signA ^ signB, quotient, exponentA - exponentB - 128);
        }
        if (code == Functions.SUB) signB ^= 1;
        if (a << 1 < b << 1) {
            (signA, mantissaA, exponentA) = (signB, mantissaB, exponentB);
            (signB, mantissaB, exponentB) = Binary32.decode(a);
        }
        // |a| >= |b| now, and a is normal where the exponents differ.
        uint256 shift = uint256(exponentA - exponentB);
        // b < 2^(24 - 81) of a's unit, which has 24 bits: b does not change the binary64 result.
        if (shift > 80) return (signA, mantissaA, exponentA);
        mantissaA <<= shift;
        return (signA, signA == signB ? mantissaA + mantissaB : mantissaA - mantissaB, exponentB);
    }

    function _root(uint256 mantissa, int256 exponent) private pure returns (uint256, uint256, int256) {
        uint256 shift = 200 + (uint256(exponent) & 1);
        uint256 root = Math.sqrt(mantissa << shift);
        if (root * root != mantissa << shift) root |= 1;
        return (0, root, (exponent - int256(shift)) / 2);
    }

    function _isFinite(uint32 word) private pure returns (bool) {
        return word & Binary32.POSITIVE_INFINITY != Binary32.POSITIVE_INFINITY;
    }
}
