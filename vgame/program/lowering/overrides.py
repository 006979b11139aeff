"""The reason for each rule that replaces a rule of torch's core table (`core_aten_decompositions`), in one line.

Operators without a line here use torch's rule: tests/unit/test_overrides.py compares both tables.
"""

from __future__ import annotations

CASTS = "torch's casts bfloat16 to float32 and back between its operators: other roundings"
PRODUCT = "one product with one rounding for each sum; torch's separates the products and the sum"

#: Overload -> reason.
OVERRIDES: dict[str, str] = {
    **dict.fromkeys(
        ("masked_fill.Scalar", "masked_fill.Tensor", "leaky_relu_backward.default", "threshold_backward.default"), CASTS
    ),
    **dict.fromkeys(("std.correction", "_softmax_backward_data.default", "_log_softmax_backward_data.default"), CASTS),
    "new_zeros.default": "under torch.func torch's gives the same operators in another order, so another root",
    **dict.fromkeys(("baddbmm.default", "mv.default", "dot.default"), PRODUCT),
    **dict.fromkeys(
        ("clamp_min.default", "clamp_min.Tensor", "clamp_max.default", "clamp_max.Tensor"),
        "the rule of clamp, with one bound left out",
    ),
    **dict.fromkeys(("rsub.Scalar", "rsub.Tensor"), "the rule of sub, operands exchanged"),
    "sgn.default": "the rule of sign: nothing here is complex",
    "floor_divide.default": "the rule of div with rounding_mode, for floats and integers",
    "sum.default": "an error names the operator that the user wrote",
    **dict.fromkeys(("all.default", "all.dim", "all.dims"), "the rule of any, negated: a maximum of truth values"),
    "_safe_softmax.default": "shares the exponentials of softmax; torch's finds rows of -inf by further operators",
    "stack.default": "one copy; torch's creates a tensor of each part first",
    "roll.default": "one copy of two parts; torch's gathers by indices",
    "select_scatter.default": "one copy with a window; torch's chooses by a mask of indices",
    "slice_backward.default": "a copy with a window in zeros, by the rule of slice_scatter",
    "select_backward.default": "a copy with a window in zeros, by the rule of select_scatter",
    "eye.default": "a constant; torch's compares indices",
    **dict.fromkeys(
        ("_unsafe_index.Tensor", "_unsafe_index_put.default"), "the rules of index and index_put, which check indices"
    ),
    "embedding_dense_backward.default": "a scattered sum with one rounding; torch's adds by index_put",
    **dict.fromkeys(
        ("native_layer_norm_backward.default", "native_group_norm_backward.default"),
        "the sums over a row are rounded once; torch's groups them differently",
    ),
    "native_batch_norm_backward.default": "follows the two-pass variance of the forward pass in capture.py",
    "bernoulli.default": "draws words of Philox; torch's compares with numbers of rand",
    "upsample_linear1d.default": "weights by output position, as for images; torch's gathers both neighbours",
}
