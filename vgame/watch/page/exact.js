"use strict";
// Recompute the contested number from its operands, in integers alone, without rounded JavaScript Numbers. In: a recipe (vgame/watch/recipes.py). Out: the word, or the encoding of a part of a long sum.
// Twin: vgame/arithmetic/reference. A NaN result is always 0x7fc00000.

const SIGN = 0x80000000n, INFINITE = 0x7f800000n, NAN_WORD = 0x7fc00000n, LEAST = -149n, UNIT = -298n, MASK = 0xffffffffn;
const PARTIAL_BYTES = 97; // docs/formats.md section 4: class u8, value i768 in units of 2^-298

const magnitude = (w) => w & ~SIGN & MASK;
const isNan = (w) => magnitude(w) > INFINITE, isInfinite = (w) => magnitude(w) === INFINITE, isZero = (w) => magnitude(w) === 0n;
const size = (n) => (n < 0n ? -n : n);
const bitLength = (n) => (n === 0n ? 0n : BigInt(n.toString(2).length));
const signed = (w) => BigInt.asIntN(32, w), wrapped = (n) => BigInt.asUintN(32, n);

// [sign, mantissa, exponent] of a finite word: (−1)^sign · mantissa · 2^exponent.
function takeApart(word) {
  const field = (word >> 23n) & 255n, rest = word & 0x7fffffn;
  return [word >> 31n, field ? rest | 0x800000n : rest, (field || 1n) - 150n];
}

// The value in units of 2^-149, of which every finite word is a multiple.
function inUnits(word) {
  const [sign, mantissa, exponent] = takeApart(word), value = mantissa << (exponent - LEAST);
  return sign ? -value : value;
}

// ROUNDING: to nearest at `bits` bits, ties to even, subnormals kept, overflow to infinity; a zero keeps the sign.
function rounded(sign, mantissa, exponent, bits = 24n) {
  if (mantissa === 0n) return sign << 31n;
  const cut = 24n - bits, lowest = LEAST + cut, wanted = bitLength(mantissa) + exponent - bits, quantum = wanted > lowest ? wanted : lowest;
  const packed = (toNearestEven(mantissa, quantum - exponent) << cut) + ((quantum - lowest) << 23n);
  return (sign << 31n) | (packed < INFINITE ? packed : INFINITE);
}

function toNearestEven(mantissa, shift) {
  if (shift <= 0n) return mantissa << -shift;
  const kept = mantissa >> shift, rest = mantissa - (kept << shift), half = 1n << (shift - 1n);
  return kept + (rest > half || (rest === half && kept & 1n) ? 1n : 0n);
}

const roundedUnits = (value, bits) => rounded(value < 0n ? 1n : 0n, size(value), LEAST, bits);

function add(a, b, bits) {
  if (isNan(a) || isNan(b) || (isInfinite(a) && isInfinite(b) && a !== b)) return NAN_WORD;
  if (isInfinite(a) || isInfinite(b)) return isInfinite(a) ? a : b;
  const exact = inUnits(a) + inUnits(b);
  if (exact === 0n) return isZero(a) && isZero(b) ? a & b & SIGN : 0n;
  return roundedUnits(exact, bits);
}

function multiply(a, b, bits) {
  const sign = (a ^ b) & SIGN;
  if (isNan(a) || isNan(b)) return NAN_WORD;
  if (isInfinite(a) || isInfinite(b)) return isZero(a) || isZero(b) ? NAN_WORD : sign | INFINITE;
  const [, x, i] = takeApart(a), [, y, j] = takeApart(b);
  return rounded(sign >> 31n, x * y, i + j, bits);
}

// A quotient of 64 bits and more, and one bit for the rest, rounds like the exact one.
function divide(a, b, bits) {
  const sign = (a ^ b) & SIGN;
  if (isNan(a) || isNan(b) || (isZero(a) && isZero(b)) || (isInfinite(a) && isInfinite(b))) return NAN_WORD;
  if (isInfinite(a) || isZero(b)) return sign | INFINITE;
  if (isZero(a) || isInfinite(b)) return sign;
  const [, x, i] = takeApart(a), [, y, j] = takeApart(b), top = x << 90n, quotient = top / y;
  return rounded(sign >> 31n, (quotient << 1n) | (quotient * y === top ? 0n : 1n), i - j - 91n, bits);
}

