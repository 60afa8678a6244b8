"""A file becomes a `Spec`, or one line that says which key is wrong, what was got and the cure."""

import math
import os
import pathlib
import tomllib
from typing import Any

import msgspec
import numpy as np

from attnflow.simulate.spec import Gaussian, Grid, Law, Output, Particles, Spec, Time
from attnflow.simulate.unused import check_used
from attnflow.simulate.words import listed, wanted
from attnflow.studies import BadInput

_CURE = "attnflow spec prints an example with every key"
_PICTURES = {kind.__struct_config__.tag: kind for kind in (Particles, Gaussian, Grid)}
# A Gaussian stays one under these alone.
_GAUSSIAN = ("softmax", "sinkhorn", "linear")
_TABLES = ("measure", "law", "time", "output")


def read(file: pathlib.Path, seed: int | None = None) -> Spec:
    """The spec in a file, with another seed if one is given; `BadInput` if it makes no sense. `n` and `dim` of tokens from a file are
    those of the file."""
    try:
        text = file.read_bytes().decode()
    except FileNotFoundError:
        raise BadInput(f"there is no file {str(file)!r}; attnflow spec > {file.name} writes an example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{str(file)!r} cannot be read as text ({error}); {_CURE}") from error
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"{file.name} is not TOML: {error}; {_CURE}") from error
    try:
        _finite(values, "")
        spec = _fits_together(_spec(values if seed is None else values | {"seed": seed}), file.parent)
        check_used(values, spec)
        return spec
    except ValueError as error:
        raise BadInput(f"{file.name}: {error}") from error


