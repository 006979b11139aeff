// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title The only call to an external account: a payment in wei
library Payout {
    /// @dev Enough for a contract account with several owners; the bound limits the cost of a call.
    uint256 private constant GAS = 100_000;

    /// @notice False if the recipient does not accept the payment. Its return data are not copied.
    function send(address recipient, uint256 amount) internal returns (bool sent) {
        assembly ("memory-safe") {
            sent := call(GAS, recipient, amount, 0, 0, 0, 0)
        }
    }
}
