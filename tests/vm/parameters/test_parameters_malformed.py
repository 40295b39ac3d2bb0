"""Damaged parameter files: every one is read or refused with a typed error that names the place."""

import time
import tracemalloc

import pytest
import safetensors
from parameter_samples import HEADER_LENGTHS, SAMPLES, mutate

from sylvite.errors import FormatError
from sylvite.vm.parameters import FileRange, ParameterFile
from sylvite.vm.parameters.open import FORMATS

QUICK, SLOW = 150, 4000
MEMORY_BYTES = 8 << 20
SECONDS = 0.5


def check_refusal(error, byte_length):
    """A refusal names the file and an offset in it (or just behind: the header it should have had)."""
    assert error.where == "damaged", error
    assert error.offset is not None, error
    assert 0 <= error.offset <= byte_length + 8, error
    return error


def read_everything(data, kind):
    """Index a file and look at every byte of every parameter; the keys, or the refusal."""
    try:
        index = FORMATS[f".{kind}"](ParameterFile(data, name="damaged"))
    except FormatError as refusal:
        return check_refusal(refusal, len(data))
    for entry in index.values():
        if isinstance(entry.storage, FileRange):
            assert len(bytes(entry.view())) == entry.byte_length
        else:
            assert len(entry.read(0, min(entry.byte_length, 64))) == min(entry.byte_length, 64)
    return {key: entry.byte_length for key, entry in index.items()}


def judge(kind, seeds):
    refused = 0
    for seed in seeds:
        data = mutate(SAMPLES[kind], seed, HEADER_LENGTHS[kind])
        begin = time.perf_counter()
        outcome = read_everything(data, kind)
        assert time.perf_counter() - begin < SECONDS, (kind, seed)
        refused += isinstance(outcome, FormatError)
    return refused


@pytest.mark.parametrize("kind", SAMPLES)
def test_mutated_file_is_read_or_refused(kind):
    refused = judge(kind, range(QUICK))
    assert refused > QUICK // 4, "mutations too weak to mean anything"


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAMPLES)
def test_many_mutated_files_are_read_or_refused(kind):
    tracemalloc.start()
    try:
        judge(kind, range(QUICK, QUICK + SLOW))
        assert tracemalloc.get_traced_memory()[1] < MEMORY_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", SAMPLES)
def test_file_cut_anywhere_in_its_header_is_refused(kind):
    data = SAMPLES[kind]
    # An archive's padding at the end may be missing, nothing else.
    needed = len(data.rstrip(b"\0")) if kind == "irpa" else len(data)
    for length in [*range(min(HEADER_LENGTHS[kind], needed)), needed - 1]:
        outcome = read_everything(data[:length], kind)
        assert isinstance(outcome, FormatError), length


def library_verdict(data):
    try:
        return {name: len(info["data"]) for name, info in safetensors.deserialize(data)}
    except safetensors.SafetensorError as error:
        return error


def compare_with_library(seeds):
    for seed in seeds:
        data = mutate(SAMPLES["safetensors"], seed, HEADER_LENGTHS["safetensors"])
        ours, theirs = read_everything(data, "safetensors"), library_verdict(data)
        if isinstance(ours, dict) or isinstance(theirs, dict):
            assert ours == theirs, seed


def test_safetensors_library_gives_the_same_verdict_on_mutations():
    compare_with_library(range(QUICK))


@pytest.mark.slow
def test_safetensors_library_gives_the_same_verdict_on_many_mutations():
    compare_with_library(range(QUICK, QUICK + SLOW))
