"""Random damages: each one that changes an answer is reported, and repair saves what was spared.

The long run, `make test-damage`, prints its figures.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mutations import Figures, run
from specimens import Specimen

LONG = int(os.environ.get("STREAMKEEP_DAMAGES", "2000"))
SPECIMENS = 4


@pytest.fixture(scope="module")
def specimens() -> dict[int, Specimen]:
    return {}


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_random_damages(tmp_path: Path) -> None:
    figures = Figures()
    for number in range(SPECIMENS):
        specimen = Specimen.make(tmp_path, number)
        for seed in range(number, LONG, SPECIMENS):
            run(specimen, seed, tmp_path, figures)
    print("\n" + "\n".join(figures.lines()))
    assert figures.failures == []
    assert figures.damages == LONG
    assert figures.untouched > 0


# 992 and 1087: the tail node of an old row of the stream was put over the node that it had become.
# 1: the size of a node is wrong in its leaf, and the node itself is whole.
# 301557: a file of the archive has no row, and the check waited a minute for its own lock.
# 139: a row of a leaf has a wrong key, and another one of the stream a wrong checksum.
# 1767: the end is cut off, with the free list and the root of the nodes.
# 166: a node has the key of another stream, and the checksum of a later one is wrong.
# 300175: the last page is cut in what no value uses, and a command refused what a check passed.
@pytest.mark.parametrize(
    ("specimen", "seed"),
    [
        (0, 992),
        pytest.param(3, 1087, marks=pytest.mark.slow),
        (1, 1),
        pytest.param(3, 139, marks=pytest.mark.slow),
        pytest.param(3, 1767, marks=pytest.mark.slow),
        pytest.param(2, 166, marks=pytest.mark.slow),
        (1, 301_557),
        (3, 300_175),
    ],
)
def test_damages_that_were_once_not_held(
    specimens: dict[int, Specimen],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    specimen: int,
    seed: int,
) -> None:
    if specimen not in specimens:
        specimens[specimen] = Specimen.make(tmp_path_factory.mktemp("specimens"), specimen)
    figures = Figures()
    run(specimens[specimen], seed, tmp_path, figures)
    assert figures.failures == []
    assert figures.untouched > 0
