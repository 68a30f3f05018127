"""What this process is to the server, decided as SGLang constructs its parts; every refusal ends the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

import torch

from .. import contract, metrics, selftest
from ..config import Config, Mode
from ..errors import ContractError, DeviceError, KdtreeError, WorkspaceError, end_process
from ..evidence.follower import Follower
from ..native import library
from ..replay import keeper
from ..reporting import state
from ..reporting.state import State, Verdict
from ..startup.follow import follow
from ..startup.phases import Phase, Phases
from ..wrap import wrap_once
from . import hook, report, yardstick
from .apart import Apart
from .box import Box
from .eligibility import Reason, backend_reason, runner_reason
from .kernel import Kernel
from .rank import Armed, Rank
from .records import Model, Records
from .reporter import Reporter

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Reserved:
    """What a rank keeps until the process ends."""

    kernel: Kernel
    records: Records
    box: Box | None


class Process:
    """One process in which the plugin was loaded with validate or on. Only a scheduler ever becomes a rank.

    Args:
        config: What the environment asks for.
    """

    def __init__(self, config: Config):
        self.config = config
        self.rank: Rank | None = None
        self._backend_class: type | None = None
        self._reserved: _Reserved | None = None
        self._target_armed = False
        self.phases = Phases(config.mode, config.state_dir)

    def patch_runner(self, module: ModuleType) -> None:
        """Wraps the method that sizes the KV pool by the memory left: what this rank keeps is taken before."""

        def make_alloc(stock: Callable[..., Any]) -> Callable[..., Any]:
            def alloc_memory_pool(runner: Any, *args: Any, **kwargs: Any) -> Any:
                self.phases.enter(Phase.CACHE)
                with self._fail_closed():
                    self._reserve(_device_of(runner), before_pool=True)
                return stock(runner, *args, **kwargs)

            return alloc_memory_pool

        with self._fail_closed():
            runner_class = contract.runner_class(module)
            wrap_once(runner_class, contract.POOL_ALLOCATION, make_alloc)
            follow(runner_class, self.phases)

    def patch_backend(self, module: ModuleType) -> None:
        """Wraps the backend class of the module that was just imported."""
        with self._fail_closed():
            contract.check_sources(contract.installed_root())
            self._backend_class = contract.backend_class(module)
            hook.patch_backend(self._backend_class, self.on_backend)

    def patch_scheduler(self, module: ModuleType) -> None:
        """Wraps the scheduler's constructor, after which a server is ready to serve."""

        def make_init(stock: Callable[..., None]) -> Callable[..., None]:
            def __init__(scheduler: Any, *args: Any, **kwargs: Any) -> None:
                self.phases.enter(Phase.STARTING)
                stock(scheduler, *args, **kwargs)
                self.on_scheduler(scheduler)
                self.phases.enter(Phase.READY)

            return __init__

        with self._fail_closed():
            scheduler = getattr(module, "Scheduler", None)
            if not isinstance(scheduler, type):
                raise contract.drift("SGLang has no Scheduler", module.__name__)
            wrap_once(scheduler, "__init__", make_init)

    def on_backend(self, backend: Any, model_runner: Any) -> None:
        """A backend was constructed: proves and arms the kernel the first time, and guards the backend."""
        with self._fail_closed():
            draft = getattr(model_runner, "is_draft_worker", False)
            if self.rank is None:
                self.rank = self._arm(backend, model_runner)
            reason = runner_reason(model_runner)
            hook.guard_backend(backend, self.rank, Model.DRAFT if draft else Model.TARGET, reason)
            if not draft:
                self._target_armed = True
                self.rank.idle_reason = _idle_reason(backend, reason)

    def on_scheduler(self, scheduler: Any) -> None:
        """The scheduler is built and about to serve: refuses unless verify calls of the target go to Triton."""
        with self._fail_closed():
            backend = _verify_backend(scheduler)
            foreign = backend is not None and not isinstance(backend, self._backend_class or ())
            if foreign or not self._target_armed:
                raise ContractError(
                    f"KDTREE_VERIFY={self.config.mode} needs the Triton attention backend for verify",
                    type(backend).__name__ if foreign else "no Triton backend was built",
                    "start with --attention-backend triton, or set KDTREE_VERIFY=off",
                )

    def _reserve(self, device: torch.device, *, before_pool: bool) -> _Reserved:
        """All that this rank keeps on the device, allocated the first time."""
        if self._reserved is not None:
            return self._reserved
        kernels = library.load(self.config.library_dir, self.config.device)
        try:
            kernel, records = Kernel(kernels, device), Records(device)
        except torch.OutOfMemoryError as error:
            raise WorkspaceError(
                f"{device} has no memory for the kernel's workspace",
                str(error).partition("\n")[0].rstrip("."),
                "give this GPU less to hold (more ranks, a lower --mem-fraction-static), or set KDTREE_VERIFY=off",
            ) from error
        sizes = f"workspace {kernel.workspace_bytes / 2**20:.1f} MiB for the one stream that verifies, "
        sizes += f"records {records.device_bytes / 2**20:.2f} MiB"
        if (box := self._box(device)) is not None:
            sizes += f"; of the host, for a call out of bound {box.size / 2**20:.0f} MiB"
        if before_pool:
            logger.info("kdtree: allocated on %s, before the KV pool is sized: %s", device, sizes)
        else:
            logger.warning("kdtree: allocated on %s, out of what the KV pool has left: %s", device, sizes)
        self._reserved = _Reserved(kernel, records, box)
        return self._reserved

    @property
    def _compares(self) -> bool:
        """Whether stock computes what ours does, too."""
        return self.config.mode is Mode.VALIDATE or self.config.sample_every > 0

    def _box(self, device: torch.device) -> Box | None:
        """The box of a mode that compares. It only helps to see why a call was off: a server does without."""
        if not self.config.captures or not self._compares:
            return None
        try:
            return Box(device)
        except (DeviceError, torch.OutOfMemoryError) as error:
            logger.warning("kdtree: no memory for a call that leaves its bound, none will be kept: %s", error)
            return None

    def _arm(self, backend: Any, model_runner: Any) -> Rank:
        device, heads, draft_tokens = _device_of(model_runner), backend.num_head, backend.num_draft_tokens or 1
        reserved = self._reserve(device, before_pool=False)
        kernel, limits = reserved.kernel, reserved.kernel.limits
        self.phases.enter(Phase.PROVING)
        proof = selftest.run(kernel.library, device, min(heads, limits.heads), min(draft_tokens, limits.draft_tokens))
        proof.raise_if_failed()
        logger.info("kdtree: self-test on %s", proof.summary())

        measured = None
        if self._compares:
            stock, pool = contract.attention_call(backend), getattr(model_runner, "kv_cache_dtype", None)
            measured = yardstick.measure(stock, kernel, pool, heads, draft_tokens)
        armed = Armed(heads, draft_tokens, self.config.sample_every, measured)
        rank = Rank(self.config.mode, kernel, reserved.records, armed, reserved.box)
        identity, facts = state.this_rank(), _device_facts(device)
        path = state.rank_path(self.config.state_dir, identity)

        keep = None
        if reserved.box is not None:
            keep = keeper.of_rank(reserved.box, self.config, identity.name, device, kernel.library.description)

        def document() -> dict[str, Any]:
            captures = None if keep is None else keep.kept
            return report.document(rank, identity, facts) | self.phases.fields() | {"captures": captures}

        evidence = Follower(self.config.evidence_dir, self.config.state_dir, identity.name, document)
        # Its folder may hang, and a rank that does not report is restarted.
        followers: list[Callable[[], None]] = [Apart(evidence, "kdtree-evidence"), *metrics.followers(document)]
        if keep is not None:
            followers.append(keep)
        reporter = Reporter(rank, path, document, self.config.log_interval, followers)
        reporter.start()
        self.phases.hand_over(path, reporter.write)
        return rank

    def _fail(self, error: KdtreeError) -> None:
        identity = state.this_rank()
        document = state.rank_document(
            self.config.mode, identity, Verdict(State.FAILED, str(error)), exit_code=error.code
        )
        try:
            path = state.rank_path(self.config.state_dir, identity)
            self.phases.hand_over(path)
            state.write(path, document | self.phases.fields())
        except OSError:
            logger.exception("kdtree: the state file cannot be written")
        end_process(error)

    @contextmanager
    def _fail_closed(self) -> Iterator[None]:
        """Whatever goes wrong inside ends the process, with one clear line and a state file that says so."""
        try:
            yield
        except KdtreeError as error:
            self._fail(error)
        except Exception as error:
            logger.exception("kdtree: arming failed")
            self._fail(ContractError("the patch could not be armed", repr(error), "report the traceback above"))


