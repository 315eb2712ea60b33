"""Makes the fixtures that our token scorers are compared with, from kvpress's own presses.

    tests/reference/make kvpress_scores.py "$(scripts/get-model smollm2-135m)"

writes kvpress_tiny.json: scores and kept positions on tiny random models, the same that
tests/support/tiny_gguf.cc writes from the same seeds; and kvpress_real.json: kept positions of a
prompt on SmolLM2-135M. Not part of any build or test run.
"""

import json
import pathlib
import sys

import gguf
import kvpress
import numpy as np
import torch
import transformers
from kvpress.presses import kvzip_press
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

HERE = pathlib.Path(__file__).resolve().parent
KEEP = 0.5
POSITIONS = 100
CHUNK = 40  # of KVzip
VOCABULARY = 320

SHAPE = dict(layers=2, heads=4, kv_heads=2, head_dim=32, embedding=64, feed_forward=64)


class LibstdcxxNormal:
    """std::normal_distribution<float> over one std::mt19937, anew for each array of numbers."""

    def __init__(self, seed):
        self.random = np.random.RandomState(seed)
        self.draws = np.empty(0, np.uint32)

    def __call__(self, count, mean, deviation):
        pairs = (count + 1) // 2
        while True:
            u = self.draws.astype(np.float32) / np.float32(2.0**32)
            u = np.minimum(u, np.nextafter(np.float32(1), np.float32(0)))
            u = (np.float32(2) * u - np.float32(1)).reshape(-1, 2)
            square = u[:, 0] * u[:, 0] + u[:, 1] * u[:, 1]
            used = np.flatnonzero((square <= 1) & (square != 0))
            if len(used) >= pairs:
                break
            more = self.random.randint(0, 2**32, size=4096, dtype=np.uint32)
            self.draws = np.concatenate([self.draws, more])
        used = used[:pairs]
        self.draws = self.draws[2 * (used[-1] + 1) :]
        factor = np.sqrt(np.float32(-2) * np.log(square[used]) / square[used])
        numbers = np.stack([u[used, 1] * factor, u[used, 0] * factor], axis=1).reshape(-1)[:count]
        return numbers * np.float32(deviation) + np.float32(mean)


def tiny_model(architecture, seed=1):
    """The model of TinyModel{.architecture, SHAPE, .seed}, as WriteTinyGguf makes it."""
    normal = LibstdcxxNormal(seed)
    s = SHAPE
    width = s["embedding"]
    query = s["heads"] * s["head_dim"]
    key = s["kv_heads"] * s["head_dim"]
    sharp, mixing = 1.8, 1.5

    def matrix(inputs, outputs, deviation):
        return normal(inputs * outputs, 0.0, deviation).reshape(outputs, inputs)

    def unit(inputs):
        return 1.0 / np.sqrt(np.float32(inputs))

    def turned(rows, heads):
        """ggml's llama rotates channels (2i, 2i + 1), transformers (i, i + half)."""
        if architecture != "llama":
            return rows
        pairs = rows.reshape(heads, s["head_dim"] // 2, 2, -1)
        return pairs.transpose(0, 2, 1, 3).reshape(rows.shape)

    state = {"model.embed_tokens.weight": matrix(width, VOCABULARY, 1.0)}
    state["model.norm.weight"] = normal(width, 1.0, 0.1)
    state["lm_head.weight"] = matrix(width, VOCABULARY, 3.0 * unit(width))
    for i in range(s["layers"]):
        at = f"model.layers.{i}."
        attention = at + "self_attn."
        state[at + "input_layernorm.weight"] = normal(width, 1.0, 0.1)
        state[attention + "q_proj.weight"] = turned(matrix(width, query, sharp * unit(width)), s["heads"])
        state[attention + "k_proj.weight"] = turned(matrix(width, key, sharp * unit(width)), s["kv_heads"])
        state[attention + "v_proj.weight"] = matrix(width, key, unit(width))
        state[attention + "o_proj.weight"] = matrix(query, width, mixing * unit(query))
        if architecture == "qwen2":
            state[attention + "q_proj.bias"] = normal(query, 0.0, 0.3)
            state[attention + "k_proj.bias"] = normal(key, 0.0, 0.3)
            state[attention + "v_proj.bias"] = normal(key, 0.0, 0.3)
        state[at + "post_attention_layernorm.weight"] = normal(width, 1.0, 0.1)
        state[at + "mlp.gate_proj.weight"] = matrix(width, s["feed_forward"], mixing * unit(width))
        state[at + "mlp.up_proj.weight"] = matrix(width, s["feed_forward"], unit(width))
        state[at + "mlp.down_proj.weight"] = matrix(
            s["feed_forward"], width, mixing * unit(s["feed_forward"])
        )
    kinds = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
    }
    config_type, model_type = kinds[architecture]
    config = config_type(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=s["feed_forward"],
        num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"],
        num_key_value_heads=s["kv_heads"],
        head_dim=s["head_dim"],
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        rope_theta=10000.0,
        tie_word_embeddings=False,
    )
    model = model_type(config).eval()
    model.load_state_dict({name: torch.tensor(np.ascontiguousarray(x)) for name, x in state.items()})
    return model


