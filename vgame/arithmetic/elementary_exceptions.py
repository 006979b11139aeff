"""The inputs whose binary64 value rounds to the wrong word: (word, word of RN(f(x))), found by scripts/exhaustive.py.

f(x) lies so close to a midpoint of two binary32 numbers (within 2^-29 ulp) that the binary64 value is the midpoint
itself, or the number next to it on the wrong side. The list is complete; EXP, EXPM1 and TANH have none.
"""

from __future__ import annotations

from vgame.arithmetic.functions import Function

EXCEPTIONS: dict[Function, tuple[tuple[int, int], ...]] = {
    Function.EXP: (),
    Function.EXPM1: (),
    Function.LOG: (
        (0x3C413D3A, 0xC08E158F),
        (0x41178FEB, 0x400FE5E7),
        (0x4C5D65A5, 0x418F034B),
        (0x65D890D3, 0x4254D1F9),
        (0x6F31A8EC, 0x42845A89),
    ),
    Function.LOG1P: (
        (0x35400003, 0x353FFFFF),
        (0x3710001B, 0x370FFFF3),
        (0x3EFD81AD, 0x3ECDEEE1),
        (0x41078FEB, 0x400FE5E7),
        (0x65D890D3, 0x4254D1F9),
        (0x6F31A8EC, 0x42845A89),
        (0xB53FFFFD, 0xB5400001),
        (0xB70FFFE5, 0xB710000D),
        (0xBB0EC8C4, 0xBB0EF0A5),
    ),
    Function.TANH: (),
    Function.ERF: (
        (0x3940EAD6, 0x3959AF14),
        (0xB940EAD6, 0xB959AF14),
    ),
    Function.SIGMOID: ((0xBA928601, 0x3EFFDB5F),),
    Function.SIN: (
        (0x55CAFB2A, 0xBF7E7A17),
        (0x67A9242B, 0xBF7FAB81),
        (0xD5CAFB2A, 0x3F7E7A17),
        (0xE7A9242B, 0x3F7FAB81),
    ),
    Function.COS: (
        (0x5F18B878, 0x3F7F14BB),
        (0x6115CB11, 0x3F78142F),
        (0xDF18B878, 0x3F7F14BB),
        (0xE115CB11, 0x3F78142F),
    ),
}
