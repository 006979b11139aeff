// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {IDelivery} from "../../contracts/IDelivery.sol";
import {IGameTypes} from "../../contracts/IGameTypes.sol";
import {vm} from "./Cheats.sol";
import {Stage} from "./Stage.sol";
import {Flaw, ToyOffer} from "./ToyOffer.sol";
import {Lie, ToyRun} from "./ToyRun.sol";

/// @title Every way in which bonds and rewards are distributed, for all small amounts
/// @notice Exhaustive where a proof would need the whole game: even and odd amounts, with and without fee and reward.
contract Money is Stage {
    /// @dev What each has more than before.
    struct Shares {
        uint256 client;
        uint256 trainer;
        uint256 auditor;
        uint256 second;
        uint256 guardian;
        uint256 stranger;
        uint256 burnt;
    }

    uint256 private constant RUNS = 0; // choice: checkpoint 1, step 1, state, tensor 0
    uint256 private constant WORD = 4; // checkpoint 1, step 1, operator 0
    uint256 private constant LAST = 5; // checkpoint 2, operator 1

    uint256[7] private had;

    // ---- disputes ----

    function test_dismissed() public {
        _each(this.dismissed);
    }

    function dismissed(IGameTypes.JobSpec memory spec) external {
        for (uint256 choice = 3; choice < 6; ++choice) {
            bytes32 id = claimed(spec, Lie.NONE);
            uint256 n = challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
            _note();
            play(id, n, choice, IGameTypes.Level.None);
            assert(game.getDispute(id, n).status == IGameTypes.Status.Dismissed);
            _expectLost(spec);
        }
    }

    function test_lapsed() public {
        _each(this.lapsed);
    }

    function lapsed(IGameTypes.JobSpec memory spec) external {
        bytes32 id = claimed(spec, Lie.NONE);
        uint256 n = challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
        (bytes memory data, address from) = trainerCall(id, n, positionOf(game.getDispute(id, n)));
        send(from, 0, data);
        pass(spec.auditorBudget + 1);
        _note();
        send(STRANGER, 0, abi.encodeCall(game.timeout, (id, n)));
        assert(game.getDispute(id, n).status == IGameTypes.Status.Lapsed);
        _expectLost(spec);
    }

    /// @dev Half of an auditor's bond to the trainer, the rest and the fee burnt.
    function _expectLost(IGameTypes.JobSpec memory spec) private {
        Shares memory due;
        due.trainer = spec.auditorBond / 2;
        due.burnt = spec.auditorBond - due.trainer + spec.fee;
        _expectShares(due);
    }

    function test_convicted() public {
        _each(this.convicted);
    }

    /// @dev By a word, by a tie, by padding, by a partial sum: half of the trainer's bond to the auditor.
    function convicted(IGameTypes.JobSpec memory spec) external {
        _convicted(spec, Lie.OUTPUT, WORD, IGameTypes.Cause.Element);
        _convicted(spec, Lie.STATE, RUNS, IGameTypes.Cause.Opening);
        _convicted(spec, Lie.PADDING, WORD, IGameTypes.Cause.Opening);
    }

    function _convicted(IGameTypes.JobSpec memory spec, Lie lie, uint256 choice, IGameTypes.Cause cause) private {
        bytes32 id = claimed(spec, lie);
        uint256 n = challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
        _note();
        play(id, n, choice, IGameTypes.Level.None);
        assert(game.getVerdict(id).cause == cause);
        Shares memory due;
        due.auditor = spec.trainerBond / 2 + spec.auditorBond + spec.fee;
        due.burnt = spec.trainerBond - spec.trainerBond / 2;
        due.client = spec.reward;
        _expectShares(due);
    }

    function test_convictedByPartialSum() public {
        this.convictedBySum(plainSpec());
    }

    /// @dev Element 1 of operator 1 is false in its first partial sum; the other one is right.
    function convictedBySum(IGameTypes.JobSpec memory spec) external {
        for (uint256 part; part < 2; ++part) {
            bytes32 id = claimed(spec, Lie.SUM);
            uint256 n = challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
            play(id, n, LAST, IGameTypes.Level.Element);
            play(id, n, part, IGameTypes.Level.None);
            IGameTypes.Status status = game.getDispute(id, n).status;
            assert(status == (part == 0 ? IGameTypes.Status.Won : IGameTypes.Status.Dismissed));
        }
    }

    function test_timeout() public {
        _each(this.timedOut);
    }

    /// @dev By the clock: at most half of an auditor's bond, and the rest is burnt.
    function timedOut(IGameTypes.JobSpec memory spec) external {
        bytes32 id = claimed(spec, Lie.NONE);
        uint256 n = challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
        pass(spec.trainerBudget + 1);
        _note();
        send(STRANGER, 0, abi.encodeCall(game.timeout, (id, n)));
        uint256 prize = (spec.auditorBond < spec.trainerBond ? spec.auditorBond : spec.trainerBond) / 2;
        Shares memory due;
        due.auditor = prize + spec.auditorBond + spec.fee;
        due.burnt = spec.trainerBond - prize;
        due.client = spec.reward;
        _expectShares(due);
    }

    function test_guardian() public {
        _each(this.guarded);
    }

    /// @dev The guardian's open dispute wins the other's half. Its fee comes back wherever it stands; a stranger's where
    /// the dispute contains the place of the conviction.
    function guarded(IGameTypes.JobSpec memory spec) external {
        spec.guardian = GUARDIAN;
        bytes32 id = claimed(spec, Lie.OUTPUT);
        challenge(id, GUARDIAN, IGameTypes.Level.Run, 0);
        play(id, 0, LAST, IGameTypes.Level.Segment);
        challenge(id, SECOND, IGameTypes.Level.Run, 0); // never moves: it contains every place
        challenge(id, STRANGER, IGameTypes.Level.Run, 0);
        play(id, 2, LAST, IGameTypes.Level.Segment); // at the other checkpoint
        challenge(id, AUDITOR, IGameTypes.Level.Run, 0);
        _note();
        play(id, 3, WORD, IGameTypes.Level.None);
        for (uint256 n; n < 3; ++n) send(STRANGER, 0, abi.encodeCall(game.refund, (id, n)));
        Shares memory due;
        due.client = spec.reward;
        due.guardian = spec.trainerBond / 2 + spec.auditorBond + spec.fee;
        due.auditor = due.second = uint256(spec.auditorBond) + spec.fee;
        due.stranger = spec.auditorBond;
        due.burnt = spec.trainerBond - spec.trainerBond / 2 + spec.fee;
        _expectShares(due);
    }

    // ---- the end without a dispute ----

    function test_ends() public {
        _each(this.ended);
    }

    function ended(IGameTypes.JobSpec memory spec) external {
        bytes32 id = ordered(spec);
        pass(51);
        _note();
        send(STRANGER, 0, abi.encodeCall(game.expire, (id)));
        Shares memory due;
        due.client = spec.reward;
        _expectShares(due);

        id = ordered(spec);
        accept(id);
        pass(51);
        _note();
        send(STRANGER, 0, abi.encodeCall(game.expire, (id)));
        due.client = spec.reward + spec.trainerBond / 2;
        due.burnt = spec.trainerBond - spec.trainerBond / 2;
        _expectShares(due);

        id = claimed(spec, Lie.NONE);
        pass(91);
        _note();
        send(STRANGER, 0, abi.encodeCall(game.finalize, (id)));
        due = Shares(0, uint256(spec.reward) + spec.trainerBond, 0, 0, 0, 0, 0);
        _expectShares(due);
    }

    // ---- delivery ----

    function test_delivery() public {
        _each(this.delivered);
    }

    function delivered(IGameTypes.JobSpec memory spec) external {
        (spec.confirmWindow, spec.keyWindow, spec.complaintWindow) = (40, 30, 40);
        for (uint256 baseFee; baseFee < 2; ++baseFee) {
            for (uint256 way; way < 6; ++way) _delivered(spec, way, baseFee);
        }
    }

    /// @dev 0 declined, 1 paid, 2 no key, 3 a request refused, 4 a false node, 5 a false leaf.
    function _delivered(IGameTypes.JobSpec memory spec, uint256 way, uint256 baseFee) private {
        vm.fee(0);
        bytes32 id = ordered(spec);
        flaws[id] =
            way < 4
                ? Flaw.NONE
                : way == 4
                    ? Flaw.NODE
                    : Flaw.LEAF;
        accept(id);
        claim(id);
        pass(91);
        send(STRANGER, 0, abi.encodeCall(game.finalize, (id)));
        IDelivery.Offer memory o = ToyOffer.offer(id, Lie.NONE, flaws[id]);
        uint256 deposit = way == 0 || way == 3 ? _request(id, o, uint64(baseFee)) : 0;
        vm.fee(baseFee);
        _note();
        _end(id, o, way);
        Shares memory due;
        uint256 bond = spec.trainerBond;
        uint256 paid = way < 4 ? 0 : baseFee * (way == 4 ? 35_000 : 55_000);
        if (paid > bond / 2) paid = bond / 2;
        if (way == 0) {
            due = Shares(spec.reward / 4 + deposit, spec.reward / 4 + bond, 0, 0, 0, 0, 0);
            due.burnt = spec.reward - 2 * uint256(spec.reward / 4);
        } else if (way == 1) {
            due.trainer = spec.reward + bond;
        } else {
            due = Shares(spec.reward + deposit, 0, 0, 0, 0, paid, bond - paid);
        }
        _expectShares(due);
    }

    function _request(bytes32 id, IDelivery.Offer memory o, uint64 price) private returns (uint256 cost) {
        cost = price * delivery.answerGas(id, 8, 0);
        bytes32 hash = keccak256(abi.encode(o));
        IGameTypes.Record memory source = ToyRun.sourceRecord(0);
        send(CLIENT, cost, abi.encodeCall(delivery.request, (id, hash, 0, 0, 0, price, source)));
    }

    function _end(bytes32 id, IDelivery.Offer memory o, uint256 way) private {
        bytes32 hash = keccak256(abi.encode(o));
        IDelivery.CipherPlace memory place;
        if (way == 0) return _asClient(abi.encodeCall(delivery.decline, (id, hash)));
        if (way == 3) {
            pass(31);
            return _asStranger(abi.encodeCall(delivery.refused, (id, 0)));
        }
        if (way == 4) {
            place.trueHash = o.finalState;
            bytes32[4] memory four = ToyOffer.children(id, Lie.NONE, Flaw.NODE);
            return _asStranger(abi.encodeCall(delivery.badNode, (id, o, four, place)));
        }
        _asClient(abi.encodeCall(delivery.confirm, (id, hash)));
        if (way == 2) {
            pass(31);
            return _asStranger(abi.encodeCall(delivery.closeDelivery, (id, IGameTypes.Phase.Delivering)));
        }
        _asStranger(abi.encodeCall(delivery.revealKey, (id, o, ToyOffer.KEY)));
        if (way == 1) {
            pass(41);
            return _asStranger(abi.encodeCall(delivery.closeDelivery, (id, IGameTypes.Phase.Revealed)));
        }
        bytes memory cipher = ToyOffer.cipherOf(id, Lie.NONE, Flaw.LEAF, 1);
        place = ToyOffer.place(id, Lie.NONE, Flaw.LEAF, 1);
        _asStranger(abi.encodeCall(delivery.badLeaf, (id, o, ToyOffer.KEY, 1, 0, cipher, place)));
    }

    function _asClient(bytes memory data) private {
        send(CLIENT, 0, data);
    }

    function _asStranger(bytes memory data) private {
        send(STRANGER, 0, data);
    }

    // ---- amounts ----

    /// @dev Each case in a call of its own, so that memory begins anew.
    function _each(function(IGameTypes.JobSpec memory) external run) private {
        uint128[4] memory bonds = [uint128(1), 2, 7, 200_000];
        IGameTypes.JobSpec memory spec = plainSpec();
        spec.guardian = address(0);
        for (uint256 i; i < 48; ++i) {
            (spec.trainerBond, spec.auditorBond) = (bonds[i % 4], bonds[(i / 4) % 3]);
            spec.fee = uint96(i / 12) % 2;
            spec.reward = i / 24 == 0 ? 0 : spec.trainerBond;
            run(spec);
        }
    }

    function _note() private {
        for (uint256 i; i < 6; ++i) had[i] = game.credits(ACTORS[i]);
        had[6] = game.burnt();
    }

    function _expectShares(Shares memory due) private view {
        uint256[7] memory all = [
            due.client,
            due.trainer,
            due.auditor,
            due.second,
            due.guardian,
            due.stranger,
            due.burnt
        ];
        for (uint256 i; i < 6; ++i) assert(game.credits(ACTORS[i]) == had[i] + all[i]);
        assert(game.burnt() == had[6] + all[6]);
    }
}
