"""A file becomes a `Spec`, or one line that says which key is wrong, what was got and the cure."""

import math
import os
import pathlib
import re
import tomllib
from typing import Any

import msgspec

from attnflow.simulate.spec import Gaussian, Grid, Particles, Spec
from attnflow.studies import BadInput

_CURE = "attnflow spec prints an example with every key"


def read(file: pathlib.Path, seed: int | None = None) -> Spec:
    """The spec in a file, with another seed if one is given; `BadInput` if it makes no sense."""
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(file)!r}; attnflow spec > {file.name} writes an example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(file)!r} cannot be read ({error}); {_CURE}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file.name} is not TOML: {error}; {_CURE}") from error
    try:
        values = values if seed is None else values | {"seed": seed}
        _finite(values, "")
        spec = msgspec.convert(values, Spec)
        _fits_together(spec, file.parent)
    except msgspec.ValidationError as error:
        raise BadInput(f"{file.name}: {_said(str(error))}; {_CURE}") from error
    except ValueError as error:
        raise BadInput(f"{file.name}: {error}") from error
    return spec


def _finite(value: Any, at: str) -> None:
    """TOML has nan and inf; nothing here may be either."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{at} must be finite, got {value}")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _finite(item, f"{at}[{key}]" if isinstance(value, list) else f"{at}.{key}".lstrip("."))


def _said(message: str) -> str:
    """msgspec puts the place last, as `$.table.key`; it comes first here."""
    message = message.replace("`", "")
    body, _, place = message.partition(" - at $")
    place = re.sub(r"\[\.\.\.\]", "[...]", place.lstrip("."))
    body = body.replace("Object ", "the file " if not place else "the table ").replace("missing required field", "misses the key")
    body = body.replace("contains unknown field", "has no key")
    return f"{place}: {body[0].lower()}{body[1:]}" if place else f"{body[0].lower()}{body[1:]}"


def _fits_together(spec: Spec, folder: pathlib.Path) -> None:
    """What single keys cannot show."""
    measure, time = spec.measure, spec.time
    if time.t1 <= time.t0:
        raise ValueError(f"time.t1 must be after time.t0, got {time.t1} and {time.t0}")
    if not spec.heads:
        raise ValueError("law must be a table or several, got none; give at least one [[law]]")
    if isinstance(measure, Particles):
        _tokens(measure, folder)
    if isinstance(measure, Gaussian) and [len(measure.mean)] * len(measure.mean) != [len(row) for row in measure.cov]:
        raise ValueError(
            f"measure.cov must be {len(measure.mean)} x {len(measure.mean)} like measure.mean, got rows of {[*map(len, measure.cov)]}"
        )
    if "clusters" in spec.output.observe and not isinstance(measure, Particles):
        raise ValueError(f"output.observe: clusters are of particles, got the picture {_picture(measure)!r}; leave it out")
    if "energy" in spec.output.observe and isinstance(measure, Gaussian):
        raise ValueError("output.observe: the energy is of particles and grids, got a Gaussian; leave it out")
    if "order" in spec.output.observe and not _on_sphere(measure):
        raise ValueError("output.observe: order is on the sphere or the circle; leave it out, or set measure.space = 'sphere'")
    if "attention_entropy" in spec.output.observe and (not isinstance(measure, Particles) or len(spec.heads) > 1):
        raise ValueError("output.observe: attention_entropy is of particles under one head; leave it out")
    numbers = time.frames * _numbers(measure)
    room = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if numbers * 8 > room / 2:
        raise ValueError(
            f"time.frames and the size of the measure ask for {numbers * 8 / 1e9:.3g} GB of states, "
            f"half of the memory is {room / 2e9:.3g} GB; lower measure.n, measure.cells or time.frames"
        )


def _tokens(measure: Particles, folder: pathlib.Path) -> None:
    round_starts = ("uniform", "hemisphere", "orthonormal")
    if measure.file is not None:
        if not (folder / measure.file).is_file():
            raise ValueError(f"measure.file: there is no file {str(folder / measure.file)!r}; give an .npy file of points [n, dim]")
    elif (measure.start in round_starts) != (measure.space == "sphere"):
        names = "uniform, hemisphere or orthonormal" if measure.space == "sphere" else "normal, ball or cube"
        raise ValueError(f"measure.start must be {names} where measure.space is {measure.space!r}, got {measure.start!r}")
    elif measure.start == "orthonormal" and measure.n > measure.dim:
        raise ValueError(f"measure.n must be at most measure.dim for orthonormal tokens, got {measure.n} and {measure.dim}")
    elif measure.space == "sphere" and measure.dim < 2:
        raise ValueError(f"measure.dim must be at least 2 on the sphere, got {measure.dim}")


def _numbers(measure: Any) -> int:
    """How many numbers a state has."""
    if isinstance(measure, Particles):
        return measure.n * measure.dim
    if isinstance(measure, Grid):
        return measure.cells ** (2 if measure.domain == "square" else 1)
    return len(measure.mean) * (len(measure.mean) + 1)


def _on_sphere(measure: Any) -> bool:
    return (isinstance(measure, Particles) and measure.space == "sphere") or (isinstance(measure, Grid) and measure.domain == "circle")


def _picture(measure: Any) -> str:
    return type(measure).__struct_config__.tag
