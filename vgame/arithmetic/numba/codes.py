"""The codes of functions, as constants of compiled loops."""

# The codes of functions.py that a chain may have; tests/unit/test_pointwise.py compares them.
NEG, ABS, SQRT, FLOOR, CEIL, TRUNC, ROUND, CAST = 1, 2, 3, 13, 14, 15, 16, 17
ADD, SUB, MUL, DIV, MAX, MIN = 32, 33, 34, 35, 36, 37
EQ, NE, LT, LE = 48, 49, 50, 51
IADD, ISUB, IMUL, IDIV, IMOD, IAND, IOR, IXOR, ISHL, ISHR, IMAX, IMIN = range(64, 76)
IEQ, INE, ILT, ILE, ULT = range(80, 85)
ITOF, FTOI, SELECT = 96, 97, 112
