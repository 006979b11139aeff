// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IGame} from "./IGame.sol";

/// @title A position in the trees of a claim, in one word: from the lowest bit 8 bits of level, 8 of height, 8 of part,
/// 24 of operator, 32 of step, 40 of index
/// @notice Twin: vgame/chain/records.py, `Position`.
library Position {
    uint256 private constant MASK = (1 << 120) - 1;

    /// @notice Is the position at a leaf of the tree of that level, or at the word or partial sum?
    function isLeaf(uint256 position, IGame.Level level) internal pure returns (bool) {
        return position & 0xffff == uint256(level); // the level, under a height of 0
    }

    /// @notice The position of a dispute.
    /// @dev Equivalent to: d.level | d.height << 8 | d.part << 16 | d.operator << 24 | d.step << 48 | d.index << 80.
    /// The second word of a dispute has this layout (contracts/storage.json), and is read once.
    function current(IGame.Dispute storage d) internal view returns (uint256 position) {
        assembly ("memory-safe") {
            position := and(sload(add(d.slot, 1)), MASK)
        }
    }
}
