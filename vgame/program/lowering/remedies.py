"""Remedies for operators without a rule: the code to write instead."""

from __future__ import annotations

from collections.abc import Iterable

BEFORE = "compute it before the training and give it as a buffer or as data"
DRAWN = "draw from a uniform or a normal distribution, or draw the numbers before and give them as data"

#: Part of an operator's name -> remedy. The first one holds.
REMEDIES = {
    "sparse": "write adj.to_dense() for a sparse matrix",
    "_fft": f"multiply by constant matrices of cos and sin, or {BEFORE}",
    "multinomial": "draw by Gumbel's maximum: (p.log() - torch.empty_like(p).exponential_().log()).argmax(-1)",
    "dirichlet": DRAWN,
    "standard_gamma": DRAWN,
    "poisson": DRAWN,
    "binomial": DRAWN,
    "multi_margin": "write it: (margin - x.gather(1, y[:, None]) + x).clamp(min=0), without the class y itself",
    "multilabel_margin": "write it: (1 - x[:, positive, None] + x[:, None, negative]).clamp(min=0)",
    "cummax": "write torch.where(later, -inf, x.unsqueeze(-2)).amax(-1), later: torch.ones(n, n).triu(1).bool()",
    "cummin": "write torch.where(later, inf, x.unsqueeze(-2)).amin(-1), later: torch.ones(n, n).triu(1).bool()",
    "lgamma": "for large x write Stirling's series: (x - 0.5) * x.log() - x + 1 / (12 * x)",
    "linalg_svd": f"for the spectral norm iterate v = normalize(w.T @ w @ v); else {BEFORE}",
    "linalg_householder": "constrain the matrix by a penalty in the loss: (w.T @ w - identity).square().sum()",
    "linalg": f"write it with products of matrices, or {BEFORE}",
    "cholesky": f"write it with products of matrices, or {BEFORE}",
    "torch.float64": "leave float64 out: .float(), dtype=torch.float32",
    "torch.float16": "leave float16 out: .float(), or .bfloat16()",
    "complex": "compute with real and imaginary parts (a rotary table: with tables of cos and sin)",
}


def remedy_of(operators: Iterable[str]) -> str:
    """The end of an error message: the remedy of the first operator that has one, or ""."""
    found = (remedy for what in operators for part, remedy in REMEDIES.items() if part in what)
    return "".join(f"; {remedy}" for remedy in [next(found, "")] if remedy)
