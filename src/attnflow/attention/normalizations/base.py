"""What a normalization is."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float, PyTree

from attnflow.measures import Affine, FlowingMeasure, Gaussian, Velocity
from attnflow.sums import Atoms, Logit, Mask, Pairs, Quadratic, Request, round_off
from attnflow.sums.engines.choose import choose


class Normalization(eqx.Module):
    """Turns a logit into a kernel $k(x, y)$ against a measure.

    A subclass gives `average`, over keys, and `weights`, the matrix to look at; `gaussian`, if a Gaussian stays Gaussian.
    """

    # Whether the kernel is e^logit times a function of the query; whether columns are normalized too, so that the queries are the keys.
    exponential: ClassVar[bool] = False
    doubly: ClassVar[bool] = False

    @abc.abstractmethod
    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        r"""$x \mapsto \int k(x, y)\, v(y) \,d\mu(y)$ for weighted keys and their values."""

    @abc.abstractmethod
    def weights(self, logit: Logit, x: Float[Array, "m d"], atoms: Atoms, order: Float[Array, " m"] | None = None) -> Float[Array, "m n"]:
        r"""The attention matrix $k(x_i, y_j)\, w_j$, dense."""

    def gaussian(self, logit: Quadratic, mu: Gaussian) -> Affine:
        r"""$x \mapsto \int k(x, y)\, y \,d\mu(y)$ for a Gaussian, where it is affine."""
        raise ValueError(
            f"{type(self).__name__} attention does not keep a Gaussian Gaussian; "
            "draw tokens with mu.sample(n, key=key), or use Softmax, Sinkhorn or Linear"
        )

    def over(self, mu: FlowingMeasure, logit: Logit, inner: Affine | None, mask: Mask | None, sums: Request | None) -> Velocity:
        r"""$x \mapsto \int k(x, y)\, v(y) \,d\mu(y)$ for a measure, `inner` the map $v$ of tokens to values, `None` for the identity."""
        return mu.attend(self, logit, inner, mask, sums)

    def check_maskable(self) -> None:
        """Raise if no kernel of this kind lives on a mask."""


class OverPairs(Velocity):
    """An average over keys by sums that look at all pairs."""

    logit: eqx.AbstractVar[Logit]
    atoms: eqx.AbstractVar[Atoms]
    sums: eqx.AbstractVar[Request | None]

    @property
    def report(self) -> dict[str, PyTree]:
        atoms = self.atoms
        return round_off(Pairs(self.logit, atoms.points, atoms, atoms.order), self.sums)

    @property
    def engines(self) -> tuple[Any, ...]:
        n = len(self.atoms.points)
        return (choose(n, n, self.sums),)
