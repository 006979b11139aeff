// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice What the disputes of a claim wait for: either the only open dispute, whose thing is not marked, or how many
/// distinct things are marked. 24 bits: the highest one says which.
type Queue is uint24;

using {isAlone, alone, count, add, remove} for Queue global;

uint24 constant ALONE = 1 << 23;

/// @dev SAFETY: 2^23 disputes would cost more than 10^12 gas.
function aloneWith(uint256 dispute) pure returns (Queue) {
    return Queue.wrap(ALONE | uint24(dispute));
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
