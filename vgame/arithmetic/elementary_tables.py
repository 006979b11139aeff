"""Constants of the elementary functions. Written by scripts/elementary_tables.py; do not edit.

In: nothing. Out: binary64 constants shared by elementary.py (torch) and numba/elementary.py (numba).
"""

_H = float.fromhex

LOG2E = _H("0x1.71547652b82fep+0")
LN2_HI = _H("0x1.62e42fefa3800p-1")
LN2_LO = _H("0x1.ef35793c76730p-45")
INVERSE_PI = 0x517CC1B727220A94FE13ABE8FA9A6EE06DB14ACC9E21C820FF28B1D5EF5DE2B0  # floor(2^256 / pi)

EXP_Q = (
    _H("0x1.0000000000001p-1"),
    _H("0x1.5555555555556p-3"),
    _H("0x1.5555555553d63p-5"),
    _H("0x1.11111111109b3p-7"),
    _H("0x1.6c16c1788bd90p-10"),
    _H("0x1.a01a01a7c41d5p-13"),
    _H("0x1.a019b90d2ae7ap-16"),
    _H("0x1.71de0dae63bb3p-19"),
    _H("0x1.289185613a3d6p-22"),
    _H("0x1.af38a9b0ec855p-26"),
)

LOG_Q = (
    _H("0x1.5555555555558p-4"),
    _H("0x1.99999999952c5p-7"),
    _H("0x1.2492492df4807p-9"),
    _H("0x1.c71c62e165bbbp-12"),
    _H("0x1.7462b5d61104fp-14"),
    _H("0x1.39fe3997bbbc7p-16"),
    _H("0x1.2b5a2a3d1b390p-18"),
)

SINPI_Q = (
    _H("0x1.921fb54442d18p+1"),
    _H("-0x1.4abbce625be52p+2"),
    _H("0x1.466bc6775aa7dp+1"),
    _H("-0x1.32d2cce627c86p-1"),
    _H("0x1.507834855184ep-4"),
    _H("-0x1.e3074dfaf8488p-8"),
    _H("0x1.e8f3675ed3756p-12"),
    _H("-0x1.6f7acdb651dd4p-16"),
    _H("0x1.9d461fc6cc8cep-21"),
)

ERF_Q = (
    _H("0x1.6a040781a499cp-2"),
    _H("-0x1.69a0ccda3df47p-6"),
    _H("0x1.0dabaf0613e4bp-9"),
    _H("-0x1.b92e95c19392ep-13"),
    _H("0x1.717efc7844612p-16"),
    _H("-0x1.3215d8b73d84ep-19"),
    _H("0x1.ea97f14b7e8dbp-23"),
    _H("-0x1.76e8649d26b21p-26"),
    _H("0x1.0ed52c008115ep-29"),
    _H("-0x1.7034f9996c8ddp-33"),
    _H("0x1.d63529a035b79p-37"),
    _H("-0x1.1a023f219c50cp-40"),
    _H("0x1.3e150f7eb6193p-44"),
    _H("-0x1.51ee52c2ff0f0p-48"),
    _H("0x1.52d9d9ad46628p-52"),
    _H("-0x1.4161a92cc7cf6p-56"),
    _H("0x1.20ec410a94b76p-60"),
    _H("-0x1.ed7541eca1597p-65"),
    _H("0x1.916dd215bf437p-69"),
    _H("-0x1.37aae32f6d5a2p-73"),
    _H("0x1.cb65d101b1b8fp-78"),
    _H("-0x1.42f56869fc2d9p-82"),
    _H("0x1.c9d3994bc40d5p-87"),
    _H("-0x1.3a244d810bc8cp-91"),
    _H("0x1.31e2687ea8a92p-96"),
    _H("-0x1.17691cc818036p-101"),
    _H("0x1.9f5a397635884p-105"),
    _H("-0x1.26a58dc3b098cp-109"),
)
