"""PyTorch's keyword arguments that minidl does without, and what to write instead.

    >>> F.relu(x, inplace=True)
    TypeError: relu() got an unexpected keyword argument 'inplace'; it takes (input); leave it out
    and write x = f(x): what x was is freed unless backward needs it

Python refuses a keyword before the first line of the function. To answer there, each function would
need `**others` in its signature (60 ns more for every good call) or a wrapper (190 ns, and a Python
call). So calls are left as they are, and an error is completed when it is shown, as Python does
with "Did you mean": by sys.excepthook (scripts, Python's prompt), IPython's handler (notebooks) and
traceback.TracebackException, which threads, pytest, unittest, logging and print_exc() use. Only
str(error) of one that was never shown has Python's words; explain(error) completes it.
Names are in elsewhere.py.   Test: tests/test_other_keywords.py
"""

import ast
import difflib
import inspect
import linecache
import operator
import re
import sys
import textwrap
import threading
import traceback

# Several keywords may have the same answer; "Adam.x" is said of Adam alone.
INSTEAD = {
    "out": "write out = f(...), or out.copy_(f(...)) under no_grad",
    "inplace": "leave it out and write x = f(x): what x was is freed unless backward needs it",
    "device dtype": "make it, then layer.to(device, dtype), which also takes either alone",
    "from_dlpack.device from_dlpack.copy": "minidl.from_dlpack(x).to(device)",
    "memory_format layout": "leave it out: arrays are contiguous, the last dimension first",
    "pin_memory": "leave it out; DataLoader(device='cuda') copies through pinned memory",
    "size_average reduce": "reduction='mean', 'sum' or 'none'", "bucket_cap_mb": "bucket_bytes=",
    "_stacklevel mask_check compute_mode cache_enabled static_graph gradient_as_bucket_view":
    "leave it out",
    "names": "dimensions have numbers here", "process_group device_mesh": "t.subgroup(ranks) as t",
    "autocast.device_type GradScaler.device EMA.device":
    "leave it out: the array decides the device",
    "device_ids output_device": "leave it out: DataParallel(model.to('cuda'), t)",
    "find_unused_parameters": "leave it out: those unused are found, and count as zeros",
    "use_reentrant preserve_rng_state": "leave it out: recompute replays random numbers",
    "padding_mode": "x = F.pad(x, sizes, mode='reflect', 'replicate' or 'circular') before it",
    "max_norm norm_type": "divide the rows by their norm under no_grad, after the step",
    "scale_grad_by_freq": "leave it out, or divide the rows of weight.grad by their counts",
    "sparse sparse_grad": "leave it out: gradients are dense (rows alone: minidl.parallel.server)",
    "_weight": "layer.weight.copy_(weight) under no_grad", "_freeze": "layer.requires_grad_(False)",
    "bias": "affine=False, or layer.bias = None after it is made", "out_dtype": "y.to(dtype)",
    "count_include_pad divisor_override":
    "avg_pool2d counts the padding; F.pad before it, or multiply the result",
    "return_indices": "leave it out; the indices are not kept",
    "dilation": "max pooling of x[..., i::dilation] for each i", "decoupled_weight_decay": "AdamW",
    "add_bias_kv add_zero_attn": "append to key and value by minidl.cat before it",
    "kdim vdim": "a Linear(kdim, embed_dim) on key or value before it",
    "threshold": "leave it out: no sum overflows", "Softplus.beta": "F.softplus(x, beta)",
    "weight": "(loss(..., reduction='none') * weight).mean()", "prefetch_factor": "prefetch=",
    "descending": "largest=True or False", "inputs": "minidl.grad(loss, inputs)",
    "create_graph": "leave it out: there is no backward of a backward", "num_replicas": "size=",
    "recompute_scale_factor": "give size= instead", "verbose": "print(scheduler.get_last_lr())",
    "non_blocking": "leave it out: copies to a GPU are queued on its stream",
    "foreach fused": "leave it out: one kernel updates all parameters where there are kernels",
    "capturable": "leave it out: minidl.graphed captures any step", "dataset": "n=len(dataset)",
    "differentiable": "leave it out: no graph is recorded through a step", "axis": "dim=",
    "last_epoch": "scheduler.load_state_dict(state)", "DistributedSampler.drop_last": "tail='drop'",
    "num_workers": "prefetch=2 loads ahead, workers=4 by four threads", "keepdims": "keepdim=",
    "timeout worker_init_fn multiprocessing_context persistent_workers pin_memory_device in_order":
    "leave it out: batches are loaded by threads, in order",
    "prefix": "join it to the names", "remove_duplicate memo": "leave it out: each comes once",
    "recurse": "list module._parameters or module._buffers for this module alone", "size": "shape=",
    "destination keep_vars": "leave it out: state_dict() gives the live arrays", "src": "source=",
    "assign": "leave it out: values are copied into the arrays that are there", "dims": "dim=",
    "prepend with_kwargs always_call": "leave it out: hooks run in the order of registration",
    "set_to_none": "leave it out: gradients become None", "dim0 dim1": "by place: transpose(a, b)",
    "split_size": "by place: split(n)", "state_dict": "state=", "ext_tensor": "source=",
    "enable_grad.orig_func": "with minidl.enable_grad():", "requires_grad": "flag=",
    "tensor input": "by place, without its name", "permute.dim": "dims=", "x y": "input=, other=",
    "proj_size": "a Linear after it", "weight_norm": "divide by the norm in forward",
    "antialias": "leave it out, or average before it shrinks",
}
ADVICE = {name: instead for names, instead in INSTEAD.items() for name in names.split()}

