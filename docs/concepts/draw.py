"""Draw the pictures of docs/concepts: `python docs/concepts/draw.py` writes them as SVG.

A picture is boxes in a grid, arrows between them, and notes. It has a light background of its own,
so that it can be read on light and on dark pages.
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Final, NamedTuple

HERE: Final = Path(__file__).parent
FONT: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
INK: Final = "#1f2d2b"
KINDS: Final = {  # fill, border
    "memory": ("#fff3d6", "#b7791f"),
    "disk": ("#d9f0ec", "#00796b"),
    "process": ("#e6e9fb", "#4c5fd5"),
    "lost": ("#fbe3e3", "#b3261e"),
}
LINE: Final = 17


class Box(NamedTuple):
    """A box with a heading and lines of text below it."""

    name: str
    x: int
    y: int
    width: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()

    @property
    def height(self) -> int:
        return 34 + LINE * len(self.lines)


class Arrow(NamedTuple):
    """An arrow from a side of a box to a side of another: l, r, t, b, with words at its middle."""

    start: str
    end: str
    words: str = ""
    shifts: tuple[int, int] = (0, 0)  # of the ends along their sides


def point(box: Box, side: str, shift: int) -> tuple[int, int]:
    """Return the middle of a side of a box."""
    middle_x, middle_y = box.x + box.width // 2, box.y + box.height // 2
    return {
        "l": (box.x, middle_y + shift),
        "r": (box.x + box.width, middle_y + shift),
        "t": (middle_x + shift, box.y),
        "b": (middle_x + shift, box.y + box.height),
    }[side]


def text(
    x: int, y: int, words: str, *, size: int = 13, anchor: str = "start", bold: int = 0
) -> str:
    """Return a line of text."""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}"{weight}>'
        f"{escape(words)}</text>"
    )


def draw(
    name: str, title: str, boxes: list[Box], arrows: list[Arrow], notes: list[tuple[int, int, str]]
) -> None:
    """Write a picture."""
    named = {box.name: box for box in boxes}
    width = max(box.x + box.width for box in boxes) + 20
    height = max([*(box.y + box.height for box in boxes), *(y for _, y, _ in notes)]) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{FONT}" fill="{INK}" role="img">',
        f"<title>{escape(title)}</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/></marker></defs>',
        f'<rect width="{width}" height="{height}" rx="10" fill="#fcfdfd" stroke="#c9d6d4"/>',
    ]
    for box in boxes:
        fill, border = KINDS[box.kind]
        parts.append(
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="6" '
            f'fill="{fill}" stroke="{border}" stroke-width="1.5"/>'
        )
        parts.append(text(box.x + 12, box.y + 22, box.title, size=14, bold=1))
        for number, line in enumerate(box.lines, 1):
            parts.append(text(box.x + 12, box.y + 24 + LINE * number, line))
    for arrow in arrows:
        (one, side), (other, other_side) = arrow.start.split("."), arrow.end.split(".")
        x1, y1 = point(named[one], side, arrow.shifts[0])
        x2, y2 = point(named[other], other_side, arrow.shifts[1])
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{INK}" stroke-width="1.5" '
            'marker-end="url(#tip)"/>'
        )
        if arrow.words:
            x, y = (x1 + x2) // 2, (y1 + y2) // 2
            if x1 == x2:
                parts.append(text(x + 8, y + 4, arrow.words, size=12))
            else:
                parts.append(text(x, y - 7, arrow.words, size=12, anchor="middle"))
    parts += [text(x, y, words, size=12) for x, y, words in notes]
    parts.append("</svg>")
    (HERE / "pictures").mkdir(exist_ok=True)
    (HERE / "pictures" / f"{name}.svg").write_text("\n".join(parts) + "\n", encoding="utf-8")


def entry() -> None:
    """Draw the life of an entry."""
    draw(
        "entry",
        "The life of an entry: call, journal, sync, LMDB, checkpoint, archive",
        [
            Box(
                "call",
                20,
                20,
                210,
                "process",
                "1  xadd(...)",
                ("gets an ID from the clock,", "becomes bytes of a node"),
            ),
            Box(
                "journal",
                330,
                20,
                230,
                "disk",
                "2  journal/",
                ("the change, as one record,", "with a checksum"),
            ),
            Box(
                "sync",
                660,
                20,
                200,
                "process",
                "3  sync",
                ("all waiting callers share it;", "then the call returns"),
            ),
            Box(
                "node",
                20,
                150,
                210,
                "memory",
                "4  macro node",
                ("about a page of entries;", "readers see it from here on"),
            ),
            Box(
                "lmdb",
                330,
                150,
                230,
                "disk",
                "5  data.mdb",
                ("LMDB writes the pages,", "without a sync of its own"),
            ),
            Box(
                "point",
                660,
                150,
                200,
                "disk",
                "6  checkpoint",
                ("all pages are on disk;", "older journal is dropped"),
            ),
            Box(
                "trim",
                20,
                280,
                210,
                "memory",
                "7  trimmed",
                ("by MAXLEN, age or size:", "waits in data.mdb"),
            ),
            Box(
                "segment",
                330,
                280,
                230,
                "disk",
                "8  archive/*.seg",
                ("nodes, compressed, with an", "index and checksums"),
            ),
            Box(
                "bucket",
                660,
                280,
                200,
                "disk",
                "9  bucket or folder",
                ("where the store keeps its", "archive, if you say so"),
            ),
        ],
        [
            Arrow("call.r", "journal.l", "record"),
            Arrow("journal.r", "sync.l", "flush"),
            Arrow("call.b", "node.t", "commit"),
            Arrow("node.r", "lmdb.l", "batches"),
            Arrow("lmdb.r", "point.l", "seconds"),
            Arrow("node.b", "trim.t", "retention"),
            Arrow("trim.r", "segment.l", "archive()"),
            Arrow("segment.r", "bucket.l", "archive --to"),
        ],
        [],
    )


def group() -> None:
    """Draw how a group tracks what is pending."""
    draw(
        "group",
        "A group: what is delivered, pending and acknowledged",
        [
            Box("stream", 20, 20, 250, "disk", "the stream", ("1-0  2-0  3-0  4-0  5-0",)),
            Box(
                "record",
                20,
                129,
                250,
                "disk",
                "the group 'mail'",
                ("last delivered: 4-0", "entries read: 4   lag: 1"),
            ),
            Box(
                "pel",
                370,
                104,
                250,
                "disk",
                "pending entries",
                (
                    "2-0: ann, delivered once",
                    "3-0: bob, delivered once",
                    "4-0: ann, delivered once",
                    "",
                    "in data.mdb, durable",
                ),
            ),
            Box("ann", 750, 90, 200, "process", "ann, alive", ("holds a lease",)),
            Box("bob", 750, 180, 200, "lost", "bob, killed", ("its lease has ended",)),
        ],
        [
            Arrow("stream.b", "record.t", "XREADGROUP >"),
            Arrow("record.r", "pel.l", "delivers"),
            Arrow("ann.l", "pel.r", "XACK 2-0 4-0", (0, -48)),
            Arrow("bob.l", "pel.r", "3-0 is taken over", (0, 42)),
        ],
        [
            (
                20,
                260,
                "1-0 was acknowledged: it is in the stream, and no longer pending. 5-0 is new.",
            )
        ],
    )


def crash() -> None:
    """Draw what is left by a killed process, and by a power cut."""
    draw(
        "crash",
        "What a killed process and a power cut leave",
        [
            Box(
                "commits",
                20,
                88,
                200,
                "process",
                "commits 1 to 100",
                ("90 was a checkpoint;", "95 was the last sync"),
            ),
            Box(
                "killed",
                300,
                20,
                260,
                "disk",
                "a process is killed",
                ("the kernel has the journal", "up to commit 100"),
            ),
            Box(
                "next",
                650,
                20,
                240,
                "process",
                "the next process",
                ("replays 91 to 100:", "nothing is lost"),
            ),
            Box(
                "power",
                300,
                140,
                260,
                "lost",
                "the power fails",
                ("the disk has the checkpoint", "at 90, and the journal up to", "the last sync"),
            ),
            Box(
                "recover",
                650,
                140,
                240,
                "process",
                "the next opening",
                (
                    "goes back to checkpoint 90,",
                    "replays the journal to 95 or",
                    "beyond, without a gap",
                ),
            ),
        ],
        [
            Arrow("commits.r", "killed.l"),
            Arrow("killed.r", "next.l", "open"),
            Arrow("commits.r", "power.l"),
            Arrow("power.r", "recover.l", "open"),
        ],
        [(20, 245, 'With sync="commit", no call of 96 to 100 had returned.')],
    )


if __name__ == "__main__":
    entry()
    group()
    crash()
