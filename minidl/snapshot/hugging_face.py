"""GPT-2 and Llama from a folder in Hugging Face's layout.

    model = minidl.snapshot.from_hugging_face("gpt2/")          nn.GPT or nn.Llama, in eval mode
    infer.decoder(model).generate(ids, 100)

    config.json                     the sizes, and what kind of model it is
    model.safetensors               all tensors by their names; of a large model several files, and
    model.safetensors.index.json    which tensor is in which of them

    h.0.attn.c_attn.weight (C, 3C)  ->  blocks.0.attention.qkv.weight, transposed
    model.layers.0.self_attn.q_proj, k_proj, v_proj  ->  blocks.0.attention.qkv, one below the other

What the config asks for and minidl's model does not compute is an error: a wrong activation would
still give plausible logits. A file is 8 bytes for the length of a header, the header (JSON: each
tensor's dtype, shape, first and last byte), the bytes. It is mapped, so that one tensor at a time
is in memory; bfloat16, which NumPy lacks, is the upper half of a float32.

Source: github.com/huggingface/safetensors, "Format".   Test: tests/snapshot/test_hugging_face.py
"""

import json
from pathlib import Path

import numpy as np

from minidl import nn
from minidl.snapshot.snapshot import SnapshotError

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
GPT2 = {  # theirs: ours, and whether it is stored transposed
    "ln_1": ("norm1", False), "ln_2": ("norm2", False), "attn.c_attn": ("attention.qkv", True),
    "attn.c_proj": ("attention.proj", True), "mlp.c_fc": ("feed_forward.up", True),
    "mlp.c_proj": ("feed_forward.down", True)}
LLAMA = {
    "input_layernorm": "norm1", "post_attention_layernorm": "norm2",
    "self_attn.o_proj": "attention.proj", "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up", "mlp.down_proj": "feed_forward.down"}


def from_hugging_face(folder):
    """nn.GPT or nn.Llama, in eval mode, float32, on the CPU. SnapshotError where the folder has
    another model, an option that is not here, or not the tensors that the model has."""
    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise SnapshotError(f"{folder}: no config.json that can be read ({error}); want a folder "
                            "as transformers' save_pretrained writes it") from None
    kind = config.get("model_type")
    if kind not in ("gpt2", "llama"):
        raise SnapshotError(f"{folder}: a model of type {kind!r}; want gpt2 or llama")
    model, names = (gpt2 if kind == "gpt2" else llama)(folder, config)
    tensors, state = Tensors(folder), {}
    try:
        for ours, (theirs, transposed) in names.items():
            parts = [tensors[name] for name in theirs]
            whole = parts[0] if len(parts) == 1 else np.concatenate(parts)
            state[ours] = whole.T if transposed else whole
        model.load_state_dict(state)
    except (KeyError, ValueError) as error:
        raise SnapshotError(f"{folder}: {error.args[0]}") from None
    return model.eval()


def refuse(folder, config, **wanted):
    """SnapshotError where the config differs from what is here; wanted: {option: its values, the
    first of them where it is not given}."""
    for name, values in wanted.items():
        if (got := config.get(name, values[0])) not in values:
            raise SnapshotError(f"{folder}/config.json: {name} is {got!r}; minidl's model has "
                                f"{' or '.join(map(repr, values))}")


def gpt2(folder, config):
    """(the GPT, {its name: ([theirs], transposed)})."""
    n_layers, width = config["n_layer"], config["n_embd"]
    refuse(folder, config, activation_function=("gelu_new", "gelu_pytorch_tanh"),
           layer_norm_epsilon=(1e-5,), scale_attn_weights=(True,), add_cross_attention=(False,),
           scale_attn_by_inverse_layer_idx=(False,), n_inner=(None, 4 * width),
           tie_word_embeddings=(True,))
    model = nn.GPT(config["vocab_size"], config["n_positions"], n_layers, config["n_head"], width)
    names = {"token.weight": (["wte.weight"], False), "position.weight": (["wpe.weight"], False),
             "head.weight": (["wte.weight"], False)}
    for part in "weight", "bias":
        names[f"norm.{part}"] = [f"ln_f.{part}"], False
        for i in range(n_layers):
            for theirs, (ours, transposed) in GPT2.items():
                names[f"blocks.{i}.{ours}.{part}"] = (
                    [f"h.{i}.{theirs}.{part}"], transposed and part == "weight")
    return model, names


