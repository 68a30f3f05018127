"""What a measurement holds for: everything that, if it were another, would make it a measurement of something else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Setup:
    """One model, served by one stack on one kind of card. None where it is not known.

    Attributes:
        model: The target model's path or name, as the server was given it.
        kdtree_verify, sglang, torch, cuda: Versions.
        library, sources: sha256 of the kernel library and of the sources that it was built from.
        library_kind: "cuda", or "host".
        device, compute_capability: The card; "cpu" and None for the host library.
        tp_size, pp_size, dp_size: How the server is spread over ranks.
        heads: Query heads of one rank.
        draft_tokens: Tokens of one request in a verify call.
        pool_dtype: The KV cache's; None until a call was seen.
    """

    model: str | None
    kdtree_verify: str | None
    sglang: str | None
    torch: str | None
    cuda: str | None
    library: str | None
    sources: str | None
    library_kind: str | None
    device: str | None
    compute_capability: str | None
    tp_size: int | None
    pp_size: int | None
    dp_size: int | None
    heads: int | None
    draft_tokens: int | None
    pool_dtype: str | None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def differences(self, other: Setup) -> list[str]:
        """Names of what is another there. A pool of which no call was seen yet is none of another dtype."""
        return [
            field.name
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
            and not (field.name == "pool_dtype" and None in (self.pool_dtype, other.pool_dtype))
        ]


def of_rank(document: Mapping[str, Any], model: str | None, sizes: Mapping[str, int | None]) -> Setup:
    """The setup of a rank.

    Args:
        document: Its document (report.document).
        model: The model's path.
        sizes: tp_size, pp_size and dp_size.
    """
    versions, library, device = (document.get(name) or {} for name in ("versions", "library", "device"))
    return Setup(
        model=model,
        kdtree_verify=versions.get("kdtree_verify"),
        sglang=versions.get("sglang"),
        torch=versions.get("torch"),
        cuda=versions.get("cuda"),
        library=library.get("sha256"),
        sources=library.get("source_hash"),
        library_kind=library.get("kind"),
        device=device.get("name") or device.get("kind"),
        compute_capability=device.get("compute_capability"),
        tp_size=sizes.get("tp_size"),
        pp_size=sizes.get("pp_size"),
        dp_size=sizes.get("dp_size"),
        heads=document.get("heads"),
        draft_tokens=document.get("draft_tokens"),
        pool_dtype=document.get("pool_dtype"),
    )
