"""Sinkhorn scaling of a kernel to a doubly stochastic one, in the log domain.

Wanted are potentials f, g with `K(x, y) = e^{f(x) + <y, A x> + g(y)}` and `integral K(x, .) dmu = 1 = integral K(., y) dmu` for every
token. Only g is stored: at any point x, on the cloud or off it, `f(x) = -log integral e^{<y, A x> + g(y)} dmu(y)`, so rows are exact and
the error is the worst column. Terms of the logit in x or y alone drop out, hence the clouds here are centred and P, R are not seen.

- A symmetric positive semidefinite: f = g, and `g <- (g - log integral e^{<y, A .> + g(y)} dmu(y)) / 2` contracts by 1/2 or better at any
  temperature, because the scaled kernel has its spectrum in [0, 1] (Feydy et al. 2019, arXiv:1810.08278).
- Otherwise f and g are updated in turn (Sinkhorn and Knopp 1967; Cuturi 2013, arXiv:1306.0895).

Derivatives are implicit: the potentials solve an equation, its linearisation is solved by GMRES.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import lineax as lx
from jaxtyping import Array, Bool, Float, Int

from attnflow.sums import Atoms, Engine, Logit, fitted, log_integral, merged


class Scaling(eqx.Module):
    """The result of a Sinkhorn scaling.

    - `g`: the potential of the keys, `[n]`; `before`: the one that the last row normalisation used (g itself, unless the
      iteration was cut after a column normalisation).
    - `error`: the largest violation of a column sum, `max_j |integral K(x, y_j) dmu(x) - 1|`.
    - `converged`: whether the error is below the tolerance, `None` for a cut iteration, which has none.
    - `iterations`: how many updates were made.
    """

    g: Float[Array, " n"]
    before: Float[Array, " n"]
    error: Float[Array, ""]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""] | None


def scale(
    logit: Logit,
    atoms: Atoms,
    tolerance: Array,
    max_iterations: Array,
    sums: Engine | None = None,
    start: Float[Array, " n"] | None = None,
) -> Scaling:
    """The doubly stochastic scaling of `e^{<y, A x>}` on a centred cloud, to `tolerance` in every column sum; `start` is a first guess."""
    start = first_potential(logit.psd, logit.A, atoms) if start is None else start
    g, iterations = _potential(logit.psd, sums, logit.A, atoms, tolerance, max_iterations, jax.lax.stop_gradient(start))
    error = column_error(logit.A, atoms, g, sums)
    return Scaling(g, g, error, iterations, error <= tolerance)


def planned(logit: Logit, atoms: Atoms, sums: Engine | None = None) -> Engine | None:
    """The engine for the sums of a scaling, made for the kernel that it begins with."""
    g = first_potential(logit.psd, logit.A, atoms)
    both = [logit.A] if logit.psd else [logit.A, logit.A.T]
    return merged([fitted(Logit(A), atoms.points, Atoms(atoms.points, atoms.log_weights + g), sums) for A in both])


def first_potential(symmetric: bool, A: Float[Array, "d d"], atoms: Atoms) -> Float[Array, " n"]:
    """Where the iteration begins: for a symmetric A at the Gaussian kernel `e^{-<x-y, A (x-y)> / 2}`, whose rows are nearly equal."""
    return -0.5 * jnp.sum((atoms.points @ A) * atoms.points, axis=1) if symmetric else jnp.zeros_like(atoms.log_weights)


def half_steps(logit: Logit, atoms: Atoms, g: Float[Array, " n"], count: int, sums: Engine | None = None) -> Scaling:
    """The scaling of `e^{<y, A x> + g(y)}` cut after `count` half-steps, rows first: 1 is softmax, an even count ends with columns.

    This is what a trained Sinkformer computes (Sander et al. 2022, arXiv:2110.11773); it is differentiated as it stands.
    """
    before = g
    for _ in range(count // 2):
        before, g = g, _next(logit.A, atoms, g, sums)
    if count % 2:
        before = g
    f = -_rows(logit.A, atoms, before, sums)
    columns, rows = g + _rows(logit.A.T, atoms, f, sums), f + _rows(logit.A, atoms, g, sums)
    error = jnp.maximum(_worst(columns, atoms), _worst(rows, atoms))
    return Scaling(g, before, error, jnp.asarray(count), None)


def column_error(A: Float[Array, "d d"], atoms: Atoms, g: Float[Array, " n"], sums: Engine | None) -> Float[Array, ""]:
    """The largest violation of a column sum when the rows are exact."""
    return _worst(g - _next(A, atoms, g, sums), atoms)


def _rows(A: Array, atoms: Atoms, g: Array, sums: Engine | None) -> Array:
    """`log integral e^{<y, A x> + g(y)} dmu(y)` at every token x."""
    return log_integral(Logit(A), atoms.points, Atoms(atoms.points, atoms.log_weights + g), sums)


def _next(A: Array, atoms: Atoms, g: Array, sums: Engine | None) -> Array:
    """Normalise the rows, then the columns: the next potential of the keys."""
    return -_rows(A.T, atoms, -_rows(A, atoms, g, sums), sums)


def _worst(log_sums: Array, atoms: Atoms) -> Array:
    """`max |e^{log_sums} - 1|` over the tokens that have mass."""
    return jnp.max(jnp.where(jnp.isfinite(atoms.log_weights), jnp.abs(jnp.expm1(log_sums)), 0))


def _gauge(u: Array, atoms: Atoms) -> Array:
    """The mean of u: the potentials of an alternating scaling are fixed up to a constant."""
    return jnp.vdot(jnp.exp(atoms.log_weights), u)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _potential(
    symmetric: bool, sums: Engine | None, A: Array, atoms: Atoms, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array]:
    return _iterate(symmetric, sums, A, atoms, tolerance, max_iterations, first)


@partial(jax.jit, static_argnums=(0, 1))
def _iterate(
    symmetric: bool, sums: Engine | None, A: Array, atoms: Atoms, tolerance: Array, max_iterations: Array, first: Array
) -> tuple[Array, Array]:
    def update(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        g, _, count = carry
        if symmetric:
            target = -_rows(A, atoms, g, sums)
            # The violation seen here is that of the plan before its rows are made exact, which at most doubles it.
            error = 3 * _worst(g - target, atoms)
            new = (g + target) / 2
        else:
            target = _next(A, atoms, g, sums)
            error, new = _worst(g - target, atoms), target - _gauge(target, atoms)
        # The error belongs to the g it was measured at, so a finished g is kept, not replaced.
        return jnp.where(error <= tolerance, g, new), error, count + 1

    def going(carry: tuple[Array, Array, Array]) -> Array:
        _, error, count = carry
        return (error > tolerance) & (count < max_iterations)

    start = (first, jnp.asarray(jnp.inf, A.dtype), jnp.asarray(0))
    g, _, count = jax.lax.while_loop(going, update, start)
    return g, count


@_potential.defjvp
def _potential_jvp(symmetric, sums, primals, tangents):
    A, atoms, _, _, _ = primals
    dA, d_atoms, _, _, _ = tangents
    g, count = _potential(symmetric, sums, *primals)

    def residual(A, atoms, g):
        if symmetric:
            return g + _rows(A, atoms, g, sums)
        return g - _next(A, atoms, g, sums)

    # A token without mass has log-weight -inf: its derivative carries nothing.
    d_atoms = Atoms(d_atoms.points, jnp.where(jnp.isfinite(atoms.log_weights), d_atoms.log_weights, 0))
    _, d_residual = jax.jvp(lambda A, atoms: residual(A, atoms, g), (A, atoms), (dA, d_atoms))
    _, linear = jax.linearize(lambda g: residual(A, atoms, g), g)
    matvec = linear if symmetric else lambda u: linear(u) + _gauge(u, atoms)
    operator = lx.FunctionLinearOperator(matvec, jax.eval_shape(lambda: g))
    accuracy = 100 * float(jnp.finfo(g.dtype).eps)
    solver = lx.GMRES(rtol=accuracy, atol=accuracy, restart=min(40, len(g)))
    dg = lx.linear_solve(operator, -d_residual, solver).value
    return (g, count), (dg, jnp.zeros(count.shape, jax.dtypes.float0))
