#!/usr/bin/env python3
"""Writes the corpus of the fuzz targets: small files that must load (good_*) and hostile ones that must be refused (bad_*).
Independent of the engine's own writers. Run it in this folder after changing it; the files are kept in the repository."""
import json
import pathlib
import struct

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
T_F32, T_Q4_0, T_Q8_0, T_I8, T_BF16 = 0, 2, 8, 24, 30


def s(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def kv(key, kind, payload):
    return s(key) + struct.pack("<I", kind) + payload


def arr(kind, count, payload):
    return struct.pack("<IQ", kind, count) + payload


def gguf(entries, tensors, version=3, align=32, n_tensors=None, n_entries=None, magic=b"GGUF", cut=None):
    """tensors: (name, ne, type, data) or (name, ne, type, data, offset)"""
    out = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors,
                              len(entries) if n_entries is None else n_entries)
    out += b"".join(entries)
    data = b""
    for name, ne, kind, payload, *offset in tensors:
        data += bytes(-len(data) % align)
        out += s(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", d) for d in ne)
        out += struct.pack("<IQ", kind, offset[0] if offset else len(data))
        data += payload
    out += bytes(-len(out) % align) + data
    return out[:cut]


ARCH = kv("general.architecture", STRING, s("qwen3moe"))
ONE = ("token_embd.weight", [4, 3], T_F32, struct.pack("<12f", *range(12)))
EXPS = ("blk.0.ffn_up_exps.weight", [32, 2, 2], T_Q8_0, bytes(range(136)))
TYPES = [
    kv("u8", U8, b"\xc8"), kv("i8", I8, b"\x9c"), kv("u16", U16, b"\x60\xea"), kv("i16", I16, b"\xd0\x8a"),
    kv("u32", U32, b"\0\x28\x6b\xee"), kv("i32", I32, b"\0\x6c\xca\x88"), kv("f32", F32, struct.pack("<f", 0.1)), kv("bool", BOOL, b"\1"),
    kv("str", STRING, s("text")), kv("u64", U64, b"\xff" * 8), kv("i64", I64, b"\xff" * 8), kv("f64", F64, struct.pack("<d", 0.1)),
    kv("a_u8", ARRAY, arr(U8, 2, b"\1\xff")), kv("a_i16", ARRAY, arr(I16, 1, b"\xf9\xff")), kv("a_f32", ARRAY, arr(F32, 2, bytes(8))),
    kv("a_bool", ARRAY, arr(BOOL, 2, b"\0\1")), kv("a_str", ARRAY, arr(STRING, 3, s("a") + s("") + s("bc"))), kv("a_u64", ARRAY, arr(U64, 1, bytes(8))),
    kv("a_none", ARRAY, arr(STRING, 0, b"")),
]


def alignment(kind, payload):
    return gguf([kv("general.alignment", kind, payload)], [ONE])


def cat_joined():
    first = gguf([ARCH, kv("split.no", U16, b"\0\0"), kv("split.count", U16, b"\2\0")], [EXPS])
    return first + bytes(-len(first) % 32) + gguf([], [ONE])


GGUF = {
    "good_small": gguf([ARCH], [ONE, EXPS]),
    "good_types": gguf(TYPES, []),
    "good_v2": gguf([ARCH], [ONE], version=2),
    "good_alignment_64": gguf([kv("general.alignment", U32, struct.pack("<I", 64))], [ONE, EXPS], align=64),
    "good_split": gguf([kv("split.no", U16, b"\0\0"), kv("split.count", U16, b"\3\0"), kv("split.tensors.count", I32, bytes(4))], [EXPS]),
    "good_scalar": gguf([], [("scalar", [], T_F32, bytes(4)), ("four", [2, 1, 1, 2], T_BF16, bytes(8))]),
    "bad_a1_zero_dimension": gguf([], [("t", [4, 0], T_F32, b"")]),
    "bad_a3_dimension_overflow": gguf([ARCH], [("t", [(1 << 42) + 1, 1 << 42], T_F32, bytes(64))]),
    "bad_a3_bytes_overflow": gguf([ARCH], [("t", [1 << 62], T_F32, bytes(64))]),
    "bad_a4_tensor_count": gguf([ARCH], [ONE], n_tensors=(2**64 - 1) // 200),
    "bad_a4_entry_count": gguf([ARCH], [ONE], n_entries=2**64 - 1),
    "bad_a4_summed_sizes": gguf([], [("a", [1 << 62], T_I8, bytes(32), 0), ("b", [1 << 62], T_I8, bytes(32), 1 << 62)]),
    "bad_a6_empty_key": gguf([kv("", U32, bytes(4))], []),
    "bad_a7_alignment_0": alignment(U32, bytes(4)),
    "bad_a7_alignment_24": alignment(U32, struct.pack("<I", 24)),
    "bad_a7_alignment_negative": alignment(I32, struct.pack("<i", -32)),
    "bad_a7_alignment_string": alignment(STRING, s("32")),
    "bad_a9_string_length": gguf([kv("k", STRING, struct.pack("<Q", 1 << 40) + b"abc")], []),
    "bad_a9_array_length": gguf([kv("k", ARRAY, arr(STRING, 1 << 40, s("abc")))], []),
    "bad_a9_array_wraps": gguf([kv("k", ARRAY, arr(U64, (1 << 61) + 1, bytes(8)))], []),
    "bad_a10_cut_data": gguf([ARCH], [ONE, EXPS], cut=-1),
    "bad_a10_cut_table": gguf([ARCH], [ONE, EXPS], cut=100),
    "bad_a15_cat_joined": cat_joined(),
    "bad_type": gguf([], [("t", [256], 16, bytes(256))]),
    "bad_big_endian": gguf([ARCH], [ONE], version=0x03000000),
    "bad_version_1": gguf([ARCH], [ONE], version=1),
    "bad_nested_array": gguf([kv("k", ARRAY, arr(ARRAY, 1, arr(U8, 0, b"")))], []),
    "bad_overlap": gguf([], [("a", [16], T_F32, bytes(64), 0), ("b", [8], T_F32, bytes(32), 32)]),
    "bad_offset_wraps": gguf([], [("t", [8], T_F32, bytes(32), 2**64 - 32)]),
    "bad_duplicate": gguf([], [ONE, ONE]),
    "bad_empty": b"",
}


def st(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def t(begin, end, shape, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


SAFETENSORS = {
    "good_small": st({"__metadata__": {"format": "pt"}, "a": t(0, 16, [2, 2]), "b": t(16, 22, [3], "BF16")}, bytes(22)),
    "good_unordered": st({"z": t(16, 24, [2]), "empty": t(16, 16, [0, 3]), "a": t(0, 16, [4])}, bytes(24)),
    "good_fp8": st({"w": t(0, 4, [2, 2], "F8_E4M3"), "w_scale_inv": t(4, 8, [1, 1]), "s": t(8, 10, [2], "F8_E8M0")}, bytes(10)),
    "good_none": st(b"{}      "),
    "good_scalar": st({"s": t(0, 8, [], "I64")}, bytes(8)),
    "bad_b1_length_0": st({}, bytes(8), length=0),
    "bad_b1_length_past_file": st({}, bytes(8), length=99_000_000),
    "bad_b1_length_max": st({}, bytes(8), length=2**64 - 1),
    "bad_b3_overlap": st({"a": t(0, 16, [4]), "b": t(12, 28, [4])}, bytes(28)),
    "bad_b3_hole": st({"a": t(0, 16, [4]), "b": t(20, 36, [4])}, bytes(36)),
    "bad_b3_hole_at_end": st({"a": t(0, 16, [4])}, bytes(20)),
    "bad_b3_duplicate": st(b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', bytes(8)),
    "bad_cut": st({"a": t(0, 16, [4])}, bytes(15)),
    "bad_overflow": st({"a": t(0, 0, [1 << 32, 1 << 32])}),
    "bad_offsets": st({"a": t(2**64 - 16, 2**64 - 1, [4])}, bytes(16)),
    "bad_deep": st(b'{"a":' + b"[" * 500),
    "bad_utf8": st(b'{"\xff":{}}'),
    "bad_lfs_pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
    "bad_dtype": st({"a": t(0, 4, [1], "F4")}, bytes(4)),
    "bad_empty": b"",
}

here = pathlib.Path(__file__).parent
for folder, files in (("gguf", GGUF), ("safetensors", SAFETENSORS)):
    out = here / "corpus" / folder
    out.mkdir(parents=True, exist_ok=True)
    for old in out.iterdir():
        old.unlink()
    for name, data in files.items():
        (out / f"{name}.{folder}").write_bytes(data)
