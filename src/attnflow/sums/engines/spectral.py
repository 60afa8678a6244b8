"""Sums in O(n log n): the kernel as a Fourier series, its sums by non-uniform fast Fourier transforms (FINUFFT, arXiv:1808.06736).

There are two series. On R^1, R^2, R^3, and therefore on S^2, with rows q, k balanced by a matrix to be of one size,

    e^{<q,k>} = e^{|q|^2/2} e^{|k|^2/2} e^{-|q-k|^2/2},

and the Gaussian is a Fourier series on a box with room for its tail. On the circle `e^{<q,k>} = e^{r cos(a)}`, r = |q||k|, has a series of
its own (`circle.py`). A sum is then one transform from the keys and one to the queries; the mean of the keys is the gradient of the same
series.

The error is absolute, so that the relative error of a query grows as its sum falls below the total. The few queries with the smallest sums
are summed exactly if the plan says so. A cloud that has outgrown its plan gives NaN, and so does a query whose sum is below the error.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow.sums.engines.base import Engine, Kernel, LogSumsAndMeans
from attnflow.sums.engines.circle import DEGREE, angles, coefficients, powers, rings
from attnflow.sums.engines.tiled import Streamed
from attnflow.sums.mask import Sight
from attnflow.sums.rows import Rows

# Rows of a certificate: this many at random, and this many of those with the smallest sums.
RANDOM_ROWS, LEAST_ROWS = 96, 32


class Transform(Engine):
    """A spectral engine with its plan; `Spectral(tolerance).fit(...)` makes one.

    - `modes`: the number of Fourier modes in each direction; `circle`: whether the series is that of the circle.
    - `delta`: the accuracy of the series and of its transforms, relative to the sum of all weights.
    - `tilted`: whether the mean of the queries is moved into the weights of the keys; if not, the two clouds may lie apart.
    - `exact`: the number of queries, those of smallest sum, that are summed exactly.
    - `causal`: whether it is for tokens on a circle under a causal mask, and for nothing else.
    """

    tolerance: float = eqx.field(static=True)
    modes: tuple[int, ...] = eqx.field(static=True)
    delta: float = eqx.field(static=True)
    circle: bool = eqx.field(static=True)
    tilted: bool = eqx.field(static=True, default=False)
    exact: int = eqx.field(static=True, default=0)
    causal: bool = eqx.field(static=True, default=False)

    planned = True

    def softmax(self, rows: Rows, values: Float[Array, "n e"] | None = None, with_mean: bool = True) -> LogSumsAndMeans:
        sight = rows.sight
        if values is not None:
            raise ValueError("spectral sums average the tokens themselves, got other values; use sums=af.Streamed()")
        if self.causal != (sight is not None) or not (sight is None or sight.mask.causal):
            raise ValueError(f"a spectral plan made {'for' if self.causal else 'without'} a causal mask got another; make it with af.plan")
        q, k, b = rows.q, rows.k, rows.weighted().b
        if sight is not None:
            from attnflow.sums.engines.causal import causal_sums

            return causal_sums(self, q, k, b, sight, with_mean)[:2]
        try:
            log_sum, mean, _, _ = sums_of(self, q, k, b, with_mean)
        except AttributeError as error:
            # The batching rule of the transforms asks JAX for what it no longer has.
            if "batching" not in str(error):
                raise
            raise ValueError("a spectral sum cannot be vmapped; use jax.lax.map, or sums=af.Streamed()") from error
        return log_sum, mean

    def pointwise(self, kernel: Kernel, rows: Rows, values: Float[Array, "n e"]) -> Float[Array, "m e"]:
        raise ValueError(ONLY_SOFTMAX)

    def largest(self, rows: Rows) -> Float[Array, " m"]:
        raise ValueError(ONLY_SOFTMAX)

    def center(self, points: Float[Array, "n d"]) -> Float[Array, " d"]:
        return jnp.zeros_like(points[0]) if self.circle else super().center(points)

    def report(self, rows: Rows) -> dict[str, Any]:
        q, k, b = jax.lax.stop_gradient((rows.q, rows.k, rows.weighted().b))
        error, _, fill = certificate(self, q, k, b, rows.sight)
        # A sample may miss the token that is farthest off the circle; that distance is known.
        return {"sums": {"error": error + rings(q, k).error if self.circle else error, "fill": fill}}

    @property
    def description(self) -> str:
        series = "circle" if self.circle else "Gaussian"
        exact = f", {self.exact} rows exactly" if self.exact else ""
        return f"spectral ({series}, {' x '.join(map(str, self.modes))} modes, tolerance {self.tolerance:.0e}{exact})"


ONLY_SOFTMAX = (
    "spectral sums serve softmax, unnormalized and Sinkhorn laws and energies, got a law that is not smooth in the logit or not "
    "exponential; use sums=af.Streamed()"
)


# From the sums over the gradient of a series, in the frame of the query, to the means of the keys.
ToMean: TypeAlias = Callable[[Float[Array, "d m"]], Float[Array, "m d"]]


class Series(NamedTuple):
    """A kernel as a sum of Fourier series: `e^{l_ij} = e^{strength_j + offset_i} sum_w c_w(i, j) e^{i <w, t_i - s_j>}`, where c is a
    polynomial in a number of the query and one of the key.

    - `targets [m, d]`, `sources [n, d]`: angles, the columns of a transform.
    - `targets_by`, `sources_by`: the powers of the two numbers; 1 alone for a plain series.
    - `coefficients`: those of each pair of powers; for the sum itself, then for each component of the mean in the frame of the query.
    - `fill`: how much of the plan is used; above 1 it does not suffice.
    """

    targets: Float[Array, "m d"]
    sources: Float[Array, "n d"]
    strength: Float[Array, " n"]
    offset: Float[Array, " m"]
    targets_by: list[Float[Array, " m"]]
    sources_by: list[Float[Array, " n"]]
    coefficients: list[dict[tuple[int, int], Array]]
    fill: Float[Array, ""]


@partial(jax.jit, static_argnums=(0, 4))
def sums_of(plan: Transform, q: Array, k: Array, b: Array, with_mean: bool) -> tuple[Array, Array | None, Array, Array]:
    """Log-sums, means, the share `sum_j e^{l_ij} / sum_j max_i e^{l_ij}` of each query, and how much of the plan is used."""
    # A key without mass has bias -inf, whose derivative carries nothing.
    b = jnp.where(b == -jnp.inf, -jnp.inf, b)
    log_sum, mean, share, fill = (_on_circle if plan.circle else _in_space)(plan, with_mean, q, k, b)
    if plan.exact:
        rows = jax.lax.top_k(-jax.lax.stop_gradient(share), plan.exact)[1]
        log_rows, mean_rows = Streamed().decided().softmax(Rows(q[rows], k, b), None, with_mean)
        log_sum = log_sum.at[rows].set(log_rows)
        mean = mean.at[rows].set(mean_rows) if mean is not None and mean_rows is not None else None
    finite = jnp.isfinite(jnp.sum(q) + jnp.sum(k))
    bad = jnp.where((fill <= 1) & finite, 0, jnp.nan).astype(q.dtype)
    return log_sum + bad, None if mean is None else mean + bad, share, fill


def _in_space(plan: Transform, with_mean: bool, q: Array, k: Array, b: Array) -> tuple[Array, Array | None, Array, Array]:
    return _sums(plan, with_mean, *_gaussian(plan, q, k, b))


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _on_circle(plan: Transform, with_mean: bool, q: Array, k: Array, b: Array) -> tuple[Array, Array | None, Array, Array]:
    """The sums as if all lengths were equal. Derivatives are those of the sums with the actual lengths, exact to second order."""
    return _sums(plan, with_mean, *_circle(plan, 0, q, k, b))


@_on_circle.defjvp
def _on_circle_jvp(plan, with_mean, primals, tangents):
    _, change = jax.jvp(lambda *rows: _sums(plan, with_mean, *_circle(plan, DEGREE, *rows)), primals, tangents)
    return _on_circle(plan, with_mean, *primals), change


def _sums(plan: Transform, with_mean: bool, series: Series, to_mean: ToMean) -> tuple[Array, Array | None, Array, Array]:
    """The sums of a series, its shares and its fill."""
    count = len(series.coefficients) if with_mean else 1
    top = jax.lax.stop_gradient(jnp.max(series.strength))
    weights = jnp.exp(series.strength - top)
    values = _evaluate(plan, series, weights, count)
    share = values[0] / jnp.sum(weights)
    # A sum below the error, as that of a query which the plan was not made for, is NaN. A certified row is far from that.
    positive = share > least_share(plan)
    total = jnp.where(positive, values[0], 1)
    log_sum = jnp.where(positive, jnp.log(total) + top + series.offset, jnp.nan)
    mean = jnp.where(positive[:, None], to_mean(values[1:] / total[None]), jnp.nan) if with_mean else None
    return log_sum, mean, share, series.fill


def least_share(plan: Transform) -> float:
    """The share below which a sum is no larger than its error."""
    return 1e-3 * plan.delta / plan.tolerance


def certificate(plan: Transform, q: Array, k: Array, b: Array, sight: Sight | None = None) -> tuple[Array, Array, Array]:
    """The largest error on a sample of rows, whose exact sums are computed, the shares of all rows, and how much of the plan is used.

    The error of a row is that of its log-sum, or of its mean relative to the largest key, whichever is larger. The sample has rows at
    random and rows with the smallest shares, on which the error is largest.
    """
    if sight is None:
        log_sum, mean, share, fill = sums_of(plan, q, k, b, True)
    else:
        from attnflow.sums.engines.causal import causal_sums

        log_sum, mean, share, fill = causal_sums(plan, q, k, b, sight, True)
    assert mean is not None
    if plan.exact:
        least = jax.lax.top_k(-share, min(len(q), plan.exact + LEAST_ROWS))[1][min(len(q) - 1, plan.exact) :]
    else:
        least = lowest_rows(share, LEAST_ROWS)
    rows = jnp.concatenate([least, jax.random.randint(jax.random.key(0), (RANDOM_ROWS,), 0, len(q))])
    seen = None if sight is None else Sight(sight.mask, sight.s[rows], sight.tau)
    log_rows, mean_rows = Streamed().decided().softmax(Rows(q[rows], k, b, sight=seen))
    size = jnp.maximum(jnp.max(jnp.abs(k)), jnp.finfo(k.dtype).tiny)
    error = jnp.maximum(jnp.max(jnp.abs(log_sum[rows] - log_rows)), jnp.max(jnp.abs(mean[rows] - mean_rows)) / size)
    return jnp.where(jnp.isfinite(error), error, jnp.inf), share, fill


def lowest_rows(values: Float[Array, " n"], count: int) -> Array:
    """The row of the smallest value in each of `count` parts of the rows: the smallest of all is among them, and sorting takes longer."""
    count = min(count, len(values))
    parts = jnp.pad(values, (0, -len(values) % count), constant_values=jnp.inf).reshape(-1, count)
    return jnp.argmin(parts, axis=0) * count + jnp.arange(count)


def share_of(plan: Transform, q: Array, k: Array, b: Array, rows: Array) -> Array:
    """The shares of a few queries, from their exact sums."""
    if plan.circle:
        strength, offset = b, jnp.mean(jnp.linalg.norm(q, axis=1)) * jnp.mean(jnp.linalg.norm(k, axis=1))
    else:
        queries, keys, tilt, _ = balanced(q, k, plan.tilted)
        strength, offset = b + 0.5 * jnp.sum(keys**2, axis=1) + tilt, 0.5 * jnp.sum(queries[rows] ** 2, axis=1)
    log_sum, _ = Streamed().decided().softmax(Rows(q[rows], k, b), with_mean=False)
    return jnp.exp(log_sum - offset - jax.nn.logsumexp(strength))


def _evaluate(plan: Transform, series: Series, weights: Array, count: int) -> Float[Array, "count m"]:
    """The first `count` sums at the targets. Sums are real, so that two go through one complex transform."""
    from jax_finufft import nufft1, nufft2

    kind = jnp.result_type(weights.dtype, jnp.complex64)
    # The error of the transforms adds to that of the series.
    accuracy = plan.delta / 2
    # FINUFFT reads memory at the places of the points, so that no NaN may reach it. The result is NaN all the same.
    sources, targets = (jnp.where(jnp.isfinite(rows), rows, 0).T for rows in (series.sources, series.targets))
    strengths, degrees = jnp.stack([weights * by for by in series.sources_by]), len(series.targets_by)
    modes = nufft1(plan.modes, strengths.astype(kind), *sources, iflag=-1, eps=accuracy)
    fields = [
        jax.tree.reduce(jnp.add, [modes[j] * c.astype(kind) for (i, j), c in part.items() if i == power])
        for part in series.coefficients[:count]
        for power in range(degrees)
    ]
    if len(fields) % 2:
        fields.append(jnp.zeros_like(modes[0]))
    pairs = jnp.stack([fields[i] + 1j * fields[i + 1] for i in range(0, len(fields), 2)])
    found = nufft2(pairs, *targets, iflag=1, eps=accuracy)
    found = jnp.stack([jnp.real(found), jnp.imag(found)], axis=1).reshape(-1, found.shape[1])
    return jnp.stack([sum(found[degrees * c + i] * by for i, by in enumerate(series.targets_by)) for c in range(count)])


def _gaussian(plan: Transform, q: Array, k: Array, b: Array) -> tuple[Series, ToMean]:
    """The series of `e^{-|q-k|^2/2}` on a box: the joint extent of balanced queries and keys, and room for the kernel's tail."""
    queries, keys, tilt, to_query = balanced(q, k, plan.tilted)
    strength = b + 0.5 * jnp.sum(keys**2, axis=1) + tilt
    low, extent = jax.lax.stop_gradient(box(queries, keys))
    reach = reach_of(plan.delta)
    length = extent + reach
    fill = jnp.max(reach * length / (jnp.pi * (jnp.asarray(plan.modes, q.dtype) - 2)))
    turn = 2 * jnp.pi / length
    targets, sources = ((rows - low[None] - extent[None] / 2) * turn[None] for rows in (queries, keys))
    grid = jnp.meshgrid(*((jnp.arange(n) - n // 2) * turn[i] for i, n in enumerate(plan.modes)), indexing="ij")
    decay = jnp.exp(-0.5 * sum(w**2 for w in grid)) * jnp.prod(jnp.sqrt(2 * jnp.pi) / length)
    parts = [{(0, 0): c} for c in (decay, *(1j * w * decay for w in grid))]
    ones = [jnp.ones_like(targets[:, 0])], [jnp.ones_like(sources[:, 0])]
    series = Series(targets, sources, strength, 0.5 * jnp.sum(queries**2, axis=1), *ones, parts, fill)
    # grad_q sum e^{-|q-k|^2/2} = sum (k - q) e^{-|q-k|^2/2}; back from balanced coordinates to those of the keys.

    def to_mean(shift: Array) -> Array:
        return (queries + shift.T) @ to_query

    return series, to_mean


def _circle(plan: Transform, degree: int, q: Array, k: Array, b: Array) -> tuple[Series, ToMean]:
    """The series of `e^{r cos(t - s)}` for queries of one length and keys of one length, to this degree in the deviations from these."""
    ring, count = rings(q, k, degree), plan.modes[0]
    r = ring.length * ring.radius
    turn = angles(count)
    parts = [coefficients(r, count, degree, part) for part in (None, np.cos(turn), -np.sin(turn))]
    fill = ring.fill(plan.tolerance, plan.delta, jnp.abs(parts[0][0, 0][-1]))
    by = powers(ring.x, degree), powers(ring.y, degree)
    series = Series(ring.targets[:, None], ring.sources[:, None], b, jnp.full(len(q), r), *by, parts, fill)
    cos, sin = jnp.cos(ring.targets), jnp.sin(ring.targets)

    def to_mean(shift: Array) -> Array:
        return ring.radius * jnp.stack([cos * shift[0] - sin * shift[1], sin * shift[0] + cos * shift[1]], axis=1)

    return series, to_mean


def balanced(q: Array, k: Array, tilted: bool) -> tuple[Array, Array, Array, Array]:
    """Queries and keys of the same spread, `<q, k> = <q', k'> + tilt`, with `k' = M k` and `q' = M^-T q`, and M^-T.

    `M^T M` is the geometric mean of `C_k^-1` and `C_q`, the second moments; for q = A y, k = y and a symmetric positive A it is A. If
    tilted, the mean c of q is subtracted first, and the tilt is `<c, k>`.
    """
    middle = jax.lax.stop_gradient(jnp.mean(q, axis=0))
    M, to_query = jax.lax.stop_gradient(_balance(q - middle[None], k))
    if tilted:
        return (q - middle[None]) @ to_query.T, k @ M.T, k @ middle, to_query
    return q @ to_query.T, k @ M.T, jnp.zeros_like(k[:, 0]), to_query


def _balance(q: Array, k: Array) -> tuple[Array, Array]:
    tiny = jnp.finfo(q.dtype).eps ** 0.75
    C_q, C_k = _spread(q), _spread(k)
    d, size_k = len(C_k), jnp.trace(C_k) / len(C_k)
    size_k = jnp.where(size_k > 0, size_k, 1)
    # Flat directions and single points get a little spread, so that nothing is divided by zero and small logits stay small.
    size_q = jnp.maximum(jnp.trace(C_q) / d, tiny / size_k)
    C_q, C_k = C_q + tiny * size_q * jnp.eye(d, dtype=q.dtype), C_k + tiny * size_k * jnp.eye(d, dtype=q.dtype)
    # With C_k = L L^T and L^T C_q L = U D U^T this is M = D^{1/4} U^T L^{-1}, in principal axes.
    L = jnp.linalg.cholesky(C_k)
    values, U = jnp.linalg.eigh(L.T @ C_q @ L)
    root = jnp.maximum(values, jnp.finfo(q.dtype).tiny) ** 0.25
    M = root[:, None] * jax.lax.linalg.triangular_solve(L, U, left_side=True, lower=True, transpose_a=True).T
    return M, (L @ U / root[None]).T


def _spread(rows: Array) -> Array:
    return rows.T @ rows / len(rows)


def box(queries: Array, keys: Array) -> tuple[Array, Array]:
    """The low corner and the extent of the joint box."""
    low = jnp.minimum(jnp.min(queries, axis=0), jnp.min(keys, axis=0))
    return low, jnp.maximum(jnp.max(queries, axis=0), jnp.max(keys, axis=0)) - low


def reach_of(delta: float) -> float:
    """Where `e^{-x^2/2}` falls below delta, in space and in frequency alike."""
    return float(np.sqrt(2 * np.log(4 / delta)))
