"""Many small runs at once: every point of a grid of parameters, from many seeds, in compiled batches."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow import _check as check
from attnflow._types import ArrayLike, Observable, PathLike, Scalar
from attnflow.flow.observe import value_of
from attnflow.flow.steps.problem import fitted
from attnflow.flow.steps.times import labels, times
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.measures import FlowingMeasure
from attnflow.numerics.arrays import array, floats, positive
from attnflow.numerics.tolerances import default
from attnflow.sums import native
from attnflow.sweeps.batch import Numbers, Plan, Way, run_batch, way_of
from attnflow.sweeps.members import TAKEN, Members, all_members, check_axes, check_seeds, first_member
from attnflow.sweeps.stepper import FAILED

if TYPE_CHECKING:
    import xarray

# Pairs of tokens and members of a batch: so many that the start of an operation costs little, so few that they stay in the cache and alike.
_PAIRS = {"circle": 2**20, "any": 2**18, "in turn": 2**18}
_MEMBERS = {"circle": 1024, "any": 256, "in turn": 256}


def sweep(
    make: Callable[..., Any],
    grid: dict[str, ArrayLike],
    seeds: int | ArrayLike,
    t1: Scalar,
    *,
    t0: Scalar = 0.0,
    save_at: int | ArrayLike = 100,
    observe: dict[str, Observable] | None = None,
    rtol: Scalar | None = None,
    atol: Scalar | None = None,
    step: Scalar | None = None,
    until: Callable[..., Any] | None = None,
    max_steps: int = 100_000,
    batch: int | None = None,
    out: PathLike | None = None,
    progress: bool = False,
) -> "xarray.Dataset":
    """Observables along the flow of `make(key, **parameters) -> (field, mu)`, for every point of a grid and every seed.

    The result has a variable for each observable, with the dimensions (parameters..., seed, time, and those of the observable, `name_0`,
    `name_1`, ...), and for each member its `status` (0: `t1` was reached, 1: `until` stopped it, 2: it failed), the time `ended` and the
    `steps` it took. Its attribute `way` says how members were stepped: `"circle"`, few tokens on the circle, by a stepper of their own;
    `"any"`, side by side by that of `solve`; `"in turn"`, one after the other by that of `solve`. `af.over_seeds` makes means and standard
    errors of it.

    **Arguments:**

    - `make`: builds one member. It is traced and vectorized, so parameters are numbers without a value yet: shapes cannot depend on them.
      What else it reads must stay as it is: it is not traced again because a global changed. The precision is that of the measure; float32
      is about twice as fast.
    - `grid`: the values of each parameter, 1-D; all their combinations are run.
    - `seeds`: how many, or which ones. Seed $s$ has the key `jax.random.key(s)` at every point of the grid.
    - `t1`, `t0`, `save_at`, `rtol`, `atol`, `step`: as in `af.solve`. Every member has steps of its own. On the circle the tolerance of a
      token is `atol + rtol`, by its angle.
    - `observe`: functions of the measure by name, compiled; numbers or small arrays.
    - `until`: stops a member when `until(mu, rate, t)` holds, such as `af.Steady()`; from then on its observables stay as they are. A batch
      ends with its last member; members with the same parameters are in the same batches.
    - `max_steps`: the budget of steps of a member. One that spends it, or blows up, has NaN from there on, and there is a warning.
    - `batch`: how many members are stepped together; by default what fits the cache.
    - `out`: a folder that every batch is written to. The same call goes on with a sweep that was cut off; another one is refused.
    - `progress`: draw a progress bar.
    """
    axes, found_seeds = check_axes(make, grid), check_seeds(seeds)
    looks = _observables(observe, axes)
    check.count("max_steps", max_steps)
    if batch is not None:
        check.count("batch", batch)
    if until is not None:
        check.function("until", until, "a condition (mu, rate, t) -> bool such as af.Steady()")
    if out is not None:
        check.folder("out", out)
    check.flag("progress", progress)
    for name, value in {"t0": t0, "t1": t1}.items():
        floats(name, value, "")
    for name, value in {"rtol": rtol, "atol": atol, "step": step}.items():
        if value is not None:
            floats(name, value, "")
    field, mu = first_member(make, axes, found_seeds)
    if mu.own_steps(array(1.0, mu.dtype)) is not None and not (rtol is None and atol is None):
        raise ValueError(f"a {type(mu).__name__} is stepped by its own scheme, got rtol or atol; leave them out, or give step=")
    span = times(t0, t1, save_at, mu.dtype)
    fixed = None if step is None else positive("step", step).astype(mu.dtype)
    limits = _tolerances(rtol, atol, mu.dtype)
    numbers = Numbers(span.since(mu.dtype), *limits, fixed, fitted(until, *limits))
    way = way_of(field, mu, fixed is not None)
    plan = Plan(make, looks, way, max_steps, way == "circle" and native.available())
    _look(plan, mu)
    members = all_members(axes, found_seeds, batch or _batch_size(mu, way))
    store = None if out is None else _store(out, plan, numbers, axes, members)
    found = _run(plan, numbers, members, store, progress)
    return _dataset(found, axes, found_seeds, np.asarray(labels(span.ts, mu.dtype))).assign_attrs(way=way)


def over_seeds(data: "xarray.Dataset") -> tuple["xarray.Dataset", "xarray.Dataset"]:
    r"""The mean over the seeds of a sweep, and its standard error $s / \sqrt{n}$ for $n$ seeds, $s$ with the divisor $n - 1$."""
    if not hasattr(data, "drop_vars") or "seed" not in data.dims:
        raise TypeError(check.refusal("data", "the dataset of a sweep, with the dimension seed", data))
    values = data.drop_vars(["status", "ended", "steps"], errors="ignore")
    return values.mean("seed", skipna=False), values.std("seed", ddof=1, skipna=False) / np.sqrt(data.sizes["seed"])


def _run(plan: Plan, numbers: Numbers, members: Members, store: Store | None, progress: bool) -> "xarray.Dataset":
    """All batches, one after the other along `member`; those in the folder are read."""
    import xarray
    from rich.progress import Progress

    done = [] if store is None else store.blocks()
    rest, double = range(len(done), members.batches), bool(jax.config.read("jax_enable_x64"))

    def one(index: int) -> "xarray.Dataset":
        # The precision is a setting of a thread.
        with jax.enable_x64(double):
            arrays = run_batch(plan, numbers, members.batch(index))
        dims = ("member", "time")
        return xarray.Dataset({name: ((*dims[: a.ndim], *(f"{name}_{k}" for k in range(a.ndim - 2))), a) for name, a in arrays.items()})

    def blocks(pool: ThreadPoolExecutor) -> Iterator["xarray.Dataset"]:
        # A batch is one thread's work. The first one compiles, alone.
        yield from map(one, rest[:1])
        yield from pool.map(one, rest[1:])

    with Progress(disable=not progress) as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        task = bar.add_task("sweep", total=len(members.seeds), completed=sum(block.sizes["member"] for block in done))
        try:
            for index, block in zip(rest, blocks(pool), strict=True):
                done.append(block)
                if store is not None:
                    store.append(index, block, ())
                bar.advance(task, block.sizes["member"])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    if store is not None:
        store.finish({"kind": "reached", "members": len(members.seeds)})
    whole: xarray.Dataset = xarray.concat(done, "member")  # pyright: ignore[reportAssignmentType]
    failed = int((whole.status == FAILED).sum())
    if failed:
        check.warn(
            f"{failed} of {len(members.seeds)} members blew up, spent max_steps or have a kernel narrower than a cell; "
            f"their status is {FAILED}"
        )
    return whole


def _dataset(whole: "xarray.Dataset", axes: dict[str, np.ndarray], seeds: np.ndarray, ts: np.ndarray) -> "xarray.Dataset":
    """The members on their grid."""
    import xarray

    shape = (*map(len, axes.values()), len(seeds))
    variables = {str(name): ((*axes, "seed", *a.dims[1:]), a.values.reshape(*shape, *a.shape[1:])) for name, a in whole.data_vars.items()}
    return xarray.Dataset(variables, coords={**axes, "seed": seeds, "time": ts})


def _tolerances(rtol: Scalar | None, atol: Scalar | None, dtype: jnp.dtype) -> tuple[jax.Array, jax.Array]:
    """Those given, or those of `solve`."""
    given = [default(name, dtype) if value is None else value for name, value in (("rtol", rtol), ("atol", atol))]
    return positive("rtol", given[0]).astype(dtype), positive("atol", given[1]).astype(dtype)


def _observables(observe: Any, axes: dict[str, np.ndarray]) -> tuple[tuple[str, Observable], ...]:
    if not isinstance(observe, dict) or not observe:
        raise TypeError(check.refusal("observe", "a dict of functions of the measure, at least one", observe))
    for name, function in observe.items():
        check.function(f"observe[{name!r}]", function, "a function of the measure, compiled")
        if name in TAKEN or name in axes:
            raise ValueError(f"{name!r} is the name of something else in the result, got it for an observable; give observe another name")
    return tuple(observe.items())


def _look(plan: Plan, mu: FlowingMeasure) -> None:
    """Every observable once, without values."""
    for name, function in plan.observe:
        try:
            eqx.filter_eval_shape(lambda mu, name=name, function=function: value_of(name, function, mu), mu)
        except Exception as error:
            line = (str(error).strip() or type(error).__name__).splitlines()[0]
            if line.startswith("observe["):
                raise ValueError(line.replace(", or give af.OnHost(function)", "")) from None
            raise ValueError(f"observe[{name!r}] must give a number or an array for {type(mu).__name__}, got an error: {line}") from error


def _batch_size(mu: FlowingMeasure, way: Way) -> int:
    """How many members fit the cache: by the pairs of tokens, or the numbers of a state."""
    numbers = max(mu.pairs, sum(leaf.size for leaf in jax.tree.leaves(mu.state)))
    return int(np.clip(_PAIRS[way] // numbers, 8, _MEMBERS[way]))


def _store(out: PathLike, plan: Plan, numbers: Numbers, axes: dict[str, np.ndarray], members: Members) -> Store:
    """The folder of the sweep. Two functions are the same if they compile to the same program, with the same constants."""

    def program(key: jax.Array, values: dict[str, jax.Array]) -> Any:
        field, mu = plan.make(key, **values)
        return plan.observed(mu), mu.state, mu.rate(field.at(mu, numbers.span.start.astype(mu.dtype), None))

    values = {name: jnp.asarray(a[0]) for name, a in axes.items()}
    compiled = jax.make_jaxpr(program)(jax.random.key(0), values)
    mark = fingerprint((str(compiled.jaxpr), compiled.consts, numbers, axes, members, plan.max_steps, plan.native))
    about = provenance(
        sweep=getattr(plan.make, "__qualname__", plan.make),
        grid={name: a.tolist() for name, a in axes.items()},
        seeds=len(set(members.seeds.tolist())),
        t0=numbers.span.start,
        length=numbers.span.length,
        frames=len(numbers.span.frames) + numbers.span.first,
        rtol=numbers.rtol,
        step=numbers.step,
        observe=[name for name, _ in plan.observe],
        batch=members.size,
        # Large clouds elsewhere name the kernel in their program.
        native=plan.native or "attnflow_softmax" in str(compiled.jaxpr),
    )
    return Store.open(out, mark, about)
