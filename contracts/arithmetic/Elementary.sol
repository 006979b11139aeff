// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Math} from "@openzeppelin/contracts/utils/math/Math.sol";
import {Binary32} from "./Binary32.sol";
import {Functions} from "./Functions.sol";

/// @title Elementary: exp, expm1, log, log1p, tanh, erf, sigmoid, sin and cos of a binary32 word, correctly rounded.
/// @notice In: a function code and a word. Out: RN(f(x)). Twin: vgame/arithmetic/reference/elementary.py.
/// @dev Each function computes an integer `mantissa` and proves |f(x) - mantissa * 2^exponent| <= margin * 2^exponent.
/// Both ends of that interval are rounded: rounding is monotone, so where they agree the result is RN(f(x)), and where
/// they differ the call reverts with {Undecided}. docs/numerics-elementary-onchain.md derives every margin and shows
/// that no binary32 input is undecided.
///
/// Fixed point: Q124, an integer v stands for v * 2^-124; u = 2^-124 is its unit. `fixed x`: |x| in Q124, cut off below.
contract Elementary {
    /// @notice The interval around f(x) contains a midpoint between two binary32 numbers.
    error Undecided(uint8 code, uint32 x);

    int256 private constant ONE = 1 << 124;
    /// @dev log 2 in Q124 and in Q148, 1 / log 2 in Q60, sqrt 2, 2 / sqrt(pi) and pi / 2 in Q124: to nearest.
    int256 private constant LN2 = 0xb17217f7d1cf79abc9e3b39803f2f6b;
    int256 private constant LN2_Q148 = 0xb17217f7d1cf79abc9e3b39803f2f6af40f34;
    int256 private constant INVERSE_LN2_Q60 = 0x171547652b82fe17;
    uint256 private constant SQRT2 = 0x16a09e667f3bcc908b2fb1366ea957d4;
    uint256 private constant TWO_OVER_SQRT_PI = 0x120dd750429b6d11ae3a914fed7fd869;
    uint256 private constant HALF_PI = 0x1921fb54442d18469898cc51701b839a;
    /// @dev The first 512 bits behind the point of 2 / pi.
    uint256 private constant TWO_OVER_PI_HIGH = 0xa2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561;
    uint256 private constant TWO_OVER_PI_LOW = 0xb7246e3a424dd2e006492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484;

    /// @dev Words; they compare like their values.
    uint32 private constant WORD_SMALL = 0x3a800000; // 2^-10
    uint32 private constant WORD_QUARTER = 0x3e800000;
    uint32 private constant WORD_THREE_QUARTERS = 0x3f400000;
    uint32 private constant WORD_PI_OVER_4 = 0x3f490fdb; // the first word above pi / 4
    uint32 private constant WORD_ONE = 0x3f800000;
    uint32 private constant WORD_FIVE_QUARTERS = 0x3fa00000;
    uint32 private constant WORD_4 = 0x40800000;
    uint32 private constant WORD_32 = 0x42000000;
    uint32 private constant WORD_89 = 0x42b20000;
    uint32 private constant WORD_104 = 0x42d00000;

    /// @notice RN(f(x)) to 24 - cut bits (cut: 0 or 16) of the function `code`; reverts for the codes of {Binary32}.
    function evaluate(uint8 code, uint8 cut, uint32 x) public pure returns (uint32) {
        if (code < Functions.EXP || code > Functions.COS) revert Binary32.UnknownFunction(code);
        if (Binary32.isNan(x)) return Binary32.NAN;
        if (code == Functions.EXP) return _exp(x, cut);
        if (code == Functions.EXPM1) return _expm1(x, cut);
        if (code == Functions.LOG) return _log(x, cut);
        if (code == Functions.LOG1P) return _log1p(x, cut);
        if (code == Functions.TANH) return _tanh(x, cut);
        if (code == Functions.ERF) return _erf(x, cut);
        if (code == Functions.SIGMOID) return _sigmoid(x, cut);
        return _sinOrCos(code, x, cut);
    }

    // --- exponentials ---

    /// @dev exp(89) > 2^128 overflows; exp(-104) < 2^-150 rounds to zero.
    function _exp(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (sign == 0 && magnitude >= WORD_89) return Binary32.POSITIVE_INFINITY;
        if (sign == 1 && magnitude >= WORD_104) return 0;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        int256 y = int256(_fixed(mantissa, exponent));
        (uint256 power, int256 scale) = _power(sign == 0 ? y : -y);
        return _decide(Functions.EXP, cut, x, 0, power, scale - 124, 8);
    }

    /// @dev exp(89) > 2^128 overflows; 1 - |expm1(-89)| < 2^-25. Otherwise x·g(x) for |x| < log(2) / 2, else 2^k·exp(r)
    /// - 1.
    function _expm1(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (magnitude == 0) return x;
        if (magnitude >= WORD_89) return sign == 0 ? Binary32.POSITIVE_INFINITY : Binary32.SIGN_BIT | WORD_ONE;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        // unchecked: mantissa * g < 2^24 * 2^125; power << k < 2^125 * 2^128.
        unchecked {
            int256 y = int256(_fixed(mantissa, exponent));
            if (sign == 1) y = -y;
            (int256 k, int256 r) = _reduce(y);
            uint256 g = uint256(_exponentialQuotient(r));
            if (k == 0) return _decide(Functions.EXPM1, cut, x, sign, mantissa * g, exponent - 124, 8 * mantissa);
            uint256 power = uint256(ONE + ((r * int256(g)) >> 124));
            if (k > 0) {
                uint256 shift = uint256(k);
                return _decide(Functions.EXPM1, cut, x, 0, (power << shift) - uint256(ONE), -124, 8 << shift);
            }
            return _decide(Functions.EXPM1, cut, x, 1, uint256(ONE) - (power >> uint256(-k)), -124, 16);
        }
    }

    /// @dev 1 - tanh(32) < 2^-25. Otherwise, with g = (exp(2|x|) - 1) / (2|x|): |x|·g / (1 + |x|·g) for |x| < log(2) /
    /// 4, else (1 - v) / (1 + v) with v = exp(-2|x|).
    function _tanh(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (magnitude == 0) return x;
        if (magnitude >= WORD_32) return (x & Binary32.SIGN_BIT) | WORD_ONE;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        // unchecked: quotients of Q124 numbers below 2, shifted left by 124; the divisors are at least 1.
        unchecked {
            uint256 a = _fixed(mantissa, exponent);
            (int256 k, int256 r) = _reduce(-2 * int256(a));
            if (k == 0) {
                uint256 g = uint256(_exponentialQuotient(-r));
                uint256 quotient = (g << 124) / (uint256(ONE) + ((a * g) >> 124));
                return _decide(Functions.TANH, cut, x, sign, mantissa * quotient, exponent - 124, 16 * mantissa);
            }
            uint256 v = uint256(ONE + ((r * _exponentialQuotient(r)) >> 124)) >> uint256(-k);
            return _decide(Functions.TANH, cut, x, sign, ((uint256(ONE) - v) << 124) / (uint256(ONE) + v), -124, 32);
        }
    }

    /// @dev sigmoid(-104) < exp(-104) < 2^-150 rounds to zero, and 1 - sigmoid(104) is the same. Otherwise, with v =
    /// exp(-|x|), 1 / (1 + v) for x >= 0 and v / (1 + v) for x < 0.
    function _sigmoid(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (magnitude >= WORD_104) return sign == 0 ? WORD_ONE : 0;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        // unchecked: as in _tanh; k <= 0 for an argument <= 0.
        unchecked {
            (uint256 power, int256 k) = _power(-int256(_fixed(mantissa, exponent)));
            uint256 divisor = uint256(ONE) + (power >> uint256(-k));
            if (sign == 0) return _decide(Functions.SIGMOID, cut, x, 0, (uint256(ONE) << 124) / divisor, -124, 32);
            return _decide(Functions.SIGMOID, cut, x, 0, (power << 124) / divisor, k - 124, 32);
        }
    }

    /// @dev exp(y) = power * 2^(k - 124) for Q124 |y| < 2^7, with an error below 5 units of power.
    function _power(int256 y) private pure returns (uint256 power, int256 k) {
        int256 r;
        (k, r) = _reduce(y);
        // unchecked: |r| < 0.35 and 0.8 < g < 1.2 in Q124.
        unchecked {
            power = uint256(ONE + ((r * _exponentialQuotient(r)) >> 124));
        }
    }

    /// @dev y = k·log 2 + r, |r| < log(2) / 2 + 2^-50 in Q124.
    function _reduce(int256 y) private pure returns (int256 k, int256 r) {
        // unchecked: |y| < 2^131, |k| < 2^8.
        unchecked {
            k = (y * INVERSE_LN2_Q60 + (1 << 183)) >> 184;
            r = ((y << 24) - k * LN2_Q148) >> 24;
        }
    }

    /// @dev g(r) = (exp(r) - 1) / r = Σ_{n < 25} r^n / (n + 1)!, for |r| < 0.3467, with an error below 3 units.
    function _exponentialQuotient(int256 r) private pure returns (int256 g) {
        // Equivalent to: g = 1; for (n = 25; n > 1; n--) g = 1 + r * g / n.
        // unchecked: |r * g| < 2^249.
        assembly ("memory-safe") {
            g := ONE
            for {
                let n := 25
            } gt(n, 1) {
                n := sub(n, 1)
            } {
                g := add(ONE, sdiv(sar(124, mul(r, g)), n))
            }
        }
    }

    // --- logarithms ---

    /// @dev log(±0) = -inf, log(x < 0) = NaN, log(inf) = inf, log(1) = +0.
    function _log(uint32 x, uint8 cut) private pure returns (uint32) {
        if (x & Binary32.MAGNITUDE == 0) return Binary32.NEGATIVE_INFINITY;
        if (x & Binary32.SIGN_BIT != 0) return Binary32.NAN;
        if (x == Binary32.POSITIVE_INFINITY) return x;
        if (x == WORD_ONE) return 0;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        if (x < WORD_THREE_QUARTERS || x > WORD_FIVE_QUARTERS)
            return _logFar(Functions.LOG, cut, x, mantissa, exponent);
        // unchecked: the exponent is -24 or -23 here, and x - 1 = d * 2^-24 exactly, |d| <= 2^22.
        unchecked {
            int256 d = int256(mantissa << uint256(exponent + 24)) - (1 << 24);
            uint256 quotient = _logQuotient(uint256(ONE + (d << 100)));
            (uint256 sign, uint256 distance) = d < 0 ? (uint256(1), uint256(-d)) : (0, uint256(d));
            return _decide(Functions.LOG, cut, x, sign, distance * quotient, -148, 8 * distance);
        }
    }

    /// @dev log1p(±0) = ±0, log1p(inf) = inf, log1p(-1) = -inf, log1p(x < -1) = NaN.
    function _log1p(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (magnitude == 0 || x == Binary32.POSITIVE_INFINITY) return x;
        if (sign == 1 && magnitude >= WORD_ONE)
            return magnitude == WORD_ONE ? Binary32.NEGATIVE_INFINITY : Binary32.NAN;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        // unchecked: 1 + x is exact in both branches of the far case, and below 2^129; it is positive.
        unchecked {
            if (magnitude < WORD_QUARTER) {
                uint256 y = _fixed(mantissa, exponent);
                uint256 quotient = _logQuotient(sign == 0 ? uint256(ONE) + y : uint256(ONE) - y);
                return _decide(Functions.LOG1P, cut, x, sign, mantissa * quotient, exponent - 124, 8 * mantissa);
            }
            if (exponent > 0) return _logFar(Functions.LOG1P, cut, x, (mantissa << uint256(exponent)) + 1, 0);
            uint256 one = 1 << uint256(-exponent);
            return _logFar(Functions.LOG1P, cut, x, sign == 0 ? one + mantissa : one - mantissa, exponent);
        }
    }

    /// @dev RN(log(y·2^exponent)) where that is not within (3/4, 5/4): e·log 2 + log m, m = y / 2^t within [sqrt(1/2),
    /// sqrt 2].
    function _logFar(uint8 code, uint8 cut, uint32 x, uint256 y, int256 exponent) private pure returns (uint32) {
        // unchecked: y < 2^129, so all shifts are by less than 125; |e| <= 149.
        unchecked {
            uint256 t = Math.log2(y);
            uint256 m = t < 124 ? y << (124 - t) : y >> (t - 124);
            int256 e = int256(t) + exponent;
            if (m > SQRT2) {
                m >>= 1;
                e += 1;
            }
            int256 s = ((int256(m) - ONE) << 124) / (int256(m) + ONE);
            int256 value = e * LN2 + ((s * _atanhQuotient(s)) >> 123);
            if (value < 0) return _decide(code, cut, x, 1, uint256(-value), -124, 128);
            return _decide(code, cut, x, 0, uint256(value), -124, 128);
        }
    }

    /// @dev log(m) / (m - 1) = 2·(atanh(s) / s) / (m + 1), s = (m - 1) / (m + 1), for Q124 m within [3/4, 5/4]; error
    /// below 7 units.
    function _logQuotient(uint256 m) private pure returns (uint256) {
        // unchecked: |m - 1| < 2^122 and atanh(s) / s < 1.01 in Q124.
        unchecked {
            int256 s = ((int256(m) - ONE) << 124) / (int256(m) + ONE);
            return (uint256(_atanhQuotient(s)) << 125) / (m + uint256(ONE));
        }
    }

    /// @dev atanh(s) / s = Σ_{n < 24} s^(2n) / (2n + 1), for Q124 |s| < 0.1716, with an error below 5 units.
    function _atanhQuotient(int256 s) private pure returns (int256 sum) {
        // Equivalent to: w = s * s; sum = 0; for (n = 47; n > 0; n -= 2) sum = 1 / n + w * sum.
        // unchecked: w * sum < 2^246.
        assembly ("memory-safe") {
            let w := shr(124, mul(s, s))
            for {
                let n := 47
            } lt(n, 48) {
                n := sub(n, 2)
            } {
                sum := add(div(ONE, n), shr(124, mul(w, sum)))
            }
        }
    }

    // --- error function ---

    /// @dev 1 - erf(4) < 2^-25. Otherwise (2 / sqrt(pi))·x·T(x²), T(z) = Σ (-z)^n / (n!·(2n + 1)).
    function _erf(uint32 x, uint8 cut) private pure returns (uint32) {
        (uint32 sign, uint32 magnitude) = _split(x);
        if (magnitude == 0) return x;
        if (magnitude >= WORD_4) return (x & Binary32.SIGN_BIT) | WORD_ONE;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        // unchecked: x < 2^126 and T <= 1 in Q124.
        unchecked {
            uint256 y = _fixed(mantissa, exponent);
            uint256 t = uint256(_erfSeries((y * y) >> 124));
            uint256 quotient = (t * TWO_OVER_SQRT_PI) >> 124;
            return _decide(Functions.ERF, cut, x, sign, mantissa * quotient, exponent - 124, mantissa << 26);
        }
    }

    /// @dev T(z) for Q124 z < 16, with an error below 2^25 units: 30 + 4z terms, whose rounding errors grow by exp(z).
    function _erfSeries(uint256 z) private pure returns (int256 t) {
        // Equivalent to: t = 0; for (n = 29 + floor(4 * z); n >= 0; n--) t = 1 / (2n + 1) - z * t / (n + 1).
        // unchecked: z < 2^128 and 0 <= t <= 2^124.
        assembly ("memory-safe") {
            for {
                let n := add(30, shr(122, z))
            } n {
                n := sub(n, 1)
            } {
                t := sub(div(ONE, sub(mul(2, n), 1)), sdiv(sar(124, mul(z, t)), n))
            }
        }
    }

    // --- sine and cosine ---

    /// @dev sin(±0) = ±0; infinities give NaN. |x| = (quadrant)·pi / 2 ± r with 0 <= r <= pi / 4, and cos(x) = sin(|x|
    /// + pi / 2).
    function _sinOrCos(uint8 code, uint32 x, uint8 cut) private pure returns (uint32) {
        (uint256 sign, uint32 magnitude) = _split(x);
        if (magnitude == Binary32.POSITIVE_INFINITY) return Binary32.NAN;
        if (magnitude == 0 && code == Functions.SIN) return x;
        (, uint256 mantissa, int256 exponent) = Binary32.decode(x);
        uint256 quadrant = 0;
        uint256 negative = 0;
        if (magnitude >= WORD_PI_OVER_4) (quadrant, negative, mantissa, exponent) = _reduceByHalfPi(mantissa, exponent);
        // unchecked: mantissa < 2^129 times a Q124 number of at most 1.
        unchecked {
            if (code == Functions.COS) (quadrant, sign) = (quadrant + 1, 0);
            sign ^= (quadrant >> 1) & 1;
            uint256 r = _fixed(mantissa, exponent);
            if (quadrant & 1 == 1) return _decide(code, cut, x, sign, _alternatingSeries((r * r) >> 124, 0), -124, 16);
            uint256 quotient = _alternatingSeries((r * r) >> 124, 1);
            return _decide(code, cut, x, sign ^ negative, mantissa * quotient, exponent - 124, mantissa << 4);
        }
    }

    /// @dev |x| = (quadrant modulo 4)·pi / 2 + (-1)^negative·mantissa'·2^exponent', relative error of the last term
    /// below 2^-124. With f = x·2 / pi modulo 4 in Q254: bits above the quadrant drop out by themselves; the error of f
    /// is below 2^24 units, and f is never closer than 2^-30 to an integer.
    function _reduceByHalfPi(
        uint256 mantissa,
        int256 exponent
    ) private pure returns (uint256 quadrant, uint256 negative, uint256 newMantissa, int256 newExponent) {
        // unchecked: arithmetic modulo 2^256 is meant; exponents are within -24..104.
        unchecked {
            // floor(2 / pi * 2^shift) modulo 2^256; a shift count that wraps below zero gives 0, as it must.
            uint256 shift = uint256(exponent + 254);
            uint256 window =
                (TWO_OVER_PI_HIGH >> (256 - shift)) |
                    (TWO_OVER_PI_HIGH << (shift - 256)) |
                    (TWO_OVER_PI_LOW >> (512 - shift));
            uint256 f = mantissa * window;
            quadrant = (f + (1 << 253)) >> 254;
            f -= quadrant << 254;
            negative = f >> 255;
            if (negative == 1) f = 0 - f;
            uint256 excess = Math.log2(f) - 127;
            newMantissa = ((f >> excess) * HALF_PI) >> 124;
            newExponent = int256(excess) - 254;
        }
    }

    /// @dev Σ_{n < 16} (-w)^n / (2n + odd)!, for Q124 w < 0.617: cos(r) or sin(r) / r of w = r². Error below 8 units.
    function _alternatingSeries(uint256 w, uint256 odd) private pure returns (uint256 sum) {
        // Equivalent to: sum = 1; for (n = 30; n > 0; n -= 2) sum = 1 - w * sum / ((n + odd) * (n + odd - 1)).
        // unchecked: w * sum < 2^248; no term exceeds 1.
        assembly ("memory-safe") {
            sum := ONE
            for {
                let n := add(30, odd)
            } gt(n, 1) {
                n := sub(n, 2)
            } {
                sum := sub(ONE, div(shr(124, mul(w, sum)), mul(n, sub(n, 1))))
            }
        }
    }

    // --- shared ---

    function _split(uint32 x) private pure returns (uint32 sign, uint32 magnitude) {
        return (x >> 31, x & Binary32.MAGNITUDE);
    }

    /// @dev mantissa·2^exponent in Q124, cut off below. In: less than 2^7.
    function _fixed(uint256 mantissa, int256 exponent) private pure returns (uint256) {
        // unchecked: exponents are within -281..104.
        unchecked {
            int256 shift = exponent + 124;
            return shift < 0 ? mantissa >> uint256(-shift) : mantissa << uint256(shift);
        }
    }

    /// @dev The word of 24 - cut bits to which every number within (mantissa ± margin)·2^exponent rounds.
    /// INVARIANT In: margin < mantissa. (Virtual so that the tests can look at the intervals.)
    function _decide(
        uint8 code,
        uint8 cut,
        uint32 x,
        uint256 sign,
        uint256 mantissa,
        int256 exponent,
        uint256 margin
    ) internal pure virtual returns (uint32 word) {
        // unchecked: mantissa < 2^254, margin < mantissa.
        unchecked {
            word = Binary32.roundToBinary32(sign, mantissa - margin, exponent, cut);
            if (word == Binary32.roundToBinary32(sign, mantissa + margin, exponent, cut)) return word;
        }
        if (cut == 0 || !_isNearMidpoint(code, x)) revert Undecided(code, x);
        return _beside(code, x);
    }

    /// @dev Is x a midpoint of two bfloat16 numbers that the function hardly moves? Then f(x) lies between x and the
    /// neighbour that the next term of its series points to, and nearer to x: |f(x) - x| < x² < |x| / 2^10, half a step
    /// of the grid is more than |x| / 2^9.
    function _isNearMidpoint(uint8 code, uint32 x) private pure returns (bool) {
        bool identity =
            code == Functions.SIN || code == Functions.TANH || code == Functions.EXPM1 || code == Functions.LOG1P;
        return identity && x & 0xffff == 0x8000 && x & Binary32.MAGNITUDE < WORD_SMALL;
    }

    /// @dev sin and tanh: toward zero (-x³/6, -x³/3); expm1: up (+x²/2); log1p: down (-x²/2).
    function _beside(uint8 code, uint32 x) private pure returns (uint32) {
        bool positive = x & Binary32.SIGN_BIT == 0;
        bool away = code == Functions.EXPM1 ? positive : code == Functions.LOG1P && !positive;
        // unchecked: the magnitude is that of a small number.
        unchecked {
            return away ? x + 0x8000 : x - 0x8000;
        }
    }
}
