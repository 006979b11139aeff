// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IMoves} from "./IMoves.sol";
import {ISettlement} from "./ISettlement.sol";

/// @title Everything that a caller of the verification game needs, at one address; delivery's calls are in
/// IDelivery.sol
interface IVerificationGame is ISettlement, IMoves {}
