// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title Merkle trees over SHA-256 with a kind in every hash (docs/formats.md sections 1 and 2)
/// @notice In: leaves, paths, range proofs. Out: roots. Twin: vgame/commit/merkle.py.
library Merkle {
    uint8 internal constant RUN = 1;
    uint8 internal constant SEGMENT = 2;
    uint8 internal constant STATE = 3;
    uint8 internal constant TRACE = 4;
    uint8 internal constant TENSOR = 5;
    uint8 internal constant OPERATORS = 6;
    uint8 internal constant SOURCES = 7;
    uint8 internal constant CONSTANTS = 8;
    uint8 internal constant DATA = 9;
    uint8 internal constant PARTIAL = 10;
    uint8 internal constant LOG = 11;

    uint256 internal constant LEAF_WORDS = 128;
    uint256 internal constant LEAF_BYTES = 512;

    error HashFailed();
    error IndexOutOfRange(uint256 index, uint256 height);
    error PathLength(uint256 actual, uint256 expected);
    error RangeProofLength(uint256 actual, uint256 expected);

    /// @notice ceil(log2(count)), 0 for count <= 1.
    function height(uint256 count) internal pure returns (uint256 h) {
        while ((uint256(1) << h) < count) ++h;
    }

    /// @notice Height of the TENSOR tree over that many words.
    function tensorHeight(uint256 elements) internal pure returns (uint256) {
        return height((elements + LEAF_WORDS - 1) / LEAF_WORDS);
    }

    /// @notice Number of levels of one reveal from a node of height h: ceil(h / ceil(h / d)), 0 at a leaf.
    function revealDepth(uint256 h, uint256 d) internal pure returns (uint256) {
        if (h == 0) return 0;
        uint256 turns = (h + d - 1) / d;
        return (h + turns - 1) / turns;
    }

    /// @notice H(0x01 ‖ kind ‖ left ‖ right)
    function node(uint8 kind, bytes32 left, bytes32 right) internal view returns (bytes32 result) {
        bool ok;
        assembly ("memory-safe") {
            let p := mload(0x40)
            mstore8(p, 1)
            mstore8(add(p, 1), kind)
            mstore(add(p, 2), left)
            mstore(add(p, 34), right)
            ok := staticcall(gas(), 2, p, 66, 0, 32)
            result := mload(0)
        }
        if (!ok) revert HashFailed();
    }

    /// @notice H(0x00 ‖ kind ‖ content)
    function leaf(uint8 kind, bytes memory content) internal view returns (bytes32) {
        return sha256(abi.encodePacked(uint8(0), kind, content));
    }

    /// @notice H(0x00 ‖ kind ‖ content) for content in calldata.
    function leafOf(uint8 kind, bytes calldata content) internal view returns (bytes32 result) {
        bool ok;
        assembly ("memory-safe") {
            let p := mload(0x40)
            mstore8(p, 0)
            mstore8(add(p, 1), kind)
            calldatacopy(add(p, 2), content.offset, content.length)
            ok := staticcall(gas(), 2, p, add(content.length, 2), 0, 32)
            result := mload(0)
        }
        if (!ok) revert HashFailed();
    }

    /// @notice Root of an empty subtree of height h: H(0x02 ‖ kind) at height 0.
    function padding(uint8 kind, uint256 h) internal view returns (bytes32 result) {
        result = sha256(abi.encodePacked(uint8(2), kind));
        for (uint256 i; i < h; ++i) result = node(kind, result, result);
    }

    /// @notice The leaf of the RUN tree: H(0x00 ‖ RUN ‖ state ‖ log).
    function runLeaf(bytes32 state, bytes32 log) internal view returns (bytes32) {
        return leaf(RUN, abi.encodePacked(state, log));
    }

    /// @notice The node at the end of a path. INVARIANT I7: the caller fixes the length; the index must fit it.
    /// @dev Equivalent to: for each level, child = bit of the index is 0 ? node(kind, child, sibling) : node(kind,
    /// sibling, child).
    function pathRoot(
        uint8 kind,
        bytes32 child,
        uint256 index,
        bytes32[] calldata path,
        uint256 length
    ) internal view returns (bytes32) {
        if (path.length != length) revert PathLength(path.length, length);
        if (index >> length != 0) revert IndexOutOfRange(index, length);
        bool ok = true;
        assembly ("memory-safe") {
            let p := mload(0x40)
            mstore8(p, 1)
            mstore8(add(p, 1), kind)
            let end := add(path.offset, shl(5, length))
            for {
                let at := path.offset
            } lt(at, end) {
                at := add(at, 32)
            } {
                let side := shl(5, and(index, 1))
                mstore(add(add(p, 2), side), child)
                mstore(sub(add(p, 34), side), calldataload(at))
                ok := and(ok, staticcall(gas(), 2, p, 66, 0, 32))
                child := mload(0)
                index := shr(1, index)
            }
        }
        if (!ok) revert HashFailed();
        return child;
    }

    /// @notice Root over any number of nodes of height `base`, the rest of the tree being padding.
    function foldPadded(uint8 kind, bytes32[] memory nodes, uint256 base) internal view returns (bytes32) {
        uint256 width = uint256(1) << height(nodes.length);
        bytes32[] memory level = new bytes32[](width);
        bytes32 pad = nodes.length == width ? bytes32(0) : padding(kind, base);
        for (uint256 i; i < width; ++i) level[i] = i < nodes.length ? nodes[i] : pad;
        uint256 first;
        assembly ("memory-safe") {
            first := add(level, 32)
        }
        return _fold(kind, first, width);
    }

    /// @notice The same for nodes in calldata.
    function foldOf(uint8 kind, bytes32[] calldata nodes, uint256 base) internal view returns (bytes32) {
        uint256 width = uint256(1) << height(nodes.length);
        bytes32 pad = nodes.length == width ? bytes32(0) : padding(kind, base);
        uint256 first;
        assembly ("memory-safe") {
            first := add(mload(0x40), 32)
            let at := add(first, shl(5, nodes.length))
            let end := add(first, shl(5, width))
            calldatacopy(first, nodes.offset, shl(5, nodes.length))
            for {} lt(at, end) {
                at := add(at, 32)
            } {
                mstore(at, pad)
            }
            mstore(0x40, end)
        }
        return _fold(kind, first, width);
    }

    /// @dev Root over `width` nodes in memory from `first` on. Equivalent to: level by level, nodes[i] = node(kind,
    /// nodes[2i], nodes[2i + 1]).
    /// SAFETY: the caller allows that the nodes and the word before them are overwritten. A parent, and the prefix in
    /// the word before its pair, overwrite only nodes that are already hashed.
    function _fold(uint8 kind, uint256 first, uint256 width) private view returns (bytes32 root) {
        bool ok = true;
        assembly ("memory-safe") {
            let prefix := or(0x100, kind)
            for {
                let half := shr(1, width)
            } half {
                half := shr(1, half)
            } {
                let from := sub(first, 32)
                let end := add(first, shl(5, half))
                for {
                    let to := first
                } lt(to, end) {
                    to := add(to, 32)
                } {
                    mstore(from, prefix)
                    ok := and(ok, staticcall(gas(), 2, add(from, 30), 66, to, 32))
                    from := add(from, 64)
                }
            }
            root := mload(first)
        }
        if (!ok) revert HashFailed();
    }

    /// @notice Root of the tree of height h whose leaves first, first + 1, ... are `leaves` (overwritten).
    /// @dev Siblings level by level from the leaves up: the left one if the range starts odd, the right one if it ends
    /// even.
    function rangeRoot(
        uint8 kind,
        bytes32[] memory leaves,
        uint256 first,
        uint256 h,
        bytes32[] calldata siblings
    ) internal view returns (bytes32) {
        uint256 last = first + leaves.length - 1;
        if (leaves.length == 0 || last >> h != 0) revert IndexOutOfRange(last, h);
        uint256 used;
        for (uint256 i; i < h; ++i) {
            used = _rangeLevel(kind, leaves, first, last, siblings, used);
            first >>= 1;
            last >>= 1;
        }
        if (used != siblings.length) revert RangeProofLength(siblings.length, used);
        return leaves[0];
    }

    /// @dev One level of `rangeRoot` in place: nodes first..last become their parents at the front of `level`.
    function _rangeLevel(
        uint8 kind,
        bytes32[] memory level,
        uint256 first,
        uint256 last,
        bytes32[] calldata siblings,
        uint256 used
    ) private view returns (uint256) {
        uint256 needed = used + (first & 1) + (~last & 1);
        if (needed > siblings.length) revert RangeProofLength(siblings.length, needed);
        uint256 read;
        uint256 written;
        uint256 count = last - first + 1;
        if (first & 1 == 1) level[written++] = node(kind, siblings[used++], level[read++]);
        while (read + 1 < count) {
            level[written++] = node(kind, level[read], level[read + 1]);
            read += 2;
        }
        if (read < count) level[written] = node(kind, level[read], siblings[used++]);
        return used;
    }
}