function squareRoot(a, bits) {
  if (isNan(a)) return NAN_WORD;
  if (isZero(a) || a === INFINITE) return a;
  if (a & SIGN) return NAN_WORD;
  const [, mantissa, exponent] = takeApart(a), shift = 80n + (exponent & 1n), scaled = mantissa << shift, root = integerRoot(scaled);
  return rounded(0n, (root << 1n) | (root * root === scaled ? 0n : 1n), (exponent - shift) / 2n - 1n, bits);
}

// floor(√n), by Newton's steps from above.
function integerRoot(n) {
  let root = 1n << (bitLength(n) / 2n + 1n);
  for (;;) {
    const next = (root + n / root) >> 1n;
    if (next >= root) return root;
    root = next;
  }
}

function remainder(a, b) {
  if (isNan(a) || isNan(b) || isInfinite(a) || isZero(b)) return NAN_WORD;
  return isInfinite(b) ? a : (a & SIGN) | roundedUnits(size(inUnits(a)) % size(inUnits(b)));
}

const orderKey = (w) => (w & SIGN ? -magnitude(w) : magnitude(w));
const ordered = (holds) => (a, b) => (isNan(a) || isNan(b) || !holds(orderKey(a), orderKey(b)) ? 0n : 1n);

// The larger (or with −1n the smaller); NaN wins; a zero result is +0.
const extreme = (direction) => (a, b) => {
  if (isNan(a) || isNan(b)) return NAN_WORD;
  const chosen = (orderKey(a) - orderKey(b)) * direction < 0n ? b : a;
  return isZero(chosen) ? 0n : chosen;
};

// `up(whole, rest, half)` of the magnitude's whole part and the rest, by the sign: whether to add one.
const toInteger = (up) => (a) => {
  if (isNan(a)) return NAN_WORD;
  if (isInfinite(a)) return a;
  const unit = 1n << -LEAST, value = size(inUnits(a)), whole = value / unit, rest = value % unit;
  return (a & SIGN) | rounded(0n, whole + (up(whole, rest, unit / 2n, a & SIGN) ? 1n : 0n), 0n);
};

function toInt32(a) {
  if (isNan(a)) return 0n;
  const most = (1n << 31n) - 1n, whole = isInfinite(a) ? most + 1n : size(inUnits(a)) >> -LEAST, value = a & SIGN ? -whole : whole;
  return wrapped(value > most ? most : value < -most - 1n ? -most - 1n : value);
}

function floorDivide(a, b) {
  const quotient = a / b;
  return quotient * b !== a && (a < 0n) !== (b < 0n) ? quotient - 1n : quotient;
}

const ints = (operation) => (a, b) => wrapped(operation(signed(a), signed(b)));
const compared = (holds) => (a, b) => (holds(signed(a), signed(b)) ? 1n : 0n);
const ROUNDED_INSIDE = {
  ADD: add, SUB: (a, b, bits) => add(a, isNan(b) ? NAN_WORD : b ^ SIGN, bits), MUL: multiply, DIV: divide, SQRT: squareRoot,
  ITOF: (a, bits) => rounded(a >> 31n, size(signed(a)), 0n, bits),
};
const FUNCTIONS = {
  CAST: (a) => (isNan(a) ? NAN_WORD : a), NEG: (a) => (isNan(a) ? NAN_WORD : a ^ SIGN), ABS: (a) => (isNan(a) ? NAN_WORD : magnitude(a)),
  FLOOR: toInteger((_, rest, half, minus) => minus && rest), CEIL: toInteger((_, rest, half, minus) => !minus && rest), TRUNC: toInteger(() => false),
  ROUND: toInteger((whole, rest, half) => rest > half || (rest === half && whole & 1n)),
  MAX: extreme(1n), MIN: extreme(-1n), FMOD: remainder,
  EQ: ordered((a, b) => a === b), NE: (a, b) => (isNan(a) || isNan(b) || orderKey(a) !== orderKey(b) ? 1n : 0n), LT: ordered((a, b) => a < b), LE: ordered((a, b) => a <= b),
  IADD: ints((a, b) => a + b), ISUB: ints((a, b) => a - b), IMUL: ints((a, b) => a * b),
  IDIV: ints((a, b) => (b ? floorDivide(a, b) : 0n)), IMOD: ints((a, b) => (b ? a - b * floorDivide(a, b) : 0n)),
  IAND: (a, b) => a & b, IOR: (a, b) => a | b, IXOR: (a, b) => a ^ b, ISHL: (a, b) => wrapped(a << (b & 31n)), ISHR: (a, b) => a >> (b & 31n),
  IMAX: ints((a, b) => (a > b ? a : b)), IMIN: ints((a, b) => (a < b ? a : b)),
  IEQ: (a, b) => (a === b ? 1n : 0n), INE: (a, b) => (a === b ? 0n : 1n), ILT: compared((a, b) => a < b), ILE: compared((a, b) => a <= b), ULT: (a, b) => (a < b ? 1n : 0n),
  FTOI: toInt32, SELECT: (a, b, c) => (a ? b : c),
};

