"""A path as a movie."""

import pathlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from attnflow import _check as check
from attnflow._types import PathLike, Scalar
from attnflow.flow.path import Path
from attnflow.measures import Measure
from attnflow.numerics.arrays import positive
from attnflow.plot.frames import Frames
from attnflow.plot.look import look, new_figure
from attnflow.plot.pictures import picture

if TYPE_CHECKING:
    from matplotlib.animation import AbstractMovieWriter
else:
    AbstractMovieWriter = Any

# Dots per inch: all frames of a gif are held in memory, and none is small.
_DPI = {".mp4": 160, ".gif": 110}


def movie(
    path: Path,
    file: PathLike,
    *,
    fps: Scalar = 24.0,
    every: int = 1,
    tail: int = 12,
    progress: bool = False,
    **drawn: Any,
) -> pathlib.Path:
    """Write a path of measures as a movie and return the file.

    Tokens are dots with trails (in more than three dimensions by their first three coordinates), Gaussians and mixtures ellipses, densities
    curves or colors; a measure without a drawing of its own is the ellipse of its mean and covariance.

    **Arguments:**

    - `path`: a path of measures.
    - `file`: ends in .mp4 or .gif; its folder exists. It appears when the movie is complete, never in part.
    - `fps`: frames per second; a gif rounds the time of a frame to hundredths of a second. Frames are shown evenly, so the `save_at` of
      `solve` sets the pace.
    - `every`: show every `every`-th frame only, and the last one.
    - `tail`: how many earlier frames leave a trail behind each token and each mean.
    - `progress`: draw a progress bar.
    - `drawn`: of tokens `color`, `size`, `view` and `bounds`, as in `af.plot.tokens`; of a density on the sphere `view`.
    """
    check.path("path", path, Path, Measure, "a path of measures")
    file = check.folder("file", file)
    if file.suffix not in _DPI:
        raise ValueError(f"file must end in .mp4 or .gif, got {file.name!r}")
    if not file.parent.is_dir():
        raise ValueError(f"the folder of the movie must exist, got {str(file.parent)!r}")
    fps = float(positive("fps", fps))
    check.count("every", every)
    check.count("tail", tail, 0)
    check.flag("progress", progress)
    frames = Frames(path, tail=tail)
    # Three digits of the time that the movie lasts.
    digits = int(np.clip(2 - np.floor(np.log10(np.ptp(frames.ts) or 1.0)), 0, 9))
    with look():
        film = picture(frames, **drawn)
        figure = new_figure(*film.size)
        ax = figure.add_subplot(projection=film.projection)
        film.still(ax, 0)
        film.key(ax)
        # Room for the title; the layout is settled once, as it would tremble if it were made anew for each frame.
        film.title(ax, "$t$")
        figure.draw_without_rendering()
        figure.set_layout_engine("none")
        writer = _writer(file.suffix, fps)
        part = file.with_name(f".{file.stem}.part{file.suffix}")
        try:
            with writer.saving(figure, part, _DPI[file.suffix]):
                for i in _counted([*range(0, len(path) - 1, every), len(path) - 1], progress):
                    ax.clear()
                    film.still(ax, i)
                    film.title(ax, f"$t = {frames.ts[i]:.{digits}f}$")
                    writer.grab_frame()
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    return file


def _writer(ending: str, fps: Any) -> AbstractMovieWriter:
    """What makes a file of frames: ffmpeg, or Pillow for a gif."""
    import imageio_ffmpeg
    import matplotlib
    from matplotlib.animation import FFMpegWriter, PillowWriter

    if ending == ".gif":
        return PillowWriter(fps=fps)
    matplotlib.rcParams["animation.ffmpeg_path"] = imageio_ffmpeg.get_ffmpeg_exe()
    return FFMpegWriter(fps=fps, codec="h264", extra_args=["-crf", "20", "-preset", "fast"])


def _counted(frames: list[int], progress: bool) -> Iterable[int]:
    if not progress:
        return frames
    from rich.progress import track

    return track(frames, description="movie")
