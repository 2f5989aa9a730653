"""How much memory decompression takes, and what happens if there is too little."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys

import lz4.frame
import pytest
import zstandard

from zkconsumer.broker.fetching import codecs
from zkconsumer.errors import InvalidMessageError

PACK = {1: gzip.compress, 3: lz4.frame.compress, 4: zstandard.ZstdCompressor().compress}

#: Decompresses standard input in a process that may use 128 MiB more than it does already.
LIMITED = """
import resource, sys
import lz4.frame, zstandard
from zkconsumer.broker.fetching.codecs import decompress
data = sys.stdin.buffer.read()
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (128 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    print(len(decompress(int(sys.argv[1]), data)))
except Exception as error:
    print(type(error).__name__)
"""


def in_little_memory(codec: int, data: bytes) -> str:
    """Return what decompression prints in a process with little address space."""
    run = subprocess.run(
        [sys.executable, "-c", LIMITED, str(codec)], input=data, capture_output=True, check=True
    )
    return run.stdout.decode().strip()


@pytest.mark.parametrize("codec", PACK)
def test_small_batches_need_little_address_space(codec: int) -> None:
    """A batch of a megabyte is read in a process that cannot reserve 512 MiB."""
    assert in_little_memory(codec, PACK[codec](os.urandom(1000) * 1000)) == "1000000"


@pytest.mark.parametrize("codec", PACK)
def test_lack_of_memory_is_not_called_damage(codec: int) -> None:
    """A valid batch that does not fit into memory raises MemoryError, because it is not damaged."""
    assert in_little_memory(codec, PACK[codec](bytes(256 << 20))) == "MemoryError"


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 65_537, 131_072, 3_000_000])
def test_any_size_unfolds(codec: int, size: int) -> None:
    """Sizes at and between the steps in which output is reserved, for good and bad compression."""
    for data in (bytes(size), os.urandom(size)):
        assert codecs.decompress(codec, PACK[codec](data)) == data


def test_zstd_frames_follow_each_other() -> None:
    """Several zstd frames in one batch are read as one."""
    frames = [os.urandom(100_000), b"", bytes(300_000)]
    packed = b"".join(map(PACK[4], frames))
    assert codecs.decompress(4, packed) == b"".join(frames)


@pytest.mark.parametrize("codec", [1, 3])
def test_data_that_ends_early_is_damage(codec: int) -> None:
    """Half a batch is damaged, however much output was reserved."""
    packed = PACK[codec](os.urandom(200_000))
    for length in (len(packed) // 2, len(packed) - 1):
        with pytest.raises(InvalidMessageError, match="ends early"):
            codecs.decompress(codec, packed[:length])


@pytest.mark.parametrize("codec", PACK)
def test_output_limit(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output of exactly the limit is read. One byte more is refused."""
    monkeypatch.setattr(codecs, "MAX_DECOMPRESSED", 1_000_000)
    assert len(codecs.decompress(codec, PACK[codec](bytes(1_000_000)))) == 1_000_000
    with pytest.raises(InvalidMessageError, match="more than 1000000"):
        codecs.decompress(codec, PACK[codec](bytes(1_000_001)))
