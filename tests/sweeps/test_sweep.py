"""Sweeps against single runs, closed forms, themselves after a break, and bad input."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.sweeps import batch, sweep

BETAS = [0.5, 4.0]


def cosine(mu):
    """The mean of <x_i, x_j> over all pairs, i = j too."""
    return jnp.sum(mu.mean**2)


def softmax(key, beta):
    return af.simple_attention(beta, 2), af.samplers.sphere(6, 2, key=key)


def weighted(key, beta, scale):
    """General matrices, weights, no normalization."""
    turn, start, mass = jax.random.split(key, 3)
    A, V = jax.random.normal(turn, (2, 2, 2))
    mu = af.Particles(af.samplers.sphere(5, 2, key=start).points, weights=jax.random.uniform(mass, (5,)), space=af.Sphere())
    return af.Attention(af.dot_product(beta * A, jnp.eye(2)), V, af.Unnormalized(scale)), mu


def gaussian(key, a):
    return af.Attention(af.dot_product(a * jnp.eye(2), jnp.eye(2)), -jnp.eye(2)), af.Gaussian(jax.random.normal(key, (2,)), jnp.eye(2))


@pytest.mark.parametrize(
    ("make", "grid", "way"),
    [
        (softmax, {"beta": BETAS}, "circle"),
        (weighted, {"beta": BETAS, "scale": [-1.0, 0.0]}, "circle"),
        (gaussian, {"a": [0.5, 1.0, 2.0]}, "in turn"),
    ],
)
@pytest.mark.long
def test_equal_to_solve_one_by_one(make, grid, way):
    observe = {"cosine": cosine, "mean": lambda mu: mu.mean}
    ts = [0.0, 0.3, 1.1, 1.5]
    found = af.sweep(make, grid, [3, 5], 1.5, save_at=ts, observe=observe, rtol=1e-9, atol=1e-11)
    assert found.attrs["way"] == way
    assert found.cosine.dims == (*grid, "seed", "time")
    assert found["mean"].dims == (*grid, "seed", "time", "mean_0")
    for point in (0, -1):
        values = {name: values[point] for name, values in grid.items()}
        field, mu = make(jax.random.key(5), **values)
        path = af.solve(field, mu, 1.5, save_at=ts, rtol=1e-10, atol=1e-12, observe=observe)
        member = found.sel(values | {"seed": 5})
        np.testing.assert_allclose(member.cosine, path.observed["cosine"].values, atol=2e-8)
        np.testing.assert_allclose(member["mean"], path.observed["mean"].values, atol=2e-8)
    assert (found.status == 0).all()
    assert (found.ended == 1.5).all()


@pytest.mark.long
def test_with_and_without_the_compiled_kernel(monkeypatch):
    def found():
        return af.sweep(weighted, {"beta": [1.0], "scale": [0.0]}, 4, 1.0, save_at=3, observe={"cosine": cosine}, rtol=1e-9).cosine.values

    kernel = found()
    monkeypatch.setenv("ATTNFLOW_NATIVE", "0")
    np.testing.assert_allclose(found(), kernel, rtol=1e-10)


@pytest.mark.long
def test_both_ways_agree(monkeypatch):
    """The stepper on the circle against that of `solve`, with an event that some members meet."""
    arguments: dict[str, Any] = {
        "grid": {"beta": BETAS},
        "seeds": 4,
        "t1": 6.0,
        "save_at": 13,
        "observe": {"cosine": cosine},
        "rtol": 1e-8,
        "until": af.Consensus(0.05),
    }
    fast = af.sweep(softmax, **arguments)
    monkeypatch.setattr(sweep, "way_of", lambda *_: "any")
    slow = af.sweep(softmax, **arguments)
    assert (fast.attrs["way"], slow.attrs["way"]) == ("circle", "any")
    np.testing.assert_array_equal(fast.status, slow.status)
    assert set(np.unique(fast.status)) == {0, 1}
    for result in (fast, slow):
        # The event is looked at after a step, and steps differ; until then the two agree, and from then on nothing changes.
        before = result.time < np.minimum(fast.ended, slow.ended)
        np.testing.assert_allclose(fast.cosine.where(before, 0), slow.cosine.where(before, 0), atol=1e-6)
        after = result.time >= result.ended
        np.testing.assert_array_equal(result.cosine.where(after, 0), result.cosine.isel(time=-1).where(after, 0))


@pytest.mark.long
def test_orthonormal_tokens_follow_the_scalar_equation():
    def make(key, beta):
        return af.simple_attention(beta, 2), af.samplers.orthonormal(2, 2, key=key)

    found = af.sweep(make, {"beta": BETAS}, 2, 3.0, save_at=7, observe={"cosine": lambda mu: mu.points[0] @ mu.points[1]}, rtol=1e-9)
    for beta in BETAS:
        expected = af.theory.equiangular(2, beta, found.time.values)
        for seed in (0, 1):
            np.testing.assert_allclose(found.cosine.sel(beta=beta, seed=seed), expected, atol=1e-7)


@pytest.mark.long
def test_single_precision_and_means():
    def make(key, beta):
        return af.simple_attention(beta, 2), af.samplers.sphere(6, 2, key=key, dtype=jnp.float32)

    coarse = af.sweep(make, {"beta": BETAS}, 5, 3.0, save_at=4, observe={"cosine": cosine}, rtol=1e-3)
    fine = af.sweep(softmax, {"beta": BETAS}, 5, 3.0, save_at=4, observe={"cosine": cosine})
    assert coarse.cosine.dtype == np.float32
    assert coarse.steps.max() < fine.steps.min()
    # Draws in the two precisions are different numbers, so that only the sampling error ties them.
    mean, error = af.over_seeds(fine)
    values = fine.cosine.values
    np.testing.assert_allclose(mean.cosine, values.mean(axis=1), rtol=1e-12)
    np.testing.assert_allclose(error.cosine, values.std(axis=1, ddof=1) / np.sqrt(5), rtol=1e-12)
    field, mu = make(jax.random.key(2), 4.0)
    alone = af.solve(field, mu, 3.0, save_at=4, observe={"cosine": cosine}).observed["cosine"].values
    np.testing.assert_allclose(coarse.cosine.sel(beta=4.0, seed=2), alone, atol=5e-3)


@pytest.mark.long
def test_batches_compile_once():
    traced = []

    def make(key, beta):
        traced.append(beta)
        return softmax(key, beta)

    arguments: dict[str, Any] = {"grid": {"beta": BETAS}, "seeds": 5, "save_at": 2, "observe": {"cosine": cosine}}
    one = af.sweep(make, **arguments, t1=0.5, batch=10)
    # Once to look at a member, once for the batch; other numbers change nothing.
    assert len(traced) == 2
    af.sweep(make, **(arguments | {"grid": {"beta": [1.0, 2.0]}}), t1=0.6, batch=10, rtol=1e-4)
    assert len(traced) == 2
    many = af.sweep(make, **arguments, t1=0.5, batch=3)
    assert len(traced) == 3
    np.testing.assert_allclose(one.cosine, many.cosine, rtol=1e-12)


@pytest.mark.long
def test_a_sweep_goes_on_after_a_break(tmp_path, monkeypatch):
    arguments: dict[str, Any] = {"grid": {"beta": BETAS}, "seeds": 4, "t1": 1.0, "save_at": 3, "observe": {"cosine": cosine}, "batch": 2}
    whole = af.sweep(softmax, **arguments)
    calls = []

    def breaking(*args):
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return batch.run_batch(*args)

    monkeypatch.setattr(sweep, "run_batch", breaking)
    with pytest.raises(KeyboardInterrupt):
        af.sweep(softmax, **arguments, out=tmp_path / "run")
    broken = len(calls)
    rest = af.sweep(softmax, **arguments, out=tmp_path / "run")
    whole_calls = len(calls)
    # Batches run side by side, so that more than one may be lost; never the first, which was written.
    assert 0 < whole_calls - broken < 4
    read = af.sweep(softmax, **arguments, out=tmp_path / "run")
    assert len(calls) == whole_calls
    for result in (rest, read):
        assert result.identical(whole)
    changes: list[dict[str, Any]] = [{"t1": 2.0}, {"seeds": 5}, {"grid": {"beta": [0.5, 4.1]}}]
    for change in [*changes, {"observe": {"cosine": lambda mu: 2 * cosine(mu)}}]:
        with pytest.raises(ValueError, match="holds another run"):
            af.sweep(softmax, **(arguments | change), out=tmp_path / "run")


@pytest.mark.long
def test_a_member_that_fails_is_named():
    def make(key, beta):
        return af.Attention(af.dot_product(beta * jnp.eye(1), jnp.eye(1)), jnp.eye(1)), af.Gaussian(jnp.ones(1), jnp.eye(1))

    # S' = 2 beta S^2 blows up at 1 / (2 beta).
    with pytest.warns(UserWarning, match="1 of 2 members blew up, spent max_steps"):
        found = af.sweep(make, {"beta": [0.1, 1.0]}, 1, 1.0, save_at=4, observe={"cov": lambda mu: mu.cov[0, 0]}, max_steps=2000)
    assert found.status.values.tolist() == [[0], [2]]
    np.testing.assert_allclose(found["cov"][0, 0], 1 / (1 - 0.2 * found.time), rtol=1e-5)
    np.testing.assert_array_equal(np.isnan(found["cov"][1, 0]), [False, False, True, True])


@pytest.mark.long
def test_progress(capsys):
    af.sweep(softmax, {"beta": BETAS}, 1, 0.1, save_at=1, observe={"cosine": cosine}, progress=True)
    assert "sweep" in capsys.readouterr().out


GOOD: dict[str, Any] = {"make": softmax, "grid": {"beta": BETAS}, "seeds": 2, "t1": 1.0, "save_at": 3, "observe": {"cosine": cosine}}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {"gamma": [1.0]}}, "make must take the parameters of the grid, got 'gamma'; it takes 'beta'"),
        ({"make": weighted}, "make needs 'scale' too"),
        ({"grid": {}}, "grid must be a dict of names and values with at least one parameter"),
        ({"grid": {"beta": []}}, r"grid\['beta'\] must not be empty"),
        ({"grid": {"beta": 1.0}}, r"grid\['beta'\] must have shape \[k\]"),
        ({"grid": {"beta": [1.0, np.nan]}}, r"grid\['beta'\] must be finite"),
        ({"seeds": 2.0}, "seeds must be a positive count or different integers from 0 on, got 2.0"),
        ({"seeds": 0}, "seeds must be a positive count"),
        ({"seeds": [1, 1]}, "seeds must be a positive count or different integers"),
        ({"seeds": [0.5]}, "seeds must be a positive count"),
        ({"observe": None}, "observe must be a dict of functions"),
        ({"observe": {"cosine": "cosine"}}, r"observe\['cosine'\] must be a function of the measure, compiled, got 'cosine'"),
        ({"observe": {"beta": cosine}}, "'beta' is the name of something else"),
        ({"observe": {"cosine": lambda mu: mu.nothing}}, r"observe\['cosine'\] must give a number or an array for Particles"),
        ({"save_at": [0.5, 0.2]}, "save_at must be increasing"),
        ({"save_at": [0.5, 2.0]}, r"save_at must lie in \[t0, t1\]"),
        ({"save_at": 0}, "save_at must be at least 1"),
        ({"t1": -1.0}, "t1 must be later than t0"),
        ({"rtol": 0.0}, "rtol must be positive"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"make": lambda key, beta: af.simple_attention(beta, 2)}, r"make must return \(field, mu\)"),
        ({"make": lambda key, beta: softmax(key, float(beta))}, "make cannot be compiled, as parameters have no value yet"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(change, message, monkeypatch):
    monkeypatch.setattr(sweep, "run_batch", None)
    with pytest.raises((ValueError, TypeError), match=message):
        af.sweep(**(GOOD | change))


@pytest.mark.long
def test_a_grid_too_coarse_for_a_member_is_no_result():
    """Cells of width 2 pi / 16 carry kernels of width 1, not of 0.01."""

    def make(key, beta):
        return af.simple_attention(beta, 2), af.Grid.uniform([af.Circle(16)])

    with pytest.warns(UserWarning, match="1 of 2 members blew up, spent max_steps or have a kernel narrower than a cell"):
        found = af.sweep(make, {"beta": [1.0, 1e4]}, 1, 0.01, observe={"length": af.order_parameter})
    assert found.status.values.ravel().tolist() == [0, 2]
    assert np.isfinite(found["length"].values).all(axis=-1).ravel().tolist() == [True, False]
