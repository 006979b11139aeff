// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "./Binary32.sol";
import {Elementary} from "./Elementary.sol";
import {Functions} from "./Functions.sol";

/// @title Pointwise: every function of a `map`, in a contract of its own.
/// @notice In: a function code and three words. Out: the word. Twin: vgame/arithmetic/reference.py, evaluate.
contract Pointwise is Elementary {
    /// @notice The word that the function `code` gives for its operands (those that it does not take are ignored).
    function evaluate(uint8 code, uint32 a, uint32 b, uint32 c) external pure returns (uint32) {
        return Functions.isElementary(code) ? evaluate(code, a) : Binary32.evaluate(code, a, b, c);
    }
}
