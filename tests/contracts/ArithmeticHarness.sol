// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Accumulator, Partial} from "contracts/arithmetic/Accumulator.sol";
import {Binary32} from "contracts/arithmetic/Binary32.sol";
import {Philox} from "contracts/arithmetic/Philox.sol";
import {Reduction} from "contracts/arithmetic/Reduction.sol";

/// @notice The arithmetic libraries, many evaluations per call. Words are little-endian in every byte string.
contract ArithmeticHarness {
    // --- Binary32 ---

    function evaluateMany(
        uint8 code,
        uint8 cut,
        bytes calldata a,
        bytes calldata b,
        bytes calldata c
    ) external pure returns (bytes memory results) {
        results = new bytes(a.length);
        for (uint256 i = 0; i < a.length / 4; i++) {
            uint32 word = Binary32.evaluate(
                code,
                cut,
                Reduction.wordAt(a, i),
                Reduction.wordAt(b, i),
                Reduction.wordAt(c, i)
            );
            _store(results, i, word);
        }
    }

    function evaluateGas(uint8 code, uint8 cut, uint32 a, uint32 b, uint32 c) external view returns (uint256 gas) {
        gas = gasleft();
        Binary32.evaluate(code, cut, a, b, c);
        gas -= gasleft();
    }

    // --- Accumulator: mode 0 dot, 1 sum, 2 one-hot sum ---

    /// @notice For each range of counts[i] words of a and b: the encoding of the partial sum ‖ the rounded word.
    function sums(
        uint256 mode,
        bytes calldata a,
        bytes calldata b,
        uint256[] calldata counts,
        uint32[] calldata selected
    ) external pure returns (bytes[] memory results) {
        results = new bytes[](counts.length);
        uint256 start = 0;
        for (uint256 i = 0; i < counts.length; i++) {
            uint256 end = start + 4 * counts[i];
            Partial memory p = _sum(mode, a[start:end], b[start:end], mode == 2 ? selected[i] : 0);
            results[i] = bytes.concat(Accumulator.encode(p), bytes4(Accumulator.round(p)));
            start = end;
        }
    }

    function _sum(uint256 mode, bytes calldata a, bytes calldata b, uint32 m) private pure returns (Partial memory) {
        if (mode == 0) return Accumulator.dot(a, b);
        return mode == 1 ? Accumulator.sum(b) : Accumulator.oneHotSum(a, m, b);
    }

    function dot(bytes calldata a, bytes calldata b) external pure returns (uint32) {
        return Accumulator.round(Accumulator.dot(a, b));
    }

    function sumGas(uint256 mode, bytes calldata a, bytes calldata b) external view returns (uint256 gas) {
        gas = gasleft();
        Accumulator.round(_sum(mode, a, b, 0));
        gas -= gasleft();
    }

    /// @notice The free memory pointer before and after a dot product: its copies must be gone, and words behind them
    /// unharmed.
    function memoryAround(bytes calldata a, bytes calldata b) external pure returns (uint256 grown, bytes32 kept) {
        bytes32[] memory guard = new bytes32[](1);
        guard[0] = keccak256(a);
        uint256 before;
        assembly ("memory-safe") {
            before := mload(0x40)
        }
        Accumulator.dot(a, b);
        assembly ("memory-safe") {
            grown := sub(mload(0x40), before)
        }
        kept = guard[0];
    }

    /// @notice encoding ‖ rounded word of the merged partial sums.
    function merge(bytes[] calldata partials) external pure returns (bytes memory) {
        Partial memory total;
        for (uint256 i = 0; i < partials.length; i++) {
            total = Accumulator.merge(total, Accumulator.decode(partials[i]));
        }
        return bytes.concat(Accumulator.encode(total), bytes4(Accumulator.round(total)));
    }

    function isPartial(bytes calldata data) external pure returns (bool) {
        return Accumulator.isPartial(data);
    }

    // --- Reduction ---

    function wordAt(bytes calldata words, uint256 index) external pure returns (uint32) {
        return Reduction.wordAt(words, index);
    }

    function reduce(
        bytes calldata words,
        uint256[] calldata counts
    ) external pure returns (uint32[] memory maxima, uint32[] memory integers, uint32[] memory positions) {
        maxima = new uint32[](counts.length);
        integers = new uint32[](counts.length);
        positions = new uint32[](counts.length);
        uint256 start = 0;
        for (uint256 i = 0; i < counts.length; i++) {
            uint256 end = start + 4 * counts[i];
            maxima[i] = Reduction.reduceMax(words[start:end]);
            integers[i] = Reduction.integerMax(words[start:end]);
            positions[i] = Reduction.argmax(words[start:end]);
            start = end;
        }
    }

    function reduceGas(bytes calldata words) external view returns (uint256 gas) {
        gas = gasleft();
        Reduction.reduceMax(words);
        gas -= gasleft();
    }

    // --- Philox ---

    function philox(uint128 counter, uint64 seed) external pure returns (uint128) {
        return Philox.philox(counter, seed);
    }

    function randomWords(
        uint64 seed,
        uint64 step,
        uint32 operator,
        uint32[] calldata elements
    ) external pure returns (uint32[] memory words) {
        words = new uint32[](elements.length);
        for (uint256 i = 0; i < elements.length; i++) {
            words[i] = Philox.randomWord(seed, step, operator, elements[i]);
        }
    }

    /// @notice The indices of all elements of the steps first..last.
    function shuffle(
        uint64 seed,
        uint64 first,
        uint64 last,
        uint32 elements,
        uint32 population
    ) external pure returns (uint32[] memory indices) {
        indices = new uint32[]((last - first + 1) * elements);
        for (uint256 i = 0; i < indices.length; i++) {
            indices[i] = Philox.shuffleIndex(
                seed,
                uint64(first + i / elements),
                uint32(i % elements),
                elements,
                population
            );
        }
    }

    function shuffleIndex(
        uint64 seed,
        uint64 step,
        uint32 element,
        uint32 elements,
        uint32 population
    ) external pure returns (uint32) {
        return Philox.shuffleIndex(seed, step, element, elements, population);
    }

    function philoxGas(uint64 seed) external view returns (uint256 word, uint256 index) {
        word = gasleft();
        Philox.randomWord(seed, 7, 11, 13);
        word -= gasleft();
        index = gasleft();
        Philox.shuffleIndex(seed, 1 << 20, 31, 64, 50_000);
        index -= gasleft();
    }

    function _store(bytes memory results, uint256 i, uint32 word) private pure {
        for (uint256 j = 0; j < 4; j++) {
            results[4 * i + j] = bytes1(uint8(word >> (8 * j)));
        }
    }
}
