"""A path of tokens as a movie."""

import pathlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from attnflow import _check as check
from attnflow.flow.path import Path
from attnflow.measures import Particles
from attnflow.numerics.arrays import positive
from attnflow.plot.look import look, new_figure
from attnflow.plot.tokens import projection, tokens

_INCHES, _DPI = 4.0, 160


def movie(
    path: Path,
    file: str | pathlib.Path,
    fps: float = 24.0,
    *,
    every: int = 1,
    tail: int = 12,
    progress: bool = False,
    **drawn: Any,
) -> pathlib.Path:
    """Write a path of tokens as an mp4 and return the file.

    **Arguments:**

    - `path`: a path of `Particles` that `af.plot.tokens` can draw.
    - `file`: ends in .mp4; its folder exists. It appears when the movie is complete, never in part.
    - `fps`: frames a second. Frames are shown evenly, so the `save_at` of `solve` sets the pace.
    - `every`: show each so-manieth frame only, and the last one.
    - `tail`: how many earlier frames leave a trail behind each token.
    - `progress`: draw a progress bar.
    - `drawn`: passed on to `af.plot.tokens`: `color`, `size`, `view`, `bounds`.
    """
    check.path("path", path, Path, Particles, "a path of Particles")
    file = check.folder("file", file)
    if file.suffix != ".mp4":
        raise ValueError(f"file must end in .mp4, got {file.name!r}")
    if not file.parent.is_dir():
        raise ValueError(f"the folder of the movie must exist, got {str(file.parent)!r}")
    positive("fps", fps)
    check.count("every", every)
    check.count("tail", tail, 0)
    check.flag("progress", progress)
    states = np.asarray(path.states)
    space, dim = path.measure.space, path.measure.dim
    if dim > 3 or space.surface(dim) is None:
        # One box for the whole movie: a camera that follows the tokens would hide that they move.
        drawn.setdefault("bounds", [states.min(axis=(0, 1)), states.max(axis=(0, 1))])
    with look():
        figure = new_figure(_INCHES, _INCHES)
        ax = figure.add_subplot(projection=projection(space, dim))

        def draw(i: int) -> None:
            ax.clear()
            tokens(path[i], ax, trail=states[max(0, i - tail) : i + 1], **drawn)
            ax.set_title(f"$t = {float(path.ts[i]):.2f}$")

        # The layout is settled once; anew for each frame it would tremble.
        draw(0)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        shown = [*range(0, len(path) - 1, every), len(path) - 1]
        _write(figure, draw, shown, file, fps, progress)
    return file


def _write(figure: Any, draw: Callable[[int], None], frames: list[int], file: pathlib.Path, fps: float, progress: bool) -> None:
    """Draw each frame and hand it to ffmpeg, under another name until all is done."""
    import imageio_ffmpeg
    import matplotlib
    from matplotlib.animation import FFMpegWriter

    part = file.with_name(f".{file.stem}.part.mp4")
    writer = FFMpegWriter(fps=fps, codec="h264", extra_args=["-crf", "20", "-preset", "fast"])  # pyright: ignore[reportArgumentType]
    try:
        with (
            matplotlib.rc_context({"animation.ffmpeg_path": imageio_ffmpeg.get_ffmpeg_exe()}),
            writer.saving(figure, part, _DPI),
        ):
            for i in _counted(frames, progress):
                draw(i)
                writer.grab_frame()
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def _counted(frames: list[int], progress: bool) -> Iterable[int]:
    if not progress:
        return frames
    from rich.progress import track

    return track(frames, description="movie")
