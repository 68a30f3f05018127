"""Moves data between GPUs, in a process that may hang: `python -m kdtree_verify.doctor.peers_child`

copies DEVICE COUNT              from each of COUNT devices to each other; compared
reduce BACKEND RANK COUNT STORE  one rank of an all-reduce by torch.distributed, met at the file STORE; compared
"""

from __future__ import annotations

import sys
import time
from itertools import permutations

import torch
import torch.distributed

SIZE = 4 << 20  # float32: 16 MiB
ROUNDS = 20


def copies(kind: str, count: int) -> str:
    devices = [torch.device(kind, index) if kind == "cuda" else torch.device(kind) for index in range(count)]
    direct = 0
    for source, target in permutations(range(count), 2):
        sent = torch.arange(SIZE, dtype=torch.float32, device=devices[source]) + source
        arrived = sent.to(devices[target], copy=True).cpu()
        if not torch.equal(arrived, torch.arange(SIZE, dtype=torch.float32) + source):
            sys.exit(f"what {devices[source]} sent is not what {devices[target]} has")
        direct += kind == "cuda" and torch.cuda.can_device_access_peer(source, target)
    pairs = count * (count - 1)
    return f"copies between {count} GPUs arrive as sent; {direct} of {pairs} pairs directly (P2P)"


def reduce(backend: str, rank: int, count: int, store: str) -> str:
    device = torch.device("cuda", rank) if backend == "nccl" else torch.device("cpu")
    if backend == "nccl":
        torch.cuda.set_device(device)
    torch.distributed.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=count)
    expected = float(count * (count + 1) // 2)
    began = time.perf_counter()
    for turn in range(ROUNDS):
        if turn == 1:  # the first connects
            began = time.perf_counter()
        values = torch.full((SIZE,), rank + 1.0, device=device)
        torch.distributed.all_reduce(values)
        if not bool((values == expected).all()):
            sys.exit(f"rank {rank}: the sum over {count} ranks is not {expected:g} everywhere")
    seconds = (time.perf_counter() - began) / (ROUNDS - 1)
    torch.distributed.destroy_process_group()
    return f"{backend} adds up over {count} ranks: {values.nbytes >> 20} MiB in {seconds * 1e3:.2f} ms"


def main(arguments: list[str]) -> None:
    if arguments[0] == "copies":
        print(copies(arguments[1], int(arguments[2])))
    else:
        print(reduce(arguments[1], int(arguments[2]), int(arguments[3]), arguments[4]))


if __name__ == "__main__":
    main(sys.argv[1:])
