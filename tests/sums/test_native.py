"""The compiled kernel against float64 NumPy, Dense and itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

import attnflow as af
from attnflow.sums import Rows, native
from attnflow.sums.engines.choose import choose
from attnflow.sums.engines.reductions import softmax

needs_kernel = pytest.mark.skipif(not native.available(), reason=f"the compiled kernel is off: {native.status().why}")
DTYPES = [np.float32, np.float64]


def exact(q, k, b, v):
    """The sums in float64, and the size of a logit's terms: rounding is in proportion to it."""
    q, k, b, v = (np.asarray(a, np.float64) for a in (q, k, b, v))
    scores = q @ k.T + b
    size = np.abs(q) @ np.abs(k).T + np.abs(np.where(np.isfinite(b), b, 0))
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    return logsumexp(scores, axis=1), p @ v / p.sum(axis=1, keepdims=True), size.max()


def sample(rng, m, n, d, e, dtype, scale=1.0):
    return tuple(jnp.asarray((a * rng.normal(size=s)).astype(dtype)) for a, s in [(scale, (m, d)), (1, (n, d)), (1, n), (1, (n, e))])


def check(got, q, k, b, v):
    norm, mean, size = exact(q, k, b, v)
    # Any order of d sums keeps a logit to about sqrt(d) roundings of its terms; e^l and its sums add a few more.
    eps = np.finfo(q.dtype).eps * (8 + 2 * size)
    assert got[0].dtype == got[1].dtype == q.dtype
    np.testing.assert_allclose(got[0], norm, rtol=0, atol=eps)
    np.testing.assert_allclose(got[1], mean, rtol=0, atol=eps * np.abs(v).max(initial=1))


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [1, 2, 3, 5, 8, 16, 33, 64, 256])
@pytest.mark.cases
def test_against_numpy(rng, d, dtype):
    for m, n in [(1, 1), (1, 300), (25, 1), (101, 515)]:
        for e in sorted({0, 1, d}):
            q, k, b, v = sample(rng, m, n, d, e, dtype, 1 / np.sqrt(d))
            check(native.softmax(q, k, b, v), q, k, b, v)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.cases
def test_keys_without_mass(rng, dtype):
    q, k, b, v = sample(rng, 30, 300, 3, 3, dtype)
    # The first tile of keys has none at all.
    b = b.at[:140].set(-jnp.inf).at[200].set(-jnp.inf)
    got = native.softmax(q, k, b, v)
    check(got, q, k, b, v)
    # They leave no trace, however large their value.
    again = native.softmax(q, k, b, v.at[200].set(1e30))
    np.testing.assert_array_equal(got[1], again[1])
    log_sum, mean = native.softmax(q, k, jnp.full(300, -jnp.inf, dtype), v)
    assert np.all(log_sum == -np.inf)
    assert np.all(mean == 0)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1e-6, 30.0, 1e6])
def test_any_temperature(rng, dtype, scale):
    # Whole numbers have exact products, so that the order of sums does not show even if logits are huge.
    q, k = (jnp.asarray(rng.integers(-3, 4, size=s).astype(dtype)) for s in [(50, 3), (400, 3)])
    q, b, v = dtype(scale) * q, jnp.zeros(400, dtype), jnp.asarray(rng.normal(size=(400, 3)).astype(dtype))
    log_sum, mean = native.softmax(q, k, b, v)
    norm, expected, _ = exact(q, k, b, v)
    np.testing.assert_allclose(log_sum, norm, rtol=8 * np.finfo(dtype).eps)
    np.testing.assert_allclose(mean, expected, rtol=0, atol=20 * np.finfo(dtype).eps)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.cases
def test_a_maximum_that_keeps_rising(dtype):
    # Each tile has larger logits than those before, by little and by much.
    for step in (0.01, 0.3, 4.0):
        k = jnp.arange(1000, dtype=dtype)[:, None] * dtype(step)
        q, b = jnp.ones((3, 1), dtype), jnp.zeros(1000, dtype)
        for rows in (slice(None), slice(None, None, -1)):
            check(native.softmax(q, k[rows], b, k[rows] / 100), q, k[rows], b, k[rows] / 100)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.cases
