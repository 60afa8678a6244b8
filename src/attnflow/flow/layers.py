"""The discrete stack: layers of maps, through the push-forward of the measure."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from attnflow import _check as check
from attnflow._types import FieldLike, RowFunction, Scalar
from attnflow.fields.schedules import Scheduled
from attnflow.flow.path import BLOW_UP, REACHED, STALLED, Path, Status
from attnflow.flow.report import described, tracker, worst
from attnflow.flow.verdict import check_resolved
from attnflow.measures import FlowingMeasure, Measure, Velocity, velocity_of
from attnflow.measures.velocity import Of
from attnflow.numerics.arrays import cast, known, positive
from attnflow.spaces import Space
from attnflow.sums import Engine, Request, check_request


def layers(
    fields: FieldLike | Sequence[Any],
    mu: Measure,
    depth: Scalar | None = None,
    *,
    step: Scalar = 1.0,
    residual: bool = True,
    norm: RowFunction | Sequence[RowFunction | None] | None = None,
    place: str = "post",
    sums: Request | None = None,
    progress: bool = False,
) -> Path:
    r"""The measure after each of `depth` layers. In layer $k$ = 0, ..., `depth` - 1, at time $t = k h$ with the `step` $h$, every field
    $f$ acts in turn:

    - post: $x \leftarrow N(x + h f_\mu(x))$, without residual $x \leftarrow N(f_\mu(x))$;
    - pre: $x \leftarrow x + h f_\nu(N(x))$, without residual $x \leftarrow f_\nu(N(x))$, where $\nu$ is $\mu$ pushed by the norm $N$.

    With `step = T / depth` and no norm this is the Euler scheme of `solve` to time $T$, of first order; several fields are a splitting of
    their sum. On the sphere every half layer ends on the sphere.

    **Arguments:**

    - `fields`: a field, or a list: `[attention, mlp]` are half layers that alternate, `[attention + mlp]` is one layer.
    - `depth`: how many layers. Without it the list is the layers themselves, `[block, block, ...]`, each a field or a list of half layers:
      a trained stack. Blocks that are alike but for their numbers are compiled once; as one program for all, and for random ones, there
      are `af.piecewise(step * np.arange(depth), laws)` and `af.resampled(draw, key=key, width=step, layers=depth)`.
    - `mu`: `Particles` on any space, a `GaussianMixture`, or a `Gaussian` (affine velocities, no norm):
      $S \leftarrow (I + h M) S (I + h M)^\top$.
    - `residual`: `False` gives $x \leftarrow f_\mu(x)$; `step` must be 1 then.
    - `norm`: $N$, a map of rows of points such as `af.LayerNorm()`, or a list of one for each field; `None` is none. For other norms
      in every layer use `af.piecewise` here too.
    - `place`: where the norm acts, "post" or "pre".
    - `sums`: how kernel sums are evaluated; `None` chooses by size.
    - `progress`: draw a progress bar.

    All layers are one compiled program. A stack that leaves the finite numbers returns what it has before: `path.status` is a blow-up, at
    the time of the last frame. Inside `jit`, `vmap` and `grad` all frames are there, and those after it are infinite. Differentiable in the
    fields, the norms and the measure, in reverse and in forward mode.
    """
    check.flag("progress", progress)
    check.flag("residual", residual)
    mu = check.measure("mu", mu, FlowingMeasure, "Particles or a Gaussian")
    if depth is None:
        blocks = check.instance("fields", fields, (list, tuple), "a list of layers where there is no depth", "give depth, how many layers")
        stacks = [_stack(block, step, residual, norm, place, sums, f"fields[{k}]") for k, block in enumerate(blocks)]
        if not stacks:
            raise ValueError("layers need at least one field, got none")
    else:
        depth = check.count("depth", depth)
        _check_blocks(fields, depth)
        stacks = [_stack(fields, step, residual, norm, place, sums)]
    total = len(stacks) if depth is None else depth
    runs = [(stacks[0], np.arange(total))] if depth is not None else [(stack, np.array([k])) for k, stack in enumerate(stacks)]
    ts = (stacks[0].step * jnp.arange(total + 1)).astype(mu.dtype)
    if known(stacks, mu):
        with check.plainly():
            states, reports, engines = _run_known(runs, mu, ts, progress)
        return _path(mu, ts, states, reports, engines)
    states, state = [_lead(mu.state)], mu.state
    for stack, numbers in runs:
        states.append(_run(stack, mu, state, jnp.asarray(numbers))[0])
        state = _last(states[-1])
    return _traced_path(mu, ts, _join(states))


class Stack(eqx.Module):
    """What a layer does. Its numbers are arrays, so that changing their values does not compile again."""

    fields: tuple[FieldLike, ...]
    norms: tuple[RowFunction | None, ...]
    step: Float[Array, ""]
    sums: Request | None
    residual: bool = eqx.field(static=True)
    pre: bool = eqx.field(static=True)

    def layer(self, mu: FlowingMeasure, k: Int[Array, ""]) -> tuple[FlowingMeasure, dict[str, PyTree], tuple[Engine, ...]]:
        """The measure after layer k, the convergence figures of its fields, and what their sums ran on."""
        t, velocities, reports = self.step * k, [], []
        for field, norm in zip(self.fields, self.norms):
            mu, velocity, report = self.half(mu, field, norm.make(t) if isinstance(norm, Scheduled) else norm, t)
            velocities.append(velocity)
            reports.append(report)
        engines = tuple(engine for velocity in velocities for engine in velocity.engines)
        if len(reports) == 1:
            return mu, reports[0], engines
        return mu, {f"part {i}": report for i, report in enumerate(reports) if report}, engines

    def half(
        self, mu: FlowingMeasure, field: FieldLike, norm: Callable | None, t: Array
    ) -> tuple[FlowingMeasure, Velocity, dict[str, PyTree]]:
        before, after = (norm, None) if self.pre else (None, norm)
        seen, step = mu if before is None else mu.push(before), self.step.astype(mu.dtype)
        velocity = velocity_of(field, seen, t, self.sums)
        if not self.residual:
            moved = seen.push(velocity)
        else:
            moved = mu.push(velocity.step(step) if before is None else AfterNorm(velocity, step, before, mu.space))
        return moved if after is None else moved.push(after), velocity, velocity.report | seen.report(velocity)


class AfterNorm(Of):
    """`x -> x + h f(N(x))`; what f sees lies on the space."""

    velocity: Velocity
    size: Float[Array, ""]
    norm: Callable
    space: Space

    def __call__(self, x: Float[Array, "m d"], order: Float[Array, " m"] | None = None) -> Float[Array, "m d"]:
        return x + self.size * self.velocity(self.space.nearest(self.norm(x)), order)


@eqx.filter_jit
def _run(stack: Stack, mu: FlowingMeasure, state: PyTree, numbers: Int[Array, " k"]) -> tuple[PyTree, PyTree, tuple[Engine, ...]]:
    """The states after the layers with these numbers, and their figures, from `state`, and what their sums ran on."""
    engines: tuple[Engine, ...] = ()

    def body(state: PyTree, k: Array) -> tuple[PyTree, tuple[PyTree, PyTree]]:
        nonlocal engines
        after, report, engines = stack.layer(mu.with_state(state), k)
        state = cast(mu.retract(after.state), mu.dtype)
        return state, (state, report)

    states, reports = jax.lax.scan(body, state, numbers)[1]
    return states, reports, engines


def _run_known(runs: list[tuple[Stack, np.ndarray]], mu: FlowingMeasure, ts: Array, progress: bool) -> tuple[PyTree, list[PyTree], tuple]:
    """All states from the first, the figures of each layer, and the engines, on the host: in one call per stack, or layer by layer under a
    progress bar."""
    states, reports, state, engines = [_lead(mu.state)], [], mu.state, ()
    with tracker(progress, 0.0, float(ts[-1]), "layers") as advance:
        for stack, numbers in runs:
            for some in numbers[:, None] if progress else numbers[None]:
                after, report, found = _run(stack, mu, state, jnp.asarray(some))
                state, engines = _last(after), (*engines, *found)
                states.append(after)
                host = jax.tree.map(np.asarray, report)
                reports += [jax.tree.map(lambda leaf, k=k: leaf[k], host) for k in range(len(some))]
                advance(float(ts[some[-1] + 1]))
    return jax.tree.map(np.asarray, _join(states)), reports, engines


def _path(mu: FlowingMeasure, ts: Array, states: PyTree, reports: list[PyTree], engines: tuple) -> Path:
    """The frames before the first that is not finite, and how the stack ended."""
    finite = np.all([np.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in jax.tree.leaves(states)], axis=0)
    count = len(finite) if finite.all() else int(np.argmin(finite))
    lost = STALLED if mu.bounded else BLOW_UP
    status = Status(REACHED if count == len(ts) else lost, float(ts[count - 1]))
    check_resolved(mu, dict(enumerate(reports)))
    alike = len({jax.tree.structure(report) for report in reports}) == 1
    figures = worst(reports[: count - 1] if alike else [{f"layer {k}": r for k, r in enumerate(reports[: count - 1]) if r}])
    stats = {"solver": "layers", "layers": count - 1} | described(engines) | figures
    return Path(ts[:count], jax.tree.map(lambda leaf: jnp.asarray(leaf[:count]), states), status, stats, mu)


def _traced_path(mu: FlowingMeasure, ts: Array, states: PyTree) -> Path:
    """All frames, infinite from the first that is not finite on, and how the stack ended."""
    each = [jnp.all(jnp.isfinite(leaf.reshape(len(leaf), -1)), axis=1) for leaf in jax.tree.leaves(states)]
    finite = jnp.cumprod(jnp.all(jnp.stack(each), axis=0)).astype(bool)
    code = jnp.where(finite[-1], REACHED, STALLED if mu.bounded else BLOW_UP).astype(jnp.int32)
    states = jax.tree.map(lambda leaf: jnp.where(finite.reshape(-1, *(1,) * (leaf.ndim - 1)), leaf, jnp.inf), states)
    return Path(ts, states, Status(code, ts[jnp.maximum(jnp.sum(finite) - 1, 0)]), {"solver": "layers"}, mu)


def _join(trees: list[PyTree]) -> PyTree:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *trees)


def _last(states: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[-1], states)


def _lead(state: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[None], state)


def _check_blocks(fields: FieldLike | Sequence[Any], depth: int) -> None:
    """Warn of a list that looks like the layers themselves: as many fields of one kind as there are layers."""
    if isinstance(fields, list | tuple) and len(fields) == depth > 1 and len({type(field) for field in fields}) == 1:
        check.warn(
            f"fields has {depth} half layers, all of which act in each of the {depth} layers; if each of them is a layer, leave depth out"
        )


def _stack(
    fields: Any,
    step: Scalar,
    residual: bool,
    norm: Any,
    place: str,
    sums: Request | None,
    name: str = "fields",
) -> Stack:
    """The arguments of `layers`, checked."""
    many = isinstance(fields, list | tuple)
    parts: tuple[Any, ...] = tuple(fields) if many else (fields,)
    if not parts:
        raise ValueError("layers need at least one field, got none")
    for i, part in enumerate(parts):
        check.field(f"{name}[{i}]" if many else name, part)
    norms: tuple[Any, ...] = tuple(norm) if isinstance(norm, list | tuple) else (norm,) * len(parts)
    if len(norms) != len(parts):
        raise ValueError(f"norm must be one map, or one per field, {len(parts)}, got {len(norms)}")
    for part in norms:
        if part is not None and not isinstance(part, Scheduled):
            check.function("norm", part, "a map of rows of points such as af.LayerNorm()")
    check.choice("place", place, ("pre", "post"))
    check_request(sums)
    size = positive("step", step)
    if not residual and known(size) and float(size) != 1:
        raise ValueError(f"step must be 1 without the residual, where a layer is x <- f(x), got {float(size)}; scale the value instead")
    return Stack(parts, norms, size, sums, residual, place == "pre")
