"""What a normalization is."""

import abc
from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from attnflow.measures import Affine, FlowingMeasure, Gaussian, Velocity
from attnflow.sums import Atoms, Engine, Logit, Mask, Pairs, Quadratic, Request, round_off
from attnflow.sums.engines.choose import choose


class Normalization(eqx.Module):
    r"""What turns a logit $\ell(x, y)$ into a kernel $k(x, y)$ against a measure: attention is $x \mapsto \int k(x, y)\, v(y) \,d\mu(y)$.

    Subclass it to write one's own. Keys come as `Atoms`: their `points [n, d]`, `log_weights [n]` (minus infinity for no mass), what is
    averaged, `values [n, e]` (`None` for the points themselves), and under a mask the `mask` and their `order [n]`. Two methods are needed:

    - `average(logit, atoms, sums)`: the map $x \mapsto \int k(x, y)\, v(y) \,d\mu(y)$, a `Velocity` that is called with rows `x [m, d]` and
      their order;
    - `weights(logit, x, atoms, order)`: the dense matrix $k(x_i, y_j)\, w_j$, to look at.

    A kernel that is a function of its own logit has both from `Pointwise`, and needs that function alone:

        class SquaredReLU(Pointwise):
            @staticmethod
            def kernel(logits):
                return jax.nn.relu(logits) ** 2

    `gaussian` is for a kernel whose average over a Gaussian is affine in x, `check_maskable` for one that makes no sense under a mask.
    """

    # Whether the kernel is e^logit times a function of the query; whether columns are normalized too, so that the queries are the keys.
    exponential: ClassVar[bool] = False
    doubly: ClassVar[bool] = False

    @abc.abstractmethod
    def average(self, logit: Logit, atoms: Atoms, sums: Request | None) -> Velocity:
        r"""$x \mapsto \int k(x, y)\, v(y) \,d\mu(y)$ for weighted keys and their values; `sums` says how the sum is evaluated."""

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
        """Raise if there is no kernel of this kind under a mask."""


class OverPairs(Velocity):
    """An average over keys by sums that look at all pairs. A subclass gives `__call__`."""

    logit: Logit
    atoms: Atoms
    sums: Request | None

    @property
    def report(self) -> dict[str, Any]:
        """The round-off of the logits."""
        atoms = self.atoms
        return round_off(Pairs(self.logit, atoms.points, atoms, atoms.order), self.sums)

    @property
    def engines(self) -> tuple[Engine, ...]:
        """The engine for the keys as queries."""
        n = len(self.atoms.points)
        return (choose(n, n, self.sums),)
