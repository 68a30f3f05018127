"""The steps: what the image does in containers, from its check of the device to its end."""

from __future__ import annotations

import json
import resource
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proof import dialogue, verdict
from proof.server import free_port
from proof.starts import MODES
from proof.verdict import Run

from .containers import CACHES, Container, Docker
from .engine import DEVICE
from .errors import ContainerError
from .profiles import Profile
from .steps import Record

ROOT = Path(__file__).resolve().parents[2]
MODELS = "/root/.cache/huggingface"  # where compose.yaml has them
MODEL = f"{MODELS}/tiny"
NO_GPU, OTHER_CARD = 69, 66  # README, "Exit codes"
STOP_SECONDS = 60  # compose.yaml's stop_grace_period
COMPOSE_FILES = ("compose.yaml", "compose.cdi.yaml")
PROJECT = "kdtree"


@dataclass
class Scenario:
    """One image on one machine.

    Attributes:
        docker: The client.
        profile: What it runs on.
        record: Where each step is noted.
        work: A folder for the model and Compose's override.
        runs: What the servers said, by mode.
    """

    docker: Docker
    profile: Profile
    record: Record
    work: Path
    runs: dict[str, Run] = field(default_factory=dict)

    def play(self) -> None:
        """All steps. What fails is recorded; what needs it is left out."""
        self.preflight()
        self.refusals()
        if not self.model():
            return
        with ThreadPoolExecutor(len(MODES)) as pool:
            try:
                list(pool.map(self.serve, MODES))
            except BaseException:
                self.docker.remove_all()  # so that what waits for them ends
                raise
        self.compare()
        self.compose()

    # -- without a server

    def preflight(self) -> None:
        ask = "import kdtree_verify, sys; print(kdtree_verify.__file__, *sys.version_info[:3])"
        with self.record.step("the patch fits this base (kdtree_verify.preflight)", "status 0") as step:
            code, said = self.docker.to_its_end("python3", "-m", "kdtree_verify.preflight")
            step.check(code == 0, said.strip())
        with self.record.step("what the base's Python imports", "kdtree_verify of the image's own layers") as step:
            code, said = self.docker.to_its_end("python3", "-c", ask)
            step.check(code == 0 and said.startswith("/opt/sglang/"), said.strip())
        with self.record.step("versions (kdtree version)", "status 0") as step:
            code, said = self.docker.to_its_end("kdtree", "version", "--json", options=(f"--device={DEVICE}",))
            step.check(code == 0, said.strip() if code else "in the result")
            self.record.facts["versions"] = json.loads(said)
        options = [f"--device={DEVICE}", *(f"--env={name}={text}" for name, text in self.profile.allowed.items())]
        with self.record.step("the doctor (kdtree doctor)", "status 0") as step:
            code, said = self.docker.to_its_end("kdtree", "doctor", options=options)
            step.check(code == 0, said.strip() if code else said.strip().splitlines()[-1])
            self.record.keep("doctor", said)

    def refusals(self) -> None:
        """The entrypoint's, in containers that end by themselves."""
        self._refusal("validate without a GPU handed over", "validate", NO_GPU, "no GPU can be seen", ())
        for mode in MODES[1:]:
            if self.profile.refused:
                what = f"{mode} on this device without the override"
                self._refusal(what, mode, OTHER_CARD, self.profile.refused, (f"--device={DEVICE}",))

    def _refusal(self, what: str, mode: str, status: int, line: str, options: tuple[str, ...]) -> None:
        with self.record.step(what, f"status {status} and one line: {line}") as step:
            # Not the profile's settings: they would let the CPU pass.
            bare = Docker(self.docker.environment, self.docker.image, self.docker.mounts)
            code, said = bare.to_its_end("--model-path", MODEL, options=(*options, f"--env=KDTREE_VERIFY={mode}"))
            lines = [found for found in said.splitlines() if "Fix: " in found]
            ok = code == status and len(lines) == 1 and lines[0].startswith("kdtree: ") and line in lines[0]
            step.check(ok, f"status {code}: {' | '.join(said.strip().splitlines())}")

    def model(self) -> bool:
        """Makes the model with the image's Python."""
        models = self.work / "models"
        models.mkdir(exist_ok=True)
        maker = ROOT / "ci" / "demo" / "model.py"
        options = (f"--volume={maker}:/model.py:ro", f"--volume={models}:{MODELS}", f"--device={DEVICE}")
        with self.record.step("the model, made in a container", "status 0") as step:
            code, said = self.docker.to_its_end("python3", "/model.py", MODEL, options=options)
            step.check(code == 0, f"status {code} {said.strip()[-600:]}".strip())
        return step.ok

    # -- docker run

    def serve(self, mode: str) -> None:
        """A server in a mode, from its start to its end by SIGTERM."""
        port = free_port()
        settings = {"KDTREE_VERIFY": mode, "KDTREE_LOG_INTERVAL": "1"}
        # Off must do without the override: it is the way back on any card.
        settings |= self.profile.allowed if mode != "off" else {}
        options = [f"--device={DEVICE}", "--shm-size=8g", *(f"--env={name}={text}" for name, text in settings.items())]
        options += [f"--volume={name}:{folder}" for name, folder in CACHES.items()]
        options += [f"--volume={self.work / 'models'}:{MODELS}:ro", f"--name=kdtree-{mode}"]
        container = None
        with self.record.step(f"{mode}: docker run, until its own health check is good", "healthy") as step:
            container = self.docker.start("--model-path", MODEL, *self.profile.server(port), options=options)
            container.wait_healthy(self.profile.ready_seconds)
            step.check(True, "healthy")
        if container is None:
            return
        if step.ok:
            self._serving(mode, container, f"http://127.0.0.1:{port}")
            self._ended(mode, container, lambda: self._stop(container))
        with self.record.step(f"{mode}: removed", "its log kept") as step:
            self.record.keep(mode, container.log())
            container.remove()
            step.check(True, "gone")

    def _stop(self, container: Container) -> None:
        self.docker.call("stop", f"--time={STOP_SECONDS}", container.identity, seconds=STOP_SECONDS + 30)

    def _serving(self, name: str, container: Container, url: str) -> None:
        """What a healthy server is asked, and what it shows. `name`: the mode, or how it was started."""
        log = container.log()
        with self.record.step(f"{name}: the entrypoint's check", f"it says: {self.profile.checked}") as step:
            said = [line for line in log.splitlines() if line.startswith("kdtree: ")]
            step.check(any(self.profile.checked in line for line in said), " | ".join(said)[:600])
        with self.record.step(f"{name}: devices", "the nodes of the CDI specification") as step:
            nodes = [path for part in self.profile.nodes for path in part]
            lacking = container.lacks(nodes)
            step.check(not lacking, f"lacks {', '.join(lacking)}" if lacking else ", ".join(nodes))
        with self.record.step(f"{name}: exec", "tini, its one child the server's Python, no entrypoint left") as step:
            step.check(*_became_the_server(container))
        if self.profile.captured:
            with self.record.step(f"{name}: graphs", f"SGLang says: {self.profile.captured}") as step:
                lines = [line for line in log.splitlines() if self.profile.captured in line]
                step.check(bool(lines), " | ".join(lines)[:400])
        with self.record.step(f"{name}: requests", "each answered, trees verified") as step:
            answers = dialogue.hold(url, self.profile.asked)
            ranks = {rank["rank"]["name"]: rank for rank in container.status()["ranks"]}
            self.runs[name] = Run(answers, ranks)
            steps = sum(answer.verify_calls for answer in answers)
            tokens = sum(len(answer.tokens) for answer in answers)
            step.check(steps > 0, f"{len(answers)} answers, {tokens} tokens in {steps} verify steps; {_figures(ranks)}")

    def _ended(self, name: str, container: Container, stop: Any) -> None:
        with self.record.step(f"{name}: SIGTERM", f"status 0 within {STOP_SECONDS} s, no process left") as step:
            before, begun = container.processes(), time.monotonic()
            stop()
            seconds = time.monotonic() - begun
            state = container.inspect()["State"]
            left = [number for number in before if Path(f"/proc/{number}").exists()]
            found = f"status {state['ExitCode']} after {seconds:.1f} s, {len(before)} processes before, {len(left)} now"
            step.check(state["ExitCode"] == 0 and seconds < STOP_SECONDS and not left and len(before) > 1, found)

    def compare(self) -> None:
        """The modes' answers and counters, as the proof judges them."""
        missing = [mode for mode in MODES if mode not in self.runs]
        with self.record.step(
            "answers and counters of the three modes",
            "validate as off, on as off or near-ties; each layer's calls ran the kernel, none declined",
        ) as step:
            if missing:
                raise ContainerError(f"nothing of {', '.join(missing)}")
            wrong = verdict.failures(self.profile.start, {mode: self.runs[mode] for mode in MODES})
            step.check(not wrong, "; ".join(wrong) or "as expected")

    # -- docker compose

    def compose(self) -> None:
        """compose.yaml with its CDI overlay, in validate."""
        port = free_port()
        override = self.work / "override.yaml"
        override.write_text(self.override())
        settings = {
            "KDTREE_IMAGE": self.docker.image,
            "KDTREE_MODELS": str(self.work / "models"),
            "KDTREE_MODEL": MODEL,
            "KDTREE_SERVER_ARGS": shlex.join(self.profile.server(port)),
            "KDTREE_VERIFY": "validate",
            "KDTREE_LOG_INTERVAL": "1",
            "KDTREE_RESTART": "no",
            "KDTREE_SHM_SIZE": "8g",
            "KDTREE_USER": "0:0",
            **self.profile.allowed,
        }
        files = [f"--file={ROOT / name}" for name in COMPOSE_FILES]
        base = ["compose", f"--project-name={PROJECT}", "--env-file=/dev/null", *files, f"--file={override}"]

        def call(*arguments: str, seconds: float = 60) -> str:
            return self.docker.call(*base, *arguments, seconds=seconds, **settings)

        name, container = "compose", None
        with self.record.step("compose: up, until healthy", "healthy") as step:
            call("up", "--detach", "--no-build", "--quiet-pull")
            container = Container(self.docker, call("ps", "--all", "--quiet", "server").strip())
            container.wait_healthy(self.profile.ready_seconds)
            step.check(True, "healthy")
        if container is not None and step.ok:
            self._serving(name, container, f"http://127.0.0.1:{port}")
            self._ended(name, container, lambda: call("stop", seconds=STOP_SECONDS + 30))
            self._compare_compose(name)
        with self.record.step("compose: down", "no container of it") as step:
            if container is not None:
                self.record.keep(name, container.log())
            call("down", "--volumes", "--timeout=5")
            left = self.docker.call("ps", "--all", "--quiet").split()
            step.check(not left, f"{len(left)} containers")

    def _compare_compose(self, name: str) -> None:
        with self.record.step("compose: answers and counters", "as off's, the kernel in each layer") as step:
            if "off" not in self.runs or name not in self.runs:
                raise ContainerError("there is nothing to compare")
            runs = {"off": self.runs["off"], "validate": self.runs[name], "on": self.runs[name]}
            wrong = [line for line in verdict.failures(self.profile.start, runs) if line.startswith("validate")]
            step.check(not wrong, "; ".join(wrong) or "as expected")

    def override(self) -> str:
        """What compose.yaml needs on this machine: the base's folders, the host's network, limits that it may set."""
        volumes = [f"{mount}:{mount}:ro" for mount in self.docker.mounts]
        lines = ["services:", "  server:", "    network_mode: host", "    ports: !reset []"]
        if not may_raise_limits():
            lines.append("    ulimits: !reset null")
        lines += [f"    volumes: {json.dumps(volumes)}", f"    environment: {json.dumps(dict(self.docker.settings))}"]
        return "\n".join(lines) + "\n"


