// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {GameState} from "./GameState.sol";
import {IDelivery} from "./IDelivery.sol";
import {IGame} from "./IGame.sol";
import {IReferee} from "./IReferee.sol";
import {ISettlement} from "./ISettlement.sol";

/// @title Selects the code for every call that is not a move
/// @notice The targets are fixed at deployment, so this is one contract in three parts, without upgrades.
abstract contract Dispatch is GameState {
    /// @notice Code of jobs, claims, money, views: ISettlement.
    address public immutable settlement;

    /// @notice Code of the exchange of the trained state for the reward: IDelivery.
    address public immutable delivery;

    /// @dev Checks that the chain has SHA-256: a missing precompile returns nothing, and old memory would be used as
    /// its result. Checks also that each part has the same referee, and implements a view that only this part has.
    constructor(address settlement_, address delivery_) {
        if (sha256("") != 0xe3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855) revert NoSha256();
        _checkPart(settlement_);
        _checkPart(delivery_);
        ISettlement(settlement_).ordersOf(address(0), 0, 0);
        IDelivery(delivery_).getRequests(0);
        settlement = settlement_;
        delivery = delivery_;
    }

    function _checkPart(address part) internal view {
        IReferee other = IGame(part).referee();
        if (other != referee) revert ForeignReferee(part, address(other));
    }

    fallback() external payable {
        address target = _isDelivery(msg.sig) ? delivery : settlement;
        assembly ("memory-safe") {
            let p := mload(0x40)
            calldatacopy(p, 0, calldatasize())
            let ok := delegatecall(gas(), target, p, calldatasize(), 0, 0)
            returndatacopy(p, 0, returndatasize())
            if iszero(ok) {
                revert(p, returndatasize())
            }
            return(p, returndatasize())
        }
    }

    /// @dev All calls of IDelivery (tests/game/test_code.py compares the list with the interface).
    function _isDelivery(bytes4 call) private pure returns (bool) {
        return
            call == IDelivery.confirm.selector ||
            call == IDelivery.decline.selector ||
            call == IDelivery.request.selector ||
            call == IDelivery.raise.selector ||
            call == IDelivery.answer.selector ||
            call == IDelivery.defer.selector ||
            call == IDelivery.refused.selector ||
            call == IDelivery.revealKey.selector ||
            call == IDelivery.badNode.selector ||
            call == IDelivery.badLeaf.selector ||
            call == IDelivery.closeDelivery.selector ||
            call == IDelivery.getExchange.selector ||
            call == IDelivery.getRequests.selector ||
            call == IDelivery.answerGas.selector;
    }
}
