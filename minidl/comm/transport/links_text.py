"""A network as a line of text, for `minidl run --net` and MINIDL_NET.

    parse("1Gbit,50us", n=4)                            all pairs have this link
    parse("nodes=2,intra=10Gbit,5us,inter=1Gbit,50us,straggler=3:2", n=4)

Spaces do not matter. `str(links)` writes a network as such a text if there are no nodes, or if the
nodes were given as lists of consecutive ranks. The grammar:

    network  = (link | "nodes=" sizes ",intra=" link ",inter=" link) {"," more}
    link     = number ("" | "k" | "M" | "G" | "T") "bit," number ("ns" | "us" | "ms" | "s")
    sizes    = the number of nodes, of equal size if possible | size "+" size {"+" size}
    more     = "nic=" ("node" | "rank")
             | from "-" to "=" link                              one pair, in this direction
             | "straggler=" rank ":" times {"+" rank ":" times}

Test: tests/comm/transport/test_links_text.py   Used by: world.py, cli/launcher.py, cli/plan.py
"""

import re

from minidl.comm import chunks
from minidl.comm.transport.links import RATES, TIMES, Link, Links

_NUMBER = r"(\d+\.?\d*|\.\d+)"
_RATE = re.compile(_NUMBER + r"([TGMk]?)bit(?:/s)?")
_TIME = re.compile(_NUMBER + r"([mun]?)s")
_PAIR = re.compile(r"(\d+)-(\d+)")
_KEYS = ("", "nodes", "intra", "inter", "nic", "straggler")


def parse(text, n):
    """Returns the Links of n ranks that `text` describes. The grammar is at the top of this file.
    Raises ValueError if the text is wrong. The error's message contains a right example."""
    try:
        links = _parse(_items(re.sub(r"\s", "", text)), n)
        links.check_ranks(n)
    except ValueError as error:
        raise ValueError(f"the network {text!r} for {n} ranks: {error}. Write it like '1Gbit,50us' "
                         "or 'nodes=2,intra=10Gbit,5us,inter=1Gbit,50us'") from None
    return links


def _items(text):
    """Returns the parts of the text as {key: value}. The link that all pairs have has the key "".
    The text is cut at its commas, but a latency stays together with the rate before it."""
    items = {}
    key = None
    for word in text.split(","):
        if _TIME.fullmatch(word) and key is not None:
            items[key] += "," + word
            continue
        key, _, value = word.rpartition("=")
        if re.fullmatch(_NUMBER, word):
            raise ValueError(f"{word!r} has no unit; wanted a rate such as 1Gbit or a latency such "
                             "as 50us")
        if key in items:
            raise ValueError(f"got {key + '=' if key else 'a link for all pairs'} twice")
        if key not in _KEYS and not _PAIR.fullmatch(key):
            raise ValueError(f"got {key}=; wanted one of {'=, '.join(_KEYS[1:])}=, or a pair of "
                             "ranks, such as 0-1=")
        items[key] = value
    return items


def _parse(items, n):
    pairs = {(int(m[1]), int(m[2])): _parse_link(value) for key, value in items.items()
             if (m := _PAIR.fullmatch(key))}
    straggler = _parse_straggler(items["straggler"]) if "straggler" in items else None
    if "nodes" not in items:
        if "" not in items or {"intra", "inter", "nic"} & set(items):
            raise ValueError("a network without nodes= needs a link for all pairs, and must not "
                             "have intra=, inter= or nic=")
        return Links.uniform(*_parse_link(items[""]), pairs, straggler)
    if "" in items or not {"intra", "inter"} <= set(items):
        raise ValueError("a network with nodes= needs intra= and inter=, and must not have a link "
                         "for all pairs")
    intra, inter = _parse_link(items["intra"]), _parse_link(items["inter"])
    groups = _parse_sizes(items["nodes"], n)
    return Links.nodes(groups, intra, inter, items.get("nic", "node"), pairs, straggler)


def _parse_link(text):
    rate, _, latency = text.partition(",")
    rate, latency = _RATE.fullmatch(rate), _TIME.fullmatch(latency)
    if not rate or not latency or not float(rate[1]):
        raise ValueError(f"wanted a rate and a latency such as 1Gbit,50us; got {text!r}")
    rate = float(f"{rate[1]}e{RATES[rate[2]]}")
    return Link(float(f"{latency[1]}e{TIMES[latency[2]]}"), 8 / rate)


def _parse_sizes(text, n):
    """Returns a list with the ranks of each node, for n ranks. text: '2' for two nodes, or '3+1'
    for the sizes of the nodes."""
    if not re.fullmatch(r"[1-9]\d*(\+[1-9]\d*)*", text):
        raise ValueError("nodes= wants the number of nodes, such as 2, or their sizes, such as "
                         f"3+1; got {text!r}")
    sizes = [int(size) for size in text.split("+")]
    if len(sizes) == 1:
        if sizes[0] > n:
            raise ValueError(f"nodes={text} wants more nodes than there are ranks")
        cuts = chunks.bounds(n, sizes[0])
    else:
        cuts = [sum(sizes[:k]) for k in range(len(sizes) + 1)]
    return [range(a, b) for a, b in zip(cuts, cuts[1:], strict=False)]


def _parse_straggler(text):
    """Returns a dict {rank: how many times longer it computes}. For the text '2:3+5:1.5' the dict
    is {2: 3.0, 5: 1.5}."""
    parts = [re.fullmatch(r"(\d+):" + _NUMBER, part) for part in text.split("+")]
    if not all(parts):
        raise ValueError("straggler= wants rank:times, such as 2:3 (rank 2 computes 3 times "
                         f"longer); got {text!r}")
    return {int(part[1]): float(part[2]) for part in parts}
