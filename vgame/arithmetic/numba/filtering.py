"""Compiled loops of Winograd's minimal filtering F(2 x 2, 3 x 3): transforms of filters and of tiles of pictures, and
the inverse transform of products.

In: binary32 filters and pictures, in memory with strides. Out: binary64 transforms whose products, summed over channels
and transformed back, approximate the outputs of 2 x 2 pixels; and the data of their error bounds. Four outputs cost 16
products per channel instead of 36. Source: A. Lavin and S. Gray, "Fast Algorithms for Convolutional Neural Networks",
CVPR 2016. Proof: docs/numerics-products.md, section 11.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vgame.arithmetic.numba.compiled import add, compile_loop, real
from vgame.system.threads import share

#: Words of a transform per channel.
WORDS = 16


@compile_loop
def _filters(w, backwards, u, norms, first, last):
    """u[4 i + j, m, c] = (G g G')[i, j] of the filter g at w[m, 9 c..]; norms[m]: the largest of its nine pixels' norms
    over c."""
    channels = u.shape[2]
    g, half = np.empty((9, channels)), np.empty((4, 3, channels))
    for m in range(first, last):
        largest = 0.0
        for k in range(9):
            source, pixel, square = w[m, 8 - k if backwards else k :], g[k], 0.0
            for c in range(channels):
                pixel[c] = np.float64(source[9 * c])
                square = add(square, pixel[c] * pixel[c])
            if square > largest or square != square:
                largest = square
        norms[m] = np.sqrt(largest)
        for l in range(3):
            _three_to_four(g[l], g[3 + l], g[6 + l], half[0, l], half[1, l], half[2, l], half[3, l])
        for i in range(4):
            h = half[i]
            _three_to_four(h[0], h[1], h[2], u[4 * i, m], u[4 * i + 1, m], u[4 * i + 2, m], u[4 * i + 3, m])


@compile_loop
def _three_to_four(g0, g1, g2, u0, u1, u2, u3):
    """(g0, (g0 + g2 + g1) / 2, (g0 + g2 - g1) / 2, g2), word by word."""
    for c in range(g0.size):
        outer, middle = g0[c] + g2[c], g1[c]
        u0[c], u1[c], u2[c], u3[c] = g0[c], 0.5 * (outer + middle), 0.5 * (outer - middle), g2[c]


def transform_filters(filters: Tensor, backwards: bool) -> tuple[Tensor, Tensor]:
    """(transforms [16, M, C], largest norm of a pixel over the channels [M]) of binary32 filters [M, 9 C], rows in
    order."""
    rows, channels = filters.shape[0], filters.shape[1] // 9
    u, norms = (torch.empty(shape, dtype=torch.float64) for shape in ((WORDS, rows, channels), (rows,)))
    arrays = filters.numpy(), backwards, u.numpy(), norms.numpy()
    share(rows, filters.shape[1], lambda *part: _filters(*arrays, *part))
    return u, norms


@compile_loop
def transform_tiles(x, strides, lines, first, v, squares):
    """v[4 i + j, c, t] = (B' d B)[i, j] of the 4 x 4 words d of tile t; squares[u, y, x]: the squares of the words of
    row u of tiles, summed over c.

    x: pictures with strides (picture, channel, line), `lines` of outputs each. first: number of the first row of tiles.
    v: binary64 [16, C, tiles]; squares: binary64 [rows of tiles, 4, width + 2].
    """
    width = squares.shape[2] - 2
    across = width // 2
    half = np.empty((4, width + 2))
    for u in range(squares.shape[0]):
        picture, line = (first + u) // (lines // 2), 2 * ((first + u) % (lines // 2))
        q0, q1, q2, q3 = squares[u, 0], squares[u, 1], squares[u, 2], squares[u, 3]
        q0[:], q1[:], q2[:], q3[:] = 0.0, 0.0, 0.0, 0.0
        for c in range(v.shape[1]):
            at = picture * strides[0] + c * strides[1] + line * strides[2]
            d0, d1 = x[at : at + width + 2], x[at + strides[2] : at + strides[2] + width + 2]
            at += 2 * strides[2]
            d2, d3 = x[at : at + width + 2], x[at + strides[2] : at + strides[2] + width + 2]
            h0, h1, h2, h3 = half[0], half[1], half[2], half[3]
            for k in range(width + 2):
                a0, a1 = np.float64(real(d0[k])), np.float64(real(d1[k]))
                a2, a3 = np.float64(real(d2[k])), np.float64(real(d3[k]))
                h0[k], h1[k], h2[k], h3[k] = a0 - a2, a1 + a2, a2 - a1, a1 - a3
                q0[k] += a0 * a0
                q1[k] += a1 * a1
                q2[k] += a2 * a2
                q3[k] += a3 * a3
            for i in range(4):
                h, to = half[i], u * across
                v0, v1 = v[4 * i, c, to : to + across], v[4 * i + 1, c, to : to + across]
                v2, v3 = v[4 * i + 2, c, to : to + across], v[4 * i + 3, c, to : to + across]
                for t in range(across):
                    b0, b1, b2, b3 = h[2 * t], h[2 * t + 1], h[2 * t + 2], h[2 * t + 3]
                    v0[t], v1[t], v2[t], v3[t] = b0 - b2, b1 + b2, b2 - b1, b1 - b3


@compile_loop
def bound_patches(squares, bounds, norms):
    """For the patch of every output, in rows of pixels: its error bound per u and norm of a filter's pixel, and its
    norm."""
    width, at = squares.shape[2] - 2, 0
    for u in range(squares.shape[0]):
        r = np.sqrt(squares[u])
        for y in range(2):
            w0, w1, w2 = (1.0, 3.0, 4.0) if y == 0 else (4.0, 3.0, 1.0)
            for x in range(width):
                left = w0 * r[y, x] + w1 * r[y + 1, x] + w2 * r[y + 2, x]
                middle = w0 * r[y, x + 1] + w1 * r[y + 1, x + 1] + w2 * r[y + 2, x + 1]
                right = w0 * r[y, x + 2] + w1 * r[y + 1, x + 2] + w2 * r[y + 2, x + 2]
                bounds[at] = left + 3.0 * middle + 4.0 * right if x % 2 == 0 else 4.0 * left + 3.0 * middle + right
                norms[at] = np.sqrt(squares[u, y : y + 3, x : x + 3].sum())
                at += 1


@compile_loop
def transform_products(p, width, out):
    """out[m, pixels] = (A' p A)[y, x] of the products p[4 i + j, m, t], in rows of pixels. p: [16, M, tiles]."""
    across = width // 2
    half = np.empty((2, 4, across))
    for m in range(out.shape[0]):
        for u in range(p.shape[2] // across):
            first, last = u * across, (u + 1) * across
            for j in range(4):
                p0, p1, p2, p3 = (
                    p[j, m, first:last],
                    p[4 + j, m, first:last],
                    p[8 + j, m, first:last],
                    p[12 + j, m, first:last],
                )
                upper, lower = half[0, j], half[1, j]
                for t in range(across):
                    upper[t], lower[t] = p0[t] + p1[t] + p2[t], p1[t] - p2[t] - p3[t]
            for y in range(2):
                target = out[m, (2 * u + y) * width : (2 * u + y + 1) * width]
                h0, h1, h2, h3 = half[y, 0], half[y, 1], half[y, 2], half[y, 3]
                for t in range(across):
                    target[2 * t], target[2 * t + 1] = h0[t] + h1[t] + h2[t], h1[t] - h2[t] - h3[t]
