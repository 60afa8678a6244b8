"""Frames: the normalized update, rescaled tokens, and where tokens in R^d go (GT 12, 13, 25)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.linalg import expm
from scipy.spatial import ConvexHull
from scipy.special import logsumexp

import attnflow as af
from attnflow.fields.frames import Decomposed, Series

# One size for all flows, so that few programs are compiled.
TOKENS, DIM, FRAMES = 16, 3, 13


def matrix(kind, rng):
    """A value matrix V."""
    if kind == "complex":
        V = rng.normal(size=(DIM, DIM)) / 2
        V[:2, :2] = [[0.3, 1.0], [-1.0, 0.2]]
        assert np.iscomplex(np.linalg.eigvals(V)).any()
        return V
    if kind == "symmetric":
        V = rng.normal(size=(DIM, DIM)) / 2
        return (V + V.T) / 2
    return np.array([[0.5, 1.0, 0.0], [0.0, 0.5, 1.0], [0.0, 0.0, 0.5]])


def barycentric(x, eps):
    """The barycentric map of the self-bridge at temperature eps, by Sinkhorn in NumPy."""
    cost, f = 0.5 * ((x[:, None] - x[None]) ** 2).sum(-1) / eps, np.zeros(len(x))
    for _ in range(500):
        f = (f - logsumexp(f[None] - cost, axis=1) + np.log(len(x))) / 2
    return np.exp(f[:, None] + f[None] - cost) @ x / len(x)


@pytest.mark.long
def test_discrete_normalized_form_is_the_bridge_step(rng):
    """GT 25: V = -I, A = I / eps, Sinkhorn: x <- 2x - B(x), at every layer."""
    eye, eps, x = np.eye(2), 0.3, rng.normal(size=(20, 2))
    law, plus = (af.Attention(af.dot_product(eye, eye, eps), V, af.Sinkhorn(tolerance=1e-13)) for V in (-eye, eye))
    path = af.layers([af.normalized_update(law)], af.Particles(x), 4)
    for before, after in zip(path, list(path)[1:], strict=False):
        np.testing.assert_allclose(after.points, 2 * before.points - plus.at(before)(before.points), rtol=0, atol=2e-15)
        np.testing.assert_allclose(after.points, 2 * before.points - barycentric(np.asarray(before.points), eps), atol=1e-12)


def test_normalized_update_against_numpy(rng):
    """Seed 001: z_i + [sum_j K_ij V z_j - V z_i], for heads with the mean of their values."""
    x, parts = rng.normal(size=(6, 2)), rng.normal(size=(2, 3, 2, 2)) / 2
    V = parts[:, 2].mean(0)
    expected = x - x @ V.T
    for Q, K, value in parts:
        p = np.exp((x @ Q.T) @ (x @ K.T).T / 0.5)
        expected += (p / p.sum(1, keepdims=True)) @ x @ value.T / 2
    field = af.normalized_update(af.MultiHead([af.Attention(af.dot_product(Q, K, 0.5), value) for Q, K, value in parts]))
    np.testing.assert_allclose(af.layers(field, af.Particles(x), 1).final.points, expected, atol=1e-13)


def test_frames_of_a_gaussian(rng):
    """Both frames are affine there."""
    A, V = rng.normal(size=(2, 2, 2)) / 2
    law, g, E = af.Attention(af.Quadratic(jnp.asarray(A)), V), af.Gaussian(rng.normal(size=2), 0.3 * np.eye(2)), expm(0.5 * V)
    np.testing.assert_allclose(af.normalized_update(law).at(g).matrix, law.at(g).matrix - V, atol=1e-15)
    raw, z = law.at(g.push(af.Affine(jnp.asarray(E), jnp.zeros(2)))), af.rescaled(law).at(g, 0.5)
    np.testing.assert_allclose(z.matrix, np.linalg.solve(E, raw.matrix @ E) - V, atol=1e-13)
    np.testing.assert_allclose(z.offset, np.linalg.solve(E, raw.offset), atol=1e-13)


def by_scipy(Q, K, V, start, ts):
    """z' = e^{-tV} Gamma(e^{tV} z) - V z, as it is written."""

    def rate(t, flat):
        z = flat.reshape(start.shape)
        x = z @ expm(t * V).T
        p = np.exp((x @ Q.T) @ (x @ K.T).T)
        return ((p / p.sum(1, keepdims=True)) @ x @ V.T @ expm(-t * V).T - z @ V.T).ravel()

    path = solve_ivp(rate, (ts[0], ts[-1]), start.ravel(), method="DOP853", t_eval=ts, rtol=1e-11, atol=1e-12)
    return path.y.T.reshape(-1, *start.shape)