function pointwise(name, words, bits) {
  if (ROUNDED_INSIDE[name]) return ROUNDED_INSIDE[name](...words, bits);
  const word = FUNCTIONS[name](...words);
  if (bits === 24n || isInfinite(word)) return word;
  if (isNan(word)) return NAN_WORD;
  return rounded(...takeApart(word), bits);
}

// ---- sums ----

// {kind, value}: 1 and 2 the infinities, 3 not a number, else the exact sum in units of 2^-298.
function exactSum(left, right) {
  let value = 0n, kind = 0;
  left.forEach((a, k) => {
    const b = right ? right[k] : 0x3f800000n, minus = (a ^ b) & SIGN;
    if (isNan(a) || isNan(b) || ((isInfinite(a) || isInfinite(b)) && (isZero(a) || isZero(b)))) kind |= 3;
    else if (isInfinite(a) || isInfinite(b)) kind |= minus ? 2 : 1;
    else value += exactProduct(a, b);
  });
  return { kind, value: kind ? 0n : value };
}

function exactProduct(a, b) {
  const [s, x, i] = takeApart(a), [t, y, j] = takeApart(b), product = (x * y) << (i + j - UNIT);
  return s === t ? product : -product;
}

function sumWord({ kind, value }, bits) {
  if (kind) return kind === 1 ? INFINITE : kind === 2 ? SIGN | INFINITE : NAN_WORD;
  const word = rounded(value < 0n ? 1n : 0n, size(value), UNIT, bits);
  return isZero(word) ? 0n : word;
}

function encodedSum({ kind, value }, bits) {
  const head = BigInt(kind | (bits === 24n ? 0 : 4)) << 768n;
  return (head | BigInt.asUintN(768, value)).toString(16).padStart(2 * PARTIAL_BYTES, "0");
}

function argMax(words) {
  const first = words.findIndex(isNan);
  if (first >= 0) return BigInt(first);
  let best = 0;
  words.forEach((w, i) => { if (orderKey(w) > orderKey(words[best])) best = i; });
  return BigInt(best);
}

// ---- a recipe ----

// {word} or {partial} of a recipe, or {not}: the reason why it is not computed here.
function recompute(recipe) {
  if (!recipe) return { not: "this page was not given the job's bundle, which says what the operands are" };
  if (recipe.not) return { not: recipe.not };
  const [a, b] = recipe.words.map((list) => list.map(BigInt)), bits = BigInt(recipe.bits);
  switch (recipe.kind) {
    case "map": return { word: settled(pointwise(recipe.function, a, bits), recipe) };
    case "copy": return { word: settled(a[0], recipe) };
    case "max": return { word: a.reduce(recipe.integer ? FUNCTIONS.IMAX : FUNCTIONS.MAX, recipe.integer ? a[0] : FUNCTIONS.MAX(a[0], a[0])) };
    case "argmax": return { word: argMax(a) };
    case "one_hot": return ofSum(exactSum(b.filter((_, k) => a[k] === BigInt(recipe.row))), bits, recipe.part);
    default: return ofSum(exactSum(a, b), bits, recipe.part);
  }
}

function settled(word, recipe) {
  return !recipe.integer && isNan(word) ? NAN_WORD : word;
}

function ofSum(sum, bits, part) {
  return part === null ? { word: sumWord(sum, bits) } : { partial: encodedSum(sum, bits) };
}
