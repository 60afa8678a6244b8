"""Every public callable, called wrongly in every way that people call things wrongly.

A row of the table is a right call: each parameter with a right value and its kind. The kind says what is wrong for it: a string, None, a
class, a bare array, the wrong rank, length or dimension, NaN. Run as a script, in a process without the type checks of the tests, so that
it meets what users meet; it prints what was not refused as it should be.
"""

import contextlib
import dataclasses
import inspect
import itertools
import json
import math
import re
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import xarray
from safetensors.numpy import save_file

import attnflow as af
from attnflow.numerics import arrays as _arrays

jax.config.update("jax_enable_x64", True)

PACKAGE = str(Path(af.__file__).parent)
RNG = np.random.default_rng(0)
EYE, KEY = np.eye(2), jax.random.key(0)
NAN = np.array([[math.nan, 0.0], [0.0, 1.0]])
POINTS = RNG.normal(size=(5, 2))
UNIT = POINTS / np.linalg.norm(POINTS, axis=1, keepdims=True)
TOKENS, FOUR = af.Particles(POINTS), af.Particles(RNG.normal(size=(5, 4)))
LINE = af.Particles(RNG.normal(size=(12, 1)))
SPHERE = af.Particles(UNIT, space=af.Sphere())
GAUSSIAN = af.Gaussian([0.0, 0.0], EYE)
NORMAL = af.Gaussian([0.0], [[1.0]])
MIXTURE = af.GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [[[1.0]], [[1.0]]])
PLANE = af.GaussianMixture([0.5, 0.5], POINTS[:2], [EYE, EYE])
CIRCLE = af.Grid.uniform([af.Circle(8)])
LAW = af.simple_attention(1.0, 2)
LOGIT = af.dot_product(EYE, EYE)
CAUSAL = af.Attention(LOGIT, EYE, mask=af.Causal())
AFFINE = af.Affine(jnp.eye(2), jnp.zeros(2))


def path_of(mu: af.FlowingMeasure) -> af.Path:
    """A path of one measure, made by hand: nothing is compiled."""
    states = jax.tree.map(lambda leaf: np.stack([np.asarray(leaf)] * 3), mu.state)
    return af.Path(jnp.arange(3.0), states, af.Status("reached", 2.0), {}, mu)


PATH, GAUSSIANS, GRIDS = path_of(TOKENS), path_of(GAUSSIAN), path_of(CIRCLE)
VERDICT = af.Verdict("point", "made by hand", 1e-3)
STATIONARY = af.Stationary(CIRCLE, 1.0, 0.0, 0.0, 1, True)


class Flat(af.Field):
    """A field of the user whose velocity has the wrong shape: it would be broadcast."""

    def at(self, mu, t=0.0, sums=None):
        return drift


def drift(x):
    return jnp.ones(2)


class OwnField:
    """A field of the user that knows nothing of ours but the contract: a method `at`."""

    def at(self, mu: Any, t: Any = 0.0, sums: Any = None) -> Any:
        return np.zeros_like


class OwnSpace(af.Space):
    """The plane again."""

    def project(self, x, v):
        return v

    def nearest(self, x):
        return x

    def exp(self, x, v):
        return x + v

    def distance(self, x, y):
        return jnp.linalg.norm(x - y, axis=-1)

    def check(self, points):
        return None


class OwnNormalization(af.Normalization):
    """No average is ever asked for."""

    def average(self, logit, atoms, sums):
        raise NotImplementedError

    def weights(self, logit, x, atoms, order=None):
        raise NotImplementedError


class OwnMask(af.Mask):
    """All is seen."""

    def visible(self, s, tau):
        return (s == s) & (tau == tau)

    def tile(self, s, tau):
        return jnp.array(False), jnp.array(False)


class OwnMeasure(af.Particles):
    """Tokens of another name."""


class Nothing:
    """An object that is nothing of ours."""


@dataclasses.dataclass(frozen=True)
class Given:
    """A right value for a parameter, and the wrong ones."""

    right: Any
    wrong: tuple[Any, ...]


def given(right: Any, *wrong: Any, none: bool = False) -> Given:
    """What is never right: another object, and None unless it is allowed."""
    return Given(right, (*wrong, Nothing(), *(() if none else (None,))))


def number(right: Any = 1.0, *wrong: Any, none: bool = False) -> Given:
    return given(right, "one", float, math.nan, [1.0, 2.0], TOKENS, *wrong, none=none)


def positive(right: Any = 1.0, none: bool = False) -> Given:
    return number(right, 0.0, -1.0, none=none)


def count(right: int = 3, least: int = 1, none: bool = False) -> Given:
    return given(right, "three", int, 2.5, math.nan, [3], least - 1, EYE, none=none)


def flag(right: bool = False) -> Given:
    return given(right, "no", bool, 2, EYE)


def choice(right: str) -> Given:
    return given(right, "no such thing", str, 3)


def array(right: Any, *wrong: Any, none: bool = False) -> Given:
    """An array: not a word, not of another rank, and no NaN in it."""
    shape = np.shape(right)
    hole = np.full(shape, math.nan)
    return given(right, "numbers", np.ndarray, np.ones((*shape, 2)), 3.0 if shape else [3.0], hole, {"a": 1}, *wrong, none=none)


def measure(right: Any = TOKENS, *wrong: Any) -> Given:
    return given(right, "tokens", af.Particles, POINTS, POINTS.tolist(), 3, LAW, PATH, *wrong)


def path(right: Any = PATH, *wrong: Any) -> Given:
    return given(right, "path", af.Path, right.measure, POINTS, LAW, *wrong)


def shown(right: Any = PATH, *wrong: Any) -> Given:
    """What a figure takes: a path or a measure."""
    return given(right, "tokens", af.Particles, POINTS, 3, LAW, *wrong)


def field(right: Any = LAW, *wrong: Any) -> Given:
    return given(right, "softmax", af.Attention, EYE, jnp.eye(2), TOKENS, 3.0, lambda x: x, *wrong)


def key(none: bool = False) -> Given:
    return given(KEY, 0, "seed", jax.Array, np.array([0, 1]), jax.random.split(KEY), none=none)


def engine() -> Given:
    return given(None, "streamed", af.Streamed, 3, LAW, none=True)


def function(right: Any, *wrong: Any, none: bool = False) -> Given:
    return given(right, "function", 3.0, EYE, *wrong, none=none)


def folder() -> Given:
    return given("nowhere", 3, EYE, Path)


