"""How much a law, or a flow, amplifies a small change of the tokens."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, PRNGKeyArray

from attnflow import _check as check
from attnflow.measures import Particles
from attnflow.measures.field import check_at
from attnflow.measures.velocity import velocity_of
from attnflow.numerics.arrays import known, positive


def local_lipschitz(
    law: Any, mu: Particles, iterations: int = 200, tolerance: Any = 1e-6, key: PRNGKeyArray | None = None
) -> Float[Array, ""]:
    r"""The largest singular value of the derivative of $(x_1, \dots, x_n) \mapsto (\Gamma(x_1), \dots, \Gamma(x_n))$ at these tokens: the
    local Lipschitz constant of attention in the norm of all tokens together. By power iteration with derivatives forward and back, without
    the matrix. Bounded by `theory.lipschitz_bound` (arXiv:2312.14820). An error if it has not settled to the tolerance."""
    check.field("law", law)
    mu = check.measure("mu", mu, Particles, "Particles")
    check.count("iterations", iterations)
    check.key("key", key, optional=True)
    positive("tolerance", tolerance)
    start = jax.random.normal(jax.random.key(0) if key is None else key, mu.points.shape, mu.dtype)
    found, change = _largest_singular(law, mu, start, iterations)
    if known(found) and not float(change) <= float(positive("tolerance", tolerance)):
        raise RuntimeError(f"the power iteration has not settled: off by {float(change):.2g} after {iterations}; give more iterations")
    return found


@eqx.filter_jit
def _largest_singular(law: Any, mu: Particles, start: Array, iterations: int) -> tuple[Array, Array]:
    def velocity(points: Array) -> Array:
        nu = mu.with_state(points)
        return nu.rate(velocity_of(law, nu))

    _, forward = jax.linearize(velocity, mu.points)
    back = jax.linear_transpose(forward, mu.points)

    def once(carry: tuple[Array, Array, Array], _: Any) -> tuple[tuple[Array, Array, Array], None]:
        v, last, _ = carry
        (w,) = back(forward(v))
        size = jnp.linalg.norm(w)
        return (
            w / jnp.maximum(size, jnp.finfo(w.dtype).tiny),
            jnp.sqrt(size),
            jnp.abs(jnp.sqrt(size) / jnp.maximum(last, 1e-300) - 1),
        ), None

    zero = jnp.zeros((), mu.dtype)
    (_, value, change), _ = jax.lax.scan(once, (start / jnp.linalg.norm(start), zero, zero), None, length=iterations)
    return value, change


def linearization(field: Any, mu: Particles, t: Any = 0.0) -> Complex[Array, " k"]:
    r"""The eigenvalues of the flow linearized at tokens that stand still, by falling real part: where one is positive, they are a saddle.

    In coordinates of the tangent spaces: $n d$ of them in $\mathbb{R}^d$, $n (d-1)$ on the sphere and the ellipsoid. At clusters of
    simple attention this is the Hessian of the energy up to the metric, and they are real.
    All derivatives are formed: for some hundred tokens.
    """
    check.field("field", field)
    mu = check.measure("mu", mu, Particles, "Particles")
    check_at(mu, t, None)
    frames = mu.space.tangents(mu.points)

    # A point moved along its tangent space and brought back: a chart whose second order does not matter where the velocity vanishes.
    def rate(u: Array) -> Array:
        nu = mu.with_state(mu.space.nearest(mu.points + jnp.einsum("nkd,nk->nd", frames, u)))
        return jnp.einsum("nkd,nd->nk", frames, nu.rate(velocity_of(field, nu, t)))

    blank = jnp.zeros(frames.shape[:2], mu.dtype)
    matrix = jax.jacfwd(rate)(blank).reshape(blank.size, blank.size)
    values = jnp.linalg.eigvals(matrix)
    return values[jnp.argsort(-jnp.real(values))]


def lyapunov_exponents(
    field: Any, mu: Particles, t1: Any, steps: int = 200, count: int = 1, key: PRNGKeyArray | None = None
) -> Float[Array, " k"]:
    """The `count` largest Lyapunov exponents of the flow from these tokens over $[0, t_1]$: the mean growth rates of small changes, by the
    tangent flow with an orthonormalization after each of `steps` equal Runge-Kutta steps (Benettin et al. 1980)."""
    check.field("field", field)
    mu = check.measure("mu", mu, Particles, "Particles")
    check.count("count", count, 1, len(mu.points) * mu.dim)
    check.count("steps", steps)
    check.key("key", key, optional=True)
    start = jax.random.normal(jax.random.key(0) if key is None else key, (count, *mu.points.shape), mu.dtype)
    return _exponents(field, mu, positive("t1", t1).astype(mu.dtype), steps, start)


@eqx.filter_jit
def _exponents(field: Any, mu: Particles, t1: Array, steps: int, start: Array) -> Array:
    h = t1 / steps

    def rate(t: Array, points: Array) -> Array:
        nu = mu.with_state(points)
        return nu.rate(velocity_of(field, nu, t))

    def step(points: Array, t: Array) -> Array:
        k1 = rate(t, points)
        k2 = rate(t + h / 2, points + h / 2 * k1)
        k3 = rate(t + h / 2, points + h / 2 * k2)
        return mu.space.nearest(points + h / 6 * (k1 + 2 * k2 + 2 * k3 + rate(t + h, points + h * k3)))

    def once(carry: tuple[Array, Array, Array], i: Array) -> tuple[tuple[Array, Array, Array], None]:
        points, vectors, total = carry
        new, move = jax.linearize(lambda x: step(x, i * h), points)
        moved = jax.vmap(move)(vectors)
        frame, sizes = _orthonormal(moved)
        return (new, frame, total + jnp.log(sizes)), None

    vectors, _ = _orthonormal(jax.vmap(lambda v: mu.space.project(mu.points, v))(start))
    zero = jnp.zeros(len(start), mu.dtype)
    (_, _, total), _ = jax.lax.scan(once, (mu.points, vectors, zero), jnp.arange(steps, dtype=mu.dtype))
    return total / t1


def _orthonormal(vectors: Array) -> tuple[Array, Array]:
    q, r = jnp.linalg.qr(vectors.reshape(len(vectors), -1).T)
    return q.T.reshape(vectors.shape), jnp.abs(jnp.diag(r))
