"use strict";
// Amounts to the wei, times in words, the fields of binary32.

// An amount in ether, to the wei.
function exactEther(wei) {
  const amount = BigInt(wei), size = amount < 0n ? -amount : amount;
  const whole = size / 10n ** 18n, rest = (size % 10n ** 18n).toString().padStart(18, "0").replace(/0+$/, "");
  return `${amount < 0n ? "−" : ""}${whole}${rest ? "." + rest : ""} ether`;
}

// ROUNDING: to nearest, to DIGITS decimals, or to as many significant digits for amounts below one unit.
const DIGITS = 6;

function roundEther(wei) {
  const amount = BigInt(wei), size = amount < 0n ? -amount : amount, digits = size.toString().length;
  const unit = 10n ** BigInt(size >= 10n ** 12n ? 18 - DIGITS : Math.max(digits - DIGITS, 0));
  const near = ((size + unit / 2n) / unit) * unit;
  return exactEther(amount < 0n ? -near : near);
}

// An amount, rounded; to the wei in its tooltip if that differs.
function ether(wei) {
  const exact = exactEther(wei), near = roundEther(wei);
  return exact === near ? exact : h("span", { class: "about", title: exact }, near);
}

function many(count, what) {
  return `${Number(count).toLocaleString("en")} ${what}${Number(count) === 1 ? "" : "s"}`;
}

function duration(seconds) {
  if (seconds < 0) return "over";
  const parts = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const units = [];
  let left = Math.floor(seconds);
  for (const [size, name] of parts) {
    if (left >= size) { units.push(many(Math.floor(left / size), name)); left %= size; }
  }
  return units.slice(0, 2).join(" ") || "0 seconds";
}

function hex(word) {
  return "0x" + (word >>> 0).toString(16).padStart(8, "0");
}

function decimal(word) {
  const view = new DataView(new ArrayBuffer(4));
  view.setUint32(0, word >>> 0);
  const value = view.getFloat32(0);
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "not a number" : value > 0 ? "infinity" : "−infinity";
  if (Object.is(value, -0)) return "−0";
  for (let digits = 1; digits <= 9; digits++) {
    const short = Number(value.toPrecision(digits));
    if (Math.fround(short) === value) return String(short).replace("-", "−");
  }
  return String(value);
}

// [sign, exponent, significand] as bits, and the value as powers of two.
function anatomy(word) {
  const bits = (word >>> 0).toString(2).padStart(32, "0");
  const exponent = (word >>> 23) & 255, rest = bits.slice(9);
  const minus = bits[0] === "1" ? "−" : "";
  let value = `${minus}1.${rest} × 2^${exponent - 127}`;
  if (exponent === 0) value = `${minus}0.${rest} × 2^−126`;
  if (exponent === 255) value = decimal(word);
  return { sign: bits[0], exponent: bits.slice(1, 9), significand: rest, value: value.replace("^-", "^−") };
}

function clockTime(seconds) {
  return new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ") + " UTC";
}

const CLOCK = { hour: "2-digit", minute: "2-digit", hour12: false }, DAY = { ...CLOCK, day: "numeric", month: "short" };
const ZONED = [CLOCK, DAY, { ...DAY, year: "numeric" }].map((how) => new Intl.DateTimeFormat("en-GB", how));

// A time in this browser's zone, with the day if not today, and the year if not the current one.
function localTime(seconds) {
  const time = new Date(seconds * 1000), now = new Date(), year = time.getFullYear() === now.getFullYear();
  return ZONED[!year ? 2 : time.getMonth() === now.getMonth() && time.getDate() === now.getDate() ? 0 : 1].format(time);
}

function ago(seconds) {
  if (seconds < 0) return `in ${largest(-seconds)}`;
  return seconds < 1 ? "now" : `${largest(seconds)} ago`;
}

// The largest unit alone: "3 minutes".
function largest(seconds) {
  const [size, name] = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]].find(([unit]) => seconds >= unit) || [1, "second"];
  return many(Math.floor(seconds / size), name);
}
