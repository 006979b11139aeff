// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "contracts/arithmetic/Binary32.sol";
import {Grid} from "contracts/arithmetic/Grid.sol";
import {Direction, LoggedSum, Moments} from "contracts/arithmetic/LoggedSum.sol";
import {Reduction} from "contracts/arithmetic/Reduction.sol";

/// @notice The arithmetic of mode `logged`, many evaluations per call. Words are little-endian in every byte string.
contract LoggedHarness {
    /// @notice For each range of counts[i] words of a and b: the moments ‖ the words of b = 26..32, each without an
    /// entry, down, up.
    function dots(
        bytes calldata a,
        bytes calldata b,
        uint256[] calldata counts,
        uint256[] calldata terms
    ) external pure returns (bytes[] memory results) {
        results = new bytes[](counts.length);
        uint256 start = 0;
        for (uint256 i = 0; i < counts.length; i++) {
            uint256 end = start + 4 * counts[i];
            results[i] = _all(LoggedSum.dot(a[start:end], b[start:end]), terms[i]);
            start = end;
        }
    }

    function sums(
        uint256 variant,
        bytes calldata index,
        bytes calldata words,
        uint256 terms
    ) external pure returns (bytes memory) {
        return _all(variant == 1 ? LoggedSum.sum(words) : LoggedSum.oneHotSum(index, 3, words), terms);
    }

    function merged(bytes calldata a, bytes calldata b, uint256 terms) external pure returns (bytes memory) {
        return _all(LoggedSum.merge(LoggedSum.decode(a), LoggedSum.decode(b)), terms);
    }

    function _all(Moments memory m, uint256 terms) private pure returns (bytes memory result) {
        result = LoggedSum.encode(m);
        for (uint256 bits = 26; bits <= 32; bits++) {
            for (uint256 entry = 0; entry < 3; entry++) {
                result = bytes.concat(result, bytes4(LoggedSum.word(m, terms, bits, Direction(entry))));
            }
        }
    }

    /// @notice The function on pairs of words, for b = 26..31 in turn.
    function grid(uint8 code, bytes calldata a, bytes calldata b) external pure returns (bytes memory result) {
        result = new bytes(6 * a.length);
        for (uint256 i = 0; i < a.length / 4; i++) {
            (uint32 x, uint32 y) = (Reduction.wordAt(a, i), Reduction.wordAt(b, i));
            uint32 plain = Binary32.evaluate(code, 0, x, y, 0);
            for (uint256 k = 0; k < 6; k++) {
                uint32 word =
                    Grid.isWide(code) ? Grid.arithmetic(code, x, y, plain, 26 + k) : Grid.ofWord(plain, 26 + k);
                bytes4 packed = bytes4(word);
                for (uint256 j = 0; j < 4; j++) result[4 * (6 * i + k) + j] = packed[j];
            }
        }
    }
}
