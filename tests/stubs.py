"""`make stubs`: writes stubs, so that editors and type checkers know names made at run time.

The table in minidl/ops/__init__.py makes an op a method of Tensor, a function of minidl and of
nn.functional at run time. An editor runs no program, so it reads these files instead:

    minidl/__init__.pyi   minidl/tensor.pyi   minidl/nn/functional.pyi

They have the arguments and defaults of every op, their types, and the first sentence of its
docstring. `make register` writes them, too.

Each package that imports names for its users has a stub, too: nn, optim, comm ... A type checker
treats an import in an installed package as private, unless a stub imports the name `as` itself
(PEP 484).

The type of an argument comes from its annotation, else from its name (TYPES), else from its
default. An op returns a Tensor if its source has no other annotation. If the annotation is "A | B",
the result is a B only with one of the options in ASKED.

Test: tests/test_stubs.py
"""

import ast
import importlib
import inspect
import re
import sys
import textwrap
import types
import typing
from pathlib import Path

import isort
import numpy as np

ROOT = Path(__file__).resolve().parents[1]
MADE_AT_RUN_TIME = "minidl", "minidl.tensor", "minidl.nn.functional"
COLUMNS = 100

ARRAY = "Tensor | ndarray"
OPERAND = "Tensor | ndarray | generic | float"
SIZES = "int | Sequence[int]"
SHARED = {  # {type: arguments that have this type in every op}; the default None adds "| None"
    ARRAY: "input target index mask mat1 mat2 weight bias query key qkv vec vec2 condition src x1 "
           "x2 x h c w b a attn_mask pos_weight running_mean running_var boundaries "
           "sorted_sequence sorter offsets per_sample_weights weights tensor gradient",
    OPERAND: "other exponent value min max",
    "Sequence[Tensor | ndarray]": "tensors",
    SIZES: "shape size sizes normalized_shape kernel_size stride padding dilation output_padding "
           "output_size dims repeats shifts",
    "int": "dim dim0 dim1 dim2 start_dim end_dim decimals diagonal groups ignore_index minlength n "
           "num_classes offset padding_idx k chunks num_groups n_heads num_samples upscale_factor "
           "length step dimension divisor_override correction",
    "float": "alpha beta scale min_val max_val threshold nan posinf neginf",
    "str": "equation side rounding_mode reduce",
    "bool": "align_corners recompute_scale_factor",
    "DTypeLike": "dtype",
    "str | int": "device",
    "Generator": "generator",
    "Sequence[int]": "pad",
}
TYPES = {name: kind for kind, names in SHARED.items() for name in names.split()}
# Ops in which a name has another meaning.
TYPES |= {"copy_.source": OPERAND, "index_add.source": ARRAY, "index_copy.source": ARRAY,
          "scatter.src": OPERAND, "masked_fill.value": OPERAND, "norm.p": "float | str",
          "scaled_dot_product_attention.value": ARRAY, "lerp.end": ARRAY, "lerp.weight": OPERAND,
          "bernoulli.p": OPERAND, "tensordot.dims": "Any", "bucketize.input": OPERAND,
          "searchsorted.input": OPERAND, "where.input": OPERAND, "fill_.value": OPERAND,
          "repeat_interleave.repeats": f"{SIZES} | Tensor | ndarray", "unfold.size": "int",
          "__getitem__.index": "Any", "__setitem__.index": "Any",
          "conv1d.padding": f"{SIZES} | str", "conv2d.padding": f"{SIZES} | str",
          "adaptive_avg_pool2d.output_size": "int | Sequence[int | None]",
          "adaptive_max_pool2d.output_size": "int | Sequence[int | None]",
          "batch_norm.running_mean": f"{ARRAY} | None", "batch_norm.running_var": f"{ARRAY} | None",
          "meshgrid.tensors": f"{ARRAY} | Sequence[{ARRAY}]"}
ASKED = {"dim": ("None", "int"), "return_indices": ("Literal[False]", "Literal[True]"),
         "as_tuple": ("Literal[False]", "Literal[True]")}
# Python defines what these return.
RETURNS = {"__array__": "ndarray", "__bool__": "bool", "__float__": "float", "__int__": "int",
           "__index__": "int", "__len__": "int", "__repr__": "str", "__format__": "str",
           "__iter__": "Iterator[Tensor]", "__setitem__": "None", "__init__": "None",
           "__dlpack__": "Any", "__hash__": "int", "__dlpack_device__": "tuple[int, int]"}
# Types of a Tensor's slots and properties.
HOLDS = {"data": "Tensor", "grad": "Tensor", "requires_grad": "bool", "version": "int",
         "shape": "tuple[int, ...]", "dtype": "dtype[Any]", "ndim": "int", "device": "str",
         "is_leaf": "bool", "nbytes": "int", "slot": "int"}
