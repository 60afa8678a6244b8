"""64 tokens on S^2 to T = 15: `solve` at rtol 1e-6 against a vectorized NumPy Runge-Kutta at dt = 0.01."""

import jax
import numpy as np

import attnflow as af
from benchmarks.table import Row, compare

BETA, END, DT = 9.0, 15.0, 0.01


def velocity(x: np.ndarray) -> np.ndarray:
    """Simple attention on the sphere."""
    p = np.exp(BETA * (x @ x.T - 1))
    v = (p @ x) / p.sum(axis=1, keepdims=True)
    return v - np.einsum("nd,nd->n", v, x)[:, None] * x


def runge_kutta(x: np.ndarray) -> np.ndarray:
    """The classical method, back to the sphere after each step."""
    for _ in range(round(END / DT)):
        a = velocity(x)
        b = velocity(x + DT / 2 * a)
        c = velocity(x + DT / 2 * b)
        d = velocity(x + DT * c)
        x = x + DT / 6 * (a + 2 * b + 2 * c + d)
        x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x


def run() -> list[Row]:
    with jax.enable_x64(True):
        mu, law = af.samplers.sphere(64, 3, key=jax.random.key(0)), af.simple_attention(BETA, 3)
        start, final = np.asarray(mu.points), {}

        def ours() -> None:
            final["ours"] = np.asarray(af.solve(law, mu, t1=END, rtol=1e-6, atol=1e-6).final.points)

        def peer() -> None:
            final["peer"] = runge_kutta(start)

        fast, slow = compare(ours, peer, 5)
    gap = float(np.abs(final["ours"] - final["peer"]).max())
    ratio = f"{slow / fast:.0f}x"
    return [
        Row(
            f"64 tokens on S^2 to T = 15 (final states agree to {gap:.0e})",
            f"{fast * 1e3:.1f} ms",
            f"{slow * 1e3:.0f} ms",
            ratio,
            ">= 20x",
            slow >= 20 * fast,
        ),
        Row("the same, second call", f"{fast * 1e3:.1f} ms", "", "", "< 20 ms", fast < 0.020),
    ]