def axes() -> Given:
    return given([af.Circle(8)], "circle", af.Circle, 8, [8], [af.Circle], [af.Circle(8), af.Interval(0, 1, 4)])


TIME = number(0.0)
# What `at(mu, t, sums)` of every field is given.
AT = {"mu": measure(TOKENS, MIXTURE), "t": number(0.0), "sums": engine()}
X = array(POINTS, np.ones((5, 3)))
LOW = {"x": array(POINTS, np.ones((5, 3)))}
ORDER = array(np.linspace(0, 1, 5), np.ones(4), none=True)
SEMIAXES = array((1.0, 2.0), (1.0,), (1.0, 0.0), (-1.0, 1.0))
DTYPE = given(None, "letters", int, 3, none=True)
AX = given(None, "left", 3, EYE, none=True)
CELLS = count(8)
# What is wrong for a number, or many of them, that must not be negative.
SERIES = (None, Nothing(), math.nan, -1.0, EYE)
BRIDGE = {
    "tolerance": positive(1e-6, none=True),
    "max_iterations": count(),
    "start": array(np.zeros(5), np.zeros(4), none=True),
    "sums": engine(),
    "key": key(none=True),
}
SAMPLE = {"n": count(), "dim": count(2), "key": key(), "dtype": DTYPE}

Row = tuple[Callable, dict[str, Given]]


def row(call: Callable, **parameters: Given) -> Row:
    return call, parameters


def constant(x: Any) -> Any:
    return 0 * x[:, 0]


def uniform(x: Any) -> Any:
    return constant(x) + 1 / (2 * math.pi)


def table() -> dict[str, Row]:
    """A right call of every public callable."""
    samplers = {name: row(getattr(af.samplers, name), **SAMPLE) for name in ("normal",)}
    rows = {f"samplers.{name}": found for name, found in samplers.items()}
    mixture = {
        "weights": array([0.5, 0.5], [0.5], [-1.0, 2.0]),
        "means": array(POINTS[:2], POINTS[:3]),
        "covs": array(np.stack([EYE, EYE]), np.stack([EYE, -EYE])),
    }
    rows |= {
        "samplers.mixture": row(af.samplers.mixture, n=count(), **mixture, key=key()),
        "samplers.sphere": row(af.samplers.sphere, **SAMPLE, radius=positive()),
        "samplers.ellipsoid": row(af.samplers.ellipsoid, n=count(), axes=SEMIAXES, key=key(), dtype=DTYPE),
        "samplers.hemisphere": row(af.samplers.hemisphere, **SAMPLE, pole=array([1.0, 0.0], [1.0, 0.0, 0.0], none=True)),
        "samplers.ball": row(af.samplers.ball, **SAMPLE, radius=positive()),
        "samplers.cube": row(af.samplers.cube, **SAMPLE, half_width=positive()),
        "samplers.orthonormal": row(af.samplers.orthonormal, **SAMPLE | {"n": count(2)}),
        "matrices.gaussian": row(af.matrices.gaussian, dim=count(2), rows=count(2, none=True), key=key(), count=count(), dtype=DTYPE),
        "matrices.goe": row(af.matrices.goe, dim=count(2), key=key(), dtype=DTYPE),
        "matrices.wigner": row(af.matrices.wigner, dim=count(2), key=key(), dtype=DTYPE),
    }
    rows |= measures(mixture) | laws() | flows() | transport() | observables() | plots() | theory() | methods() | models()
    return rows


def measures(mixture: dict[str, Given]) -> dict[str, Row]:
    return {
        "Euclidean": row(af.Euclidean),
        "Ellipsoid": row(af.Ellipsoid, axes=SEMIAXES),
        "Sphere": row(af.Sphere, radius=positive()),
        "Affine": row(af.Affine, matrix=array(jnp.eye(2), np.eye(3), EYE.tolist()), offset=array(jnp.zeros(2), np.zeros(3))),
        "Circle": row(af.Circle, cells=CELLS),
        "Order": row(af.Order, cells=CELLS, length=positive()),
        "Icosphere": row(af.Icosphere, frequency=count(3, 2)),
        "Interval": row(af.Interval, low=number(0.0, 2.0), high=number(1.0, -1.0), cells=CELLS),
        "Zonal": row(af.Zonal, dim=count(3, 3), cells=CELLS, nodes=count(8, 2)),
        "Gaussian": row(af.Gaussian, mean=array([0.0, 0.0], np.zeros(3)), cov=array(EYE, np.eye(3), -EYE, NAN)),
        "GaussianMixture": row(af.GaussianMixture, **mixture),
        "Grid": row(af.Grid, density=array(np.full(8, 1 / (2 * math.pi)), np.ones(8), np.ones(7)), axes=axes()),
        "Particles": row(
            af.Particles,
            points=array(UNIT, 3 * UNIT),
            weights=array(np.ones(5), np.ones(4), -np.ones(5), none=True),
            order=array(np.linspace(0, 1, 5), np.ones(4), none=True),
            space=given(af.Sphere(), "sphere", af.Sphere, 3, TOKENS, none=True),
        ),
        "quadrature": row(af.quadrature, mu=measure(GAUSSIAN, TOKENS), nodes=count(8, 2), reach=positive(4.0)),
        "Grid.from_density": row(af.Grid.from_density, fn=function(uniform, lambda x: np.ones(3), math.sin), axes=axes(), normalize=flag()),
        "Grid.uniform": row(af.Grid.uniform, axes=axes()),
        "Grid.deposit": row(af.Grid.deposit, mu=measure(SPHERE, GAUSSIAN, TOKENS, FOUR), axes=axes()),
        "Gaussian.matching": row(af.Gaussian.matching, mu=given(TOKENS, "tokens", af.Particles, POINTS, 3, LAW, PATH)),
    }


