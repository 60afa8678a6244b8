"""Many small runs at once: every point of a grid of parameters, from many seeds, in compiled batches."""

import inspect
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from attnflow import _check as check
from attnflow.flow.observe import value_of
from attnflow.flow.steps.problem import fitted
from attnflow.flow.steps.times import labels, times
from attnflow.flow.storage.folder import Store, fingerprint, provenance
from attnflow.measures import FlowingMeasure, Particles
from attnflow.numerics.arrays import array, floats, positive
from attnflow.numerics.tolerances import default
from attnflow.sums import native
from attnflow.sweeps.batch import Numbers, Plan, run_batch, way_of
from attnflow.sweeps.making import check_key, first_member
from attnflow.sweeps.members import FAILED

if TYPE_CHECKING:
    import xarray

# Pairs of tokens and members of a batch: so many that the start of an operation costs little, so few that they stay in the cache and alike.
_PAIRS = {"circle": 2**20, "any": 2**18, "in turn": 2**18}
_MEMBERS = {"circle": 1024, "any": 256, "in turn": 256}
_TAKEN = ("seed", "time", "status", "ended", "steps")


def sweep(
    make: Callable,
    grid: dict[str, Any],
    seeds: Any,
    t1: Any,
    t0: Any = 0.0,
    save_at: Any = 100,
    observe: dict[str, Any] | None = None,
    rtol: Any = None,
    atol: Any = None,
    step: Any = None,
    until: Callable | None = None,
    max_steps: int = 100_000,
    batch: int | None = None,
    out: Any = None,
    progress: bool = False,
) -> "xarray.Dataset":
    """Observables along the flow of `make(key, **parameters) -> (field, mu)`, for every point of a grid and every seed.

    The result has a variable for each observable, with the dimensions (parameters..., seed, time, and those of the observable), and for
    each member its `status` (0: `t1` was reached, 1: `until` stopped it, 2: it failed), the time `ended` and the `steps` it took.
    `af.over_seeds` makes means and standard errors of it.

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
    axes, numbers_of_seeds = _axes(make, grid), _seeds(seeds)
    looks = _observables(observe, axes)
    check.count("max_steps", max_steps)
    if batch is not None:
        check.count("batch", batch)
    if until is not None:
        check.function("until", until, "a condition (mu, rate, t) -> bool such as af.Steady()")
    if out is not None:
        check.folder("out", out)
    check.flag("progress", progress)
    for name, value in (("t0", t0), ("t1", t1), *((n, v) for n, v in (("rtol", rtol), ("atol", atol), ("step", step)) if v is not None)):
        floats(name, value, "")
    field, mu = first_member(make, axes)
    if mu.own_steps(array(1.0, mu.dtype)) is not None and not (rtol is None and atol is None):
        raise ValueError(f"a {type(mu).__name__} is stepped by its own scheme, got rtol or atol; leave them out, or give step=")
    if len(numbers_of_seeds) > 1:
        check_key(make, axes, numbers_of_seeds)
    span = times(t0, t1, save_at, mu.dtype)
    fixed = None if step is None else positive("step", step).astype(mu.dtype)
    limits = _tolerances(rtol, atol, mu.dtype)
    numbers = Numbers(span.since(mu.dtype), *limits, fixed, fitted(until, *limits))
    way = way_of(field, mu, step)
    plan = Plan(make, looks, way, max_steps, way == "circle" and native.available())
    _look(plan, mu)
    members = _members(axes, numbers_of_seeds, batch or _batch_size(mu, plan.way))
    store = None if out is None else _store(out, plan, numbers, axes, members)
    return _dataset(_run(plan, numbers, members, store, progress), plan, axes, numbers_of_seeds, np.asarray(labels(span.ts, mu.dtype)))


def over_seeds(data: "xarray.Dataset") -> tuple["xarray.Dataset", "xarray.Dataset"]:
    r"""The mean over the seeds of a sweep, and its standard error $s / \sqrt{n}$ for $n$ seeds, $s$ with the divisor $n - 1$."""
    if not hasattr(data, "drop_vars") or "seed" not in data.dims:
        raise TypeError(check.refusal("data", "the dataset of a sweep, with the dimension seed", data))
    values = data.drop_vars([name for name in ("status", "ended", "steps") if name in data])
    return values.mean("seed", skipna=False), values.std("seed", ddof=1, skipna=False) / np.sqrt(data.sizes["seed"])


class Members(NamedTuple):
    """Every member in order, the seed changing fastest: their seeds and parameters; and how many make a batch."""

    seeds: np.ndarray
    parameters: dict[str, np.ndarray]
    batch: int

    @property
    def starts(self) -> range:
        return range(0, len(self.seeds), self.batch)

    def part(self, start: int) -> tuple[Any, dict[str, jax.Array], int]:
        """Keys and parameters of a batch, and how many of them are real: the last batch is filled up with its last member."""
        rows = np.minimum(np.arange(start, start + self.batch), len(self.seeds) - 1)
        keys = jax.vmap(jax.random.key)(jnp.asarray(self.seeds[rows]))
        return keys, {name: jnp.asarray(a[rows]) for name, a in self.parameters.items()}, min(self.batch, len(self.seeds) - start)


def _run(plan: Plan, numbers: Numbers, members: Members, store: Store | None, progress: bool) -> "xarray.Dataset":
    """All batches, one after the other along `member`; those in the folder are read."""
    import xarray
    from rich.progress import Progress

    done = [] if store is None else store.blocks()
    rest, double = range(len(done), len(members.starts)), bool(jax.config.read("jax_enable_x64"))

    def one(index: int) -> Any:
        # The precision is a setting of a thread.
        with jax.enable_x64(double):
            return _block(plan, numbers, members, members.starts[index])

    def blocks(pool: ThreadPoolExecutor) -> Iterator[Any]:
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


def _block(plan: Plan, numbers: Numbers, members: Members, start: int) -> "xarray.Dataset":
    """One batch, computed: the observables and ends of its members."""
    import xarray

    keys, parameters, count = members.part(start)
    values, ends = run_batch(plan, numbers, keys, parameters)
    variables: dict[str, Any] = {
        name: (("member", "time", *(f"{name}_{axis}" for axis in range(a.ndim - 2))), np.moveaxis(np.asarray(a), -1, 0))
        for name, a in values.items()
    }
    variables |= {
        "status": ("member", np.asarray(ends.status, np.int8)),
        "ended": ("member", float(numbers.span.start) + np.asarray(ends.time, np.float64)),
    }
    variables |= {"steps": ("member", np.asarray(ends.steps))}
    return xarray.Dataset(variables).isel(member=slice(0, count))


def _dataset(whole: "xarray.Dataset", plan: Plan, axes: dict[str, np.ndarray], seeds: np.ndarray, ts: np.ndarray) -> "xarray.Dataset":
    """The members on their grid."""
    import xarray

    shape = (*map(len, axes.values()), len(seeds))
    variables = {str(name): ((*axes, "seed", *a.dims[1:]), a.values.reshape(*shape, *a.shape[1:])) for name, a in whole.data_vars.items()}
    return xarray.Dataset(variables, coords={**axes, "seed": seeds, "time": ts}, attrs={"way": plan.way})


def _axes(make: Any, grid: Any) -> dict[str, np.ndarray]:
    """The values of the parameters, refused unless `make` takes just these."""
    check.function("make", make, "a function make(key, **parameters) -> (field, mu)")
    if not isinstance(grid, dict) or not grid:
        raise ValueError(check.refusal("grid", "a dict of names and values with at least one parameter", grid))
    parameters = list(inspect.signature(make).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    unknown = [name for name in grid if name not in names]
    if unknown and not any(p.kind == p.VAR_KEYWORD for p in parameters):
        takes = ", ".join(map(repr, names)) or "only a key"
        raise ValueError(f"make must take the parameters of the grid, got {', '.join(map(repr, unknown))}; it takes {takes}")
    missing = [p.name for p in parameters if p.name in names and p.default is p.empty and p.name not in grid]
    if missing:
        raise ValueError(f"make needs {', '.join(map(repr, missing))} too; add it to the grid, or bind it before")
    taken = [name for name in grid if name in _TAKEN]
    if taken:
        raise ValueError(f"{taken[0]!r} is a name of the result, got it for a parameter; give the grid another name")
    return {name: np.asarray(floats(f"grid[{name!r}]", values, "k")) for name, values in grid.items()}


def _seeds(seeds: Any) -> np.ndarray:
    if isinstance(seeds, int | np.integer) and not isinstance(seeds, bool):
        found = np.arange(int(seeds))
    else:
        found = np.asarray(seeds if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str) else [])
    fine = found.ndim == 1 and found.size > 0 and np.issubdtype(found.dtype, np.integer)
    if not fine or found.min() < 0 or found.max() >= 2**31 or len(set(found.tolist())) != len(found):
        raise ValueError(check.refusal("seeds", "a positive count or different integers from 0 on", seeds))
    return found


def _tolerances(rtol: Any, atol: Any, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """Those given, or those of `solve`."""
    given = [default(name, dtype) if value is None else value for name, value in (("rtol", rtol), ("atol", atol))]
    return positive("rtol", given[0]).astype(dtype), positive("atol", given[1]).astype(dtype)


def _observables(observe: Any, axes: dict[str, np.ndarray]) -> tuple[tuple[str, Callable], ...]:
    if not isinstance(observe, dict) or not observe:
        raise TypeError(check.refusal("observe", "a dict of functions of the measure, at least one", observe))
    for name, function in observe.items():
        check.function(f"observe[{name!r}]", function, "a function of the measure, compiled")
        if name in _TAKEN or name in axes:
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


def _batch_size(mu: Any, way: str) -> int:
    numbers = sum(leaf.size for leaf in jax.tree.leaves(mu.state))
    if isinstance(mu, Particles):
        numbers = len(mu.points) * max(mu.points.shape)
    return int(np.clip(_PAIRS[way] // numbers, 8, _MEMBERS[way]))


def _members(axes: dict[str, np.ndarray], seeds: np.ndarray, batch: int) -> Members:
    """All of them, in batches of nearly the size asked for that waste little of the last one."""
    points = np.array(list(itertools.product(*axes.values())))
    parameters = {name: np.repeat(points[:, i], len(seeds)).astype(a.dtype) for i, (name, a) in enumerate(axes.items())}
    count = len(points) * len(seeds)
    return Members(np.tile(seeds, len(points)), parameters, -(-count // -(-count // batch)))


def _store(out: Any, plan: Plan, numbers: Numbers, axes: dict[str, np.ndarray], members: Members) -> Store:
    """The folder of the sweep. Two functions are the same if they compile to the same program, with the same constants."""

    def program(key: Any, values: Any) -> Any:
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
        batch=members.batch,
        # Large clouds elsewhere name the kernel in their program.
        native=plan.native or "attnflow_softmax" in str(compiled.jaxpr),
    )
    return Store.open(out, mark, about)