def test_the_whole_range_of_the_exponential(dtype):
    # A key with logit 0 and one with logit -t: the mean of (0, 1) is e^-t / (1 + e^-t).
    t = np.concatenate([np.linspace(0, 750, 30001), [1e4, 1e30]]).astype(dtype)
    q, k = jnp.asarray(-t[:, None]), jnp.asarray([[0.0], [1.0]], dtype)
    _, mean = native.softmax(q, k, jnp.zeros(2, dtype), k)
    p = np.exp(-t.astype(np.float64))
    normal = p > np.finfo(dtype).tiny
    np.testing.assert_allclose(mean[normal, 0], (p / (1 + p))[normal], rtol=(5 if dtype == np.float32 else 3) * np.finfo(dtype).eps)
    assert np.all(np.abs(mean[~normal, 0]) <= np.finfo(dtype).tiny)
    assert mean[-1, 0] == 0


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
def test_coincident_tokens(dtype):
    q = jnp.full((70, 4), 0.3, dtype)
    log_sum, mean = native.softmax(1e5 * q, q, jnp.full(70, -np.log(70), dtype), q)
    np.testing.assert_allclose(mean, q, rtol=16 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(log_sum, jnp.full_like(log_sum, log_sum[0]))


@needs_kernel
@pytest.mark.parametrize("where", range(4))
@pytest.mark.parametrize("d", [3, 20])
def test_nan_is_not_lost(rng, where, d):
    arrays = list(sample(rng, 30, 200, d, d, np.float64))
    arrays[where] = arrays[where].at[7].set(jnp.nan)
    log_sum, mean = native.softmax(*arrays)
    if where == 0:
        assert np.isnan(log_sum[7])
        assert np.isnan(mean[7]).all()
        assert np.isfinite(np.delete(np.asarray(mean), 7, axis=0)).all()
    else:
        assert np.isnan(mean).all()
        assert np.isnan(log_sum).all() == (where != 3)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d", [2, 19])
@pytest.mark.cases
def test_results_repeat_bitwise_on_any_number_of_threads(rng, dtype, d):
    q, k, b, v = sample(rng, 1001, 500, d, d, dtype, 5.0)
    first = native.softmax(q, k, b, v)
    for threads in (0, 1, 2, 3, 7):
        for got, expected in zip(native.softmax(q, k, b, v, threads=threads), first, strict=True):
            np.testing.assert_array_equal(got, expected)
    # A query alone gets the same as in company.
    np.testing.assert_array_equal(native.softmax(q[5:6], k, b, v)[1][0], first[1][5])


@needs_kernel
def test_vmap_is_a_loop(rng):
    q, k, b, v = (jnp.stack(a) for a in zip(*[sample(rng, 9, 11, 3, 2, np.float64) for _ in range(4)], strict=True))
    got = jax.vmap(native.softmax)(q, k, b, v)
    np.testing.assert_array_equal(got[1][2], native.softmax(q[2], k[2], b[2], v[2])[1])


@needs_kernel
def test_many_sums_at_a_time(rng):
    # More calls under way than threads: none may wait for a thread that waits for it.
    q, k, b, v = sample(rng, 500, 500, 2, 2, np.float64)
    expected = native.softmax(q, k, b, v)[1]
    for got in [jax.jit(native.softmax)(q, k, b, v)[1] for _ in range(40)]:
        np.testing.assert_array_equal(got, expected)
    chain = jax.jit(lambda q: sum(native.softmax(q + i, k, b, v)[1] for i in range(8)))
    np.testing.assert_array_equal(chain(q), chain(q))


@needs_kernel
@pytest.mark.parametrize("d", [2, 6])
@pytest.mark.long
def test_derivatives_are_those_of_dense(rng, d):
    primals = sample(rng, 20, 33, d, 3, np.float64)
    primals = (*primals[:2], primals[2].at[4].set(-jnp.inf), primals[3])
    tangents = tuple(jnp.asarray(rng.normal(size=a.shape)) for a in primals)
    engines = af.Streamed(8, 8, native=True), af.Dense()
    forward = [jax.jvp(lambda *a, e=e: softmax(e, Rows(*a[:3]), a[3]), primals, tangents) for e in engines]
    loss = lambda e: lambda *a: jnp.sum(jnp.sin(softmax(e, Rows(*a[:3]), a[3])[0])) + jnp.sum(jnp.cos(softmax(e, Rows(*a[:3]), a[3])[1]))  # noqa: E731
    backward = [jax.grad(loss(e), argnums=(0, 1, 2, 3))(*primals) for e in engines]
    for got, expected in zip(jax.tree.leaves((forward[0], backward[0])), jax.tree.leaves((forward[1], backward[1])), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-12)


@needs_kernel
def test_the_velocity_of_a_law(rng):
    points = rng.normal(size=(60, 3))
    law = af.simple_attention(2.0, 3)
    mu = af.Particles(points, weights=rng.random(60) + 0.1)
    tiles, kernel = (law.at(mu, sums=af.Streamed(native=native))(mu.points) for native in (False, True))
    np.testing.assert_allclose(kernel, tiles, atol=1e-14)
    assert "custom-call" in jax.jit(lambda x: law.at(mu, sums=af.Streamed())(x)).lower(mu.points).compile().as_text()


@needs_kernel
@pytest.mark.long
def test_it_can_be_turned_off_and_the_path_says_so(rng, monkeypatch, tmp_path):
    mu, law = af.Particles(rng.normal(size=(9, 2))), af.simple_attention(1.0, 2)
    run = lambda: af.solve(law, mu, t1=0.2, save_at=2, sums=af.Streamed(), out=tmp_path / "run")  # noqa: E731
    assert "native=True" in run().stats["engine"]
    monkeypatch.setenv("ATTNFLOW_NATIVE", "0")
    assert not native.available()
    assert "native=False" in af.layers(law, mu, 1, step=0.1, sums=af.Streamed()).stats["engine"]
    assert choose(10, 10, af.Streamed()) == af.Streamed(native=False)
    # The rest of a run must come from the same sums as its beginning.
    with pytest.raises(ValueError, match=r"another run .begun with sums .*native=True"):
        run()
    with pytest.raises(ValueError, match=r"native=True needs the compiled kernel: .*ATTNFLOW_NATIVE=0 turns it off; unset it"):
        af.Streamed(native=True)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("d", "e"), [(2, 2), (7, 9)])
