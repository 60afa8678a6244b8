"""Many steps of a gradient flow, each bridge begun from those before it."""

import contextlib
import math
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from attnflow import _check as check
from attnflow._types import Scalar
from attnflow.flow.path import Path, Status
from attnflow.flow.report import tracker
from attnflow.measures import FlowingMeasure, Particles
from attnflow.numerics.arrays import known, positive
from attnflow.numerics.tolerances import default
from attnflow.transport.bridge.tokens import TokenBridge
from attnflow.transport.steps import Degenerate, Flow, Step, movable

# Weights of the last potentials in the first guess of the next: the polynomial through them, one step on.
_EXTRAPOLATION = {0: (), 1: (1,), 2: (2, -1), 3: (3, -3, 1), 4: (4, -6, 4, -1)}


def gradient_flow(flow: Any, mu: Any, eps: Scalar, steps: Any, *, save_every: Any = 1, progress: bool = False, **options: Any) -> Path:
    r"""The path of `mu` in `steps` steps of a flow, each for a time $\varepsilon$.

    **Arguments:**

    - `flow`: `af.Heat()`, `af.FokkerPlanck(target)`, `af.KullbackLeibler(target)` or `af.ReverseHeat()`.
    - `mu`: `Particles` in $\mathbb{R}^d$, or a `Gaussian`, whose steps are in closed form.
    - `eps`: the length of a step and the temperature of its bridge.
    - `save_every`: how many steps there are from one frame to the next; the last state is always a frame.
    - `progress`: draw a progress bar.
    - `options`: those of `self_bridge`, such as `tolerance` and `sums`, or of the flow's estimator of the score.

    A bridge begins from the cubic extrapolation of the four potentials before it, token by token. `path.stats["sinkhorn"]` has the
    iterations of every step, the worst error of a marginal, whether all converged, and the largest `self_share`: how much of what a token
    sees is itself, in the mean over the tokens. Near 1 the temperature is too low for the cloud, and nothing moves.

    For an ill-posed flow `path.stats` has its `horizon`, beyond which there is no solution, and `growth`: the factor by which a small
    random error of the tokens grew on the way, in the mean square over them. A path that leaves the finite numbers is a blow-up, one whose
    surrogate degenerates is stalled; both have what was before. Inside `jit` and `grad` use `flow.step`.
    """
    check.instance("flow", flow, Flow, "a flow such as af.Heat()")
    movable(mu)
    check.count("steps", steps)
    check.count("save_every", save_every)
    check.flag("progress", progress)
    eps = positive("eps", eps)
    if not known(mu, eps):
        raise ValueError("gradient_flow decides on the host; inside jit and grad call flow.step(mu, eps) in a loop")
    run, kept, kind = _Run(flow, mu, eps.astype(mu.dtype), options), [(0, mu.state)], "reached"
    _warn_beyond(run.horizon, float(eps) * steps)
    with tracker(progress, 0.0, float(eps) * steps, "gradient flow") as advance, _one_warning(run):
        while run.count < steps and kind == "reached":
            kind = run.step()
            if run.count > kept[-1][0] and (run.count % save_every == 0 or run.count == steps or kind != "reached"):
                kept.append((run.count, run.measure.state))
            advance(float(eps) * run.count)
    ts = jnp.asarray([count * float(eps) for count, _ in kept], run.measure.dtype)
    states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(state for _, state in kept))
    return Path(ts, states, Status(kind, float(ts[-1])), run.stats(), mu)


