// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IDelivery} from "../../contracts/IDelivery.sol";
import {IGameTypes} from "../../contracts/IGameTypes.sol";
import {IVerificationGame} from "../../contracts/IVerificationGame.sol";
import {Queue} from "../../contracts/Queue.sol";
import {Handler} from "./Handler.sol";

/// @title What holds after any calls of any players (docs/protocol.md)
contract Invariants {
    Handler private handler;
    IVerificationGame private game;
    IDelivery private delivery;

    function setUp() public {
        handler = new Handler();
        (game, delivery) = (handler.game(), handler.delivery());
    }

    function targetContracts() public view returns (address[] memory found) {
        found = new address[](1);
        found[0] = address(handler);
    }

    /// @dev One walk for all of them.
    function invariant_all() public view {
        _checkMoney();
        _checkOpen();
        _checkQueue();
        _checkRequests();
    }

    /// @dev A walk of some length reaches everything, or the walks above show nothing.
    function test_reaches() public {
        for (uint256 i; i < 12000; ++i) {
            uint256 dice = uint256(keccak256(abi.encode(i)));
            (uint256 a, uint256 b, uint256 c) = (dice >> 192, (dice >> 128) % 2 ** 64, (dice >> 64) % 2 ** 64);
            if (i % 400 == 0) setUp();
            uint256 call = dice % 16;
            if (call == 0) handler.order(a);
            else if (call < 3) handler.advance(a, b);
            else if (call == 3) handler.challenge(a, b, c);
            else if (call < 10) handler.move(a, b, c);
            else if (call == 10) handler.end(a, b, c % 2 == 0);
            else if (call == 11) handler.tick(a);
            else if (call == 12) handler.baseFee(a);
            else if (call == 13) handler.withdraw(a);
            else handler.deliver(a, b);
            if (i % 400 == 399) _look();
        }
        string memory missed;
        for (uint256 i; i < labels.length; ++i) {
            if (seen[labels[i]] == 0) missed = string.concat(missed, " ", labels[i]);
        }
        require(bytes(missed).length == 0, missed);
    }

    string[] private labels = [
        "accepted", "claimed", "final", "convicted", "expired", "delivering", "revealed", "undelivered", "declined",
        "run entered", "posted tree entered", "trainer moved", "auditor moved", "timeout", "refund", "request", "answer"
    ]; // prettier-ignore
    mapping(string what => uint256) private seen;

    function _look() private {
        invariant_all();
        for (uint256 i; i < labels.length; ++i) seen[labels[i]] += handler.reached(labels[i]);
    }

    /// @dev I1: wei in = out + locked + credits + burnt.
    function _checkMoney() private view {
        uint256 locked;
        for (uint256 j; j < handler.count(); ++j) locked += _locked(handler.jobs(j));
        uint256 held = handler.paidIn() - handler.paidOut();
        assert(address(game).balance == held);
        assert(held == locked + handler.owed() + game.burnt());
    }

    function _locked(bytes32 id) private view returns (uint256) {
        IGameTypes.Job memory job = game.getJob(id);
        uint256 stakes = job.open * (uint256(job.spec.auditorBond) + job.spec.fee);
        if (job.phase == IGameTypes.Phase.Created) return job.spec.reward;
        uint256 both = uint256(job.spec.reward) + job.spec.trainerBond;
        if (job.phase == IGameTypes.Phase.Accepted) return both;
        if (job.phase == IGameTypes.Phase.Claimed) return both + stakes;
        if (job.phase == IGameTypes.Phase.Convicted) return stakes;
        bool delivering = job.phase == IGameTypes.Phase.Delivering || job.phase == IGameTypes.Phase.Revealed;
        return delivering ? both + delivery.getExchange(id).deposits : 0;
    }

    /// @dev The number of open disputes is right, an account has one of a claim (I16), a final claim has none open.
    function _checkOpen() private view {
        for (uint256 j; j < handler.count(); ++j) {
            IGameTypes.Job memory job = game.getJob(handler.jobs(j));
            IGameTypes.Standing[] memory all = game.getDisputes(handler.jobs(j), 0, 99);
            uint256 open;
            for (uint256 n; n < all.length; ++n) {
                if (all[n].dispute.status == IGameTypes.Status.Open) ++open;
                for (uint256 i; i < n; ++i) assert(all[i].dispute.auditor != all[n].dispute.auditor);
            }
            assert(open == job.open && all.length == job.disputes);
            assert(open == 0 || job.phase == IGameTypes.Phase.Claimed || job.phase == IGameTypes.Phase.Convicted);
        }
    }

    /// @dev The queue is the only open dispute, or counts the distinct things that open disputes wait for.
    function _checkQueue() private view {
        for (uint256 j; j < handler.count(); ++j) {
            IGameTypes.Job memory job = game.getJob(handler.jobs(j));
            if (job.phase != IGameTypes.Phase.Claimed || job.disputes == 0) continue;
            (uint256 distinct, uint256 last) = _waiting(handler.jobs(j));
            if (job.queue.isAlone()) assert(job.open == 0 || (job.open == 1 && job.queue.alone() == last));
            else assert(job.queue.count() == distinct);
        }
    }

    /// @dev How many distinct things are not opened yet, and the last open dispute.
    function _waiting(bytes32 id) private view returns (uint256 distinct, uint256 last) {
        IGameTypes.Standing[] memory all = game.getDisputes(id, 0, 99);
        bytes32[] memory seen = new bytes32[](all.length);
        for (uint256 n; n < all.length; ++n) {
            if (all[n].dispute.status != IGameTypes.Status.Open) continue;
            last = n;
            if (all[n].openedAt != 0) continue;
            bytes32 thing = _thing(all[n].dispute);
            bool known;
            for (uint256 i; i < distinct; ++i) known = known || seen[i] == thing;
            if (!known) seen[distinct++] = thing;
        }
    }

    /// @dev A place, or a node wherever it lies.
    function _thing(IGameTypes.Dispute memory d) private pure returns (bytes32) {
        bool place = d.height == 0 && d.level != IGameTypes.Level.Tensor;
        if (!place) return keccak256(abi.encode(d.level, d.height, d.node));
        uint256 step = d.level == IGameTypes.Level.Segment ? uint256(d.step) + d.index : d.step;
        uint256 index = d.level == IGameTypes.Level.Segment ? 0 : d.index;
        return keccak256(abi.encode(d.level, d.part, d.operator, step, index));
    }

    /// @dev Deposits are those of the open requests, and the exchange counts these.
    function _checkRequests() private view {
        for (uint256 j; j < handler.count(); ++j) {
            bytes32 id = handler.jobs(j);
            IDelivery.Exchange memory e = delivery.getExchange(id);
            IDelivery.Request[] memory all = delivery.getRequests(id);
            IGameTypes.Phase phase = game.getJob(id).phase;
            (uint256 open, uint256 sum) = (0, 0);
            for (uint256 i; i < all.length; ++i) {
                if (all[i].answeredAt != 0) continue;
                ++open;
                sum += all[i].price * delivery.answerGas(id, all[i].elements, all[i].chunk);
            }
            assert(open == e.open);
            bool over = phase == IGameTypes.Phase.Declined || phase == IGameTypes.Phase.Undelivered;
            assert(e.deposits == (over ? 0 : sum));
        }
    }
}