@pytest.mark.long
def test_the_first_keys_only(rng, dtype, d, e):
    q, k, b, v = sample(rng, 203, 400, d, e, dtype)
    seen = rng.integers(1, 401, size=203).astype(np.int32)
    hidden = np.arange(400)[None] >= seen[:, None]
    for order in (np.arange(203), np.argsort(seen)):
        log_sum, mean = native.softmax(q[order], k, b, v, jnp.asarray(seen[order]))
        scores = np.where(hidden, -np.inf, np.asarray(q, np.float64) @ np.asarray(k, np.float64).T + np.asarray(b, np.float64))
        norm = logsumexp(scores, axis=1)
        np.testing.assert_allclose(log_sum, norm[order], rtol=0, atol=100 * np.finfo(dtype).eps)
        np.testing.assert_allclose(mean, (np.exp(scores - norm[:, None]) @ v)[order], rtol=0, atol=100 * np.finfo(dtype).eps)
    nothing = native.softmax(q, k, b, v, jnp.asarray(seen).at[3].set(0))
    assert nothing[0][3] == -np.inf
    assert np.all(nothing[1][3] == 0)
    np.testing.assert_array_equal(native.softmax(q, k, b, v, jnp.full(203, 400, jnp.int32))[1], native.softmax(q, k, b, v)[1])


@needs_kernel
@pytest.mark.long
def test_causal_laws(rng):
    # Tokens in any order, some at the same place.
    mu = af.Particles(rng.normal(size=(300, 3)), order=rng.integers(-20, 20, size=300))
    law = af.simple_attention(2.0, 3, mask=af.Causal())
    rate = lambda sums: jax.jit(lambda x: mu.with_state(x).rate(law.at(mu.with_state(x), sums=sums)))  # noqa: E731
    kernel, dense = (rate(sums) for sums in (af.Streamed(native=True), af.Dense()))
    assert "custom-call" in kernel.lower(mu.points).compile().as_text()
    np.testing.assert_allclose(kernel(mu.points), dense(mu.points), atol=1e-13)
    change = jnp.asarray(rng.normal(size=(300, 3)))
    np.testing.assert_allclose(*(jax.jvp(f, (mu.points,), (change,))[1] for f in (kernel, dense)), atol=1e-12)


def test_other_masks_and_reductions_go_on_with_tiles(rng):
    mu = af.Particles(rng.normal(size=(20, 3)), order=rng.random(20))
    for law in (af.simple_attention(1.0, 3, mask=af.Window(0.3)), af.simple_attention(1.0, 3, af.Hardmax())):
        np.testing.assert_allclose(mu.rate(law.at(mu, sums=af.Streamed())), mu.rate(law.at(mu)), atol=1e-13)


@needs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 16), (5, 3), (32, 37), (33, 64)])
@pytest.mark.parametrize(("scale", "biased"), [(1.0, False), (1.0, True), (200.0, False), (1e4, True)])
def test_small_clouds_in_the_plane(rng, dtype, n, m, scale, biased):
    k = rng.normal(size=(2, n, m)).astype(dtype)
    # Whole numbers have exact products, so that huge logits are exact too.
    q, k = (scale * np.round(rng.normal(size=(2, n, m)))).astype(dtype), np.round(k)
    b = np.where(rng.uniform(size=(n, m)) < 0.2, -np.inf, np.round(rng.normal(size=(n, m)))).astype(dtype) if biased else None
    if biased:
        b[0] = 0
    reference, total, sums = native.planar(jnp.asarray(q), jnp.asarray(k), None if b is None else jnp.asarray(b))
    logits = np.einsum("cim,cjm->ijm", q, k).astype(np.float64) + (0 if b is None else b[None])
    largest = logits.max(axis=1)
    assert np.all((reference - largest <= 20 + 1e-4 * scale) & (reference - largest >= -1e-6 * np.abs(largest)))
    weights = np.exp(logits - logsumexp(logits, axis=1)[:, None])
    eps = 30 * np.finfo(dtype).eps
    np.testing.assert_allclose(np.asarray(sums, float) / np.asarray(total, float), np.einsum("ijm,cjm->cim", weights, k), atol=20 * eps)
    np.testing.assert_allclose(np.log(total) + reference, logsumexp(logits, axis=1), rtol=eps, atol=eps)


@needs_kernel
def test_one_cloud_does_not_notice_the_others(rng):
    q, k = rng.normal(size=(2, 2, 7, 20))
    whole = native.planar(jnp.asarray(q), jnp.asarray(k))
    alone = native.planar(jnp.asarray(q[..., 3:4]), jnp.asarray(k[..., 3:4]))
    for a, b in zip(whole, alone, strict=True):
        np.testing.assert_allclose(a[..., 3:4], b, rtol=1e-14)
