"""Thumbnails: images in one folder become images of a quarter of the size in another.

The payload is the name of a file, not the file. A worker that is killed leaves no half of an image:
the handler writes another file and renames it, so that it may run twice.

    python thumbnails.py STORE FOLDER
"""

import sys
from pathlib import Path

from streamkeep.jobs import Queue

Image = tuple[int, int, bytes]  # width, height, one byte per pixel


def read(path: Path) -> Image:
    """Read a gray image in the format PGM."""
    _, size, _, pixels = path.read_bytes().split(b"\n", 3)
    width, height = map(int, size.split())
    return width, height, pixels


def write(path: Path, image: Image) -> None:
    """Write an image, whole or not at all."""
    width, height, pixels = image
    half_written = path.with_suffix(".new")
    half_written.write_bytes(b"P5\n%d %d\n255\n" % (width, height) + pixels)
    half_written.rename(path)


def smaller(image: Image) -> Image:
    """Return every second pixel of every second line."""
    width, height, pixels = image
    lines = [pixels[at : at + width : 2] for at in range(0, width * height, 2 * width)]
    return len(lines[0]), len(lines), b"".join(lines)


def main(path: str, folder: str) -> None:
    images = Path(folder)
    images.mkdir(parents=True, exist_ok=True)
    for number in range(3):
        write(images / f"{number}.pgm", (8, 6, bytes(range(48))))
    with Queue(path, "images") as queue:

        @queue.task(retries=2, max_runtime="1m", concurrency=2)
        def thumbnail(name: str) -> list[int]:
            width, height, pixels = smaller(read(images / name))
            write(images / f"small-{name}", (width, height, pixels))
            return [width, height]

        with queue.store.transaction():
            jobs = [thumbnail.delay(one.name) for one in sorted(images.glob("[0-9].pgm"))]
        queue.run_until_idle()
        print([job.result(timeout=5) for job in jobs])
        print(sorted(one.name for one in images.glob("small-*")))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
