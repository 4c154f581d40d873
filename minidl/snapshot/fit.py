"""Checks that a snapshot fits the model, the optimizer and the other objects that will load it.

The check runs before anything changes, and it finds all differences, not only the first difference.
A snapshot that fits can then be loaded without an error.
Test: tests/snapshot/test_fit.py   Used by: snapshot.py
"""

import math

from minidl.optim.optimizer import SCHEDULED
from minidl.snapshot import divided, header, regions, residuals, rows

MOST = 12  # an error lists at most this many differences


def misfits(index, model, optimizer, others, folder, everywhere):
    """Returns a list with a sentence for each difference between the objects and the snapshot. The
    list is empty if the snapshot fits. everywhere: a collection with the keys of the dict
    tensors(model), of all ranks together."""
    lacking = [key for key in others if key not in index["others"]]
    if optimizer is not None and index["groups"] is None:
        lacking.append("optimizer")
    found = [f"the snapshot holds no {', '.join(lacking)}"] if lacking else []
    for key, it in others.items():
        if key not in lacking:
            here, there = set(it.state_dict()), set(index["others"][key])
            if here != there:
                found.append(f"{key}: wanted a state with the keys {sorted(here)}; the snapshot "
                             f"has a state with the keys {sorted(there)}")
            elif not getattr(it, "holds_anything", False):
                found += [f"{key}: {text}" for text in
                          _other_kinds(it.state_dict(), index["others"][key])]
            found += _row_misfits(index, key, it)
    by_leaf = regions.by_leaf(model)
    here = tensors(model)
    there = {key: (tuple(about["shape"]), about["dtype"]) for key, about in
             index["tensors"].items() if key.startswith(("param/", "buffer/"))}
    there |= {f"generator {key}": () for key in index["generators"][0]}
    for key in dict.fromkeys([*here, *there]):
        if here.get(key) != there.get(key) and (key in here or key not in everywhere):
            found.append(f"{key}: wanted {'shape and dtype ' * bool(there.get(key))}"
                         f"{there.get(key, 'nothing') or 'a generator'} as in the snapshot; the "
                         f"model has {here.get(key, 'none') or 'a generator'}")
    found += residuals.misfits(index, model, optimizer)
    if optimizer is not None and index["groups"] is not None:
        found += _optimizer_misfits(index, by_leaf, optimizer)
    found += [f"{key}: the model's array is read-only, so nothing can be loaded into it"
              for key, array, _ in regions.arrays_of(model, None) if not _is_writeable(array)]
    if not found:
        there = written(index)
        wanted = [(key, *divided.span(r)) for key, r in _wanted(index, model, by_leaf, optimizer)]
        wanted += [(key, 0, size) for key, size in residuals.keys(index, model)]
        for key in others:
            wanted += [(name, 0, math.prod(about["shape"])) for name, about in
                       index["tensors"].items() if name.startswith(rows.key_of(key, ""))]
        found += [f"{folder}: the files do not hold all of elements {first} to {end} of {key}"
                  for key, first, end in wanted
                  if not regions.covered(first, end, there.get(key, ()))]
    return found


def listed(found):
    """Returns a text: the first MOST sentences, and then the number of the other sentences."""
    found = list(dict.fromkeys(found))
    return "\n".join(found[:MOST] + [f"and {len(found) - MOST} more"] * (len(found) > MOST))


def tensors(model):
    """Returns {key: (shape, dtype)} of the parameters and buffers on this rank. If the rank has
    only a part of a tensor, the shape is the shape of the whole tensor. For each generator there is
    a key with the value ()."""
    here = {f"param/{r.name}": (r.shape, leaf.dtype.name)
            for leaf, rs in regions.by_leaf(model).items() for r in rs}
    here |= {f"buffer/{r.name}": (r.shape, r.leaf.dtype.name) for r in regions.buffers(model)}
    return here | {f"generator {key}": () for key in regions.generators(model)}


def _kind(value):
    """Returns the kind of a value in JSON: a type, or a tuple of types. Types in a tuple, such as
    (list, tuple), have the same form in JSON."""
    if hasattr(value, "item"):
        value = value.item()  # a NumPy number becomes a Python number
    for kinds in (bool, (int, float), str, (list, tuple), dict, type(None)):
        if isinstance(value, kinds):
            return kinds
    return type(value)


def _same_kind(here, there, may_be_none=True):
    """Returns True if two values have the same kind, and the values inside have the same kinds.
    here: a value of the running program. there: the value in the snapshot. A list of numbers fits a
    list of numbers of another length. If `here` is None, every value fits. may_be_none: if True,
    and `there` is None, every value fits, too."""
    a, b = _kind(here), _kind(there)
    if a is type(None) or may_be_none and b is type(None):
        return True
    if a == (list, tuple) == b:
        return len({*map(_kind, here)}) != 1 or all(
            _same_kind(here[0], x, False) for x in there)
    if a is dict is b:
        return all(_same_kind(here[key], there[key]) for key in here.keys() & there.keys())
    return a == b or (a, b) == ((int, float), bool)


def _other_kinds(here, there, may_be_none=True):
    """Yields a sentence for each value whose kind differs in the two dicts: for example a number
    here and text there. may_be_none, and the rules for None: as in _same_kind."""
    for name in sorted(here.keys() & there.keys()):
        if not _same_kind(here[name], there[name], may_be_none):
            yield (f"{name} is {str(there[name])[:80]} in the snapshot, but {str(here[name])[:80]} "
                   "here")