def laws() -> dict[str, Row]:
    matrix = array(EYE, np.ones((2, 3)), NAN)
    bias = array(np.ones(2), np.ones(3), none=True)
    made = {name: row(getattr(af, name)) for name in ("Softmax", "Hardmax", "Sigmoid", "Linear", "Causal", "Dense")}
    normalize = given(None, "softmax", af.Softmax, 3, EYE, LAW, af.Causal(), none=True)
    mask = given(None, "causal", af.Causal, EYE, 3, LAW, af.Softmax(), none=True)
    part = array(jnp.eye(2), np.eye(3), none=True)
    line = array(jnp.zeros(2), np.zeros(3), none=True)
    return made | {
        "Sparsemax": row(af.Sparsemax, alpha=positive(1.5)),
        "ALiBi": row(af.ALiBi, slope=positive()),
        "Window": row(af.Window, width=positive(3.0)),
        "Explicit": row(af.Explicit, matrix=Given(np.ones((2, 2), bool), ("causal", np.ones(2, bool), np.ones((2, 3), bool)))),
        "Quadratic": row(
            af.Quadratic,
            A=array(jnp.eye(2), np.ones((2, 3))),
            P=part,
            R=part,
            p=line,
            r=line,
            constant=array(jnp.zeros(()), none=True),
            psd=flag(),
            gap=given(None, "gap", 3.0, EYE, LAW, none=True),
            squared=flag(),
        ),
        "Spectral": row(af.Spectral, tolerance=positive(1e-6, none=True), circle=flag()),
        "Streamed": row(af.Streamed, queries=count(), keys=count(), native=given(None, "yes", 3, bool, none=True)),
        "dot_product": row(af.dot_product, query=matrix, key=matrix, temperature=positive(), query_bias=bias, key_bias=bias),
        "rotary": row(
            af.rotary,
            query=matrix,
            key=matrix,
            temperature=positive(),
            query_bias=bias,
            key_bias=bias,
            base=positive(100.0, none=True),
            frequencies=Given(None, ("fast", np.ones((2, 2)), np.ones(3), NAN)),
            interleaved=flag(),
        ),
        "squared_distance": row(af.squared_distance, query=matrix, key=matrix, temperature=positive()),
        "Attention": row(
            af.Attention,
            logit=given(LOGIT, "dot", af.Logit, EYE, LAW, lambda x, y: x @ y.T),
            value=array(EYE, np.eye(3), np.ones((2, 3)), NAN),
            normalize=normalize,
            mask=mask,
        ),
        "simple_attention": row(af.simple_attention, beta=number(), dim=count(2), normalize=normalize, mask=mask),
        "MultiHead": row(af.MultiHead, heads=given([LAW, LAW], "heads", LAW, [EYE, EYE], [], [af.Attention], ["softmax"])),
        "multi_head": row(
            af.multi_head,
            query=matrix,
            key=matrix,
            value=matrix,
            out=matrix,
            heads=count(1),
            query_bias=bias,
            key_bias=bias,
            value_bias=bias,
            out_bias=bias,
            key_heads=count(1, none=True),
            temperature=positive(none=True),
            rotary=array(np.ones(1), np.ones(2), none=True),
            interleaved=flag(),
            normalize=normalize,
            mask=mask,
        ),
        "ZeroTemperature": row(
            af.ZeroTemperature,
            logit=given(LOGIT, "dot", af.Logit, EYE, LAW, af.squared_distance(EYE, EYE)),
            value=array(EYE, np.eye(3), NAN),
        ),
        "Sinkhorn": row(af.Sinkhorn, tolerance=positive(1e-6, none=True), max_iterations=count(), half_steps=count(none=True)),
        "Unnormalized": row(af.Unnormalized, log_scale=number(0.0)),
        "closure_residual": row(af.closure_residual, law=field(), mu=measure(TOKENS, GAUSSIAN, FOUR), t=TIME),
    }


def flows() -> dict[str, Row]:
    activation = function(jnp.tanh)
    span = {"t1": number(1.0, -1.0), "t0": number(0.0, 2.0), "save_at": given(3, "all", 0, [2.0, 1.0], [5.0], EYE)}
    tolerances = {"rtol": positive(1e-6, none=True), "atol": positive(1e-9, none=True), "step": positive(0.1, none=True)}
    until = function(None, "steady", af.Steady, none=True)
    observe = given(None, "energy", af.energy, ["energy"], {"energy": "energy"}, {"energy": af.Steady}, none=True)
    out = given(None, 3, EYE, Path, none=True)
    gain = array(np.ones(2), none=True)
    grid = {"guess": measure(CIRCLE, TOKENS, GAUSSIAN, MIXTURE)}
    looks = given({"mean": af.mean_cosine}, "energy", ["energy"], {"energy": "energy"}, {}, {"seed": af.mean_cosine})
    return {
        "solve": row(
            af.solve,
            field=field(),
            mu=measure(TOKENS, MIXTURE, FOUR),
            **span,
            rtol=tolerances["rtol"],
            atol=tolerances["atol"],
            solver=given(None, "rk4", diffrax.Tsit5, 4, LAW, none=True),
            step=tolerances["step"],
            noise=positive(0.1, none=True),
            key=given(KEY, 0, "seed", np.array([0, 1]), jax.random.split(KEY)),
            max_steps=count(),
            until=until,
            observe=observe,
            keep_states=flag(True),
            sums=engine(),
            out=out,
            adjoint=given(None, "forward", diffrax.ForwardMode, 3, LAW, none=True),
            progress=flag(),
        ),
        "layers": row(
            af.layers,
            fields=given(LAW, "softmax", af.Attention, EYE, TOKENS, [LAW, EYE], []),
            mu=measure(TOKENS, MIXTURE),
            depth=count(2, none=True),
            step=positive(),
            residual=flag(True),
            norm=function(None, "layernorm", af.LayerNorm, [af.LayerNorm(), af.LayerNorm()], none=True),
            place=choice("post"),
            sums=engine(),
            progress=flag(),
        ),
        "gradient_flow": row(
            af.gradient_flow,
            flow=given(af.Heat(), "heat", af.Heat, 3, LAW),
            mu=measure(TOKENS, MIXTURE),
            eps=positive(0.5),
            steps=count(2),
            save_every=count(1),
            progress=flag(),
            options=given(None),
        ),
        "sweep": row(
            af.sweep,
            make=function(lambda key, beta: (af.simple_attention(beta, 2), af.samplers.sphere(4, 2, key=key)), lambda: 1),
            grid=given({"beta": [1.0]}, "beta", [1.0], {}, {"gamma": [1.0]}, {"beta": "one"}, {"beta": [math.nan]}, {"seed": [1.0]}),
            seeds=given(2, "two", 0, -1, 2.5, [1, 1], EYE),
            **span,
            observe=looks,
            **tolerances,
            until=until,
            max_steps=count(),
            batch=count(none=True),
            out=out,
            progress=flag(),
        ),
        "over_seeds": row(af.over_seeds, data=given(xarray.Dataset({"y": ("seed", np.ones(3))}), "data", EYE, TOKENS)),
        "plan": row(af.plan, field=field(), mu=AT["mu"], sums=engine(), t=TIME),
        "load_path": row(af.load_path, folder=folder()),
        "Consensus": row(af.Consensus, radius=positive()),
        "Steady": row(af.Steady, speed=positive(none=True)),
        "GatedPerceptron": row(
            af.GatedPerceptron,
            gate=array(np.ones((3, 2)), np.ones((2, 2))),
            hidden=array(np.ones((3, 2))),
            out=array(np.ones((2, 3)), np.ones((3, 2))),
            gate_bias=array(np.ones(3), np.ones(2), none=True),
            hidden_bias=array(np.ones(3), np.ones(2), none=True),
            out_bias=array(np.ones(2), np.ones(3), none=True),
            activation=activation,
        ),
        "Perceptron": row(
            af.Perceptron,
            hidden=array(np.ones((3, 2))),
            out=array(np.ones((2, 3)), np.ones((3, 2))),
            hidden_bias=array(np.ones(3), np.ones(2), none=True),
            out_bias=array(np.ones(2), np.ones(3), none=True),
            activation=activation,
        ),
        "ResNet": row(
            af.ResNet,
            weight=array(EYE, np.ones((2, 3))),
            bias=array(np.ones(2), np.ones(3), none=True),
            activation=activation,
        ),
        "normalized_update": row(af.normalized_update, law=field(LAW, af.ResNet(EYE))),
        "rescaled": row(af.rescaled, law=field(LAW, af.ResNet(EYE))),
        "with_norm": row(af.with_norm, law=field(), scheme=choice("post"), switch=number(), alpha=positive()),
        "LayerNorm": row(af.LayerNorm, gain=gain, bias=gain, epsilon=number(1e-5, -1.0)),
        "RMSNorm": row(af.RMSNorm, gain=gain, epsilon=number(1e-5, -1.0)),
        "OnHost": row(af.OnHost, function=function(af.mean_cosine)),
        "Scheduled": row(af.Scheduled, make=function(lambda t: LAW), jump_times=array([1.0, 2.0], [2.0, 1.0], none=True)),
        "piecewise": row(
            af.piecewise,
            times=array([0.0, 1.0], [1.0, 0.0], [0.0]),
            fields=given([LAW, LAW], "laws", LAW, [LAW], [LAW, EYE], ["a", "b"], [LAW, af.simple_attention(1.0, 3)]),
        ),
        "resampled": row(af.resampled, draw=function(lambda key: LAW), key=key(), width=positive(), layers=count()),
        "stationary": row(
            af.stationary,
            field=field(),
            guess=grid["guess"],
            noise=positive(),
            tolerance=positive(1e-6, none=True),
            max_iterations=count(),
        ),
        "bifurcation": row(af.bifurcation, field=field(), uniform=grid["guess"], mode=count(1)),
        "branch": row(
            af.branch,
            field=field(),
            start=given(STATIONARY, "start", af.Stationary, CIRCLE, 3),
            between=array([0.5, 2.0], [0.5], [2.0, 3.0]),
            at=Given(None, ("one", float, math.nan, EYE, Nothing())),
            direction=given(1, "up", 2, 0.5, int),
            points=count(3, 2),
            step=positive(),
            tolerance=positive(1e-6, none=True),
        ),
        "staircase": row(
            af.staircase,
            law=field(LAW, CAUSAL),
            mu=measure(SPHERE, TOKENS, GAUSSIAN),
            log_t1=number(3.0),
            radius=positive(1e-6),
            progress=flag(),
        ),
    }


