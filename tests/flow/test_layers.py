"""The discrete stack: against torch and plain NumPy, its limit of small steps, and how it ends."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af
from attnflow.measures import Measure

exact_gelu = partial(jax.nn.gelu, approximate=False)


def softmax_velocity(x, Q, K, V):
    p = np.exp((x @ Q.T) @ (x @ K.T).T)
    return (p / p.sum(1, keepdims=True)) @ x @ V.T


def rms(x):
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_norms_are_those_of_torch(rng, dtype):
    torch = pytest.importorskip("torch")
    x, gain, bias = (rng.normal(size=shape).astype(dtype) for shape in [(5, 7), (7,), (7,)])
    tokens, g, b = map(torch.tensor, (x, gain, bias))
    for got, expected in [
        (af.LayerNorm(), torch.nn.functional.layer_norm(tokens, (7,))),
        (af.LayerNorm(gain, bias), torch.nn.functional.layer_norm(tokens, (7,), g, b)),
        (af.LayerNorm(gain, epsilon=0.1), torch.nn.functional.layer_norm(tokens, (7,), g, eps=0.1)),
        (af.RMSNorm(), torch.nn.functional.rms_norm(tokens, (7,), eps=1e-5)),
        (af.RMSNorm(gain, epsilon=1e-3), torch.nn.functional.rms_norm(tokens, (7,), g, eps=1e-3)),
    ]:
        value = got(jnp.asarray(x))
        assert value.dtype == dtype
        np.testing.assert_allclose(value, expected, atol=1e-14 if dtype == "float64" else 1e-6)


def test_rms_norm_without_epsilon_is_the_sphere(rng):
    x = jnp.asarray(rng.normal(size=(5, 4)))
    np.testing.assert_allclose(af.RMSNorm(epsilon=0)(x), 2 * af.Sphere().nearest(x), atol=1e-14)


def attention_of(layer, mask):
    """torch's attention as a field: `sum_h W_O^h (W_V^h E_h[y|x] + b_V^h) + b_O`.

    MultiHead is the mean of the heads, so `V_h = H W_O^h W_V^h`; weights sum to one, so all value biases are one offset after the heads.
    """
    part, count = layer.self_attn, layer.self_attn.num_heads
    (Wq, Wk, Wv), (bq, bk, bv) = (t.detach().numpy().reshape(3, -1, *t.shape[1:]) for t in (part.in_proj_weight, part.in_proj_bias))
    out, offset = part.out_proj.weight.detach().numpy(), part.out_proj.bias.detach().numpy()
    heads = []
    for rows in np.split(np.arange(len(Wq)), count):
        logit = af.dot_product(Wq[rows], Wk[rows], np.sqrt(len(rows)), query_bias=bq[rows], key_bias=bk[rows])
        heads.append(af.Attention(logit, count * out[:, rows] @ Wv[rows], mask=mask))
    return af.MultiHead(heads).then(af.Affine(jnp.eye(len(out)), jnp.asarray(out @ bv + offset)))


def mlp_of(layer, activation):
    W, U, b, c = (t.detach().numpy() for t in (layer.linear1.weight, layer.linear2.weight, layer.linear1.bias, layer.linear2.bias))
    return af.Perceptron(W, U, b, c, activation=activation)


def norm_of(norm):
    return af.LayerNorm(norm.weight.detach().numpy(), norm.bias.detach().numpy(), epsilon=norm.eps)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.parametrize(("name", "activation", "mask"), [("relu", jax.nn.relu, None), ("gelu", exact_gelu, af.Causal())])
def test_a_stack_is_torchs_encoder(rng, place, name, activation, mask):
    """Three layers, every weight, bias and gain of each its own; without a mask, and causal."""
    torch = pytest.importorskip("torch")
    hidden = None if mask is None else torch.triu(torch.ones(7, 7, dtype=torch.bool), 1)
    encoder = [
        torch.nn.TransformerEncoderLayer(8, 2, 16, 0.1, name, batch_first=True, norm_first=place == "pre", dtype=torch.float64).eval()
        for _ in range(3)
    ]
    x = rng.normal(size=(7, 8))
    expected, tokens = [x], torch.tensor(x)[None]
    with torch.no_grad():
        for layer in encoder:
            for weight in layer.parameters():
                weight.copy_(torch.tensor(rng.normal(size=weight.shape) / np.sqrt(8)))
            tokens = layer(tokens, hidden)
            expected.append(tokens[0].numpy())
    times = np.arange(3)
    halves = [af.piecewise(times, [attention_of(e, mask) for e in encoder]), af.piecewise(times, [mlp_of(e, activation) for e in encoder])]
    norms = [af.piecewise(times, [norm_of(e.norm1) for e in encoder]), af.piecewise(times, [norm_of(e.norm2) for e in encoder])]
    path = af.layers(halves, af.Particles(x), 3, norm=norms, place=place)
    np.testing.assert_allclose(path.states, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("place", ["pre", "post"])
@pytest.mark.cases
def test_without_residual(rng, place):
    """Seed 000's first formula, x <- sum_j K_ij V x_j, plain and with a norm."""
    Q, K, V = rng.normal(size=(3, 3, 3)) / 2
    x = start = rng.normal(size=(6, 3))
    law = af.Attention(af.dot_product(Q, K), V)
    plain = [x := softmax_velocity(x, Q, K, V) for _ in range(4)]
    x = start
    normed = [x := softmax_velocity(rms(x), Q, K, V) if place == "pre" else rms(softmax_velocity(x, Q, K, V)) for _ in range(4)]
    mu = af.Particles(start)
    np.testing.assert_allclose(af.layers([law], mu, 4, residual=False, place=place).states[1:], plain, atol=1e-13)
    path = af.layers([law], mu, 4, residual=False, place=place, norm=af.RMSNorm())
    np.testing.assert_allclose(path.states[1:], normed, rtol=1e-10)
    np.testing.assert_allclose(path.ts, np.arange(5))


