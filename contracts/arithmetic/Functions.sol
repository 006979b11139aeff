// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Functions: the codes of a `map` operator's functions.
/// @notice One byte of an operator record, so part of every program root: never reused or renumbered.
/// f = binary32 word, i = int32 word (two's complement). Twin: vgame/arithmetic/functions.py.
library Functions {
    // binary32 -> binary32
    uint8 internal constant NEG = 1;
    uint8 internal constant ABS = 2;
    uint8 internal constant SQRT = 3;
    uint8 internal constant EXP = 4;
    uint8 internal constant EXPM1 = 5;
    uint8 internal constant LOG = 6;
    uint8 internal constant LOG1P = 7;
    uint8 internal constant TANH = 8;
    uint8 internal constant ERF = 9;
    uint8 internal constant SIGMOID = 10;
    uint8 internal constant SIN = 11;
    uint8 internal constant COS = 12;
    uint8 internal constant FLOOR = 13;
    uint8 internal constant CEIL = 14;
    uint8 internal constant TRUNC = 15;
    uint8 internal constant ROUND = 16; // to the nearest integer, ties to even
    uint8 internal constant CAST = 17; // the operand, rounded to the precision of the output
    // (binary32, binary32) -> binary32
    uint8 internal constant ADD = 32;
    uint8 internal constant SUB = 33;
    uint8 internal constant MUL = 34;
    uint8 internal constant DIV = 35;
    uint8 internal constant MAX = 36; // NaN wins; a zero result is +0
    uint8 internal constant MIN = 37; // NaN wins; a zero result is +0
    uint8 internal constant FMOD = 38; // exact remainder with the sign of the first operand (C's fmod)
    // (binary32, binary32) -> int32, 1 or 0; every comparison with NaN is false, except NE
    uint8 internal constant EQ = 48;
    uint8 internal constant NE = 49;
    uint8 internal constant LT = 50;
    uint8 internal constant LE = 51;
    // (int32, int32) -> int32, modulo 2^32
    uint8 internal constant IADD = 64;
    uint8 internal constant ISUB = 65;
    uint8 internal constant IMUL = 66;
    uint8 internal constant IDIV = 67; // floor division; by zero: 0
    uint8 internal constant IMOD = 68; // floor modulus, the sign of the divisor; by zero: 0
    uint8 internal constant IAND = 69;
    uint8 internal constant IOR = 70;
    uint8 internal constant IXOR = 71;
    uint8 internal constant ISHL = 72; // by (b & 31)
    uint8 internal constant ISHR = 73; // logical (zero fill), by (b & 31)
    uint8 internal constant IMAX = 74;
    uint8 internal constant IMIN = 75;
    // (int32, int32) -> int32, 1 or 0
    uint8 internal constant IEQ = 80;
    uint8 internal constant INE = 81;
    uint8 internal constant ILT = 82; // signed
    uint8 internal constant ILE = 83; // signed
    uint8 internal constant ULT = 84; // both words read as unsigned
    // conversions
    uint8 internal constant ITOF = 96; // signed int32 -> binary32, to nearest even
    uint8 internal constant FTOI = 97; // binary32 -> int32, toward zero; saturates; NaN gives 0
    // (int32, any, any) -> any
    uint8 internal constant SELECT = 112; // a != 0 ? b : c, words copied

    /// @notice Number of operands of a function.
    function arity(uint8 code) internal pure returns (uint256) {
        if (code == SELECT) return 3;
        return code < ADD || code == ITOF || code == FTOI ? 1 : 2;
    }

    /// @notice Whether {Elementary} evaluates the function.
    function isElementary(uint8 code) internal pure returns (bool) {
        return code >= EXP && code <= COS;
    }
}
