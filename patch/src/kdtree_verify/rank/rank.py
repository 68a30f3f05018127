"""One rank of the server: answers its verify calls as the mode says, and knows what became of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..config import Mode
from ..errors import LibraryError
from ..native.abi import Status
from ..native.call import Call
from ..reporting.state import State, Verdict
from . import eligibility
from .box import Box
from .eligibility import Reason
from .kernel import Kernel
from .records import Model, Place, Records
from .sampling import Sampler
from .stopwatch import Stopwatch
from .yardstick import Yardstick

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Armed:
    """What a rank was armed with: query heads, draft tokens of a request, (`on`) how rarely stock runs as well, and how
    far both kernels are from float64, where that is known."""

    heads: int
    draft_tokens: int
    sample_every: int = 0
    yardstick: Yardstick | None = None


class Rank:
    """Answers verify calls.

    Args:
        mode: VALIDATE or ON.
        kernel: The proven library on this rank's device.
        records: Where the device counts.
        armed: What it was armed with.
        box: Where the device keeps a call that leaves its bound; None: nowhere.
    """

    def __init__(self, mode: Mode, kernel: Kernel, records: Records, armed: Armed, box: Box | None = None):
        self.mode, self.kernel, self.records, self.armed, self.box = mode, kernel, records, armed, box
        self.pool_dtype: torch.dtype | None = None
        """That of the KV pool, once a call of the target was seen."""
        self.idle_reason: str | None = None
        """Why the target model will never make a call that is ours, where that is known before the first."""
        self.not_verify_calls = 0
        """Calls of forward_extend outside TARGET_VERIFY, as Python sees them."""
        self.started_at = time.time()
        self.state_since = self.started_at
        """When verdict() first found the state that it found last."""
        self.failure: str | None = None
        self.on_failure: Callable[[], None] = lambda: None
        every = armed.sample_every if mode is Mode.ON else 0
        self._sampler = Sampler(kernel, records, box, every) if every else None
        self._captured: dict[Reason, None] = {}
        self._logged: set[str] = set()
        self._state = State.ARMED

    def decline(self, model: Model, reason: Reason) -> None:
        """Counts a verify call that stock runs, on the device: a graph that captures it counts its replays."""
        if model is Model.TARGET and self.kernel.capturing():
            self._captured[reason] = None
        status = self.kernel.count(self.records.decline(model, reason))
        if status != Status.OK:
            self._failed(f"kdtree_count: {self.kernel.library.status_text(status)}")

    def examine(self, reason: Callable[..., Reason | None], *arguments: Any) -> Reason | None:
        """`reason(*arguments)`, or UNKNOWN where it raises: what cannot be examined is stock's."""
        try:
            return reason(*arguments)
        except Exception as error:
            self._log_once(f"a verify call could not be examined, stock runs it: {error!r}")
            return Reason.UNKNOWN

    def attend(
        self, stock: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], model: Model, layer: int
    ) -> Any:
        """Answers one call of extend_attention_fwd made inside a verify call.

        Raises:
            LibraryError: With `on`, the library refused the call or failed to launch it. Nothing was written.
        """
        call, reason = self._bind(args, kwargs)
        place = self.records.layer(model, layer) if call is not None else None
        if call is None or place is None:
            self.decline(model, reason or Reason.LAYERS)
            return stock(*args, **kwargs)
        if model is Model.TARGET:
            self.pool_dtype = call.k_buffer.dtype
        if self.mode is Mode.ON:
            self._serve(call, place)
            if self._sampler is not None:
                try:
                    problem = self._sampler.sample(stock, args, kwargs, call, model, layer, place)
                except Exception as error:
                    problem = repr(error)  # ours is answered already, and is served
                if problem is not None:
                    self._log_once(f"a call could not be sampled: {problem}; ours is served")
            return None
        stopwatch = Stopwatch(self.kernel, self.records)
        stopwatch.begin()
        result = stock(*args, **kwargs)
        self._validate(call, model, layer, place, stopwatch)
        return result

    def verdict(self) -> Verdict:
        """The rank's state now. The target model's calls decide it; a draft model's are only counted."""
        verdict = self._verdict()
        if verdict.state is not self._state:
            self._state, self.state_since = verdict.state, time.time()
        return verdict

    def _verdict(self) -> Verdict:
        if self.failure is not None:
            return Verdict(State.FAILED, self.failure)
        if self._captured:
            return Verdict(State.NOT_SERVING, f"a captured graph runs stock: {', '.join(tuple(self._captured))}")
        if any(figures.kernel_calls for figures in self.records.layers() if figures.model is Model.TARGET):
            return Verdict(State.SERVING)
        if declined := self.records.declined(Model.TARGET):
            return Verdict(State.NOT_SERVING, f"every verify call was declined: {', '.join(declined)}")
        if self.idle_reason is not None:
            return Verdict(State.NOT_SERVING, self.idle_reason)
        return Verdict(State.ARMED)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Call, None] | tuple[None, Reason]:
        """The call if it is ours, else the reason why it is not."""
        try:
            call = Call(*args, **kwargs)
        except TypeError as error:
            self._log_once(f"a verify call could not be bound, stock runs it: {error}")
            return None, Reason.UNKNOWN
        reason = self.examine(eligibility.call_reason, call, self.kernel.limits)
        return (call, None) if reason is None else (None, reason)

    def _serve(self, call: Call, place: Place) -> None:
        status = self.kernel.verify(call, call.o_extend, place)
        if status != Status.OK:
            text = f"kdtree_verify: {self.kernel.library.status_text(status)}"
            self._failed(text)
            raise LibraryError("the kernel did not run", text, "set KDTREE_VERIFY=off and report this line")

    def _validate(self, call: Call, model: Model, layer: int, place: Place, stopwatch: Stopwatch) -> None:
        # Ours must not change what stock answers, so nothing leaves this method but a note.
        try:
            # Freed on return: the allocator hands the same block to the next layer, in a graph's own pool too.
            ours = torch.empty_like(call.o_extend, memory_format=torch.contiguous_format)
            stopwatch.between()
            status = self.kernel.verify(call, ours, place)
            stopwatch.end()
            if status != Status.OK:
                self.decline(model, Reason.LAUNCH_FAILED)
                self._failed(f"kdtree_verify: {self.kernel.library.status_text(status)}")
                return
            box = None if self.box is None else self.box.args(call, ours, model, layer)
            status = self.kernel.compare(call, ours, place, self.records.shape_table, stopwatch.stamps, box)
            if status != Status.OK:
                self._failed(f"kdtree_compare: {self.kernel.library.status_text(status)}")
        except Exception as error:
            self._failed(f"validating a call: {error!r}")

    def _failed(self, text: str) -> None:
        if self.failure is None:
            self.failure = text
            self.on_failure()
        self._log_once(f"{text}; stock's answer is returned" if self.mode is Mode.VALIDATE else text)

    def _log_once(self, text: str) -> None:
        if text not in self._logged:
            self._logged.add(text)
            logger.error("kdtree: %s", text)
