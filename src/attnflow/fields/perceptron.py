"""Fields without attention: the perceptron and the residual network."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import ArrayLike, Scalar
from attnflow.measures import Field, FlowingMeasure, Velocity
from attnflow.measures.field import check_at
from attnflow.measures.velocity import Plain
from attnflow.numerics.arrays import array, cast, floats, rows, square
from attnflow.sums import Request


class Perceptron(Field):
    r"""$y \mapsto U g(W y + b) + c$, a two-layer perceptron on rows of points.

    As a map it follows a law, `law.then(perceptron)`: the MLP after attention. As a field it moves tokens by itself,
    $x' = U g(W x + b) + c$, alone, added to a law, or as the second half of a layer.

    **Arguments:** `hidden` $W$ `[h, d]`, `out` $U$ `[d, h]`, their biases `[h]` and `[d]` (zero if not given), and the activation $g$, a
    named function such as `jax.nn.gelu`.
    """

    hidden: Float[Array, "h d"]
    out: Float[Array, "d h"]
    hidden_bias: Float[Array, " h"]
    out_bias: Float[Array, " d"]
    activation: Callable = eqx.field(static=True)

    def __init__(
        self,
        hidden: ArrayLike,
        out: ArrayLike,
        hidden_bias: ArrayLike | None = None,
        out_bias: ArrayLike | None = None,
        *,
        activation: Callable[[Array], Array] = jax.nn.relu,
    ):
        self.hidden, self.out = floats("hidden", hidden, "h d"), floats("out", out, "d h")
        (h, d), dtype = self.hidden.shape, self.hidden.dtype
        self.hidden_bias = array(np.zeros(h, dtype)) if hidden_bias is None else floats("hidden_bias", hidden_bias, "h")
        self.out_bias = array(np.zeros(d, dtype)) if out_bias is None else floats("out_bias", out_bias, "d")
        self.activation = check.function("activation", activation, "a function such as jax.nn.gelu")
        if self.out.shape != (d, h) or self.hidden_bias.shape != (h,) or self.out_bias.shape != (d,):
            raise ValueError(
                f"hidden [h, d], out [d, h], hidden_bias [h] and out_bias [d] must agree, got {list(self.hidden.shape)}, "
                f"{list(self.out.shape)}, {list(self.hidden_bias.shape)} and {list(self.out_bias.shape)}"
            )

    def __call__(self, y: Float[Array, "m d"]) -> Float[Array, "m d"]:
        y = rows("y", y, self.hidden.shape[1])
        net = cast(self, y.dtype)
        inner = net.activation(y @ net.hidden.T + net.hidden_bias[None])
        return inner @ net.out.T + net.out_bias[None]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        if mu.dim != self.hidden.shape[1]:
            raise ValueError(f"the perceptron acts on R^{self.hidden.shape[1]}, got a measure on R^{mu.dim}")
        return Plain(self)


class GatedPerceptron(Field):
    r"""$y \mapsto U \big(g(G y + a) \odot (W y + b)\big) + c$, a perceptron with a gate: SwiGLU for $g$ = SiLU (Shazeer 2020,
    arXiv:2002.05202). As a map it follows a law, as a field it moves tokens by itself, like `Perceptron`.

    **Arguments:** `gate` $G$ and `hidden` $W$ `[h, d]`, `out` $U$ `[d, h]`, their biases $a$, $b$ `[h]` and $c$ `[d]` (zero if not given),
    and the activation $g$, a named function.
    """

    gate: Float[Array, "h d"]
    gate_bias: Float[Array, " h"]
    inner: Perceptron

    def __init__(
        self,
        gate: ArrayLike,
        hidden: ArrayLike,
        out: ArrayLike,
        gate_bias: ArrayLike | None = None,
        hidden_bias: ArrayLike | None = None,
        out_bias: ArrayLike | None = None,
        *,
        activation: Callable[[Array], Array] = jax.nn.silu,
    ):
        self.inner = Perceptron(hidden, out, hidden_bias, out_bias, activation=activation)
        self.gate, dtype = floats("gate", gate, "h d"), self.inner.hidden.dtype
        self.gate_bias = array(np.zeros(len(self.gate), dtype)) if gate_bias is None else floats("gate_bias", gate_bias, "h")
        if self.gate.shape != self.inner.hidden.shape or len(self.gate_bias) != len(self.gate):
            raise ValueError(
                f"gate [h, d] and gate_bias [h] must agree with hidden {list(self.inner.hidden.shape)}, got {list(self.gate.shape)} and "
                f"{list(self.gate_bias.shape)}"
            )

    def __call__(self, y: Float[Array, "m d"]) -> Float[Array, "m d"]:
        y = rows("y", y, self.gate.shape[1])
        net = cast(self, y.dtype)
        inner = net.inner.activation(y @ net.gate.T + net.gate_bias[None]) * (y @ net.inner.hidden.T + net.inner.hidden_bias[None])
        return inner @ net.inner.out.T + net.inner.out_bias[None]

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        if mu.dim != self.gate.shape[1]:
            raise ValueError(f"the perceptron acts on R^{self.gate.shape[1]}, got a measure on R^{mu.dim}")
        return Plain(self)


class ResNet(Field):
    r"""$x' = g(W x + b)$: the residual network in continuous depth, whose flow map is $x(0) \mapsto x(T)$.

    **Arguments:** `weight` $W$ `[d, d]`, `bias` $b$ `[d]` (zero if not given), and the activation $g$, a named function. For weights that
    depend on depth, schedule it: `af.Scheduled(lambda t: af.ResNet(W(t), b(t)))`.
    """

    weight: Float[Array, "d d"]
    bias: Float[Array, " d"]
    activation: Callable = eqx.field(static=True)

    def __init__(self, weight: ArrayLike, bias: ArrayLike | None = None, *, activation: Callable[[Array], Array] = jnp.tanh):
        self.weight = square("weight", weight)
        self.bias = array(np.zeros(len(self.weight), self.weight.dtype)) if bias is None else floats("bias", bias, "d")
        self.activation = check.function("activation", activation, "a function such as jax.nn.gelu")
        if len(self.bias) != len(self.weight):
            raise ValueError(f"weight [d, d] and bias [d] must agree, got {list(self.weight.shape)} and {list(self.bias.shape)}")

    def __call__(self, x: Float[Array, "m d"]) -> Float[Array, "m d"]:
        x = rows("x", x, len(self.bias))
        net = cast(self, x.dtype)
        return net.activation(x @ net.weight.T + net.bias[None])

    def at(self, mu: FlowingMeasure, t: Scalar = 0.0, sums: Request | None = None) -> Velocity:
        check_at(mu, t, sums)
        if mu.dim != len(self.bias):
            raise ValueError(f"the network acts on R^{len(self.bias)}, got a measure on R^{mu.dim}")
        return Plain(self)