def test_one_norm_for_all_or_one_each_and_a_sum_is_one_layer(rng):
    Q, K, V = rng.normal(size=(3, 3, 3)) / 2
    W, b, x = rng.normal(size=(3, 3)), rng.normal(size=3), rng.normal(size=(6, 3))
    law, net, mu = af.Attention(af.dot_product(Q, K), V), af.ResNet(W, b), af.Particles(x)
    a, g = partial(softmax_velocity, Q=Q, K=K, V=V), lambda x: np.tanh(x @ W.T + b)
    y = x + 0.3 * a(rms(x))
    np.testing.assert_allclose(
        af.layers([law, net], mu, 1, step=0.3, norm=[af.RMSNorm(), None], place="pre").states[1], y + 0.3 * g(y), atol=1e-13
    )
    y = rms(x + 0.3 * a(x))
    np.testing.assert_allclose(af.layers([law, net], mu, 1, step=0.3, norm=af.RMSNorm()).states[1], rms(y + 0.3 * g(y)), atol=1e-13)
    np.testing.assert_allclose(af.layers([law + net], mu, 1, step=0.3).states[1], x + 0.3 * (a(x) + g(x)), atol=1e-13)
    np.testing.assert_array_equal(af.layers(law, mu, 2).states, af.layers([law], mu, 2).states)


def test_layers_end_on_the_sphere(rng):
    """x <- (x + h f(x)) / |x + h f(x)|: the retraction is the norm of the layer."""
    mu = af.samplers.sphere(6, 3, key=jax.random.key(0))
    x, eye = np.asarray(mu.points), np.eye(3)
    expected = [x]
    for _ in range(5):
        x = x + 0.4 * softmax_velocity(x, 2 * eye, eye, eye)
        expected.append(x := x / np.linalg.norm(x, axis=1, keepdims=True))
    np.testing.assert_allclose(af.layers(af.simple_attention(2.0, 3), mu, 5, step=0.4).states, expected, atol=1e-14)


@pytest.mark.long
def test_a_matrix_a_layer(rng):
    """Layer k has the k-th matrices also where k * 0.1 rounds, and fresh random ones are those of the k-th key."""
    matrices, x0 = rng.normal(size=(12, 3, 2, 2)) / 2, rng.normal(size=(5, 2))
    x, expected = x0, [x0]
    for Q, K, V in matrices:
        expected.append(x := x + 0.1 * softmax_velocity(x, Q, K, V))
    laws = af.piecewise(0.1 * np.arange(12), [af.Attention(af.dot_product(Q, K), V) for Q, K, V in matrices])
    for dtype, tolerance in [("float64", 1e-13), ("float32", 1e-5)]:
        path = af.layers([laws], af.Particles(jnp.asarray(x0, dtype)), 12, step=0.1)
        assert path.states.dtype == path.ts.dtype == dtype
        np.testing.assert_allclose(path.states, expected, atol=tolerance)

    def draw(key):
        return af.Attention(af.dot_product(*af.matrices.gaussian(2, key=key, count=2)), jnp.eye(2))

    path = af.layers([af.resampled(draw, key=jax.random.key(3), width=0.1, layers=12)], af.Particles(x0), 12, step=0.1)
    x = jnp.asarray(x0)
    for k in range(12):
        x = x + 0.1 * draw(jax.random.fold_in(jax.random.key(3), k)).at(af.Particles(x))(x)
    np.testing.assert_allclose(path.final.points, x, atol=1e-13)


