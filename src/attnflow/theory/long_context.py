"""Attention over longer and longer contexts: how strongly must it sharpen? (arXiv:2510.05554)"""

import math
from typing import Any

from attnflow._check import count
from attnflow.numerics.arrays import floats, positive


def context_cosine(n: int, cosine: Any, beta: Any) -> float:
    r"""The cosine of two outputs of softmax attention, without residual, on $n$ tokens with this common cosine $r$: exact.

    A row gives $a$ to its own token and $b$ to each other, $a = e^\beta / Z$, $b = e^{\beta r} / Z$, $Z = e^\beta + (n-1) e^{\beta r}$:

    $$\frac{r + (1-r)(2ab + (n-2) b^2)}{r + (1-r)(a^2 + (n-1) b^2)}.$$
    """
    r, beta = _cosine(cosine), float(positive("beta", beta))
    count("n", n, 2)
    others = (n - 1) * math.exp(-beta * (1 - r))
    a, b = 1 / (1 + others), math.exp(-beta * (1 - r)) / (1 + others)
    return (r + (1 - r) * (2 * a * b + (n - 2) * b**2)) / (r + (1 - r) * (a**2 + (n - 1) * b**2))


def context_limit(cosine: Any, gamma: Any) -> float:
    r"""The limit of `context_cosine` as $n$ grows with $\beta = \gamma \log n$: 1 if $\gamma$ is below $1/(1-r)$ (all tokens become one),
    $4r / (1+3r)$ at it, $r$ above it (no token sees another)."""
    r, critical = _cosine(cosine), critical_sharpness(cosine)
    g = float(positive("gamma", gamma))
    return 1.0 if g < critical else r if g > critical else 4 * r / (1 + 3 * r)


def critical_sharpness(cosine: Any) -> float:
    r"""$1/(1-r)$: with $\beta = \gamma \log n$ attention neither collapses nor falls apart at this $\gamma$ alone."""
    return 1 / (1 - _cosine(cosine))


def _cosine(cosine: Any) -> float:
    r = float(floats("cosine", cosine, ""))
    if not 0 < r < 1:
        raise ValueError(f"cosine must lie between 0 and 1, got {r}")
    return r
