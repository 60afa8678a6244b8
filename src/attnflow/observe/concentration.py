"""How far a measure on the sphere is from the dominant directions of its dynamics."""

from jaxtyping import Array, Float

from attnflow._check import measure
from attnflow._types import ArrayLike, MeasureLike
from attnflow.measures import Grid, Particles
from attnflow.numerics.arrays import square
from attnflow.numerics.rows import dot, times


def misalignment(mu: MeasureLike, projector: ArrayLike) -> Float[Array, ""]:
    r"""$\int |x - \Pi x|^2 / |\Pi x|^2 \,d\mu$: a Lyapunov functional of concentration, zero on the range of the projector $\Pi$.

    With $\Pi$ = `theory.spectral_projector(V @ B.T)` it falls along the zero-temperature flow at twice `theory.concentration_rate(B, V)` or
    faster, for a symmetric $V B^\top$ from the start (arXiv:2605.10931). Infinite if a token has no part along $\Pi$.
    """
    mu = measure("mu", mu, (Particles, Grid), "Particles or a Grid")
    matrix = square("projector", projector).astype(mu.dtype)
    if len(matrix) != mu.dim:
        raise ValueError(f"the projector must act on R^{mu.dim} like the tokens, got {len(matrix)} rows")

    def ratio(x: Array) -> Array:
        kept = times(x, matrix)
        lost = x - kept
        return dot(lost, lost) / dot(kept, kept)

    return mu.integrate(ratio)
