"""A game of a run as a video, every state with what the heads thought of it."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from qe.config import ConfigError, short
from qe.explore.recording import Recording, record
from qe.explore.scene import Scene
from qe.runs.progress import progress_bar
from qe.runs.signals import import_games
from qe.runs.status import open_run

FASTEST = 60  # steps a second
SUFFIXES = (".mp4", ".gif")


def frames(scene: Scene) -> Iterator[NDArray[np.uint8]]:
    for t in progress_bar(iterable=range(len(scene)), desc="drawing", unit=" steps"):
        scene.show(t)
        yield scene.image()


def write_mp4(images: Iterator[NDArray[np.uint8]], path: Path, fps: int) -> None:
    import av

    with av.open(str(path), "w") as file:
        stream = None
        for image in images:
            if stream is None:
                stream = file.add_stream("libx264", rate=Fraction(fps), options={"crf": "23"})
                stream.height, stream.width = image.shape[:2]
                stream.pix_fmt = "yuv420p"  # what browsers play
            file.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        assert stream is not None
        file.mux(stream.encode())


def write_gif(images: Iterator[NDArray[np.uint8]], path: Path, fps: int) -> None:
    from PIL import Image

    first, *rest = (Image.fromarray(i).quantize(64, dither=Image.Dither.NONE) for i in images)
    first.save(path, save_all=True, append_images=rest, duration=1000 // fps, loop=0)


def watch(
    run: Path | str,
    out: Path | str | None = None,
    *,
    seed: int = 0,
    max_steps: int = 600,
    fps: int = 10,
) -> Path:
    """Play a game of the run, and write its video: MP4, or GIF by the name's end."""
    path = Path(out) if out else Path(f"{Path(run).resolve().name}.mp4")
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"out must end with {' or '.join(SUFFIXES)}, not {path.name!r}.")
    for name, value, least in (("steps", max_steps, 1), ("fps", fps, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name} must be at least {least}, not {short(value)}.")
    if fps > FASTEST:
        raise ConfigError(f"fps must be at most {FASTEST}, not {short(fps)}.")
    if path.is_dir() or not all(p.is_dir() for p in path.absolute().parents if p.exists()):
        raise ConfigError(f"out must be a file in a folder, not {short(str(path))}.")
    scene = Scene(_recorded(Path(run), seed, max_steps))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}.tmp{path.suffix}")
    try:
        (write_mp4 if path.suffix == ".mp4" else write_gif)(frames(scene), temporary, fps)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    temporary.replace(path)
    return path


def _recorded(run: Path, seed: int, max_steps: int) -> Recording:
    """A game of the run, whose network has to fit it."""
    _, config = open_run(run)
    import_games(config.suite)
    try:
        recording = record(run, seed, max_steps)
    except (SafetensorError, RuntimeError, KeyError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ConfigError(f"The network in {run} does not fit its run: {said}") from None
    if not np.isfinite(recording.q).all():
        raise ConfigError(f"The network in {run} says what is not a number.")
    return recording
