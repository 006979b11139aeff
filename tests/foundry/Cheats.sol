// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @notice The cheat codes of Foundry that these tests call.
interface Vm {
    function prank(address caller) external;
    function deal(address account, uint256 balance) external;
    function warp(uint256 time) external;
    /// @dev Not block.timestamp, which the compiler reads once.
    function getBlockTimestamp() external view returns (uint256 time);
    function fee(uint256 baseFee) external;
}

Vm constant vm = Vm(address(uint160(uint256(keccak256("hevm cheat code")))));
