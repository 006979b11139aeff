// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Elementary} from "contracts/arithmetic/Elementary.sol";

/// @notice Shows the interval that Elementary rounds instead of rounding it.
contract ElementaryIntervals is Elementary {
    error Interval(uint256 sign, uint256 mantissa, int256 exponent, uint256 margin);

    function _decide(
        uint8,
        uint8,
        uint32,
        uint256 sign,
        uint256 mantissa,
        int256 exponent,
        uint256 margin
    ) internal pure override returns (uint32) {
        revert Interval(sign, mantissa, exponent, margin);
    }
}

/// @notice A damaged twin: its margins are 2^70 times too wide, so that some inputs are undecided.
contract ElementaryTooWide is Elementary {
    function _decide(
        uint8 code,
        uint8 cut,
        uint32 x,
        uint256 sign,
        uint256 mantissa,
        int256 exponent,
        uint256 margin
    ) internal pure override returns (uint32) {
        return super._decide(code, cut, x, sign, mantissa, exponent, margin << 70);
    }
}

contract ElementaryHarness {
    Elementary public immutable elementary = new Elementary();
    ElementaryIntervals public immutable intervals = new ElementaryIntervals();
    ElementaryTooWide public immutable tooWide = new ElementaryTooWide();

    function evaluate(uint8 code, uint8 cut, uint32 word) external view returns (uint32) {
        return elementary.evaluate(code, cut, word);
    }

    function evaluateTooWide(uint8 code, uint32 word) external view returns (uint32) {
        return tooWide.evaluate(code, 0, word);
    }

    /// @notice f of every word, and the gas of every call; words are packed big-endian.
    function evaluateMany(
        uint8 code,
        uint8 cut,
        bytes calldata words
    ) external view returns (uint32[] memory results, uint256[] memory gas) {
        results = new uint32[](words.length / 4);
        gas = new uint256[](words.length / 4);
        for (uint256 i = 0; i < words.length; i += 4) {
            uint32 word = uint32(bytes4(words[i:i + 4]));
            uint256 before = gasleft();
            results[i / 4] = elementary.evaluate(code, cut, word);
            gas[i / 4] = before - gasleft();
        }
    }

    /// @notice (sign, mantissa, exponent, margin) of every word that is not special; empty bytes for those that are.
    function intervalsOf(uint8 code, bytes calldata words) external view returns (bytes[] memory results) {
        results = new bytes[](words.length / 4);
        for (uint256 i = 0; i < words.length; i += 4) {
            try intervals.evaluate(code, 0, uint32(bytes4(words[i:i + 4]))) returns (uint32) {} catch (
                bytes memory reason
            ) {
                results[i / 4] = reason;
            }
        }
    }
}
