"""128 rescaled tokens in R^128 to T = 3: `solve` against a vectorized NumPy Runge-Kutta at equal error against a DOP853 reference.

V is symmetric with |eigenvalues| in [1, 2], the tokens are N(0, I). With A = I every token attends to itself alone from the start
(|z|^2 is 128, scalar products are about 11), so that nothing moves and any method is exact in one step; A = I / 128 puts logits of order
one at the start and lets attention sharpen on the way, which is what the frame is for. Two peers: one that forms e^{tV} with SciPy's expm
at every evaluation, as the formula reads, and one that works in the eigenvectors of V throughout, the best NumPy can do for a symmetric V.
Two accuracies: the default stepper at a middling tolerance, and Dopri8 at a tight one, where a fixed step of fourth order shows its cost.
"""

import math
from collections.abc import Callable

import diffrax
import jax
import numpy as np
import scipy.linalg
from scipy.integrate import solve_ivp

import attnflow as af
from benchmarks.table import Row, compare

N, D, END = 128, 128, 3.0


def setup() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Tokens, V, its eigenvectors and its eigenvalues."""
    rng = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(rng.normal(size=(D, D)))
    values = rng.uniform(1, 2, D) * rng.choice([-1, 1], D)
    return rng.normal(size=(N, D)), (vectors * values) @ vectors.T, vectors, values


def in_eigenvectors(values: np.ndarray):
    """`z_i' = sum_j K_ij V (z_j - z_i)` in the coordinates of the eigenvectors."""

    def rate(t: float, c: np.ndarray) -> np.ndarray:
        return (attend(c * np.exp(t * values), c) - c) * values

    return rate


def as_written(V: np.ndarray):
    """The same in the coordinates of the tokens."""

    def rate(t: float, z: np.ndarray) -> np.ndarray:
        return (attend(z @ scipy.linalg.expm(t * V).T, z) - z) @ V.T

    return rate


def attend(moved: np.ndarray, z: np.ndarray) -> np.ndarray:
    """The softmax average of z under the logits of the moved tokens."""
    logits = (moved @ moved.T) / D
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (p @ z) / p.sum(axis=1, keepdims=True)


def runge_kutta(rate, c: np.ndarray, steps: int) -> np.ndarray:
    h = END / steps
    for i in range(steps):
        t = i * h
        k1 = rate(t, c)
        k2 = rate(t + h / 2, c + h / 2 * k1)
        k3 = rate(t + h / 2, c + h / 2 * k2)
        k4 = rate(t + h, c + h * k3)
        c = c + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return c


def run() -> list[Row]:
    points, V, vectors, values = setup()
    start, rate = points @ vectors, in_eigenvectors(values)
    flat = solve_ivp(lambda t, y: rate(t, y.reshape(N, D)).ravel(), (0, END), start.ravel(), method="DOP853", rtol=1e-12, atol=1e-13)
    truth = flat.y[:, -1].reshape(N, D)
    with jax.enable_x64(True):
        mu, field = af.Particles(points), af.rescaled(af.Attention(af.dot_product(np.eye(D), np.eye(D), temperature=D), V))

        rows = []
        for solver, rtol in ((diffrax.Tsit5(), 1e-6), (diffrax.Dopri8(), 1e-10)):

            def ours(solver=solver, rtol=rtol) -> np.ndarray:
                return np.asarray(af.solve(field, mu, t1=END, save_at=2, rtol=rtol, atol=rtol, solver=solver).final.points)

            error = float(np.abs(ours() @ vectors - truth).max())
            steps = fewest(lambda steps: float(np.abs(runge_kutta(rate, start, steps) - truth).max()), error)
            peers = {"in eigenvectors": lambda steps=steps: runge_kutta(rate, start, steps)}
            if rtol >= 1e-6:
                peers["with expm"] = lambda steps=steps: runge_kutta(as_written(V), points, steps)
            for name, peer in peers.items():
                fast, slow = compare(ours, peer, 2)
                question = f"rescaled {N} tokens in R^{D}, {type(solver).__name__}, error {error:.0e}; Runge-Kutta {name}, {steps} steps"
                rows.append(
                    Row(question, f"{fast * 1e3:.0f} ms", f"{slow * 1e3:.0f} ms", f"{slow / fast:.1f}x", ">= 10x", slow >= 10 * fast)
                )
    return rows


def fewest(error_of: Callable[[int], float], error: float) -> int:
    """About the least number of steps with this error or less, from the order of the method."""
    steps = 64
    for _ in range(4):
        found = error_of(steps)
        guess = math.ceil(steps * (found / error) ** 0.25)
        if found <= error and guess > 0.94 * steps:
            return steps
        steps = guess if guess != steps else steps + 1
    while error_of(steps) > error:
        steps += 1 + steps // 16
    return steps
