"""Sinkhorn: rows and columns integrate to one."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attnflow._check import count
from attnflow._types import Scalar
from attnflow.attention.normalizations.base import Normalization
from attnflow.measures import Affine, Gaussian
from attnflow.numerics.arrays import array, positive
from attnflow.sums import Atoms, Logit, Quadratic, Request
from attnflow.transport.sinkhorn.gaussian import scaled_gaussian
from attnflow.transport.sinkhorn.kernel import ScaledKernel, scaled_kernel, truncated_kernel


class Sinkhorn(Normalization):
    r"""$k(x, y) = e^{f(x) + \ell(x,y) + g(y)}$ with both marginals one (Sander et al. 2022, arXiv:2110.11773).

    **Arguments:**

    - `tolerance`: the largest violation of a column sum (rows are exact); by default $10^{-10}$ in float64, $10^{-5}$ in float32.
    - `max_iterations`: the budget; the result says whether it was enough.
    - `half_steps`: if given, stop after this many normalizations, rows first, as trained Sinkformers do. 1 is softmax.

    `law.at(mu).report["sinkhorn"]` has `converged`, `iterations` and `error`; `solve` gathers them in `path.stats`.
    """

    tolerance: Float[Array, ""] | None
    max_iterations: Int[Array, ""]
    half_steps: int | None = eqx.field(static=True)

    doubly = True

    def __init__(self, *, tolerance: Scalar | None = None, max_iterations: int = 10_000, half_steps: int | None = None) -> None:
        count("max_iterations", max_iterations)
        if half_steps is not None:
            count("half_steps", half_steps)
        self.tolerance = None if tolerance is None else positive("tolerance", tolerance)
        self.max_iterations = array(max_iterations)
        self.half_steps = half_steps

    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> ScaledKernel:
        if self.half_steps is not None:
            return truncated_kernel(logit, atoms, self.half_steps, sums)
        dtype = atoms.points.dtype
        tolerance = jnp.asarray(1e-10 if dtype == jnp.float64 else 1e-5) if self.tolerance is None else self.tolerance
        return scaled_kernel(logit, atoms, tolerance.astype(dtype), self.max_iterations, sums)

    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        return jnp.exp(self.average(logit, atoms, None).log_kernel(x, order) + atoms.log_weights[None])

    def gaussian(self, logit: Quadratic, mu: Gaussian) -> Affine:
        """$m + W A (x - m)$: see `scaled_gaussian`."""
        if self.half_steps is not None:
            raise ValueError(
                "Sinkhorn after a number of half-steps has no Gaussian picture here; use Sinkhorn() for the converged kernel, or tokens"
            )
        return scaled_gaussian(logit.A, mu)

    def check_maskable(self) -> None:
        raise ValueError(
            "Sinkhorn takes no mask: the first token sees itself only, so its column is full, the second sees itself only, and so on: "
            "the one doubly stochastic causal matrix is the identity; use Softmax, Unnormalized, Hardmax, Sigmoid or Linear instead"
        )
