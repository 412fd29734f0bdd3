"""Makes digits.safetensors from scikit-learn's copy: python make.py (needs numpy, safetensors and scikit-learn)."""

from importlib.resources import files
import gzip
import pathlib

import numpy
from safetensors.numpy import save_file

csv = gzip.decompress(files("sklearn.datasets").joinpath("data", "digits.csv.gz").read_bytes())
table = numpy.loadtxt(csv.decode().splitlines(), delimiter=",").astype(numpy.uint8)
tensors = {"images": table[:, :64].reshape(-1, 8, 8).copy(), "labels": table[:, 64].copy()}
metadata = {
    "title": "Optical Recognition of Handwritten Digits, test set",
    "creators": "E. Alpaydin, C. Kaynak",
    "source": "https://doi.org/10.24432/C50P49",
    "license": "CC-BY-4.0",
}
save_file(tensors, pathlib.Path(__file__).with_name("digits.safetensors"), metadata)
