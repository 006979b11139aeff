// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The only call outward: wei to an account
library Payout {
    /// @dev Enough for an account that is a contract with several owners; a bound, so that the cost of a call has one.
    uint256 private constant GAS = 100_000;

    /// @notice False if the recipient does not take it. What it answers is not copied.
    function send(address recipient, uint256 amount) internal returns (bool sent) {
        assembly ("memory-safe") {
            sent := call(GAS, recipient, amount, 0, 0, 0, 0)
        }
    }
}
