// SPDX-License-Identifier: Apache-2.0
pragma solidity 0.8.37;

import {Clock} from "../../contracts/Clock.sol";
import {IDelivery} from "../../contracts/IDelivery.sol";
import {IGame} from "../../contracts/IGame.sol";
import {IGameTypes} from "../../contracts/IGameTypes.sol";
import {vm} from "./Cheats.sol";
import {Stage} from "./Stage.sol";
import {Flaw, ToyOffer} from "./ToyOffer.sol";
import {Lie, ToyRun} from "./ToyRun.sol";

/// @title Random play: few jobs, few players, every call of the game
/// @notice What must hold between two calls is asserted here, and what must hold always in Invariants.t.sol.
contract Handler is Stage {
    uint256 private constant MOST_JOBS = 3;
    uint256 private constant MOST_DISPUTES = 5;

    bytes32[] public jobs;
    /// @dev How often something was reached, for a look at what random play covers.
    mapping(string what => uint256) public reached;

    modifier advancing(uint256 j) {
        if (jobs.length == 0) return;
        bytes32 id = jobs[j % jobs.length];
        (IGameTypes.Job memory job, IGameTypes.Standing[] memory all) = (game.getJob(id), game.getDisputes(id, 0, 99));
        (uint256[6] memory had, uint256 burnt) = (_credits(), game.burnt());
        _;
        _checkPhase(job.phase, game.getJob(id).phase);
        _checkDisputes(id, all);
        if (job.phase == IGameTypes.Phase.Claimed && game.getJob(id).phase == IGameTypes.Phase.Convicted) {
            _checkConviction(id, job, all, had, burnt);
        }
    }

    // ---- calls of the fuzzer ----

    function order(uint256 seed) external {
        if (jobs.length == MOST_JOBS) return;
        IGameTypes.JobSpec memory spec = plainSpec();
        if (seed & 1 == 1) (spec.confirmWindow, spec.keyWindow, spec.complaintWindow) = (200, 60, 60);
        if (seed & 2 == 2) spec.guardian = address(0);
        if (seed & 4 == 4) (spec.reward, spec.fee) = (0, 0);
        bytes32 id = ordered(spec);
        lies[id] = Lie((seed >> 8) % 7 > 4 ? 0 : (seed >> 8) % 7);
        flaws[id] = Flaw((seed >> 16) % 3);
        jobs.push(id);
    }

    /// @dev The next step in a job's life, or the call for what was missed.
    function advance(uint256 j, uint256 choice) external advancing(j) {
        bytes32 id = jobs[j % jobs.length];
        IGameTypes.Job memory job = game.getJob(id);
        if (job.phase == IGameTypes.Phase.Created || job.phase == IGameTypes.Phase.Accepted) {
            bool created = job.phase == IGameTypes.Phase.Created;
            uint256 until =
                created
                    ? uint256(job.createdAt) + job.spec.acceptWindow
                    : uint256(job.acceptedAt) + job.spec.claimWindow;
            if (block.timestamp > until) {
                send(STRANGER, 0, abi.encodeCall(game.expire, (id)));
            } else if (created) {
                accept(id);
            } else {
                claim(id);
                send(TRAINER, 0, abi.encodeCall(game.setDelegate, (id, STRANGER, choice % 2 == 0)));
            }
        } else if (job.phase == IGameTypes.Phase.Claimed) {
            bool over = block.timestamp > uint256(job.claimedAt) + job.spec.challengeWindow && job.open == 0;
            (bool ok, ) = tried(STRANGER, 0, abi.encodeCall(game.finalize, (id)));
            assert(ok == over);
        }
    }

    function challenge(uint256 j, uint256 who, uint256 where) external advancing(j) {
        bytes32 id = jobs[j % jobs.length];
        IGameTypes.Job memory job = game.getJob(id);
        if (job.phase != IGameTypes.Phase.Claimed || job.disputes == MOST_DISPUTES) return;
        address auditor = ACTORS[who % 6];
        (IGameTypes.Level entry, uint256 place) = _entry(id, where);
        bool late = block.timestamp > uint256(job.claimedAt) + job.spec.challengeWindow;
        bool before = _disputed(id, auditor);
        uint256 price = uint256(job.spec.auditorBond) + job.spec.fee;
        (bool ok, ) = tried(auditor, price, challengeCall(id, entry, place));
        assert(ok == !(late || before)); // I16
        if (ok) _count(entry == IGameTypes.Level.Run ? "run entered" : "posted tree entered");
    }

    /// @dev Where the turn is: the trainer opens what the dispute waits for, the auditor names something in it. Every
    /// other position is elsewhere.
    function move(uint256 j, uint256 n, uint256 choice) external advancing(j) {
        bytes32 id = jobs[j % jobs.length];
        if (game.getJob(id).phase != IGameTypes.Phase.Claimed) return;
        IGameTypes.Standing[] memory all = game.getDisputes(id, 0, 99);
        if (all.length == 0) return;
        IGameTypes.Standing memory s = all[n %= all.length];
        if (s.dispute.status != IGameTypes.Status.Open) return;
        uint256 at = positionOf(s.dispute);
        _tryOutOfTurn(id, n, at, choice, s);
        if (s.turn == Clock.Turn.Trainer) {
            _moveAs(id, n, at, choice, true);
        } else if (s.turn == Clock.Turn.Auditor) {
            _moveAs(id, n, at, choice, false);
            IGameTypes.Dispute memory d = game.getDispute(id, n);
            if (d.status == IGameTypes.Status.Open) assert(_depth(d) > _depth(s.dispute)); // I3
        }
    }

    function _moveAs(bytes32 id, uint256 n, uint256 at, uint256 choice, bool trainer) private {
        uint256 elsewhere = at ^ (uint256(1) << (choice % 256));
        (bytes memory data, address from) = _moveCall(id, n, elsewhere, choice, trainer);
        (bool ok, bytes memory result) = (false, new bytes(0));
        if (bytes4(data) != game.reveal.selector && bytes4(data) != game.openLeaf.selector) {
            (ok, result) = tried(from, 0, data);
            assert(
                !ok && keccak256(result) == keccak256(abi.encodeWithSelector(IGame.Elsewhere.selector, at, elsewhere))
            );
        }
        (data, from) = _moveCall(id, n, at, choice, trainer);
        send(from, 0, data);
        _count(trainer ? "trainer moved" : "auditor moved");
    }

    /// @dev Whose turn it is not has no move, and nothing at all is named by zeros.
    function _tryOutOfTurn(bytes32 id, uint256 n, uint256 at, uint256 choice, IGameTypes.Standing memory s) private {
        address auditor = s.dispute.auditor;
        bytes32[] memory none = new bytes32[](0);
        (bool ok, ) = tried(auditor, 0, abi.encodeCall(game.selectPartial, (id, n, at, 0, 0, none)));
        assert(!ok);
        (ok, ) = tried(auditor, 0, abi.encodeCall(game.select, (id, n, at, 0, 0, none)));
        assert(!ok);
        if (s.turn != Clock.Turn.Auditor) {
            (ok, ) = tried(auditor, 0, auditorCall(id, n, at, choice));
            assert(!ok);
        }
        if (s.turn != Clock.Turn.Trainer) {
            (bytes memory data, address from) = trainerCall(id, n, at);
            if (bytes4(data) == game.reveal.selector || bytes4(data) == game.openLeaf.selector) return;
            (ok, ) = tried(from, 0, data);
            assert(!ok);
        }
    }

    function _moveCall(
        bytes32 id,
        uint256 n,
        uint256 at,
        uint256 choice,
        bool trainer
    ) private view returns (bytes memory data, address from) {
        if (trainer) return trainerCall(id, n, at);
        return (auditorCall(id, n, at, choice), game.getDispute(id, n).auditor);
    }

    /// @dev A timeout or a refund: allowed exactly where the views show it.
    function end(uint256 j, uint256 n, bool many) external advancing(j) {
        bytes32 id = jobs[j % jobs.length];
        IGameTypes.Job memory job = game.getJob(id);
        IGameTypes.Standing[] memory all = game.getDisputes(id, 0, 99);
        if (all.length == 0) return;
        n %= all.length;
        bool open = all[n].dispute.status == IGameTypes.Status.Open;
        bool expired = job.phase == IGameTypes.Phase.Claimed && open && all[n].turn >= Clock.Turn.TrainerExpired;
        uint256[] memory list = new uint256[](2);
        (list[0], list[1]) = (n, n);
        bytes memory data = many ? abi.encodeCall(game.timeoutMany, (id, list)) : abi.encodeCall(game.timeout, (id, n));
        (bool ok, ) = tried(STRANGER, 0, data);
        assert(ok == expired);
        if (ok) _count("timeout");
        if (job.phase != IGameTypes.Phase.Convicted) return;
        (ok, ) = tried(STRANGER, 0, abi.encodeCall(game.refund, (id, n)));
        assert(ok == open);
        if (ok) _count("refund");
    }

    function withdraw(uint256 who) external {
        address account = ACTORS[who % 6];
        (uint256 owed, uint256 had) = (game.credits(account), account.balance);
        (bool ok, ) = tried(account, 0, abi.encodeCall(game.withdraw, (payable(account))));
        assert(ok == (owed != 0) && account.balance == had + owed && game.credits(account) == 0);
        paidOut += owed;
    }

    function tick(uint256 time) external {
        pass(time % 4 == 0 ? time % 90 : time % 7);
    }

    function baseFee(uint256 price) external {
        vm.fee(price % 60);
    }

    // ---- delivery ----

    function deliver(uint256 j, uint256 choice) external advancing(j) {
        bytes32 id = jobs[j % jobs.length];
        IGameTypes.Phase phase = game.getJob(id).phase;
        if (phase != IGameTypes.Phase.Delivering && phase != IGameTypes.Phase.Revealed) return;
        IDelivery.Offer memory o = ToyOffer.offer(id, lies[id], flaws[id]);
        bytes32 hash = keccak256(abi.encode(o));
        choice %= 16;
        if (choice == 0 || choice == 2) tried(CLIENT, 0, abi.encodeCall(delivery.confirm, (id, hash)));
        if (choice == 1) tried(CLIENT, 0, abi.encodeCall(delivery.decline, (id, hash)));
        if (choice == 2) tried(TRAINER, 0, abi.encodeCall(delivery.revealKey, (id, o, ToyOffer.KEY)));
        if (choice == 3) tried(STRANGER, 0, abi.encodeCall(delivery.closeDelivery, (id, phase)));
        if (choice == 4 || choice == 5) _complain(id, o, choice == 4, phase);
        if (choice == 6 || choice == 7) _request(id, hash, choice % 2);
        if (choice > 7) _serve(id, o, choice);
    }

    /// @dev Only what is false can be complained of.
    function _complain(bytes32 id, IDelivery.Offer memory o, bool node, IGameTypes.Phase phase) private {
        (Lie lie, Flaw flaw) = (lies[id], flaws[id]);
        bytes memory data;
        if (node) {
            IDelivery.CipherPlace memory top;
            top.trueHash = o.finalState;
            data = abi.encodeCall(delivery.badNode, (id, o, ToyOffer.children(id, lie, flaw), top));
        } else {
            IDelivery.CipherPlace memory place = ToyOffer.place(id, lie, flaw, 1);
            bytes memory cipher = ToyOffer.cipherOf(id, lie, flaw, 1);
            data = abi.encodeCall(delivery.badLeaf, (id, o, ToyOffer.KEY, 1, 0, cipher, place));
        }
        (bool ok, ) = tried(STRANGER, 0, data);
        assert(!ok || flaw == (node ? Flaw.NODE : Flaw.LEAF));
        assert(ok || flaw != Flaw.NODE || !node || phase == IGameTypes.Phase.Revealed);
    }

    function _request(bytes32 id, bytes32 hash, uint256 tensor) private {
        uint64 price = uint64(block.basefee + 5);
        uint256 cost = price * delivery.answerGas(id, tensor == 0 ? 8 : 4, 0);
        IGameTypes.Record memory source = ToyRun.sourceRecord(uint32(tensor));
        uint256 index = delivery.getRequests(id).length;
        if (index == 4) return;
        bytes memory data = abi.encodeCall(delivery.request, (id, hash, index, uint24(tensor), 0, price, source));
        (bool ok, ) = tried(CLIENT, cost, data);
        if (ok) _count("request");
    }

    function _serve(bytes32 id, IDelivery.Offer memory o, uint256 choice) private {
        IDelivery.Request[] memory all = delivery.getRequests(id);
        if (all.length == 0) return;
        uint256 index = block.timestamp % all.length;
        IDelivery.Request memory r = all[index];
        if (choice == 8) {
            tried(STRANGER, 0, abi.encodeCall(delivery.defer, (id, index)));
        } else if (choice == 9) {
            tried(STRANGER, 0, abi.encodeCall(delivery.refused, (id, index)));
        } else if (choice == 10) {
            uint64 price = r.price + 20;
            uint256 cost = 20 * delivery.answerGas(id, r.elements, 0);
            tried(CLIENT, cost, abi.encodeCall(delivery.raise, (id, index, r.tensor, 0, price)));
        } else {
            IDelivery.CipherPlace memory place = ToyOffer.place(id, lies[id], flaws[id], r.tensor);
            bytes32[] memory hashes = new bytes32[](1);
            hashes[0] = place.trueHash;
            bytes memory leaf = ToyOffer.cipherOf(id, lies[id], flaws[id], r.tensor);
            (bool ok, ) = tried(STRANGER, 0, abi.encodeCall(delivery.answer, (id, o, index, leaf, hashes, place.path)));
            bool possible = r.answeredAt == 0 && game.getJob(id).phase == IGameTypes.Phase.Delivering;
            assert(ok == (possible && flaws[id] != Flaw.NODE));
            if (ok) _count("answer");
        }
    }

    // ---- between two calls ----

    /// @dev Phases follow the picture in docs/protocol.md.
    function _checkPhase(IGameTypes.Phase old, IGameTypes.Phase now_) private {
        if (old == now_) return;
        bool allowed =
            old == IGameTypes.Phase.Created || old == IGameTypes.Phase.Accepted
                ? now_ == IGameTypes.Phase(uint8(old) + 1) || now_ == IGameTypes.Phase.Expired
                : old == IGameTypes.Phase.Claimed
                    ? now_ == IGameTypes.Phase.Final ||
                        now_ == IGameTypes.Phase.Convicted ||
                        now_ == IGameTypes.Phase.Delivering
                    : old == IGameTypes.Phase.Delivering
                        ? now_ >= IGameTypes.Phase.Revealed
                        : old == IGameTypes.Phase.Revealed &&
                            (now_ == IGameTypes.Phase.Final || now_ == IGameTypes.Phase.Undelivered);
        assert(allowed);
        string[11] memory names = [
            "none", "created", "accepted", "claimed", "final", "convicted", "expired", "delivering", "revealed",
            "undelivered", "declined"
        ]; // prettier-ignore
        _count(names[uint8(now_)]);
    }

    /// @dev Budgets never grow, a closed dispute stays as it is.
    function _checkDisputes(bytes32 id, IGameTypes.Standing[] memory old) private view {
        for (uint256 n; n < old.length; ++n) {
            (IGameTypes.Dispute memory a, IGameTypes.Dispute memory b) = (old[n].dispute, game.getDispute(id, n));
            assert(b.trainerLeft <= a.trainerLeft && b.auditorLeft <= a.auditorLeft && b.turnAt >= a.turnAt);
            assert(a.auditor == b.auditor && a.entry == b.entry && _depth(b) >= _depth(a));
            if (a.status != IGameTypes.Status.Open) assert(keccak256(abi.encode(a)) == keccak256(abi.encode(b)));
        }
    }

    /// @dev Half of the bond at most to the winner, bond and fee to the auditor, the reward to the client; the rest is
    /// burnt.
    function _checkConviction(
        bytes32 id,
        IGameTypes.Job memory job,
        IGameTypes.Standing[] memory all,
        uint256[6] memory had,
        uint256 burnt
    ) private view {
        IGameTypes.Verdict memory v = game.getVerdict(id);
        address auditor = all[v.dispute].dispute.auditor;
        address winner = _engaged(id, job) || auditor == job.spec.guardian ? job.spec.guardian : auditor;
        uint256 amount = job.spec.trainerBond / 2;
        if (v.cause == IGameTypes.Cause.Timeout && job.spec.auditorBond / 2 < amount) amount = job.spec.auditorBond / 2;
        assert(v.winner == winner);
        assert(lies[id] != Lie.NONE || v.cause == IGameTypes.Cause.Timeout);
        for (uint256 i; i < 6; ++i) {
            uint256 due = had[i];
            if (ACTORS[i] == winner) due += amount;
            if (ACTORS[i] == auditor) due += uint256(job.spec.auditorBond) + job.spec.fee;
            if (ACTORS[i] == CLIENT) due += job.spec.reward;
            assert(game.credits(ACTORS[i]) == due);
        }
        // disputes that the same call dismissed on its way burn their part
        assert(game.burnt() == burnt + job.spec.trainerBond - amount);
    }

    /// @dev The account has disputed the claim, whatever became of it.
    function _disputed(bytes32 id, address account) private view returns (bool found) {
        IGameTypes.Standing[] memory all = game.getDisputes(id, 0, 99);
        for (uint256 n; n < all.length; ++n) found = found || all[n].dispute.auditor == account;
    }

    /// @dev The guardian has a dispute open.
    function _engaged(bytes32 id, IGameTypes.Job memory job) private view returns (bool found) {
        IGameTypes.Standing[] memory all = game.getDisputes(id, 0, 99);
        for (uint256 n; n < all.length; ++n) {
            IGameTypes.Dispute memory d = all[n].dispute;
            if (d.auditor == job.spec.guardian && d.status == IGameTypes.Status.Open) found = true;
        }
    }

    /// @dev A posted segment or trace, if there is one; else the run.
    function _entry(bytes32 id, uint256 where) private view returns (IGameTypes.Level, uint256) {
        uint256[] memory place = new uint256[](1);
        IGameTypes.Level kind = where % 3 == 1 ? IGameTypes.Level.Segment : IGameTypes.Level.Trace;
        place[0] = 1 + ((where >> 8) % (kind == IGameTypes.Level.Segment ? 2 : 4));
        if (where % 3 == 0 || game.getPosts(id, kind, place)[0].root == 0) return (IGameTypes.Level.Run, 0);
        return (kind, place[0]);
    }

    function _credits() private view returns (uint256[6] memory found) {
        for (uint256 i; i < 6; ++i) found[i] = game.credits(ACTORS[i]);
    }

    /// @dev Grows with every move of an auditor.
    function _depth(IGameTypes.Dispute memory d) private pure returns (uint256) {
        return uint256(d.level) * 64 + 63 - d.height;
    }

    function _count(string memory what) private {
        ++reached[what];
    }

    // ---- for the invariants ----

    function count() external view returns (uint256) {
        return jobs.length;
    }

    function owed() external view returns (uint256 sum) {
        for (uint256 i; i < 6; ++i) sum += game.credits(ACTORS[i]);
    }
}
