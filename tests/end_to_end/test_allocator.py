"""Ranks keep the memory that they free, in every kind of container. Other allocators than glibc's do not change."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import apptainer
from support.images import ThinImage
from support.sandbox_fixture import Pyxis
from support.scenario import Stage

from clusterctl.launcher.submission.plan import STEADY_HEAP, TUNED_ALLOCATOR

pytestmark = pytest.mark.long  # the scripts themselves: submission/test_script.py

PROGRAM = """
import ctypes
libc = ctypes.CDLL(None)
fields = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
libc.mallinfo.restype = type("Info", (ctypes.Structure,), {"_fields_": [(f, ctypes.c_int) for f in fields.split()]})
libc.malloc(ctypes.c_size_t(100 << 20))
print("mapped" if libc.mallinfo().hblks else "kept")
"""
# Steps with aligned blocks of varying sizes, and small ones between; prints the MiB of the heap after 10 and after 200.
STEPS = """
import ctypes, random
libc, size, pointer = ctypes.CDLL(None), ctypes.c_size_t, ctypes.c_void_p
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = pointer, [size], [pointer]
libc.mallinfo2.restype = type("Info", (ctypes.Structure,), {"_fields_": [(f"f{n}", size) for n in range(10)]})
def aligned(bytes):
    place = pointer()
    libc.posix_memalign(ctypes.byref(place), size(64), size(bytes))
    return place
random.seed(0)
for step in range(200):
    tensors, small = [], []
    for _ in range(20):
        tensors.append(aligned(random.randint(1_300_000, 1_500_000)))
        small += [pointer(libc.malloc(random.randint(16, 900))) for _ in range(20)]
        if len(tensors) > 8 and random.random() < 0.5:
            libc.free(tensors.pop(random.randrange(len(tensors))))
            libc.free(small.pop(random.randrange(len(small))))
    for one in small + tensors:
        libc.free(one)
    if step in (9, 199):
        print(libc.mallinfo2().f0 >> 20)
"""
JEMALLOC = next(map(str, Path("/usr/lib").glob("*/libjemalloc.so.2")), "")
SYSTEM = 'allocator = "system"\n'
OWN = '[env]\nMALLOC_MMAP_MAX_ = "65536"\n'
# Fills 8 blocks of 40 MiB in turn; prints its peak of memory in MiB, and the number of pages that the kernel gave it.
BLOCKS = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
int main(void) {
    for (int i = 0; i < 8; i++) {
        char *block = malloc(40 << 20);
        memset(block, 1, 40 << 20);
        free(block);
    }
    long peak = 0;  /* getrusage's includes the process before exec */
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        sscanf(line, "VmHWM: %ld", &peak);
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%ld %ld\\n", peak >> 10, used.ru_minflt);
}
"""


def job(stage: Stage, resources: str = "", tables: str = "") -> str:
    text = f'workload = "command"\nargv = ["python", "-c", {json.dumps(PROGRAM)}]\n'
    return stage.write_job("memory", f"{text}[resources]\nnodes = 1\n{resources}{tables}")


def site(stage: Stage, runtime: str, **keys: object) -> None:
    """Use a cluster with this container runtime."""
    kind = {"local": "emulator"}.get(stage.cluster, stage.cluster)
    lines = [
        f'kind = "{kind}"',
        f'container_runtime = "{runtime}"',
        *(f"{k} = {json.dumps(v)}" for k, v in keys.items()),
    ]
    (stage.folder / "cluster").mkdir()
    (stage.folder / "cluster" / "site.toml").write_text("\n".join(lines))
    stage.cluster = "site"


def assert_tuned_unless_refused(stage: Stage, tables: str = "") -> None:
    for resources, more, expected in (("", "", "kept"), (SYSTEM, "", "mapped"), ("", OWN, "mapped")):
        run = stage.submit(job(stage, resources, tables + more), "--wait")
        assert stage.log(run, 0).splitlines()[-1].endswith(expected)


def test_outside_of_containers(stage: Stage) -> None:
    assert_tuned_unless_refused(stage)


def test_in_an_image(stage: Stage, thin_image: ThinImage) -> None:
    assert_tuned_unless_refused(stage, thin_image.table)


def test_in_an_image_under_apptainer(stage: Stage, thin_image: ThinImage, tmp_path: Path) -> None:
    folder = apptainer.install(tmp_path / "apptainer")
    site(stage, "apptainer", setup=[f'export PATH="{folder}:$PATH"'])
    assert_tuned_unless_refused(stage, thin_image.table)


@pytest.mark.parametrize("back_end", ["sandbox"], indirect=True)
def test_in_an_image_under_pyxis(stage: Stage, pyxis: Pyxis, thin_image: ThinImage) -> None:
    stage.environment["PATH"] = f"{pyxis.programs}:{stage.environment['PATH']}"
    site(stage, "pyxis", polling_floor="1s")
    assert_tuned_unless_refused(stage, thin_image.table)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("blocks") / "blocks.c"
    path.write_text(BLOCKS)
    return path


def pages(program: Path, **variables: str) -> int:
    """How many pages the kernel gives the program; its peak of memory is that of one block."""
    plain = {name: value for name, value in os.environ.items() if name not in TUNED_ALLOCATOR}
    done = subprocess.run([program], env=plain | variables, capture_output=True, text=True, check=True)
    peak, count = map(int, done.stdout.split())
    assert 36 <= peak < 60  # the kernel counts in batches on each CPU, so it may be behind
    return count


def test_a_program_on_glibc_reuses_its_pages(source: Path) -> None:
    subprocess.run(["gcc", "-O0", source, "-o", source.with_name("glibc")], check=True)
    program = source.with_name("glibc")
    assert pages(program, **TUNED_ALLOCATOR) < pages(program) / 4


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="no glibc from 2.33 on")
def test_small_blocks_do_not_make_the_heap_of_a_training_grow() -> None:
    def heap(**variables: str) -> list[int]:
        words = [sys.executable, "-I", "-S", "-c", STEPS]
        done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True, check=True)
        return [int(line) for line in done.stdout.split()]

    (early, late), (_, of_program) = heap(**TUNED_ALLOCATOR | STEADY_HEAP), heap(**TUNED_ALLOCATOR)
    assert late < 1.25 * early
    if os.confstr("CS_GNU_LIBC_VERSION") < "glibc 2.38":  # newer ones reuse aligned blocks by themselves
        assert late < 0.8 * of_program


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="no musl-gcc; as root: tests/install.sh allocators")
def test_a_program_on_musl_is_left_alone(source: Path) -> None:
    program = source.with_name("musl")
    subprocess.run(["musl-gcc", "-static", "-O0", source, "-o", program], check=True)
    assert pages(program, **TUNED_ALLOCATOR) == pytest.approx(pages(program), rel=0.02)


@pytest.mark.skipif(not JEMALLOC, reason="no jemalloc; as root: tests/install.sh allocators")
def test_a_program_with_another_allocator_is_left_alone(source: Path) -> None:
    program = source.with_name("preloaded")
    subprocess.run(["gcc", "-O0", source, "-o", program], check=True)
    alone, tuned = pages(program, LD_PRELOAD=JEMALLOC), pages(program, LD_PRELOAD=JEMALLOC, **TUNED_ALLOCATOR)
    assert tuned == pytest.approx(alone, rel=0.02)
