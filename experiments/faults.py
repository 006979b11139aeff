"""The faults that experiments/mutants.py plants: the change in the contract, and the tests that should notice it."""

from __future__ import annotations

from dataclasses import dataclass

#: The fast chain only, cheapest first.
GAME = tuple(
    f"tests/game/test_{n}.py"
    for n in (
        "errors",
        "clocks",
        "clocks_shared",
        "duties",
        "fraud",
        "trees",
        "divergence",
        "restart",
        "agents",
        "many",
        "stateful",
        "listed",
        "listed_calls",
    )
)
TWIN = ("tests/twin", *GAME)
PAYMENTS = ("tests/game/test_payments.py",)
BEARER = ("tests/game/test_bearer_moves.py",)
VIEWS = ("tests/game/test_state_views.py",)
FEES = ("tests/game/test_fees_attacked.py", "tests/game/test_payments_fees.py")
LATER = tuple(f"tests/game/test_{n}.py" for n in ("batches", "delegates", "code", "calldata", "fraud", "errors"))
COUNTERS = ("tests/game/test_counters.py",)
BONUS = ("tests/game/test_bonus.py", "tests/game/test_bonus_refused.py")
SOLD = tuple(f"tests/game/test_{n}.py" for n in ("delivery", "delivery_money", "delivery_orders", "exchange_attacks"))
LOGGED = ("tests/twin/test_logged_referee.py", "tests/twin/test_logged_twin.py", "tests/game/test_logged.py")


