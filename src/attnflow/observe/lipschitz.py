"""How much a law, or a flow, amplifies a small change of the tokens. Velocities are told the order of the tokens, as masked laws need."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float

from attnflow import _check as check
from attnflow._types import FieldLike, Key, MeasureLike, Scalar
from attnflow.measures import Particles
from attnflow.measures.field import check_at
from attnflow.measures.velocity import velocity_of
from attnflow.numerics.arrays import known, positive


def local_lipschitz(law: FieldLike, mu: MeasureLike, *, iterations: int = 200, tolerance: Scalar = 1e-6) -> Float[Array, ""]:
    r"""The largest singular value of the derivative of $(x_1, \dots, x_n) \mapsto (\Gamma(x_1), \dots, \Gamma(x_n))$ at these tokens: the
    local Lipschitz constant of attention in the norm of all tokens together. By power iteration with derivatives forward and back, without
    the matrix, from a fixed start. Bounded by `theory.lipschitz_bound` (arXiv:2312.14820). An error if the last iteration changed it by
    more than the relative tolerance."""
    check.field("law", law)
    mu = check.measure("mu", mu, Particles, "Particles")
    check.count("iterations", iterations)
    least = positive("tolerance", tolerance)
    found, change = _largest_singular(law, mu, iterations)
    if known(found, least) and not float(change) <= float(least):
        raise RuntimeError(f"the power iteration has not settled: off by {float(change):.2g} after {iterations}; give more iterations")
    return found


@eqx.filter_jit
def _largest_singular(law: FieldLike, mu: Particles, iterations: int) -> tuple[Array, Array]:
    def velocity(points: Array) -> Array:
        nu = mu.with_state(points)
        return nu.rate(velocity_of(law, nu))

    # No symmetry of tokens or axes keeps these directions, so that no singular vector is orthogonal to them by chance.
    start = jnp.cos(jnp.arange(1, mu.points.size + 1, dtype=mu.dtype) ** 2).reshape(mu.points.shape)
    _, forward = jax.linearize(velocity, mu.points)
    back = jax.linear_transpose(forward, mu.points)

    def once(carry: tuple[Array, Array, Array], _: None) -> tuple[tuple[Array, Array, Array], None]:
        v, last = carry[:2]
        (w,) = back(forward(v))
        size, tiny = jnp.linalg.norm(w), jnp.finfo(w.dtype).tiny
        value = jnp.sqrt(size)
        return (w / jnp.maximum(size, tiny), value, jnp.abs(value / jnp.maximum(last, tiny) - 1)), None

    zero = jnp.zeros((), mu.dtype)
    (_, value, change), _ = jax.lax.scan(once, (start / jnp.linalg.norm(start), zero, zero), None, length=iterations)
    return value, change


def linearization(field: FieldLike, mu: MeasureLike, *, t: Scalar = 0.0) -> Complex[Array, " k"]:
    r"""The eigenvalues of the flow linearized at tokens that stand still, by falling real part: where one is positive, they are a saddle.

    In coordinates of the tangent spaces: $n d$ of them in $\mathbb{R}^d$, $n (d-1)$ on the sphere and the ellipsoid. At clusters of
    simple attention this is the Hessian of the energy up to the metric, and they are real.
    The whole matrix is formed: for some hundred tokens.
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


def lyapunov_exponents(field: FieldLike, mu: MeasureLike, t1: Scalar, *, key: Key, steps: int = 200, count: int = 1) -> Float[Array, " k"]:
    """The `count` largest Lyapunov exponents of the flow from these tokens over $[0, t_1]$: the mean growth rates of small changes, by the
    tangent flow with an orthonormalization after each of `steps` equal Runge-Kutta steps (Benettin et al. 1980). The first changes are
    drawn from `key`; over a finite time the exponents depend on them a little, but for the sum of all of them."""
    check.field("field", field)
    mu = check.measure("mu", mu, Particles, "Particles")
    check.count("count", count, 1, len(mu.points) * mu.dim)
    check.count("steps", steps)
    check.key("key", key)
    start = jax.random.normal(key, (count, *mu.points.shape), mu.dtype)
    return _exponents(field, mu, positive("t1", t1).astype(mu.dtype), steps, start)


@eqx.filter_jit
def _exponents(field: FieldLike, mu: Particles, t1: Array, steps: int, start: Array) -> Array:
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
