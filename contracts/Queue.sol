// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the disputes of a claim wait for: either the only open dispute, whose thing is not marked, or how many
/// distinct things are marked. 32 bits: the highest one says which.
type Queue is uint32;

using {isAlone, alone, count, add, remove} for Queue global;

uint32 constant ALONE = 1 << 31;

/// @dev SAFETY: `challenge` refuses dispute 2^31.
function aloneWith(uint256 dispute) pure returns (Queue) {
    return Queue.wrap(ALONE | uint32(dispute));
}

/// @dev One dispute is open, and what it waits for is not marked.
function isAlone(Queue q) pure returns (bool) {
    return Queue.unwrap(q) & ALONE != 0;
}

/// @dev Number of that dispute.
function alone(Queue q) pure returns (uint256) {
    return Queue.unwrap(q) ^ ALONE;
}

/// @dev Number of marked things; 0 where one dispute is alone.
function count(Queue q) pure returns (uint256) {
    return isAlone(q) ? 0 : Queue.unwrap(q);
}

function add(Queue q) pure returns (Queue) {
    return Queue.wrap(Queue.unwrap(q) + 1);
}

function remove(Queue q) pure returns (Queue) {
    return Queue.wrap(Queue.unwrap(q) - 1);
}
