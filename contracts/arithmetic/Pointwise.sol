// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Binary32} from "./Binary32.sol";
import {Elementary} from "./Elementary.sol";
import {Functions} from "./Functions.sol";

/// @title Pointwise: every function of a `map`, in a separate contract.
/// @notice In: a function code and three words. Out: the word. Twin: vgame/arithmetic/reference/functions.py, evaluate.
contract Pointwise is Elementary {
    /// @notice The word that the function `code` gives for its operands (those that it does not take are ignored),
    /// rounded once, to 24 - cut bits (cut: 0 or 16).
    function evaluate(uint8 code, uint8 cut, uint32 a, uint32 b, uint32 c) external pure returns (uint32) {
        return Functions.isElementary(code) ? evaluate(code, cut, a) : Binary32.evaluate(code, cut, a, b, c);
    }
}
