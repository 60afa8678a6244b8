"""The uniform measure on S^{d-1} under simple attention: how fast it breaks up, and what it becomes with noise.

By Funk and Hecke, `integral e^{b <x,y>} Y_k(y) dy = c_k(b) Y_k(x)` over the uniform measure, for every spherical harmonic of degree k, with

    c_k(b) = Gamma(d/2) (2/b)^{d/2-1} I_{k+d/2-1}(b).

A measure of density `1 + a Y_k` moves by `Gamma = a grad Y_k r_k / b`, with `r_k = c_k` for USA, `c_k / c_0` for softmax, and
`Laplace Y_k = - k(k+d-2) Y_k`. Bessel functions of any order are SciPy's: arguments must have known values.
"""

from typing import Literal, get_args

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike
from attnflow.numerics.arrays import floats
from attnflow.theory.chance import sphere_dimension

Kind = Literal["softmax", "unnormalized", "sinkhorn"]


def mode_growth(k: ArrayLike, beta: ArrayLike, dim: int = 2, *, kind: Kind = "softmax", noise: ArrayLike = 0.0) -> Float[Array, "..."]:
    r"""The growth rate of harmonics of degree $k$ around the uniform measure on $S^{d-1}$ (arXiv:2410.23228, Theorem 4.3 on the circle).

    $k (k+d-2) (r_k / \beta - \sigma^2 / 2)$, where with $q = I_{k+d/2-1}(\beta) / I_{d/2-1}(\beta)$

    - softmax: $r_k = q$; on the circle the rate is $k^2 I_k(\beta) / (\beta I_0(\beta))$;
    - unnormalized: $r_k = \Gamma(d/2)\, (2/\beta)^{d/2-1} I_{k+d/2-1}(\beta)$; on the circle $k^2 I_k(\beta) / \beta$;
    - sinkhorn: $r_k = q / (1 + q)$ (derived here: the potentials answer a change $w$ of the density by $-\frac{q}{1+q} w$).

    The fastest $k$ is the number of clusters on the circle. `k` and `beta` are numbers, or arrays that are broadcast.
    """
    degree, beta = np.asarray(floats("k", k, "m" if np.ndim(k) else ""), dtype=float), _betas(beta)
    sigma = np.asarray(floats("noise", noise, "m" if np.ndim(noise) else ""), dtype=float)
    if (degree < 1).any() or (degree % 1 != 0).any():
        raise ValueError(f"k must be a whole number of at least 1, got {check.shown(k)}")
    check.choice("kind", kind, get_args(Kind))
    size = _eigenvalue(degree, beta, sphere_dimension(dim), scaled=kind == "unnormalized")
    if kind == "sinkhorn":
        size = size / (1 + size)
    return jnp.asarray(degree * (degree + dim - 2) * (size / beta - np.square(sigma) / 2))


def critical_noise(beta: ArrayLike, dim: int = 2) -> Float[Array, "..."]:
    r"""The $\sigma$ below which the uniform measure is unstable under USA with noise $\sigma\,dB$ on $S^{d-1}$:
    $\sigma^2 = 2 c_1(\beta) / \beta$.

    That is $\sigma^{-2} = \beta^{d/2} / (2^{d/2}\, \Gamma(d/2)\, I_{d/2}(\beta))$, the threshold $K_\#$ of arXiv:2606.05140. Mode 1 is the
    first to go, for every $\beta$ and $d$, because $c_k$ falls with $k$.
    """
    beta = _betas(beta)
    return jnp.asarray(np.sqrt(2 * _eigenvalue(1.0, beta, sphere_dimension(dim), scaled=True) / beta))


def branch_curvature(beta: ArrayLike, dim: int = 2) -> Float[Array, "..."]:
    r"""How the noise of the ordered states $1 + a Y_1 + \dots$ of USA begins: $(\sigma / \sigma_c)^2 = 1 + c\, a^2 + O(a^4)$, with a mean
    of length $a/d$.

    With $q = I_{d/2+1}(\beta) / I_{d/2}(\beta)$,

    $$c = -\frac{1}{d+2} \left(1 - \frac{d-1}{d (1-q)}\right):$$

    negative for a continuous transition. Derived from $\log\rho(x) = \frac{2}{\sigma^2\beta} \int e^{\beta\langle x, y\rangle} \rho(y)\,dy$
    and a constant by comparing harmonics: the second one of $\rho$ is $a_2 = a^2 (d-1) / (2d (1-q))$, and the first one then asks for
    $\sigma_c^2 / \sigma^2 = 1 + (a^2 - 2 a_2) / (d+2)$.
    """
    q = _ratio(_betas(beta), sphere_dimension(dim))
    return jnp.asarray(-(1 - (dim - 1) / (dim * (1 - q))) / (dim + 2))


def critical_beta(dim: int = 2) -> Float[Array, ""]:
    r"""The inverse temperature $\beta$ with $I_{d/2+1}(\beta) / I_{d/2}(\beta) = 1/d$, where the curvature changes sign (arXiv:2606.05140).

    Up to it the transition of noisy USA on $S^{d-1}$ is continuous, beyond it discontinuous. 2.4469 on the circle, 1.8162 on $S^2$.
    """
    from scipy.optimize import brentq

    d = sphere_dimension(dim)
    # The ratio grows from 0 to 1 and is about b/(d+2) at first, so that the root tends to 1 as d grows.
    return jnp.asarray(brentq(lambda beta: float(_ratio(np.asarray(beta), d)) - 1 / d, 0.5, 8.0, xtol=1e-14))


def _eigenvalue(k: np.ndarray | float, beta: np.ndarray, dim: int, scaled: bool) -> np.ndarray:
    """`c_k(b)` if scaled, otherwise `c_k(b) / c_0(b)`."""
    from scipy.special import gammaln, ive

    order = dim / 2 - 1
    if not scaled:
        return np.asarray(ive(k + order, beta) / ive(order, beta))
    return np.asarray(np.exp(gammaln(dim / 2) + order * np.log(2 / beta) + beta) * ive(k + order, beta))


def _ratio(beta: np.ndarray, dim: int) -> np.ndarray:
    from scipy.special import ive

    return np.asarray(ive(dim / 2 + 1, beta) / ive(dim / 2, beta))


def _betas(beta: ArrayLike) -> np.ndarray:
    values = np.asarray(floats("beta", beta, "k" if np.ndim(beta) else ""), dtype=float)
    if values.min() <= 0:
        raise ValueError(f"beta must be positive, got {values.min()}")
    return values