def test_gaussian_layers_push_the_covariance(rng):
    """m <- m + h V (m + S A m), S <- (I + h M) S (I + h M)^T with M = V S A: not Euler on S."""
    A, V = rng.normal(size=(2, 2, 2)) / 2
    m, S, h = rng.normal(size=2), np.array([[1.0, 0.3], [0.3, 0.5]]), 0.2
    path = af.layers(af.Attention(af.Quadratic(jnp.asarray(A)), V), af.Gaussian(m, S), 3, step=h)
    for frame in list(path)[1:]:
        step = np.eye(2) + h * V @ S @ A
        m, S = step @ m + h * V @ m, step @ S @ step.T
        np.testing.assert_allclose(frame.mean, m, rtol=1e-13)
        np.testing.assert_allclose(frame.cov, S, rtol=1e-13)
        np.testing.assert_array_equal(frame.cov, frame.cov.T)


@pytest.mark.parametrize("picture", ["plane", "sphere", "gaussian"])
@pytest.mark.long
def test_many_small_layers_are_the_flow_at_first_order(rng, picture):
    Q, K, V = rng.normal(size=(3, 3, 3)) / 3
    law, other = af.Attention(af.dot_product(Q, K), V), af.ResNet(rng.normal(size=(3, 3)))
    mu = af.Particles(af.samplers.sphere(8, 3, key=jax.random.key(0)).points, space=af.Sphere() if picture == "sphere" else None)
    if picture == "gaussian":
        mu, other = af.Gaussian(rng.normal(size=3), 0.3 * np.eye(3)), af.Attention(af.dot_product(K, Q), -V, af.Sinkhorn())
    exact = jax.tree.leaves(af.solve(law + other, mu, t1=1.0, save_at=1, rtol=1e-10, atol=1e-12).final.state)
    depths, errors = [25, 50, 100, 200], []
    for depth in depths:
        path = af.layers([law, other], mu, depth, step=1.0 / depth)
        assert float(path.ts[-1]) == pytest.approx(1.0)
        errors.append(max(float(np.abs(a - b).max()) for a, b in zip(jax.tree.leaves(path.final.state), exact, strict=True)))
    assert -np.polyfit(np.log(depths), np.log(errors), 1)[0] == pytest.approx(1.0, abs=0.05)
    assert errors[-1] < 0.02


def small(beta=1.0, dim=3):
    return af.simple_attention(beta, dim)


def test_a_blow_up_is_named_and_what_was_before_is_kept():
    """USA on R, x <- x (1 + e^{x^2}): squares beyond 709 overflow."""
    law, x = af.simple_attention(1.0, 1, af.Unnormalized()), 0.5
    expected = [x]
    while np.isfinite(x := x * (1 + np.exp(min(x**2, 710.0)))) and x**2 < 709:
        expected.append(x)
    expected.append(x)
    for progress in (False, True):
        path = af.layers(law, af.Particles([[0.5]]), 10, progress=progress)
        assert path.status.kind == "blow-up"
        assert path.status.time == path.ts[-1] == len(path) - 1 == path.stats["layers"]
        np.testing.assert_allclose(path.states[:, 0, 0], expected[: len(path)], rtol=1e-12)
        assert len(path) >= 3
    at_once = af.layers(law, af.Particles([[30.0]]), 10)
    assert (len(at_once), at_once.status.kind, at_once.status.time) == (1, "blow-up", 0)


