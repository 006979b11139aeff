"use strict";
// Pictures as SVG elements: a tree with its contested part, the checkpoints, a loss curve.

// A triangle; below it the leaves, the contested ones marked, and the path to them.
function treePicture(tree) {
  const width = 120, height = 70, top = 4, bottom = top + height;
  const x = (leaf) => (leaf / tree.leaves) * width;
  const middle = x((tree.low + tree.high) / 2), size = Math.max(x(tree.high) - x(tree.low), 2);
  return h("svg", { viewBox: `-4 0 ${width + 8} ${bottom + 12}`, "aria-hidden": "true" },
    h("polygon", { class: "tree", points: `${width / 2},${top} 0,${bottom} ${width},${bottom}` }),
    h("polyline", { class: "path", points: `${width / 2},${top} ${middle},${bottom}` }),
    h("rect", { class: "part", x: Math.min(middle - size / 2, width - 2), y: bottom, width: size, height: 8 }));
}

const STATUSES = {
  ordered: "not computed yet", claimed: "claimed, not contested so far", agreed: "taken as their own by auditors that dispute what follows", contested: "contested",
  convicted: "where the claim was found wrong", audited: "computed here, the same",
};

function strip(ranges, count, of) {
  const width = 720, x = (i) => (i / Math.max(count, 1)) * width;
  const labels = ranges.map(([low, high, status]) => `${of} ${low + 1}${high - low > 1 ? ` to ${high}` : ""}: ${STATUSES[status] || status}`);
  const lines = count <= 240 ? Array.from({ length: Math.max(count - 1, 0) }, (_, i) => h("rect", { class: "cell", x: x(i + 1) - 0.25, y: 0, width: 0.5, height: 22 })) : [];
  const kinds = [...new Set(ranges.map((r) => r[2]))];
  return [
    h("svg", { viewBox: `0 0 ${width} 22`, role: "img", "aria-label": labels.join("; ") || "no checkpoints yet", preserveAspectRatio: "none" },
      ranges.map(([low, high, status]) => h("rect", { class: `cell ${status}`, x: x(low), y: 0, width: Math.max(x(high) - x(low), 1.5), height: 22 })), lines),
    h("ul", { class: "legend" }, kinds.map((kind) => h("li", {},
      h("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, h("rect", { class: `cell ${kind}`, width: 10, height: 10 })), STATUSES[kind] || kind))),
    h("ul", { class: "unseen" }, labels.slice(0, 50).map((text) => h("li", {}, text))),
  ];
}

// `points`: [step, loss].
function lossCurve(points, total) {
  if (points.length < 2) return h("p", { class: "soft" }, "No curve yet.");
  const width = 720, height = 170, left = 8, values = points.map((p) => p[1]).filter(Number.isFinite);
  const top = Math.max(...values), low = Math.min(...values, 0), last = Math.max(total || 0, points[points.length - 1][0]);
  const x = (step) => left + ((step - 1) / Math.max(last - 1, 1)) * (width - 2 * left);
  const y = (loss) => 24 + (1 - (loss - low) / Math.max(top - low, 1e-9)) * (height - 50);
  const end = points[points.length - 1], first = points[0];
  return h("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `loss ${first[1].toPrecision(4)} at step ${first[0]}, ${end[1].toPrecision(4)} at step ${end[0]}` },
    h("line", { class: "grid", x1: left, x2: width - left, y1: height - 22, y2: height - 22 }),
    h("polyline", { class: "curve", points: points.filter((p) => Number.isFinite(p[1])).map((p) => `${x(p[0]).toFixed(1)},${y(p[1]).toFixed(1)}`).join(" ") }),
    h("text", { class: "axis", x: left, y: 14 }, `loss ${top.toPrecision(4)}`),
    h("text", { class: "axis", x: left, y: height - 6 }, "step 1"),
    h("text", { class: "axis", x: width - left, y: height - 6, "text-anchor": "end" }, `step ${last}; now ${end[1].toPrecision(4)}`));
}

function bar(done, total, label) {
  return h("progress", { value: Math.max(0, Math.min(done, total)), max: Math.max(total, 1), "aria-label": label }, `${done} of ${total}`);
}