def transport() -> dict[str, Row]:
    pictures = measure(TOKENS, FOUR)
    two = {"mu": pictures, "nu": pictures}
    law = measure(GAUSSIAN, TOKENS)
    score = given(None, "kernel", 3.0, EYE, af.Heat, none=True)
    options = given(None)
    return {
        "bridge": row(af.bridge, mu=pictures, nu=pictures, eps=positive(), **BRIDGE),
        "self_bridge": row(af.self_bridge, mu=measure(), eps=positive(), **BRIDGE),
        "bridge_score": row(af.bridge_score, mu=measure(), eps=positive(), options=options),
        "kernel_score": row(af.kernel_score, mu=measure(), eps=positive(), sums=engine()),
        "richardson_score": row(af.richardson_score, mu=measure(), eps=positive(), options=options),
        "sinkhorn_divergence": row(af.sinkhorn_divergence, **two, eps=positive(), options=options),
        "sinkhorn_step": row(af.sinkhorn_step, flow=given(af.Heat(), "heat", af.Heat), mu=measure(), eps=positive(), options=options),
        "euler_step": row(af.euler_step, score=function(np.negative, constant), mu=measure(), eps=positive()),
        "choose_eps": row(
            af.choose_eps,
            mu=measure(LINE, GAUSSIAN),
            score=function(af.kernel_score),
            epsilons=array([0.1, 0.2], [0.1], [-1.0, 1.0], none=True),
            folds=count(2),
            key=key(),
        ),
        "bures": row(af.bures, **two),
        "wasserstein2": row(af.wasserstein2, **two),
        "energy_distance": row(af.energy_distance, **two),
        "mmd": row(af.mmd, **two, bandwidth=positive(), sums=engine()),
        "sliced_wasserstein2": row(af.sliced_wasserstein2, **two, directions=given(3, "three", 0, 2.5, np.ones((3, 3)), NAN), key=key()),
        "heat_flow": row(af.heat_flow, mu=law, t=number(1.0, -1.0)),
        "ornstein_uhlenbeck": row(af.ornstein_uhlenbeck, mu=law, target=measure(GAUSSIAN, TOKENS, NORMAL), t=number(1.0, -1.0)),
        "characteristics": row(
            af.characteristics,
            mu=law,
            x=X,
            t=number(1.0, -1.0),
            target=given(None, "target", af.Gaussian, EYE, NORMAL, TOKENS, none=True),
        ),
        "quantiles": row(af.quantiles, mu=measure(NORMAL, GAUSSIAN), levels=array([0.2, 0.5], [0.0, 1.0])),
        "Heat": row(af.Heat, score=score),
        "ReverseHeat": row(af.ReverseHeat, score=score),
        "FokkerPlanck": row(af.FokkerPlanck, target=given(GAUSSIAN, "target", 3.0, EYE, af.Gaussian), score=score),
        "KullbackLeibler": row(af.KullbackLeibler, target=given(GAUSSIAN, "target", 3.0, EYE, af.Gaussian), score=score, least=positive()),
    }