def test_traced_stacks_that_leave_the_numbers_say_so():
    """A batch of starts has the frames and the status of each alone; what comes after the last finite frame is infinite."""
    law, starts = af.simple_attention(1.0, 1, af.Unnormalized()), jnp.array([0.01, 0.5, 30.0])
    batch = jax.jit(jax.vmap(lambda x: af.layers(law, af.Particles(x[None, None]), 3)))(starts)
    assert batch.status.kind.tolist()[::2] == ["reached", "blow-up"]
    for i, x in enumerate(starts):
        alone = af.layers(law, af.Particles(x[None, None]), 3)
        assert batch.status.kind[i] == alone.status.kind
        assert batch.status.time[i] == alone.status.time
        np.testing.assert_allclose(batch.states[i][: len(alone)], alone.states, rtol=1e-12)
        assert np.isposinf(batch.states[i][len(alone) :]).all()


@pytest.mark.long
def test_inside_jit_and_grad(rng):
    x, gain = jnp.asarray(rng.normal(size=(5, 3))), jnp.asarray(rng.normal(size=3))
    fields = [
        af.Attention(af.dot_product(*rng.normal(size=(2, 3, 3)) / 2), np.eye(3), n) for n in (af.Softmax(), af.Sinkhorn(tolerance=1e-13))
    ]

    def loss(s):
        path = af.layers(fields, af.Particles(s * x), 4, step=0.3 * s, norm=af.LayerNorm(s * gain), place="pre")
        return jnp.sum(jnp.sin(path.states))

    h = 1e-5
    np.testing.assert_allclose(jax.jit(loss)(1.1), loss(1.1), rtol=1e-12)
    np.testing.assert_allclose(jax.grad(loss)(1.1), (loss(1.1 + h) - loss(1.1 - h)) / (2 * h), rtol=1e-7)


TRACES = []


class Counting(eqx.Module):
    law: af.Attention

    def at(self, mu, t=0.0, sums=None):
        TRACES.append(1)
        return self.law.at(mu, t, sums)


def test_one_program_for_all_layers_and_all_values(rng):
    def run(depth, step, scale, progress=False):
        Q, K, V = scale * rng.normal(size=(3, 3, 3)) / 3
        norm = af.LayerNorm(scale * np.ones(3), epsilon=1e-5 * scale)
        mu = af.Particles(rng.normal(size=(6, 3)))
        return af.layers([Counting(af.Attention(af.dot_product(Q, K, scale), V))], mu, depth, step=step, norm=norm, progress=progress)

    run(40, 0.1, 1.0)
    assert len(TRACES) <= 2
    TRACES.clear()
    run(40, 0.07, 1.3)
    assert not TRACES
    run(40, 0.07, 1.3, progress=True)
    assert len(TRACES) <= 2


def test_progress_bar_draws_and_changes_nothing(rng, capsys):
    mu = af.Particles(rng.normal(size=(5, 3)))
    shown, quiet = (af.layers(small(), mu, 4, step=0.5, progress=progress) for progress in (True, False))
    out = capsys.readouterr().out
    assert "layers" in out
    assert "t = 2 / 2" in out
    np.testing.assert_allclose(shown.states, quiet.states, atol=1e-14)


