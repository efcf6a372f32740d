"""The published sizes of data sets that are generated at any scale: Taobao and IGB-heterogeneous.

The sizes of IGB-heterogeneous are those of Khatua et al., KDD 2023 (arXiv 2302.13522); the largest has the 547,306,935
nodes and 5,812,005,639 edges of MLPerf Training 4.0.
"""

from __future__ import annotations

import math
from bisect import bisect_right

TAOBAO_USERS, TAOBAO_ITEMS, TAOBAO_EVENTS = 987_994, 4_162_024, 100_150_807

IGB_FEATURES, IGB_CLASSES = 1024, 19
PAPER, AUTHOR, INSTITUTE, FIELD = "paper", "author", "institute", "fos"
IGB_PAPERS = (100_000, 1_000_000, 10_000_000, 100_000_000, 269_346_174)  # of the five sizes
IGB_NODES = {
    PAPER: IGB_PAPERS,
    AUTHOR: (357_041, 1_926_066, 15_544_654, 116_959_896, 277_220_883),
    INSTITUTE: (8_738, 14_751, 23_256, 26_524, 26_918),
    FIELD: (84_220, 190_449, 415_054, 649_707, 712_960),
}
IGB_EDGES = {
    (PAPER, "cites", PAPER): (447_416, 12_070_502, 120_077_694, 1_223_571_364, 3_996_442_004),
    (PAPER, "written_by", AUTHOR): (471_443, 4_553_516, 39_854_592, 289_502_107, 716_761_549),
    (AUTHOR, "affiliated_to", INSTITUTE): (325_410, 1_630_476, 11_049_412, 34_099_660, 48_521_486),
    (PAPER, "topic", FIELD): (718_445, 7_234_122, 68_510_495, 457_577_294, 1_050_280_600),
}


def igb_papers(scale: float) -> int:
    """The papers of a graph of `scale` times the largest size; at least one per class."""
    return max(IGB_CLASSES, round(IGB_PAPERS[-1] * scale))


def igb_count(counts: tuple[int, ...], papers: int) -> int:
    """Interpolate the `counts` of the five sizes for a graph with `papers` papers; at least one per class.

    The interpolation is linear in the logarithms; below the smallest size, counts are proportional to the papers.
    """
    place = min(max(bisect_right(IGB_PAPERS, papers), 1), len(IGB_PAPERS) - 1)
    low, high = (math.log(one) for one in IGB_PAPERS[place - 1 : place + 1])
    share = min(1.0, max(0.0, (math.log(papers) - low) / (high - low)))
    before, after = (math.log(one) for one in counts[place - 1 : place + 1])
    return max(IGB_CLASSES, round(math.exp(before + share * (after - before)) * min(1.0, papers / IGB_PAPERS[0])))