class _Run:
    """A run as it goes: the measure, how many steps it made, and what its bridges said."""

    def __init__(self, flow: Flow, mu: FlowingMeasure, eps: Array, options: dict[str, Any]):
        self.flow, self.measure, self.eps, self.options = flow, mu, eps, options
        self.count, self.potentials, self.bridges, self.figures = 0, [], [], []
        self.horizon = flow.horizon(mu)
        self.probe = _Probe(self) if math.isfinite(self.horizon) and isinstance(mu, Particles) else None

    def step(self) -> str:
        """One step more, unless it fails; how the run stands."""
        try:
            step = self.flow.step(self.measure, self.eps, **(self.options | self._start()))
        except Degenerate as error:
            if not self.count:
                raise
            check.warn(f"the flow ended after {self.count} steps: {error}")
            return "stalled"
        if not _finite(step.measure.state):
            return "blow-up"
        if self.probe is not None:
            self.probe.follow(self, step)
        self._note(step)
        self.measure, self.count = step.measure, self.count + 1
        return "reached"

    def _start(self) -> dict[str, Any]:
        """The first guess of the next bridge."""
        # An ill-posed flow roughens what it moves: extrapolation would cost iterations, not save them.
        if not self.potentials or math.isfinite(self.horizon):
            return {}
        return {"start": sum(c * phi for c, phi in zip(_EXTRAPOLATION[len(self.potentials)], self.potentials))}

    def _note(self, step: Step) -> None:
        self.figures.append({name: float(value) for name, value in step.figures.items()})
        bridge = step.bridge
        if not isinstance(bridge, TokenBridge):
            return
        self.potentials = [bridge.potential, *self.potentials[:3]]
        share = jnp.exp(2 * bridge.potential / self.eps + bridge.measure.log_weights)
        found = {"converged": bridge.converged, "iterations": bridge.iterations, "error": bridge.error}
        found["self_share"] = self.measure.integrate(lambda _: share)
        self.bridges.append({name: value.item() for name, value in found.items()} | {"engine": repr(bridge.kernel.engine)})

    def stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = {"solver": type(self.flow).__name__, "steps": self.count}
        if self.bridges:
            of = {name: [figures[name] for figures in self.bridges] for name in self.bridges[0]}
            stats["engine"] = of["engine"][-1]
            worst = {"converged": all(of["converged"]), "error": max(of["error"]), "self_share": max(of["self_share"])}
            stats["sinkhorn"] = worst | {"iterations": of["iterations"]}
        for name in self.figures[0] if self.figures else ():
            stats[f"least_{name}"] = min(figures[name] for figures in self.figures)
        if math.isfinite(self.horizon):
            stats["horizon"] = self.horizon
        if self.probe is not None:
            stats["growth"] = math.exp(self.probe.log_growth)
        return stats


class _Probe:
    """A twin of the tokens that follows a small way off, and is brought back to that distance after every step."""

    def __init__(self, run: _Run):
        mu, tolerance = run.measure, run.options.get("tolerance")
        least = default("sinkhorn", mu.dtype) if tolerance is None else float(tolerance)
        # Far above the error of a bridge, far below the width of its kernel.
        self.distance = math.sqrt(float(run.eps)) * min(max(1e3 * least, 1e-6), 0.1)
        self.log_growth = 0.0
        noise = jax.random.normal(jax.random.key(0), mu.state.shape, mu.dtype)
        self.direction = noise / _norm(mu, noise)

    def follow(self, run: _Run, step: Step) -> None:
        """The twin's step, and how far it is from the tokens after it."""
        twin = run.measure.with_state(run.measure.state + self.distance * self.direction)
        start = {} if step.bridge is None else {"start": step.bridge}
        apart = run.flow.step(twin, run.eps, **(run.options | start)).measure.state - step.measure.state
        size = jnp.maximum(_norm(run.measure, apart), jnp.finfo(apart.dtype).tiny)
        self.log_growth += math.log(float(size) / self.distance)
        self.direction = apart / size


def _norm(mu: FlowingMeasure, field: Float[Array, "n d"]) -> Float[Array, ""]:
    """`(integral |field|^2 dmu / d)^1/2`."""
    return jnp.sqrt(mu.integrate(lambda _: jnp.mean(field**2, axis=1)))


def _finite(state: PyTree) -> bool:
    return all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(state))


def _warn_beyond(horizon: float, end: float) -> None:
    if end >= horizon:
        check.warn(
            f"the flow has no solution beyond t = {horizon:.4g}, the smallest eigenvalue of the covariance, and is to run to {end:.4g}; "
            "what follows is the scheme's own",
        )


@contextlib.contextmanager
def _one_warning(run: _Run) -> Iterator[None]:
    """One warning for all bridges that did not converge."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the bridge did not converge")
        yield
    missed = [figures["error"] for figures in run.bridges if not figures["converged"]]
    if missed:
        check.warn(
            f"{len(missed)} of {len(run.bridges)} bridges did not converge, error up to {max(missed):.1e}; "
            "raise max_iterations or tolerance",
        )
