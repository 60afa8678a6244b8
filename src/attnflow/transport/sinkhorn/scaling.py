"""Sinkhorn scaling of a kernel to given marginals, in the log domain.

Wanted are potentials f, g with `K(x, y) = e^{f(x) + l(x, y) + g(y)}` and `integral K(x, .) dnu = 1 = integral K(., y) dmu` for every
query x of mu and every key y of nu; mu = nu in self-attention. Only g is stored: at any point x, on the cloud or off it,
`f(x) = -log integral e^{l(x, y) + g(y)} dnu(y)`, so rows are exact and the error is the worst column. Terms of the logit in x or y alone
drop out, hence the clouds here are centerd, and `l(x, y)` is `<y, A x>`, or `-1/2 <x-y, A (x-y)>` where A is symmetric positive
semidefinite: then the rows of the kernel are nearly equal and its potentials small.

- One cloud, A symmetric positive semidefinite: f = g, and `g <- (g - log integral e^{l(., y) + g(y)} dmu(y)) / 2` contracts by 1/2 or
  better at any temperature, because the scaled kernel has its spectrum in [0, 1] (Feydy et al. 2019, arXiv:1810.08278);
  `anderson` saves about four steps in ten.
- Otherwise rows and columns are normalized in turn: see `alternating`.

Sums carry the round-off of the logits, so that no potential is known better than that: the tolerance is at least this floor.

Derivatives are implicit: the potentials solve an equation, its linearization is solved by GMRES.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float, Int

from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Logit, Pairs, Request, fitted, merged
from attnflow.transport.sinkhorn.alternating import alternate
from attnflow.transport.sinkhorn.anderson import History, empty, mixed, remember
from attnflow.transport.sinkhorn.clouds import Clouds, columns_of, integral, largest, largest_logit, rows_of, worst

# How many steps the symmetric update mixes.
_DEPTH = 5


class Scaling(eqx.Module):
    """The result of a Sinkhorn scaling.

    - `g`: the potential of the keys, `[n]`; `before`: the one that the last row normalization used (g itself, unless the
      iteration was cut after a column normalization).
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
    sums: Request | None = None,
    start: Float[Array, " n"] | None = None,
) -> Scaling:
    """The scaling of a mixed logit to `tolerance` in every column sum, or to round-off; `start` is a first guess of g."""
    symmetric, annealed = logit.psd and clouds.others is None, start is None
    start = jnp.zeros_like(clouds.keys.log_weights) if start is None else start
    how = (symmetric, annealed and not symmetric, sums)
    tolerance = jax.lax.stop_gradient(jnp.maximum(tolerance, floor(logit, clouds, sums)))
    g, error, iterations = _potential(how, logit, clouds, tolerance, max_iterations, jax.lax.stop_gradient(start))
    # An iteration that ended well has measured the g it returns, one that spent its budget has not.
    exact = jax.lax.stop_gradient((logit, clouds, g))
    error = jax.lax.cond(error <= tolerance, lambda: error, lambda: column_error(*exact, sums))
    return Scaling(g, g, error, iterations, error <= tolerance)


def floor(logit: Logit, clouds: Clouds, sums: Request | None) -> Float[Array, ""]:
    """What round-off leaves of the error of a column: some roundings of the largest logit.

    With f = g and logits from differences only moderate ones count: a token and itself give `2 g + log w <= 0`, hence no potential is
    beyond half the largest `|log w|`, and pairs of a large logit have no weight.
    """
    symmetric, apart = logit.psd and clouds.others is None, logit.differences is not None and (sums is None or sums.differences)
    size = 0.0 if symmetric and apart else largest_logit(logit, clouds)
    return 8 * jnp.finfo(logit.dtype).eps * (1 + size + largest(clouds.keys.log_weights, clouds.keys))


def planned(logit: Logit, clouds: Clouds, sums: Request | None = None) -> Request | None:
    """The engine for the sums of a scaling, made for the kernel that it begins with."""
    keys, queries = clouds.keys, clouds.queries
    plans = [fitted(Pairs(logit, queries.points, keys, queries.order), sums)]
    if not (logit.psd and clouds.others is None):
        plans.append(fitted(Pairs(logit.swapped(), keys.points, queries, keys.order), sums))
    return merged(plans)


