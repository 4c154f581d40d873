"""`minidl plan`: how to divide a GPT over N ranks of a network.

    minidl plan --ranks 64 --net nodes=8,intra=2Tbit,2us,inter=200Gbit,10us --memory 16GB
    minidl plan --ranks 64 --net 100Gbit,5us --memory 2GB --model 12,768,12,1024,50257 --zero 1
    minidl plan --ranks 64 --net 100Gbit,5us --memory 40GB --model 12,768,12,1024,50257,8,2

Test: tests/cli/test_plan.py   Work: parallel/model/planner.py, plan_text.py
"""

import re
import sys

from minidl.comm.transport import links_text
from minidl.parallel.model import planner
from minidl.parallel.model.plan_text import bytes_text, text
from minidl.text import tr


def plan(ranks, net, memory, model, batch, flops, zero, precision, recompute, cp, rows):
    """Prints the best ways to divide the model over the ranks. Returns the exit status 0. If no
    plan fits, or if an option is wrong, prints the reason and returns 2. The arguments are the
    options of the command, as text or numbers."""
    try:
        memory, model, flops = n_bytes(memory), shape(model), rate(flops)
        links = links_text.parse(net, ranks)
        task = planner.Task(ranks, links, memory, model, batch or ranks, flops, zero, precision,
                            recompute, cp)
        found = planner.plans(task)
        states = f"{precision}, ZeRO {zero}" + ", recompute" * recompute
        print(tr(f"{ranks} ranks of {bytes_text(memory)} and {flops:.3g} flop/s; "
                 f"{_words(model)}; {task.batch} rows a step; {states}; AdamW"))
        print(text(task, found, rows, tr))
        if found[0].memory > memory:
            raise ValueError(f"no plan fits into {bytes_text(memory)}. The smallest plan "
                             f"is {found[0].name}, and needs {bytes_text(found[0].memory)}. To "
                             "need less memory, use more ranks, --zero, --precision O2 or "
                             "--recompute")
    except ValueError as error:
        print(f"minidl plan: {tr(str(error))}", file=sys.stderr)
        return 2
    return 0


def _words(model):
    name = next((name for name, shape in planner.MODELS.items() if shape == model), "a GPT")
    words = (f"{name}: layers {model.layers}, width {model.width}, heads {model.heads}, context "
             f"{model.context}, vocab {model.vocab}")
    return words + (f", experts {model.experts}, top_k {model.top_k}" if model.experts else "")


UNITS = {f"{k}{i}B": base**power for power, k in enumerate(["", "k", "M", "G", "T"])
         for i, base in (("", 1000), ("i", 1024))}


def n_bytes(words):
    """Returns the number of bytes of '16GB' or '16GiB'. Raises ValueError for another form."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)([kMGT]?i?B)", words)
    if not match or match[2] not in UNITS or not float(match[1]):
        raise ValueError(f"--memory wants bytes such as 16GB or 16GiB, got {words!r}")
    return float(match[1]) * UNITS[match[2]]


def shape(words):
    """Returns a plan_costs.Shape from a model's name, or from its five numbers (seven with
    experts). Raises ValueError for another form."""
    if words in planner.MODELS:
        return planner.MODELS[words]
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){4}((,[1-9]\d*){2})?", words):
        raise ValueError(
            f"--model wants {', '.join(planner.MODELS)}, or layers,width,heads,context,vocabulary "
            "such as 12,768,12,1024,50257; a model with experts has two more numbers, "
            f"experts,top_k. Got {words!r}")
    return planner.Shape(*map(int, words.split(",")))


def rate(words):
    """Returns the flop/s of '1e14' or '100T'. Raises ValueError for another form."""
    match = re.fullmatch(r"(\d+\.?\d*(?:e\d+)?)([GTP]?)", words)
    if not match or not float(match[1]):
        raise ValueError(f"--flops wants flop/s such as 1e14 or 100T, got {words!r}")
    return float(match[1]) * {"": 1, "G": 1e9, "T": 1e12, "P": 1e15}[match[2]]
