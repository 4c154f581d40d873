"""Module: holds parameters, buffers and sub-modules by name, in a fixed order, as in PyTorch.

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 10)      # assigning a Module, Parameter or buffer registers it
        def forward(self, x):
            return self.fc(x)

Names are joined with dots ("fc.weight"). The order is the order of definition, so it is the same on
every rank. Collectives need this order: they sum the first parameter over all ranks, then the
second parameter, and so on.
Test: tests/nn/test_module.py
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from minidl import backend
from minidl.backward import clear_gradient
from minidl.forward import WrongValue
from minidl.mode import note_training
from minidl.ops.shape import view
from minidl.tensor import Handle, Tensor

if TYPE_CHECKING:
    import typing
    from collections.abc import Callable, Mapping
    from typing import Never, Self

    from minidl.hints import Device, DType, HasForward, P, R_co


class Loaded(namedtuple("_IncompatibleKeys", "missing_keys unexpected_keys")):
    """The result of load_state_dict: the names that were missing, and the names that were
    unexpected. It is printed like the result of PyTorch's load_state_dict."""

    __slots__ = ()

    def __repr__(self):
        if self.missing_keys or self.unexpected_keys:
            return super().__repr__()
        return "<All keys matched successfully>"


class WrongKeys(KeyError, RuntimeError):
    """The error for a state whose names do not match. This error is a KeyError and also a
    RuntimeError, because PyTorch's load_state_dict raises a RuntimeError."""


Loaded.__name__ = "_IncompatibleKeys"  # the name that PyTorch prints