def observables() -> dict[str, Row]:
    tokens = measure(TOKENS, GAUSSIAN)
    sphere = measure(SPHERE, GAUSSIAN, TOKENS)
    return {
        "attention_entropy": row(af.attention_entropy, law=field(), mu=tokens, sums=engine()),
        "attention_rank": row(af.attention_rank, law=field(), mu=tokens, tolerance=positive()),
        "leaders": row(af.leaders, law=field(), mu=tokens),
        "clusters": row(af.clusters, mu=tokens, radius=positive(), floor=number(0.0, -1.0, 1.0)),
        "misalignment": row(af.misalignment, mu=tokens, projector=array(EYE, np.eye(3), NAN)),
        "entropy": row(af.entropy, mu=tokens, bandwidth=positive(), sums=engine()),
        "fisher_information": row(af.fisher_information, mu=measure(TOKENS, MIXTURE), bandwidth=positive(), sums=engine()),
        "log_density": row(af.log_density, mu=tokens, x=X, bandwidth=positive(), sums=engine()),
        "dissipation": row(af.dissipation, law=field(LAW, CAUSAL), mu=tokens, sums=engine()),
        "energy": row(af.energy, mu=tokens, beta=positive(), log_scale=number(0.0), sums=engine(), log=flag()),
        "free_energy": row(
            af.free_energy,
            mu=tokens,
            beta=positive(),
            noise=number(0.0, -1.0),
            log_scale=number(0.0),
            bandwidth=given(None, none=True),
            sums=engine(),
        ),
        "pair_cosine": row(af.pair_cosine, mu=tokens, centered=flag()),
        "rank_one_residual": row(af.rank_one_residual, mu=tokens),
        "intrinsic_dimension": row(af.intrinsic_dimension, mu=tokens),
        "neighbor_overlap": row(af.neighbor_overlap, mu=tokens, nu=tokens, k=count(2)),
        "displacement": row(af.displacement, mu=tokens, nu=tokens),
        "step_sizes": row(af.step_sizes, path=path()),
        "in_hemisphere": row(af.in_hemisphere, mu=sphere),
        "renyi_centers": row(af.renyi_centers, mu=sphere, delta=positive(), strong=flag()),
        "limit_shape": row(
            af.limit_shape,
            path=path(PATH, GRIDS),
            value=Given(None, ("V", EYE[0], NAN, np.eye(3), Nothing())),
            direction=array(np.ones(2), np.ones(3), np.zeros(2), none=True),
            tolerance=positive(1e-3),
        ),
        "linearization": row(af.linearization, field=field(), mu=tokens, t=TIME),
        "local_lipschitz": row(af.local_lipschitz, law=field(), mu=tokens, iterations=count(), tolerance=positive(1.0)),
        "lyapunov_exponents": row(af.lyapunov_exponents, field=field(), mu=tokens, t1=positive(), key=key(), steps=count(), count=count(1)),
        "cosine_histogram": row(af.cosine_histogram, mu=sphere, bins=count()),
        "effective_rank": row(af.effective_rank, mu=measure(TOKENS, MIXTURE)),
        "mean_cosine": row(af.mean_cosine, mu=sphere),
        "order_parameter": row(af.order_parameter, mu=sphere, k=count(1)),
        "growth_rates": row(
            af.growth_rates,
            field=field(),
            dim=count(2, 2),
            modes=given(2, "two", 0, 2.5, [0], [1.5], EYE),
            noise=number(0.0),
            t=TIME,
        ),
        "predict_limit": row(af.predict_limit, Q=array(EYE, np.eye(3)), K=array(EYE, np.eye(3)), V=array(EYE, np.eye(3), np.ones((2, 3)))),
        "keep_compiled": row(af.keep_compiled, folder=given(None, 3, EYE, Path, none=True)),
    }


def plots() -> dict[str, Row]:
    drawn = given(None)
    rows = {
        "densities": row(af.plot.densities, path=shown(GRIDS, PATH, TOKENS), ax=AX, frame=given(-1, "last", 2.5, 7, none=True)),
        "ellipses": row(af.plot.ellipses, path=shown(GAUSSIANS, PATH, TOKENS), ax=AX, count=count()),
        "look": row(af.plot.look),
        "new_figure": row(af.plot.new_figure, width=positive(), height=positive()),
        "attention": row(af.plot.attention, law=given(LAW, "law", NAN, TOKENS, EYE), mu=shown(TOKENS, GAUSSIAN, GAUSSIANS), ax=AX),
        "movie": row(
            af.plot.movie,
            path=path(PATH),
            file=given("movie.gif", 3, EYE, "movie.avi", "no/such/folder/movie.mp4"),
            fps=positive(),
            every=count(),
            tail=count(3, 0),
            progress=flag(),
            drawn=drawn,
        ),
        "rates": row(
            af.plot.rates,
            x=array([1.0, 2.0], [-1.0, 1.0], [1.0]),
            series=given({"y": [1.0, 2.0]}, "y", [1.0, 2.0], {"y": "two"}, {"y": [1.0]}, {"y": [math.nan, 1.0]}),
            ax=AX,
            slope=number(1.0, none=True),
            xlabel=given("", 3),
            ylabel=given("", 3),
        ),
        "summary": row(af.plot.summary, path=shown(), observed=given(None, "energy", [1.0], none=True)),
        "tokens": row(
            af.plot.tokens,
            mu=shown(TOKENS, GAUSSIAN, GAUSSIANS, FOUR),
            ax=AX,
            color=given(None, "no such color", 3.0, ["red", "blue"], none=True),
            size=positive(),
            trail=array(POINTS[None], POINTS[None, :4], none=True),
            view=array([20.0, 30.0], [20.0]),
            bounds=array(EYE, np.eye(3), none=True),
        ),
    }
    return {f"plot.{name}": found for name, found in rows.items()}


