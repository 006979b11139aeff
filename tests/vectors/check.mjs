// docs/formats.md once more, in another language and from that page alone: trees, proofs, Philox and shuffle, exact
// sums and three functions, compared with the vectors that lie beside this file. Only Node's own library.
//
//     node tests/vectors/check.mjs          prints how many vectors agree, ends with 1 where one does not

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const read = (name) =>
  // numbers of more than 15 digits become BigInt
  JSON.parse(readFileSync(new URL(name, import.meta.url), "utf8").replace(/: (\d{16,})/g, ': "$1"'));
const words = (text) => (text ? text.split(" ").map((w) => parseInt(w, 16)) : []);
const hex = (word) => word.toString(16).padStart(8, "0");
const bytes = (text) => Buffer.from(text, "hex");

let agreed = 0;
function equal(found, expected, what) {
  if (String(found) !== String(expected)) {
    console.error(`${what}: ${found}, the vectors say ${expected}`);
    process.exit(1);
  }
  agreed += 1;
}

// ---- 1, 2: trees and proofs ----

const H = (...parts) => createHash("sha256").update(Buffer.concat(parts)).digest();
const leaf = (kind, content) => H(Buffer.from([0, kind]), content);
const node = (kind, left, right) => H(Buffer.from([1, kind]), left, right);
const padding = (kind) => H(Buffer.from([2, kind]));
const TENSOR = 5;

function height(count) {
  let h = 0;
  while (2 ** h < count) h += 1;
  return h;
}

function root(kind, leaves) {
  let level = [...leaves];
  while (level.length < 2 ** height(leaves.length)) level.push(padding(kind));
  while (level.length > 1) {
    level = Array.from({ length: level.length / 2 }, (_, i) => node(kind, level[2 * i], level[2 * i + 1]));
  }
  return level[0];
}

function pathRoot(kind, at, index, siblings) {
  for (const sibling of siblings) {
    at = index & 1 ? node(kind, sibling, at) : node(kind, at, sibling);
    index >>= 1;
  }
  return at;
}

function rangeRoot(kind, leaves, first, count, siblings) {
  let [level, last, left] = [leaves, first + leaves.length - 1, [...siblings]];
  for (let h = 0; h < height(count); h += 1) {
    if (first & 1) level = [left.shift(), ...level];
    if (!(last & 1)) level = [...level, left.shift()];
    level = Array.from({ length: level.length / 2 }, (_, i) => node(kind, level[2 * i], level[2 * i + 1]));
    [first, last] = [first >> 1, last >> 1];
  }
  if (left.length) throw new Error("a sibling too many");
  return level[0];
}

function tensorRoot(tensor) {
  const content = Buffer.alloc(Math.max(1, Math.ceil(tensor.length / 128)) * 512);
  tensor.forEach((word, i) => content.writeUInt32LE(word, 4 * i));
  const leaves = [];
  for (let at = 0; at < content.length; at += 512) leaves.push(leaf(TENSOR, content.subarray(at, at + 512)));
  return root(TENSOR, leaves);
}

const trees = read("trees.json");
const leaves = trees.leaves.map(bytes);
for (const v of trees.leaf) equal(leaf(v.kind, bytes(v.content)).toString("hex"), v.hash, `leaf of kind ${v.kind}`);
for (const v of trees.padding) equal(padding(v.kind).toString("hex"), v.hash, `padding of kind ${v.kind}`);
for (const v of trees.trees) equal(root(v.kind, leaves.slice(0, v.count)).toString("hex"), v.root, `tree ${v.count}`);
for (const v of trees.paths) {
  const found = pathRoot(v.kind, leaves[v.index], v.index, v.siblings.map(bytes));
  equal(found.toString("hex"), root(v.kind, leaves.slice(0, v.count)).toString("hex"), `path of leaf ${v.index}`);
}
for (const v of trees.ranges) {
  const range = leaves.slice(v.first, v.last + 1);
  const found = rangeRoot(v.kind, range, v.first, v.count, v.siblings.map(bytes));
  equal(found.toString("hex"), root(v.kind, leaves.slice(0, v.count)).toString("hex"), `range ${v.first}..${v.last}`);
}
for (const v of trees.tensors) {
  const tensor = Array.from({ length: v.elements }, (_, i) => Number((BigInt(i) * 0x01010101n) % 2n ** 32n));
  equal(tensorRoot(tensor).toString("hex"), v.root, `tensor of ${v.elements} words`);
}

// ---- 4: exact sums; every value is an integer in units of 2^-298 ----

const NAN = 0x7fc00000;
const INFINITY = 0x7f800000;
const magnitude = (word) => word & 0x7fffffff;
const isNaN32 = (word) => magnitude(word) > INFINITY;
const isInfinite = (word) => magnitude(word) === INFINITY;
const negative = (word) => word >>> 31 === 1;

/** Of a finite word: [signed significand, exponent], its value being significand · 2^exponent. */
function parts(word) {
  const exponent = magnitude(word) >>> 23;
  const significand = BigInt((word & 0x7fffff) | (exponent ? 0x800000 : 0));
  return [negative(word) ? -significand : significand, Math.max(exponent, 1) - 150];
}

