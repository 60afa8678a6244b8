"""How fast perturbations of the uniform measure on the sphere grow, found from the law itself by automatic differentiation.

Around the uniform measure a perturbed density `1 + a Y_k` changes by `a' Y_k = - div(dGamma)`, with dGamma the derivative of the velocity
along the perturbation. An isotropic law does not move the uniform measure, and dGamma is a multiple of the gradient of Y_k, so that with
averages over the sphere

    a' / a = <dGamma, grad Y_k> / <Y_k^2> - sigma^2/2 k(k+d-2).

The averages are those of a cubature, refined until they settle. Harmonics are zonal, `Y_k(x) = P_k(x_1)`, so that one meridian suffices.
"""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import FieldLike, Scalar
from attnflow.measures import Particles
from attnflow.measures.grid.zonal import rule_around
from attnflow.measures.velocity import velocity_of
from attnflow.numerics.arrays import floats
from attnflow.numerics.special import zonal_harmonic, zonal_slope
from attnflow.spaces import Sphere

# Above this many pairs of a query and a key the kernel is too narrow.
_PAIRS = 2**24


def growth_rates(field: FieldLike, dim: int, modes: int | Sequence[int] = 8, *, noise: Scalar = 0.0, t: Scalar = 0.0) -> Float[Array, " k"]:
    r"""The growth rates of the harmonics of degree $k$ around the uniform measure on $S^{d-1}$: mode $k$ grows like $e^{\lambda_k t}$ with
    the rate $\lambda_k$.

    **Arguments:**

    - `field`: a law that looks the same in every direction, of any normalization, with any number of heads.
    - `modes`: the degrees $k$, or the largest of them.
    - `noise`: $\sigma$ of a Brownian motion of every token, which lowers the rate of mode $k$ by $\frac12 \sigma^2 k(k+d-2)$.
    - `t`: the time, for fields that depend on it.

    On the circle the fastest mode is the number of clusters that the uniform measure breaks up into.
    """
    check.field("field", field)
    if check.count("dim", dim) < 2:
        raise ValueError(f"the sphere lies in R^dim with dim >= 2, got {dim}")
    sigma, t = floats("noise", noise, ""), floats("t", t, "")
    degrees = np.arange(1, modes + 1) if isinstance(modes, int) else np.asarray(floats("modes", modes, "k"))
    if degrees.ndim != 1 or len(degrees) == 0 or degrees.min() < 1 or (degrees % 1 != 0).any():
        raise ValueError(f"modes must be whole numbers of at least 1, got {modes}")
    _check(field, dim, t)
    rates = _settled(field, dim, degrees.astype(int), t)
    return rates - sigma.astype(rates.dtype) ** 2 / 2 * jnp.asarray(degrees * (degrees + dim - 2), rates.dtype)


def _settled(field: FieldLike, dim: int, degrees: np.ndarray, t: Array) -> Float[Array, " k"]:
    """The rates on finer and finer cubatures, until the uniform measure stands still and the response to every harmonic is a
    multiple of its gradient."""
    tolerance = 1e-9 if jnp.result_type(float) == jnp.float64 else 1e-4
    modes = [int(k) for k in degrees]
    nodes, error = 12 + max(modes), np.inf
    while True:
        cloud, weights = _cubature(dim, nodes)
        if nodes * len(cloud) > _PAIRS:
            raise ValueError(f"the growth rates did not settle: they were still off by {error:.2g}; the kernel of the law is too narrow")
        # Between the keys, where errors of the cubature show.
        s, shares = rule_around(dim + 1, nodes + 1)
        values, slopes = (np.stack([f(k, dim, s) for k in modes]) for f in (zonal_harmonic, zonal_slope))
        changes = np.stack([zonal_harmonic(k, dim, cloud[:, 0]) for k in modes])
        arrays = (jnp.asarray(array, float) for array in (cloud, weights, s, changes, t))
        size, still, found = (np.asarray(array, float) for array in _responses(field, *arrays))
        rates = (found * slopes) @ shares / (values**2 @ shares)
        # Along the meridian grad Y_k is this, and dGamma should be rates / k(k+d-2) times as much.
        along, factors = slopes * (1 - s**2), degrees * (degrees + dim - 2)
        off = np.abs(factors[:, None] * found - rates[:, None] * along).max(axis=1) / np.abs(along).max(axis=1)
        error = float(max(off.max(), np.abs(still).max()))
        if error <= tolerance * max(float(size), np.abs(rates).max()):
            return jnp.asarray(rates)
        nodes *= 2


