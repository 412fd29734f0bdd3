"""Reads every file of the newest complete checkpoints in a directory with the official safetensors package, and compares
digests and ranges with the manifest. Needs: pip install safetensors numpy xxhash. Usage: readback.py DIR..."""

import json
import os
import struct
import sys

import xxhash
from safetensors import safe_open


def check(step):
    with open(os.path.join(step, "manifest.json"), "rb") as file:
        whole = json.load(file)
    manifest = whole["manifest"]
    tensors = manifest["layout"]["tensors"]
    block_size = manifest["block_size"]
    rows = {tensor["name"]: 0 for tensor in tensors}
    size = 0
    for entry in manifest["files"]:
        path = os.path.join(step, entry["name"])
        with open(path, "rb") as file:
            data = file.read()
        assert len(data) == entry["size"], path
        size += len(data)
        # What the package sees is what lies in the file, at the offsets of its header.
        start = 8 + struct.unpack("<Q", data[:8])[0]
        assert start == entry["header_size"] and start % 4096 == 0, path
        header = json.loads(data[8:start])
        held = json.loads(header["__metadata__"]["transom"])
        expected = {tensors[part["tensor"]]["name"]: part["rows"] for part in entry["parts"]}
        with safe_open(path, framework="numpy") as opened:
            assert set(opened.keys()) == set(expected) == set(held), path
            assert opened.metadata() == header["__metadata__"], path
            for name, part in expected.items():
                begin, end = (start + offset for offset in header[name]["data_offsets"])
                of = next(tensor for tensor in tensors if tensor["name"] == name)
                shape = opened.get_slice(name).get_shape()
                assert held[name] == {"rows": [part["start"], part["end"]], "shape": of["shape"]}, path
                assert list(shape) == ([part["end"] - part["start"]] + of["shape"][1:] if of["shape"] else []), path
                assert opened.get_slice(name).get_dtype() == of["dtype"], path
                try:
                    array = opened.get_tensor(name)
                except TypeError:  # numpy has no such type
                    assert of["dtype"].startswith(("BF16", "F8", "F6", "F4")), path
                else:
                    assert array.tobytes() == data[begin:end], (path, name)
                rows[name] += part["end"] - part["start"]
        digests = [xxhash.xxh3_128_intdigest(data[:start])]
        digests += [xxhash.xxh3_128_intdigest(data[at : at + block_size]) for at in range(start, len(data), block_size)]
        assert ["%032x" % digest for digest in digests] == [entry["header"]] + entry["blocks"], path
        assert xxhash.xxh3_128_hexdigest(b"".join(digest.to_bytes(16, "little") for digest in digests)) == entry["digest"]
    for tensor in tensors:
        assert rows[tensor["name"]] == (tensor["shape"][0] if tensor["shape"] else 1), tensor
    print(f"{step}: {len(manifest['files'])} files, {len(tensors)} tensors, {size} bytes are as the manifest says")


def main():
    steps = 0
    for directory in sys.argv[1:]:
        for name in sorted(os.listdir(directory)):
            if name.startswith("step-") and os.path.exists(os.path.join(directory, name, "manifest.json")):
                check(os.path.join(directory, name))
                steps += 1
    assert steps, "no checkpoint was found"


main()