class Parameter(Tensor):
    """A leaf that requires a gradient. A Module registers each Parameter that is assigned to one of
    its attributes.

    The attributes below tell how ranks share the parameter. `declare` sets these attributes.
    Clipping, loss scaling and the wrappers of parallel/ read these attributes:

    sharded_by     a tuple of groups of ranks. Each group has divided the parameter once, and the
                   other ranks of the group hold the other shards. The tuple is in the order of the
                   divisions. It is () if the parameter is not divided. A group is an object of the
                   class Shards (parallel/shards.py), or a ZeRO stage
    copies         the number of ranks of these groups that hold the same shard as this rank. This
                   rank counts, too
    part           the part of a weight that this rank holds (parallel/model/tensor.py), or None if
                   the rank holds the whole weight
    is_local       True if other ranks have different weights under this name, such as other experts
                   (parallel/model/experts.py)
    compressed_by  the parallel.Compressed model that sends the gradient in fewer bytes, or None"""

    sharded_by = ()
    compressed_by = part = None
    copies, is_local = 1, False

    def __init__(self, data: Any, requires_grad: bool = True):
        super().__init__(backend.array_of(data), requires_grad)

    def declare(self, **facts):
        """Sets one or more of the attributes that the docstring of the class lists. Each keyword is
        the name of an attribute. Raises TypeError for another name."""
        for name, fact in facts.items():
            if name not in ("sharded_by", "copies", "part", "is_local", "compressed_by"):
                raise TypeError("Parameter.declare: wanted one of the keywords sharded_by, copies, "
                                f"part, is_local and compressed_by; got {name}")
            setattr(self, name, fact)

    def __deepcopy__(self, memo):
        """Returns a copy of the values, without a gradient. The copy has the same attributes as
        this parameter. Only compressed_by becomes None: the Compressed model does not know the
        copy."""
        twin = super().__deepcopy__(memo)
        twin.grad = twin.compressed_by = None
        return twin

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class Module:
    """A part of a model. Parameters, buffers and modules that are assigned to its attributes are
    registered. A call runs `forward`, which a subclass writes."""

    def __init__(self):
        # `__setattr__` reads these entries, so they are written into `__dict__` directly.
        self.__dict__.update(training=True, _parameters={}, _buffers={}, _modules={},
                             _transient=set(), _forward_pre_hooks=[], _forward_hooks=[],
                             _backward_hooks=[])

    @property
    def training(self):
        """True if this module is in training mode. train() and eval() set the mode."""
        flag = self.__dict__["training"]
        note_training(self, flag)  # recomputation must use the same value of `training`
        return flag

    @training.setter
    def training(self, flag):
        self.__dict__["training"] = flag

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define the method forward()")

    # For a type checker, a call has the arguments and the result of the class's `forward`.
    # Editors that complete code with jedi read the `__call__` below these two instead.
    if TYPE_CHECKING:
        @typing.overload
        def __call__(self: HasForward[P, R_co], *inputs: P.args, **options: P.kwargs) -> R_co:
            ...

        @typing.overload
        def __call__(self: Never) -> Never:
            ...

    def __call__(self, *inputs, **options) -> Any:
        for hook in self._forward_pre_hooks:
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        if self._backward_hooks:
            inputs, watch = watch_backward(self, inputs)
        output = self.forward(*inputs, **options)
        if self._backward_hooks:
            output = watch(output)
        for hook in self._forward_hooks:
            changed = hook(self, inputs, output)
            if changed is not None:
                output = changed
        return output

    # -- registration

    def __setattr__(self, name, value):
        if "_modules" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__}.__init__ must call super().__init__() "
                                 f"before it assigns self.{name}")
        if isinstance(value, Parameter):
            self._register(self._parameters, name, value)
        elif isinstance(value, Module):
            self._register(self._modules, name, value)
        elif name in self._parameters and value is not None:
            raise TypeError(f"self.{name} is a parameter, so it wants an nn.Parameter or None; "
                            f"got {type(value).__name__}")
        else:
            for table in (self._parameters, self._buffers, self._modules):
                if name in table:
                    table[name] = value
                    return
            object.__setattr__(self, name, value)

    def _register(self, table, name, value):
        for other in (self.__dict__, self._parameters, self._buffers, self._modules):
            if other is not table:
                other.pop(name, None)
        table[name] = value

    def __getattr__(self, name) -> Any:  # only called when __dict__ has no such name
        for table in ("_parameters", "_buffers", "_modules"):
            if name in self.__dict__.get(table, ()):
                return self.__dict__[table][name]
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}",
                             name=name, obj=self)

    def __delattr__(self, name):
        for table in (self._parameters, self._buffers, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Registers a tensor that is not trained, such as running statistics. persistent: if True,
        state_dict() includes the tensor."""
        self._register(self._buffers, name, tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Registers `param` under a name. None means that this layer has no such parameter."""
        self._register(self._parameters, name, param)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """Adds a hook. Each call runs `hook(module, inputs)` before forward. If the hook returns a
        value, this value replaces the inputs. Returns a Handle. Its method remove() removes the
        hook."""
        return _add(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Adds a hook. Each call runs `hook(module, inputs, output)` after forward. If the hook
        returns a value, this value replaces the output. Returns a Handle. Its method remove()
        removes the hook."""
        return _add(self._forward_hooks, hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> Handle:
        """Adds a hook. Backward calls `hook(module, grad_input, grad_output)`. grad_input is a
        tuple with the gradient of each input, grad_output is a tuple with the gradient of each
        output. An entry is None if there is no gradient. If exactly one input has a gradient, the
        hook may return a new value for this gradient. Returns a Handle. Its method remove() removes
        the hook."""
        return _add(self._backward_hooks, hook)

    def add_module(self, name: str, module: Module | None) -> None:
        """Registers `module`, or None, under a name, as `self.name = module` does. Raises KeyError
        if the name is empty, has a dot, or is an attribute already."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"add_module: {name!r} wants a Module, got {type(module).__name__}")
        if not name or "." in name or hasattr(self, name) and name not in self._modules:
            raise KeyError("add_module wants a name that has no dot, is not empty, and is not an "
                           f"attribute already; got {name!r}")
        self._register(self._modules, name, module)

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """Returns the module with this dotted name, such as "layers.0.norm". The name "" stands
        for this module. Raises AttributeError if there is no such module."""
        module = self
        for i, name in enumerate(target.split(".") if target else ()):
            if name not in module._modules:
                above = ".".join(target.split(".")[:i]) or type(self).__name__
                raise AttributeError(f"{above} has no module {name!r}; it has "
                                     f"{[*module._modules] or 'none'}")
            module = module._modules[name]
        return module

    def get_parameter(self, target: str) -> Parameter:
        """Returns the parameter with this dotted name, such as "layers.0.weight"."""
        return self._get("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """Returns the buffer with this dotted name, such as "layers.0.running_mean"."""
        return self._get("_buffers", "buffer", target)

    def _get(self, table, kind, target):
        above, _, name = target.rpartition(".")
        here = self.get_submodule(above).__dict__[table]
        if name not in here:
            raise AttributeError(f"{above or type(self).__name__} has no {kind} {name!r}; it has "
                                 f"{[*here] or 'none'}")
        return here[name]

    # -- iteration, always in order of definition, each object once

    def named_modules(self, *, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """Yields (name, module) for this module and all modules below it. The name of this module
        is `prefix`."""
        seen, stack = set(), [(prefix, self)]
        while stack:
            name, module = stack.pop()
            if module not in seen:
                seen.add(module)
                yield name, module
                children = [(f"{name}.{n}" if name else n, m) for n, m in module.named_children()]
                stack += reversed(children)

    def _named(self, table):
        seen = set()
        for prefix, module in self.named_modules():
            for name, value in module.__dict__[table].items():
                if value is not None and value not in seen:
                    seen.add(value)
                    yield (f"{prefix}.{name}" if prefix else name), value

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Yields (name, parameter). If two modules share a parameter, it is yielded once, under
        its first name."""
        return self._named("_parameters")

    def named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        return self._named("_buffers")

    def parameters(self) -> Iterator[Parameter]:
        return (p for _, p in self.named_parameters())

    def buffers(self) -> Iterator[Tensor]:
        return (b for _, b in self.named_buffers())

    def modules(self) -> Iterator[Module]:
        return (m for _, m in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        return ((n, m) for n, m in self._modules.items() if m is not None)

    def children(self) -> Iterator[Module]:
        return (m for _, m in self.named_children())

    # -- operations on this module and all modules below it

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls fn(module) for every module below this one, then for this one. Returns self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    def train(self, mode: bool = True) -> Self:
        for module in self.modules():
            module.training = mode
        return self

    def eval(self) -> Self:
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        for p in self.parameters():
            p.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters: each gradient becomes None. With
        set_to_none=False it is filled with zeros instead."""
        for p in self.parameters():
            clear_gradient(p, set_to_none)

    def to(self, *targets: Device | DType | None, dtype: DType | None = None,
           device: Device | None = None) -> Self:
        """Changes parameters and buffers in place. to("cuda") moves all of them to a device ('cpu',
        'cuda', 'cuda:0'). to("float16") casts the parameters and buffers with a floating
        dtype. to("cuda", "float16") moves and casts. The keywords are device= and dtype=. Clears
        all gradients. Returns self.

        Move the model before the optimizer's first step. This method does not move the optimizer's
        state to the new device."""
        for target in targets:
            if backend.is_device(target):
                device = target
            elif target is not None:
                dtype = target
        dtype = None if dtype is None else backend.as_dtype(dtype)
        for t in [*self.parameters(), *self.buffers()]:
            if dtype is not None and backend.is_floating(t.dtype):
                t.data = t.array.astype(dtype)
            if device is not None:
                t.data = backend.to_device(t.array, device)
            t.grad = None
        return self

    def cuda(self, device: Device = "cuda") -> Self:
        """Moves parameters and buffers to a GPU. device: the name of the GPU or its number. The
        default is the current GPU. Returns self."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)

    def cpu(self) -> Self:
        return self.to("cpu")

    def half(self) -> Self:
        return self.to(np.float16)

    def float(self) -> Self:
        return self.to(np.float32)

    def double(self) -> Self:
        return self.to(np.float64)

    # -- state

    def state_dict(self) -> dict[str, Tensor]:
        """Returns {name: Tensor} with all parameters and persistent buffers. Names and shapes are
        PyTorch's. The tensors share the model's memory. They are not part of the graph.
        A shared parameter appears under each of its names."""
        return {name: owner.__dict__[table][key].data
                for name, (owner, table, key) in self._state_slots().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Loaded:
        """Copies values into the parameters and buffers. state_dict: {name: value}. A value is an
        array of NumPy or CuPy on any device, a Tensor, or anything that NumPy can read, such as a
        torch tensor. Returns (missing_keys, unexpected_keys).

        With `strict`, raises KeyError if a name is missing or unexpected. Raises ValueError for a
        wrong shape. After an error nothing has been loaded."""
        if not hasattr(state_dict, "keys"):
            raise TypeError(
                f"load_state_dict wants {{name: array}}; got {type(state_dict).__name__}. To read "
                "a snapshot that minidl.snapshot.save wrote, call minidl.snapshot.load")
        slots = self._state_slots()
        missing = [n for n in slots if n not in state_dict]
        unexpected = [n for n in state_dict if n not in slots]
        if strict and (missing or unexpected):
            raise WrongKeys(
                f"load_state_dict into {type(self).__name__}: names missing in the state: "
                f"{missing or 'none'}, unexpected names: {unexpected or 'none'}. With strict=False "
                "these names are left out, and all other names are loaded")
        pairs = []
        for name, (owner, table, key) in slots.items():
            if name in state_dict:
                target = owner.__dict__[table][key]
                source = state_dict[name]
                source = backend.array_of(source)
                source = source if hasattr(source, "ndim") else np.asarray(source)
                if tuple(source.shape) != target.shape:
                    raise WrongValue(f"load_state_dict: {name} has shape {tuple(target.shape)}, "
                                     f"the state has {tuple(source.shape)}")
                pairs.append((target, source))
        for target, source in pairs:
            backend.overwrite(target.array, source)
            target.version += 1
        return Loaded(missing, unexpected)

    def _state_slots(self):
        """Returns {full name: (module, table, key)} for each tensor of state_dict. The tensor is
        module.__dict__[table][key]."""
        slots, stack = {}, [("", self)]
        while stack:
            prefix, module = stack.pop()
            for table in ("_parameters", "_buffers"):
                for key, value in module.__dict__[table].items():
                    if value is not None and key not in module._transient:
                        slots[prefix + key] = (module, table, key)
            stack += reversed([(f"{prefix}{n}.", m) for n, m in module.named_children()])
        return slots

    # -- printing

    def extra_repr(self) -> str:
        return ""

    def __repr__(self):
        lines = [f"  ({n}): " + repr(m).replace("\n", "\n  ") for n, m in self.named_children()]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ("\n" + "\n".join(lines) + "\n)" if lines else ")")


def watch_backward(module, inputs):
    """Prepares the backward hooks of one call of a module. Returns (inputs, watch). Call forward
    with the returned inputs, and use watch(output) in place of the output of forward. The returned
    inputs and outputs are views, so that their gradients come from this module only. When the
    gradients of all inputs are complete, the backward hooks are called. If no input needs a
    gradient, the hooks are called when the gradients of all outputs are complete."""
    inputs = tuple(view(x, x.shape) if isinstance(x, Tensor) and x.requires_grad else x
                   for x in inputs)
    wanted = [i for i, x in enumerate(inputs) if isinstance(x, Tensor) and x.requires_grad]
    grad_input = [None] * len(inputs)
    grad_output = []

    def call(gradient=None):
        for hook in module._backward_hooks:
            changed = hook(module, tuple(grad_input), tuple(grad_output))
            if changed is not None:
                if len(wanted) != 1:
                    raise RuntimeError("a backward hook may return a gradient only if exactly one "
                                       "input has a gradient; in this call of "
                                       f"{type(module).__name__}, {len(wanted)} inputs have a "
                                       "gradient")
                gradient = changed[0] if isinstance(changed, tuple) else changed
                grad_input[wanted[0]] = gradient
        return gradient

    def of_input(i, gradient):
        grad_input[i] = gradient
        if all(grad_input[j] is not None for j in wanted):
            return call(gradient)

    def of_output(i, gradient):
        grad_output[i] = gradient
        if not wanted and all(g is not None for g in grad_output):
            call()

    def watch(output):
        outputs = output if isinstance(output, tuple) else (output,)
        outputs = tuple(view(y, y.shape) if isinstance(y, Tensor) and y.requires_grad else y
                        for y in outputs)
        grad_output[:] = [None] * len(outputs)
        for i, y in enumerate(outputs):
            if isinstance(y, Tensor) and y.requires_grad:
                y.register_hook(partial(of_output, i))
        return outputs if isinstance(output, tuple) else outputs[0]

    for i in wanted:
        inputs[i].register_hook(partial(of_input, i))
    return inputs, watch


def _add(hooks, hook):
    hooks.append(hook)
    return Handle(lambda: hook in hooks and hooks.remove(hook))
