"""An attention law: logit x normalization x value."""

import abc
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.attention.normalizations.base import Normalization
from attnflow.attention.normalizations.softmax import Softmax
from attnflow.measures import Affine, FlowingMeasure, Velocity
from attnflow.measures.field import Field, check_at
from attnflow.measures.velocity import Of, query_order
from attnflow.numerics.arrays import array, cast, floats, known, on_host, rows, square
from attnflow.numerics.linalg import is_psd
from attnflow.sums import Gap, Logit, Mask, Quadratic, Request

if TYPE_CHECKING:
    # A matrix, or its factors (O, W) or (O, W, bias).
    Value: TypeAlias = ArrayLike | tuple[ArrayLike, ArrayLike] | tuple[ArrayLike, ArrayLike, ArrayLike]
else:
    Value = Any


class Law(Field):
    """A field made of attention, which has a matrix to look at."""

    @abc.abstractmethod
    def weights(self, x: ArrayLike, mu: FlowingMeasure, order: ArrayLike | None = None) -> Float[Array, "... m n"]:
        """The attention matrix: row $i$ says how the query $x_i$ weighs the tokens of `mu`.

        Under a mask or with positions `order` is that of the queries; without it the queries are the tokens of `mu`, row by row.
        """


class Attention(Law):
    r"""$\Gamma_\mu(x) = V \int k(x, y)\, y \,d\mu(y)$, where the normalization makes the kernel $k$ from the logit.

    **Arguments:**

    - `logit`: from `dot_product`, `squared_distance` or `rotary`.
    - `value`: $V$, `[d, d]`; or the factors `(O, W)` of a trained head, `[d, e]` and `[e, d]`, or `(O, W, b)` with a bias:
      $O \int k(x, y) (W y + b) \,d\mu(y)$, and nothing of size $d \times d$ is formed.
    - `normalize`: `Softmax()`, `Unnormalized()`, `Sinkhorn()`, `Hardmax()`, `Sigmoid()`, `Sparsemax()` or `Linear()`.
    - `mask`: `Causal()`, `Window(width)`, `ALiBi(slope)` or `Explicit(matrix)`; integrals are then over the keys that are seen. The
      velocity of a masked law takes the order of its queries, `velocity(x, order)`.
    """

    logit: Logit
    out: Float[Array, "d e"]
    inner: Affine | None
    normalize: Normalization
    mask: Mask | None

    def __init__(self, logit: Logit, value: Value, normalize: Normalization | None = None, *, mask: Mask | None = None) -> None:
        self.logit = check.instance("logit", logit, Logit, "a Logit", "give af.Attention(af.dot_product(Q, K), V)")
        self.out, self.inner = _factors(value) if isinstance(value, tuple) else (square("value", value), None)
        due = "a normalization such as af.Softmax()"
        self.normalize = Softmax() if normalize is None else check.instance("normalize", normalize, Normalization, due)
        self.mask = None if mask is None else check.instance("mask", mask, Mask, "a mask such as af.Causal()")
        if mask is not None:
            self.normalize.check_maskable()
        rows = self.out if self.inner is None else self.inner.matrix
        if rows.shape[1] != logit.dim:
            raise ValueError(f"value must be [{logit.dim}, {logit.dim}] like the tokens of the logit, got {list(rows.shape)}")

    @property
    def value(self) -> Array:
        """$V$, formed where it is given by factors."""
        return self.out if self.inner is None else self.out @ self.inner.matrix

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        """The velocity of `mu`."""
        check_at(mu, t, sums)
        law = self._fitted(mu)
        mu.check_law(law)
        # The average of W y + b is W of the average of y, where the engine averages the tokens anyway and no bias counts how much is seen.
        after = law.inner is not None and law.logit.keys_are_tokens and not _has_bias(law.inner)
        average = law.normalize.over(mu, law.logit, None if after else law.inner, law.mask, sums)
        average = mu.around(average)
        if law.mask is not None or law.logit.positional:
            average = InOrder(average, law.mask, law.logit.positional, mu.order_axis)
        if np.isfinite(mu.sharpest):
            average = OnCells(average, law.logit.form.A)
        if after:
            assert law.inner is not None
            average = average.then(law.inner.matrix)
        return average.then(law.out).checked(mu.dim)

    def weights(self, x: ArrayLike, mu: FlowingMeasure, order: ArrayLike | None = None) -> Float[Array, "m n"]:
        """The attention matrix: row $i$ says how the query $x_i$ weighs the tokens of `mu`."""
        check.measure("mu", mu, FlowingMeasure, "Particles or a Grid")
        law, queries = self._fitted(mu), rows("x", x, mu.dim).astype(mu.dtype)
        mu.check_law(law)
        atoms, places = mu.atoms(law.mask, law.logit.positional), query_order(order, queries)
        if places is None and atoms.order is not None:
            if len(queries) != len(atoms.points):
                raise ValueError(
                    f"a masked law needs the order of the queries, got {len(queries)} queries without; call weights(x, mu, order)"
                )
            places = atoms.order
        if places is not None and mu.order_axis is not None:
            mu.order_axis.check(places)
        return law.normalize.weights(law.logit, queries, atoms, None if places is None else array(places, queries.dtype))

    def _fitted(self, mu: FlowingMeasure) -> "Attention":
        """This law in the precision of the measure, refused if the dimensions differ."""
        if mu.dim != self.logit.dim:
            raise ValueError(f"the law acts on R^{self.logit.dim}, got a measure on R^{mu.dim}")
        return cast(self, mu.dtype)