def theory() -> dict[str, Row]:
    known, beta = af.theory, Given(1.0, ("one", *SERIES))
    cosine, dim = number(0.5, 2.0, -2.0), count(3, 2)
    matrix = array(EYE, np.ones((2, 3)), np.eye(3), NAN)
    law = measure(MIXTURE, TOKENS)
    rows = {
        "cap_mass": row(known.cap_mass, dim=dim, delta=positive()),
        "strong_centers": row(known.strong_centers, dim=dim, delta=positive(), n=count()),
        "wendel": row(known.wendel, n=count(), dim=count()),
        "cold_limit": row(known.cold_limit, x=X, B=matrix, V=matrix),
        "concentration_rate": row(known.concentration_rate, B=matrix, V=matrix),
        "laplace_mean": row(
            known.laplace_mean, z=array(POINTS, np.zeros((5, 2))), score=Given(POINTS, ("zero", None, NAN, np.ones((5, 3))))
        ),
        "spectral_projector": row(known.spectral_projector, matrix=array(EYE, np.ones((2, 3)), NAN)),
        "uniform_mean": row(known.uniform_mean, z=array(POINTS)),
        "equiangular": row(known.equiangular, n=count(3, 2), beta=number(), t=array([0.0, 1.0]), kind=choice("softmax"), start=number(0.0)),
        "equiangular_rate": row(
            known.equiangular_rate,
            g=Given(0.5, ("half", None, Nothing(), math.nan)),
            n=count(3, 2),
            beta=number(),
            kind=choice("softmax"),
        ),
        "softmax_blow_up_time": row(known.softmax_blow_up_time, cov=array(EYE, -EYE, np.eye(3)), A=matrix),
        "softmax_covariance": row(known.softmax_covariance, cov=array(EYE, -EYE, np.eye(3)), A=matrix, t=number(0.1)),
        "langevin_constant": row(known.langevin_constant, mu=law),
        "langevin_divergence": row(known.langevin_divergence, mu=law, eps=array([1.0], [-1.0]), nodes=count(600, 2)),
        "langevin_potential": row(known.langevin_potential, mu=measure(PLANE, TOKENS), x=X),
        "lipschitz_bound": row(known.lipschitz_bound, query_key=matrix, value=matrix, radius=positive(), n=count()),
        "stability_constant": row(known.stability_constant, query_key=matrix, value=matrix, radius=positive(), t=number(1.0, -1.0)),
        "context_cosine": row(known.context_cosine, n=count(3, 2), cosine=cosine, beta=positive()),
        "context_limit": row(known.context_limit, cosine=cosine, gamma=positive()),
        "critical_sharpness": row(known.critical_sharpness, cosine=cosine),
        "merger_log_time": row(
            known.merger_log_time,
            cosine=cosine,
            beta=positive(),
            masses=array((0.5, 0.5), (0.5,), (0.5, -0.5)),
            kind=choice("softmax"),
        ),
        "window_time": row(known.window_time, angle=positive(), beta=positive(10.0), rate=positive()),
        "support_radius": row(
            known.support_radius, radius=number(1.0, -1.0), value=array(EYE, np.ones((2, 3))), t=Given(1.0, ("now", *SERIES))
        ),
        "branch_curvature": row(known.branch_curvature, beta=beta, dim=dim),
        "critical_beta": row(known.critical_beta, dim=dim),
        "critical_noise": row(known.critical_noise, beta=beta, dim=dim),
        "mode_growth": row(
            known.mode_growth,
            k=Given(2.0, ("two", None, Nothing(), math.nan, 0, 1.5, EYE)),
            beta=beta,
            dim=dim,
            kind=choice("softmax"),
            noise=Given(0.0, ("one", None, Nothing(), math.nan, EYE)),
        ),
    }
    return {f"theory.{name}": found for name, found in rows.items()}


def methods() -> dict[str, Row]:
    """Methods of measures, paths, laws and velocities."""
    fields = {
        "Attention": LAW,
        "MultiHead": af.MultiHead([LAW, LAW]),
        "StackedHeads": af.multi_head(EYE, EYE, EYE, EYE, 2),
        "Sum": LAW + LAW,
        "Then": LAW.then(af.Perceptron(EYE, EYE)),
        "Perceptron": af.Perceptron(EYE, EYE),
        "GatedPerceptron": af.GatedPerceptron(EYE, EYE, EYE),
        "ResNet": af.ResNet(EYE),
        "Scheduled": af.Scheduled(lambda t: LAW),
        "NormalizedUpdate": af.normalized_update(LAW),
        "Rescaled": af.rescaled(LAW),
        "WithNorm": af.with_norm(LAW, "pre"),
    }
    rows = {f"{name}.at": row(found.at, **AT) for name, found in fields.items()}
    rows["ZeroTemperature.at"] = row(af.ZeroTemperature(LOGIT, EYE).at, **AT | {"mu": measure(SPHERE, TOKENS, GAUSSIAN)})
    points, order = jnp.asarray(POINTS), ORDER
    velocities = {
        name: (found.at(TOKENS), "x")
        for name, found in fields.items()
        if name not in ("Perceptron", "GatedPerceptron", "ResNet", "Sum", "Scheduled")
    }
    velocities["causal"] = (CAUSAL.at(TOKENS), "x")
    for name, (velocity, x) in velocities.items():
        extra = {"order": order} if "order" in inspect.signature(type(velocity).__call__).parameters else {}
        rows[f"the velocity of {name}"] = row(velocity, **{x: array(points, np.ones((5, 3)))}, **extra)
    rows["Perceptron()"] = row(af.Perceptron(EYE, EYE), y=X)
    rows["GatedPerceptron()"] = row(af.GatedPerceptron(EYE, EYE, EYE), y=X)
    rows["ResNet()"] = row(af.ResNet(EYE), x=X)
    # These have the same velocity whatever the order.
    rows["Affine()"] = row(AFFINE, x=X, order=Given(None, ()))
    rows["LayerNorm()"] = row(af.LayerNorm(np.ones(2)), x=X)
    rows["RMSNorm()"] = row(af.RMSNorm(np.ones(2)), x=X)
    rows["kernel_score()"] = row(af.kernel_score(TOKENS, 1.0), x=X, order=Given(None, ()))
    rows["Affine.__add__"] = row(AFFINE.__add__, other=given(AFFINE, 1, "map", EYE, LAW))
    rows["Field.__add__"] = row(LAW.__add__, other=field())
    rows["Field.__radd__"] = row(LAW.__radd__, other=field())
    rows["Field.then"] = row(LAW.then, map=function(af.LayerNorm(), af.LayerNorm))
    rows["Attention.weights"] = row(LAW.weights, x=X, mu=measure(TOKENS, GAUSSIAN, FOUR), order=ORDER)
    f, n = function(constant, lambda x: 1.0, lambda x: x[:2]), count()
    for name, mu in {"Particles": TOKENS, "Gaussian": GAUSSIAN, "GaussianMixture": PLANE, "Grid": CIRCLE}.items():
        rows[f"{name}.integrate"] = row(mu.integrate, f=f)
        if hasattr(mu, "sample"):
            rows[f"{name}.sample"] = row(mu.sample, n=n, key=key())
    for name, mu in {"Particles": TOKENS, "Grid": CIRCLE}.items():
        wrong = ("velocity", 3.0, None, af.Affine, lambda x: x[0], lambda x: x[:, :1])
        rows[f"{name}.rate"] = row(mu.rate, velocity=Given(AFFINE, wrong))
        rows[f"{name}.push"] = row(mu.push, map=Given(AFFINE, wrong))
    rows["Gaussian.rate"] = row(GAUSSIAN.rate, velocity=function(AFFINE, af.Affine, constant))
    rows["Gaussian.push"] = row(GAUSSIAN.push, map=function(AFFINE, af.Affine, constant))
    rows["Grid.quantiles"] = row(CIRCLE.quantiles, n=n)
    for name in ("density", "log_density", "score"):
        rows[f"GaussianMixture.{name}"] = row(getattr(PLANE, name), x=X)
        rows[f"Gaussian.{name}"] = row(getattr(GAUSSIAN, name), x=X)
    rows["GaussianMixture.heat"] = row(PLANE.heat, t=number(1.0, -1.0))
    rows["Gaussian.heat"] = row(GAUSSIAN.heat, t=number(1.0, -1.0))
    rows["Path.__getitem__"] = row(PATH.__getitem__, i=given(0, "last", 1.5, EYE))
    rows["Path.__call__"] = row(PATH.__call__, t=given(0.5, "now", -1.0, 5.0, math.nan, EYE, None))
    rows["Path.save"] = row(PATH.save, folder=folder())
    rows["Prediction.agrees"] = row(af.predict_limit(EYE, EYE, EYE).agrees, verdict=given(VERDICT, "point", af.Verdict, 3))
    for name, flow in {
        "Heat": af.Heat(),
        "FokkerPlanck": af.FokkerPlanck(GAUSSIAN),
        "KullbackLeibler": af.KullbackLeibler(GAUSSIAN),
    }.items():
        rows[f"{name}.step"] = row(flow.step, mu=measure(), eps=positive(), options=given(None))
    return rows


