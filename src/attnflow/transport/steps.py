"""One step of a gradient flow of measures: by a bridge, or by explicit Euler with a score.

The barycentric map B of the bridge of a measure sigma to itself moves a point by `D(x) = B(x) - x = eps/2 grad log sigma(x) + O(eps^2)`; an
estimate s of the score by `D(x) = eps/2 s(x)`. Every flow here moves by such a pull D for a time eps (after arXiv:2406.10823):

- heat, `d_t rho = 1/2 Laplace rho`: `x <- x - D(x)` of rho itself; reverse heat: `x <- x + D(x)`;
- Fokker-Planck, `d_t rho = 1/2 Laplace rho - div(rho 1/2 grad log nu)`: the heat step between two half steps of the drift;
- the same flow, as the steepest descent of `1/2 KL(rho | nu)`: `x <- x - D(x)` of the surrogate sigma = rho / nu, up to a factor.
"""

import abc
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attnflow import _check as check
from attnflow._types import RowFunction, Scalar
from attnflow.measures import Affine, FlowingMeasure, Gaussian, Measure, Particles
from attnflow.measures.velocity import Mapped, Velocity, as_velocity
from attnflow.numerics.arrays import array, known, positive
from attnflow.transport.bridge.base import Bridge
from attnflow.transport.bridge.solve import self_bridge
from attnflow.transport.scores import Estimator

if TYPE_CHECKING:
    # A measure with a density in closed form, or a function of rows of points in its place.
    Target: TypeAlias = Measure | Callable[[Array], Array]
else:
    Target = Any


def sinkhorn_step(flow: "Flow", mu: FlowingMeasure, eps: Scalar, **options: Any) -> FlowingMeasure:
    r"""The measure after one step of a flow for a time $\varepsilon$; for `Heat()` it is $x \leftarrow 2x - B(x)$ with the barycentric map
    $B$ of the self-bridge.

    Sinkhorn attention with $A = I / \varepsilon$, $V = -I$ in the normalized frame makes the same step of the heat flow. Options are those
    of `self_bridge`, or of the flow's estimator of the score.
    """
    return check.instance("flow", flow, Flow, "a flow such as af.Heat()").step(mu, eps, **options).measure


def euler_step(score: RowFunction, mu: FlowingMeasure, eps: Scalar) -> FlowingMeasure:
    r"""$x \leftarrow x - \frac{\varepsilon}{2} s(x)$: explicit Euler for the characteristics of the heat flow. The `score` $s$ is
    $\nabla\log\rho$, and nothing else; for a Gaussian it is an `Affine` map."""
    check.function("score", score, "a map of rows of points, grad log rho")
    mu = check.measure("mu", mu, FlowingMeasure)
    if isinstance(mu, Gaussian):
        check.instance("score", score, Affine, "Affine, as the score of a Gaussian is an Affine map")
    return mu.push(as_velocity(score).step(-array(positive("eps", eps), mu.dtype) / 2))


class Step(eqx.Module):
    """What a step gives: the measure after it, the bridge it used (`None` for a score), and figures that say how good it was."""

    measure: FlowingMeasure
    bridge: Bridge | None = None
    figures: dict[str, Array] = eqx.field(default_factory=dict)


class Flow(eqx.Module):
    """A flow of measures, one step at a time. `af.gradient_flow` makes many."""

    @abc.abstractmethod
    def step(self, mu: FlowingMeasure, eps: Scalar, **options: Any) -> Step:
        r"""The measure after a time $\varepsilon$. Options are those of `self_bridge`, or of the estimator if the flow has one."""

    def horizon(self, mu: FlowingMeasure) -> float:
        """The time beyond which the flow from `mu` cannot exist; a finite one says that the flow is ill-posed."""
        return math.inf


class _HeatFlow(Flow):
    """`x <- x + c D(x)` with the `sign` c."""

    score: Estimator | None = None

    sign: ClassVar[float]

    def __check_init__(self) -> None:
        _estimator(self.score)

    def step(self, mu: FlowingMeasure, eps: Scalar, **options: Any) -> Step:
        move, bridge = _pull(self.score, mu, eps, options)
        return Step(mu.push(move.step(self.sign)), bridge)


class Heat(_HeatFlow):
    r"""$\partial_t \rho = \frac12 \Delta\rho$.

    **Arguments:** `score`: an estimator `(mu, eps) -> score` such as `af.kernel_score`, for explicit Euler steps
    $x \leftarrow x - \frac{\varepsilon}{2} s(x)$; `None` for bridge steps $x \leftarrow 2x - B(x)$, which are of second order.
    """

    sign = -1.0


