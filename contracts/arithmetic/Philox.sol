// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Philox: random words and the shuffle.
/// @notice In: seed, step, operator, element. Out: the word, or the sample index, that section 5 of docs/formats.md
/// fixes. Philox4x32-10 (Salmon et al., SC 2011) and a swap-or-not permutation (Hoang, Morris, Rogaway 2012). Twin:
/// vgame/arithmetic/reference/philox.py.
library Philox {
    uint256 private constant WORD_MASK = 0xffffffff;
    uint256 private constant SHUFFLE_ROUNDS = 64;
    /// @dev Two lanes of 64 bits, 128 bits apart, and the key's increments: 2^32 times sqrt(3) - 1 and the golden ratio
    /// - 1.
    uint256 private constant LANES = 0xffffffffffffffff0000000000000000ffffffffffffffff;
    uint256 private constant WEYL = 0x00bb67ae850000000000000000000000009e3779b9;
    /// @dev Fourth counter word of the shuffle: apart from each other and from `step div 2^32` of the random words.
    uint256 private constant PIVOT_STREAM = 1 << 24;
    uint256 private constant BIT_STREAM = 1 << 25;

    /// @notice Four words (the first on top) from a counter of four words (likewise) and a key, (seed mod 2^32, seed
    /// div 2^32).
    function philox(uint128 counter, uint64 seed) internal pure returns (uint128 words) {
        // Equivalent to ten times: (c0, c1, c2, c3) = (hi(M1·c2) ^ c1 ^ k0, lo(M1·c2), hi(M0·c0) ^ c3 ^ k1, lo(M0·c0)),
        // then k0 += 0x9e3779b9, k1 += 0xbb67ae85. The state is (c2 ‖ c3) at bit 128 and (c0 ‖ c1) at bit 0, the key k1
        // at bit 128 and k0 at bit 0. Shifts, keys and the multiple of c2 and c3 leave bits between and above these
        // lanes; one mask takes them.
        assembly ("memory-safe") {
            let state := or(shl(128, and(counter, 0xffffffffffffffff)), shr(64, counter))
            let key := or(shl(128, shr(32, seed)), and(seed, WORD_MASK))
            for {
                let i := 10
            } i {
                i := sub(i, 1)
            } {
                let products := xor(mul(shr(160, state), 0xcd9e8d57), shl(128, mul(shr(32, state), 0xd2511f53)))
                state := and(xor(products, shl(32, xor(state, key))), LANES)
                key := add(key, WEYL)
            }
            words := or(shl(64, and(state, 0xffffffffffffffff)), shr(128, state))
        }
    }

    /// @notice Word `element` of the output of a PHILOX operator in step `step` (from 1).
    function randomWord(uint64 seed, uint64 step, uint32 operator, uint32 element) internal pure returns (uint32) {
        return uint32(_word(philox(_counter(element / 4, operator, step, step >> 32), seed), element % 4));
    }

    /// @notice The sample at position `element` of a step's batch of `elements`, out of `population` (not
    /// 0).
    function shuffleIndex(
        uint64 seed,
        uint64 step,
        uint32 element,
        uint32 elements,
        uint32 population
    ) internal pure returns (uint32) {
        uint256 position = (uint256(step) - 1) * elements + element;
        uint256 epoch = position / population;
        uint256 x = position % population;
        uint128 words;
        // unchecked: r < 64; x and the pivot are below the population.
        unchecked {
            for (uint256 r = 0; r < SHUFFLE_ROUNDS; r++) {
                if (r % 4 == 0) words = philox(_counter(r / 4, epoch, epoch >> 32, PIVOT_STREAM), seed);
                uint256 pivot = (_word(words, r % 4) * population) >> 32;
                uint256 mirror = pivot >= x ? pivot - x : pivot + population - x;
                uint256 larger = x > mirror ? x : mirror;
                uint128 bits = philox(_counter(larger, epoch, r, BIT_STREAM + (epoch >> 32)), seed);
                if (_word(bits, 0) & 1 == 1) x = mirror;
            }
            return uint32(x);
        }
    }

    /// @dev Four counter words, each modulo 2^32.
    function _counter(uint256 c0, uint256 c1, uint256 c2, uint256 c3) private pure returns (uint128) {
        return
            uint128(((c0 & WORD_MASK) << 96) | ((c1 & WORD_MASK) << 64) | ((c2 & WORD_MASK) << 32) | (c3 & WORD_MASK));
    }

    /// @dev Word i (0..3, the first on top).
    function _word(uint128 words, uint256 i) private pure returns (uint256) {
        // unchecked: i < 4.
        unchecked {
            return (uint256(words) >> (96 - 32 * i)) & WORD_MASK;
        }
    }
}