@dataclass(frozen=True)
class Mutant:
    """One fault: in `file` the first `old` becomes `new`."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...] = GAME


MUTANTS = (
    # clocks
    Mutant("Clock.sol", "return time > start ? time - start : 0;", "return time >= start ? time - start + 1 : 0;"),
    Mutant("Clock.sol", "> s.trainerLeft) return", ">= s.trainerLeft) return"),
    Mutant("Clock.sol", "> s.auditorLeft ?", ">= s.auditorLeft ?"),
    Mutant("Clock.sol", "uint256 start = s.turnAt + s.grace;", "uint256 start = s.turnAt;"),
    Mutant("Clock.sol", "uint256 start = openedAt > s.turnAt ? openedAt : s.turnAt;", "uint256 start = openedAt;"),
    # challenge and reveal
    Mutant(
        "VerificationGame.sol",
        "if (block.timestamp > until) revert TooLate",
        "if (block.timestamp >= until) revert TooLate",
    ),
    Mutant("VerificationGame.sol", "if (msg.value != price)", "if (msg.value < price)"),
    Mutant("Descent.sol", "if (children.length != expected) revert", "if (children.length > expected) revert"),
    Mutant("GameState.sol", "if (opening.time != 0) return false;", ""),
    Mutant("VerificationGame.sol", "if (words.length != Merkle.LEAF_BYTES) revert LeafSize(words.length);", ""),
    # the ends of a segment, write-once roots, ties
    Mutant("VerificationGame.sol", "_expect(Merkle.runLeaf(post.state, log), d.node);", ""),
    Mutant("VerificationGame.sol", "_checkCheckpoint(job, c - 1, post.prior, post.priorPath);", ""),
    Mutant(
        "VerificationGame.sol",
        "_expect(Merkle.pathRoot(Merkle.SEGMENT, post.prior, 0, post.firstPath, below), post.children[0]);",
        "",
    ),
    Mutant(
        "VerificationGame.sol", "_open(job, _traceKey(id, step));", "_open(job, _key(id, Level.Trace, height, root));"
    ),
    Mutant(
        "VerificationGame.sol",
        "if (kind == Level.Segment && height == 0 && position == 0) revert NothingToContest();",
        "",
    ),
    Mutant(
        "Descent.sol",
        "d.level == Level.Segment && kind != Level.Segment",
        "d.level == Level.Segment && kind == Level.Trace",
    ),
    Mutant("GameState.sol", "if (d.index == 0 && level == d.entry) openedAt = _postOf(id, job, d);", ""),
    Mutant("VerificationGame.sol", "if (!computed) revert WrongSource();", ""),
    Mutant("VerificationGame.sol", "traceLeaf == d.node, Cause", "traceLeaf != d.node, Cause"),
    Mutant("VerificationGame.sol", "tensor == d.node, Cause", "tensor != d.node, Cause"),
    Mutant(
        "Descent.sol",
        "uint256 index = (step - 1) % job.spec.interval;",
        "uint256 index = step % job.spec.interval;",
    ),
    # descent
    Mutant("Descent.sol", "(height - depth, (position << depth) | index);", "(height - depth, index);"),
    Mutant("VerificationGame.sol", "<< height >= _leafCount(job, d, kind)", "<< height > _leafCount(job, d, kind)"),
    Mutant("VerificationGame.sol", "if (kind == Level.Trace && height == 0) revert WrongLevel(kind, height);", ""),
    Mutant("VerificationGame.sol", "element / Merkle.LEAF_WORDS != d.index", "element / Merkle.LEAF_WORDS < d.index"),
    Mutant("VerificationGame.sol", "if (word == 0) revert NothingToContest();", ""),
    Mutant(
        "VerificationGame.sol",
        "(job.divergedAt == 0 || d.step < job.divergedAt)",
        "(job.divergedAt == 0 || d.step <= job.divergedAt)",
    ),
    Mutant("VerificationGame.sol", "if (word != d.word) revert NotTheClaimedSum(word, d.word);", ""),
    Mutant("VerificationGame.sol", "if (index >= d.blocks) revert NothingToContest();", ""),
    # verdicts
    Mutant("VerificationGame.sol", "right = exact == d.word;", "right = exact != d.word;"),
    Mutant("VerificationGame.sol", "_requireTurn(id, job, d, Clock.Turn.Trainer);\n        if (prior", "if (prior"),
    Mutant("Turns.sol", "if (msg.sender != d.auditor) revert NotAuditor(msg.sender);", ""),
    Mutant(
        "Turns.sol",
        "if (msg.sender != job.trainer && !_delegates[id][msg.sender]) revert NotTrainer(msg.sender);",
        "",
    ),
    Mutant("Turns.sol", "_mark(id, job, d) ? uint32(job.queue.count() - 1) : 0;", "0;"),
    Mutant("Turns.sol", "+= _burnHalf(job.spec.auditorBond);", "+= job.spec.auditorBond;"),
    Mutant("Turns.sol", "        credits[job.client] += job.spec.reward;\n", ""),
    # jobs and money
    Mutant("Settlement.sol", "if (msg.value != spec.reward) revert", "if (msg.value < spec.reward) revert"),
    Mutant("Settlement.sol", "if (job.open != 0) revert DisputesOpen(job.open);", ""),
    Mutant("Settlement.sol", "if (job.phase != Phase.None) revert JobExists(id);", ""),
    Mutant("Settlement.sol", "if (_isFinite(word)) revert StillFinite(word);", ""),
    Mutant("Settlement.sol", "if (full == 0) _expect(post.runRoot, Merkle.padding(Merkle.RUN, 0));", ""),
    Mutant("Settlement.sol", "if (d.status != Status.Open) revert DisputeClosed(d.status);", ""),
    Mutant("Settlement.sol", "credits[msg.sender] = 0;", ""),
    # entries of a challenge, the queue, partial sums
    Mutant("VerificationGame.sol", "        _expect(root, d.node);\n", ""),
    Mutant("Descent.sol", "if (states == 0) revert NothingToContest();", ""),
    Mutant("Descent.sol", "uint32((where - 1) * job.spec.interval)", "uint32(where * job.spec.interval)"),
    Mutant(
        "Turns.sol",
        "_mark(id, job, d) ? uint32(job.queue.count() - 1) : 0;",
        "_mark(id, job, d) ? uint32(job.queue.count()) : 0;",
    ),
    Mutant("Turns.sol", "            _mark(id, job, first);\n", ""),
    Mutant("Turns.sol", "            job.queue = Queue.wrap(0);\n", ""),
    Mutant("Turns.sol", "if (!_openings[key].awaited) {", "{"),
    Mutant(
        "Turns.sol",
        "if (openedAt != 0) return false;\n        if (!_openings[key].awaited)",
        "if (!_openings[key].awaited)",
    ),
    Mutant("GameState.sol", "if (opening.awaited) job.queue = job.queue.remove();", ""),
    Mutant("GameState.sol", "turn_ == Clock.Turn.Auditor && _isDecisive(d)", "false"),
    Mutant(
        "Turns.sol",
        "_turnAfter(d, clock, openedAt);",
        "Clock.turn(clock, openedAt, block.timestamp);",
        ("tests/game/test_decided_places.py",),
    ),
    Mutant("GameState.sol", "(d.level == Level.Element && d.blocks <= 1)", "d.level == Level.Element"),
    Mutant("Turns.sol", "if (!_isDecisive(d)) return Cause.Timeout;", "return Cause.Timeout;"),
    Mutant(
        "Descent.sol",
        "        (d.level, d.height, d.index) = (level, uint8(height), uint40(index));\n        _convict",
        "        _convict",
    ),
    Mutant("Turns.sol", "        burnt += job.spec.fee;\n", "", PAYMENTS),
    Mutant("Turns.sol", "job.spec.auditorBond) + job.spec.fee;", "job.spec.auditorBond);"),
    Mutant("Turns.sol", "job.guarded && _disputes", "_disputes", PAYMENTS),
    Mutant("Turns.sol", "[job.guardianDispute].status == Status.Open;", "[n].status == Status.Open;", PAYMENTS),
    Mutant("Turns.sol", "guardian ? job.spec.guardian : d.auditor;", "d.auditor;", PAYMENTS),
    Mutant("Turns.sol", "burnt += job.spec.trainerBond - amount;", "burnt += amount;", PAYMENTS),
    Mutant("Turns.sol", "if (cause == Cause.Timeout) half = Math.min(half, job.spec.auditorBond / 2);", "", PAYMENTS),
    Mutant("Turns.sol", "cause == Cause.Timeout ? Status.Lapsed : Status.Dismissed;", "Status.Dismissed;", PAYMENTS),
    Mutant("Settlement.sol", "if (d.auditor == job.spec.guardian) return true;", "", PAYMENTS),
    Mutant(
        "VerificationGame.sol", "if (msg.sender == job.spec.guardian) (job.guarded", "if (false) (job.guarded", PAYMENTS
    ),
    Mutant("VerificationGame.sol", "revert AlreadyDisputed();", "{}", PAYMENTS),
    # moves name their position
    Mutant("Turns.sol", "if (position != place) revert Elsewhere(position, place);", "", BEARER),
    Mutant("VerificationGame.sol", "_expect(trace, _traces[id][_stepOf(d)]);", "", BEARER),
    Mutant("Descent.sol", "if (entry == Level.Trace) _expect(basis.segment, _segments[id][c]);", "", BEARER),
    Mutant("Descent.sol", "if (job.spec.mode != 0) _expect(basis.log, _logs[id][c]);", "", LOGGED),
    Mutant(
        "Descent.sol",
        "if (basis.divergedAt != job.divergedAt) revert WrongDivergence(job.divergedAt, basis.divergedAt);",
        "",
        BEARER,
    ),
    Mutant("Position.sol", "(1 << 120) - 1", "(1 << 80) - 1", BEARER),
    Mutant("Position.sol", "(1 << 120) - 1", "(1 << 120) - 256", BEARER),
    # views
    Mutant(
        "Settlement.sol",
        "if (found[i].root != 0 && found[i].time == 0) found[i].time = _jobs[id].claimedAt;",
        "",
        VIEWS,
    ),
    Mutant("Settlement.sol", "found.openedAt = _openingOf(id, job, d);", "", VIEWS),
    Mutant("Settlement.sol", "_orders[msg.sender].push(id);", "", VIEWS),
    Mutant("Settlement.sol", "_claims[job.spec.programRoot].push(id);", "", VIEWS),
    Mutant("Settlement.sol", "total = all.length;", "total = count;", VIEWS),
    Mutant("Descent.sol", "Position.current(d), node);", "Position.current(d) & ~uint256(0xff0000), node);", VIEWS),
    Mutant("Position.sol", "position & 0xffff ==", "position & 0xff ==", ("tests/game/test_errors.py",)),
    Mutant("Settlement.sol", "job.spec.interval, _leaves(job, d));", "job.spec.interval, type(uint256).max);", FEES),
    Mutant("Settlement.sol", "if (d.level == Level.Run) return job.checkpoints;", "", FEES),
    Mutant("Settlement.sol", "if (d.level != Level.Segment) return type(uint256).max;", "", FEES),
    Mutant("Settlement.sol", "/ job.spec.interval + 1) + 1;", "/ job.spec.interval + 1);", FEES),
    Mutant("Places.sol", "if (below && q.index >= leaves)", "if (q.index >= leaves)", FEES),
    Mutant("Places.sol", "return p.height == Merkle.height(leaves);", "return true;", FEES),
    Mutant("Places.sol", "return p.height == Merkle.height(leaves);", "return false;", FEES),
    Mutant("Places.sol", "(p.level == q.level && p.height < q.height)) return false;", "false) return false;", FEES),
    Mutant("Places.sol", "if (p.level > q.level ||", "if (", FEES),
    Mutant("Settlement.sol", "burnt += job.spec.fee - fee;", "burnt += job.spec.fee;", PAYMENTS),
    Mutant(
        "VerificationGame.sol",
        "_expect(Merkle.pathRoot(Merkle.PARTIAL, child, index, path, Merkle.height(d.blocks)), root);",
        "",
    ),
    Mutant("GameState.sol", "uint256(d.others) * job.slot", "job.slot"),
    # a "diverged" claim
    Mutant("Settlement.sol", "if (!finite || post.element >= elements)", "if (post.element >= elements)"),
    Mutant("Settlement.sol", "_checkCheckpoint(job, full, post.prior, post.priorPath);", ""),
    # money
    Mutant("Settlement.sol", "+= pay + job.spec.trainerBond;", "+= pay;"),
    Mutant("Settlement.sol", "credits[job.client] += job.spec.reward - pay;", ""),
    Mutant(
        "Settlement.sol",
        "credits[d.auditor] += job.spec.auditorBond + fee;\n        emit Refunded",
        "emit Refunded",
    ),
    Mutant("Settlement.sol", "if (!created) credits[job.client] += _burnHalf(job.spec.trainerBond);", ""),
    # the least values of an order
    Mutant("Settlement.sol", " || spec.trainerBond < spec.reward", ""),
    Mutant("Settlement.sol", "spec.trainerBudget < spec.slot", "spec.trainerBudget == 0"),
    # on anvil gas has a price
    Mutant("Settlement.sol", "spec.auditorBond < least", "false", ("tests/node/test_anvil.py",)),
    # trees
    Mutant("Records.sol", "if (k == 0) revert NoTerms();", "", TWIN),
    Mutant("Merkle.sol", "if (path.length != length) revert PathLength(path.length, length);", ""),
    Mutant("Merkle.sol", "if (index >> length != 0) revert IndexOutOfRange(index, length);", ""),
    Mutant(
        "Merkle.sol", "mstore8(add(p, 1), kind)\n            mstore(add(p, 2), left)", "mstore(add(p, 2), left)", TWIN
    ),
    Mutant("Merkle.sol", "if (used != siblings.length) revert RangeProofLength(siblings.length, used);", "", TWIN),
    # mode `logged`: the log's entry
    Mutant("Logged.sol", "if (root != c.logRoot) revert WrongRoot(root, c.logRoot);", "", LOGGED),
    Mutant("Logged.sol", "if (o.siblings.length != 0) revert", "if (o.siblings.length == 7) revert", LOGGED),
    Mutant("Logged.sol", "o.words.length != 0 && o.words.length != 32", "o.words.length == 1", LOGGED),
    Mutant(
        "Logged.sol",
        "entries & 1 == 1 ? Direction.Up : Direction.Down",
        "entries & 1 == 0 ? Direction.Up : Direction.Down",
        LOGGED,
    ),
    Mutant("Logged.sol", "if ((entries >> 128) & 1 == 0) return", "if (entries >> 128 == 0) return", LOGGED),
    Mutant("Logged.sol", ">> (c.element % Merkle.LEAF_WORDS);", ">> (c.element % 64);", LOGGED),
    Mutant("Logged.sol", "(uint256(c.logStep) << operators) | c.operator", "c.operator", LOGGED),
    Mutant("Logged.sol", "if (Functions.isElementary(code)) revert", "if (code == 255) revert", LOGGED),
    Mutant("VerificationGame.sol", "context.logStep = uint32(position);", "", LOGGED),
    Mutant("VerificationGame.sol", "(last ? 1 : 0));", "1);", LOGGED),
    Mutant("Settlement.sol", "if (job.spec.mode != 0) _logs[id][full + 1] = post.logRoot;", "", LOGGED),
    # mode `logged`: the word
    Mutant("arithmetic/LoggedSum.sol", "above || (tie && cell.quotient & 1 == 1)", "above || tie", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "if (_isExact(m)) return false;", "", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "SLACK = (1 << 20) + 1;", "SLACK = 1 << 20;", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "return top < m.quantum + 53;", "return top < m.quantum + 54;", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "a.quantum < b.quantum ? a.quantum : b.quantum;", "a.quantum;", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "exponent < 172 ? 172 : exponent", "exponent < 171 ? 171 : exponent", LOGGED),
    Mutant("arithmetic/LoggedSum.sol", "low > farLow || (low == farLow && farIsEven)", "low >= farLow", LOGGED),
    Mutant(
        "arithmetic/LoggedSum.sol",
        "if (m.value.class != 0 && (m.high | m.middle | m.low | m.quantum) != 0) revert MalformedMoments();",
        "",
        LOGGED,
    ),
    Mutant("arithmetic/LoggedSum.sol", "result == Binary32.SIGN_BIT ? 0 : result", "result", LOGGED),
    Mutant(
        "arithmetic/Grid.sol", "(mantissa, exponent) = _round(mantissa, exponent, 52, type(int256).min);", "", LOGGED
    ),
    Mutant("arithmetic/Grid.sol", "-117 - int256(bits)", "-118 - int256(bits)", LOGGED),
    Mutant("arithmetic/Grid.sol", "if (shift > 80) return", "if (shift > 30) return", LOGGED),
    # published content, batches, delegates, the parts
    Mutant("VerificationGame.sol", "uint256(kind), height, children);", "uint256(kind), height, children[:0]);", LATER),
    Mutant("VerificationGame.sol", "height, post.children);", "height, post.firstPath);", LATER),
    Mutant("VerificationGame.sol", "emit LeafOpened(id, node, words);", "emit LeafOpened(id, node, words[1:]);", LATER),
    Mutant("VerificationGame.sol", "d.part, right);", "d.part, !right);", LATER),
    Mutant("VerificationGame.sol", "if (d.status != Status.Open) continue;", "", LATER),
    Mutant("VerificationGame.sol", "if (turn_ != Clock.Turn.AuditorExpired) continue;", "", LATER),
    Mutant("VerificationGame.sol", "TrainerExpired) return _convict", "TrainerExpired) _convict", LATER),
    Mutant("VerificationGame.sol", "if (!ended) revert NoneExpired();", "", LATER),
    Mutant("Settlement.sol", "count < rest ? count : rest", "count", LATER),
    Mutant("Turns.sol", " && !_delegates[id][msg.sender]) revert", ") revert", LATER),
    Mutant("Settlement.sol", "if (msg.sender != _jobs[id].trainer) revert NotTrainer(msg.sender);", "", LATER),
    Mutant("Dispatch.sol", "_checkPart(settlement_);", "", LATER),
    Mutant("Dispatch.sol", "_checkPart(delivery_);", "", LATER),
    Mutant("Dispatch.sol", "ISettlement(settlement_).ordersOf(address(0), 0, 0);", "", LATER),
    Mutant("Dispatch.sol", "call == IDelivery.raise.selector ||", "", SOLD),
    Mutant("VerificationGame.sol", "_checkPart(address(logged_));", "", LATER),
    Mutant("VerificationGame.sol", "if (n == MAX_DISPUTES) revert TooManyDisputes();", "", COUNTERS),
    Mutant("VerificationGame.sol", "MAX_DISPUTES = 1 << 31;", "MAX_DISPUTES = 1 << 24;", COUNTERS),
    Mutant("VerificationGame.sol", "MAX_DISPUTES = 1 << 31;", "MAX_DISPUTES = 1 << 30;", COUNTERS),
    Mutant("Queue.sol", "ALONE = 1 << 31;", "ALONE = 1 << 24;", COUNTERS),
    Mutant("Settlement.sol", "named != address(0) && msg.sender != named", "msg.sender != named", BONUS),
    Mutant(
        "Settlement.sol", "if (named != address(0) && msg.sender != named) revert NotTrainer(msg.sender);", "", BONUS
    ),
    Mutant("AccuracyEscrow.sol", "if (evaluation.spec.trainer != training.trainer) revert", "if (false) revert", BONUS),
    Mutant("AccuracyEscrow.sol", "= (0, address(0));", "= (0, evaluation.spec.trainer);", BONUS),
    Mutant(
        "AccuracyEscrow.sol",
        "if (evaluation.trainer != address(0)) revert TrainerGiven(evaluation.trainer);",
        "",
        BONUS,
    ),
    Mutant("AccuracyEscrow.sol", "if (largest >= layout.length) revert", "if (largest > layout.length) revert", BONUS),
    Mutant("AccuracyEscrow.sol", "terms.total > terms.size ? terms.total : terms.size;", "terms.size;", BONUS),
    Mutant("AccuracyEscrow.sol", "terms.total > terms.size ? terms.total : terms.size;", "terms.total;", BONUS),
    Mutant("Turns.sol", "            _now(),\n", "            job.claimedAt,\n", PAYMENTS),
    Mutant("Settlement.sol", "if (address(this) == self) revert OnlyDelegated();", "", LATER),
    Mutant(
        "Settlement.sol",
        "Payout.send(recipient, amount)",
        "Payout.send(msg.sender, amount)",
        ("tests/game/test_listed.py", "tests/game/test_listed_calls.py"),
    ),
    # delivery
    Mutant(
        "Delivery.sol", "if (e.open != 0) revert RequestsOpen(e.open);\n        e.confirmedAt", "e.confirmedAt", SOLD
    ),
    Mutant("Delivery.sol", "uint256 quarter = job.spec.reward / 4;", "uint256 quarter = job.spec.reward / 2;", SOLD),
    Mutant("Delivery.sol", "credits[job.client] += quarter + e.deposits;", "credits[job.client] += quarter;", SOLD),
    Mutant("Delivery.sol", "if (index == MAX_REQUESTS) revert", "if (index > MAX_REQUESTS) revert", SOLD),
    Mutant("Delivery.sol", "if (price < block.basefee) revert", "if (price == 0 && block.basefee != 0) revert", SOLD),
    Mutant("Delivery.sol", "if (msg.value != cost) revert WrongValue(msg.value, cost);", "", SOLD),
    Mutant("Delivery.sol", "if (index != all.length) revert WrongIndex(all.length, index);", "", SOLD),
    Mutant("Delivery.sol", "_expect(offer, e.offer);", "", SOLD),
    Mutant("Delivery.sol", "if (r.tensor != tensor || r.chunk != chunk) revert NotRequested();", "", SOLD),
    Mutant(
        "Delivery.sol", "uint256 least = Math.max(uint256(r.price) + 1, block.basefee);", "uint256 least = 0;", SOLD
    ),
    Mutant("Delivery.sol", "(r.price, r.since, r.deferredAt) = (price, _now(), 0);", "r.price = price;", SOLD),
    Mutant(
        "Delivery.sol", "> uint256(r.deferredAt) + job.spec.keyWindow", "> uint256(r.since) + job.spec.keyWindow", SOLD
    ),
    Mutant(
        "Delivery.sol",
        "if (block.timestamp > until) revert TooLate(block.timestamp, until);\n        emit Deferred",
        "emit Deferred",
        SOLD,
    ),
    Mutant(
        "Delivery.sol",
        "if (block.timestamp > until) revert TooLate(block.timestamp, until);\n        emit Deferred",
        "if (block.timestamp >= until) revert TooLate(block.timestamp, until);\n        emit Deferred",
        SOLD,
    ),
    Mutant("Delivery.sol", "r.dropped = true;", "", SOLD),
    Mutant("Delivery.sol", "if (r.answeredAt != 0) revert NotRequested();", "", SOLD),
    Mutant("Delivery.sol", "if (msg.sender != job.client) revert NotClient(msg.sender);", "", SOLD),
    Mutant("Delivery.sol", "if (e.confirmedAt != 0) revert AlreadyConfirmed();", "", SOLD),
    Mutant("Delivery.sol", "if (block.timestamp > e.until) revert TooLate(block.timestamp, e.until);", "", SOLD),
    Mutant("Delivery.sol", "uint256(chunk) * Cipher.CHUNK,\n", "0,\n", SOLD),
    Mutant("Delivery.sol", "Math.max(e.confirmedAt != 0 ? e.confirmedAt : e.until, e.answeredAt);", "e.until;", SOLD),
    Mutant("Delivery.sol", "gas_ * Math.min(r.price, block.basefee)", "gas_ * r.price", SOLD),
    Mutant("Delivery.sol", "if (block.basefee > r.price) revert PriceExceeded(r.price, block.basefee);", "", SOLD),
    Mutant(
        "Delivery.sol",
        "if (block.timestamp <= until) revert TooEarly(block.timestamp, until + 1);\n        _fail(id, job, e, "
        "Fault.Refused",
        "_fail(id, job, e, Fault.Refused",
        SOLD,
    ),
    Mutant(
        "Delivery.sol", "if (e.confirmedAt == 0 && block.timestamp <= e.until) revert NotConfirmed(e.until);", "", SOLD
    ),
    Mutant("Delivery.sol", "_expect(Cipher.keyHash(key, id), offer.keyHash);\n        job.phase", "job.phase", SOLD),
    Mutant("Delivery.sol", "if (plain == place.trueHash) revert NothingWrong();", "", SOLD),
    Mutant(
        "Delivery.sol",
        "Cipher.leaf(cipher, tensor, leaf), place.trueHash",
        "Cipher.leaf(cipher, tensor, uint40(place.index)), place.trueHash",
        SOLD,
    ),
    Mutant(
        "Delivery.sol",
        "tensor, leaf) == place.trueHash) revert NothingWrong();",
        "tensor, leaf) != place.trueHash) revert NothingWrong();",
        SOLD,
    ),
    Mutant(
        "Delivery.sol",
        "_fail(id, job, e, Fault.BadLeaf, LEAF_GAS);",
        "_fail(id, job, e, Fault.BadLeaf, 100_000);",
        SOLD,
    ),
    Mutant(
        "Delivery.sol",
        "credits[job.client] += uint256(job.spec.reward) + e.deposits;",
        "credits[job.client] += uint256(job.spec.reward);",
        SOLD,
    ),
    Mutant("Delivery.sol", "depth - 1 - i < ofState ?", "depth - i < ofState ?", SOLD),
    Mutant("Cipher.sol", "KIND = 12;", "KIND = 13;", SOLD),
)
