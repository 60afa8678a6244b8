"""An attention law: logit x normalisation x value."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow._arrays import array, cast, floats, on_host, rows, square
from attnflow._linalg import is_psd
from attnflow._rows import times
from attnflow.attention.field import Field, check_at, query_order
from attnflow.attention.normalisations.base import Average, Normalisation
from attnflow.attention.normalisations.softmax import Softmax
from attnflow.attention.on_grid import check_grid, lattice_of, mask_on, on_axes, order_of, sharpness
from attnflow.measures import Affine, FlowingMeasure, Gaussian, Grid, Order, Particles
from attnflow.sums import ALiBi, Atoms, Causal, Engine, Explicit, Gap, Logit, Mask, Window, warn_of_round_off


class Law(Field):
    """A field made of attention, which has a matrix to look at."""

    @abc.abstractmethod
    def weights(self, x: Float[Array, "m d"], mu: Particles, order: Float[Array, " m"] | None = None) -> Float[Array, "... m n"]:
        """The attention matrix: row $i$ says how the query $x_i$ weighs the tokens of `mu`.

        Under a mask `order` is that of the queries; without it the queries are the tokens of `mu`, row by row.
        """


class Attention(Law):
    r"""$\Gamma_\mu(x) = V \int k(x, y)\, y \,d\mu(y)$, where the normalisation makes the kernel $k$ from the logit.

    **Arguments:**

    - `logit`: from `dot_product` or `squared_distance`.
    - `value`: $V$, `[d, d]`.
    - `normalize`: `Softmax()`, `Unnormalized()`, `Sinkhorn()`, `Hardmax()`, `Sigmoid()` or `Linear()`.
    - `mask`: `Causal()`, `Window(width)`, `ALiBi(slope)` or `Explicit(matrix)`; integrals are then over the keys that are seen. The
      velocity of a masked law takes the order of its queries, `velocity(x, order)`.
    """

    logit: Logit
    value: Float[Array, "d d"]
    normalize: Normalisation
    mask: Mask | None

    def __init__(self, logit: Logit, value: Any, normalize: Normalisation | None = None, mask: Mask | None = None):
        self.logit = check.instance("logit", logit, Logit, "a Logit", "give af.Attention(af.dot_product(Q, K), V)")
        self.value = square("value", value)
        due = "a normalization such as af.Softmax()"
        self.normalize = Softmax() if normalize is None else check.instance("normalize", normalize, Normalisation, due)
        self.mask = None if mask is None else check.instance("mask", mask, Mask, "a mask such as af.Causal()")
        if mask is not None:
            self.normalize.check_maskable()
        if len(self.value) != logit.dim:
            raise ValueError(f"value must be [{logit.dim}, {logit.dim}] like the tokens of the logit, got {list(self.value.shape)}")

    def at(self, mu: FlowingMeasure, t: Any = 0.0, sums: Engine | None = None) -> "AttentionVelocity | Affine":
        check_at(mu, t, sums)
        law = self._fitted(mu)
        if isinstance(mu, Gaussian):
            if self.mask is not None:
                raise ValueError("a mask needs tokens in order, got a Gaussian; draw tokens with mu.sample(n, key=key)")
            return law.normalize.gaussian(law.logit, mu).after(law.value)
        atoms = law._atoms(mu)
        warn_of_round_off(law.logit, atoms, sums)
        if isinstance(self.mask, Causal | Window | ALiBi):
            # In order, so that a streamed sum can skip the tiles that nobody sees.
            ranks = jnp.argsort(mu.sequence)  # pyright: ignore[reportAttributeAccessIssue]
            atoms = jax.tree.map(lambda leaf: leaf[ranks], atoms._replace(mask=None))._replace(mask=atoms.mask)
        form = law.logit.A if isinstance(mu, Grid) else None
        return AttentionVelocity(on_axes(law.normalize.average(law.logit, atoms, sums), mu), law.value, law.mask, form, order_of(mu))

    def weights(self, x: Float[Array, "m d"], mu: Particles, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        check.measure("mu", mu, (Particles, Grid), "Particles or a Grid")
        law, x = self._fitted(mu), rows("x", x, mu.dim).astype(mu.dtype)
        atoms, order = law._atoms(mu), query_order(order, x)
        if self.mask is None:
            return law.normalize.weights(law.logit, x, atoms)
        if order is None and len(x) != len(mu.points):
            raise ValueError(f"a masked law needs the order of the queries, got {len(x)} queries without; call weights(x, mu, order)")
        asked = queries_order(self.mask, x, atoms.order if order is None else order, order_of(mu))
        return law.normalize.weights(law.logit, x, atoms, asked)

    def _atoms(self, mu: FlowingMeasure) -> Atoms:
        """The tokens or cells as keys; under a mask with their order."""
        if not isinstance(mu, Particles | Grid):
            raise TypeError(f"attention acts on Particles, a Gaussian and a Grid, got {type(mu).__name__}")
        if isinstance(mu, Grid):
            check_grid(self, mu)
        if self.mask is None:
            return Atoms(*mu.keys, engine=lattice_of(mu))
        if isinstance(self.mask, Explicit):
            if len(self.mask.matrix) != len(mu.points):
                raise ValueError(f"the mask is for {len(self.mask.matrix)} tokens, got {len(mu.points)}")
            return Atoms(mu.points, mu.log_weights, self.mask.rows, self.mask)
        return Atoms(mu.points, mu.log_weights, mu.sequence, mask_on(self.mask, mu), lattice_of(mu))

    def _fitted(self, mu: FlowingMeasure) -> "Attention":
        """This law in the precision of the measure, refused if the dimensions differ."""
        if mu.dim != self.logit.dim:
            raise ValueError(f"the law acts on R^{self.logit.dim}, got a measure on R^{mu.dim}")
        return cast(self, mu.dtype)


class AttentionVelocity(eqx.Module):
    """`x -> V integral k(x, y) y dmu(y)` for one measure; `report` has the convergence of what was iterated, and on a grid, whose cells
    must be finer than the kernel, the `sharpness` of the kernel, from the matrix `form` of the logit."""

    average: Average
    value: Float[Array, "d d"]
    mask: Mask | None
    form: Float[Array, "d d"] | None = None
    axis: Order | None = eqx.field(static=True, default=None)

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return times(self._seen(x, order), self.value)

    def relative(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        """`V (integral k(x, y) y dmu(y) - x)`."""
        return times(self._seen(x, order) - x, self.value)

    def _seen(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None) -> Float[Array, "m d"]:
        """The average at each query over what it sees."""
        x, order = rows("x", x, len(self.value)), query_order(order, x)
        if self.mask is None:
            return self.average(x)
        order = queries_order(self.mask, x, order, self.axis)
        if isinstance(self.mask, Explicit):
            return self.average(x, order)
        ranks = jnp.argsort(order)
        return jnp.zeros_like(x).at[ranks].set(self.average(x[ranks], order[ranks]))

    @property
    def needs_order(self) -> bool:
        """Whether the velocity at a query depends on the query's order."""
        return self.mask is not None

    @property
    def report(self) -> dict[str, PyTree]:
        return self.average.report | ({} if self.form is None else {"sharpness": sharpness(self.form)})


