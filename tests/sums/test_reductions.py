"""The one primitive: every engine against a plain NumPy sum, and derivatives that stay small in memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

import attnflow as af
from attnflow.sums import Atoms, Rows, average, log_integral, nearest_average
from attnflow.sums.engines.reductions import softmax

ENGINES = [af.Dense(), af.Streamed(4, 3, native=False), af.Streamed(64, 64, native=False), af.Streamed()]


def reference(logits, log_weights, values):
    scores = logits + log_weights
    norm = logsumexp(scores, axis=1)
    return norm, np.exp(scores - norm[:, None]) @ values


@given(
    m=st.integers(1, 9),
    n=st.integers(1, 11),
    d=st.integers(1, 4),
    beta=st.sampled_from([0.0, 1.0, 30.0, -5.0]),
    seed=st.integers(0, 99),
)
def test_engines_agree_with_numpy(m, n, d, beta, seed):
    rng = np.random.default_rng(seed)
    x, y, w = rng.normal(size=(m, d)), rng.normal(size=(n, d)), rng.random(n) * (rng.random(n) > 0.3)
    w[rng.integers(n)] = 1.0
    with np.errstate(divide="ignore"):
        log_w = np.log(w)
    logit = af.Quadratic(beta * jnp.eye(d))
    expected = reference(beta * x @ y.T, log_w, y)
    for engine in ENGINES:
        atoms = Atoms(jnp.asarray(y), jnp.asarray(log_w))
        norm, mean = average(logit, jnp.asarray(x), atoms, engine)
        np.testing.assert_allclose(norm, expected[0], rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(mean, expected[1], rtol=1e-11, atol=1e-12)
        np.testing.assert_allclose(log_integral(logit, jnp.asarray(x), atoms, engine), expected[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.long
def test_derivatives_against_plain_autodiff(rng, engine):
    q, k, b, v = (jnp.asarray(rng.normal(size=s)) for s in [(10, 3), (13, 3), (13,), (13, 2)])
    b = b.at[2].set(-jnp.inf)

    def plain(q, k, b, v):
        scores = q @ k.T + b[None]
        return jax.nn.logsumexp(scores, axis=1), jax.nn.softmax(scores, axis=1) @ v

    def loss(f):
        return lambda *a: jnp.sum(jnp.sin(f(*a)[0])) + jnp.sum(jnp.cos(f(*a)[1]))

    ours = lambda q, k, b, v: softmax(engine, Rows(q, k, b), v)  # noqa: E731
    tangents = tuple(jnp.asarray(rng.normal(size=a.shape)) for a in (q, k, b, v))
    for got, expected in zip(jax.jvp(ours, (q, k, b, v), tangents)[1], jax.jvp(plain, (q, k, b, v), tangents)[1], strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    ours_grad, plain_grad = (jax.grad(loss(f), argnums=(0, 1, 2, 3))(q, k, b, v) for f in (ours, plain))
    for got, expected in zip(ours_grad, plain_grad, strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)
    hessians = [jax.jvp(jax.grad(loss(f)), (q, k, b, v), tangents)[1] for f in (ours, plain)]
    np.testing.assert_allclose(hessians[0], hessians[1], atol=1e-11)


def _temporary_bytes(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("derivative", ["value", "vjp", "jvp"])
@pytest.mark.cases
def test_streamed_memory_is_linear(derivative):
    def velocity(x):
        mu = af.Particles(x)
        return af.simple_attention(1.0, 3).at(mu, sums=af.Streamed(native=False))(x)

    functions = {
        "value": velocity,
        "vjp": jax.grad(lambda x: jnp.sum(velocity(x) ** 2)),
        "jvp": lambda x: jax.jvp(velocity, (x,), (x,))[1],
    }
    small, large = (_temporary_bytes(functions[derivative], jnp.ones((n, 3), jnp.float32)) for n in (2**14, 2**16))
    assert large < 200e6  # one n x n array of float32 would be 17e9 bytes
    assert large < 6 * small


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.cases
def test_low_temperature_and_coincident_tokens(engine):
    points = jnp.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    atoms = Atoms(points, jnp.log(jnp.full(4, 0.25)))
    norm, mean = average(af.Quadratic(1e6 * jnp.eye(2)), points, atoms, engine)
    np.testing.assert_allclose(norm, 1e6 + np.log([0.5, 0.5, 0.25, 0.25]), rtol=1e-15)
    np.testing.assert_allclose(mean, points, atol=1e-15)
    np.testing.assert_allclose(nearest_average(af.Quadratic(jnp.eye(2)), points, atoms, engine), points, atol=1e-15)


@pytest.mark.parametrize("engine", ENGINES)
def test_ties_are_shared_by_mass_and_massless_keys_are_not_seen(engine):
    points = jnp.array([[0.6, 0.8], [0.8, 0.6], [5.0, 5.0]])
    atoms = Atoms(points, jnp.log(jnp.array([0.25, 0.75, 0.0])))
    # Both massive keys have the same product with (1, 1), up to round-off.
    got = nearest_average(af.Quadratic(jnp.eye(2)), jnp.array([[1.0, 1.0]]), atoms, engine)
    np.testing.assert_allclose(got, [[0.25 * 0.6 + 0.75 * 0.8, 0.25 * 0.8 + 0.75 * 0.6]], rtol=1e-14)


@pytest.mark.parametrize("engine", ENGINES)
def test_results_repeat_bitwise(rng, engine):
    q, k, b, v = (jnp.asarray(rng.normal(size=s)) for s in [(50, 3), (70, 3), (70,), (70, 3)])
    first, second = softmax(engine, Rows(q, k, b), v), softmax(engine, Rows(q, k, b), v)
    np.testing.assert_array_equal(first[1], second[1])


def test_the_choice_of_engine():
    from attnflow.sums import choose, native

    assert choose(100, 100) == af.Dense()
    assert isinstance(choose(100_000, 100_000), af.Streamed)
    assert choose(10, 10, af.Streamed(8, 8, native=False)) == af.Streamed(8, 8, native=False)
    assert choose(10, 10, af.Streamed(8, 8)) == af.Streamed(8, 8, native=native.available())


def test_a_tile_is_not_empty():
    with pytest.raises(ValueError, match="queries must be at least 1, got 0"):
        af.Streamed(0, 5)


def test_what_is_not_an_engine_is_named():
    from attnflow.sums.engines.choose import check_request

    with pytest.raises(TypeError, match=r"sums must be None, Dense.*got 'fast'"):
        check_request("fast")
