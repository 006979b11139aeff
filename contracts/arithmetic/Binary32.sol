// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Functions} from "./Functions.sol";

/// @title Binary32: IEEE-754 binary32 in integers, and every function of a `map` that needs no series.
/// @notice In: words (binary32, or int32 in two's complement). Out: words, correctly rounded to nearest even,
/// subnormals kept. A NaN result is always 0x7fc00000. Twin: vgame/arithmetic/reference/binary32.py.
/// @dev A finite word is (-1)^sign * mantissa * 2^exponent with mantissa < 2^24 and -149 <= exponent <= 104. Inside the
/// library words are uint256 below 2^32, and {evaluate} is the only entry: it handles NaN, so the other functions never
/// receive one.
library Binary32 {
    /// @notice No function has this code, or it is one that {Elementary} evaluates.
    error UnknownFunction(uint8 code);

    uint32 internal constant NAN = 0x7fc00000;
    uint32 internal constant POSITIVE_INFINITY = 0x7f800000;
    uint32 internal constant NEGATIVE_INFINITY = 0xff800000;
    uint32 internal constant SIGN_BIT = 0x80000000;
    uint32 internal constant MAGNITUDE = 0x7fffffff;

    /// @notice Low bits that a bfloat16 word does not have: 8 significant bits, the exponents of binary32.
    uint8 internal constant NARROW_CUT = 16;

    /// @dev Exponent of the lowest bit of a subnormal.
    int256 private constant LEAST_EXPONENT = -149;

    // --- decoding and rounding ---

    /// @notice (sign, mantissa, exponent) of a finite word.
    function decode(uint32 word) internal pure returns (uint256 sign, uint256 mantissa, int256 exponent) {
        return _decode(word);
    }

    function _decode(uint256 word) private pure returns (uint256 sign, uint256 mantissa, int256 exponent) {
        // unchecked: the field is at most 254 for a finite word, so nothing here leaves 256 bits.
        unchecked {
            sign = word >> 31;
            mantissa = word & 0x7fffff;
            uint256 field = (word >> 23) & 0xff;
            if (field != 0) {
                mantissa |= 0x800000;
                exponent = int256(field) - 150;
            } else {
                exponent = LEAST_EXPONENT;
            }
        }
    }

    /// @notice RN((-1)^sign * mantissa * 2^exponent) to 24 - cut bits. Overflow gives infinity; a zero mantissa the
    /// zero of that sign.
    /// @dev A caller that cuts off something below its mantissa sets the lowest bit instead: then mantissa >= 2^25 is
    /// needed, so that this bit lies below the last bit that is kept and the one after it. |exponent| < 2^255 - 512.
    function roundToBinary32(
        uint256 sign,
        uint256 mantissa,
        int256 exponent,
        uint256 cut
    ) internal pure returns (uint32) {
        return uint32(_round(sign, mantissa, exponent, cut));
    }

    function _round(uint256 sign, uint256 mantissa, int256 exponent, uint256 cut) private pure returns (uint256) {
        // unchecked: sums of an exponent and small constants; a shift count that wraps is larger than 255, and such a
        // shift gives the intended zero (everything lies below the half ulp).
        unchecked {
            int256 quantum = int256(Math.log2(mantissa)) + exponent - 23 + int256(cut);
            int256 least = LEAST_EXPONENT + int256(cut);
            if (quantum < least) quantum = least;
            uint256 kept;
            if (quantum > exponent) {
                uint256 shift = uint256(quantum - exponent);
                kept = mantissa >> shift;
                // Ties to even: up if the bit after the kept ones is set, and any later bit or the last kept one.
                uint256 half = (mantissa >> (shift - 1)) & 1;
                kept += mantissa << (257 - shift) != 0 ? half : half & kept;
            } else {
                kept = mantissa << uint256(exponent - quantum);
            }
            // `kept` carries its leading bit: adding it is the packing, and a carry to 2^24 comes out right.
            int256 packed = int256(kept << cut) + ((quantum - least) << 23);
            if (mantissa == 0) packed = 0;
            else if (packed > int256(uint256(POSITIVE_INFINITY))) packed = int256(uint256(POSITIVE_INFINITY));
            return (sign << 31) | uint256(packed);
        }
    }

    function isNan(uint32 word) internal pure returns (bool) {
        return word & MAGNITUDE > POSITIVE_INFINITY;
    }

    // --- dispatch ---

    /// @notice The word that the function `code` gives for its operands (those that it does not take are ignored), to
    /// 24 - cut bits.
    function evaluate(uint8 code, uint256 cut, uint32 a, uint32 b, uint32 c) internal pure returns (uint32) {
        if (cut == 0) return _evaluate(code, 0, a, b, c);
        // Words stay as they are where the function has rounded already; all others have been exact so far.
        uint256 word = _evaluate(code, cut, a, b, c);
        if (word & MAGNITUDE >= POSITIVE_INFINITY) return uint32(word & MAGNITUDE > POSITIVE_INFINITY ? NAN : word);
        (uint256 sign, uint256 mantissa, int256 exponent) = _decode(word);
        return uint32(_round(sign, mantissa, exponent, cut));
    }

    function _evaluate(uint8 code, uint256 cut, uint32 a, uint32 b, uint32 c) private pure returns (uint32) {
        if (code < 32) return uint32(_unary(code, a, cut));
        if (code < 64) return uint32(_binary(code, a, b, cut));
        if (code < 80) return uint32(_integer(code, a, b));
        if (code < 96) return _integerComparison(code, a, b) ? 1 : 0;
        if (code == Functions.ITOF) return _integerToBinary32(a, cut);
        if (code == Functions.FTOI) return uint32(_binary32ToInteger(a));
        if (code == Functions.SELECT) return a != 0 ? b : c;
        revert UnknownFunction(code);
    }

    /// @dev NEG, ABS, SQRT, FLOOR, CEIL, TRUNC, ROUND, CAST of a word; NaN gives NaN.
    function _unary(uint256 code, uint256 a, uint256 cut) private pure returns (uint256) {
        bool integral = code >= Functions.FLOOR && code <= Functions.CAST;
        if (!integral && (code == 0 || code > Functions.SQRT)) revert UnknownFunction(uint8(code));
        if (a & MAGNITUDE > POSITIVE_INFINITY) return NAN;
        if (code == Functions.CAST) return a;
        if (integral) return _roundToInteger(code, a);
        if (code == Functions.NEG) return a ^ SIGN_BIT;
        if (code == Functions.ABS) return a & MAGNITUDE;
        return _squareRoot(a, cut);
    }

    /// @dev ADD, SUB, MUL, DIV, MAX, MIN, FMOD: NaN if an operand is; EQ, NE, LT, LE: false (NE: true) if an operand
    /// is.
    function _binary(uint256 code, uint256 a, uint256 b, uint256 cut) private pure returns (uint256) {
        bool nan = a & MAGNITUDE > POSITIVE_INFINITY || b & MAGNITUDE > POSITIVE_INFINITY;
        if (code >= Functions.EQ && code <= Functions.LE)
            return nan ? _bit(code == Functions.NE) : _compare(code, a, b);
        if (code > Functions.FMOD) revert UnknownFunction(uint8(code));
        if (nan) return NAN;
        if (code == Functions.ADD) return _add(a, b, cut);
        if (code == Functions.SUB) return _add(a, b ^ SIGN_BIT, cut);
        if (code == Functions.MUL) return _multiply(a, b, cut);
        if (code == Functions.DIV) return _divide(a, b, cut);
        if (code == Functions.FMOD) return _fmod(a, b);
        return _extreme(code, a, b);
    }

    function _bit(bool condition) private pure returns (uint256) {
        return condition ? 1 : 0;
    }

    // --- arithmetic ---

    /// @dev RN(a + b). Opposite infinities give NaN; x + (-x) = +0; (-0) + (-0) = -0.
    function _add(uint256 a, uint256 b, uint256 cut) private pure returns (uint256) {
        if (a & MAGNITUDE < b & MAGNITUDE) (a, b) = (b, a);
        if (a & MAGNITUDE == POSITIVE_INFINITY) return a ^ b == SIGN_BIT ? NAN : a;
        (uint256 signA, uint256 mantissaA, int256 exponentA) = _decode(a);
        (uint256 signB, uint256 mantissaB, int256 exponentB) = _decode(b);
        // unchecked: |a| >= |b|, so the exponents are ordered and the difference of the magnitudes is not negative;
        // shift <= 26 and mantissas < 2^24 once the first line has returned.
        unchecked {
            uint256 shift = uint256(exponentA - exponentB);
            // |b| < 2^(24 - 27) of a's unit: any number that is as small moves the sum, or breaks its tie, like b.
            if (shift > 26) (shift, exponentB, mantissaB) = (27, exponentA - 27, mantissaB == 0 ? 0 : 1);
            mantissaA <<= shift;
            if (signA == signB) return _round(signA, mantissaA + mantissaB, exponentB, cut);
            return mantissaA == mantissaB ? 0 : _round(signA, mantissaA - mantissaB, exponentB, cut);
        }
    }

    /// @dev RN(a * b). Infinity times zero gives NaN.
    function _multiply(uint256 a, uint256 b, uint256 cut) private pure returns (uint256) {
        uint256 sign = (a ^ b) >> 31;
        if (a & MAGNITUDE < b & MAGNITUDE) (a, b) = (b, a);
        if (a & MAGNITUDE == POSITIVE_INFINITY) return b & MAGNITUDE == 0 ? NAN : (sign << 31) | POSITIVE_INFINITY;
        (, uint256 mantissaA, int256 exponentA) = _decode(a);
        (, uint256 mantissaB, int256 exponentB) = _decode(b);
        // unchecked: mantissas < 2^24, exponents within -149..104.
        unchecked {
            return _round(sign, mantissaA * mantissaB, exponentA + exponentB, cut);
        }
    }

    /// @dev RN(a / b). 0/0 and inf/inf give NaN, x/0 an infinity with the sign of the quotient.
    function _divide(uint256 a, uint256 b, uint256 cut) private pure returns (uint256) {
        uint256 sign = (a ^ b) & SIGN_BIT;
        a &= MAGNITUDE;
        b &= MAGNITUDE;
        if (a == POSITIVE_INFINITY || b == 0) return a == b || (a | b) == 0 ? NAN : sign | POSITIVE_INFINITY;
        if (a == 0 || b == POSITIVE_INFINITY) return sign;
        (, uint256 mantissaA, int256 exponentA) = _decode(a);
        (, uint256 mantissaB, int256 exponentB) = _decode(b);
        // unchecked: the numerator is below 2^88, the quotient above 2^40, the divisor is not zero.
        unchecked {
            uint256 quotient = (mantissaA << 64) / mantissaB;
            if (quotient * mantissaB != mantissaA << 64) quotient |= 1;
            return _round(sign >> 31, quotient, exponentA - exponentB - 64, cut);
        }
    }

    /// @dev RN(sqrt(a)). sqrt(-0) = -0; a negative number gives NaN.
    function _squareRoot(uint256 a, uint256 cut) private pure returns (uint256) {
        if (a & MAGNITUDE == 0 || a == POSITIVE_INFINITY) return a;
        if (a & SIGN_BIT != 0) return NAN;
        (, uint256 mantissa, int256 exponent) = _decode(a);
        // unchecked: 64 <= shift <= 88; the radicand lies within 2^87..2^89 and the root within 2^43.5..2^44.5.
        unchecked {
            // A leading bit at 87 or 88, and an even exponent.
            uint256 shift = 87 - Math.log2(mantissa);
            shift += (uint256(exponent) ^ shift) & 1;
            uint256 radicand = mantissa << shift;
            // Newton from above: the ratio to the root, at most 2^1.5, falls to 1 + 2^-0.7, 2^-3.1, 2^-7.5, 2^-16,
            // 2^-33, 2^-67, so that what is left is the rounding of the last step.
            uint256 root = 1 << 45;
            for (uint256 i = 0; i < 6; i++) root = (root + radicand / root) >> 1;
            if (root * root > radicand) root -= 1;
            if (root * root != radicand) root |= 1;
            return _round(a >> 31, root, (exponent - int256(shift)) / 2, cut);
        }
    }

    /// @dev a - b * trunc(a / b), exact, with the sign of a (also where it is zero).
    function _fmod(uint256 a, uint256 b) private pure returns (uint256) {
        if (a & MAGNITUDE == POSITIVE_INFINITY || b & MAGNITUDE == 0) return NAN;
        // |a| < |b|, infinite b included.
        if (a & MAGNITUDE < b & MAGNITUDE) return a;
        (uint256 sign, uint256 mantissaA, int256 exponentA) = _decode(a);
        (, uint256 mantissaB, int256 exponentB) = _decode(b);
        // unchecked: |a| >= |b|, so the exponents are ordered; they differ by at most 253; mulmod takes the whole
        // product.
        unchecked {
            return _round(sign, mulmod(mantissaA, 1 << uint256(exponentA - exponentB), mantissaB), exponentB, 0);
        }
    }

    // --- order ---

    /// @dev A signed integer in the order of the values; both zeros give 0.
    function _orderKey(uint256 word) private pure returns (int256) {
        // unchecked: at most 31 bits.
        unchecked {
            int256 magnitude = int256(word & MAGNITUDE);
            return word & SIGN_BIT == 0 ? magnitude : -magnitude;
        }
    }

    /// @dev MAX, MIN: the larger or the smaller; a zero result is +0.
    function _extreme(uint256 code, uint256 a, uint256 b) private pure returns (uint256 chosen) {
        chosen = (_orderKey(a) < _orderKey(b)) == (code == Functions.MAX) ? b : a;
        if (chosen == SIGN_BIT) chosen = 0;
    }

    /// @dev EQ, NE, LT, LE.
    function _compare(uint256 code, uint256 a, uint256 b) private pure returns (uint256) {
        int256 left = _orderKey(a);
        int256 right = _orderKey(b);
        if (code < Functions.LT) return _bit((left == right) == (code == Functions.EQ));
        return _bit(left < right || (left == right && code == Functions.LE));
    }

    // --- rounding to integers ---

    /// @dev The integer next to a in the direction of FLOOR, CEIL, TRUNC or ROUND (ties to even); a zero keeps the sign
    /// of a.
    function _roundToInteger(uint256 code, uint256 a) private pure returns (uint256) {
        (uint256 sign, uint256 mantissa, int256 exponent) = _decode(a);
        // An integer already, or infinite (which decodes like 2^128).
        if (exponent >= 0) return a;
        // unchecked: 1 <= shift <= 149 and mantissa < 2^24.
        unchecked {
            uint256 shift = uint256(-exponent);
            uint256 whole = mantissa >> shift;
            uint256 rest = mantissa - (whole << shift);
            uint256 half = 1 << (shift - 1);
            if (
                code == Functions.ROUND
                    ? rest > half || (rest == half && whole & 1 == 1)
                    : rest != 0 && code == _away(sign)
            ) {
                whole += 1;
            }
            return _round(sign, whole << shift, exponent, 0);
        }
    }

    /// @dev The function that rounds numbers of this sign away from zero.
    function _away(uint256 sign) private pure returns (uint256) {
        return sign == 0 ? Functions.CEIL : Functions.FLOOR;
    }

    // --- int32 ---

    /// @dev RN of the signed integer; 0 gives +0.
    function _integerToBinary32(uint32 a, uint256 cut) private pure returns (uint32) {
        // unchecked: 32 bits in 256.
        unchecked {
            int256 value = int32(a);
            return roundToBinary32(a >> 31, uint256(value < 0 ? -value : value), 0, cut);
        }
    }

    /// @dev trunc(a), saturated to -2^31..2^31-1; NaN gives 0.
    function _binary32ToInteger(uint256 a) private pure returns (uint256) {
        if (a & MAGNITUDE > POSITIVE_INFINITY) return 0;
        // Infinity decodes like 2^128: it saturates.
        (uint256 sign, uint256 mantissa, int256 exponent) = _decode(a);
        // unchecked: exponents are within -149..105, so the left shift keeps all 24 bits; the caller cuts the negation
        // to 32 bits.
        unchecked {
            uint256 magnitude = exponent < 0 ? mantissa >> uint256(-exponent) : mantissa << uint256(exponent);
            uint256 limit = 0x7fffffff + sign;
            if (magnitude > limit) magnitude = limit;
            return sign == 0 ? magnitude : 0 - magnitude;
        }
    }

    /// @dev IADD .. IMIN; the caller cuts the result to 32 bits.
    function _integer(uint256 code, uint32 a, uint32 b) private pure returns (uint256) {
        // unchecked: int32 arithmetic is modulo 2^32, and 32 bits stay far below 256.
        unchecked {
            if (code == Functions.IADD) return uint256(a) + b;
            if (code == Functions.ISUB) return uint256(a) - b;
            if (code == Functions.IMUL) return uint256(a) * b;
            if (code == Functions.IAND) return a & b;
            if (code == Functions.IOR) return a | b;
            if (code == Functions.IXOR) return a ^ b;
            if (code == Functions.ISHL) return uint256(a) << (b & 31);
            if (code == Functions.ISHR) return a >> (b & 31);
            if (code == Functions.IMAX) return int32(a) < int32(b) ? b : a;
            if (code == Functions.IMIN) return int32(a) > int32(b) ? b : a;
        }
        if (code == Functions.IDIV || code == Functions.IMOD) return _floorDivide(code, int32(a), int32(b));
        revert UnknownFunction(uint8(code));
    }

    /// @dev IDIV: floor(a / b); IMOD: a - b * floor(a / b), with the sign of b; by zero: 0.
    function _floorDivide(uint256 code, int256 a, int256 b) private pure returns (uint256) {
        if (b == 0) return 0;
        // unchecked: 32 bits in 256, so even -2^31 / -1 fits.
        unchecked {
            int256 quotient = a / b;
            int256 rest = a - quotient * b;
            if (rest != 0 && (rest ^ b) < 0) (quotient, rest) = (quotient - 1, rest + b);
            return uint256(code == Functions.IDIV ? quotient : rest);
        }
    }

    function _integerComparison(uint8 code, uint32 a, uint32 b) private pure returns (bool) {
        if (code == Functions.IEQ) return a == b;
        if (code == Functions.INE) return a != b;
        if (code == Functions.ILT) return int32(a) < int32(b);
        if (code == Functions.ILE) return int32(a) <= int32(b);
        if (code == Functions.ULT) return a < b;
        revert UnknownFunction(code);
    }
}
