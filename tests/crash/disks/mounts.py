"""Images of disks: making a file system in one, and mounting it; for root on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
KINDS: Final = ("ext4", "xfs", "btrfs")
_MAKE: Final = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "nodiscard,lazy_itable_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-K"],
    "btrfs": ["mkfs.btrfs", "-q", "-f", "-K"],
}
_SIZE: Final = {"ext4": 64 * MIB, "xfs": 300 * MIB, "btrfs": 256 * MIB}  # the least that they take


def run(*command: object) -> str:
    """Run a command; return what it prints, or raise with what it says."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout


def why_not(kind: str) -> str:
    """Return why a file system of a kind cannot be mounted here; empty if it can."""
    if os.geteuid() != 0:
        return "only root can mount"
    for tool in (_MAKE[kind][0], "losetup", "unshare", "fusermount3"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    for device in ("/dev/loop-control", "/dev/fuse"):
        if not os.path.exists(device):
            return f"there is no {device}"
    if kind not in Path("/proc/filesystems").read_text().split():
        return f"the kernel has no {kind}"
    return ""


def make_image(path: Path, kind: str, size: int = 0) -> None:
    """Make the image of a disk with an empty file system."""
    with path.open("wb") as file:
        file.truncate(size or _SIZE[kind])
    run(*_MAKE[kind], path)


@contextmanager
def mounted(image: Path, kind: str, at: Path) -> Iterator[Path]:
    """Mount an image through a loop device, while the block runs."""
    at.mkdir(exist_ok=True)
    run("mount", "-t", kind, "-o", "loop", image, at)
    try:
        yield at
    finally:
        run("umount", at)


def settle(folder: Path) -> bool:
    """Have a file system write everything that it holds; return whether it could."""
    return subprocess.run(["sync", "-f", folder], capture_output=True, check=False).returncode == 0