class ReverseHeat(_HeatFlow):
    r"""$\partial_t \rho = -\frac12 \Delta\rho$, that is deblurring: $x \leftarrow B(x)$, or $x \leftarrow x + \frac{\varepsilon}{2} s(x)$
    with an estimator of the score $s$.

    The problem is ill-posed: it amplifies a mode of wave number $k$ by $e^{k^2 t / 2}$, and has no solution beyond the smallest eigenvalue
    of the covariance. On a flat density the bridge step amplifies a mode by $1 + q / (1 + e^{q/2})$, $q = \varepsilon k^2$: as it should
    for small $q$, by at most 1.557 (at $q = 2.557$), and the finest modes not at all; tokens that have gathered in clumps are worse. For
    $\mathcal{N}(0, s^2)$ the variance becomes $s^2 - \varepsilon + \varepsilon^2 / (2 s^2) + \dots$, an error of first order, until $s^2$
    is about $\varepsilon$; from there it falls like $s^6 / \varepsilon^2$, and the step means nothing any more.
    """

    sign = 1.0

    def horizon(self, mu: FlowingMeasure) -> float:
        """The smallest eigenvalue of the covariance: what was blurred for a time $t$ has a covariance of at least $t I$."""
        return float(jnp.linalg.eigvalsh(check.measure("mu", mu, FlowingMeasure).cov)[0])


class FokkerPlanck(Flow):
    r"""$\partial_t \rho = \frac12 \Delta\rho - \frac12 \operatorname{div}(\rho\,\nabla\log\nu)$, which tends to the target $\nu$: the
    density of $dX = \frac12 \nabla\log\nu\,dt + dB$.

    The bridge step is split: the drift for $\varepsilon/2$ by Heun's method, the heat step for $\varepsilon$, the drift for
    $\varepsilon/2$. It is of second order, as is the distance of its limit to $\nu$. With an estimator `(mu, eps) -> score` it is
    $x \leftarrow x + \frac{\varepsilon}{2} (\nabla\log\nu(x) - s(x))$ with the score $s$.

    **Arguments:** `target`: a `Gaussian`, a `GaussianMixture`, or $\nabla\log\nu$ as a map of rows of points (`Affine` to move a
    `Gaussian`).
    """

    target: Velocity
    score: Estimator | None

    def __init__(self, target: Target, score: Estimator | None = None) -> None:
        target = _with_density(target, "grad log density")
        self.target = target.score_map() if isinstance(target, Measure) else as_velocity(target)
        self.score = _estimator(score)

    def step(self, mu: FlowingMeasure, eps: Scalar, **options: Any) -> Step:
        mu = movable(mu)
        size = array(positive("eps", eps), mu.dtype)
        if self.score is None:
            half = self._drifted(mu, size / 2)
            move, bridge = _pull(None, half, size, options)
            return Step(self._drifted(half.push(move.step(-1.0)), size / 2), bridge)
        move, _ = _pull(self.score, mu, size, options)
        return Step(mu.push((self.target.scaled(size / 2) + move.scaled(-1.0)).step(1.0)))

    def _drifted(self, mu: FlowingMeasure, time: Array) -> FlowingMeasure:
        """`x' = 1/2 grad log nu(x)` for a time, by Heun's method: `x + h/2 (v(x) + v(x + h v(x)))`."""
        v = self.target.scaled(0.5)
        euler = v.step(time)
        ahead = v.compose(euler) if isinstance(v, Affine) and isinstance(euler, Affine) else Mapped(euler, v)
        return mu.push((v + ahead).step(time / 2))


class Degenerate(ValueError):
    """A measure that a step needs has almost all its mass on too few tokens."""