# names that Python adds to every class
HIDDEN = ("__module__ __doc__ __slots__ __weakref__ __dict__ __qualname__ __static_attributes__ "
          "__firstlineno__ __annotations__ __annotate__ __annotate_func__ "
          "__annotations_cache__").split()


# -- types


def written(annotation):
    """Returns an annotation of the source as a text."""
    if isinstance(annotation, str):
        return annotation
    if annotation is None or isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__name__ if annotation else "None"
    return re.sub(r"\b(?:\w+\.)+", "", str(annotation))


def type_of(op, p, reduces):
    """Returns the type of an op's parameter p as a text. reduces: the op reduces over one dimension
    or several."""
    if p.annotation is not p.empty:
        return written(p.annotation)
    kind = TYPES.get(f"{op}.{p.name}", TYPES.get(p.name))
    if p.name == "dim" and reduces and p.default in (None, p.empty):
        kind = SIZES
    if kind is None and type(p.default) in (bool, float, str):
        kind = type(p.default).__name__
    if kind is None:
        return "Any"
    return f"{kind} | None" if p.default is None and kind != "Any" else kind


def result_of(op, function, default):
    annotation = getattr(function, "__annotations__", {}).get("return", inspect.Parameter.empty)
    if annotation is inspect.Parameter.empty:
        return RETURNS.get(op, default)
    return written(annotation)


# -- functions


def functions(name, function, default, method=False, decorator=""):
    """Returns the text of `def name`: one definition, or three with @overload. default: the type of
    the result if the source has no annotation."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    op = name if any(f"{name}.{p.name}" in TYPES for p in parameters) else name.removesuffix("_")
    kinds = {p.name: type_of(op, p, "keepdim" in signature.parameters) for p in parameters}
    result = result_of(name, function, default)
    option = next((p for p in parameters if p.name in ASKED), None)
    if option is None or len(result.split(" | ")) != 2:
        return definition(name, parameters, kinds, result, function, method, decorator)

    (usual, asked_for), (off, on) = result.split(" | "), ASKED[option.name]
    forms = [(parameters, off, usual), (with_option(parameters, option), on, asked_for),
             (parameters, "Any", "Any")]  # by position, or of an unknown type
    return "".join(
        definition(name, given, kinds | {option.name: kind}, its, function, method, "@overload\n")
        for given, kind, its in forms)


def with_option(parameters, option):
    """Returns the parameters without a default for `option`. The option becomes keyword-only if a
    parameter before it has a default."""
    at = parameters.index(option)
    rest = [option.replace(default=option.empty), *parameters[at + 1:]]
    if any(p.default is not p.empty for p in parameters[:at]):
        rest = [p.replace(kind=p.KEYWORD_ONLY) for p in rest]
    return [*parameters[:at], *rest]


def definition(name, parameters, kinds, result, function, method=False, decorator=""):
    """Returns the text `def name(...) -> result:` with the first sentence of its docstring."""
    words, star = [], False
    for i, p in enumerate(parameters):
        if method and i == 0:
            words.append("self")
            continue
        if p.kind is p.KEYWORD_ONLY and not star:
            words.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f" = {default_text(p.default)}"
        words.append(f"{stars}{p.name}: {kinds[p.name]}{default}")
    line = f"def {name}({', '.join(words)}) -> {result}:"
    if len(line) > COLUMNS - 8:
        whole = ", ".join(word.replace(" ", "\0") for word in words)  # break only between words
        inner = textwrap.fill(whole, COLUMNS - 8).replace("\0", " ")
        line = f"def {name}(\n{textwrap.indent(inner, '    ')}\n) -> {result}:"
    sentence = first_sentence(function)
    body = f'\n{textwrap.indent(quoted(sentence), "    ")}\n' if sentence else " ...\n"
    return f"{decorator}{line}{body}"


def default_text(value):
    """Returns a default as an editor shows it, or `...` if it has no short text."""
    text = repr(value)
    return text if isinstance(value, (int, float, str, tuple, type(None))) else "..."


def first_sentence(function):
    text = " ".join((function.__doc__ or "").split("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`(])", text)[0]


def quoted(sentence):
    text = sentence.replace("\\", "\\\\").replace('"""', "'''")
    return f'"""{textwrap.fill(text, COLUMNS - 12)}"""'


# -- classes


def class_of(cls, ops):
    """Returns the text of a class: its own definitions in the order of its source, then its ops by
    file."""
    own = {name: value for name, value in vars(cls).items() if is_shown(name)}
    lines = [quoted(first_sentence(cls))]
    for name, value in own.items():
        if name not in ops:
            lines.append(member(cls, name, value))
    for file, names in by_file({name: ops[name] for name in own if name in ops}).items():
        lines.append(f"\n\n# {file}\n")
        for name in names:
            value, kind = own[name], ""
            if isinstance(value, property):
                value, kind = value.fget, "@property\n"
            lines.append(functions(name, value, "Tensor", True, kind))
    bases = "" if cls.__base__ is object else f"({cls.__base__.__name__})"
    body = textwrap.indent("\n".join(line.rstrip() for line in lines), "    ")
    return f"class {cls.__name__}{bases}:\n{without_shadows(body, own)}\n"