REFUSED = re.compile(  # from Python 3.13 on with a guess of its own
    r"([\w.<>]+)\(\) got an unexpected keyword argument '(\w+)'(\. Did you mean .*)?")


def explain(error):
    """Complete Python's TypeError about a keyword that a function of minidl lacks: what it takes,
    and what to do instead. Any other error is left as it is."""
    refused = type(error) is TypeError and REFUSED.fullmatch(str(error))
    called = refused and _called(error.__traceback__, refused[1])
    if not (getattr(called, "__module__", None) or "").startswith("minidl"):
        return
    signature, keyword = inspect.signature(called), refused[2]
    remedy = ADVICE.get(f"{called.__name__}.{keyword}") or ADVICE.get(keyword)
    if remedy is None:
        close = difflib.get_close_matches(keyword, signature.parameters, 1)
        remedy = f"did you mean {close[0]!r}?" if close else "leave it out, or write what it does"
    error.args = (f"{error}; it takes {signature}; {remedy}",)


def _called(trace, qualname):
    """What was called where this traceback ends: by the text of the call if it is there and has
    names and dots alone, else what minidl has under the name in the error. None: not known."""
    try:
        while trace.tb_next:
            trace = trace.tb_next
        frame = trace.tb_frame
        call = _text(frame.f_code, trace.tb_lasti, frame.f_globals)
        asked = ast.parse(f"({call})", mode="eval").body.func
        if all(isinstance(n, ast.Name | ast.Attribute | ast.Load) for n in ast.walk(asked)):
            found = eval(ast.unparse(asked), frame.f_globals, frame.f_locals)
            if getattr(found, "__module__", "builtins") != "builtins":
                return found
    except Exception:  # whatever a name's property raises must not hide the error
        pass
    # no text, as at Python's prompt, or a part of it: of calls in a chain
    for name, module in list(sys.modules.items()):
        if name.startswith("minidl") and "<" not in qualname:
            try:
                found = operator.attrgetter(qualname.removesuffix(".__init__"))(module)
            except AttributeError:
                continue
            if callable(found):
                return found
    return None


def _text(code, at, names):
    """The text of the call that is the instruction at byte `at`."""
    first, last, start, end = list(code.co_positions())[at // 2]
    lines = [line.encode() for line in linecache.getlines(code.co_filename, names)[first - 1:last]]
    lines[-1] = lines[-1][:end]  # the columns count bytes
    return textwrap.dedent(b"".join([lines[0][start:], *lines[1:]]).decode())


def install():
    """From now on errors are completed when they are shown; what showed them before goes on."""
    shown, script, thread = traceback.TracebackException, sys.excepthook, threading.excepthook
    show = shown.__init__

    def __init__(self, exc_type, exc_value, *args, **options):  # of each in a chain or a group
        explain(exc_value)
        show(self, exc_type, exc_value, *args, **options)

    def of_script(kind, error, trace):
        shown(kind, error, None)
        script(kind, error, trace)

    def of_thread(args):
        shown(args.exc_type, args.exc_value, None)
        thread(args)

    shown.__init__, sys.excepthook, threading.excepthook = __init__, of_script, of_thread
    shell = "IPython" in sys.modules and sys.modules["IPython"].get_ipython()
    if shell and not shell.custom_exceptions:
        def of_notebook(shell, kind, error, trace, tb_offset=None):
            explain(error)
            shell.showtraceback((kind, error, trace), tb_offset=tb_offset)

        shell.set_custom_exc((TypeError,), of_notebook)