@pytest.mark.parametrize("kind", ["complex", "symmetric", "jordan"])
@pytest.mark.long
def test_rescaled_tokens_are_the_raw_ones_in_the_frame(rng, kind):
    V, (Q, K), start = matrix(kind, rng), rng.normal(size=(2, DIM, DIM)) / 2, rng.normal(size=(TOKENS, DIM))
    law = af.Attention(af.dot_product(Q, K), V)
    field = af.rescaled(law)
    assert isinstance(field.flow, Series if kind == "jordan" else Decomposed)
    E = field.flow(1.3)
    np.testing.assert_allclose(field.basis @ (jnp.diag(E) if E.ndim == 1 else E) @ field.inverse, expm(1.3 * V), rtol=1e-12, atol=1e-13)
    raw, path = (af.solve(f, af.Particles(start), t1=1.5, save_at=FRAMES, rtol=1e-10, atol=1e-12) for f in (law, field))
    for t, x, z in zip(path.ts, raw, path, strict=True):
        np.testing.assert_allclose(z.points, x.points @ expm(-float(t) * V).T, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(path.states, by_scipy(Q, K, V, start, np.asarray(path.ts)), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize(
    ("normalize", "logit", "mask"),
    [
        (af.Softmax(), "bias", None),
        (af.Softmax(), "dot", af.Causal()),
        (af.Sinkhorn(), "distance", None),
        (af.Sigmoid(), "bias", None),
        (af.Unnormalized(), "dot", None),
        (af.Linear(), "distance", None),
    ],
)
@pytest.mark.cases
def test_rescaled_velocity_as_it_is_defined(rng, normalize, logit, mask):
    """e^{-tV} Gamma_{(e^{tV})_# mu}(e^{tV} z) - V z, also for heads that do not commute with the mean of their values."""
    make = {
        "dot": af.dot_product,
        "distance": af.squared_distance,
        "bias": lambda Q, K: af.dot_product(Q, K, 1.0, query_bias=[0.2, -0.4], key_bias=[0.1, 0.3]),
    }
    heads = [af.Attention(make[logit](*rng.normal(size=(2, 2, 2)) / 3), rng.normal(size=(2, 2)), normalize, mask=mask) for _ in range(2)]
    z, w, t = rng.normal(size=(7, 2)), rng.random(7), 0.8
    for law, V in [(heads[0], heads[0].value), (af.MultiHead(heads), (heads[0].value + heads[1].value) / 2)]:
        raw, mu = af.Particles(z @ expm(t * V).T, w), af.Particles(z, w)
        expected = raw.rate(law.at(raw)) @ expm(-t * V).T - z @ V.T
        velocity = af.rescaled(law).at(mu, t)
        np.testing.assert_allclose(mu.rate(velocity), expected, rtol=1e-8, atol=1e-9)
        assert ("sinkhorn" in repr(velocity.report)) == isinstance(normalize, af.Sinkhorn)


def test_growing_and_shrinking_directions_cost_no_digits(rng):
    """Tokens of size e^{-tV} c, as a path has them at time t, against extended precision in the eigenvectors of V."""
    U, _ = np.linalg.qr(rng.normal(size=(6, 6)))
    values, t = np.array([-2.0, -1.5, -1.0, 1.0, 1.5, 2.0]), 4.0
    c = rng.normal(size=(9, 6)) * np.exp(-t * values)
    law = af.Attention(af.dot_product(np.eye(6), np.eye(6)), (U * values) @ U.T)
    found = np.asarray(af.rescaled(law).at(af.Particles(c @ U.T), t)(jnp.asarray(c @ U.T))) @ U
    long = c.astype(np.longdouble)
    logits = (long * np.exp(np.longdouble(t) * values)) @ (long * np.exp(np.longdouble(t) * values)).T
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    expected = (p @ long / p.sum(axis=1, keepdims=True) - long) * values
    np.testing.assert_allclose(found, np.asarray(expected, np.float64), atol=1e-9 * np.abs(c).max())


def test_the_two_frames_are_two_dynamics(rng):
    law, mu = af.simple_attention(1.0, DIM), af.Particles(rng.normal(size=(TOKENS, DIM)))
    np.testing.assert_allclose(af.rescaled(law).at(mu, 0.0)(mu.points), af.normalized_update(law).at(mu, 0.0)(mu.points), atol=1e-14)
    assert not np.allclose(af.rescaled(law).at(mu, 1.0)(mu.points), af.normalized_update(law).at(mu, 1.0)(mu.points), atol=0.1)


@pytest.mark.long
def test_gradient_in_the_value(rng):
    """Inside grad V has no value, so that e^{tV} is a matrix exponential; outside it is decomposed. Both are the same function."""
    mu, V, direction = af.Particles(rng.normal(size=(5, 2))), jnp.asarray(rng.normal(size=(2, 2))), jnp.asarray(rng.normal(size=(2, 2)))

    def loss(s):
        law = af.Attention(af.dot_product(np.eye(2), np.eye(2)), V + s * direction)
        return jnp.sum(jnp.sin(af.rescaled(law).at(mu, 0.7)(mu.points)))

    h = 1e-5
    np.testing.assert_allclose(jax.grad(loss)(0.1), (loss(0.1 + h) - loss(0.1 - h)) / (2 * h), rtol=1e-8)


def test_polytope(rng):
    """GT 12, V = I, A > 0: the hull only shrinks, and every token ends on the boundary of a polytope, or at 0."""
    F = rng.normal(size=(DIM, DIM))
    law = af.Attention(af.Quadratic(jnp.asarray(np.eye(DIM) + 0.2 * F @ F.T)), np.eye(DIM))
    path = af.solve(af.rescaled(law), af.Particles(rng.normal(size=(TOKENS, DIM))), t1=12.0, save_at=FRAMES)
    frames = np.asarray(path.states)
    hulls = [ConvexHull(points) for points in frames]

    def outside(hull, points):
        return (hull.equations[:, :DIM] @ points.T + hull.equations[:, DIM:]).max(axis=0)

    for hull, later in zip(hulls, frames[1:], strict=False):
        assert outside(hull, later).max() < 1e-12
    assert (np.diff([hull.volume for hull in hulls]) < 0).all()
    assert 1 < hulls[-1].volume < 0.9 * hulls[0].volume
    assert np.abs(frames[-1] - frames[-2]).max() < 1e-4
    assert np.minimum(-outside(hulls[-1], frames[-1]), np.linalg.norm(frames[-1], axis=1)).max() < 1e-4


@pytest.mark.parametrize("seed", range(4))
def test_hyperplanes(seed):
    """GT 12, a simple dominant eigenvalue with <Q phi, K phi> > 0: at most 3 values along the left eigenvector."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(DIM, DIM))
    V, phi, left = X @ np.diag([1.0, 0.3, -0.5]) @ np.linalg.inv(X), X[:, 0], np.linalg.inv(X)[0]
    Q, K = rng.normal(size=(2, DIM, DIM))
    Q *= np.sign((Q @ phi) @ (K @ phi))
    start = rng.normal(size=(TOKENS, DIM))
    path = af.solve(af.rescaled(af.Attention(af.dot_product(Q, K), V)), af.Particles(start), t1=14.0, save_at=FRAMES)
    assert path.status.kind == "reached"
    along = np.sort(np.asarray(path.final.points) @ left)
    gaps = np.diff(along)
    assert (gaps > 1e-3).sum() <= 2
    assert gaps[gaps <= 1e-3].max() < 1e-4
    assert np.ptp(np.sort(start @ left)) > 1


@pytest.mark.long
def test_negative_value_decays_like_an_inverse_root(rng):
    """GT 12, V = -I: raw tokens go to 0 like t^{-1/2}, rescaled ones diverge."""
    F = rng.normal(size=(DIM, DIM))
    law = af.Attention(af.Quadratic(jnp.asarray(F @ F.T + 0.3 * np.eye(DIM))), -np.eye(DIM))
    mu = af.Particles(rng.normal(size=(TOKENS, DIM)))
    path = af.solve(law, mu, t1=3000.0, save_at=np.concatenate([[0.0], np.geomspace(100, 3000, FRAMES - 1)]))
    size = np.abs(path.states).max(axis=(1, 2))
    assert np.polyfit(np.log(path.ts[1:]), np.log(size[1:]), 1)[0] == pytest.approx(-0.5, abs=0.01)
    assert float(jnp.abs(af.solve(af.rescaled(law), mu, t1=8.0, save_at=FRAMES).final.points).max()) > 100


@pytest.mark.long
def test_leaders():
    """GT 13, d = 1, V > 0: every row of the attention matrix but at most one tends to a Boolean row, on the first or the last token."""
    law, start, t = af.Attention(af.dot_product([[1.0]], [[0.7]]), [[0.8]]), np.linspace(-1.6, 1.4, 9)[:, None], 8.0
    z = af.solve(af.rescaled(law), af.Particles(start), t1=t, save_at=1).final.points
    raw = z * np.exp(0.8 * t)
    P = np.asarray(law.weights(raw, af.Particles(raw)))
    Boolean = np.minimum(P, 1 - P).max(axis=1) < 1e-12
    assert Boolean.sum() >= len(P) - 1
    np.testing.assert_array_equal(P[Boolean].argmax(axis=1), np.where(z[Boolean, 0] > 0, z.argmax(), z.argmin()))
    assert {int(z.argmin()), int(z.argmax())} == {0, 8} == set(P[Boolean].argmax(axis=1).tolist())


def test_bad_input_is_named():
    law, sphere = af.simple_attention(1.0, 2), af.Particles(np.eye(2), space=af.Sphere())
    for frame in (af.normalized_update, af.rescaled):
        with pytest.raises(ValueError, match=r"a frame that subtracts V z is for tokens in R\^d, got tokens on the Sphere"):
            frame(law).at(sphere)
        with pytest.raises(TypeError, match="a frame needs an Attention law, or a MultiHead of them, whose value is V, got Then"):
            frame(law.then(af.Perceptron(np.eye(2), np.eye(2))))
        with pytest.raises(TypeError, match="got ResNet"):
            frame(af.ResNet(np.eye(2)))


@pytest.mark.parametrize("kind", ["identity", "symmetric"])
@pytest.mark.cases
@pytest.mark.long
def test_rescaled_tokens_stay_where_they_settled(kind, rng):
    """Long after the logits have left the range of doubles (t = 354 for V = I) the tokens are where they were at t = 30."""
    V = np.eye(DIM) if kind == "identity" else np.diag([1.0, 0.4, -0.3])
    field = af.rescaled(af.Attention(af.dot_product(np.eye(DIM), np.eye(DIM)), V))
    # Tight, as a thousand steps add their errors.
    path = af.solve(field, af.Particles(rng.normal(size=(TOKENS, DIM))), t1=1000.0, save_at=[30.0, 60.0, 1000.0], rtol=1e-11, atol=1e-12)
    assert path.status.kind == "reached"
    assert np.isfinite(path.states).all()
    if kind == "identity":
        np.testing.assert_allclose(path.states[2], path.states[0], atol=1e-7)
    # Along the dominant direction every coordinate has settled (GT 12).
    np.testing.assert_allclose(path.states[2][:, 0], path.states[0][:, 0], atol=1e-6)


def test_exponentials_of_any_length():
    """Against the closed form of a Jordan block, whose exponential overflows; and against SciPy, where it does not."""
    block = Series(jnp.array([[1.0, 1.0], [0.0, 1.0]]))
    log_size, shape = block._scaled(1000.0)
    assert float(log_size + jnp.log(shape[0, 1])) == pytest.approx(1000 + np.log(1000), rel=1e-12)
    np.testing.assert_allclose(shape / shape[0, 1], np.array([[1e-3, 1], [0, 1e-3]]), rtol=1e-9, atol=1e-15)
    M = np.array([[0.3, -1.0], [2.0, 0.7]])
    for flow, V in ((block, np.array([[1.0, 1], [0, 1]])), (Decomposed(jnp.array([0.8, -0.4]), jnp.zeros(2), None), np.diag([0.8, -0.4]))):
        forward = np.asarray(flow(2.0, True))
        np.testing.assert_allclose(forward if forward.ndim == 2 else np.diag(forward), expm(2 * V), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(flow.conjugate(2.0, jnp.asarray(M)), expm(-2 * V) @ M @ expm(2 * V), rtol=1e-11)
    turning = Decomposed(jnp.array([0.5, 0.5]), jnp.array([1.5, 1.5]), jnp.array([[0.0, 1.0], [-1.0, 0.0]]))
    V = np.asarray(turning.generator)
    np.testing.assert_allclose(turning.conjugate(2.0, jnp.asarray(M)), expm(-2 * V) @ M @ expm(2 * V), rtol=1e-11)
    # What is held is the size alone.
    held = np.asarray(Decomposed(jnp.array([1.0, 0.9]), jnp.zeros(2), None)(1000.0, True))
    assert held[1] / held[0] == pytest.approx(np.exp(-100), rel=1e-10)
    assert np.isfinite(held.max() ** 2)
