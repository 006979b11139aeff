// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

/// @title An account that is paid and makes trouble
contract Payee {
    /// @dev REFUSE: no ether. REASON: no ether, with a reason. BURN: all gas. LOUD: no ether, with a reason as long as
    /// its gas allows. REENTER: call back before taking it.
    enum Mode {
        TAKE,
        REFUSE,
        REASON,
        BURN,
        LOUD,
        REENTER
    }

    error NotToday();

    Mode public immutable mode;
    /// @notice What it calls back with, and how many of these calls the other side let through.
    bytes public again;
    uint256 public succeeded;

    constructor(Mode mode_, bytes memory again_) {
        mode = mode_;
        again = again_;
    }

    /// @notice Make a call as this contract.
    function run(address to, uint256 value, bytes calldata data) external payable {
        (bool ok, bytes memory result) = to.call{value: value}(data);
        if (ok) return;
        assembly ("memory-safe") {
            revert(add(result, 32), mload(result))
        }
    }

    receive() external payable {
        if (mode == Mode.REFUSE) revert();
        if (mode == Mode.REASON) revert NotToday();
        if (mode == Mode.BURN) while (true) {}
        if (mode == Mode.LOUD) {
            assembly ("memory-safe") {
                revert(0, 190000)
            }
        }
        if (mode == Mode.REENTER) {
            (bool ok, ) = msg.sender.call(again);
            if (ok) ++succeeded;
        }
    }
}
