"""Laws on tokens: against torch, NumPy transcriptions, and their symmetries."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attnflow as af

NORMALIZATIONS = {
    "softmax": af.Softmax(),
    "unnormalized": af.Unnormalized(-0.5),
    "sinkhorn": af.Sinkhorn(),
    "truncated sinkhorn": af.Sinkhorn(half_steps=4),
    "hardmax": af.Hardmax(),
    "sigmoid": af.Sigmoid(),
    "linear": af.Linear(),
}


def numpy_kernel(name, logits, w):
    """The attention matrix k(x_i, y_j) w_j, written out."""
    if name == "softmax":
        p = np.exp(logits - logits.max(1, keepdims=True)) * w
        return p / p.sum(1, keepdims=True)
    if name == "unnormalized":
        return np.exp(logits - 0.5) * w
    if name == "hardmax":
        p = (logits >= logits.max(1, keepdims=True) - 1e-12) * w
        return p / p.sum(1, keepdims=True)
    if name == "sigmoid":
        return w / (1 + np.exp(-logits))
    return logits * w


@pytest.mark.parametrize("name", ["softmax", "unnormalized", "hardmax", "sigmoid", "linear"])
@pytest.mark.parametrize("distance", [False, True])
def test_velocity_against_numpy(rng, name, distance):
    Q, K, V = rng.normal(size=(2, 3)), rng.normal(size=(2, 3)), rng.normal(size=(3, 3))
    y, w, x = rng.normal(size=(15, 3)), rng.random(15), rng.normal(size=(6, 3))
    w /= w.sum()
    law = af.Attention((af.squared_distance if distance else af.dot_product)(Q, K, 1.5), V, NORMALIZATIONS[name])
    gap = (x @ Q.T)[:, None] - (y @ K.T)[None]
    logits = (-(gap**2).sum(-1) if distance else (x @ Q.T) @ (y @ K.T).T) / 1.5
    expected = numpy_kernel(name, logits, w)
    mu = af.Particles(y, w)
    np.testing.assert_allclose(law.weights(jnp.asarray(x), mu), expected, rtol=1e-11, atol=1e-13)
    for sums in (None, af.Streamed(4, 4)):
        np.testing.assert_allclose(law.at(mu, sums=sums)(jnp.asarray(x)), expected @ y @ V.T, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.cases
def test_softmax_against_torch(rng, dtype):
    torch = pytest.importorskip("torch")
    n, d, p = 40, 5, 7
    x, Q, K, V = rng.normal(size=(n, d)), rng.normal(size=(p, d)), rng.normal(size=(p, d)), rng.normal(size=(d, d))
    tokens, q, k, v = (torch.tensor(a, dtype=getattr(torch, dtype)) for a in (x, Q, K, V))
    expected = torch.nn.functional.scaled_dot_product_attention(tokens @ q.T, tokens @ k.T, tokens @ v.T, scale=1 / np.sqrt(p)).numpy()
    law = af.Attention(af.dot_product(Q, K, np.sqrt(p)), V)
    mu = af.Particles(jnp.asarray(x, dtype=dtype))
    got = law.at(mu)(mu.points)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-12 if dtype == "float64" else 2e-4, atol=1e-12 if dtype == "float64" else 2e-5)


def test_heads_are_averaged(rng):
    mu = af.Particles(rng.normal(size=(10, 3)))
    heads = [af.Attention(af.dot_product(*rng.normal(size=(2, 1, 3))), rng.normal(size=(3, 3)), n) for n in NORMALIZATIONS.values()]
    law = af.MultiHead(heads)
    expected = np.mean([np.asarray(h.at(mu)(mu.points)) for h in heads], axis=0)
    np.testing.assert_allclose(law.at(mu)(mu.points), expected, atol=1e-13)
    assert law.weights(mu.points, mu).shape == (len(heads), 10, 10)
    np.testing.assert_allclose(law.weights(mu.points, mu)[0], heads[0].weights(mu.points, mu))
    assert {name for name, figures in law.at(mu).report.items() if "sinkhorn" in figures} == {"part 2", "part 3"}


@given(seed=st.integers(0, 50), count=st.integers(1, 4))
def test_any_heads_are_averaged(seed, count):
    rng = np.random.default_rng(seed)
    mu = af.Particles(rng.normal(size=(7, 2)), rng.random(7) + 0.1)
    heads = [af.Attention(af.dot_product(*rng.normal(size=(2, 3, 2))), rng.normal(size=(2, 2))) for _ in range(count)]
    expected = sum(np.asarray(h.weights(mu.points, mu)) @ np.asarray(mu.points) @ np.asarray(h.value).T for h in heads) / count
    np.testing.assert_allclose(af.MultiHead(heads).at(mu)(mu.points), expected, atol=1e-12)


def test_hardmax_is_the_limit_of_softmax(rng):
    mu = af.Particles(rng.normal(size=(20, 3)))
    cold, hard = (
        af.Attention(af.dot_product(np.eye(3), np.eye(3), 1e-6), np.eye(3), n).at(mu)(mu.points) for n in (af.Softmax(), af.Hardmax())
    )
    np.testing.assert_allclose(cold, hard, atol=1e-12)


@pytest.mark.parametrize("name", NORMALIZATIONS)
@given(seed=st.integers(0, 50), n=st.sampled_from([1, 2, 9]))
@pytest.mark.long
def test_permuting_tokens_permutes_velocities(name, seed, n):
    rng = np.random.default_rng(seed)
    points, weights, order = rng.normal(size=(n, 2)), rng.random(n) + 0.1, rng.permutation(n)
    law = af.Attention(
        af.squared_distance(rng.normal(size=(2, 2)), rng.normal(size=(2, 2))),
        rng.normal(size=(2, 2)),
        NORMALIZATIONS[name],
    )
    mu, shuffled = af.Particles(points, weights), af.Particles(points[order], weights[order])
    np.testing.assert_allclose(law.at(shuffled)(shuffled.points), law.at(mu)(mu.points)[order], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", NORMALIZATIONS)
@given(seed=st.integers(0, 50))
@pytest.mark.cases
def test_rotating_everything_rotates_velocities(name, seed):
    rng = np.random.default_rng(seed)
    points, (Q, K, V) = rng.normal(size=(8, 3)), rng.normal(size=(3, 3, 3))
    O = np.linalg.qr(rng.normal(size=(3, 3)))[0]  # noqa: E741
    law = af.Attention(af.dot_product(Q, K), V, NORMALIZATIONS[name])
    turned = af.Attention(af.dot_product(Q @ O.T, K @ O.T), O @ V @ O.T, NORMALIZATIONS[name])
    mu, nu = af.Particles(points), af.Particles(points @ O.T)
    np.testing.assert_allclose(turned.at(nu)(nu.points), law.at(mu)(mu.points) @ O.T, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", NORMALIZATIONS)
@given(counts=st.lists(st.integers(1, 3), min_size=4, max_size=4))
@pytest.mark.cases
def test_weights_are_repeated_points(name, counts):
    points = np.random.default_rng(3).normal(size=(4, 2))
    law = af.Attention(af.dot_product(np.array([[1.0, 0.4], [-0.3, 1.0]]), np.eye(2)), np.eye(2), NORMALIZATIONS[name])
    weighted, repeated = af.Particles(points, counts), af.Particles(np.repeat(points, counts, axis=0))
    x = jnp.asarray(points)
    np.testing.assert_allclose(law.at(weighted)(x), law.at(repeated)(x), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", NORMALIZATIONS)
@pytest.mark.cases
def test_one_token_and_one_heavy_weight(name, rng):
    law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(2), NORMALIZATIONS[name])
    point = rng.normal(size=(1, 2))
    factor = {
        "unnormalized": np.exp((point**2).sum() - 0.5),
        "sigmoid": 1 / (1 + np.exp(-(point**2).sum())),
        "linear": (point**2).sum(),
    }
    single = af.Particles(point)
    np.testing.assert_allclose(law.at(single)(single.points), factor.get(name, 1.0) * point, rtol=1e-9)
    heavy = af.Particles(np.vstack([point, point + 0.1]), [1.0, 1e-300])
    got = law.at(heavy)(heavy.points)
    assert np.isfinite(got).all()
    if name in ("softmax", "truncated sinkhorn"):
        np.testing.assert_allclose(got[0], point[0], rtol=1e-12)


@pytest.mark.parametrize("name", ["softmax", "sinkhorn", "hardmax"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.cases
def test_low_temperature_and_coincident_tokens(name, dtype):
    points = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]], dtype)
    law = af.simple_attention(1e6, 2, NORMALIZATIONS[name])
    mu = af.Particles(points, space=af.Sphere())
    np.testing.assert_allclose(law.at(mu)(mu.points), points, atol=1e-5 if dtype == "float32" else 1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.ones((3, 2))),
            r"value must be square \[d, d\], got \[3, 2\]",
        ),
        (
            lambda: af.Attention(af.dot_product(np.eye(2), np.eye(2)), np.eye(3)),
            r"value must be \[2, 2\] like the tokens.*got \[3, 3\]",
        ),
        (lambda: af.MultiHead([]), "needs at least one law in heads, got none"),
        (lambda: af.simple_attention(1.0, 3).at(af.Particles(np.eye(2))), "the law acts on R.3, got a measure on R.2"),
        (lambda: af.simple_attention(np.nan, 3), "beta must be finite, got nan"),
        (lambda: af.Unnormalized(np.inf), "log_scale must be finite, got inf"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class SquaredReLU(af.Pointwise):
    """A kernel of one's own."""

    @staticmethod
    def kernel(logits):
        return jnp.maximum(logits, 0) ** 2


@pytest.mark.parametrize("sums", [None, af.Streamed(queries=3, keys=4)])
def test_a_kernel_of_ones_own(rng, sums):
    """`integral max(l, 0)^2 y dmu(y)` over the past, and its matrix, against NumPy."""
    Q, K, V, x = *rng.normal(size=(3, 2, 2)), rng.normal(size=(9, 2))
    w = rng.uniform(size=9)
    law, mu = af.Attention(af.dot_product(Q, K), V, SquaredReLU(), mask=af.Causal()), af.Particles(x, weights=w)
    matrix = np.tril(np.maximum(x @ Q.T @ K @ x.T, 0) ** 2) * (w / w.sum())[None]
    np.testing.assert_allclose(law.weights(x, mu), matrix, atol=1e-12)
    np.testing.assert_allclose(law.at(mu, sums=sums)(x, mu.sequence), matrix @ x @ V.T, atol=1e-12)
    with pytest.raises(ValueError, match="SquaredReLU attention does not keep a Gaussian Gaussian"):
        af.Attention(af.dot_product(Q, K), V, SquaredReLU()).at(af.Gaussian(np.zeros(2), np.eye(2)))
