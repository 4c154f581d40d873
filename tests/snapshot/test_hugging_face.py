"""GPT-2 and Llama from folders in Hugging Face's layout: written here by hand, and, where it is
installed (pip install torch transformers), by transformers, whose logits are equal."""

import json
import math

import numpy as np
import pytest

import minidl
from minidl import infer, nn
from minidl.data import Tokenizer
from minidl.snapshot import SnapshotError, from_hugging_face
from tests.nn.test_llama import oracle

GPT2 = dict(model_type="gpt2", vocab_size=13, n_positions=12, n_embd=8, n_layer=2, n_head=2)
LLAMA = dict(model_type="llama", vocab_size=13, max_position_embeddings=12, hidden_size=8,
             num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=2,
             intermediate_size=24, rms_norm_eps=1e-5, rope_theta=10000.0)


def file_of(tensors):
    """The bytes of a safetensors file, by its specification; bf16 where an array is uint16."""
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, x in tensors.items():
        dtype = {"float32": "F32", "float16": "F16", "uint16": "BF16", "bool": "BOOL"}[x.dtype.name]
        header[name] = dict(dtype=dtype, shape=x.shape, data_offsets=[
            len(data), len(data) + x.nbytes])
        data += x.tobytes()
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def drawn(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape).astype(np.float32) * 0.5
            for name, shape in shapes.items()}


def gpt2_tensors(prefix=""):
    shapes = {"wte.weight": (13, 8), "wpe.weight": (12, 8), "ln_f.weight": 8, "ln_f.bias": 8}
    for i in range(2):
        for name, n_in, n_out in (("attn.c_attn", 8, 24), ("attn.c_proj", 8, 8),
                                  ("mlp.c_fc", 8, 32), ("mlp.c_proj", 32, 8)):
            shapes |= {f"h.{i}.{name}.weight": (n_in, n_out), f"h.{i}.{name}.bias": n_out}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"h.{i}.{name}.weight": 8, f"h.{i}.{name}.bias": 8}
    tensors = {prefix + name: x for name, x in drawn(shapes).items()}
    return tensors | {prefix + "h.0.attn.bias": np.tril(np.ones((1, 1, 12, 12), bool))}


def llama_tensors():
    shapes = {"model.embed_tokens.weight": (13, 8), "model.norm.weight": 8,
              "lm_head.weight": (13, 8)}
    for i in range(2):
        for name, shape in (
                ("input_layernorm", 8), ("post_attention_layernorm", 8),
                ("self_attn.q_proj", (8, 8)), ("self_attn.k_proj", (4, 8)),
                ("self_attn.v_proj", (4, 8)), ("self_attn.o_proj", (8, 8)),
                ("mlp.gate_proj", (24, 8)), ("mlp.up_proj", (24, 8)), ("mlp.down_proj", (8, 24))):
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return drawn(shapes)


def folder(path, config, tensors):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors").write_bytes(file_of(tensors))
    return path


def gpt2_oracle(w, ids):
    """Radford et al. 2019 by loops over heads and positions, in float64 and in the file's names."""
    w = {name: x.astype(np.float64) for name, x in w.items()}

    def norm(x, p):
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * w[p + ".weight"] + w[p + ".bias"]

    def dense(x, p):
        return x @ w[p + ".weight"] + w[p + ".bias"]

    T, heads, e = len(ids), 2, 4
    x = w["wte.weight"][ids] + w["wpe.weight"][:T]
    for i in range(2):
        q, k, v = np.split(dense(norm(x, f"h.{i}.ln_1"), f"h.{i}.attn.c_attn"), 3, axis=-1)
        out = np.zeros((T, 8))
        for h in range(heads):
            c = slice(h * e, h * e + e)
            for t in range(T):
                s = np.exp(k[:t + 1, c] @ q[t, c] / math.sqrt(e))
                out[t, c] = s / s.sum() @ v[:t + 1, c]
        x = x + dense(out, f"h.{i}.attn.c_proj")
        u = dense(norm(x, f"h.{i}.ln_2"), f"h.{i}.mlp.c_fc")
        u = 0.5 * u * (1 + np.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u ** 3)))
        x = x + dense(u, f"h.{i}.mlp.c_proj")
    return norm(x, "ln_f") @ w["wte.weight"].T


def close(got, want):
    # float32 through two blocks, sums of at most 32 numbers
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-5 * np.abs(want).max())


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_gpt_2s_logits_are_those_of_the_paper(tmp_path, prefix):
    model = from_hugging_face(folder(tmp_path, GPT2, gpt2_tensors(prefix)))
    ids = np.random.default_rng(1).integers(0, 13, 12)
    assert isinstance(model, nn.GPT) and not model.training
    assert model.head.weight is model.token.weight
    with minidl.no_grad():
        close(model(ids[None]).array[0], gpt2_oracle(gpt2_tensors(), ids))


