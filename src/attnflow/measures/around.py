"""Around the axis of a law on the sphere that is symmetric about it: the rule for integrals, and averages at any query."""

import functools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.measures.velocity import Of, Velocity


@functools.lru_cache
def rule_around(dim: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and weights of a Gauss rule for averages over S^{dim-2} of functions of one coordinate: the weight is
    `(1 - s^2)^{(dim-4)/2}`, Chebyshev's for dim = 3, Gegenbauer's beyond."""
    if dim == 3:
        angle = (np.arange(nodes) + 0.5) * np.pi / nodes
        return np.cos(angle), np.full(nodes, 1 / nodes)
    # Golub and Welsch: the rule is the spectrum of the matrix of the recurrence of Gegenbauer polynomials with parameter a.
    a, k = (dim - 3) / 2, np.arange(1, nodes)
    beside = np.sqrt(k * (k + 2 * a - 1) / (4 * (k + a) * (k + a - 1)))
    values, vectors = np.linalg.eigh(np.diag(beside, 1) + np.diag(beside, -1))
    return values, vectors[0] ** 2


class AroundAxis(Of):
    """An average over a zonal law, at queries anywhere on the sphere.

    The keys of a `Zonal` grid lie as a query on the meridian of the first two axes sees them, on one side of it: there the average is right
    in the plane of the meridian, and by symmetry it has no other part. Other queries are turned to the meridian and back.
    """

    velocity: Velocity

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        across = x[:, 1:]
        square = jnp.sum(across**2, axis=1, keepdims=True)
        some = square > 0
        radius = jnp.sqrt(jnp.where(some, square, 1))
        turned = jnp.concatenate([x[:, :1], jnp.where(some, radius, 0), jnp.zeros_like(x[:, 2:])], axis=1)
        found = self.velocity(turned)
        return jnp.concatenate([found[:, :1], found[:, 1:2] * jnp.where(some, across / radius, 0)], axis=1)