def half_steps(logit: Logit, atoms: Atoms, g: Float[Array, " n"], count: int, sums: Request | None = None) -> Scaling:
    """The scaling of `e^{l(x, y) + g(y)}` cut after `count` half-steps, rows first: 1 is softmax, an even count ends with columns.

    This is what a trained Sinkformer computes (Sander et al. 2022, arXiv:2110.11773); it is differentiated as it stands.
    """
    before, clouds = g, Clouds(atoms)
    for _ in range(count // 2):
        before, g = g, _next(logit, clouds, g, sums)
    if count % 2:
        before = g
    f = -rows_of(logit, clouds, before, sums)
    columns, rows = g + columns_of(logit, clouds, f, sums), f + rows_of(logit, clouds, g, sums)
    error = jnp.maximum(worst(columns, atoms), worst(rows, atoms))
    return Scaling(g, before, error, jnp.asarray(count), None)


def column_error(logit: Logit, clouds: Clouds, g: Float[Array, " n"], sums: Request | None) -> Float[Array, ""]:
    """The largest violation of a column sum when the rows are exact."""
    return worst(g - _next(logit, clouds, g, sums), clouds.keys)


def _next(logit: Logit, clouds: Clouds, g: Array, sums: Request | None) -> Array:
    """Normalize the rows, then the columns: the next potential of the keys."""
    return -columns_of(logit, clouds, -rows_of(logit, clouds, g, sums), sums)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _potential(
    how: tuple, logit: Logit, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array, Array]:
    symmetric, annealed, sums = how
    if symmetric:
        return _average(sums, logit, clouds, tolerance, max_iterations, first)
    return alternate(annealed, sums, logit, clouds, tolerance, max_iterations, first)


@partial(jax.jit, static_argnums=0)
def _average(
    sums: Request | None, logit: Logit, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array, Array]:
    """The symmetric update, half way to the next potential, accelerated; when the error grows, from plain steps again."""

    def update(carry: tuple[Array, Array, Array, History]) -> tuple[Array, Array, Array, History]:
        g, before, count, history = carry
        target = -rows_of(logit, clouds, g, sums)
        # With rows made exact, f = target, the logarithm of a column sum is at most twice the largest difference.
        error = jnp.expm1(2 * largest(g - target, clouds.keys))
        history = remember(history, (g + target) / 2, (target - g) / 2, error > before)
        new = jnp.where(error > before, (g + target) / 2, mixed(history, clouds.keys))
        # The error belongs to the g it was measured at, so a finished g is kept, not replaced.
        return jnp.where(error <= tolerance, g, new), error, count + 1, history

    def going(carry: tuple[Array, Array, Array, History]) -> Array:
        return (carry[1] > tolerance) & (carry[2] < max_iterations)

    begin = (first, jnp.asarray(jnp.inf, logit.dtype), jnp.asarray(0), empty(_DEPTH, first))
    g, error, count, _ = jax.lax.while_loop(going, update, begin)
    return g, error, count


@_potential.defjvp
def _potential_jvp(how, primals, tangents):
    symmetric, _, sums = how
    logit, clouds, _, _, _ = primals
    d_logit, d_clouds, _, _, _ = tangents
    g, error, count = _potential(how, *primals)

    def residual(logit, clouds, g):
        if symmetric:
            return g + rows_of(logit, clouds, g, sums)
        return g - _next(logit, clouds, g, sums)

    others = None if clouds.others is None else _massive(clouds.others, d_clouds.others)
    d_clouds = Clouds(_massive(clouds.keys, d_clouds.keys), others)
    _, d_residual = jax.jvp(lambda logit, clouds: residual(logit, clouds, g), (logit, clouds), (d_logit, d_clouds))
    _, linear = jax.linearize(lambda g: residual(logit, clouds, g), g)
    matvec = linear if symmetric else lambda u: linear(u) + integral(u, clouds.keys)
    operator = lx.FunctionLinearOperator(matvec, jax.eval_shape(lambda: g))
    accuracy = 100 * float(jnp.finfo(g.dtype).eps)
    solver = lx.GMRES(rtol=accuracy, atol=accuracy, restart=min(40, len(g)))
    dg = lx.linear_solve(operator, -d_residual, solver).value
    return (g, error, count), (dg, jnp.zeros_like(error), jnp.zeros(count.shape, jax.dtypes.float0))


def _massive(atoms: Atoms, tangent: Atoms) -> Atoms:
    """A token without mass has log-weight -inf: its derivative carries nothing."""
    return tangent._replace(log_weights=jnp.where(jnp.isfinite(atoms.log_weights), tangent.log_weights, 0))