/** RN of value · 2^-298 to so many bits, as a word; zero is +0. */
function rounded(value, bits) {
  const size = value < 0n ? -value : value;
  if (!size) return 0;
  const lowest = 298 - 149 + (24 - bits); // of the least subnormal
  const cut = BigInt(Math.max(size.toString(2).length - bits, lowest));
  let kept = size >> cut;
  const rest = size - (kept << cut);
  const half = 1n << (cut - 1n);
  if (rest > half || (rest === half && kept & 1n)) kept += 1n;
  let exponent = Number(cut) - 298; // of the last bit that is kept
  if (kept >> BigInt(bits)) [kept, exponent] = [kept >> 1n, exponent + 1];
  const wide = kept << BigInt(24 - bits);
  exponent -= 24 - bits;
  const sign = value < 0n ? 0x80000000 : 0;
  if (wide < 0x800000n) return (sign | Number(wide)) >>> 0;
  if (exponent + 150 >= 255) return (sign | INFINITY) >>> 0;
  return (sign | ((exponent + 150) << 23) | Number(wide & 0x7fffffn)) >>> 0;
}

/** Class of a product of two words (0 finite, 1 +inf, 2 -inf, 3 NaN) and its value. */
function product(a, b) {
  if (isNaN32(a) || isNaN32(b)) return [3, 0n];
  if (isInfinite(a) || isInfinite(b)) {
    if (!magnitude(a) || !magnitude(b)) return [3, 0n];
    return [negative(a) === negative(b) ? 1 : 2, 0n];
  }
  const [[x, i], [y, j]] = [parts(a), parts(b)];
  return [0, (x * y) << BigInt(i + j + 298)];
}

function partialSum(a, b) {
  let [kind, value] = [0, 0n];
  a.forEach((word, i) => {
    const [other, more] = product(word, b[i]);
    kind |= other; // +inf and -inf together are NaN, as their bits are
    value += more;
  });
  return [kind, kind ? 0n : value];
}

const ofClass = [null, INFINITY, (INFINITY | 0x80000000) >>> 0, NAN];
const wordOf = ([kind, value], bits) => (kind ? ofClass[kind] : rounded(value, bits));
const sums = read("sums.json");
for (const [n, v] of sums.entries()) {
  const sum = partialSum(words(v.a), words(v.b));
  const encoded = sum[0].toString(16).padStart(2, "0") + BigInt.asUintN(768, sum[1]).toString(16).padStart(192, "0");
  equal(encoded, v.partial, `partial sum ${n}`);
  equal(hex(wordOf(sum, 24)), v.word, `sum ${n}`);
  equal(hex(wordOf(sum, 8)), v.bfloat16, `sum ${n} as bfloat16`);
}

// ---- 3: three functions of a MAP; a zero has the sign that IEEE 754 gives it ----

function add(a, b, bits) {
  const sum = partialSum([a, b], [0x3f800000, 0x3f800000]);
  const bothZero = !magnitude(a) && !magnitude(b);
  return bothZero ? (a & b & 0x80000000) >>> 0 : wordOf(sum, bits);
}

function multiply(a, b, bits) {
  const [kind, value] = product(a, b);
  const word = wordOf([kind, value], bits);
  return kind === 0 && negative(a) !== negative(b) ? (word | 0x80000000) >>> 0 : word;
}

const FUNCTIONS = { ADD: add, SUB: (a, b, bits) => add(a, (b ^ 0x80000000) >>> 0, bits), MUL: multiply };
const functions = read("functions.json");
for (const [name, f] of Object.entries(FUNCTIONS)) {
  const v = functions[name];
  const [left, right] = v.operands.map(words);
  const tuples = left.flatMap((a) => right.map((b) => [a, b]));
  equal(tuples.map(([a, b]) => hex(f(a, b, 24))).join(" "), v.results, name);
  equal(tuples.map(([a, b]) => hex(f(a, b, 8))).join(" "), v.bfloat16, `${name} as bfloat16`);
}

// ---- 5: randomness ----

function philox(counter, key) {
  let [c, k] = [counter.map(BigInt), key.map(BigInt)];
  const low = (x) => x & 0xffffffffn;
  for (let round = 0; round < 10; round += 1) {
    const [p, q] = [0xd2511f53n * c[0], 0xcd9e8d57n * c[2]];
    c = [(q >> 32n) ^ c[1] ^ k[0], low(q), (p >> 32n) ^ c[3] ^ k[1], low(p)];
    k = [low(k[0] + 0x9e3779b9n), low(k[1] + 0xbb67ae85n)];
  }
  return c.map(Number);
}

const keyOf = (seed) => [BigInt(seed) % 2n ** 32n, BigInt(seed) >> 32n];
const split = (n) => [n % 2n ** 32n, n >> 32n];

function shuffled(seed, step, i, elements, population) {
  const place = (BigInt(step) - 1n) * BigInt(elements) + BigInt(i);
  const n = BigInt(population);
  let [epoch, x] = [place / n, place % n];
  const [low, high] = split(epoch);
  for (let r = 0n; r < 64n; r += 1n) {
    const word = BigInt(philox([r / 4n, low, high, 1n << 24n], keyOf(seed))[Number(r % 4n)]);
    const y = (((word * n >> 32n) - x) % n + n) % n;
    const bit = philox([x > y ? x : y, low, r, (1n << 25n) + high], keyOf(seed))[0] & 1;
    if (bit) x = y;
  }
  return x;
}

const random = read("random.json");
for (const v of random.philox) equal(philox(words(v.counter), words(v.key)).map(hex).join(" "), v.words, "Philox");
for (const v of random.words) {
  const counter = [BigInt(v.element) / 4n, BigInt(v.operator), ...split(BigInt(v.step))];
  equal(philox(counter, keyOf(v.seed))[v.element % 4], v.word, `word of step ${v.step}`);
}
for (const v of random.shuffle) {
  const out = Array.from({ length: v.elements }, (_, i) => shuffled(v.seed, v.step, i, v.elements, v.population));
  equal(out.join(" "), v.out.join(" "), `shuffle of ${v.population}`);
}

console.log(`${agreed} vectors agree`);
