// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {GameState} from "./GameState.sol";
import {Merkle} from "./Merkle.sol";

/// @title The place of a dispute, and whether one place contains another
abstract contract Places is GameState {
    /// @dev The place of a dispute or of a conviction.
    struct Place {
        Level level;
        uint256 height;
        uint256 index;
        uint256 step;
        uint256 operator;
    }

    function _placeOf(Dispute storage d) internal view returns (Place memory) {
        return Place(d.level, d.height, d.index, d.step, d.operator);
    }

    function _placeOf(Verdict storage v) internal view returns (Place memory) {
        return Place(v.level, v.height, v.index, v.step, v.operator);
    }

    /// @dev Does p contain q, or equal it? `leaves`: number of leaves of the tree of p, without padding; the data that
    /// a claim "diverged" posts after them are only in its root. A partial sum counts as its element.
    function _contains(Place memory p, Place memory q, uint256 interval, uint256 leaves) internal pure returns (bool) {
        if (p.level == Level.Partial) p = _lift(p, Level.Element, interval);
        if (p.level > q.level || (p.level == q.level && p.height < q.height)) return false;
        // the state after a step and the step's trace are separate trees
        if (p.level == Level.State && q.level != Level.State) return false;
        bool below = p.level != q.level;
        q = _lift(q, p.level, interval);
        if (p.step != q.step || p.operator != q.operator) return false;
        if (below && q.index >= leaves) return p.height == Merkle.height(leaves);
        return p.index == q.index >> (p.height - q.height);
    }

    /// @dev The leaf over a place in a tree of a level above its own.
    function _lift(Place memory p, Level level, uint256 interval) internal pure returns (Place memory) {
        if (p.level == level) return p;
        uint256 before = p.level == Level.Segment ? p.step : p.step - 1; // the last state that is not contested
        if (level == Level.Run) return Place(level, 0, before / interval, 0, 0);
        if (level == Level.Segment) return Place(level, 0, (before % interval) + 1, before - (before % interval), 0);
        if (level == Level.Trace) return Place(level, 0, p.operator, p.step, 0);
        return Place(level, 0, level == Level.Tensor ? p.index / Merkle.LEAF_WORDS : p.index, p.step, p.operator);
    }
}
