"""Where a network has its norms, as a dynamics of the radius and the direction of each token (arXiv:2510.22026)."""

from typing import Literal, cast, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import FieldLike, Scalar
from attnflow.measures import Field, FlowingMeasure, Particles, Velocity, velocity_of
from attnflow.measures.field import check_at
from attnflow.measures.velocity import Of
from attnflow.numerics.arrays import floats, positive, rows
from attnflow.numerics.rows import dot
from attnflow.spaces import Sphere
from attnflow.sums import Request

Scheme = Literal["post", "pre", "peri", "mix", "ngpt", "sqrt"]


def with_norm(law: FieldLike, scheme: str, *, switch: Scalar = 1.0, alpha: Scalar = 1.0) -> "WithNorm":
    r"""The flow of tokens $x = r\theta$ in $\mathbb{R}^d$, $\theta$ on the sphere, under a law that looks at directions: with
    $a = \Gamma(\theta)$ it is $\theta' = P_\theta a / s$ and

    - `post`: $s = 1$, $r' = 0$: the stream is normalized after every layer. This is the law on the sphere;
    - `pre`: $s = r$, $r' = \langle\theta, a\rangle$: the law reads normalized tokens, the stream grows;
    - `peri`: $s = r |a|$, $r' = \langle\theta, a\rangle / |a|$: the output of the law is normalized too;
    - `mix`: post up to time `switch`, then pre;
    - `ngpt`: $s = |a| / \alpha$, $r' = 0$: a step of size $\alpha$ along the normalized output;
    - `sqrt`: $s = \sqrt{1 + t}$, $r' = 0$: layer $k$ weighted by $1/\sqrt{k}$.

    In $\mathbb{R}^d$ this is the field $x' = \frac{r}{s} P_\theta a + r'\theta$; radii begin as those of the tokens that are given. Once
    tokens are close, $a$ tends to $\theta$ and $1 - \cos$ of their angles falls like $e^{-2t}$ for `post`, $t^{-2}$ for `pre` and `peri`,
    $e^{-2\alpha t}$ for `ngpt`, $e^{-4\sqrt{t}}$ for `sqrt`.
    """
    check.field("law", law)
    check.choice("scheme", scheme, get_args(Scheme))
    return WithNorm(law, floats("switch", switch, ""), positive("alpha", alpha), cast(Scheme, scheme))


class WithNorm(Field):
    """`x' = (r / s) P_theta a + r' theta`."""

    law: FieldLike
    switch: Float[Array, ""]
    alpha: Float[Array, ""]
    scheme: Scheme = eqx.field(static=True)

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> "WithNormVelocity":
        check_at(mu, t, sums)
        mu = check.measure("mu", mu, Particles, "Particles, whose radius a scheme of norms moves")
        if not mu.space.flat:
            raise TypeError(
                f"a scheme of norms moves tokens in R^d, got {type(mu).__name__} on the {type(mu.space).__name__}; "
                "make them af.Particles(points)"
            )
        directions = Particles(_direction(mu.points)[1], mu.weights, order=mu.order, space=Sphere())
        return WithNormVelocity(velocity_of(self.law, directions, t, sums), jnp.asarray(t, mu.dtype), self)


class WithNormVelocity(Of):
    """The velocity of a scheme for one measure."""

    velocity: Velocity
    t: Float[Array, ""]
    field: WithNorm

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        r, theta = _direction(rows("x", x))
        a = self.velocity(theta, order)
        along = dot(theta, a)[:, None]
        across, size = a - along * theta, jnp.sqrt(jnp.maximum(dot(a, a), jnp.finfo(a.dtype).tiny))[:, None]
        scheme = self.field.scheme
        if scheme == "pre":
            return a
        if scheme == "peri":
            return a / size
        if scheme == "mix":
            return jnp.where(self.t < self.field.switch.astype(x.dtype), r * across, a)
        if scheme == "ngpt":
            return self.field.alpha.astype(x.dtype) * r * across / size
        return r * across / (jnp.sqrt(1 + self.t) if scheme == "sqrt" else 1)


def _direction(x: Float[Array, "n d"]) -> tuple[Float[Array, "n 1"], Float[Array, "n d"]]:
    r = jnp.sqrt(jnp.maximum(dot(x, x), jnp.finfo(x.dtype).tiny))[:, None]
    return r, x / r
