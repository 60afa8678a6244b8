"""The order of tokens: positions by default, any numbers if given; windows and slopes against masks written out in exact arithmetic."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attnflow as af

N = 13
TILES = af.Streamed(4, 3, native=False)
rng = np.random.default_rng(11)
ORDERS = {
    "positions": None,
    "a sequence further on": 4096 + np.arange(N),
    "halves, unsorted": rng.permutation(N) / 2,
    "negative": rng.permutation(N) - 8.0,
    "repeated": rng.integers(-2, 3, N),
    "far from 0": 2.0**40 + 3 * rng.permutation(N),
    "reals": 5 * rng.normal(size=N),
}


def matrix(order, width=None, slope=0.0, logits=None):
    """The rows of softmax over what is seen, by sums of rationals in the order."""
    s = [Fraction(float(number)) for number in order]
    logits = np.zeros((len(s), len(s))) if logits is None else logits
    found = np.zeros((len(s), len(s)))
    for i, here in enumerate(s):
        for j, there in enumerate(s):
            if there <= here and (width is None or here - there < Fraction(width)):
                found[i, j] = np.exp(logits[i, j] - slope * float(here - there))
    return found / found.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_masks_by_any_order(order):
    """All pairs, and for windows tiles too, at widths at which tokens lie on the edge and edges are edges of tiles."""
    x = np.random.default_rng(3).normal(size=(N, 2))
    mu = af.Particles(x, order=order)
    given = np.arange(N) if order is None else order
    np.testing.assert_array_equal(mu.sequence, given)
    windows = [(af.Window(width), {"width": width}) for width in (1, 1.5, 2, 3, 4, 6, 12)]
    for mask, numbers in [(af.Causal(), {}), (af.ALiBi(0.25), {"slope": 0.25}), *windows]:
        law = af.simple_attention(1.0, 2, mask=mask)
        expected = matrix(given, logits=x @ x.T, **numbers)
        np.testing.assert_allclose(law.weights(mu.points, mu), expected, rtol=1e-12, atol=1e-15)
        if numbers.get("width"):
            np.testing.assert_allclose(mu.rate(law.at(mu, sums=TILES)), expected @ x, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [11, 1_000_000])
def test_a_window_counts_tokens(n, dtype):
    """In row i the tokens max(0, i - w + 1), ..., i: never one more or less, however long the sequence."""
    sequence = af.Particles(np.zeros((n, 1), dtype)).sequence
    rows = np.unique([0, 1, 2, n // 3, n - 2, n - 1])
    for width in (1, 3, 7, n // 2):
        seen = np.asarray(af.Window(width).visible(sequence[rows][:, None], sequence[None, :]))
        for i, row in zip(rows, seen):
            np.testing.assert_array_equal(np.flatnonzero(row), np.arange(max(0, i - width + 1), i + 1))


def test_tiles_say_what_their_pairs_would():
    """Skipped and whole tiles against all pairs, for windows whose edges are edges of tiles; in single precision, where differences of
    orders are rounded, too."""
    choice = np.random.default_rng(5)
    for dtype in (np.float64, np.float32):
        for s, tau in ((np.arange(12), np.arange(12)), (choice.normal(size=12), choice.normal(size=12) + 0.5)):
            s, tau = (np.sort(rows).astype(dtype) for rows in (s, tau))
            for width in (1.0, 3.0, 4.0, 5.0, float(s[9] - s[2])):
                mask = af.Window(np.asarray(width, dtype))
                seen = np.asarray(mask.visible(jnp.asarray(s)[:, None], jnp.asarray(tau)[None]))
                for i in range(0, 12, 3):
                    for j in range(0, 12, 3):
                        tile = seen[i : i + 3, j : j + 3]
                        bounds = [(jnp.asarray(rows[k]), jnp.asarray(rows[k + 2])) for rows, k in ((s, i), (tau, j))]
                        nothing, everything = mask.tile(*bounds)
                        assert not (nothing and tile.any()), "what is seen is not skipped"
                        assert bool(everything) == bool(tile.all())


def test_sliding_windows_and_alibi_against_torch():
    """Bands and biases as torch users write them: `i - j < w`, and `-slope (i - j)` with the slopes 2^(-8 h / H) of the paper."""
    torch = pytest.importorskip("torch")
    attend = torch.nn.functional.scaled_dot_product_attention
    x = np.random.default_rng(6).normal(size=(N, 2))
    mu, tokens, place = af.Particles(x), torch.tensor(x)[None], torch.arange(N, dtype=torch.float64)
    far = place[:, None] - place[None]
    cases = [(af.Window(width), torch.ones(N, N, dtype=torch.bool).tril().triu(1 - width)) for width in (1, 3, N)]
    cases += [(af.ALiBi(2.0**-h), torch.where(far >= 0, -(2.0**-h) * far, -torch.inf)) for h in (1, 4, 8)]
    for mask, given in cases:
        expected = attend(tokens, tokens, tokens, attn_mask=given, scale=1.0)[0].numpy()
        found = af.simple_attention(1.0, 2, mask=mask).weights(mu.points, mu) @ x
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)
    np.testing.assert_array_equal(af.Explicit(cases[1][1]).matrix, cases[1][1].numpy())


def test_fractions_are_positions_over_the_last():
    x = np.random.default_rng(7).normal(size=(N, 2))
    parts, places = af.Particles(x, order="fraction"), af.Particles(x)
    np.testing.assert_array_equal(parts.order, np.arange(N) / (N - 1))
    assert af.Particles(x[:1], order="fraction").order.tolist() == [0]
    traced = jax.jit(lambda x: af.Particles(x, order="fraction").order)(x.astype(np.float32))
    np.testing.assert_array_equal(traced[np.array([0, -1])], [0, 1])
    for whole, one in ((af.ALiBi(3.0), af.ALiBi(3 / (N - 1))), (af.Window(2.5 / (N - 1)), af.Window(2.5))):
        np.testing.assert_allclose(weights(parts, whole), weights(places, one), rtol=1e-12)


def weights(mu, mask):
    return af.simple_attention(1.0, 2, mask=mask).weights(mu.points, mu)


def test_a_mask_matrix_is_by_row_whatever_the_order():
    x = np.random.default_rng(8).normal(size=(N, 2))
    mu = af.Particles(x, order=-np.arange(N))
    seen = np.tri(N, dtype=bool)
    expected = matrix(np.arange(N), logits=x @ x.T)
    law = af.simple_attention(1.0, 2, mask=af.Explicit(seen))
    for found in (law.weights(mu.points, mu), law.weights(mu.points, mu, mu.order)):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    np.testing.assert_allclose(law.at(mu)(mu.points, mu.order), expected @ x, rtol=1e-11)
    with pytest.raises(ValueError, match="for its 13 tokens themselves, got 2 queries"):
        law.weights(mu.points[:2], mu, mu.order[:2])


def test_a_mask_matrix_is_of_false_and_true():
    seen = np.tri(4)
    for given in (seen, seen.astype(int), seen.astype(bool), seen.astype(np.uint8).tolist(), jnp.asarray(seen, jnp.bfloat16)):
        np.testing.assert_array_equal(af.Explicit(given).matrix, seen == 1)
    np.testing.assert_array_equal(jax.jit(lambda m: af.Explicit(m).matrix)(seen == 1), seen == 1)
    for hidden in (-np.inf, -1e9, np.finfo(np.float32).min, -1e4):
        additive = np.where(seen == 1, 0, hidden)
        with pytest.raises(ValueError, match=r"got an additive mask of 0 and -.*; give mask == 0"):
            af.Explicit(additive)
        np.testing.assert_array_equal(af.Explicit(additive == 0).matrix, seen == 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([[1, np.nan], [1, 1]], r"got nan at \[0, 1\]"),
        ([[1, 0.5], [1, 1]], r"or 1 and 0, got 0.5 at \[0, 1\]"),
        ([[1, 1], [2, 1]], r"got 2 at \[1, 0\]"),
        ([[1, -np.inf], [1, 1]], r"got -inf at \[0, 1\]"),
        ([[0, -0.1], [0, 0]], r"got -0.1 at \[0, 1\]; for what is added to logits there is ALiBi"),
        (np.zeros((2, 2)), "got an empty row 0 in the mask matrix; 1 is seen, and for an additive mask give mask == 0"),
        ([[1, 0], [1]], "must be square .*, got rows of different lengths"),
        ([["a", "b"], ["c", "d"]], "must hold true and false, or 1 and 0, got dtype <U1"),
        (np.eye(2) * 1j, "got dtype complex128"),
        ("causal", r"must be square \[n, n\], got \[\]"),
    ],
)
def test_other_matrices_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        af.Explicit(given)


def test_inside_jit_numbers_cannot_be_told_from_an_additive_mask():
    with pytest.raises(ValueError, match=r"must be boolean, got float64; give matrix == 1"):
        jax.jit(lambda m: af.Explicit(m).matrix)(jnp.eye(3))


TOKENS = af.Particles(np.eye(3))
GRID = af.Grid.uniform([af.Order(3), af.Interval(-1.0, 1.0, 4)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: weights(af.Particles(np.eye(2)), af.Window(0.3)), r"width 0.3 sees the token itself alone; count in tokens.*'fraction'"),
        (lambda: af.simple_attention(1.0, 3, mask=af.Window(0.999)).at(TOKENS), "count in tokens"),
        (lambda: af.simple_attention(1.0, 1, mask=af.Window(3)).at(GRID), r"width 3 is longer than the order, \[0, 1\]; use Causal"),
        (
            lambda: af.simple_attention(1.0, 1, mask=af.Causal()).at(GRID)(jnp.zeros((2, 1)), jnp.array([0.0, 7.0])),
            r"order must lie in \[0, 1\], that of the grid, got 0 to 7; .*'fraction'\), or af.Order\(cells, length=n\)",
        ),
        (lambda: af.Grid.deposit(af.Particles(np.zeros((5, 1))), GRID.mesh), r"must lie in \[0, 1\], that of the grid, got 0 to 4"),
        (lambda: af.Grid.deposit(af.Particles(np.zeros((2, 1)), order=[-0.1, 1]), GRID.mesh), "got -0.1 to 1"),
        (lambda: af.Particles(np.eye(2), order="time"), r"order must be numbers \[n\] or 'fraction', got 'time'; leave it out"),
        (lambda: af.Particles(np.eye(2), order=[0, np.inf]), r"order must be finite, got inf at \[1\]"),
        (lambda: af.Particles(np.eye(2, dtype=np.float32), order=[0, 2**24 + 1]), "keep its digits in float32.*give float64 points"),
        (lambda: af.Particles(np.eye(2, dtype=np.float32), order=np.array([1e9, 1e9 + 1])), "keep its digits in float32"),
        (lambda: af.Order(3, length=0), "length of an Order must be positive and finite, got 0"),
        (lambda: af.Order(3, length=np.inf), "got inf"),
    ],
)
def test_another_unit_of_order_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_positions_are_exact_or_refused():
    """Whole numbers are exact in single precision up to 2^24."""
    shape = lambda n, dtype: jax.eval_shape(lambda x: af.Particles(x).sequence, jax.ShapeDtypeStruct((n, 1), dtype))  # noqa: E731
    assert shape(2**24, np.float32).dtype == np.float32
    assert shape(2**24 + 1, np.float64).dtype == np.float64
    with pytest.raises(ValueError, match=r"16777217 positions are not exact in float32; give float64 points"):
        shape(2**24 + 1, np.float32)