def by_file(ops):
    """Returns {file: the sorted names of its ops}. Operators (x + y) belong to the file that
    defines them."""
    found = {}
    for name in sorted(ops):
        module = "minidl.ops.__init__" if name.startswith("__") else ops[name].__module__
        found.setdefault(f"{module.replace('.', '/')}.py", []).append(name)
    return dict(sorted(found.items()))


def is_shown(name):
    """Returns True if a class's name is for users: x.name, or an operator."""
    return not name.startswith("_") or name.startswith("__") and name not in HIDDEN


def member(cls, name, value):
    """Returns the text of a method, property, slot or constant that the class itself defines."""
    if isinstance(value, property):
        kind = HOLDS.get(name) or result_of(name, value.fget, "Any")
        text = definition(name, [self_of(value.fget)], {}, kind, value.fget, True, "@property\n")
        if value.fset:
            text += f"@{name}.setter\ndef {name}(self, value: Any) -> None: ...\n"
        return text
    if isinstance(value, types.MemberDescriptorType):
        return f"{name}: {HOLDS.get(name, 'Any')}\n"
    if isinstance(value, (staticmethod, classmethod)):
        kind = "@staticmethod\n" if isinstance(value, staticmethod) else "@classmethod\n"
        return functions(name, value.__func__, "Any", kind != "@staticmethod\n", kind)
    if callable(value):
        if value.__name__ not in (name, "<lambda>") and value.__name__ in vars(cls):
            return f"{name} = {value.__name__}\n"
        return functions(name, value, "Any", True)
    return f"{name}: {type(value).__name__ if value is not None else 'None'}\n"


def self_of(function):
    return next(iter(inspect.signature(function).parameters.values()))


def without_shadows(body, names):
    """Replaces the type `float` by _float in a class that has a method `float`."""
    for word in {*names} & {*SOURCES, *BUILTIN}:
        body = re.sub(rf"(?<=[:>|,] ){word}\b(?![(:])|(?<=\[){word}\b", f"_{word}", body)
    return body


# -- modules


def handed_on(module):
    """Returns {name: `from m import name as name`} for the imports from minidl in a module's
    source. Importing a file in a package makes the file a name of the package, too."""
    found = {}
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("minidl"):
            if node.module.startswith(f"{module.__name__}."):
                file = node.module.removeprefix(f"{module.__name__}.").split(".")[0]
                found.setdefault(file, f"from {module.__name__} import {file} as {file}")
            for alias in node.names:
                name = alias.asname or alias.name
                found[name] = f"from {node.module} import {alias.name} as {name}"
    return found


def origin(name, value):
    """Returns `from m import name as name` for a name that is imported on first use."""
    if is_module(value):
        parent, _, name = value.__name__.rpartition(".")
        return f"from {parent} import {name} as {name}"
    return f"from {value.__module__} import {name} as {name}"


def shown_names(module):
    """Returns the public names of a module. A file of its package counts only if the module imports
    it, now or on first use (_PARTS). Other files appear only if some other module imports them."""
    files = {*handed_on(module), *getattr(module, "_PARTS", ())}
    return [name for name in dir(module)
            if name == "__version__" or not name.startswith("_")
            and (name in files or not is_module(value := getattr(module, name))
                 or value.__name__.startswith("minidl.") and not is_file(value, module))]


def is_file(value, module):
    return value.__name__.startswith(f"{module.__name__}.") and value.__name__.count(".") == (
        module.__name__.count(".") + 1)


def is_module(value):
    return isinstance(value, types.ModuleType)


def n_bases(value, module):
    """Returns the number of base classes from the same module. The stub is sorted by this number,
    so a base class comes before its subclass."""
    bases = value.__mro__[1:] if isinstance(value, type) else ()
    return sum(base.__module__ == module.__name__ for base in bases)


