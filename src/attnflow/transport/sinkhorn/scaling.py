"""Sinkhorn scaling of a kernel to given marginals, in the log domain.

Wanted are potentials f, g with `K(x, y) = e^{f(x) + l(x, y) + g(y)}` and `integral K(x, .) dnu = 1 = integral K(., y) dmu` for every
query x of mu and every key y of nu; mu = nu in self-attention. Only g is stored: at any point x, on the cloud or off it,
`f(x) = -log integral e^{l(x, y) + g(y)} dnu(y)`, so rows are exact and the error is the worst column. Terms of the logit in x or y alone
drop out, hence the clouds here are centered, and `l(x, y)` is `<y, A x>`, or `-1/2 <x-y, A (x-y)>` where A is symmetric positive
semidefinite: then the rows of the kernel are nearly equal and its potentials small.

- One cloud, A symmetric positive semidefinite: f = g, see `symmetric`.
- Otherwise rows and columns are normalized in turn: see `alternating`.

Sums carry the round-off of the logits, so that no potential is known better than that: the tolerance is at least that.

Derivatives are implicit: the potentials solve an equation, its linearization is solved by GMRES.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float, Int

from attnflow.numerics.arrays import one_program
from attnflow.sums import Atoms, Engine, Logit, Pairs, Request, fitted, merged
from attnflow.transport.sinkhorn.alternating import alternate
from attnflow.transport.sinkhorn.clouds import Clouds, integral, largest, largest_logit, log_column_sums, log_row_sums, violation
from attnflow.transport.sinkhorn.symmetric import symmetric_update


class Scaling(eqx.Module):
    """The result of a Sinkhorn scaling.

    - `g`: the potential of the keys, `[n]`; `before`: the one that the last row normalization used (g itself, unless the
      iteration was stopped after a column normalization).
    - `error`: the largest violation of a column sum, `max_j |integral K(x, y_j) dmu(x) - 1|`, or a bound on it.
    - `converged`: whether the error is below the tolerance, `None` for a truncated iteration, which has no tolerance.
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
    first = jnp.zeros_like(clouds.keys.log_weights) if start is None else start
    tolerance = jax.lax.stop_gradient(jnp.maximum(tolerance, _round_off(logit, clouds, sums)))
    g, error, iterations = _potential(start is None, sums, logit, clouds, tolerance, max_iterations, jax.lax.stop_gradient(first))
    # An iteration that ended well has measured the g it returns, one that spent its budget has not.
    fixed = jax.lax.stop_gradient((logit, clouds, g))
    error = jax.lax.cond(error <= tolerance, lambda: error, lambda: violation(fixed[2] - _next(*fixed, sums), clouds.keys))
    return Scaling(g, g, error, iterations, error <= tolerance)


def _round_off(logit: Logit, clouds: Clouds, sums: Request | None) -> Float[Array, ""]:
    """The error of a column that round-off leaves: some roundings of the largest logit.

    With f = g and logits from differences only moderate ones count: a token and itself give `2 g + log w <= 0`, hence no potential is
    beyond half the largest `|log w|`, and pairs of a large logit have no weight.
    """
    differences = logit.differences is not None and (sums is None or sums.differences)
    size = 0.0 if differences and _symmetric(logit, clouds) else largest_logit(logit, clouds)
    return 8 * jnp.finfo(logit.dtype).eps * (1 + size + largest(clouds.keys.log_weights, clouds.keys))


def fitted_engine(logit: Logit, clouds: Clouds, sums: Request | None = None) -> Engine:
    """The engine for the sums of a scaling, made for the kernel that it begins with."""
    keys, queries = clouds.keys, clouds.queries
    engines = [fitted(Pairs(logit, queries.points, keys, queries.order), sums)]
    if not _symmetric(logit, clouds):
        engines.append(fitted(Pairs(logit.swapped(), keys.points, queries, keys.order), sums))
    return merged(engines) or engines[0]


def truncated_scale(logit: Logit, atoms: Atoms, g: Float[Array, " n"], count: int, sums: Request | None = None) -> Scaling:
    """The scaling of `e^{l(x, y) + g(y)}` stopped after `count` half-steps, rows first: 1 is softmax, an even count ends with columns.

    This is what a trained Sinkformer computes (Sander et al. 2022, arXiv:2110.11773); it is differentiated as it stands.
    """
    before, clouds = g, Clouds(atoms)
    for _ in range(count // 2):
        before, g = g, _next(logit, clouds, g, sums)
    if count % 2:
        before = g
    f = -log_row_sums(logit, clouds, before, sums)
    columns, rows = g + log_column_sums(logit, clouds, f, sums), f + log_row_sums(logit, clouds, g, sums)
    error = jnp.maximum(violation(columns, atoms), violation(rows, atoms))
    return Scaling(g, before, error, jnp.asarray(count), None)


def _next(logit: Logit, clouds: Clouds, g: Array, sums: Request | None) -> Array:
    """Normalize the rows, then the columns: the next potential of the keys."""
    return -log_column_sums(logit, clouds, -log_row_sums(logit, clouds, g, sums), sums)


def _symmetric(logit: Logit, clouds: Clouds) -> bool:
    """Whether f = g."""
    return logit.psd and clouds.others is None


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _potential(
    annealed: bool, sums: Request | None, logit: Logit, clouds: Clouds, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array, Array]:
    if _symmetric(logit, clouds):
        return symmetric_update(sums, logit, clouds, tolerance, max_iterations, first)
    return alternate(annealed, sums, logit, clouds, tolerance, max_iterations, first)


@_potential.defjvp
def _potential_jvp(annealed, sums, primals, tangents):
    (logit, clouds, *_), (d_logit, d_clouds, *_) = primals, tangents
    g, error, count = _potential(annealed, sums, *primals)
    symmetric = _symmetric(logit, clouds)

    def residual(logit, clouds, g):
        if symmetric:
            return g + log_row_sums(logit, clouds, g, sums)
        return g - _next(logit, clouds, g, sums)

    others = None if clouds.others is None else _with_mass(clouds.others, d_clouds.others)
    d_clouds = Clouds(_with_mass(clouds.keys, d_clouds.keys), others)
    _, d_residual = jax.jvp(lambda logit, clouds: residual(logit, clouds, g), (logit, clouds), (d_logit, d_clouds))
    _, linear = jax.linearize(lambda g: residual(logit, clouds, g), g)
    matvec = linear if symmetric else lambda u: linear(u) + integral(u, clouds.keys)
    operator = lx.FunctionLinearOperator(matvec, jax.eval_shape(lambda: g))
    accuracy = 100 * float(jnp.finfo(g.dtype).eps)
    solver = lx.GMRES(rtol=accuracy, atol=accuracy, restart=min(40, len(g)))
    dg = lx.linear_solve(operator, -d_residual, solver).value
    return (g, error, count), (dg, jnp.zeros_like(error), jnp.zeros(count.shape, jax.dtypes.float0))


def _with_mass(atoms: Atoms, tangent: Atoms) -> Atoms:
    """A token without mass has log-weight -inf: its derivative carries nothing."""
    return tangent._replace(log_weights=jnp.where(jnp.isfinite(atoms.log_weights), tangent.log_weights, 0))