@eqx.filter_jit
def _responses(field: FieldLike, cloud: Array, weights: Array, s: Array, changes: Array, t: Array) -> tuple[Array, Array, Array]:
    """At the points `x = (s, (1 - s^2)^1/2, 0, ...)`: the size of Gamma for the uniform measure, `<Gamma, P_x e_1>`, which should vanish,
    and `<dGamma, P_x e_1>` for every change of the weights."""
    x = jnp.zeros((len(s), cloud.shape[1])).at[:, 0].set(s).at[:, 1].set(jnp.sqrt(1 - s**2))

    def velocity(change: Array) -> Array:
        return velocity_of(field, Particles(cloud, weights * (1 + change), space=Sphere()), t)(x)

    still, push = jax.linearize(velocity, jnp.zeros_like(weights))
    answers = jax.lax.map(lambda change: Sphere().project(x, push(change))[:, 0], changes)
    return jnp.max(jnp.abs(still)), Sphere().project(x, still)[:, 0], answers


def _cubature(dim: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights for averages over S^{dim-1}.

    On the circle and on S^2 the points are on the whole sphere. Beyond they are too many, and only what the points of the first two axes
    can tell apart is kept: the angle around the first axis.
    """
    s, shares = rule_around(dim + 1, nodes)
    if dim == 2:
        ring, parts = np.array([[1.0], [-1.0]]), np.full(2, 0.5)
    elif dim == 3:
        angle = np.pi * (np.arange(2 * nodes) + 0.5) / nodes
        ring, parts = np.stack([np.cos(angle), np.sin(angle)], axis=1), np.full(2 * nodes, 0.5 / nodes)
    else:
        c, parts = rule_around(dim, nodes)
        ring = np.zeros((nodes, dim - 1))
        ring[:, 0], ring[:, 1] = c, np.sqrt(1 - c**2)
    points = np.concatenate([np.repeat(s, len(ring))[:, None], np.kron(np.sqrt(1 - s**2)[:, None], ring)], axis=1)
    return points, np.kron(shares, parts)


def _check(field: FieldLike, dim: int, t: Array) -> None:
    """Refuse what is not isotropic or depends on an order: the velocities of turned, mirrored and reversed tokens must be turned, mirrored
    and reversed."""
    if dim > 3 and any(map(_doubly, jax.tree.leaves(field, is_leaf=_doubly))):
        raise ValueError(f"Sinkhorn rates are for dim 2 and 3, got {dim}; af.theory.mode_growth has those of simple attention in any")
    random = np.random.default_rng(0)
    tokens, weights = random.normal(size=(4 * dim, dim)), random.uniform(0.5, 1.5, size=4 * dim)
    turn, _ = np.linalg.qr(random.normal(size=(dim, dim)))
    mirror = np.eye(dim) - 2 * np.outer(turn[0], turn[0])
    weights, t = jnp.asarray(weights, float), jnp.asarray(t, float)
    found = []
    for matrix, step in ((np.eye(dim), 1), (turn, 1), (mirror, 1), (np.eye(dim), -1)):
        size, rate = _velocities(field, jnp.asarray(tokens[::step] @ matrix.T, float), weights[::step], t)
        found.append(np.asarray(rate)[::step] @ matrix)
    turned, mirrored, reverse = (np.abs(other - found[0]).max() for other in found[1:])
    least = np.sqrt(np.finfo(found[0].dtype).eps) * float(size)
    if reverse > least:
        raise ValueError("growth rates are of laws without a mask: the uniform measure has no order")
    if max(turned, mirrored) > least:
        raise ValueError("growth rates are of laws that look the same in every direction (V = v I, K^T Q = b I), got one that does not")


@eqx.filter_jit
def _velocities(field: FieldLike, tokens: Array, weights: Array, t: Array) -> tuple[Float[Array, ""], Float[Array, "n d"]]:
    """The size of the velocity, and its tangent part."""
    mu = Particles(Sphere().nearest(tokens), weights, space=Sphere())
    velocity = velocity_of(field, mu, t)
    return jnp.max(jnp.abs(velocity(mu.points, mu.sequence))), mu.rate(velocity)


def _doubly(part: object) -> bool:
    """Whether it is a normalization with both marginals, whose response to a harmonic needs points all around."""
    return getattr(part, "doubly", False)
