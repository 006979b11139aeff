// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "../../contracts/Clock.sol";
import {Delivery} from "../../contracts/Delivery.sol";
import {IDelivery} from "../../contracts/IDelivery.sol";
import {IGameTypes} from "../../contracts/IGameTypes.sol";
import {IVerificationGame} from "../../contracts/IVerificationGame.sol";
import {Settlement} from "../../contracts/Settlement.sol";
import {VerificationGame} from "../../contracts/VerificationGame.sol";
import {ToyReferee} from "../contracts/ToyReferee.sol";
import {vm} from "./Cheats.sol";
import {Flaw, ToyOffer} from "./ToyOffer.sol";
import {Lie, ToyRun} from "./ToyRun.sol";

/// @title The game with the toy machine, and each player's next call
/// @notice A call that the game asks for must succeed: every function here reverts with the game's error if it does not.
contract Stage {
    address internal constant CLIENT = address(0xC1);
    address internal constant TRAINER = address(0x71);
    address internal constant AUDITOR = address(0xA1);
    address internal constant SECOND = address(0xA2);
    address internal constant GUARDIAN = address(0x6A);
    address internal constant STRANGER = address(0x57);
    address[6] internal ACTORS = [CLIENT, TRAINER, AUDITOR, SECOND, GUARDIAN, STRANGER];

    IVerificationGame public immutable game;
    IDelivery public immutable delivery;

    /// @dev Wei that came into the game, and left it.
    uint256 public paidIn;
    uint256 public paidOut;

    mapping(bytes32 id => Lie) internal lies;
    mapping(bytes32 id => Flaw) internal flaws;
    uint64 private nonce;

    constructor() {
        ToyReferee referee = new ToyReferee();
        Delivery parts = new Delivery(referee);
        VerificationGame all = new VerificationGame(referee, address(new Settlement(referee)), address(parts), referee);
        game = IVerificationGame(address(all));
        delivery = IDelivery(address(all));
        for (uint256 i; i < ACTORS.length; ++i) vm.deal(ACTORS[i], 1e30);
        vm.warp(1_000_000);
    }

    // ---- calls ----

    function send(address from, uint256 value, bytes memory data) internal returns (bytes memory result) {
        bool ok;
        (ok, result) = tried(from, value, data);
        if (!ok) {
            assembly ("memory-safe") {
                revert(add(result, 32), mload(result))
            }
        }
    }

    function tried(address from, uint256 value, bytes memory data) internal returns (bool ok, bytes memory result) {
        vm.prank(from);
        (ok, result) = address(game).call{value: value}(data);
        if (ok) paidIn += value;
    }

    function pass(uint256 time) internal {
        vm.warp(vm.getBlockTimestamp() + time);
    }

    // ---- jobs ----

    function plainSpec() internal view returns (IGameTypes.JobSpec memory spec) {
        spec.programRoot = sha256(ToyRun.header());
        spec.initialRoot = ToyRun.stateRoot(Lie.NONE, 0);
        spec.seed = ToyRun.SEED;
        (spec.steps, spec.interval, spec.depth) = (ToyRun.STEPS, ToyRun.INTERVAL, 1);
        (spec.trainerBudget, spec.auditorBudget, spec.slot) = (60, 60, 5);
        (spec.reward, spec.trainerBond, spec.auditorBond, spec.fee) = (1e9 + 1, 3e9 + 1, 1e9 + 3, 77);
        (spec.acceptWindow, spec.claimWindow, spec.challengeWindow) = (50, 50, 90);
        spec.guardian = GUARDIAN;
    }

    function ordered(IGameTypes.JobSpec memory spec) internal returns (bytes32 id) {
        bytes memory data = abi.encodeCall(game.createJob, (spec, nonce++, "toy", ToyRun.header()));
        id = abi.decode(send(CLIENT, spec.reward, data), (bytes32));
    }

    function accept(bytes32 id) internal {
        send(TRAINER, game.getJob(id).spec.trainerBond, abi.encodeCall(game.acceptJob, (id)));
    }

    function claim(bytes32 id) internal {
        Lie lie = lies[id];
        bytes32[] memory run = ToyRun.run(lie);
        bytes32 root = ToyRun.root(1, run);
        bytes32 last = ToyRun.stateRoot(lie, ToyRun.STEPS);
        IDelivery.Offer memory o;
        if (game.getJob(id).spec.confirmWindow != 0) o = ToyOffer.offer(id, lie, flaws[id]);
        send(
            TRAINER,
            0,
            abi.encodeCall(game.postClaim, (id, root, last, ToyRun.path(run, 1), o.cipherRoot, o.keyHash))
        );
    }

    /// @dev A claim with that lie, of a new order.
    function claimed(IGameTypes.JobSpec memory spec, Lie lie) internal returns (bytes32 id) {
        id = ordered(spec);
        lies[id] = lie;
        accept(id);
        claim(id);
    }

    // ---- disputes ----

    function challengeCall(bytes32 id, IGameTypes.Level entry, uint256 where) internal view returns (bytes memory) {
        Lie lie = lies[id];
        IGameTypes.Basis memory basis;
        bytes32 root = ToyRun.root(1, ToyRun.run(lie));
        if (entry == IGameTypes.Level.Segment)
            root = ToyRun.root(2, ToyRun.segment(lie, (where - 1) * ToyRun.INTERVAL));
        if (entry == IGameTypes.Level.Trace) {
            root = ToyRun.root(4, ToyRun.trace(lie, where));
            basis.segment = ToyRun.root(2, ToyRun.segment(lie, where - 1 - ((where - 1) % ToyRun.INTERVAL)));
        }
        return abi.encodeCall(game.challenge, (id, entry, where, root, basis));
    }

    function challenge(bytes32 id, address auditor, IGameTypes.Level entry, uint256 where) internal returns (uint256) {
        IGameTypes.JobSpec memory spec = game.getJob(id).spec;
        uint256 price = uint256(spec.auditorBond) + spec.fee;
        return abi.decode(send(auditor, price, challengeCall(id, entry, where)), (uint256));
    }

    function positionOf(IGameTypes.Dispute memory d) internal pure returns (uint256) {
        uint256 high = (uint256(d.operator) << 24) | (uint256(d.step) << 48) | (uint256(d.index) << 80);
        return uint256(d.level) | (uint256(d.height) << 8) | (uint256(d.part) << 16) | high;
    }

    /// @dev Both sides move until the dispute ends, or stands at `until`.
    function play(bytes32 id, uint256 n, uint256 choice, IGameTypes.Level until) internal {
        while (true) {
            IGameTypes.Standing memory s = game.getDisputes(id, n, 1)[0];
            if (s.dispute.status != IGameTypes.Status.Open || s.dispute.level == until) return;
            uint256 at = positionOf(s.dispute);
            if (s.turn == Clock.Turn.Auditor) {
                send(s.dispute.auditor, 0, auditorCall(id, n, at, choice));
            } else {
                (bytes memory data, address from) = trainerCall(id, n, at);
                send(from, 0, data);
            }
        }
    }

    /// @dev What opens the thing that the dispute waits for, and whose call it is.
    function trainerCall(bytes32 id, uint256 n, uint256 at) internal view returns (bytes memory, address from) {
        IGameTypes.Dispute memory d = game.getDispute(id, n);
        Lie lie = lies[id];
        (uint256 i, uint256 step) = (d.index, d.step);
        if (d.level == IGameTypes.Level.Run) {
            if (d.height == 1) return (_reveal(id, d, ToyRun.run(lie)), STRANGER);
            return (abi.encodeCall(game.postSegment, (id, n, at, ToyRun.segmentPost(lie, i + 1))), TRAINER);
        }
        if (d.level == IGameTypes.Level.Segment) {
            if (d.height == 1) return (_reveal(id, d, ToyRun.segmentLeaves(lie, step, i)), STRANGER);
            return (abi.encodeCall(game.postTrace, (id, n, at, ToyRun.trace(lie, step + i))), TRAINER);
        }
        if (d.level == IGameTypes.Level.State) {
            if (d.height == 1) return (_reveal(id, d, ToyRun.state(lie, step)), STRANGER);
            return (_tie(id, n, at, uint32(i), step), STRANGER);
        }
        if (d.level == IGameTypes.Level.Tensor) {
            return (abi.encodeCall(game.openLeaf, (id, _leafOf(d, lie))), STRANGER);
        }
        if (d.level == IGameTypes.Level.Element && d.blocks == 2) {
            return (abi.encodeCall(game.postPartials, (id, n, at, ToyRun.partials(lie, step, i))), TRAINER);
        }
        bytes memory proof = ToyRun.proof(lie, step, d.operator);
        return (abi.encodeCall(game.prove, (id, n, at, 0, new bytes32[](0), proof)), STRANGER);
    }

    function _reveal(
        bytes32 id,
        IGameTypes.Dispute memory d,
        bytes32[] memory children
    ) private view returns (bytes memory) {
        return abi.encodeCall(game.reveal, (id, d.level, d.height, children));
    }

    function _leafOf(IGameTypes.Dispute memory d, Lie lie) private pure returns (bytes memory) {
        return ToyRun.output(lie, d.step, d.operator);
    }

    function _tie(bytes32 id, uint256 n, uint256 at, uint32 tensor, uint256 step) private view returns (bytes memory) {
        Lie lie = lies[id];
        IGameTypes.Record memory source = ToyRun.sourceRecord(tensor);
        if (tensor == 0) {
            bytes32[] memory trace = ToyRun.trace(lie, step);
            return abi.encodeCall(game.tie, (id, n, at, source, trace[0], ToyRun.path(trace, 0)));
        }
        bytes32 prior = ToyRun.stateRoot(lie, step - 1);
        bytes32[] memory tensors = ToyRun.state(lie, step - 1);
        bytes32[] memory way = ToyRun.priorPath(lie, step);
        return abi.encodeCall(game.tieUnchanged, (id, n, at, source, prior, way, tensors[1], ToyRun.path(tensors, 1)));
    }

    /// @dev A move that names something below what was opened; `choice` decides what.
    function auditorCall(bytes32 id, uint256 n, uint256 at, uint256 choice) internal view returns (bytes memory) {
        IGameTypes.Dispute memory d = game.getDispute(id, n);
        Lie lie = lies[id];
        (uint256 i, uint256 step) = (d.index, d.step);
        if (d.level == IGameTypes.Level.Run) {
            if (d.height == 1) return _select(id, n, at, ToyRun.run(lie), choice % 2);
            return _select(id, n, at, ToyRun.segment(lie, i * ToyRun.INTERVAL), choice % 2);
        }
        if (d.level == IGameTypes.Level.Segment) {
            if (d.height == 2) return _select(id, n, at, ToyRun.segment(lie, step), choice % 2);
            // neither the first state nor padding
            if (d.height == 1) return _select(id, n, at, ToyRun.segmentLeaves(lie, step, i), 1 - i);
            if (choice % 3 == 0) {
                bytes32 trace = ToyRun.root(4, ToyRun.trace(lie, step + i));
                return abi.encodeCall(game.selectState, (id, n, at, trace));
            }
            return _selectOperator(id, n, at, ToyRun.trace(lie, step + i), choice % 2);
        }
        if (d.level == IGameTypes.Level.State) return _select(id, n, at, ToyRun.state(lie, step), choice % 2);
        if (d.level == IGameTypes.Level.Trace) return _selectOperator(id, n, at, ToyRun.trace(lie, step), choice % 2);
        if (d.level == IGameTypes.Level.Tensor) {
            uint256 element = d.operator == 1 ? choice % 2 : choice % 8;
            if (d.operator == 0 && lie == Lie.PADDING) element = 100;
            else if (d.operator == 0 && lie == Lie.OUTPUT) element = 0;
            return abi.encodeCall(game.selectElement, (id, n, at, element, _leafOf(d, lie)));
        }
        bytes32[] memory leaves = _partialLeaves(lie, step, i);
        choice %= 2;
        return abi.encodeCall(game.selectPartial, (id, n, at, leaves[choice], choice, ToyRun.path(leaves, choice)));
    }

    function _select(
        bytes32 id,
        uint256 n,
        uint256 at,
        bytes32[] memory two,
        uint256 i
    ) private view returns (bytes memory) {
        return abi.encodeCall(game.select, (id, n, at, two[i], i, ToyRun.path(two, i)));
    }

    function _selectOperator(
        bytes32 id,
        uint256 n,
        uint256 at,
        bytes32[] memory two,
        uint256 i
    ) private view returns (bytes memory) {
        return
            abi.encodeCall(game.selectOperator, (id, n, at, two[i], i, ToyRun.path(two, i), ToyRun.operatorRecord(i)));
    }

    function _partialLeaves(Lie lie, uint256 step, uint256 element) private pure returns (bytes32[] memory) {
        bytes[] memory sums = ToyRun.partials(lie, step, element);
        return ToyRun.pair(_partialLeaf(sums[0]), _partialLeaf(sums[1]));
    }

    function _partialLeaf(bytes memory sum) private pure returns (bytes32) {
        return sha256(abi.encodePacked(uint8(0), uint8(10), sum));
    }
}