def _row_misfits(index, key, it):
    """Compares the arrays that it.rows() returns with the arrays in the snapshot. Yields a sentence
    for each difference in a name, in the shape of a row, or in a dtype."""
    here = dict(rows.arrays_of({key: it}))
    start = rows.key_of(key, "")
    there = {name: about for name, about in index["tensors"].items() if name.startswith(start)}
    if here.keys() != there.keys():
        yield (f"{key}: wanted the arrays of rows {sorted(here)}; the snapshot has "
               f"{sorted(there)}")
    for name in here.keys() & there.keys():
        shape, dtype = there[name]["shape"], there[name]["dtype"]
        if (dtype, shape[1:]) != (here[name].dtype.name, list(here[name].shape[1:])) or not shape:
            yield (f"{name}: wanted rows of shape {here[name].shape[1:]} and dtype "
                   f"{here[name].dtype}; the snapshot has rows of shape {tuple(shape[1:])} and "
                   f"dtype {dtype}")


def _is_writeable(array):
    return getattr(array.flags, "writeable", True)  # a CuPy array is always writeable


def _optimizer_misfits(index, by_leaf, optimizer):
    """Yields a sentence for each difference between the optimizer and the snapshot."""
    if len(index["groups"]) != len(optimizer.param_groups):
        yield (f"wanted {len(index['groups'])} parameter groups as in the snapshot; the optimizer "
               f"has {len(optimizer.param_groups)}")
    for here, there in zip(optimizer.param_groups, index["groups"], strict=False):
        if strange := sorted(set(there) - set(here) - {*SCHEDULED, "n_steps"}):
            yield (f"the optimizer in the snapshot has the options {strange}; this optimizer has "
                   f"only {sorted(set(here) - {'params'})}. Use the same kind of optimizer")
        yield from _other_options(here, there)
    for leaf, owner in regions.leaves(optimizer):
        if owner not in by_leaf:
            yield regions.unknown_leaf(owner)
            continue
        names = [r.name for r in by_leaf[owner]]
        states = [index["state"].get(name) for name in names]
        if None in states:
            yield (f"{names[states.index(None)]} is updated by the optimizer here, but by no "
                   "optimizer in the snapshot")
            continue
        for name, state in zip(names, states, strict=True):
            if state != states[0]:
                yield (f"{names[0]} and {name} share a shard here, but their states differ in the "
                       f"snapshot: {states[0]} and {state}. Before the save, the optimizer had "
                       "not updated one of the two parameters. Load the snapshot into "
                       "DataParallel, or give every parameter a gradient before the save")
        if "master" in states[0]["arrays"] and leaf is owner:
            half = owner.dtype.itemsize == 2  # float16 or bfloat16
            remedy = ("call optim.use_master_weights(optimizer)" if half else
                      "wrap the optimizer in parallel.Offload, as it was")
            yield (f"{names[0]} has a master copy in the snapshot, but not in this optimizer. "
                   f"Before load(), {remedy}")
        if "master" not in states[0]["arrays"] and leaf.dtype != owner.dtype:
            yield f"{names[0]} has a master copy in this optimizer, but not in the snapshot"


def _wanted(index, model, by_leaf, optimizer):
    """Yields (key, Region) of every region that this rank must read."""
    for rs in by_leaf.values():
        yield from ((f"param/{r.name}", r) for r in rs)
    yield from ((f"buffer/{r.name}", r) for r in regions.buffers(model))
    for _, owner in regions.leaves(optimizer):
        yield from ((f"{kind}/{r.name}", r) for r in by_leaf[owner]
                    for kind in index["state"][r.name]["arrays"])


def _other_options(here, there):
    """Yields a sentence for each option whose value in the snapshot has a wrong kind, for example
    (0.9, "x") for betas."""
    yield from (f"the optimizer's {text}" for text in _other_kinds(here, there, False))
    for name in here.keys() & there.keys():
        a, b = here[name], there[name]
        if isinstance(a, (list, tuple)) and isinstance(b, list):
            if [*map(_kind, a)] != [*map(_kind, b)]:
                yield f"the optimizer's {name} is {str(b)[:80]} in the snapshot, but {a} here"


def file_misfit(path, file, index):
    """Returns a sentence if a file does not hold the tensors that its index lists, else ""."""
    try:
        entries = header.read(path)
    except ValueError as error:
        return str(error)
    for key, first, end in file["holds"]:
        entry = entries.get(f"{key}/{first}")
        wanted = header.CODES[index["tensors"][key]["dtype"]], (end - first,)
        if entry is None or (entry.dtype, entry.shape) != wanted:
            return (f"{path}: the index wants elements {first} to {end} of {key} as {wanted[0]}; "
                    f"the file has {entry[1:] if entry else 'no such tensor'}")
    return ""


def written(index):
    """Returns {key: [(first, end, (file's name, key in the file))]} of all regions in the files."""
    found = {}
    for file in index["files"]:
        for key, first, end in file["holds"]:
            found.setdefault(key, []).append((first, end, (file["name"], f"{key}/{first}")))
    return found
