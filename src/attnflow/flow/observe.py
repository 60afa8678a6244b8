"""Observables along a run, at every frame: compiled ones with the segment, host ones when it is done."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from attnflow import _check as check
from attnflow.measures import FlowingMeasure


class Observed(NamedTuple):
    """The values of an observable, `values[i]` at `ts[i]`, the times of the frames."""

    ts: Any
    values: PyTree


class OnHost:
    """Marks an observable that cannot be compiled: it is called with the measure on the host, at every frame."""

    def __init__(self, function: Callable[[FlowingMeasure], Any]):
        self.function = check.function("function", function, "a function of the measure")


def split(observe: Any) -> tuple[dict[str, Callable], dict[str, Callable]]:
    """The compiled observables and the host ones, by name."""
    if observe is None:
        return {}, {}
    check.instance("observe", observe, dict, "a dict of functions of the measure", 'give observe={"name": function}')
    for name, f in observe.items():
        if not isinstance(f, OnHost):
            check.function(f"observe[{name!r}]", f, "a function of the measure")
    compiled = {name: f for name, f in observe.items() if not isinstance(f, OnHost)}
    return compiled, {name: f.function for name, f in observe.items() if isinstance(f, OnHost)}


def value_of(name: str, function: Callable, mu: FlowingMeasure) -> Array:
    """An observable of a measure whose values are being traced."""
    try:
        value = function(mu)
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise ValueError(
            f"observe[{name!r}] must be compiled, got a function that needs the values of the tokens ({type(error).__name__}); "
            f"write it with jax.numpy, or give af.OnHost(function)"
        ) from None
    try:
        return jnp.asarray(value)
    except TypeError:
        raise ValueError(check.refusal(f"observe[{name!r}]", "a function whose value is a number or an array", value)) from None
