"""The mended interpreter computes bf16 and fp8 as torch does; in a process of its own, since the
interpreter is chosen when a kernel is decorated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHIM = Path(__file__).parents[2] / "docker" / "standin" / "shim" / "src"

PROGRAM = """
import torch, triton, triton.language as tl
from kdtree_cpu_shim import triton_interpreter
triton_interpreter.install()
triton_interpreter.install()

@triton.jit
def dot(a, b, out, N: tl.constexpr):
    i, j = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    tl.store(out + i * N + j, tl.dot(tl.load(a + i * N + j), tl.load(b + i * N + j)))

@triton.jit
def cast(a, out, N: tl.constexpr, M: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(a + i).to(tl.float32).to(out.dtype.element_ty))

@triton.jit
def narrow_math(a, b, out, N: tl.constexpr):
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(out + i, tl.where(x > y, x * y, -x + y))

@triton.jit
def to_int(a, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.load(a + i).to(tl.int32))

torch.manual_seed(0)
N = 64
for dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
    a, b = (torch.randn(N, N).to(dtype) for _ in range(2))
    out = torch.empty(N, N)
    dot[(1,)](a, b, out, N)
    torch.testing.assert_close(out, a.float() @ b.float(), rtol=1e-5, atol=1e-5)

    edge = torch.tensor([0.0, -0.0, 1e-6, 0.3, 1.00390625, 1.01171875, 3e4, -7e4, float("inf"), float("nan")])
    values = torch.cat([edge, torch.randn(4096 - len(edge)) * 100])
    out = torch.empty(4096, dtype=dtype)
    cast[(1,)](values, out, 4096, 0)
    limit = torch.finfo(dtype).max if dtype != torch.bfloat16 else float("inf")
    want = values.clamp(-limit, limit).to(dtype)
    torch.testing.assert_close(out.float(), want.float(), rtol=0, atol=0, equal_nan=True)
    back = torch.empty(4096)
    cast[(1,)](out, back, 4096, 0)
    torch.testing.assert_close(back, want.float(), rtol=0, atol=0, equal_nan=True)

a, b = (torch.randn(256).bfloat16() for _ in range(2))
out = torch.empty(256, dtype=torch.bfloat16)
narrow_math[(1,)](a, b, out, 256)
torch.testing.assert_close(out, torch.where(a > b, a * b, -a + b), rtol=0, atol=0)
whole = torch.empty(256, dtype=torch.int32)
to_int[(1,)](a * 8, whole, 256)
assert torch.equal(whole, (a * 8).int())
"""


def test_narrow_types_compute_as_torch_does(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)  # triton reads a kernel's source from its file
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(SHIM)}
    done = subprocess.run(
        [sys.executable, str(program)], check=False, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
