"""The keys of a sum, what is asked of them, and the rows that an engine works on."""

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow.sums.logits.logit import Logit
from attnflow.sums.mask import Mask, Sight, lowest

if TYPE_CHECKING:
    from attnflow.sums.engines.base import Engine


class Atoms(NamedTuple):
    """The keys of a sum: `points [n, d]` with `log_weights [n]`, minus infinity for no mass; under a mask or a positional logit their
    `order [n]` too. `values [n, e]` are what is averaged, `None` for the points themselves.

    `engine` is one made for these keys, such as that of a lattice; it is used if the user does not ask for another.
    """

    points: Float[Array, "n d"]
    log_weights: Float[Array, " n"]
    order: Float[Array, " n"] | None = None
    mask: Mask | None = None
    engine: "Engine | None" = None
    values: Float[Array, "n e"] | None = None


class Rows(NamedTuple):
    """Queries and keys as an engine sums over them: `l_ij = <q_i, k_j> + b_j + a_i`, or with a `sharpness` s, where logits are computed
    from differences, `l_ij = b_j - s/2 |q_i - k_j|^2 + a_i`. `sight` is what each query sees of the keys, `None` for all of them.

    `log_weights` are those of the keys; `None` if they are in b already.
    """

    q: Float[Array, "m p"]
    k: Float[Array, "n p"]
    b: Float[Array, " n"]
    a: Float[Array, " m"] | None = None
    log_weights: Float[Array, " n"] | None = None
    sight: Sight | None = None
    sharpness: Float[Array, ""] | None = None

    def weighted(self) -> "Rows":
        """For exponential sums: with the weights in the logits, and without the term in the query alone."""
        b = self.b if self.log_weights is None else self.b + self.log_weights
        return self._replace(b=b, a=None, log_weights=None)

    def massive(self) -> "Rows":
        """For maxima: with keys of no mass hidden, and without the term in the query alone."""
        assert self.log_weights is not None
        return self._replace(b=jnp.where(jnp.isfinite(self.log_weights), self.b, lowest(self.b.dtype)), a=None, log_weights=None)


class Pairs(NamedTuple):
    """The queries `x [m, d]` of a sum, with their `order [m]` under a mask or a positional logit, its keys and its logit. An engine makes
    rows of them."""

    logit: Logit
    x: Float[Array, "m d"]
    atoms: Atoms
    order: Float[Array, " m"] | None = None

    @property
    def count(self) -> int:
        """How many pairs there are."""
        return len(self.x) * len(self.atoms.points)

    @property
    def sight(self) -> Sight | None:
        """What each query sees of the keys; `None` without a mask."""
        atoms = self.atoms
        return None if atoms.mask is None else atoms.mask.sight(self.order, atoms.order, len(self.x), len(atoms.points))

    def about(self, c: Float[Array, " d"]) -> Rows:
        """The rows about a center."""
        logit, atoms = self.logit, self.atoms
        (q, a), (k, b) = logit.queries(self.x, self.order, c), logit.keys(atoms.points, atoms.order, c)
        return Rows(q, k, b, a, atoms.log_weights, self.sight)

    def by_differences(self, c: Float[Array, " d"]) -> Rows:
        """The rows about a center, for logits from differences where the logit has these."""
        gap = self.logit.differences
        if gap is None:
            return self.about(c)
        q, k = gap.rows(self.x, self.atoms.points, c)
        a, b = jnp.zeros(len(q), q.dtype), jnp.zeros(len(k), k.dtype)
        return Rows(q, k, b, a, self.atoms.log_weights, self.sight, gap.sharpness)
