"""Sinkhorn scaling of a kernel to given marginals, in the log domain.

Wanted are potentials f, g with `K(x, y) = e^{f(x) + <y, A x> + g(y)}` and `integral K(x, .) dnu = 1 = integral K(., y) dmu` for every
query x of mu and every key y of nu; mu = nu in self-attention. Only g is stored: at any point x, on the cloud or off it,
`f(x) = -log integral e^{<y, A x> + g(y)} dnu(y)`, so rows are exact and the error is the worst column. Terms of the logit in x or y alone
drop out, hence the clouds here are centred and P, R are not seen.

- One cloud, A symmetric positive semidefinite: f = g, and `g <- (g - log integral e^{<y, A .> + g(y)} dmu(y)) / 2` contracts by 1/2 or
  better at any temperature, because the scaled kernel has its spectrum in [0, 1] (Feydy et al. 2019, arXiv:1810.08278);
  `anderson` saves about four steps in ten.
- Otherwise rows and columns are normalised in turn: see `alternating`.

Derivatives are implicit: the potentials solve an equation, its linearisation is solved by GMRES.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float, Int

from attnflow._arrays import one_program
from attnflow.sums import Atoms, Engine, Logit, fitted, merged
from attnflow.transport.alternating import alternate
from attnflow.transport.anderson import History, empty, mixed, remember
from attnflow.transport.clouds import Clouds, columns_of, integral, largest, rows_of, worst

# How many steps the symmetric update mixes.
_DEPTH = 5


class Scaling(eqx.Module):
    """The result of a Sinkhorn scaling.

    - `g`: the potential of the keys, `[n]`; `before`: the one that the last row normalisation used (g itself, unless the
      iteration was cut after a column normalisation).
    - `error`: the largest violation of a column sum, `max_j |integral K(x, y_j) dmu(x) - 1|`, or a bound on it.
    - `converged`: whether the error is below the tolerance, `None` for a cut iteration, which has none.
    - `iterations`: how many updates were made.
    """

    g: Float[Array, " n"]
    before: Float[Array, " n"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""] | None


@one_program
def scale(
    logit: Logit,
    clouds: Clouds,
    tolerance: Array,
    max_iterations: Array,
    sums: Engine | None = None,
    start: Float[Array, " n"] | None = None,
) -> Scaling:
    """The scaling of `e^{<y, A x>}` to `tolerance` in every column sum; `start` is a first guess of g."""
    symmetric, annealed = logit.psd and clouds.others is None, start is None
    start = first_potential(symmetric, logit.A, clouds.keys) if start is None else start
    how = (symmetric, annealed and not symmetric, sums)
    g, error, iterations = _potential(how, logit.A, clouds, tolerance, max_iterations, jax.lax.stop_gradient(start))
    # An iteration that ended well has measured the g it returns, one that spent its budget has not.
    exact = jax.lax.stop_gradient((logit.A, clouds, g))
    error = jax.lax.cond(error <= tolerance, lambda: error, lambda: column_error(*exact, sums))
    return Scaling(g, g, error, iterations, error <= tolerance)


def planned(logit: Logit, clouds: Clouds, sums: Engine | None = None) -> Engine | None:
    """The engine for the sums of a scaling, made for the kernel that it begins with."""
    keys, queries, symmetric = clouds.keys, clouds.queries, logit.psd and clouds.others is None
    weighted = keys._replace(log_weights=keys.log_weights + first_potential(logit.psd, logit.A, keys))
    plans = [fitted(Logit(logit.A), queries.points, weighted, sums)]
    if not symmetric:
        back = queries._replace(log_weights=queries.log_weights + first_potential(logit.psd, logit.A, queries))
        plans.append(fitted(Logit(logit.A.T), keys.points, back, sums))
    return merged(plans)


@one_program
def first_potential(symmetric: bool, A: Float[Array, "d d"], atoms: Atoms) -> Float[Array, " n"]:
    """Where the iteration begins: for a symmetric A at the Gaussian kernel `e^{-<x-y, A (x-y)> / 2}`, whose rows are nearly equal."""
    return -0.5 * jnp.sum((atoms.points @ A) * atoms.points, axis=1) if symmetric else jnp.zeros_like(atoms.log_weights)


def half_steps(logit: Logit, atoms: Atoms, g: Float[Array, " n"], count: int, sums: Engine | None = None) -> Scaling:
    """The scaling of `e^{<y, A x> + g(y)}` cut after `count` half-steps, rows first: 1 is softmax, an even count ends with columns.

    This is what a trained Sinkformer computes (Sander et al. 2022, arXiv:2110.11773); it is differentiated as it stands.
    """
    before, clouds = g, Clouds(atoms)
    for _ in range(count // 2):
        before, g = g, _next(logit.A, clouds, g, sums)
    if count % 2:
        before = g
    f = -rows_of(logit.A, clouds, before, sums)
    columns, rows = g + columns_of(logit.A, clouds, f, sums), f + rows_of(logit.A, clouds, g, sums)
    error = jnp.maximum(worst(columns, atoms), worst(rows, atoms))
    return Scaling(g, before, error, jnp.asarray(count), None)


def column_error(A: Float[Array, "d d"], clouds: Clouds, g: Float[Array, " n"], sums: Engine | None) -> Float[Array, ""]:
    """The largest violation of a column sum when the rows are exact."""
    return worst(g - _next(A, clouds, g, sums), clouds.keys)


def _next(A: Array, clouds: Clouds, g: Array, sums: Engine | None) -> Array:
    """Normalise the rows, then the columns: the next potential of the keys."""
    return -columns_of(A, clouds, -rows_of(A, clouds, g, sums), sums)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _potential(how: tuple, A: Array, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Array) -> tuple[Array, Array, Array]:
    symmetric, annealed, sums = how
    if symmetric:
        return _average(sums, A, clouds, tolerance, max_iterations, first)
    return alternate(annealed, sums, A, clouds, tolerance, max_iterations, first)


@partial(jax.jit, static_argnums=0)
def _average(
    sums: Engine | None, A: Array, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array, Array]:
    """The symmetric update, half way to the next potential, accelerated; when the error grows, from plain steps again."""

    def update(carry: tuple[Array, Array, Array, History]) -> tuple[Array, Array, Array, History]:
        g, before, count, history = carry
        target = -rows_of(A, clouds, g, sums)
        # With rows made exact, f = target, the logarithm of a column sum is at most twice the largest difference.
        error = jnp.expm1(2 * largest(g - target, clouds.keys))
        history = remember(history, (g + target) / 2, (target - g) / 2, error > before)
        new = jnp.where(error > before, (g + target) / 2, mixed(history, clouds.keys))
        # The error belongs to the g it was measured at, so a finished g is kept, not replaced.
        return jnp.where(error <= tolerance, g, new), error, count + 1, history

    def going(carry: tuple[Array, Array, Array, History]) -> Array:
        return (carry[1] > tolerance) & (carry[2] < max_iterations)

    begin = (first, jnp.asarray(jnp.inf, A.dtype), jnp.asarray(0), empty(_DEPTH, first))
    g, error, count, _ = jax.lax.while_loop(going, update, begin)
    return g, error, count


@_potential.defjvp
def _potential_jvp(how, primals, tangents):
    symmetric, _, sums = how
    A, clouds, _, _, _ = primals
    dA, d_clouds, _, _, _ = tangents
    g, error, count = _potential(how, *primals)

    def residual(A, clouds, g):
        if symmetric:
            return g + rows_of(A, clouds, g, sums)
        return g - _next(A, clouds, g, sums)

    others = None if clouds.others is None else _massive(clouds.others, d_clouds.others)
    d_clouds = Clouds(_massive(clouds.keys, d_clouds.keys), others)
    _, d_residual = jax.jvp(lambda A, clouds: residual(A, clouds, g), (A, clouds), (dA, d_clouds))
    _, linear = jax.linearize(lambda g: residual(A, clouds, g), g)
    matvec = linear if symmetric else lambda u: linear(u) + integral(u, clouds.keys)
    operator = lx.FunctionLinearOperator(matvec, jax.eval_shape(lambda: g))
    accuracy = 100 * float(jnp.finfo(g.dtype).eps)
    solver = lx.GMRES(rtol=accuracy, atol=accuracy, restart=min(40, len(g)))
    dg = lx.linear_solve(operator, -d_residual, solver).value
    return (g, error, count), (dg, jnp.zeros_like(error), jnp.zeros(count.shape, jax.dtypes.float0))


def _massive(atoms: Atoms, tangent: Atoms) -> Atoms:
    """A token without mass has log-weight -inf: its derivative carries nothing."""
    return Atoms(tangent.points, jnp.where(jnp.isfinite(atoms.log_weights), tangent.log_weights, 0))