def looked() -> Any:
    """The least that a dataset of `model.look` has."""
    import xarray

    heads = {name: (("case", "layer", "head"), np.ones((1, 2, 2))) for name in ("entropy", "sink", "column_error")}
    return xarray.Dataset(heads | {"cosine": (("case", "frame"), np.ones((1, 5)))}, {"case": ["trained"], "frame": np.arange(5) / 2})


def models() -> dict[str, Row]:
    """A transformer of two dimensions and one layer, read from a folder."""
    sizes = {"wte": (3, 2), "wpe": (8, 2), "ln_f": (2,), "h.0.ln_1": (2,), "h.0.ln_2": (2,), "h.0.attn.c_attn": (2, 6)}
    sizes |= {"h.0.attn.c_proj": (2, 2), "h.0.mlp.c_fc": (2, 8), "h.0.mlp.c_proj": (8, 2)}
    tensors = {f"{name}.weight": np.ones(size, np.float32) for name, size in sizes.items()}
    tensors |= {f"{name}.bias": np.zeros(size[-1:], np.float32) for name, size in sizes.items() if not name.startswith("w")}
    Path("model").mkdir(exist_ok=True)
    save_file(tensors, "model/model.safetensors")
    config = {"model_type": "gpt2", "n_embd": 2, "n_layer": 1, "n_head": 1, "vocab_size": 3, "n_positions": 8}
    Path("model/config.json").write_text(json.dumps(config))
    model = af.models.load("model")
    x = given([0, 1, 2], "text", [0, 3], [-1], [0.5], [], np.zeros(9, int), [[0, 1]], 3, LAW)
    head = array(np.ones((2, 1, 2, 2)), np.ones((1, 1, 2, 2)), np.ones((2, 1, 3, 2)))
    bias, one = array(np.ones((2, 1, 2)), np.ones((1, 1, 2)), none=True), count(0, 0)
    arrays = {
        "states": array(np.stack([POINTS] * 3), np.ones((3, 5, 3))),
        "ts": array(np.arange(3.0), np.arange(2.0), np.zeros(3), none=True),
        "names": given(list("abcde"), "abcde", ["a"], 3, none=True),
        **dict.fromkeys(("query", "key", "value", "out"), head),
        **{f"{name}_bias": bias for name in ("query", "key", "value")},
        "out_bias": array(np.ones((2, 2)), np.ones((1, 2)), none=True),
        "temperature": positive(none=True),
        "rotary": array(np.ones(1), np.ones(2), none=True),
        "interleaved": flag(),
        "normalize": given(None, "softmax", af.Softmax, 3, EYE, none=True),
        "mask": given(None, "causal", af.Causal, EYE, 3, none=True),
    }
    names = given(list("abcde"), "abcde", ["a"], 3)
    tokens = {"points": array(POINTS), "names": names, "weights": array(np.ones(5), np.ones(4), -np.ones(5), none=True)}
    space = given(None, "sphere", af.Sphere, 3, TOKENS, none=True)
    normal = given(af.Softmax(), "softmax", af.Softmax, 3, EYE, LAW)
    return {
        "models.load": row(
            af.models.load, folder=given("model", 3, EYE, Path, "nowhere"), dtype=given(None, "letters", int, "float16", none=True)
        ),
        "models.from_arrays": row(af.models.from_arrays, **arrays),
        "models.NamedTokens": row(af.models.NamedTokens, **tokens, order=ORDER, space=space),
        "NamedTokens.top": row(af.models.NamedTokens(POINTS, ["a", "b", "c", "d", "e"]).top, k=count()),
        "Transformer.measure": row(model.measure, x=x),
        "Transformer.path": row(model.path, x=x, sums=engine()),
        "plot.tokenization": row(af.plot.tokenization, model=given(model, "model", 3, LAW), x=given([0, 1, 2], [0, 3], [0.5], 3, LAW)),
        "plot.layers": row(af.plot.layers, data=given(looked(), 3, "data", EYE)),
        "Transformer.next": row(model.next, x=x),
        "Transformer.final": row(model.final, path=path(model.path([0, 1]), GAUSSIANS)),
        "Transformer.law": row(model.law, layer=one, head=one),
        "Transformer.block": row(model.block, layer=one),
        "Transformer.with_normalization": row(model.with_normalization, normalize=normal),
        "Transformer.stack": row(
            model.stack, depth=count(none=True), step=given(0.5, "half", 0.3, 0, -1, 2, math.nan, none=True), layer=count(0, 0, none=True)
        ),
    }