def queries_order(mask: Mask, x: Float[Array, "m d"], order: Float[Array, " m"] | None, axis: Order | None) -> Float[Array, " m"]:
    """The order of the queries: their rows under a mask matrix, else the given one, which must lie where the keys' order does."""
    if isinstance(mask, Explicit):
        if len(x) != len(mask.matrix):
            raise ValueError(f"a mask matrix is for its {len(mask.matrix)} tokens themselves, got {len(x)} queries")
        return mask.rows
    if order is None:
        raise ValueError("a masked law needs the order of the queries, got none; call velocity(x, order)")
    if axis is not None:
        axis.check(order)
    return array(order, x.dtype)


def simple_attention(beta: Any, dim: int, normalize: Normalisation | None = None, mask: Mask | None = None) -> Attention:
    r"""$V = I$, $A = \beta I$: SA of arXiv:2312.10794 with softmax, USA with `Unnormalized()`."""
    number = floats("beta", beta, "")
    check.count("dim", dim, cure="the dimension of the tokens, simple_attention(beta, dim)")
    eye = array(np.eye(dim, dtype=number.dtype))
    A = on_host(lambda beta, eye: beta * eye, number, eye)
    return Attention(Logit(A, psd=is_psd(A), gap=Gap(number)), eye, normalize, mask)