def _device_of(model_runner: Any) -> torch.device:
    device = torch.device(model_runner.device)
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _idle_reason(backend: Any, reason: Reason | None) -> str | None:
    reason = reason or backend_reason(backend)
    if reason is not None:
        return f"no verify call of this model can be ours: {reason}"
    if not backend.num_draft_tokens:
        return "nothing will be verified: no speculative algorithm"
    return None


def _verify_backend(scheduler: Any) -> Any:
    """The backend to which the target's verify calls go; None where this SGLang does not say."""
    runner = getattr(getattr(scheduler, "tp_worker", None), "model_runner", None)
    backend = getattr(runner, "attn_backend", None)
    # Wrappers may hold wrappers: two-batch overlap, hybrid linear attention, one backend each for prefill and decode.
    while backend is not None:
        inner = vars(backend)
        if "prefill_backend" in inner and "decode_backend" in inner:
            from sglang.srt.model_executor.forward_batch_info import ForwardMode

            backend = backend._select_backend(ForwardMode.TARGET_VERIFY)
        elif "primary" in inner:
            backend = inner["primary"]
        elif "full_attn_backend" in inner:
            backend = inner["full_attn_backend"]
        else:
            return backend
    return None


def _device_facts(device: torch.device) -> dict[str, Any]:
    if device.type != "cuda":
        return {"kind": "cpu"}
    from ..native import gpu

    return {"kind": "cuda", **asdict(gpu.facts(device.index))}
