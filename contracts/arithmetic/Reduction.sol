// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "./Binary32.sol";

/// @title Reduction: words of a range, and maxima over a row.
/// @notice In: a range of little-endian words (word i at byte 4 * i). Out: a word or a position.
/// NaN wins, then the first position; zeros are equal. Twin: vgame/arithmetic/reference/sums.py.
library Reduction {
    /// @notice The range ends before word `index`, or holds no word at all.
    error WordOutOfRange(uint256 index, uint256 count);

    uint256 private constant ZERO_KEY = 0x80000000;
    uint256 private constant NAN_KEY = 0xffffffff;

    // Constants in each of the eight 32-bit lanes of a chunk.
    uint256 private constant BYTES = 0x00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff00ff;
    uint256 private constant HALF = 0x0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff0000ffff;
    uint256 private constant BIT31 = 0x8000000080000000800000008000000080000000800000008000000080000000;
    uint256 private constant LOW31 = 0x7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff7fffffff;
    /// @dev 2^31 - 0x7f800001: added to the magnitude of a NaN, it sets bit 31.
    uint256 private constant ABOVE_INFINITY = 0x007fffff007fffff007fffff007fffff007fffff007fffff007fffff007fffff;

    /// @notice Word `index` of the range.
    function wordAt(bytes calldata words, uint256 index) internal pure returns (uint32) {
        if (index >= words.length / 4) revert WordOutOfRange(index, words.length / 4);
        return _wordAt(words, index);
    }

    /// @notice The largest word; NaN wins; zero gives +0.
    function reduceMax(bytes calldata words) internal pure returns (uint32) {
        (uint256 key, ) = _maximum(words);
        if (key == NAN_KEY) return Binary32.NAN;
        // unchecked: 2^23 <= key < 2^32.
        unchecked {
            return key >= ZERO_KEY ? uint32(key - ZERO_KEY) : uint32(ZERO_KEY - key) | Binary32.SIGN_BIT;
        }
    }

    /// @notice First position of the maximum, or of the first NaN if there is one.
    function argmax(bytes calldata words) internal pure returns (uint32 position) {
        (, position) = _maximum(words);
    }

    /// @notice The largest int32 word.
    function integerMax(bytes calldata words) internal pure returns (uint32 largest) {
        largest = wordAt(words, 0);
        // unchecked: i is at most the number of words.
        unchecked {
            for (uint256 i = 1; i < words.length / 4; i++) {
                uint32 word = _wordAt(words, i);
                if (int32(word) > int32(largest)) largest = word;
            }
        }
    }

    /// @dev The largest key of the row and its first position. key = 2^31 + |x| for x >= 0, 2^31 - |x| for x < 0 (|x|:
    /// the word without its sign, so both zeros have the key 2^31), and 2^32 - 1 for NaN: in the order of the values,
    /// NaN on top, never 0.
    function _maximum(bytes calldata words) private pure returns (uint256 key, uint32 position) {
        if (words.length < 4) revert WordOutOfRange(0, 0);
        uint256 best;
        // Equivalent to: for each i: best = max(best, key(words[i]) * 2^32 + (2^32 - 1 - i)), eight keys computed at
        // once.
        assembly ("memory-safe") {
            // Lanes of ones where bit 31 is set.
            function spread(bits) -> lanes {
                bits := and(bits, BIT31)
                lanes := sub(shl(1, bits), shr(31, bits))
            }
            let inverse := 0xffffffff
            let at := words.offset
            for {
                let end := add(at, and(words.length, not(3)))
            } lt(at, end) {
                at := add(at, 32)
            } {
                let x := calldataload(at)
                x := add(shl(8, and(x, BYTES)), and(shr(8, x), BYTES))
                x := add(shl(16, and(x, HALF)), and(shr(16, x), HALF))
                let negative := spread(x)
                x := and(x, LOW31)
                let nan := spread(add(x, ABOVE_INFINITY))
                x := or(sub(add(BIT31, and(x, not(negative))), and(x, negative)), nan)
                // After the end: zeros, which also end the loop below.
                if lt(sub(end, at), 32) {
                    x := and(x, not(shr(shl(3, sub(end, at)), not(0))))
                }
                for {} x {
                    x := shl(32, x)
                } {
                    let candidate := or(shl(32, shr(224, x)), inverse)
                    if gt(candidate, best) {
                        best := candidate
                    }
                    inverse := sub(inverse, 1)
                }
            }
        }
        // unchecked: the low 32 bits are 2^32 - 1 - i.
        unchecked {
            return (best >> 32, uint32(NAN_KEY - (best & NAN_KEY)));
        }
    }

    /// @dev SAFETY: no bounds check, `index` is below the number of words.
    function _wordAt(bytes calldata words, uint256 index) private pure returns (uint32 word) {
        // Equivalent to: the four bytes from 4 * index on, the first one lowest.
        assembly ("memory-safe") {
            let raw := shr(224, calldataload(add(words.offset, shl(2, index))))
            raw := or(shl(8, and(raw, 0x00ff00ff)), and(shr(8, raw), 0x00ff00ff))
            word := or(shl(16, and(raw, 0xffff)), shr(16, raw))
        }
    }
}
