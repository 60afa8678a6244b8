"""Paths made by hand, for figures and movies."""

import jax.numpy as jnp
import numpy as np

import attnflow as af


def path_of(measures: list) -> af.Path:
    """A path made by hand."""
    states = [mu.state for mu in measures]
    stacked = jnp.stack(states) if hasattr(states[0], "shape") else tuple(jnp.stack(parts) for parts in zip(*states, strict=True))
    if not hasattr(states[0], "shape") and hasattr(states[0], "_fields"):
        stacked = type(states[0])(*stacked)
    ts = jnp.linspace(0.0, 2.0, len(measures))
    return af.Path(ts, stacked, af.Status("reached", 2.0), {}, measures[0])


def wave(amplitude: float, cells: int = 16) -> af.Grid:
    return af.Grid.from_density(lambda x: (1 + amplitude * x[:, 0]) / (2 * jnp.pi), [af.Circle(cells)])


def bump(axes) -> af.Grid:
    blank = af.Grid.uniform(axes)
    values = jnp.exp(-jnp.sum((blank.mesh.points - 0.5) ** 2, axis=1))
    return af.Grid((values / jnp.sum(values * blank.mesh.volumes)).reshape(blank.mesh.shape), blank.mesh)


def gaussians(dim: int, count: int = 5) -> af.Path:
    turn = np.eye(dim)
    return path_of([af.Gaussian(np.full(dim, float(k)), (1.0 + k) * turn) for k in range(count)])


def turning(mu: af.Particles, frames: int) -> af.Path:
    """A path made by hand: the tokens turn in the plane of the first two coordinates."""
    ts = jnp.linspace(0.0, 1.0, frames)
    first, second = mu.points[:, 0], mu.points[:, 1]
    turned = [jnp.stack([jnp.cos(t) * first - jnp.sin(t) * second, jnp.sin(t) * first + jnp.cos(t) * second], axis=1) for t in ts]
    states = jnp.stack([jnp.concatenate([plane, mu.points[:, 2:]], axis=1) for plane in turned])
    return af.Path(ts, states, af.Status("reached", 1.0), {}, mu)
