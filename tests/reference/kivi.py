#!/usr/bin/env python3
"""What KIVI's authors' own quantizer makes of numbers, for tests/kvcache/kivi_parity_test.cc:

    tests/reference/make kivi.py KIVI/quant/new_pack.py tests/reference/kivi_tiny.json

The first argument is a file of their repository (jy-yuan/KIVI; the fixture is of commit
876b4d2d08e3b1d5f70d0969c299d8c7c42ddfb6, with torch 2.15.0). Its functions on tensors run, in half
precision as on a GPU; its Triton kernels do not. Numbers to quantize come from a generator that both
sides have, exact in half precision.
"""

import importlib.util
import json
import sys
import types

import torch

from kvquant import DIM, SLOTS, draw

GROUP = 32


def load(path):
    """The module; what it needs of Triton is there in name only."""
    triton = types.ModuleType("triton")
    triton.jit = lambda function: function
    triton.language = types.ModuleType("triton.language")
    triton.language.constexpr = int
    sys.modules.update({"triton": triton, "triton.language": triton.language})
    spec = importlib.util.spec_from_file_location("new_pack", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def numbers(tensor):
    return tensor.double().reshape(-1).tolist()


def main():
    kivi = load(sys.argv[1])
    _, keys, values = draw()
    tensor = lambda rows: torch.tensor(rows, dtype=torch.float16).reshape(1, 1, SLOTS, DIM)
    fixture = {}
    for bits in (4, 2):
        of_bits = fixture[str(bits)] = {}
        for name, quantize, unpack, rows in (
            ("keys", kivi.quant_and_pack_kcache, kivi.unpack_and_dequant_kcache, keys),
            ("values", kivi.quant_and_pack_vcache, kivi.unpack_and_dequant_vcache, values),
        ):
            code, scale, minimum = quantize(tensor(rows), GROUP, bits)
            codes = kivi.unpack_tensor(code, bits, pack_dim=2 if name == "keys" else 3)
            of_bits[name] = {
                "codes": "".join(f"{int(each):x}" for each in codes.reshape(-1)),  # by slot
                "scales": numbers(scale),
                "minima": numbers(minimum),
                "read": numbers(unpack(code, scale, minimum, GROUP, bits)),
            }
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(fixture, file, separators=(",", ":"))
        file.write("\n")


if __name__ == "__main__":
    main()
