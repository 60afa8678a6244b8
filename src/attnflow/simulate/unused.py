"""Keys that a file gives and that nothing would read. Each is refused: it asks for something that would not happen."""

from typing import Any

from attnflow.simulate.spec import Gaussian, Grid, Law, Particles, Spec


def check_used(values: dict[str, Any], spec: Spec) -> None:
    """Raise if a table of a file, `values`, has a key that its `spec` does not read. Keys that are left out are no matter."""
    tables = [("measure", values["measure"], _measure(spec)), ("time", values["time"], _time(spec))]
    tables.append(("output", values.get("output", {}), _output(spec)))
    several = isinstance(values["law"], list)
    for i, head in enumerate(spec.heads):
        given = values["law"][i] if several else values["law"]
        tables.append((f"law[{i}]" if several else "law", given, _law(head, i == 0 and "energy" in spec.output.observe)))
    for at, given, idle in tables:
        for key, why in idle.items():
            if key in given:
                raise ValueError(f"{at}.{key} is {why}; leave it out")


def _measure(spec: Spec) -> dict[str, str]:
    """Keys of the measure that are not read, and why."""
    measure, idle = spec.measure, {}
    if isinstance(measure, Grid):
        of_circle, of_box = ("mode", "amplitude"), ("half_width", "deviation")
        of, keys = ("the interval and the square", of_box) if measure.domain == "circle" else ("the circle", of_circle)
        idle |= dict.fromkeys(keys, f"of {of}, got the domain {measure.domain!r}")
    if isinstance(measure, Particles):
        if measure.space == "sphere":
            idle["scale"] = "of normal, ball and cube, got the sphere"
        if measure.file is not None:
            idle |= dict.fromkeys(("n", "dim", "start", "scale"), "not read where measure.file has the tokens")
        if all(head.mask == "none" for head in spec.heads):
            idle["order"] = "read by masks alone, got law.mask = 'none'"
    return idle


def _law(head: Law, has_energy: bool) -> dict[str, str]:
    idle = {key: f"of {mask}, got the mask {head.mask!r}" for key, mask in (("width", "window"), ("slope", "alibi")) if head.mask != mask}
    if head.normalisation == "hardmax" and not has_energy:
        idle["temperature"] = "not seen by hardmax, which takes the largest logit"
    return idle


def _time(spec: Spec) -> dict[str, str]:
    tolerances = ("rtol", "atol")
    if isinstance(spec.measure, Grid):
        return dict.fromkeys(tolerances, "not for a grid, which has steps of its own")
    if isinstance(spec.measure, Particles) and spec.time.noise is not None:
        return dict.fromkeys(tolerances, "not for tokens with noise, whose steps are fixed")
    return {}


def _output(spec: Spec) -> dict[str, str]:
    idle = {} if "clusters" in spec.output.observe else {"radius": "of clusters, which output.observe does not have"}
    if spec.output.movie and (isinstance(spec.measure, Gaussian | Grid) or spec.measure.dim > 3):
        idle["movie"] = "of tokens in up to three dimensions"
    return idle
