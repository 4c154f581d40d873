"""Loads GPT-2 and Llama from a folder in Hugging Face's layout.

    model = minidl.snapshot.from_hugging_face("gpt2/")          nn.GPT or nn.Llama, in eval mode
    tokenizer = minidl.data.Tokenizer.from_hugging_face("gpt2/")            data/byte_pairs.py
    ids = infer.decoder(model).generate(np.array([tokenizer.encode("Once upon a time")]), 100)
    print(tokenizer.decode(ids[0]))

    config.json                     the kind of the model, and its sizes
    model.safetensors               all tensors by their names. A large model has several files
    model.safetensors.index.json    only if there are several files: the file of each tensor

    h.0.attn.c_attn.weight (C, 3C)  ->  blocks.0.attention.qkv.weight, transposed
    model.layers.0.self_attn.q_proj, k_proj, v_proj  ->  blocks.0.attention.qkv, concatenated

If the config has an option that minidl's model does not support, loading raises an error. Without
this check, a wrong activation would go unnoticed, because the logits would still look plausible. A
folder may come from anybody. So the sizes in config.json are compared with the files before a model
of these sizes is made. A file is mapped (np.memmap), so only one tensor at a time is in memory.
NumPy has no bfloat16. The 16 bits of a bfloat16 are the upper half of a float32.

Source: github.com/huggingface/safetensors, "Format".   Test: tests/snapshot/test_hugging_face.py
"""

import json
import math
from pathlib import Path

import numpy as np

from minidl import nn
from minidl.snapshot import header
from minidl.snapshot.snapshot import SnapshotError

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
GPT2 = {  # {name in the file: (minidl's name, True if the file stores the weight transposed)}
    "ln_1": ("norm1", False), "ln_2": ("norm2", False), "attn.c_attn": ("attention.qkv", True),
    "attn.c_proj": ("attention.proj", True), "mlp.c_fc": ("feed_forward.up", True),
    "mlp.c_proj": ("feed_forward.down", True)}
LLAMA = {
    "input_layernorm": "norm1", "post_attention_layernorm": "norm2",
    "self_attn.o_proj": "attention.proj", "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up", "mlp.down_proj": "feed_forward.down"}


def from_hugging_face(folder):
    """Returns an nn.GPT or nn.Llama in eval mode, float32, on the CPU. Raises SnapshotError if the
    folder has another kind of model, if minidl does not support an option, or if tensors of the
    model are missing."""
    folder = Path(folder)
    config = _dict_in(folder / "config.json")
    kind = config.get("model_type")
    if kind not in ("gpt2", "llama"):
        raise SnapshotError(f"{folder}: got a model of type {kind!r}; want gpt2 or llama")
    tensors, state = Tensors(folder), {}
    try:
        make, names, n_numbers = (gpt2 if kind == "gpt2" else llama)(folder, config, len(tensors))
        there = {name: tensors.n_numbers(name) for parts, _ in names.values() for name in parts}
        if n_numbers > sum(there.values()):  # checked before a model of that size is made
            raise ValueError(f"config.json describes a model of {n_numbers:,} weights, but the "
                             f"files have only {sum(there.values()):,}")
        model = make()
        for ours, (theirs, transposed) in names.items():
            parts = [tensors[name] for name in theirs]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            state[ours] = whole.T if transposed else whole
        model.load_state_dict(state)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise SnapshotError(f"{folder}: {error.args[0] if error.args else error}") from None
    return model.eval()