def _finite(value: Any, at: str) -> None:
    """TOML has nan and inf; nothing here may be either."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{at} must be finite, got {value}")
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        _finite(item, f"{at}[{key}]" if isinstance(value, list) else f"{at}.{key}".lstrip("."))


def _spec(values: dict[str, Any]) -> Spec:
    """Table by table and key by key, so that each complaint names its key."""
    if unknown := [key for key in values if key not in (*_TABLES, "seed")]:
        raise ValueError(f"a file has no key or table {unknown[0]!r}, it may have {listed([*_TABLES, 'seed'], 'and')}; {_CURE}")
    if missing := [key for key in ("measure", "law", "time") if key not in values]:
        raise ValueError(f"the table [{missing[0]}] is missing; {_CURE}")
    measure, law = values["measure"], values["law"]
    if not isinstance(measure, dict):
        raise ValueError(f"measure must be a table, got {_short(measure)}; {_CURE}")
    if "picture" not in measure:
        raise ValueError(f"measure.picture is missing, it must be {listed(_PICTURES)}; {_CURE}")
    if not isinstance(picture := measure["picture"], str) or picture not in _PICTURES:
        raise ValueError(f"measure.picture must be {listed(_PICTURES)}, got {_short(picture)}")
    given = {key: value for key, value in measure.items() if key != "picture"}
    heads = law if isinstance(law, list) else [law]
    if not heads:
        raise ValueError("law must be a table or several, got none; give at least one [[law]]")
    seed = {} if "seed" not in values else {"seed": _value("seed", values["seed"], Spec, "seed")}
    return Spec(
        measure=_table(given, _PICTURES[picture], "measure", ("picture",)),
        law=[_table(head, Law, f"law[{i}]" if isinstance(law, list) else "law") for i, head in enumerate(heads)],
        time=_table(values["time"], Time, "time"),
        output=_table(values.get("output", {}), Output, "output"),
        **seed,
    )


def _table(values: Any, kind: Any, at: str, more: tuple[str, ...] = ()) -> Any:
    """A table of the file."""
    if not isinstance(values, dict):
        raise ValueError(f"{at} must be a table, got {_short(values)}; {_CURE}")
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    if unknown := [key for key in values if key not in fields]:
        of = "" if not more else f" of the picture {kind.__struct_config__.tag!r}"
        raise ValueError(f"{at} has no key {unknown[0]!r}, the keys{of} are {listed([*more, *fields], 'and')}")
    if missing := [name for name, field in fields.items() if field.required and name not in values]:
        raise ValueError(f"{at}.{missing[0]} is missing, it must be {wanted(fields[missing[0]].type)}; {_CURE}")
    return kind(**{key: _value(f"{at}.{key}", value, kind, key) for key, value in values.items()})


def _value(at: str, value: Any, kind: Any, key: str) -> Any:
    """One value, of the type and range of its key."""
    field = next(field for field in msgspec.structs.fields(kind) if field.name == key)
    try:
        return msgspec.convert(value, field.type)
    except (msgspec.ValidationError, OverflowError):
        raise ValueError(f"{at} must be {wanted(field.type)}, got {_short(value)}") from None


def _short(value: Any) -> str:
    """What was got, as TOML writes it, cut if it is long."""
    plain = isinstance(value, str | int | float | list) and not isinstance(value, bool)
    said = repr(value) if plain else "a table" if isinstance(value, dict) else str(value).lower()
    return said if len(said) <= 60 else f"{said[:57]}..."


def _fits_together(spec: Spec, folder: pathlib.Path) -> Spec:
    """What single keys cannot show."""
    time = spec.time
    if time.t1 <= time.t0:
        raise ValueError(f"time.t1 must be after time.t0, got {time.t1} and {time.t0}")
    if (time.t1 - time.t0) / time.frames <= 4 * np.spacing(max(abs(time.t0), abs(time.t1))):
        raise ValueError(f"time.frames must be so few that their times differ, got {time.frames} from {time.t0} to {time.t1}")
    if isinstance(spec.measure, Particles):
        spec = msgspec.structs.replace(spec, measure=_tokens(spec.measure, folder))
    measure = spec.measure
    if isinstance(measure, Gaussian) and [len(measure.mean)] * len(measure.mean) != [len(row) for row in measure.cov]:
        size = f"{len(measure.mean)} x {len(measure.mean)}"
        raise ValueError(f"measure.cov must be {size} like measure.mean, got rows of {[*map(len, measure.cov)]} numbers")
    if isinstance(measure, Grid):
        _resolved(measure)
    if time.until == "consensus" and not isinstance(measure, Particles):
        raise ValueError(f"time.until: consensus is of particles, got the picture {_picture(measure)!r}; use steady or never")
    _has_room(spec)
    for i, head in enumerate(spec.heads):
        _suits(head, measure, "law" if len(spec.heads) == 1 else f"law[{i}]")
    _observed(spec)
    return spec


def _resolved(measure: Grid) -> None:
    if measure.domain == "circle" and 2 * measure.mode >= measure.cells:
        raise ValueError(f"measure.mode must be below half of measure.cells, got {measure.mode} of {measure.cells} cells")
    width = 2 * measure.half_width / measure.cells
    if measure.domain != "circle" and measure.deviation < width:
        raise ValueError(
            f"measure.deviation must be at least the width of a cell, {width:g}, got {measure.deviation}; or raise measure.cells"
        )


def _suits(head: Law, measure: Any, at: str) -> None:
    """Whether a law can move a measure."""
    dim = _dim(measure)
    for name in ("query", "key", "value"):
        matrix = getattr(head, name)
        rows = [*map(len, matrix)] if isinstance(matrix, list) else [dim] * dim
        if set(rows) != {dim} or (name == "value" and len(rows) != dim):
            size = f"{dim} x {dim}" if name == "value" else f"of {dim} columns"
            raise ValueError(f"{at}.{name} must be {size}, as the measure is on R^{dim}, got rows of {rows} numbers")
    if not isinstance(head.query, list) and not isinstance(head.key, list):
        shapes = dim, dim
    else:
        shapes = tuple(len(matrix) if isinstance(matrix, list) else dim for matrix in (head.query, head.key))
    if shapes[0] != shapes[1]:
        raise ValueError(f"{at}.query and {at}.key must have as many rows as each other, got {shapes[0]} and {shapes[1]}")
    if head.mask != "none" and not isinstance(measure, Particles):
        raise ValueError(f"{at}.mask must be none where tokens have no order, got {head.mask!r} with the picture {_picture(measure)!r}")
    if head.mask != "none" and head.normalisation == "sinkhorn":
        raise ValueError(f"{at}.mask must be none under sinkhorn, whose causal matrix can only be the identity, got {head.mask!r}")
    if head.mask == "window" and head.width is None:
        raise ValueError(f"{at}.width is missing, it must be how many tokens a token sees, itself and those before it")
    tokens = isinstance(measure, Particles) and measure.order == "position"
    if head.mask == "window" and head.width is not None and head.width < 1 and tokens:
        raise ValueError(f"{at}.width must be at least 1, in tokens, got {head.width}; or set measure.order = 'fraction'")
    if head.mask == "alibi" and head.slope is None:
        raise ValueError(f"{at}.slope is missing, it must be how much a logit falls per token")
    if isinstance(measure, Gaussian) and head.normalisation not in _GAUSSIAN:
        raise ValueError(f"{at}.normalisation must be {listed(_GAUSSIAN)}, for a Gaussian to stay one, got {head.normalisation!r}")
    if isinstance(measure, Gaussian) and head.hidden:
        raise ValueError(f"{at}.hidden must be 0, for a Gaussian to stay one, got {head.hidden}")


def _observed(spec: Spec) -> None:
    measure, watched = spec.measure, spec.output.observe
    on_sphere = (isinstance(measure, Particles) and measure.space == "sphere") or (isinstance(measure, Grid) and measure.domain == "circle")
    if "clusters" in watched and not isinstance(measure, Particles):
        raise ValueError(f"output.observe: clusters are of particles, got the picture {_picture(measure)!r}; leave it out")
    if "energy" in watched and isinstance(measure, Gaussian):
        raise ValueError("output.observe: the energy is of particles and grids, got a Gaussian; leave it out")
    if "order" in watched and not on_sphere:
        raise ValueError("output.observe: order is on the sphere or the circle; leave it out, or set measure.space = 'sphere'")
    one = len(spec.heads) == 1 and not spec.heads[0].hidden and isinstance(measure, Particles)
    if "attention_entropy" in watched and not one:
        raise ValueError("output.observe: attention_entropy is of particles under one head with law.hidden = 0; leave it out")


def _tokens(measure: Particles, folder: pathlib.Path) -> Particles:
    if measure.file is not None:
        n, dim = _stored(folder / measure.file)
        measure = msgspec.structs.replace(measure, n=n, dim=dim)
    round_starts = ("uniform", "hemisphere", "orthonormal")
    if measure.file is None and (measure.start in round_starts) != (measure.space == "sphere"):
        names = "uniform, hemisphere or orthonormal" if measure.space == "sphere" else "normal, ball or cube"
        raise ValueError(f"measure.start must be {names} where measure.space is {measure.space!r}, got {measure.start!r}")
    if measure.space == "sphere" and measure.dim < 2:
        raise ValueError(f"measure.dim must be at least 2 on the sphere, got {measure.dim}")
    if measure.file is None and measure.start == "orthonormal" and measure.n > measure.dim:
        raise ValueError(f"measure.n must be at most measure.dim for orthonormal tokens, got {measure.n} and {measure.dim}")
    return measure


def _stored(file: pathlib.Path) -> tuple[int, int]:
    """How many tokens there are in a file, and of which dimension."""
    cure = "give an .npy file of points [n, dim], as numpy.save writes it"
    if not file.is_file():
        raise ValueError(f"measure.file: there is no file {str(file)!r}; {cure}")
    try:
        points = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        raise ValueError(f"measure.file: {str(file)!r} is not an .npy file of numbers; {cure}") from None
    if not isinstance(points, np.ndarray) or points.ndim != 2 or points.dtype.kind not in "fiu" or not points.size:
        got = f"{points.dtype} of shape {list(points.shape)}" if isinstance(points, np.ndarray) else "an archive"
        raise ValueError(f"measure.file must hold real points [n, dim], got {got}; {cure}")
    if not np.isfinite(points).all():
        raise ValueError(f"measure.file must hold finite points, got nan or inf in {str(file)!r}; {cure}")
    return points.shape[0], points.shape[1]


def _has_room(spec: Spec) -> None:
    """Whether the states and the matrices of the law are within half of the memory."""
    measure, dim = spec.measure, _dim(spec.measure)
    if isinstance(measure, Particles):
        numbers, keys = measure.n * dim, ["measure.n", "measure.dim"]
    elif isinstance(measure, Grid):
        numbers, keys = measure.cells ** (2 if measure.domain == "square" else 1), ["measure.cells"]
    else:
        numbers, keys = dim * (dim + 1), ["measure.mean"]
    keys += ["time.frames"] + ["law.hidden"] * any(head.hidden for head in spec.heads)
    weights = sum(4 * dim * dim + 2 * head.hidden * dim for head in spec.heads)
    # A step works on some ten states at a time.
    need, room = 8 * ((spec.time.frames + 10) * numbers + weights), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    if need > room:
        raise ValueError(
            f"the states and the law need {_gigabytes(need)} GB, half of the memory is {_gigabytes(room)} GB; lower {listed(keys)}"
        )


def _gigabytes(size: int | float) -> str:
    # Whole numbers of a file may be larger than any float.
    return f"{size / 1e9:.3g}" if size < 1e300 else "more than 1e291"


def _dim(measure: Any) -> int:
    if isinstance(measure, Particles):
        return measure.dim
    return len(measure.mean) if isinstance(measure, Gaussian) else 1 if measure.domain == "interval" else 2


def _picture(measure: Any) -> str:
    return type(measure).__struct_config__.tag
