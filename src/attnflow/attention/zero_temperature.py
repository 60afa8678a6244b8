"""The limit of softmax attention on the sphere at zero temperature, for measures of full support."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow._check import instance
from attnflow._types import ArrayLike, Scalar
from attnflow.measures import FlowingMeasure, Velocity
from attnflow.measures.field import Field, check_at
from attnflow.numerics.arrays import cast, rows, square
from attnflow.sums import Logit, Request


class ZeroTemperature(Field):
    r"""$x' = P_x V A x / |A x|$: what `Attention(logit, V)` on the sphere tends to as its temperature falls (arXiv:2605.10931).

    The kernel $e^{\langle y, A x\rangle / T}$ picks the key $A x / |A x|$, of largest logit on the whole sphere, wherever the mass is: the
    field does not depend on the measure, and the equation is linear in it. With the logit $\beta\langle B y, x\rangle$ of the source,
    $A = \beta B^\top$, so that this is $x' = P_x V B^\top x / |B^\top x|$. Where $A x = 0$, a set without mass, there is no such key, and
    the velocity is set to 0.

    **Arguments:**

    - `logit`: from `dot_product`, without biases; its temperature does not matter.
    - `value`: $V$, `[d, d]`.
    """

    logit: Logit
    value: Float[Array, "d d"]

    def __init__(self, logit: Logit, value: ArrayLike) -> None:
        instance("logit", logit, Logit, "a Logit", "give af.ZeroTemperature(af.dot_product(Q, K), V)")
        self.logit, self.value = logit, square("value", value)
        if logit.form.P is not None or logit.form.p is not None:
            raise ValueError("the limit at zero temperature is known here for a dot product without a bias of the query, got another logit")
        if len(self.value) != logit.dim:
            raise ValueError(f"value must be [{logit.dim}, {logit.dim}] like the tokens of the logit, got {list(self.value.shape)}")

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> "TowardsNearestKey":
        """The velocity, which is the same for every measure."""
        check_at(mu, t, sums)
        if mu.space.radius != 1:
            raise ValueError(f"the limit at zero temperature is for tokens or a Grid on the Sphere, got {type(mu).__name__} elsewhere")
        if mu.dim != self.logit.dim:
            raise ValueError(f"the law acts on R^{self.logit.dim}, got a measure on R^{mu.dim}")
        mu.check_symmetry(self)
        return cast(TowardsNearestKey(self.logit.form.A, self.value), mu.dtype)


class TowardsNearestKey(Velocity):
    """`x -> V A x / |A x|`."""

    A: Float[Array, "d d"]
    value: Float[Array, "d d"]

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        key = rows("x", x, len(self.A)) @ self.A.T
        square = jnp.sum(key**2, axis=1, keepdims=True)
        some = square > 0
        return jnp.where(some, key / jnp.sqrt(jnp.where(some, square, 1)), 0) @ self.value.T
