"""Module: parameters, buffers and sub-modules by name, in a fixed order, as in PyTorch.

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 10)      # assigning a Module, Parameter or buffer registers it
        def forward(self, x):
            return self.fc(x)

Names join with dots ("fc.weight"), in the order of definition: every rank walks the parameters in
the same order, which is what lets a collective sum the right ones.   Test: tests/nn/test_module.py
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
    """What load_state_dict found. It prints as PyTorch's."""

    __slots__ = ()

    def __repr__(self):
        if self.missing_keys or self.unexpected_keys:
            return super().__repr__()
        return "<All keys matched successfully>"


class WrongKeys(KeyError, RuntimeError):
    """A KeyError that is also a RuntimeError, which PyTorch's load_state_dict raises."""


Loaded.__name__ = "_IncompatibleKeys"  # the name that a program prints


class Parameter(Tensor):
    """A leaf that requires a gradient and registers itself when assigned to a Module.

    How ranks share it is declared by `declare` and read by clipping, loss scaling and wrappers:

    sharded_by     the groups of ranks that hold the other shards, a tuple, the latest division
                   last; (): there are none. A group is a parallel/shards.py Shards or a ZeRO stage
    copies         how many ranks of these groups together hold this very shard
    part           which part of a weight this rank holds (parallel/model/tensor.py). None: all
    is_local       True if other ranks hold other weights in its place (parallel/model/experts.py)
    compressed_by  the parallel.Compressed that sends its gradient in fewer bytes. None: nobody"""

    sharded_by = ()
    compressed_by = part = None
    copies, is_local = 1, False

    def __init__(self, data: Any, requires_grad: bool = True):
        super().__init__(backend.array_of(data), requires_grad)

    def declare(self, **facts):
        """Says how ranks share this parameter: one or more of the facts above, by name."""
        for name, fact in facts.items():
            if name not in ("sharded_by", "copies", "part", "is_local", "compressed_by"):
                raise TypeError(f"Parameter.declare: wanted sharded_by, copies, part, is_local or "
                                f"compressed_by; got {name}")
            setattr(self, name, fact)

    def __deepcopy__(self, memo):
        """The same values without a gradient. The copy lies on the same ranks in the same way; what
        sends this one's gradient does not know it."""
        twin = super().__deepcopy__(memo)
        twin.grad = twin.compressed_by = None
        return twin

    def __repr__(self):
        return "Parameter containing:\n" + super().__repr__()