def random_tokens(count, seed):
    """RandomTokens of tests/support/engine_runs.cc."""
    return np.random.RandomState(seed).randint(0, 2**32, size=count, dtype=np.uint32) % VOCABULARY


def recorded(press, model, tokens, attention="sdpa"):
    """The press's scores, [layer][kv_head][position], while it compresses the prompt."""
    scores = []
    inner = press.score

    def score(module, hidden_states, keys, values, attentions, kwargs):
        result = inner(module, hidden_states, keys, values, attentions, kwargs)
        scores.append(result[0].float().numpy())
        return result

    press.score = score
    model.set_attn_implementation(attention)
    with torch.no_grad(), press(model):
        model(torch.tensor(tokens[None].astype(np.int64)), past_key_values=DynamicCache())
    return np.stack(scores)


def kept(scores, count):
    best = torch.tensor(scores).topk(count, dim=-1).indices
    return best.sort(dim=-1).values.tolist()


class CharacterTokenizer:
    """Tokens are the characters, as the test has them; no chat template."""

    chat_template = None

    @classmethod
    def from_pretrained(cls, _):
        return cls()

    def encode(self, text, return_tensors, add_special_tokens):
        return torch.tensor([[ord(c) % VOCABULARY for c in text]], dtype=torch.int64)


def repeated(model, tokens, keep, chunk):
    """KVzip's scores, [layer][kv_head][position]."""
    press = kvpress.KVzipPress(1 - keep, chunk_size=chunk)
    scores = []

    def compress_post(_):
        press.score_val[..., : press.n_sink] = press.score_val.amax() + 1.0  # as the original does
        scores.append(press.score_val[:, 0].float().numpy())

    press.compress_post = compress_post
    kvzip_press.AutoTokenizer = CharacterTokenizer
    model.set_attn_implementation("sdpa")
    with torch.no_grad(), press(model):
        model(torch.tensor(tokens[None].astype(np.int64)), past_key_values=DynamicCache())
    return scores[0]


def presses(keep):
    dropped = 1 - keep
    yield "streamingllm", kvpress.StreamingLLMPress(dropped), "sdpa"
    yield "snapkv", kvpress.SnapKVPress(dropped, window_size=32, kernel_size=5), "sdpa"
    yield "expectedattention", kvpress.ExpectedAttentionPress(dropped), "sdpa"
    yield "observedattention", kvpress.ObservedAttentionPress(dropped), "eager"


def tiny():
    cases = []
    for architecture in ("llama", "qwen2"):
        model = tiny_model(architecture)
        tokens = random_tokens(POSITIONS, seed=5)
        given = [(n, recorded(press, model, tokens, a)) for n, press, a in presses(KEEP)]
        given.append(("kvzip", repeated(model, tokens, KEEP, CHUNK)))
        for name, scores in given:
            rounded = [[[float(f"{x:.7g}") for x in head] for head in layer] for layer in scores]
            cases.append(
                dict(
                    architecture=architecture,
                    method=name,
                    scores=rounded,
                    kept=kept(scores, int(POSITIONS * KEEP)),
                )
            )
    return cases


def real(path, text):
    """Kept positions on a real model, of some layers."""
    folder, name = str(path.parent), path.name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    tokens = np.array(tokenizer.encode(text.read_text())[:400])
    keep = 0.25
    layers = [0, 7, 15, 22, 29]
    cases = []
    for name, press, attention in presses(keep):
        scores = recorded(press, model, tokens, attention)[layers]
        cases.append(dict(method=name, kept=kept(scores, int(len(tokens) * keep))))
    return dict(tokens=tokens.tolist(), layers=layers, keep=keep, cases=cases)


def main():
    versions = {m.__name__: m.__version__ for m in (torch, transformers, np)}
    versions["kvpress"] = "0.5.5"
    tokens = random_tokens(POSITIONS, seed=5).tolist()
    fixture = dict(versions=versions, tokens=tokens, keep=KEEP, chunk=CHUNK, cases=tiny())
    (HERE / "kvpress_tiny.json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")
    if len(sys.argv) > 1:
        text = HERE.parent / "data" / "code.txt"
        fixture = dict(versions=versions, **real(pathlib.Path(sys.argv[1]), text))
        (HERE / "kvpress_real.json").write_text(json.dumps(fixture, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