def _dict_in(path):
    """Returns the dict in a JSON file."""
    try:
        found = json.loads(path.read_text("utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"wanted a dict, got {str(found)[:40]}")
        return found
    except (OSError, ValueError, RecursionError) as error:
        raise SnapshotError(f"{path.parent}: cannot read {path.name} ({error}). Want a folder that "
                            "save_pretrained of transformers wrote") from None


def whole_numbers(config, *names):
    """Returns the values of the options `names` of the config. Raises ValueError if one of these
    values is not an integer, or is less than 1."""
    for name in names:
        value = config.get(name)
        if type(value) is not int or not 0 < value < 1 << 40:
            raise ValueError(f"config.json: {name} is {str(value)[:40]}; want an integer from 1 "
                             "on, below 2^40")
    return [config[name] for name in names]


def number(config, name, default):
    """Returns the value of the option `name` as a float. If the config does not have this option,
    returns the default. Raises ValueError if the value is not a finite number."""
    value = config.get(name, default)
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError(f"config.json: {name} is {str(value)[:40]}; want a finite number")
    return float(value)


def refuse(folder, config, **wanted):
    """Raises SnapshotError if an option of the config has a value that minidl's model does not
    support. wanted: {option: its supported values}. The first value is the default."""
    for name, values in wanted.items():
        if (got := config.get(name, values[0])) not in values:
            raise SnapshotError(f"{folder}/config.json: {name} is {got!r}; minidl's model supports "
                                f"only {' or '.join(map(repr, values))}")


def gpt2(folder, config, n_tensors):
    """Returns three things: a function that makes the GPT, a dict {minidl's name: ([names in the
    files], transposed)}, and the number of weights that the files must hold. n_tensors: the number
    of tensors in the files. If config has more than n_tensors layers, the dict has the names of
    only n_tensors layers."""
    sizes = whole_numbers(config, "vocab_size", "n_positions", "n_layer", "n_head", "n_embd")
    vocab, n_positions, n_layers, _, width = sizes
    refuse(folder, config, activation_function=("gelu_new", "gelu_pytorch_tanh"),
           layer_norm_epsilon=(1e-5,), scale_attn_weights=(True,), add_cross_attention=(False,),
           scale_attn_by_inverse_layer_idx=(False,), n_inner=(None, 4 * width),
           tie_word_embeddings=(True,))
    names = {"token.weight": (["wte.weight"], False), "position.weight": (["wpe.weight"], False),
             "head.weight": (["wte.weight"], False)}
    for part in "weight", "bias":
        names[f"norm.{part}"] = [f"ln_f.{part}"], False
        for i in range(min(n_layers, n_tensors)):
            for theirs, (ours, transposed) in GPT2.items():
                names[f"blocks.{i}.{ours}.{part}"] = (
                    [f"h.{i}.{theirs}.{part}"], transposed and part == "weight")
    n_numbers = (vocab + n_positions + 2) * width + n_layers * (12 * width + 13) * width
    return lambda: nn.GPT(*sizes), names, n_numbers


def llama(folder, config, n_tensors):
    """Returns three things: a function that makes the Llama, a dict {minidl's name: ([names in the
    files], False)}, and the number of weights that the files must hold. n_tensors: as in gpt2."""
    vocab, context, n_layers, n_heads, width, hidden = whole_numbers(
        config, "vocab_size", "max_position_embeddings", "num_hidden_layers",
        "num_attention_heads", "hidden_size", "intermediate_size")
    more = {"num_key_value_heads": n_heads, "head_dim": width // n_heads}
    more |= {name: config[name] for name in more if config.get(name) is not None}
    n_kv_heads, head_width = whole_numbers(more, *more)
    refuse(folder, config, hidden_act=("silu",), attention_bias=(False,), mlp_bias=(False,))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    refuse(folder, {"rope_type": scaled}, rope_type=("default", "llama3"))
    tied = bool(config.get("tie_word_embeddings", False))
    theta = number(rope, "rope_theta", number(config, "rope_theta", 10000.0))
    eps = number(config, "rms_norm_eps", 1e-6)
    names = {"token.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "head.weight": ["model.embed_tokens.weight" if tied else "lm_head.weight"]}
    for i in range(min(n_layers, n_tensors)):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        names |= {f"{ours}.{b}.weight": [f"{theirs}.{a}.weight"] for a, b in LLAMA.items()}
        names[f"{ours}.attention.qkv.weight"] = [
            f"{theirs}.self_attn.{x}_proj.weight" for x in "qkv"]
    # of_layer: the number of weights of a layer, divided by width.
    of_layer = 2 + 2 * (n_heads + n_kv_heads) * head_width + 3 * hidden
    n_numbers = width * (1 + vocab * (1 if tied else 2) + n_layers * of_layer)

    def make():
        return nn.Llama(vocab, context, n_layers, n_heads, width, n_kv_heads, hidden, head_width,
                        theta, rope if scaled == "llama3" else None, eps, tied)
    return make, {name: (parts, False) for name, parts in names.items()}, n_numbers


class Tensors:
    """The tensors of a folder's safetensors files: tensors[name] is a float32 array. If the model
    was saved without its output layer, the names in the files lack the first part, such as
    "model."."""

    def __init__(self, folder):
        index, self.found = folder / "model.safetensors.index.json", {}
        files = ["model.safetensors"]
        if index.exists():
            files = _dict_in(index).get("weight_map")
            if not isinstance(files, dict):
                raise SnapshotError(f"{index}: wanted a dict as weight_map; got {str(files)[:80]}")
            files = sorted(set(map(str, files.values())))
        for file in files:
            if Path(file).name != file:
                raise SnapshotError(f"{index}: this index has {file[:80]!r}, a file outside of "
                                    "the folder; want file names without folders")
            try:
                entries = header.read(folder / file)
            except ValueError as error:
                raise SnapshotError(str(error)) from None
            self.found |= {name: (folder / file, entry) for name, entry in entries.items()
                           if entry.dtype in DTYPES}  # masks and counters have other dtypes

    def __len__(self):
        return len(self.found)

    def _entry(self, name):
        """Returns (path, Entry) of a tensor. Raises KeyError if no file has this tensor."""
        _, _, rest = name.partition(".")
        keys = name, f"transformer.{name}", rest if name.startswith("model.") else name
        key = next((k for k in keys if k in self.found), None)
        if key is None:
            raise KeyError(f"the safetensors files have no tensor {name!r}")
        return self.found[key]

    def n_numbers(self, name):
        return math.prod(self._entry(name)[1].shape)

    def __getitem__(self, name):
        path, (at, dtype, shape) = self._entry(name)
        try:
            x = np.memmap(path, DTYPES[dtype], "r", at, shape) if 0 not in shape else (
                np.zeros(shape, DTYPES[dtype]))
        except (OSError, ValueError):  # for example for 70 dimensions, or for the sizes 0 and 2^62
            raise SnapshotError(f"{path}: {name} has the shape {str(shape)[:80]}, and no array can "
                                "have this shape") from None
        if dtype == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(x, np.float32)