class KullbackLeibler(Flow):
    r"""The flow of `FokkerPlanck` as the steepest descent of $\frac12 \mathrm{KL}(\rho \mid \nu)$, by a surrogate measure:
    $x \leftarrow 2x - B_\sigma(x)$.

    The density of $\sigma$ is $\rho / \nu$ up to a factor, so that $\nabla\log\sigma = \nabla\log\rho - \nabla\log\nu$: $\sigma$ is the
    tokens with weights $w_i / \nu(x_i)$, and only $\log\nu$ is needed, up to a constant. $\sigma$ must be a probability measure: $\nu$
    must have heavier tails than $\rho$. As $\rho$ nears $\nu$, $\sigma$ becomes flat and lives on few tokens in the tails, where the steps
    are wrong. They are of first order.

    **Arguments:**

    - `target`: a `Gaussian`, a `GaussianMixture`, or $\log\nu$ as a function of rows of points. A `Gaussian` moves towards a `Gaussian`
      only.
    - `least`: the smallest effective number of tokens $1 / \sum_i v_i^2$, $v$ the weights of $\sigma$, that is not refused. A bridge is
      local, so that uneven weights do little harm in the bulk; but a token that outweighs all its neighbors stays where it is.
    """

    target: Target
    score: Estimator | None
    least: float = eqx.field(static=True)

    def __init__(self, target: Target, score: Estimator | None = None, *, least: float = 2.0) -> None:
        positive("least", least)
        self.target, self.score, self.least = _with_density(target, "log density"), _estimator(score), least

    def step(self, mu: FlowingMeasure, eps: Scalar, **options: Any) -> Step:
        sigma = self.surrogate(mu)
        move, bridge = _pull(self.score, sigma, eps, options)
        figures = {"effective_tokens": _effective(sigma)} if isinstance(sigma, Particles) else {}
        return Step(mu.push(move.step(-1.0)), bridge, figures)

    def surrogate(self, mu: FlowingMeasure) -> FlowingMeasure:
        r"""The probability measure with density proportional to $\rho / \nu$."""
        if isinstance(mu, Gaussian):
            return _gaussian_surrogate(mu, self.target)
        mu = check.measure("mu", mu, Particles, "Particles or a Gaussian")
        log_density = self.target.log_density if isinstance(self.target, Measure) else self.target
        log_weights = mu.log_weights - log_density(mu.points)
        sigma = eqx.tree_at(lambda m: m.weights, mu, jax.nn.softmax(log_weights), is_leaf=lambda leaf: leaf is None)
        if known(sigma) and not float(_effective(sigma)) >= self.least:
            raise Degenerate(
                f"the surrogate rho / nu must live on at least {self.least:g} effective tokens, got {float(_effective(sigma)):.3g}: "
                "the target has lighter tails than the cloud, or is almost equal; use FokkerPlanck with grad log nu, or a lower `least`"
            )
        return sigma


def _gaussian_surrogate(mu: Gaussian, target: Target) -> Gaussian:
    """`N(P^-1 (S^-1 m - T^-1 n), P^-1)`, `P = S^-1 - T^-1`, for N(m, S) over N(n, T)."""
    if not isinstance(target, Gaussian):
        raise TypeError(f"a Gaussian stays one only towards a Gaussian, got {type(target).__name__}; move Particles instead")
    here, there = mu.score_map(), target.score_map()
    precision = there.matrix - here.matrix
    if known(precision) and not np.linalg.eigvalsh(np.asarray(precision))[0] > 0:
        raise Degenerate("the surrogate rho / nu must be a probability measure: the target must be wider than mu in all directions")
    cov = jnp.linalg.inv(precision)
    return mu.with_state((cov @ (here.offset - there.offset), (cov + cov.T) / 2))


def _with_density(target: Target, otherwise: str) -> Target:
    """A target, refused unless it is a measure with a density in closed form, or a function in its place."""
    due = f"a Gaussian, a GaussianMixture or {otherwise}"
    if not isinstance(target, Measure):
        return check.function("target", target, due)
    if not target.smooth:
        raise TypeError(check.refusal("target", due, target))
    return target


def movable(mu: FlowingMeasure) -> FlowingMeasure:
    """A measure whose steps are of the order that the flow has, which a closure would spoil."""
    due = "Particles or a Gaussian"
    mu = check.measure("mu", mu, FlowingMeasure, due)
    if not mu.exact:
        raise TypeError(check.refusal("mu", due, mu, "draw tokens with .sample(n, key=key)"))
    return mu


def _estimator(score: Estimator | None) -> Estimator | None:
    return score if score is None else check.function("score", score, "an estimator (mu, eps) -> score such as af.kernel_score")


def _pull(score: Estimator | None, mu: FlowingMeasure, eps: Scalar, options: dict[str, Any]) -> tuple[Velocity, Bridge | None]:
    """`D(x) = B(x) - x` and the bridge, or `eps/2 score(x)` by an estimator; `Affine` for a Gaussian."""
    mu = movable(mu)
    size = array(positive("eps", eps), mu.dtype)
    if score is not None:
        return as_velocity(score(mu, size, **options)).scaled(size / 2), None
    bridge = self_bridge(mu, size, **options)
    # A discrete measure is pushed by what moves its tokens, which are those of the bridge.
    return bridge.pull_at_tokens() if mu.discrete else bridge.pull(), bridge


def _effective(sigma: Particles) -> Float[Array, ""]:
    """`(sum v)^2 / sum v^2`: the effective sample size of the weights v."""
    return 1 / jnp.sum(jnp.exp(2 * sigma.log_weights))