@pytest.mark.long
def test_stats_have_the_worst_figures_of_the_way(rng):
    mu = af.Particles(rng.normal(size=(8, 3)))
    sinkhorn = af.simple_attention(1.0, 3, af.Sinkhorn())
    path = af.layers(sinkhorn, mu, 3, step=0.3, sums=af.Streamed(4, 4, native=False))
    assert path.stats["solver"] == "layers"
    assert path.stats["engine"] == repr(af.Streamed(4, 4, native=False))
    each = [sinkhorn.at(frame).report["sinkhorn"] for frame in list(path)[:3]]
    assert path.stats["sinkhorn"]["converged"] is True
    assert path.stats["sinkhorn"]["iterations"] == max(int(r["iterations"]) for r in each)
    assert af.layers([small(), sinkhorn], mu, 2, step=0.3).stats["part 1"]["sinkhorn"]["converged"]
    assert af.layers(sinkhorn, mu, 2, step=0.3).to_xarray().attrs["sinkhorn.error"] < 1e-10
    with pytest.warns(UserWarning, match="an iteration did not converge everywhere along the path"):
        path = af.layers(af.simple_attention(1.0, 3, af.Sinkhorn(max_iterations=2)), mu, 3, step=0.3)
    assert path.stats["sinkhorn"]["converged"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"depth": 2.5}, "depth must be a whole number, got 2.5"),
        ({"step": 0.0}, "step must be positive, got 0.0"),
        ({"step": -0.5}, "step must be positive, got -0.5"),
        ({"step": 0.5, "residual": False}, r"step must be 1 without the residual.*got 0.5"),
        ({"place": "after"}, "place must be 'pre' or 'post', got 'after'"),
        ({"norm": [af.LayerNorm(), None]}, "norm must be one map, or one per field, 1, got 2"),
        ({"norm": af.LayerNorm(np.ones(2))}, "gain must have one entry per coordinate of the rows of x, 3, got 2"),
        ({"norm": af.LayerNorm(bias=np.ones(2))}, "bias must have one entry per coordinate of the rows of x, 3, got 2"),
        ({"fields": []}, "layers need at least one field, got none"),
    ],
)
def test_bad_input_is_named(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        af.layers(**({"fields": [small()], "mu": af.Particles(np.eye(3)), "depth": 2} | arguments))


class Still(Measure):
    """A measure that no velocity moves."""

    mean: Any
    cov: Any

    def integrate(self, f):
        return f(self.mean[None])[0]

    def sample(self, n, *, key):
        return af.Particles(np.tile(self.mean, (n, 1)))

    @property
    def space(self):
        return af.Euclidean()

    @property
    def dim(self):
        return len(self.mean)


def test_what_layers_cannot_move_is_named():
    with pytest.raises(TypeError, match=r"fields\[1\] must be a law or a field, with a method at\(mu, t, sums\), got LayerNorm"):
        af.layers([small(), af.LayerNorm()], af.Particles(np.eye(3)), 2)
    with pytest.raises(TypeError, match="mu must be Particles or a Gaussian, got Still; draw tokens"):
        af.layers(small(), Still(np.zeros(3), np.eye(3)), 2)
    for place in ("pre", "post"):
        with pytest.raises(TypeError, match="stays one only under an Affine map, got LayerNorm; move Particles with it instead"):
            af.layers(small(), af.Gaussian(np.zeros(3), np.eye(3)), 2, norm=af.LayerNorm(), place=place)
    with pytest.raises(ValueError, match=r"epsilon must not be negative, got -1\.0"):
        af.RMSNorm(epsilon=-1.0)


def test_a_list_without_depth_is_the_layers(rng):
    """Blocks of different kinds, one after the other, against plain NumPy; and the same under jit."""
    x, (Q, K, V, W) = rng.normal(size=(4, 3)), rng.normal(size=(4, 3, 3)) / 3
    law, mlp = af.Attention(af.dot_product(Q, K), V), af.ResNet(W)
    blocks = [law, [law, mlp], mlp]
    path = af.layers(blocks, af.Particles(x), step=0.5, norm=None)
    one = x + 0.5 * softmax_velocity(x, Q, K, V)
    half = one + 0.5 * softmax_velocity(one, Q, K, V)
    two = half + 0.5 * np.tanh(half @ W.T)
    three = two + 0.5 * np.tanh(two @ W.T)
    np.testing.assert_allclose(path.states, [x, one, two, three], rtol=1e-12)
    np.testing.assert_allclose(path.ts, [0, 0.5, 1, 1.5])
    assert (path.status.kind, path.stats["layers"]) == ("reached", 3)
    traced = jax.jit(lambda x: af.layers(blocks, af.Particles(x), step=0.5).final.points)(x)
    np.testing.assert_allclose(traced, three, rtol=1e-12)


def test_as_many_laws_as_layers_are_warned_of():
    law, mu = af.simple_attention(1.0, 3), af.Particles(np.eye(3))
    with pytest.warns(UserWarning, match=r"2 half layers, all of which act in each of the 2 layers; .* leave depth out") as caught:
        af.layers([law, law], mu, depth=2)
    assert caught[0].filename == __file__


@pytest.mark.parametrize("run", [lambda field, mu: af.solve(field, mu, 1.0), lambda field, mu: af.layers(field, mu, 2)])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (4, 1), (4, 3, 1)])
def test_a_velocity_of_another_shape_is_not_broadcast(run, shape):
    class Drift(af.Field):
        def at(self, mu, t=0.0, sums=None):
            return lambda x: jnp.ones(shape)

    with pytest.raises(ValueError, match=r"must give one row per point, \[4, 3\], got"):
        run(Drift(), af.Particles(np.ones((4, 3))))
