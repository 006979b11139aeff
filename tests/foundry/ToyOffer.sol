// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Cipher} from "../../contracts/Cipher.sol";
import {IDelivery} from "../../contracts/IDelivery.sol";
import {Merkle} from "../../contracts/Merkle.sol";
import {Lie, ToyRun} from "./ToyRun.sol";

/// @notice What is false in an offer. LEAF: the cipher text is of another key. NODE: a true hash beside it.
enum Flaw {
    NONE,
    LEAF,
    NODE
}

/// @title The delivery of a toy claim's final state: two leaves
library ToyOffer {
    bytes32 internal constant KEY = "key";

    function offer(bytes32 id, Lie lie, Flaw flaw) internal view returns (IDelivery.Offer memory o) {
        o.finalState = ToyRun.stateRoot(lie, ToyRun.STEPS);
        bytes32[4] memory four = children(id, lie, flaw);
        (o.cipherRoot, ) = Cipher.parent(Merkle.STATE, four[0], four[1], four[2], four[3]);
        o.keyHash = Cipher.keyHash(KEY, id);
    }

    /// @dev The two pairs below the root.
    function children(bytes32 id, Lie lie, Flaw flaw) internal view returns (bytes32[4] memory four) {
        bytes32[] memory plain = ToyRun.state(lie, ToyRun.STEPS);
        for (uint32 t; t < 2; ++t) {
            bytes memory content = cipherOf(id, lie, flaw, t);
            four[2 * t] = sha256(abi.encodePacked(uint8(0), Cipher.KIND, content, t, uint40(0)));
            four[2 * t + 1] = plain[t];
        }
        if (flaw == Flaw.NODE) four[1] ^= bytes32(uint256(1));
    }

    function cipherOf(bytes32 id, Lie lie, Flaw flaw, uint32 tensor) internal pure returns (bytes memory content) {
        content = ToyRun.stateWords(lie, ToyRun.STEPS, tensor);
        bytes32 key = Cipher.jobKey(flaw == Flaw.LEAF ? bytes32("other") : KEY, id);
        for (uint8 j; j < 16; ++j) {
            bytes32 stream = sha256(abi.encodePacked(uint8(7), key, tensor, uint40(0), j));
            for (uint256 i; i < 32; ++i) content[32 * uint256(j) + i] ^= stream[i];
        }
    }

    /// @dev Where a leaf lies.
    function place(
        bytes32 id,
        Lie lie,
        Flaw flaw,
        uint32 tensor
    ) internal view returns (IDelivery.CipherPlace memory p) {
        bytes32[4] memory four = children(id, lie, flaw);
        uint256 other = 2 * (1 - tensor);
        p.trueHash = four[2 * tensor + 1];
        p.index = tensor;
        p.path = ToyRun.pair(four[other], four[other + 1]);
    }
}
