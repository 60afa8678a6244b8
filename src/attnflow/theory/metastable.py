"""How long clusters of simple attention live apart (arXiv:2410.06833)."""

import math
from typing import Any, Literal

from attnflow._check import choice
from attnflow.numerics.arrays import floats, positive


def merger_log_time(
    cosine: Any, beta: Any, masses: tuple[float, float] = (0.5, 0.5), kind: Literal["softmax", "unnormalized"] = "softmax"
) -> float:
    r"""The logarithm of the time at which two clusters of these masses at this cosine meet, far from all others, for large $\beta$.

    Under softmax their angle obeys $u' = -(m_1/m_2 + m_2/m_1)\, e^{-\beta(1 - \cos u)} \sin u$, under no normalization
    $u' = -(m_1 + m_2)\, e^{\beta \cos u} \sin u$. The time is spent at the start, where Laplace's method gives

    $$\log t = \beta (1 - c) - \log(\beta (1 - c^2) (m_1/m_2 + m_2/m_1)),$$

    $$\log t = -\beta c - \log(\beta (1 - c^2) (m_1 + m_2)),$$

    up to $O(1/\beta)$: the closest pair is the first to merge (arXiv:2410.06833 has the exponents).
    """
    b, c = float(positive("beta", beta)), float(floats("cosine", cosine, ""))
    if len(floats("masses", masses, "k")) != 2:
        raise ValueError(f"masses must be two, those of the clusters, got {len(masses)}")
    a, m = (float(positive("masses", mass)) for mass in masses)
    choice("kind", kind, ("softmax", "unnormalized"))
    if not -1 < c < 1:
        raise ValueError(f"cosine must lie between -1 and 1, got {c}: equal or opposite clusters do not move each other")
    if kind == "softmax":
        return b * (1 - c) - math.log(b * (1 - c**2) * (a / m + m / a))
    return -b * c - math.log(b * (1 - c**2) * (a + m))


def window_time(angle: Any, beta: Any, rate: Any = 1.0) -> float:
    r"""When $u' = -c \log(\beta) \sin u$ from this angle $u_0$ reaches $u_1 = \sqrt{\log(\beta) / \beta}$:
    $t = (\log\tan(u_0/2) - \log\tan(u_1/2)) / (c \log\beta)$, which is $1/(2c) + O(\log\log\beta / \log\beta)$.

    (arXiv:2410.06833 prints $2/c$ for it.)
    """
    b, c, u = float(positive("beta", beta)), float(positive("rate", rate)), float(positive("angle", angle))
    if not b > math.e or not u < math.pi:
        raise ValueError(f"beta must be above e and the angle below pi, got {b} and {u}")
    goal = math.sqrt(math.log(b) / b)
    return max(math.log(math.tan(u / 2)) - math.log(math.tan(goal / 2)), 0.0) / (c * math.log(b))
