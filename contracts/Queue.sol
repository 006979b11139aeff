// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice The openings that the disputes of a claim wait for: either the number of the only open dispute, whose
/// opening is not marked, or the count of distinct marked openings. 32 bits; the highest bit selects the case.
type Queue is uint32;

using {isAlone, alone, count, add, remove} for Queue global;

uint32 constant ALONE = 1 << 31;

/// @dev SAFETY: `challenge` refuses dispute 2^31.
function aloneWith(uint256 dispute) pure returns (Queue) {
    return Queue.wrap(ALONE | uint32(dispute));
}

/// @dev One dispute is open, and its opening is not marked.
function isAlone(Queue q) pure returns (bool) {
    return Queue.unwrap(q) & ALONE != 0;
}

/// @dev Number of that dispute.
function alone(Queue q) pure returns (uint256) {
    return Queue.unwrap(q) ^ ALONE;
}

/// @dev Number of marked openings; 0 if one dispute is alone.
function count(Queue q) pure returns (uint256) {
    return isAlone(q) ? 0 : Queue.unwrap(q);
}

function add(Queue q) pure returns (Queue) {
    return Queue.wrap(Queue.unwrap(q) + 1);
}

function remove(Queue q) pure returns (Queue) {
    return Queue.wrap(Queue.unwrap(q) - 1);
}