# Results, which the library makes, and classes to subclass: nobody calls these.
RESULTS = {
    "Bifurcation",
    "Block",
    "Branch",
    "Clusters",
    "Engine",
    "Field",
    "FlowingMeasure",
    "Logit",
    "Mask",
    "Measure",
    "Normalization",
    "Observed",
    "Path",
    "Pointwise",
    "Prediction",
    "Space",
    "Staircase",
    "Stationary",
    "Status",
    "Tokenizer",
    "Transformer",
    "Velocity",
    "Verdict",
}


def public() -> Iterator[str]:
    """Every public callable, from the lists of the package."""
    modules = {name: getattr(af, name) for name in af.__all__ if inspect.ismodule(getattr(af, name))}
    yield from (name for name in af.__all__ if name not in RESULTS and name not in modules)
    for module, found in modules.items():
        for name, value in vars(found).items():
            home = getattr(value, "__module__", "")
            own = home == found.__name__ if module in ("samplers", "matrices") else home.startswith(found.__name__)
            if not name.startswith("_") and callable(value) and own and name not in RESULTS:
                yield name if name in af.__all__ and getattr(af, name) is value else f"{module}.{name}"


def parameters(call: Callable) -> set[str]:
    return set(inspect.signature(call).parameters)


# An argument may be called by what it is.
NOUNS = {
    "mu": "measure|tokens|cloud|Particles|Gaussian|Grid|law acts on|points",
    "nu": "measure|tokens|cloud|Particles|Gaussian|Grid",
    "field": "law|velocity|acts on|growth rates",
    "law": "frame|acts on",
    "path": "frame",
    "x": "queries|rows|points|characteristics",
    "y": "rows|points",
    "head": "h\\b",
    "z": "rows",
    "other": "added",
    "i": "index",
    "cov": "covariance",
    "covs": "covariance",
    "weights": "mass",
    "density": "mass",
    "fields": "layers|heads",
    "axes": "grid over|Axis|cells",
    "dim": "R\\^dim|dimension",
    "low": "Interval",
    "high": "Interval",
    "map": "velocity|Affine",
    "verdict": "Verdict",
    "start": "potential",
    "file": "movie",
    "data": "dataset",
    "matrix": "mask",
    "g": "cosine",
    "guess": "Grid|stationary",
    "uniform": "Grid|bifurcation",
    "value": "matrices|V\\b",
    "query": "key",
    "save_at": "frames|times",
    "noise": "key",
    "seeds": "seed",
    "score": "map",
    "between": "range",
    "at": "parameter",
    "t1": "later",
    "t0": "t1",
    "points": "sphere",
}


def verdict(call: Callable, arguments: dict[str, Any], name: str) -> str:
    """What is wrong with how a wrong call is refused; nothing if it is as it should be."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call(**arguments)
    except (TypeError, ValueError, IndexError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        line, last = str(error), frames[-1].filename if frames else ""
        if "unexpected keyword argument" in line and name in line:
            return "" if "\n" not in line else f"more than one line: {line!r}"
        if not last.startswith(PACKAGE):
            return f"raised in {last}: {line.splitlines()[0] if line else ''}"
        if "\n" in line:
            return f"more than one line: {line[:200]!r}"
        if "got " not in line and "got:" not in line:
            return f"does not say what was got: {line}"
        noun = rf"\b{re.escape(name)}\b" + (f"|{NOUNS[name]}" if name in NOUNS else "")
        return "" if re.search(noun, line) else f"does not name {name!r}: {line}"
    except Exception as error:
        return f"raised {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "accepted"


def wrong_calls(call: Callable, row: dict[str, Given]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The mutations of a right call: what was done, to which parameter, and the arguments."""
    right = {name: found.right for name, found in row.items() if name not in ("options", "drawn")}
    for name, found in row.items():
        if name in right:
            for value in found.wrong:
                yield f"{name}={_word(value)}", name, right | {name: value}
    yield "an unknown keyword", "no_such_option", right | {"no_such_option": 1}
    names = [name for name in right if inspect.signature(call).parameters[name].default is inspect.Parameter.empty]
    for one, other in itertools.pairwise(names):
        if type(row[one].right) is not type(row[other].right):
            yield f"{one} and {other} swapped", f"{one}", right | {one: right[other], other: right[one]}


def _word(value: Any) -> str:
    word = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    return re.sub(r"\s+", " ", word)[:60]


def walk(only: str = "") -> dict[str, Any]:
    """The whole table; how many wrong calls there were, and what is wrong with the answers."""
    rows = table()
    report: dict[str, Any] = {"rows": len(rows), "calls": 0, "failures": [], "missing": [], "uncovered": []}
    report["missing"] = sorted(set(public()) - set(rows))
    for name, (call, row) in rows.items():
        if only and only != name:
            continue
        left_out = parameters(call) - set(row)
        if left_out:
            report["uncovered"].append(f"{name}: {', '.join(sorted(left_out))}")
        for done, parameter, arguments in wrong_calls(call, row):
            report["calls"] += 1
            found = verdict(call, arguments, parameter)
            if found and not (done.endswith("swapped") and found.startswith("does not name")):
                report["failures"].append(f"{name}({done}): {found}")
    return report


def right_calls() -> list[str]:
    """The rows whose right call fails."""
    failures = []
    PATH.save("nowhere")
    for name, (call, row) in table().items():
        arguments = {name: found.right for name, found in row.items() if name not in ("options", "drawn")}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                call(**arguments)
        except Exception as error:
            failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    return failures


def say(calls: list[str]) -> dict[str, str]:
    """The error or the warning of each call, given as a line of Python."""
    said = {}
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                exec(call, dict(globals()))
                said[call] = "nothing" if not caught else f"{caught[-1].category.__name__}: {caught[-1].message}"
            except Exception as error:
                said[call] = f"{type(error).__name__}: {error}"
    return said


def pointed_at(lines: list[str]) -> dict[str, str]:
    """The file and the line that the warning of single precision points to, for each line on its own, the third of its file."""
    jax.config.update("jax_enable_x64", False)
    places = {}
    for line in lines:
        _arrays._warned.clear()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            exec(compile(f"\n\n{line}", "of_a_user.py", "exec"), dict(globals()))
            places[line] = ", ".join(f"{found.filename}:{found.lineno}" for found in caught)
    return places


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        match sys.argv[1:]:
            case ["--right"]:
                print(json.dumps(right_calls()))
            case ["--say", *calls]:
                print(json.dumps(say(calls)))
            case [name]:
                print(json.dumps(walk(name)))
            case _:
                given = json.loads(sys.stdin.read())
                print(json.dumps(walk() | {"said": say(given["said"]), "places": pointed_at(given["places"])}))


if __name__ == "__main__":
    main()