class InOrder(Of):
    """A velocity that depends on the order of its queries: they come in order, so that a streamed sum can skip what no query sees."""

    velocity: Velocity
    mask: Mask | None
    positional: bool = eqx.field(static=True)
    axis: Any = eqx.field(static=True)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        if self.mask is not None and self.mask.by_rows and not self.positional:
            return self.velocity(x)
        if order is None:
            raise ValueError("a masked law needs the order of the queries, got none; call velocity(x, order)")
        if self.axis is not None:
            self.axis.check(order)
        order = array(order, x.dtype)
        if self.mask is None or self.mask.by_rows:
            return self.velocity(x, order)
        ranks = jnp.argsort(order)
        found = self.velocity(x[ranks], order[ranks])
        return jnp.zeros_like(found).at[ranks].set(found)


class OnCells(Of):
    """A velocity on cells, which must be finer than the kernel: it reports the `sharpness` of the kernel, from the matrix of the logit."""

    velocity: Velocity
    form: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m e"]:
        return self.velocity(x, order)

    @property
    def report(self) -> dict[str, Any]:
        """One over the square of the width of the kernel: the largest singular value of the matrix."""
        form = self.form
        if known(form):
            sharpness = jnp.asarray(np.linalg.norm(np.asarray(form, dtype=np.float64), 2), form.dtype)
        else:
            sharpness = jnp.sqrt(jnp.linalg.eigvalsh(form.T @ form)[-1])
        return self.velocity.report | {"sharpness": sharpness}


def _factors(value: tuple[ArrayLike, ...]) -> tuple[Array, Affine]:
    """A value given by its factors, `O [d, e]`, `W [e, d]` and a bias `[e]` that may be left out."""
    if len(value) not in (2, 3):
        raise ValueError(f"value must be a matrix [d, d] or its factors (O, W) or (O, W, bias), got {len(value)} of them")
    out, inner = floats("value[0]", value[0], "d e"), floats("value[1]", value[1], "e d")
    bias = array(np.zeros(len(inner), inner.dtype)) if len(value) == 2 else array(floats("value[2]", value[2], "e"), inner.dtype)
    if out.shape[1] != len(inner) or len(bias) != len(inner):
        raise ValueError(
            "the factors O [d, e], W [e, d] and bias [e] of value must agree, "
            f"got {list(out.shape)}, {list(inner.shape)} and {list(bias.shape)}"
        )
    return out, Affine(inner, bias)


def _has_bias(inner: Affine) -> bool:
    return not known(inner.offset) or bool(np.asarray(inner.offset).any())


def simple_attention(beta: Scalar, dim: int, normalize: Normalization | None = None, *, mask: Mask | None = None) -> Attention:
    r"""$V = I$, $A = \beta I$: SA of arXiv:2312.10794 with softmax, USA with `Unnormalized()`."""
    number = floats("beta", beta, "")
    check.count("dim", dim, cure="the dimension of the tokens, simple_attention(beta, dim)")
    eye = array(np.eye(dim, dtype=number.dtype))
    A = on_host(lambda beta, eye: beta * eye, number, eye)
    return Attention(Quadratic(A, psd=is_psd(A), gap=Gap(number)), eye, normalize, mask=mask)