def test_a_folder_with_its_vocabulary_reads_and_writes_text(tmp_path):
    """Text in, text out: the most likely token each time, by the oracle above."""
    tokenizer = Tokenizer.learn("banana band " * 9, 270, ["<|endoftext|>"])
    n_vocab = tokenizer.n_vocab
    tensors = gpt2_tensors()
    tensors["wte.weight"] = drawn({"wte": (n_vocab, 8)})["wte"]
    path = folder(tmp_path, GPT2 | {"vocab_size": n_vocab}, tensors)
    tokenizer.save(path)

    read = Tokenizer.from_hugging_face(path)
    prompt = read.encode("a banana band")
    assert prompt == tokenizer.encode("a banana band") and len(prompt) < 6
    written = infer.decoder(from_hugging_face(path)).generate(np.array([prompt]), 5, temperature=0)
    want = list(prompt)
    for _ in range(5):
        want.append(int(gpt2_oracle(tensors, want)[-1].argmax()))
    assert read.decode(written[0]) == tokenizer.decode(want)
    assert read.decode(written[0]).startswith("a banana band")


def test_llamas_tensors_go_where_they_belong(tmp_path):
    tensors, ids = llama_tensors(), np.random.default_rng(1).integers(0, 13, (1, 12))
    model = from_hugging_face(folder(tmp_path, LLAMA, tensors))
    with minidl.no_grad():
        close(model(ids).array, oracle(model, ids))
    block, theirs = model.blocks[1], "model.layers.1."
    for i, name in ((0, "q"), (8, "k"), (12, "v")):
        want = tensors[f"{theirs}self_attn.{name}_proj.weight"]
        np.testing.assert_array_equal(block.attention.qkv.weight.array[i:i + len(want)], want)
    for ours, name in ((block.feed_forward.gate, "mlp.gate_proj"), (block.norm1, "input_layernorm"),
                       (block.feed_forward.up, "mlp.up_proj"), (model.head, None)):
        want = tensors[f"{theirs}{name}.weight" if name else "lm_head.weight"]
        np.testing.assert_array_equal(ours.weight.array, want)
    step = infer.decoder(model)
    with minidl.no_grad():
        close(step.prefill(ids), model(ids).array[:, -1])


def test_halves_of_either_kind_and_several_files(tmp_path):
    whole, tensors = llama_tensors(), {}
    for i, (name, x) in enumerate(whole.items()):  # bf16: cut off, which is exact to read again
        bf16 = (x.view(np.uint32) >> 16).astype(np.uint16)
        tensors[name] = (x.astype(np.float16), bf16, x)[i % 3]
    path = folder(tmp_path, LLAMA, {})
    (path / "model.safetensors").unlink()
    place = {name: f"model-{i % 2}.safetensors" for i, name in enumerate(tensors)}
    for file in set(place.values()):
        (path / file).write_bytes(file_of({k: x for k, x in tensors.items() if place[k] == file}))
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    model = from_hugging_face(path)
    for name, ours in (("model.embed_tokens", model.token), ("model.norm", model.norm),
                       ("lm_head", model.head)):
        x = tensors[f"{name}.weight"]
        want = (x.astype(np.uint32) << 16).view(np.float32) if x.dtype == np.uint16 else x
        np.testing.assert_array_equal(ours.weight.array, want.astype(np.float32))
    place["lm_head.weight"] = "../secret"
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    with pytest.raises(SnapshotError, match="outside of the folder"):
        from_hugging_face(path)


def test_what_is_not_here_or_not_whole_is_refused(tmp_path):
    def refused(words, config, tensors):
        with pytest.raises(SnapshotError, match=words):
            from_hugging_face(folder(tmp_path, config, tensors))

    with pytest.raises(SnapshotError, match="cannot read config.json"):
        from_hugging_face(tmp_path)
    refused("type 'mamba'; want gpt2 or llama", {"model_type": "mamba"}, {})
    refused("activation_function is 'relu'", GPT2 | {"activation_function": "relu"}, {})
    refused("attention_bias is True", LLAMA | {"attention_bias": True}, {})
    refused("rope_type is 'yarn'", LLAMA | {"rope_scaling": {"rope_type": "yarn"}}, {})
    tensors = gpt2_tensors()
    tensors.pop("h.1.mlp.c_fc.bias")
    refused("no tensor 'h.1.mlp.c_fc.bias'", GPT2, tensors)
    refused("shape", GPT2 | {"n_positions": 11}, gpt2_tensors())
    file = folder(tmp_path, GPT2, gpt2_tensors()) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(SnapshotError, match="not a complete safetensors file"):
        from_hugging_face(tmp_path)
    file.write_bytes(b"\xff" * 12)
    with pytest.raises(SnapshotError, match="a header of"):
        from_hugging_face(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "llama", "llama tied", "llama 3"])
def test_logits_are_those_of_transformers(tmp_path, kind):
    torch = pytest.importorskip("torch", reason="pip install torch transformers")
    transformers = pytest.importorskip("transformers", reason="pip install torch transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=50, n_positions=32, n_embd=24, n_layer=3, n_head=4, initializer_range=0.2))
    else:
        rope = {"rope_theta": 500.0, "rope_type": "default"}
        if kind == "llama 3":
            rope |= dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
                         original_max_position_embeddings=16)
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            rope_parameters=rope, tie_word_embeddings=kind == "llama tied",
            initializer_range=0.2))
    theirs.eval().save_pretrained(tmp_path)
    ids = np.random.default_rng(0).integers(0, 50, (2, 32))
    with torch.no_grad():
        want = theirs(torch.from_numpy(ids)).logits.numpy()
    model = from_hugging_face(tmp_path)
    with minidl.no_grad():
        close(model(ids).array, want)
    step = infer.decoder(model, n_texts=2)
    for i, got in ((19, step.prefill(ids[:, :20])), (20, step.step(ids[:, 20]))):
        close(got, want[:, i])
