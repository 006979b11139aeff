// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Merkle} from "./Merkle.sol";

/// @title The cipher tree: ciphertext and true hashes in one tree (docs/delivery.md section 2)
/// @notice In: cipher leaves, pairs, a key. Out: pairs, hashes of plain text. Twin: vgame/delivery/cipher.py.
library Cipher {
    uint8 internal constant KIND = 12;
    /// @dev Number of leaves in one request, a power of two.
    uint256 internal constant CHUNK = 64;

    /// @notice A node's hash in the cipher tree, and the hash of the same node in the tree of the state.
    struct Pair {
        bytes32 cipher;
        bytes32 plain;
    }

    /// @notice H(0x05 ‖ key ‖ job)
    function jobKey(bytes32 key, bytes32 job) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(5), key, job));
    }

    /// @notice H(0x06 ‖ key ‖ job)
    function keyHash(bytes32 key, bytes32 job) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(6), key, job));
    }

    /// @notice H(0x00 ‖ CIPHER ‖ 512 bytes ‖ tensor ‖ leaf): the hash contains the leaf's place, so a complaint cannot
    /// name another place.
    function leaf(bytes calldata content, uint32 tensor, uint40 index) internal pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(0), KIND, content, tensor, index));
    }

    /// @notice The pair over two: H(0x01 ‖ CIPHER ‖ left cipher ‖ left plain ‖ right cipher ‖ right plain), and H(0x01
    /// ‖ kind ‖ left plain ‖ right plain). `kind`: of the tree of true hashes.
    function parent(
        uint8 kind,
        bytes32 leftCipher,
        bytes32 leftPlain,
        bytes32 rightCipher,
        bytes32 rightPlain
    ) internal view returns (bytes32 cipher, bytes32 plain) {
        bool ok;
        assembly ("memory-safe") {
            let p := mload(0x40)
            mstore8(p, 1)
            mstore8(add(p, 1), KIND)
            mstore(add(p, 2), leftCipher)
            mstore(add(p, 34), leftPlain)
            mstore(add(p, 66), rightCipher)
            mstore(add(p, 98), rightPlain)
            ok := staticcall(gas(), 2, p, 130, 0, 32)
            cipher := mload(0)
            mstore8(add(p, 1), kind)
            mstore(add(p, 2), leftPlain)
            mstore(add(p, 34), rightPlain)
            ok := and(ok, staticcall(gas(), 2, p, 66, 0, 32))
            plain := mload(0)
        }
        if (!ok) revert Merkle.HashFailed();
    }

    /// @notice The pair of height h over the leaves of a tensor from `first` on, followed by padding.
    function fold(
        uint256 tensor,
        uint256 first,
        bytes calldata leaves,
        bytes32[] calldata trueHashes,
        uint256 h
    ) internal view returns (Pair memory) {
        uint256 count = trueHashes.length;
        Pair[] memory level = new Pair[](uint256(1) << h);
        Pair memory pad = Pair(Merkle.padding(KIND, 0), Merkle.padding(Merkle.TENSOR, 0));
        for (uint256 i; i < level.length; ++i) {
            if (i >= count) {
                level[i] = pad;
                continue;
            }
            bytes calldata content = leaves[i * Merkle.LEAF_BYTES:(i + 1) * Merkle.LEAF_BYTES];
            // SAFETY: tensors have 24 bits, chunks 32, and a chunk 2^6 leaves
            level[i] = Pair(leaf(content, uint32(tensor), uint40(first + i)), trueHashes[i]);
        }
        for (uint256 n = level.length / 2; n > 0; n /= 2) {
            for (uint256 i; i < n; ++i) {
                (Pair memory l, Pair memory r) = (level[2 * i], level[2 * i + 1]);
                (bytes32 c, bytes32 p) = parent(Merkle.TENSOR, l.cipher, l.plain, r.cipher, r.plain);
                level[i] = Pair(c, p); // not in place: all padding is one pair
            }
        }
        return level[0];
    }

    /// @notice The true hash of a cipher leaf: H(0x00 ‖ TENSOR ‖ content xor keystream), block j of the keystream being
    /// H(0x07 ‖ K' ‖ tensor ‖ leaf ‖ j).
    function trueHash(
        bytes calldata content,
        bytes32 key,
        uint32 tensor,
        uint40 index
    ) internal view returns (bytes32) {
        bytes memory plain = new bytes(Merkle.LEAF_BYTES);
        for (uint256 j; j < Merkle.LEAF_BYTES / 32; ++j) {
            bytes32 block_ = sha256(abi.encodePacked(uint8(7), key, tensor, index, uint8(j)));
            block_ ^= bytes32(content[32 * j:32 * j + 32]);
            assembly ("memory-safe") {
                mstore(add(add(plain, 32), mul(32, j)), block_)
            }
        }
        return Merkle.leaf(Merkle.TENSOR, plain);
    }
}