class Module:
    """A part of a model. It registers what it is given as attributes; a call runs `forward`."""

    def __init__(self):
        # straight into __dict__: our own __setattr__ needs them
        self.__dict__.update(training=True, _parameters={}, _buffers={}, _modules={},
                             _transient=set(), _forward_pre_hooks=[], _forward_hooks=[],
                             _backward_hooks=[])

    @property
    def training(self):
        """Whether this module trains, as train() and eval() set it."""
        flag = self.__dict__["training"]
        note_training(self, flag)  # recompute asks who asked
        return flag

    @training.setter
    def training(self, flag):
        self.__dict__["training"] = flag

    def forward(self, *inputs: Any, **options: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    if TYPE_CHECKING:  # for a type checker a call is the class's forward; jedi reads the code below
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
            raise TypeError(f"{name} is a parameter; assign an nn.Parameter or None, "
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
        """State that is no parameter (running statistics). `persistent`: in state_dict."""
        self._register(self._buffers, name, tensor)
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register `param`, or None for a parameter that this layer goes without."""
        self._register(self._parameters, name, param)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> Handle:
        """`hook(module, inputs)` before forward; a result replaces the inputs. Returns a Handle, to
        remove() it."""
        return _add(self._forward_pre_hooks, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> Handle:
        """`hook(module, inputs, output)` after forward; a result replaces the output."""
        return _add(self._forward_hooks, hook)

    def register_full_backward_hook(self, hook: Callable[..., Any]) -> Handle:
        """`hook(module, grad_input, grad_output)` in backward, two tuples: the gradients of the
        inputs and of the outputs, None where there is none. Of a module of one input, a result
        replaces the gradient of that input."""
        return _add(self._backward_hooks, hook)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register `module`, or None, under a name without a dot, as `self.name = module` does."""
        if not isinstance(module, Module) and module is not None:
            raise TypeError(f"add_module: {name!r} wants a Module, got {type(module).__name__}")
        if not name or "." in name or hasattr(self, name) and name not in self._modules:
            raise KeyError(f"add_module: {name!r} is empty, has a dot, or is an attribute already")
        self._register(self._modules, name, module)

    register_module = add_module

    def get_submodule(self, target: str) -> Module:
        """The module of this dotted name, "layers.0.norm"; "" is this one itself."""
        module = self
        for i, name in enumerate(target.split(".") if target else ()):
            if name not in module._modules:
                above = ".".join(target.split(".")[:i]) or type(self).__name__
                raise AttributeError(f"{above} has no module {name!r}; it has "
                                     f"{[*module._modules] or 'none'}")
            module = module._modules[name]
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of this dotted name, "layers.0.weight"."""
        return self._get("_parameters", "parameter", target)

    def get_buffer(self, target: str) -> Tensor:
        """The buffer of this dotted name, "layers.0.running_mean"."""
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
        """(name, module) for this module ("") and all below it."""
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
        """(name, parameter); a parameter shared by two modules comes once, under its first name."""
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

    # -- whole-tree operations

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Call fn(module) on every module below, then on this one."""
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
        """Forget the gradients; set_to_none=False keeps the arrays and fills them with zeros."""
        for p in self.parameters():
            clear_gradient(p, set_to_none)

    def to(self, *targets: Device | DType | None, dtype: DType | None = None,
           device: Device | None = None) -> Self:
        """Move to a device ('cpu', 'cuda', 'cuda:0') and cast floating state to a dtype, in place:
        to("cuda"), to("float16"), to("cuda", "float16"), or by name. Gradients are forgotten; an
        optimizer made before keeps its parameters, but its state stays where it was: move first."""
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
        """Move to a GPU, by name or number; the current one unless given."""
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
        """Returns {name: Tensor} of parameters and persistent buffers, PyTorch's keys and shapes.
        The tensors have the live memory, no copies, and are outside the graph. A shared parameter
        appears under each of its names."""
        return {name: owner.__dict__[table][key].data
                for name, (owner, table, key) in self._state_slots().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Loaded:
        """Copy arrays (NumPy's or CuPy's on any device, Tensor, or anything NumPy can read, torch
        tensors included) into the parameters and buffers. Returns (missing_keys, unexpected_keys);
        with `strict` they are a KeyError. A wrong shape is a ValueError, and then nothing has been
        loaded."""
        if not hasattr(state_dict, "keys"):
            raise TypeError(
                f"load_state_dict wants {{name: array}}, got {type(state_dict).__name__}; what "
                "minidl.snapshot.save wrote is read by minidl.snapshot.load")
        slots = self._state_slots()
        missing = [n for n in slots if n not in state_dict]
        unexpected = [n for n in state_dict if n not in slots]
        if strict and (missing or unexpected):
            raise WrongKeys(
                f"load_state_dict into {type(self).__name__}: missing {missing or 'none'}, "
                f"unexpected {unexpected or 'none'}; strict=False to load the rest")
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
        """{full name: (module, table, key)} of everything that state_dict holds."""
        slots, stack = {}, [("", self)]
        while stack:
            prefix, module = stack.pop()
            for table in ("_parameters", "_buffers"):
                for key, value in module.__dict__[table].items():
                    if value is not None and key not in module._transient:
                        slots[prefix + key] = (module, table, key)
            stack += reversed([(f"{prefix}{n}.", m) for n, m in module.named_children()])
        return slots

    # -- for people

    def extra_repr(self) -> str:
        return ""

    def __repr__(self):
        lines = [f"  ({n}): " + repr(m).replace("\n", "\n  ") for n, m in self.named_children()]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ("\n" + "\n".join(lines) + "\n)" if lines else ")")


def watch_backward(module, inputs):
    """(the inputs to call forward with, a function that must be given the output and returns the
    output to go on with): both are views, whose gradients are this module's alone. When all these
    gradients are there, the module's backward hooks are called."""
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
                    raise RuntimeError("a backward hook may replace the gradient of one input; "
                                       f"{type(module).__name__} has {len(wanted)} with one")
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
