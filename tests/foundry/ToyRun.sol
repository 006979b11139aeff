// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGameTypes} from "../../contracts/IGameTypes.sol";
import {Merkle} from "../../contracts/Merkle.sol";
import {ToyReferee} from "../contracts/ToyReferee.sol";

/// @notice Where a claim is false. OUTPUT: a word of operator 0. STATE: a state that does not follow from its trace.
/// PADDING: a word behind the last element. SUM: a word of operator 1, and its first partial sum.
enum Lie {
    NONE,
    OUTPUT,
    STATE,
    PADDING,
    SUM
}

/// @title One claim of the toy machine (tests/contracts/ToyReferee.sol), whole: 4 steps, 2 checkpoints, depth 1
/// @notice Operator 0 hashes 8 words, operator 1 sums 2 words of it in 2 blocks. State 0 is operator 0's output, state 1
/// stays. Every tensor is one leaf. A lie is told in each step.
library ToyRun {
    uint32 internal constant STEPS = 4;
    uint32 internal constant INTERVAL = 2;
    uint64 internal constant SEED = 7;

    // ---- the program ----

    function header() internal pure returns (bytes memory) {
        ToyReferee.Program memory p;
        p.operators = new ToyReferee.Operator[](2);
        p.operators[0] = ToyReferee.Operator(8, ToyReferee.Kind.HASH, false, 0, 1);
        p.operators[1] = ToyReferee.Operator(2, ToyReferee.Kind.SUM, false, 0, 2);
        p.states = new ToyReferee.State[](2);
        p.states[0] = ToyReferee.State(8, 0);
        p.states[1] = ToyReferee.State(4, type(uint32).max);
        return abi.encode(p);
    }

    function operatorRecord(uint256 operator) internal pure returns (IGameTypes.Record memory) {
        return IGameTypes.Record(header(), abi.encode(operator), new bytes32[](0));
    }

    function sourceRecord(uint32 tensor) internal pure returns (IGameTypes.Record memory) {
        bytes memory record = abi.encodePacked(uint8(0), tensor == 0 ? uint32(8) : uint32(4), tensor);
        return IGameTypes.Record(header(), record, new bytes32[](0));
    }

    // ---- words ----

    /// @dev The leaf of an operator's output, as it is claimed.
    function output(Lie lie, uint256 step, uint256 operator) internal pure returns (bytes memory words) {
        words = new bytes(Merkle.LEAF_BYTES);
        if (operator == 0) {
            uint256 eight = uint256(sha256(abi.encodePacked(SEED, uint64(step), uint32(0), uint32(0))));
            for (uint256 i; i < 8; ++i) _set(words, i, uint32(eight >> (224 - 32 * i)) & 0xbfffffff);
            if (lie == Lie.OUTPUT) words[0] ^= 0x01;
            if (lie == Lie.PADDING) words[400] = 0x01;
        } else {
            for (uint256 i; i < 2; ++i) _set(words, i, _sum(partials(lie, step, i)));
        }
    }

    /// @dev The partial sums of an element of operator 1.
    function partials(Lie lie, uint256 step, uint256 element) internal pure returns (bytes[] memory found) {
        uint32 operand = _get(output(lie, step, 0), element);
        found = new bytes[](2);
        for (uint32 i; i < 2; ++i) {
            bytes32 sum = sha256(abi.encodePacked(SEED, uint64(step), uint32(1), uint32(element), i, operand));
            if (lie == Lie.SUM && i == 0) sum ^= bytes32(uint256(1) << 224);
            found[i] = abi.encode(sum);
        }
    }

    /// @dev What the referee needs to compute an element.
    function proof(Lie lie, uint256 step, uint256 operator) internal view returns (bytes memory) {
        ToyReferee.Proof memory p;
        p.header = header();
        if (operator == 1) {
            p.words = output(lie, step, 0);
            p.path = path(trace(lie, step), 0);
        }
        return abi.encode(p);
    }

    function stateWords(Lie lie, uint256 step, uint256 tensor) internal pure returns (bytes memory words) {
        if (step > 0 && tensor == 0) {
            words = output(lie, step, 0);
            if (lie == Lie.STATE) words[0] ^= 0x01;
            return words;
        }
        words = new bytes(Merkle.LEAF_BYTES);
        for (uint256 i; i < (tensor == 0 ? 8 : 4); ++i) _set(words, i, uint32(tensor * 8 + i));
    }

    // ---- trees: pairs of children ----

    function state(Lie lie, uint256 step) internal view returns (bytes32[] memory) {
        return
            pair(
                Merkle.leaf(Merkle.TENSOR, stateWords(lie, step, 0)),
                Merkle.leaf(Merkle.TENSOR, stateWords(lie, step, 1))
            );
    }

    function stateRoot(Lie lie, uint256 step) internal view returns (bytes32) {
        return root(Merkle.STATE, state(lie, step));
    }

    function trace(Lie lie, uint256 step) internal view returns (bytes32[] memory) {
        return pair(Merkle.leaf(Merkle.TENSOR, output(lie, step, 0)), Merkle.leaf(Merkle.TENSOR, output(lie, step, 1)));
    }

    /// @dev Below node `index` of height 1 in the segment that begins with the state after `first`.
    function segmentLeaves(Lie lie, uint256 first, uint256 index) internal view returns (bytes32[] memory) {
        if (index == 0) return pair(stateRoot(lie, first), stateRoot(lie, first + 1));
        return pair(stateRoot(lie, first + 2), Merkle.padding(Merkle.SEGMENT, 0));
    }

    function segment(Lie lie, uint256 first) internal view returns (bytes32[] memory) {
        bytes32 left = root(Merkle.SEGMENT, segmentLeaves(lie, first, 0));
        return pair(left, root(Merkle.SEGMENT, segmentLeaves(lie, first, 1)));
    }

    function run(Lie lie) internal view returns (bytes32[] memory) {
        return pair(runLeaf(lie, 1), runLeaf(lie, 2));
    }

    function runLeaf(Lie lie, uint256 checkpoint) internal view returns (bytes32) {
        return Merkle.runLeaf(stateRoot(lie, checkpoint * INTERVAL), Merkle.padding(Merkle.LOG, 0));
    }

    function segmentPost(Lie lie, uint256 checkpoint) internal view returns (IGameTypes.SegmentPost memory post) {
        uint256 first = (checkpoint - 1) * INTERVAL;
        post.state = stateRoot(lie, first + 2);
        post.prior = stateRoot(lie, first);
        if (checkpoint == 2) post.priorPath = path(run(lie), 0);
        post.children = segment(lie, first);
        post.firstPath = path(segmentLeaves(lie, first, 0), 0);
        post.lastPath = path(segmentLeaves(lie, first, 1), 0);
    }

    /// @dev The path of the state before `step` in its segment.
    function priorPath(Lie lie, uint256 step) internal view returns (bytes32[] memory found) {
        uint256 index = (step - 1) % INTERVAL;
        uint256 first = step - 1 - index;
        found = new bytes32[](2);
        found[0] = segmentLeaves(lie, first, 0)[1 - index];
        found[1] = segment(lie, first)[1];
    }

    // ---- small things ----

    function root(uint8 kind, bytes32[] memory two) internal view returns (bytes32) {
        return Merkle.node(kind, two[0], two[1]);
    }

    function path(bytes32[] memory two, uint256 index) internal pure returns (bytes32[] memory found) {
        found = new bytes32[](1);
        found[0] = two[1 - index];
    }

    function pair(bytes32 left, bytes32 right) internal pure returns (bytes32[] memory found) {
        found = new bytes32[](2);
        (found[0], found[1]) = (left, right);
    }

    function _sum(bytes[] memory items) private pure returns (uint32 word) {
        for (uint256 i; i < items.length; ++i) word ^= uint32(bytes4(bytes32(items[i])));
        word &= 0xbfffffff;
    }

    /// @dev Little-endian.
    function _set(bytes memory words, uint256 i, uint32 word) private pure {
        for (uint256 j; j < 4; ++j) words[4 * i + j] = bytes1(uint8(word >> (8 * j)));
    }

    function _get(bytes memory words, uint256 i) private pure returns (uint32 word) {
        for (uint256 j; j < 4; ++j) word |= uint32(uint8(words[4 * i + j])) << uint32(8 * j);
    }
}