def stub(module_name):
    """Returns the text of a module's stub."""
    from minidl import ops

    module = importlib.import_module(module_name)
    imported = handed_on(module)
    home = {"minidl": "t", "minidl.nn.functional": "f"}.get(module_name, "")
    its_ops = ops.namespace(home) if home else {}
    head, body = set(), []
    names = shown_names(module)
    for name in sorted(names, key=lambda name: n_bases(getattr(module, name), module)):
        value = getattr(module, name)
        if name in its_ops:
            continue
        if is_module(value) and callable(value):  # such as minidl.profile
            kind = type(value)
            head.add(f"from {kind.__module__} import {kind.__name__}")
            body.append(f"{name}: {kind.__name__}\n")
        elif name in imported:
            head.add(imported[name])
        elif is_module(value) or name not in vars(module) and not isinstance(value, np.dtype):
            head.add(origin(name, value))
        elif isinstance(value, type) and value.__module__ == module_name:
            body.append(class_of(value, of_tensor(value, ops)))
        elif inspect.isfunction(value) and value.__module__ == module_name:
            body.append(functions(name, value, "Any"))
        elif isinstance(value, type) and value.__module__.startswith("minidl"):
            head.add(f"from {value.__module__} import {value.__name__}")  # an alias
            body.append(f"{name} = {value.__name__}\n")
        elif not callable(value):
            body.append(f"{name}: {constant(value)}\n")
    for file, names in by_file(its_ops).items():
        body.append(f"\n\n# {file}\n")
        body += [functions(name, its_ops[name], "Tensor") for name in names]
    return assembled(module, head, body)


def constant(value):
    return "dtype[Any]" if isinstance(value, np.dtype) else type(value).__name__


def of_tensor(cls, ops):
    """Returns {name: op} of all ops that minidl/ops adds to the class Tensor, with operators."""
    from minidl.tensor import Tensor

    if cls is not Tensor:
        return {}
    operators = {f"__{name}__": op for name, op in (ops.BINARY | ops.COMPARISONS).items()}
    reflected = {f"__r{name}__": op for name, op in ops.BINARY.items()}
    return ops.namespace("m") | ops.UNARY | ops.PROPERTIES | operators | reflected


# {word of the body: the module that has it}
SOURCES = {"Any": "typing", "Literal": "typing", "overload": "typing",
           "NamedTuple": "typing", "Sequence": "collections.abc", "Iterator": "collections.abc",
           "Callable": "collections.abc", "ndarray": "numpy", "generic": "numpy", "dtype": "numpy",
           "DTypeLike": "numpy.typing", "Tensor": "minidl.tensor", "Generator": "minidl.random"}
BUILTIN = dict.fromkeys(("bool", "int", "float", "str", "tuple", "type"), "builtins")


def assembled(module, head, body):
    """Returns the whole text with sorted imports."""
    text = "\n".join(line.rstrip("\n") for line in body) + "\n"
    tree = ast.parse(text)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    own |= {line.split()[-1] for line in head}
    sources = SOURCES | named_results(module)
    sources |= {f"_{word}": home for word, home in (sources | BUILTIN).items()}
    for word in sorted(used & set(sources) - own):
        name = word.lstrip("_")
        head.add(f"from {sources[word]} import {name}" + (f" as {word}" if word != name else ""))
    opening = f'"""{module.__name__} as editors see it. `make stubs` writes this file."""\n\n'
    return isort.code(opening + "\n".join(sorted(head)) + "\n\n\n" + text, extension="pyi",
                      config=isort.Config(settings_path=ROOT))


def named_results(module):
    """Returns {class: its module} of the named tuples that ops return."""
    from minidl import ops

    return {name: value.__module__ for home in "mtf" for op in ops.namespace(home).values()
            for name, value in vars(sys.modules[op.__module__]).items()
            if isinstance(value, type) and issubclass(value, tuple)}


def packages():
    """Returns the packages that only import names for their users."""
    for file in sorted((ROOT / "minidl").rglob("__init__.py")):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        defined = {node.name for node in body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        given = {target.id for node in body if isinstance(node, ast.Assign)
                 for target in node.targets if isinstance(target, ast.Name)}
        imports = any(isinstance(node, ast.ImportFrom) and node.module.startswith("minidl")
                      for node in body)
        if imports and defined <= {"__getattr__", "__dir__"} and "__all__" not in given:
            yield ".".join(file.relative_to(ROOT).parent.parts)


def modules():
    return [*MADE_AT_RUN_TIME, *(name for name in packages() if name not in MADE_AT_RUN_TIME)]


def path_of(module_name):
    file = Path(importlib.import_module(module_name).__file__)
    return file.with_suffix(".pyi").relative_to(ROOT)


def stubs():
    """Returns {path: text} of all stubs."""
    return {path_of(name).as_posix(): stub(name) for name in modules()}


def main(arguments):
    """Writes all stubs. With --list it writes nothing and prints the stubs that are out of date."""
    wanted = stubs()
    for path, text in wanted.items():
        file = ROOT / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            print(f"{path}: the names that its module has now")
            if arguments != ["--list"]:
                file.write_text(text, encoding="utf-8")
    for file in sorted((ROOT / "minidl").rglob("*.pyi")):
        if (path := file.relative_to(ROOT).as_posix()) not in wanted:
            print(f"{path}: a stub of no module")
            if arguments != ["--list"]:
                file.unlink()


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(sys.argv[1:])