def may_raise_limits() -> bool:
    """Whether compose.yaml's limits can be had: a small machine's root may lack the capability."""
    limit = f"resource.setrlimit(resource.RLIMIT_MEMLOCK, ({resource.RLIM_INFINITY}, {resource.RLIM_INFINITY}))"
    done = subprocess.run([sys.executable, "-c", f"import resource; {limit}"], capture_output=True, check=False)
    return done.returncode == 0


def _became_the_server(container: Container) -> tuple[bool, str]:
    """Whether process 1 is the init, and its child what the entrypoint became."""
    server = container.status()["server"]["pid"]
    processes = container.processes()
    (init,) = [number for number, process in processes.items() if process.inside == 1]
    children = [process for process in processes.values() if process.parent == init]
    named = [p for p in processes.values() if p.inside != 1 and any("entrypoint" in word for word in p.arguments)]
    ok = processes[init].arguments[0].endswith("tini") and [child.inside for child in children] == [server]
    told = "; ".join(f"{child.inside}: {' '.join(child.arguments)[:80]}" for child in children)
    found = f"1: {' '.join(processes[init].arguments[:3])}; {told}; {len(processes)} processes"
    return ok and not named, found


def _figures(ranks: dict[str, Any]) -> str:
    """A rank's counters, and the worst of its layers."""
    told = []
    for name, rank in ranks.items():
        counters, layers = rank.get("counters") or {}, rank.get("layers") or []
        calls = [layer["calls"] for layer in layers]
        worst = max((layer["worst_rel_l2"] or 0.0 for layer in layers), default=0.0)
        told.append(
            f"{name} {rank['state']}: {counters.get('kernel_calls', 0)} kernel calls, by layer {calls}, "
            f"declined {counters.get('declined', {})}, worst relative difference {worst:.2e}"
        )
    return "; ".join(told)