def llama(folder, config):
    """(the Llama, {its name: ([theirs], False)})."""
    n_layers, n_heads = config["num_hidden_layers"], config["num_attention_heads"]
    refuse(folder, config, hidden_act=("silu",), attention_bias=(False,), mlp_bias=(False,))
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    scaled = rope.get("rope_type", rope.get("type", "default"))
    refuse(folder, {"rope_type": scaled}, rope_type=("default", "llama3"))
    tied = config.get("tie_word_embeddings", False)
    model = nn.Llama(
        config["vocab_size"], config["max_position_embeddings"], n_layers, n_heads,
        config["hidden_size"], config.get("num_key_value_heads"), config["intermediate_size"],
        config.get("head_dim"), rope.get("rope_theta", config.get("rope_theta", 10000.0)),
        rope if scaled == "llama3" else None, config.get("rms_norm_eps", 1e-6), tied)
    names = {"token.weight": ["model.embed_tokens.weight"], "norm.weight": ["model.norm.weight"],
             "head.weight": ["model.embed_tokens.weight" if tied else "lm_head.weight"]}
    for i in range(n_layers):
        theirs, ours = f"model.layers.{i}", f"blocks.{i}"
        names |= {f"{ours}.{b}.weight": [f"{theirs}.{a}.weight"] for a, b in LLAMA.items()}
        names[f"{ours}.attention.qkv.weight"] = [
            f"{theirs}.self_attn.{x}_proj.weight" for x in "qkv"]
    return model, {name: (parts, False) for name, parts in names.items()}


class Tensors:
    """{name: array float32} of a folder's safetensors files; a name may lack its first part, the
    model's own, as in files of the model without its head."""

    def __init__(self, folder):
        index = folder / "model.safetensors.index.json"
        files = {"model.safetensors"}
        if index.exists():
            files = set(json.loads(index.read_text())["weight_map"].values())
        self.found = {}
        for file in sorted(files):
            if Path(file).name != file:
                raise SnapshotError(f"{index}: a file {file!r} outside of the folder")
            self.found |= header(folder / file)

    def __getitem__(self, name):
        _, _, rest = name.partition(".")
        keys = name, f"transformer.{name}", rest if name.startswith("model.") else name
        key = next((k for k in keys if k in self.found), None)
        if key is None:
            raise KeyError(f"no tensor {name!r} in its safetensors files")
        path, at, dtype, shape = self.found[key]
        x = np.memmap(path, DTYPES[dtype], "r", at, tuple(shape)) if 0 not in shape else (
            np.zeros(shape, DTYPES[dtype]))
        if dtype == "BF16":
            x = (x.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(x, np.float32)


def header(path):
    """{name: (path, first byte, dtype, shape)} of one file; SnapshotError where it is cut off, or
    its header does not say what is in it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            n = int.from_bytes(file.read(8), "little")
            if n > size - 8:
                raise ValueError(f"a header of {n} bytes in a file of {size}")
            told = json.loads(file.read(n))
        found = {}
        for name, it in told.items():
            if name == "__metadata__":
                continue
            begin, end = it["data_offsets"]
            if not 0 <= begin <= end <= size - 8 - n:
                raise ValueError(f"{name} has bytes {begin} to {end} of {size - 8 - n}")
            if it["dtype"] not in DTYPES:
                continue  # a mask or a counter: not asked for
            wanted = int(np.prod(it["shape"], dtype=np.int64)) * np.dtype(
                DTYPES[it["dtype"]]).itemsize
            if end - begin != wanted:
                raise ValueError(f"{name} has {end - begin} bytes, want {wanted}")
            found[name] = path, 8 + n + begin, it["dtype"], it["shape"]
        return found
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{path}: no whole safetensors file ({error}); load it anew") from None
